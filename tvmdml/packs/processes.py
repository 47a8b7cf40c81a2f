"""The processes that compile a pack's kernels, as an executor: threads that each wait for one process."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from tvmdml.errors import CompileError
from tvmdml.system.workers import Failure, Workers

T = TypeVar("T")

PATIENCE = 3600.0
"""Seconds that a few kernels may take to compile, on the slowest of machines."""


class Processes(Executor):
    """Processes that are out of reach of Ctrl-C, end with this one, and import nothing from the current folder.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count)
        self._all = [Workers(1, {}, PATIENCE) for _ in range(count)]
        self._idle: queue.SimpleQueue[Workers] = queue.SimpleQueue()
        for process in self._all:
            self._idle.put(process)

    def submit(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        """Call a function of a module in one of the processes."""
        return self._threads.submit(self._call, function, arguments)

    def _call(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        process = self._idle.get()
        try:
            ((_, answer),) = process.map(function, [arguments])
        finally:
            self._idle.put(process)
        if isinstance(answer, Failure):
            raise CompileError(f"a process that compiled kernels {answer.problem}")
        return answer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Kill the processes, and with them the calls that still run."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._all:
            process.interrupt()
        self._threads.shutdown()  # each thread has seen the end of its process
        for process in self._all:
            process.close()

"""Compile the kernels of a graph that no store has, several at a time: the compiler does most of its work without Python's lock."""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tvmdml.compiler import missing
from tvmdml.errors import TvmdmlError
from tvmdml.kernels.kernel import Kernel
from tvmdml.library import notices
from tvmdml.library.finding import absent, find
from tvmdml.operators import Operator
from tvmdml.operators._contract import Shared
from tvmdml.system.logger import SLOW, timed
from tvmdml.targets import Target
from tvmdml.targets.cpu.thread_count import thread_count

Operation = tuple[Operator, Shared]
"""A descriptor, and the pairs of its tensors that share memory."""
Progress = Callable[[int, int], object]
"""Called with (kernels ready, kernels in all)."""
_LOOK = 0.005
"""Seconds after which a thread that waits for others looks how far they are."""


def compile_all(operations: Iterable[Operation], target: Target, progress: Progress | None) -> None:
    """Compile what is missing. A kernel that does not compile is left to the caller, who compiles it again for the error.

    An interrupt loses nothing: what is compiled is in the store, and so will be what is being compiled.
    """
    operations = list(operations)
    notices.list_all(lambda: operations)
    several: list[list[Kernel]] = []
    for desc, shared in operations:
        with contextlib.suppress(TvmdmlError):  # the caller meets it again
            several.append(missing(desc, target, shared))
    _compile_missing(_each_once(several), target, progress)


def compile_kernels(several: Iterable[Sequence[Kernel]], target: Target, progress: Progress | None) -> None:
    """The same of kernels: those of one operator together."""
    _compile_missing((absent(kernels, target) for kernels in _each_once(several)), target, progress)


def _each_once(several: Iterable[Sequence[Kernel]]) -> Iterator[list[Kernel]]:
    """Without those that were there before."""
    known: set[object] = set()
    for kernels in several:
        new = [kernel for kernel in kernels if kernel.identity not in known]
        known.update(kernel.identity for kernel in new)
        yield new


def _compile_missing(several: Iterable[Sequence[Kernel]], target: Target, progress: Progress | None) -> None:
    if wanted := [kernels for kernels in several if kernels]:
        begun = time.perf_counter()
        with shown(progress) as report:
            _compile(wanted, target, report)
        timed(time.perf_counter() - begun, "%d kernels for %s: compiled", sum(map(len, wanted)), target.kind)


def _compile(kernels: Sequence[Sequence[Kernel]], target: Target, report: Progress) -> None:
    """Compile the kernels of each operator, one after the other: the same object writes them, and is for one thread."""
    waiting, ready, told, count = deque(kernels), list[Kernel](), 0, sum(map(len, kernels))

    def work() -> Iterator[None]:
        with contextlib.suppress(IndexError):
            while True:
                for kernel in waiting.popleft():
                    with contextlib.suppress(Exception):
                        find(kernel, target)
                    ready.append(kernel)
                    yield

    def tell() -> None:
        nonlocal told
        while told < len(ready):
            told += 1
            report(told, count)

    report(0, count)
    process, others = os.getpid(), list[weakref.ref[_Other]]()
    try:
        with contextlib.suppress(RuntimeError, MemoryError):  # the system provides no more threads
            for _ in range(_threads(target, len(kernels)) - 1):
                other = _Other()
                _thread.start_new_thread(other.run, (work(),))
                others.append(weakref.ref(other))
                del other
        for _ in work():
            tell()
        while any(other() for other in others) and process == os.getpid():  # a signal handler may fork
            time.sleep(_LOOK)
            tell()
    finally:
        waiting.clear()
    tell()


class _Other:
    """An object that lives as long as a thread. ``threading.Thread`` waits forever for a thread that had no memory to begin."""

    def run(self, work: Iterator[None]) -> None:
        for _ in work:
            pass


def _threads(target: Target, kernels: int) -> int:
    """How many threads compile. Code for devices is written in Python, by one thread at a time."""
    return 1 if target.moves else min(thread_count(), _processors(), kernels)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """What to report to: the caller's, or a bar on a terminal if it takes longer than a person waits without one."""
    if progress is not None or sys.stderr is None or not sys.stderr.isatty():
        yield progress or (lambda done, count: None)
        return
    begun = time.monotonic()
    bar: Any = None
    task: Any = None
    with contextlib.ExitStack() as stack:

        def report(done: int, count: int) -> None:
            nonlocal bar, task
            if bar is None and done < count and time.monotonic() - begun > SLOW:
                from rich.console import Console
                from rich.progress import Progress as Bar

                bar = stack.enter_context(Bar(console=Console(stderr=True), transient=True))
                task = bar.add_task("compiling kernels", total=count)
            if bar is not None:
                bar.update(task, completed=done)

        yield report

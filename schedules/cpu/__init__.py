"""Schedules for the CPU, and the few forms they share.

Kernels take sizes and strides as integers at launch wherever that costs nothing, so one kernel serves a class of shapes. A loop
over contiguous elements is left to LLVM to vectorise: it does so as well for a length it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml import tensorir as T
from tvmdml.targets import Target


def split(total: int, target: Target, least: int, per_thread: int = 1) -> int:
    """Into how many tasks to cut ``total`` units of work, each of at least ``least``: 1 where threads would not pay.

    ``least`` is for threads that are handed work at once; for others it counts as many times as they take longer. Several tasks
    ``per_thread`` let one that comes late do its share of what is left.
    """
    threads = target.tasks()
    return max(1, min(threads * per_thread if threads > 1 else 1, total // (least * target.handover())))


def unit_step(step: int) -> int:
    """A step that is worth a kernel of its own, for LLVM vectorises what it knows; 0 for any other, passed at launch."""
    return step if -1 <= step <= 4 and step != 0 else 0


def share(task: Any, tasks: Any, total: Any) -> tuple[Any, Any]:
    """The part of ``range(total)`` that a task has: begin and end."""
    return T.hold(T.truncdiv(total * task, tasks)), T.hold(T.truncdiv(total * (task + 1), tasks))


def per_task(tasks: Any, parallel: bool, body: Callable[[Any], None]) -> None:
    """Run ``body(task)`` for each task: at once, or as the only one there is."""
    if parallel:
        with T.loop(tasks, parallel=True) as task:
            body(task)
    else:
        body(T.i64(0))

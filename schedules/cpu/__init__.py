"""Schedules for the CPU, and the few forms they share.

Kernels take sizes and strides as integers at launch wherever that costs nothing, so one kernel serves a class of shapes. A loop
over contiguous elements is left to LLVM to vectorise: it does so as well for a length it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml import tensorir as T


def split(total: int, tasks: int, least: int) -> int:
    """Into how many tasks to cut ``total`` units of work, each of at least ``least``: 1 where threads would not pay."""
    return max(1, min(tasks, total // least))


def share(task: Any, tasks: Any, total: Any) -> tuple[Any, Any]:
    """The part of ``range(total)`` that a task has: begin and end."""
    return T.let(T.truncdiv(total * task, tasks)), T.let(T.truncdiv(total * (task + 1), tasks))


def per_task(tasks: Any, parallel: bool, body: Callable[[Any], None]) -> None:
    """Run ``body(task)`` for each task: at once, or as the only one there is."""
    if parallel:
        with T.loop(tasks, parallel=True) as task:
            body(task)
    else:
        body(T.i64(0))

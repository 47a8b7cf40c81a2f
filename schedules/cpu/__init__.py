"""Schedules for the CPU, and the helpers they share.

Kernels take sizes and strides as integers at launch wherever that costs nothing, so that one kernel serves a class of shapes. LLVM
vectorises loops over contiguous elements; it does that equally well for a length that is not known at compile time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.knobs import Constraint, Knob
from tvmdml.targets import Target

TASKS_PER_THREAD = Knob(4, (1, 2, 4, 8), "most tasks per thread")
_SMALL = 1 << 20
STREAMED = Constraint("stream_bytes is 1 MiB or more: small results stay in a cache", lambda knobs, _: knobs.stream_bytes >= _SMALL)


def stream_bytes(meaning: str, of_cache: float = 0.5) -> Knob:
    """The knob from which size on results are written with non-temporal stores: by default a part of the last-level cache."""
    sizes = (1, *(1 << n for n in range(20, 40)))
    return Knob(int((1 << 25) * of_cache), sizes, meaning, derived=lambda caches: max(int(caches.l3 * of_cache), _SMALL))


def split(total: int, target: Target, least: int, per_thread: int = 1) -> int:
    """How many tasks to divide ``total`` units of work into, each with at least ``least`` units; 1 if threads would not pay.

    ``least`` is for a thread pool with a fast start. For a slower pool it is multiplied by how much longer the start takes. With
    several tasks ``per_thread``, a thread that starts late does fewer of them.
    """
    threads = target.tasks()
    return max(1, min(threads * per_thread if threads > 1 else 1, total // (least * target.handover())))


def unit_step(step: int) -> int:
    """The step itself if it is worth a kernel of its own, since LLVM vectorises a known step; 0 if it is passed at launch."""
    return step if -1 <= step <= 4 and step != 0 else 0


def share(task: Any, tasks: Any, total: Any) -> tuple[Any, Any]:
    """A task's part of ``range(total)``: begin and end."""
    return T.hold(T.truncdiv(total * task, tasks)), T.hold(T.truncdiv(total * (task + 1), tasks))


def per_task(tasks: Any, body: Callable[[Any], None]) -> None:
    """Run ``body(task)`` for each task, an integer of the launch: in parallel, or on the caller's thread if there is only one."""
    with T.loop(tasks, parallel=True) as task:
        body(task)

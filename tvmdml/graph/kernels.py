"""Compile the kernels of a graph that no store has, several at a time: each in another process, which puts it into the store."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tvmdml import targets
from tvmdml._workers import Failure, Workers
from tvmdml.compiler import missing, ready_owned
from tvmdml.errors import TvmdmlError
from tvmdml.kernels import knobs
from tvmdml.operators import Operator
from tvmdml.operators._contract import Shared
from tvmdml.targets import Target

Operation = tuple[Operator, Shared]
"""A descriptor, and the pairs of its tensors that share memory."""
Progress = Callable[[int, int], object]
"""Called with (kernels ready, kernels in all)."""

FEW = {False: 5, True: 16}
"""With fewer kernels to compile, other processes would take longer: they import the compiler, which is in this one or is not."""
PATIENCE = 600.0
"""Seconds that a kernel may take to compile, on the slowest of machines."""


def compile_all(operations: Iterable[Operation], target: Target, progress: Progress | None) -> None:
    """Compile what is missing. A kernel that does not compile is left to the caller, who compiles it again for the error.

    An interrupt loses nothing: what is compiled is in the store.
    """
    wanted: dict[object, Operation] = {}
    for desc, shared in operations:
        with contextlib.suppress(TvmdmlError):  # the caller meets it again
            if (kernel := missing(desc, target, shared)) is not None:
                wanted.setdefault(kernel.identity, (desc, shared))
    with shown(progress) as report:
        if not wanted:
            return
        report(0, len(wanted))
        if not _elsewhere(len(wanted), target):
            for done, (desc, shared) in enumerate(wanted.values(), 1):
                with contextlib.suppress(TvmdmlError):
                    ready_owned(desc, target, shared)
                report(done, len(wanted))
            return
        with Workers(min(_processors(), len(wanted) // 2), {}, PATIENCE) as workers:
            for done, _ in enumerate(workers.map(_compile, [(*one, target.name) for one in wanted.values()]), 1):
                report(done, len(wanted))


def _elsewhere(count: int, target: Target) -> bool:
    """Whether other processes do the same, and faster."""
    here_only = knobs.in_force() or target.knobs or target.logs is not None
    forbidden = os.environ.get("TVMDML_DISABLE_JIT", "0") not in ("", "0")
    few = FEW["tvm" in sys.modules]
    return not (count < few or _processors() < 2 or here_only or forbidden or target.moves)


def _compile(desc: Operator, shared: Shared, target: str) -> bool | Failure:
    """Compile a kernel in a process of its own."""
    with contextlib.suppress(TvmdmlError):
        ready_owned(desc, targets.resolve(target), shared)
        return True
    return False


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """What to report to: the caller's, or a bar on a terminal."""
    if progress is not None or sys.stderr is None or not sys.stderr.isatty():
        yield progress or (lambda done, count: None)
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task: Any = bar.add_task("kernels", total=None)
        yield lambda done, count: bar.update(task, completed=done, total=count)

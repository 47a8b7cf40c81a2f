"""Which schedule serves an operator on a target, and the values of its knobs: the last step that knows both.

A schedule is found by its file: the operator's own, its family's, or the default one. Its knobs have the values in force on the
target (``knobs``), and those of the target's tuning logs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tvmdml import operators
from tvmdml.errors import CompileError
from tvmdml.kernels import knobs
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knobs, Value
from tvmdml.operators import Operator
from tvmdml.operators._contract import Shared
from tvmdml.system import imported
from tvmdml.targets import Target


class LoggedKnobs(NamedTuple):
    """The tuning log's values for an operation."""

    values: Mapping[str, Value] = MappingProxyType({})
    """The knobs that the log sets; empty if no log has a record."""
    hash: str = ""
    """Distinguishes a kernel from those of other records; empty if no knob is set."""


_UNTUNED = LoggedKnobs()


_remembered: ContextVar[dict[object, Any] | None] = ContextVar("remembered", default=None)
"""The kernels that were chosen, and the descriptors that were made, while a graph is compiled."""


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Choose each kernel once in a block of code: passes and the plan of one graph ask for the same ones several times.

    Not for longer: tuning logs may come and go between graphs.
    """
    if _remembered.get() is not None:
        yield
        return
    token = _remembered.set({})
    try:
        yield
    finally:
        _remembered.reset(token)


def remembered() -> dict[object, Any] | None:
    """What is remembered, by keys that say what it is; ``None`` outside of such a block."""
    return _remembered.get()


def kernel_for(desc: Operator, target: Target, shared: Shared = ()) -> Kernel:
    """The kernel that the schedules choose for an operator on a target.

    Args:
        desc: the operator.
        target: where it runs.
        shared: the pairs (input, output) in the same memory. Such a kernel takes the outputs, and not their inputs.

    Raises:
        Unsupported: the target does not support the operator, or a tensor of this size.
        InvalidArgument: ``knobs.using`` names an unknown knob, or a value that is not allowed.
    """
    known = _remembered.get()
    if known is None or knobs.in_force() or not knobs.logs_count():
        return _chosen(desc, target, shared)
    key = (id(target), type(desc), desc.exactly(), desc.owned(), shared)
    if (found := known.get(key)) is None:
        found = known[key] = _chosen(desc, target, shared)
    return found


def _chosen(desc: Operator, target: Target, shared: Shared) -> Kernel:
    for name, tensor in desc.tensors():
        if tensor is not None:
            target.check_size(desc.where(name), tensor.span_in_bytes)
    schedule = _schedule(target.schedules, operators.module_of(type(desc)), desc.FAMILY)
    declared: Knobs | None = getattr(schedule, "KNOBS", None)
    if declared is None:
        return schedule.kernel(desc, target, shared)
    found = tuned(declared, desc, target, shared)
    kernel: Kernel = schedule.kernel(desc, target, shared, declared.now(target, found.values))
    return kernel._replace(tuning=found.hash) if found.hash else kernel


def tuned(declared: Knobs, desc: Operator, target: Target, shared: Shared = ()) -> LoggedKnobs:
    """The values for an operation in the target's logs, if this schedule has these knobs and they satisfy its constraints."""
    if not knobs.logs_count():
        return _UNTUNED
    logs = target.logs
    if logs is None:
        logs = _all_logs().installed()
    found = logs.find(declared.operator, desc, shared, target.machine())
    if found is None or not (values := declared.accepted(found.record.knobs, target)):
        return _UNTUNED
    return LoggedKnobs(values, found.hash)


@functools.cache
def _all_logs() -> Any:
    def load() -> Any:
        from tvmdml.library import logs

        return logs

    return imported(load)


@functools.cache
def _schedule(folder: str, module: str, family: str) -> Any:
    if importlib.util.find_spec("tvmdml.schedules") is None:
        where = Path(__file__).parents[1] / "schedules"
        advice = "Clone with git, or unpack with a program that keeps symbolic links (tar, unzip), and install again."
        raise CompileError(f"{where} is not a folder. In a clone it is a symbolic link to ../schedules. {advice}")
    for name in filter(None, (module, family, "_default")):
        try:
            return imported(functools.partial(importlib.import_module, f"tvmdml.schedules.{folder}.{name}"))
        except ModuleNotFoundError as error:
            if not str(error.name).endswith(f".{name}"):
                raise
    raise AssertionError(f"tvmdml.schedules.{folder} has no _default")

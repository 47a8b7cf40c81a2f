"""Schedules for GPUs, written once for all of them: what differs is read from the target.

A kernel is a function of one or more launches, each of groups of threads. Sizes, strides and counts are given to it at launch, so
that one kernel serves a class of shapes, in 32 bits wherever they fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

from tvmdml import tensorir as T
from tvmdml.errors import Unsupported, message
from tvmdml.knobs import Constraint
from tvmdml.operators import Operator
from tvmdml.targets._device import VECTOR_BYTES as VECTOR_BYTES
from tvmdml.targets._device import DeviceTarget

_NARROW = 1 << 30
"""Offsets below this are counted in 32 bits: adding a whole grid's step to one does not overflow."""
_PUSH_BYTES = 128
"""What every Vulkan device has for the integers of a launch."""
_NEEDS = {
    "int8": ("storage8", "storageBuffer8BitAccess"),
    "int16": ("storage16", "storageBuffer16BitAccess"),
    "float16": ("storage16", "storageBuffer16BitAccess"),  # to store it is enough: what the device lacks is reckoned in float32
    "int64": ("int64", "shaderInt64"),
    "float64": ("float64", "shaderFloat64"),
}
"""The feature that a type takes, and Vulkan's name for it; unsigned integers take what signed ones do."""


class Numbers:
    """A kernel's integers by name, single or in rows: passed at launch, or, where they are too many for that, part of the code.

    ``span`` is the largest offset or count that is computed from them. ``words`` are bits of 32, and always passed: a driver that
    knew them might take them for what they are not. (Mesa's makes -1.0 or -0.0 of what is to be -1.0 or 0.)
    """

    def __init__(self, span: int, words: tuple[int, ...] = (), **values: int | tuple[int, ...]) -> None:
        self._values, self._words = values, tuple(word - (1 << 32) if word >> 31 else word for word in words)
        fits = span < _NARROW and all(-(1 << 31) <= value < 1 << 31 for value in self._flat())
        self.dtype = "int32" if fits else "int64"
        """The type that they have, and all that is computed from them."""
        size = 4 if self.dtype == "int32" else 8
        self._passed = sum(size for _ in self._flat()) + 4 * len(words) <= _PUSH_BYTES
        self.parameters: tuple[tuple[str, Any], ...] = (("counted in", self.dtype),)
        if not self._passed:
            self.parameters += tuple(values.items())
        self.scalars = (*self._flat(), *self._words) if self._passed else self._words
        """What is passed at launch."""

    def declare(self, f: T.Function) -> Any:
        """The integers as TensorIR, by name; declares the function's last parameters."""
        found = SimpleNamespace()
        for name, value in self._values.items():
            if isinstance(value, tuple):
                own: Any = [self._one(f, f"{name}{i}", one) for i, one in enumerate(value)]
            else:
                own = self._one(f, name, value)
            setattr(found, name, own)
        found.words = f.scalars("word", len(self._words), "int32")
        return found

    def const(self, value: int) -> Any:
        """A constant of their type."""
        return T.const(value, self.dtype)

    def _one(self, f: T.Function, name: str, value: int) -> Any:
        return f.scalar(name, self.dtype) if self._passed else self.const(value)

    def _flat(self) -> Iterator[int]:
        for value in self._values.values():
            yield from value if isinstance(value, tuple) else (value,)


def require(desc: Operator, target: DeviceTarget, numbers: Numbers, *types: str) -> None:
    """Refuse what the device has no features for: what ``kernel`` of each schedule asks, with all that its code will use.

    ``types`` are those that elements are loaded, reckoned and stored in: words of 32 bits take no feature, whatever lies in them.

    Raises:
        Unsupported: naming the tensor, the device and what it lacks.
    """
    tensors = [(name, tensor) for name, tensor in desc.tensors() if tensor is not None]
    for dtype in types:
        feature, called = _NEEDS.get(dtype.removeprefix("u"), ("", ""))
        if feature and not target.has(feature):
            bits = int(dtype.lstrip("uintfloa"))
            name, tensor = next((t for t in tensors if 8 * t[1].data_type.itemsize == bits), tensors[0])
            allowed = f"data types of {'up to 32 bits' if bits == 64 else f'other than {bits} bits'}, as the device lacks {called}"
            refuse(desc.where(name), f"{tensor.data_type.tvm} on {target.name}", allowed)
    if numbers.dtype == "int64" and not target.has("int64"):
        name, _ = max(tensors, key=lambda t: t[1].span)
        refuse(desc.where(name), f"offsets past 2^30 on {target.name}", "smaller ones, as the device lacks shaderInt64")


def refuse(where: str, given: str, allowed: str) -> NoReturn:
    """Raise ``Unsupported``: the device cannot do it."""
    raise Unsupported(message(where, given, allowed, "Run it on another device."))


def taken_steps(sizes: Sequence[int], steps: Sequence[int]) -> tuple[int, ...]:
    """The steps; 0 where a size is 1, for that one is never taken, and may be larger than offsets are."""
    return tuple(0 if size == 1 else step for size, step in zip(sizes, steps, strict=True))


def enough_groups(least: int) -> Constraint:
    """That few groups do not stride over very much: Mesa's software device silently leaves a thread's loops after 65535 rounds."""
    return Constraint(f"most_groups is {least} or more", lambda knobs, _: knobs.most_groups >= least)


def groups_for(items: int, threads: int, target: DeviceTarget, most: int | None = None) -> int:
    """How many groups to launch for so many threads' work: no more than keep the device busy, for each strides over the rest."""
    return max(1, min(math.ceil(items / threads), target.max_groups, target.tasks() if most is None else most))


def position(group: Any, thread: Any, threads: int, dtype: str) -> Any:
    """The number of a thread among those of all groups."""
    return T.let(T.cast(group, dtype) * T.const(threads, dtype) + T.cast(thread, dtype))


@contextmanager
def strided(first: Any, total: Any, step: Any) -> Iterator[Any]:
    """The statements run for ``first``, ``first + step`` … below ``total``."""
    at = T.Variable(T.type_of(first), first)
    with T.loop_while(at.value < total):
        index = T.let(at.value)
        yield index
        at.set(index + step)

"""Schedules for GPUs, shared by all of them: properties that differ between devices are read from the target.

A kernel is a function with one or more launches, each of groups of threads. Sizes, strides and counts are passed at launch, so that
one kernel serves a class of shapes. They are 32-bit integers wherever they fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

from tvmdml.errors import Unsupported, message
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Constraint, Knob, Knobs
from tvmdml.operators import Operator
from tvmdml.targets._device import VECTOR_BYTES as VECTOR_BYTES
from tvmdml.targets._device import DeviceTarget

_NARROW = 1 << 30
"""Offsets below this are computed in 32 bits: adding a whole grid's step to one does not overflow."""
_PUSH_BYTES = 128
"""The bytes that every Vulkan device has for a launch's integers (push constants)."""
_SHIFTS = 6
"""The numbers below 32 that a word has."""
_NEEDS = {
    "int8": ("storage8", "storageBuffer8BitAccess"),
    "int16": ("storage16", "storageBuffer16BitAccess"),
    "float16": ("storage16", "storageBuffer16BitAccess"),  # storage is enough: without float16 arithmetic it is computed in float32
    "float64": ("float64", "shaderFloat64"),
}
"""The feature that a type needs, and Vulkan's name for it; unsigned integers need the same feature as signed ones."""
_THREADS = Knob(256, (32, 64, 128, 256, 512), "threads per group")
_MOST_GROUPS = Knob(8192, tuple(1 << n for n in range(16)), "maximum groups per launch; each strides over the rest")


def _signed(word: int) -> int:
    """The integer of 32 bits with these bits."""
    return word - (1 << 32) if word >> 31 else word


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class Numbers:
    """A kernel's integers by name, single or in tuples. They are passed at launch or, if there are too many, are constants in the
    code.

    ``span`` is the largest offset or count that is computed from them. ``words`` are 32-bit patterns, and always passed at launch:
    a driver that sees them as constants may change them. (Mesa's driver turns a select between -1.0 and 0.0 into -1.0 or -0.0.)
    Those named as ``plain`` are constants where they are 0 or 1, which need no multiplication, and leave room for others.
    Those named as ``divisors`` are divided by without a division, if there is room: a reciprocal is passed, too, for each.
    """

    def __init__(
        self, span: int, words: tuple[int, ...] = (), plain: tuple[str, ...] = (), divisors: Sequence[str] = (),
        **values: int | tuple[int, ...],
    ) -> None:  # fmt: skip
        self._values, self._words = values, tuple(map(_signed, words))
        self._plain = plain
        fits = span < _NARROW and all(-(1 << 31) <= value < 1 << 31 for value in self._flat())
        self.dtype = "int32" if fits else "int64"
        """Their type, and the type of everything computed from them."""
        size = 4 if self.dtype == "int32" else 8
        passed = [one for name in values for one in self._of(name) if not self._is_plain(name, one)]
        self._passed = size * len(passed) + 4 * len(words) <= _PUSH_BYTES
        self.parameters: tuple[tuple[str, Any], ...] = (("counted in", self.dtype),)
        if not self._passed:
            self.parameters += tuple(values.items())
        elif plain:
            known = (tuple(one if self._is_plain(name, one) else -1 for one in self._of(name)) for name in plain)
            self.parameters += tuple(zip(plain, known, strict=True))
        self._divisors = self._with_reciprocals(divisors, size * len(passed))
        if self._divisors:
            self.parameters += (("reciprocals", " ".join(self._divisors)),)
        found = [T.reciprocal_of(one) for one in self._divided(self._divisors)]
        packed = [found[i : i + _SHIFTS] for i in range(0, len(found), _SHIFTS)]
        shifts = [sum(bits << (5 * i) for i, (_, bits) in enumerate(some)) for some in packed]
        own = map(_signed, (*(word for word, _ in found), *shifts))
        self.scalars = (*passed, *own, *self._words) if self._passed else self._words
        """The integers passed at launch."""

    def declare(self, f: T.Function) -> Any:
        """The integers as TensorIR, by name; this declares the function's last parameters."""
        found = SimpleNamespace()
        for name, value in self._values.items():
            if isinstance(value, tuple):
                own: Any = [self._one(f, name, f"{name}{i}", one) for i, one in enumerate(value)]
            else:
                own = self._one(f, name, name, value)
            setattr(found, name, own)
        if self._divisors:
            pairs = ((name, zip(self._of(name), _listed(getattr(found, name)), strict=True)) for name in self._divisors)
            sizes = [size for name, some in pairs for value, size in some if not self._is_plain(name, value)]
            reciprocals = f.scalars("reciprocal", len(sizes), "int32")
            shifts = f.scalars("shift", -(-len(sizes) // _SHIFTS), "int32")
            for i, (size, reciprocal) in enumerate(zip(sizes, reciprocals, strict=True)):
                bits = (shifts[i // _SHIFTS] >> T.const(5 * (i % _SHIFTS), "int32")) & T.const(31, "int32")
                T.divides_by(size, T.reinterpret("uint32", reciprocal), bits)
        found.words = f.scalars("word", len(self._words), "int32")
        return found

    def _with_reciprocals(self, names: Sequence[str], taken: int) -> tuple[str, ...]:
        """Those of the names whose reciprocals are passed; numbers must be below 2^30."""
        if not self._passed or self.dtype != "int32":
            return ()
        found: list[str] = []
        for name in names:
            count = len(self._divided((*found, name)))
            if taken + 4 * (len(self._words) + count + -(-count // _SHIFTS)) <= _PUSH_BYTES:
                found.append(name)
        return tuple(found)

    def _divided(self, names: Sequence[str]) -> list[int]:
        """The numbers that have reciprocals; constants need none."""
        return [one for name in names for one in self._of(name) if not self._is_plain(name, one)]

    def have_room(self, others: Sequence[int]) -> bool:
        """Whether as many other integers can be passed at launch."""
        size = 4 if self.dtype == "int32" else 8
        return size * len(others) <= _PUSH_BYTES

    def const(self, value: int) -> Any:
        """A constant of the integers' type."""
        return T.const(value, self.dtype)

    def _one(self, f: T.Function, group: str, name: str, value: int) -> Any:
        is_passed = self._passed and not self._is_plain(group, value)
        return f.scalar(name, self.dtype) if is_passed else self.const(value)

    def _is_plain(self, name: str, value: int) -> bool:
        return name in self._plain and value in (0, 1)

    def _of(self, name: str) -> tuple[int, ...]:
        value = self._values[name]
        return value if isinstance(value, tuple) else (value,)

    def _flat(self) -> Iterator[int]:
        for name in self._values:
            yield from self._of(name)


def require(desc: Operator, target: DeviceTarget, *types: str) -> None:
    """Raise an error if the device lacks a feature that a kernel needs. Each schedule's ``kernel`` calls this.

    ``types`` are the types in which elements are loaded, computed and stored; 32-bit words need no feature, whatever they contain.

    Raises:
        Unsupported: names the tensor, the device and the missing feature.
    """
    for dtype in types:
        feature, called = _NEEDS.get(dtype.removeprefix("u"), ("", ""))
        if feature and not target.has(feature):
            _refuse_type(desc, target, called)


def checked(desc: Operator, target: DeviceTarget, kernel: Kernel) -> Kernel:
    """The kernel; writing it raises ``Unsupported`` if it computes with a type that the device lacks, as ``require`` words it.

    For kernels with any formula: only their code says in which types they compute.
    """

    def build() -> T.PrimFunc:
        function = kernel.build()
        if called := target.lacking(function):
            _refuse_type(desc, target, called)
        return function

    return kernel._replace(build=build)


def one_launch(desc: Operator, target: DeviceTarget, name: str, writer: Any, *types: str) -> Kernel:
    """The kernel of a writer, which has ``numbers``, ``parameters`` and ``function``; ``types`` as ``require`` takes them."""
    require(desc, target, *types)
    module, *also = desc.modules()
    return checked(desc, target, Kernel(module, name, writer.parameters, writer.function, writer.numbers.scalars, also=tuple(also)))


def _refuse_type(desc: Operator, target: DeviceTarget, called: str) -> NoReturn:
    """Raise ``Unsupported``, which names the first tensor of the size that a feature is for, or else the first one."""
    bits = int("".join(filter(str.isdigit, called)))
    tensors = [(name, tensor) for name, tensor in desc.tensors() if tensor is not None]
    matching = [one for one in tensors if 8 * one[1].data_type.itemsize == bits]
    name, tensor = (matching or tensors)[0]
    types = "other data types" if not matching else f"data types of {'up to 32' if bits == 64 else f'other than {bits}'} bits"
    given, allowed = f"{tensor.data_type.tvm} on {target.name}", f"{types}, as the device lacks {called}"
    refuse(desc.where(name), given, allowed, target.advice(called))


def refuse(where: str, given: str, allowed: str, advice: str = "Run it on another device.") -> NoReturn:
    """Raise ``Unsupported``: the device cannot do it."""
    raise Unsupported(message(where, given, allowed, advice))


def require_few_rounds(desc: Operator, target: DeviceTarget, rounds: int) -> None:
    """Refuse more rounds of a thread's loops than a device makes."""
    if target.max_rounds is not None and rounds > target.max_rounds:
        given = f"{rounds} rounds of loops in a thread on {target.name}"
        refuse(desc.where("loops"), given, f"up to {target.max_rounds}, after which the device's driver leaves loops")


def taken_steps(sizes: Sequence[int], steps: Sequence[int]) -> tuple[int, ...]:
    """The steps, with 0 for dimensions of size 1: such a step is never taken, and may be too large for an offset."""
    return tuple(0 if size == 1 else step for size, step in zip(sizes, steps, strict=True))


def enough_groups(least: int) -> Constraint:
    """A lower limit for ``most_groups``, to limit loops in threads: Mesa's CPU driver silently ends one after 65535 rounds."""
    return Constraint(f"most_groups is {least} or more", lambda knobs, _: knobs.most_groups >= least)


def group_knobs(name: str, **more: Knob) -> Knobs:
    """The knobs of a schedule whose groups stride over their work, and its own."""
    return Knobs(name, enough_groups(1024), **{"threads": _THREADS, **more, "most_groups": _MOST_GROUPS})


def groups_for(items: int, threads: int, target: DeviceTarget, most: int | None = None) -> int:
    """The number of groups for so many items: no more than keep the device busy, because each group strides over the rest."""
    return max(1, min(math.ceil(items / threads), target.max_groups, target.tasks() if most is None else most))


def position(group: Any, thread: Any, threads: int, dtype: str) -> Any:
    """The global index of a thread."""
    return T.let(T.cast(group, dtype) * T.const(threads, dtype) + T.cast(thread, dtype))


@contextmanager
def each_item(groups: Any, threads: int, dtype: str, items: Any, step: Any = None) -> Iterator[Any]:
    """Run the statements for each item in one launch; ``step`` is the number of all threads, if it is known."""
    with T.launch(groups, threads) as (group, thread):
        begin = position(group, thread, threads, dtype)
        with strided(begin, items, T.let(groups * threads) if step is None else step) as item:
            yield item


@contextmanager
def strided(first: Any, total: Any, step: Any) -> Iterator[Any]:
    """Run the statements for ``first``, ``first + step`` … below ``total``."""
    at = T.Variable(T.type_of(first), first)
    with T.loop_while(at.value < total):
        index = T.let(at.value)
        yield index
        at.set(index + step)

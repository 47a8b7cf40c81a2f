"""``OperatorTrial``: an operator's inputs with guard bytes around them, and the expected outputs, to test code not trusted yet."""

from __future__ import annotations

import contextlib
import ctypes
import math
import platform
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from tvmdml.operators import Operator, _accuracy
from tvmdml.operators._accuracy import Expected, NumpyArray
from tvmdml.operators._contract import Role, Shared
from tvmdml.tensors import TensorDataType
from tvmdml.tensors.arrays.guarded import GuardedTensor

Values = Callable[[TensorDataType, tuple[int, ...]], NumpyArray]


class OperatorTrial:
    """An operator's inputs, and the expected outputs.

    Args:
        desc: the operator.
        shared: the pairs (input, output) in the same memory; inputs of one output have the same values.
        values: a function from the type and sizes of an input's array (``TensorDesc.stored``) to its elements; without
            ``expected``, inputs that have ``bounds`` get values mostly within them.
        expected: the correct outputs; by default the reference's.
        shift: the number of elements by which tensors' starts are moved from the alignment that devices need.
        flushed: the float types whose subnormals the device takes for 0 (``Target.flushed``). Then results may be those for zeros,
            and zeros.
    """

    def __init__(
        self,
        desc: Operator,
        shared: Shared,
        values: Values,
        expected: tuple[Expected, ...] | None = None,
        shift: int = 0,
        flushed: Collection[str] = (),
    ) -> None:
        self._desc, self._shift, self._flushed = desc, shift, flushed
        self._same = dict(shared)
        """The output that has an input's memory, by the input's name."""
        self._before: dict[str, GuardedTensor] = {}
        """The contents of such an output before the launch."""
        self._inputs: dict[str, GuardedTensor | None] = {}
        for name, tensor in desc.tensors(Role.INPUT):
            output = self._same.get(name, "")
            place = self._before.get(output)
            if place is None and tensor is not None:
                found, bounds = values(tensor.stored.data_type, tensor.stored.sizes), desc.bounds(name)
                if expected is None and bounds is not None:
                    found = mostly_within(found, *bounds)
                place = GuardedTensor(tensor).holding(found)
            self._inputs[name] = place
            if output and place is not None:
                self._before[output] = place
        if expected is None:
            with np.errstate(all="ignore"):
                expected = desc.reference(*(None if place is None else place.array for place in self._inputs.values()))
        self._expected = expected

    def places(self) -> dict[str, GuardedTensor]:
        """The tensors to launch on, by name, each in new memory; if an input and output share memory, only the output."""
        found = {}
        for name, tensor in self._desc.tensors():
            if tensor is None or name in self._same:
                continue
            held = self._inputs.get(name) or self._before.get(name)
            place = GuardedTensor(tensor, self._shift)
            found[name] = place if held is None else place.holding(held.array)
        return found

    def arguments(self, places: Mapping[str, GuardedTensor]) -> list[NumpyArray | None]:
        """The arguments for a compiled operator: all its tensors, in field order."""
        found = (places.get(self._same.get(name, name)) for name, _ in self._desc.tensors())
        return [None if place is None else place.array for place in found]

    def problem(self, places: Mapping[str, GuardedTensor]) -> str:
        """What is wrong with the tensors after a launch; empty if nothing is wrong."""
        for name, place in places.items():
            held = self._inputs.get(name)
            if held is not None and not np.array_equal(held.memory, place.memory):
                return f"the kernel wrote to the input {name}"
            if not place.is_guarded():
                return f"the kernel wrote to memory outside {name}"
        actual = tuple(places[name].array for name in places if name not in self._inputs)
        problem = self._desc.mismatch(actual, self._expected)
        return self._desc.mismatch(self._settled(actual), self._expected) if problem and self._flushed else problem

    def _settled(self, actual: tuple[NumpyArray, ...]) -> tuple[NumpyArray, ...]:
        """Outputs with the expected values where the differences come from subnormals that a device takes for 0."""
        arrays = [None if place is None else place.array for place in self._inputs.values()]
        floats = {one.dtype.name for one in (*arrays, *actual) if one is not None and one.dtype.kind == "f"}
        kept = floats - {"float16", *self._flushed}
        with np.errstate(all="ignore"), contextlib.nullcontext() if kept else flushing():
            others = self._desc.reference(
                *(one if one is None or one.dtype.name not in self._flushed else _accuracy.flushed(one) for one in arrays)
            )
        return tuple(
            _accuracy.settled(one, expected, other, one.dtype.name in self._flushed, self._desc.ANY_NAN)
            for one, expected, other in zip(actual, self._expected, others, strict=True)
        )


def any_values(rng: np.random.Generator, data_type: TensorDataType, sizes: tuple[int, ...]) -> NumpyArray:
    """Values of several kinds: random bits; difficult values; few distinct values; many zeros."""
    count = math.prod(sizes)
    unsigned = f"u{data_type.itemsize}"
    some = np.arange(-6, 7) / 2 if data_type.is_float else np.arange(-6 if data_type.is_signed else 0, 7)
    zeros = np.array([0.0, -0.0] if data_type.is_float else [0])
    choices = [special_bits(data_type), *(numbers.astype(data_type.numpy).view(unsigned) for numbers in (some, zeros))]
    kinds = [np.frombuffer(rng.bytes(count * data_type.itemsize), unsigned), *(rng.choice(one, count) for one in choices)]
    found: NumpyArray = np.choose(rng.integers(0, len(kinds), count, np.uint8), kinds).reshape(sizes)
    return found.view(data_type.numpy)


_OUTSIDE = 1 / 16
"""The share of values outside of an input's bounds."""


def mostly_within(values: NumpyArray, low: int, high: int) -> NumpyArray:
    """Integers of the values' type, mostly from ``low`` to ``high``; the others are next to these bounds, or the type's limits.

    They depend on the values only as a seed. Bounds that the type does not have are cut off.
    """
    rng = np.random.default_rng(zlib.crc32(np.ascontiguousarray(values).tobytes()))
    dtype = values.dtype
    limits: Any = np.iinfo(dtype) if dtype.kind in "iu" else np.iinfo(np.int16)
    first, last = (min(max(bound, int(limits.min)), int(limits.max)) for bound in (low, high))
    around = [max(first - 1, int(limits.min)), min(last + 1, int(limits.max)), int(limits.min), int(limits.max)]
    inside = rng.integers(first, last, values.shape, np.int64, endpoint=True).astype(dtype)
    outside = rng.choice(np.array(around, dtype), values.shape)
    return np.where(rng.random(values.shape) < _OUTSIDE, outside, inside)


def special_bits(data_type: TensorDataType) -> NumpyArray:
    """Difficult values as bits: 0, 1, -1, limits; for floats infinities, subnormals, kinds of NaN, and neighbours of one half."""
    dtype, bits = data_type.numpy, 8 * data_type.itemsize
    if not data_type.is_float:
        limits = np.iinfo(dtype)  # type: ignore[type-var]
        near = {limits.min, limits.min + 1, limits.max // 2, limits.max - 1, limits.max, 0, 1, -1 if limits.min else 0}
        return np.array(sorted(near), dtype).view(f"u{bits // 8}")
    info: Any = np.finfo(dtype)  # type: ignore[type-var]
    half = np.array(0.5, dtype)
    least = [0, 1, info.smallest_subnormal, info.tiny, np.nextafter(half, 0), np.nextafter(half, 1), info.max, np.inf]
    numbers = np.array(least, dtype).view(f"u{bits // 8}")
    quiet, infinity = (int(np.array(value, dtype).view(f"u{bits // 8}")) for value in (np.nan, np.inf))
    positive = [*map(int, numbers), int(info.tiny.view(f"u{bits // 8}")) - 1, quiet | 5, infinity | 1]
    return np.array([number | sign for number in positive for sign in (0, 1 << (bits - 1))], f"u{bits // 8}")


_MODES = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}
"""Where in ``fenv_t`` of Linux the bits are that flush subnormals, as operands and as results."""


@contextlib.contextmanager
def flushing() -> Iterator[None]:
    """Inside, this thread's processor takes subnormals for 0, as some devices do, if it is known how to ask for that."""
    mode = _MODES.get(platform.machine()) if sys.platform == "linux" else None
    if mode is None:
        yield
        return
    offset, bits = mode
    library = ctypes.CDLL("libm.so.6")
    before, inside = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    for held in (before, inside):
        library.fegetenv(held)
    ctypes.c_uint32.from_buffer(inside, offset).value |= bits
    library.fesetenv(inside)
    try:
        yield
    finally:
        library.fesetenv(before)

"""``Trial``: an operator's inputs with guard bytes around them, and the expected outputs, to test code that is not trusted yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvmdml.guarded import Place
from tvmdml.operators import Operator
from tvmdml.operators._accuracy import Array, Expected
from tvmdml.operators._contract import Role
from tvmdml.tensors import TensorDataType

Values = Callable[[TensorDataType, tuple[int, ...]], Array]


class Trial:
    """An operator's inputs, and the expected outputs.

    Args:
        desc: the operator.
        in_place: the output uses the input's memory.
        values: a function from an input's type and sizes to its elements.
        expected: the correct outputs; by default the reference's.
        shift: the number of elements by which tensors' starts are moved from the alignment that devices need.
    """

    def __init__(
        self, desc: Operator, in_place: bool, values: Values, expected: tuple[Expected, ...] | None = None, shift: int = 0
    ) -> None:
        self._desc, self._shift = desc, shift
        self._inputs = {
            name: None if tensor is None else Place(tensor).holding(values(tensor.data_type, tensor.sizes))
            for name, tensor in desc.tensors(Role.INPUT)
        }
        if expected is None:
            with np.errstate(all="ignore"):
                expected = desc.reference(*(None if place is None else place.array for place in self._inputs.values()))
        self._expected = expected
        outputs = [name for name, tensor in desc.tensors(Role.OUTPUT) if tensor is not None]
        self._same = dict(zip(outputs, self._inputs, strict=True)) if in_place else {}
        """Outputs that use an input's memory."""

    def places(self) -> dict[str, Place]:
        """The tensors to launch on, by name, each in new memory; if an input and output share memory, only the output."""
        found = {}
        for name, tensor in self._desc.tensors():
            if tensor is None or name in self._same.values():
                continue
            held = self._inputs.get(self._same.get(name, name))
            place = Place(tensor, self._shift)
            found[name] = place if held is None else place.holding(held.array)
        return found

    def arguments(self, places: Mapping[str, Place]) -> list[Array | None]:
        """The arguments for a compiled operator: all its tensors, in field order."""
        taken = {held: name for name, held in self._same.items()}
        found = (places.get(taken.get(name, name)) for name, _ in self._desc.tensors())
        return [None if place is None else place.array for place in found]

    def problem(self, places: Mapping[str, Place]) -> str:
        """What is wrong with the tensors after a launch; empty if nothing is wrong."""
        for name, place in places.items():
            held = self._inputs.get(name)
            if held is not None and not np.array_equal(held.memory, place.memory):
                return f"the input {name} was written to"
            if not place.is_guarded():
                return f"memory outside of {name} was written to"
        return self._desc.mismatch(tuple(places[name].array for name in places if name not in self._inputs), self._expected)


def any_values(rng: np.random.Generator, data_type: TensorDataType, sizes: tuple[int, ...]) -> Array:
    """Values of several kinds: random bits; difficult values; few distinct values; many zeros."""
    count = math.prod(sizes)
    unsigned = f"u{data_type.itemsize}"
    some = np.arange(-6, 7) / 2 if data_type.is_float else np.arange(-6 if data_type.is_signed else 0, 7)
    zeros = np.array([0.0, -0.0] if data_type.is_float else [0])
    choices = [special_bits(data_type), *(numbers.astype(data_type.numpy).view(unsigned) for numbers in (some, zeros))]
    kinds = [np.frombuffer(rng.bytes(count * data_type.itemsize), unsigned), *(rng.choice(one, count) for one in choices)]
    found: Array = np.choose(rng.integers(0, len(kinds), count, np.uint8), kinds).reshape(sizes)
    return found.view(data_type.numpy)


def special_bits(data_type: TensorDataType) -> Array:
    """Difficult values as bits: limits; for floats also infinities, subnormals, kinds of NaN, and the neighbours of one half."""
    dtype, bits = data_type.numpy, 8 * data_type.itemsize
    if not data_type.is_float:
        limits = np.iinfo(dtype)  # type: ignore[type-var]
        return np.array([limits.min, limits.min + 1, limits.max // 2, limits.max - 1, limits.max], dtype).view(f"u{bits // 8}")
    info: Any = np.finfo(dtype)  # type: ignore[type-var]
    half = np.array(0.5, dtype)
    least = [info.smallest_subnormal, info.tiny, np.nextafter(half, 0), np.nextafter(half, 1), info.max, np.inf]
    numbers = np.array(least, dtype).view(f"u{bits // 8}")
    quiet, infinity = (int(np.array(value, dtype).view(f"u{bits // 8}")) for value in (np.nan, np.inf))
    positive = [*map(int, numbers), int(info.tiny.view(f"u{bits // 8}")) - 1, quiet | 5, infinity | 1]
    return np.array([number | sign for number in positive for sign in (0, 1 << (bits - 1))], f"u{bits // 8}")

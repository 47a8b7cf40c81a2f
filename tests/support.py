"""Helpers of the tests: difficult values, layouts in guarded memory, comparisons."""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import pytest

from tvmdml import (
    AxisDirection,
    CompiledOperator,
    DiagonalMatrix1,
    ElementWiseRound,
    NonzeroCoordinates,
    Operator,
    RoundingMode,
    TensorDataType,
    TensorDesc,
    TopK1,
)
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.operators._accuracy import Expected, difference
from tvmdml.operators._contract import Role
from tvmdml.targets import Target
from tvmdml.tensors import BYTE_TYPES, packed_strides

Array = np.ndarray[Any, np.dtype[Any]]
DataType = TypeVar("DataType", str, TensorDataType)
Generator = np.random.Generator

IN_PLACE = (("input_tensor", "output_tensor"),)
"""What an operator of one input shares if it runs in place."""

ALL = BYTE_TYPES
FLOATING = (TensorDataType.FLOAT16, TensorDataType.FLOAT32, TensorDataType.FLOAT64)
INT_MIN, INT_MAX = -(2**31), 2**31 - 1

# Small, odd sizes: one shape of each rank, with dimensions of size 1 in every position.
SIZES: dict[int, tuple[int, ...]] = {
    1: (131,), 2: (7, 19), 3: (3, 5, 13), 4: (2, 3, 5, 7), 5: (3, 1, 2, 5, 3), 6: (1, 2, 3, 1, 5, 3), 7: (2, 1, 2, 3, 1, 2, 5),
    8: (2, 1, 2, 2, 3, 1, 2, 1),
}  # fmt: skip


def seeded(*key: object) -> Generator:
    """The same random numbers in every run, others for every key."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


# -- Values -------------------------------------------------------------------------------------------------------


def special_values(data_type: TensorDataType) -> Array:
    """The values that are easy to get wrong: zeros, limits, denormals, infinities, NaN of several payloads and both signs."""
    dtype = data_type.numpy
    if not data_type.is_float:
        limits = np.iinfo(data_type.tvm)
        return np.array(sorted({limits.min, limits.min + 1, limits.max // 2, 0, 1, 2, limits.max - 1, limits.max}), dtype)
    info = np.finfo(data_type.tvm)
    numbers = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, info.smallest_subnormal, info.tiny, info.max, np.inf]
    positive = np.concatenate([np.array(numbers, dtype), nans(data_type)])
    return np.concatenate([positive, flip_sign(positive)])


def with_subnormals(target: Target, types: Iterable[DataType]) -> list[DataType]:
    """Those of the types whose subnormals the target does not take for 0; a test that compares bits of no others is skipped.

    Newer Vulkan drivers for the CPU take those of some types for 0. Conformance says what they may answer.
    """
    types, flushed = list(types), target.flushed()
    found = [one for one in types if (one if isinstance(one, str) else one.tvm) not in flushed]
    if not found:
        pytest.skip(f"{target.name} takes subnormals of {', '.join(sorted(flushed))} for 0")
    return found


def nans(data_type: TensorDataType) -> Array:
    """Positive NaN: the usual one, one with a payload, and a signalling one."""
    bits = 8 * data_type.itemsize
    quiet = bits_of(np.array([np.inf, np.nan], data_type.numpy))
    infinity, usual = (int(q) for q in quiet)
    patterns = [usual & ~(1 << (bits - 1)), usual & ~(1 << (bits - 1)) | 5, infinity | 1]
    return np.array(patterns, f"u{data_type.itemsize}").view(data_type.numpy)


def flip_sign(array: Array) -> Array:
    """The same floats with the other sign, NaN too."""
    unsigned = bits_of(array)
    return (unsigned ^ unsigned.dtype.type(1 << (8 * array.itemsize - 1))).view(array.dtype)


def random_bits(rng: Generator, data_type: TensorDataType, sizes: tuple[int, ...]) -> Array:
    """Every pattern of bits, each as likely as any other."""
    return np.frombuffer(rng.bytes(math.prod(sizes) * data_type.itemsize), data_type.numpy).reshape(sizes).copy()


def ties(rng: Generator, data_type: TensorDataType, sizes: tuple[int, ...]) -> Array:
    """A few special values, over and over."""
    choice = bits_of(special_values(data_type))
    return rng.choice(choice, sizes).view(data_type.numpy)


def mixture(rng: Generator, data_type: TensorDataType, sizes: tuple[int, ...]) -> Array:
    """Half ties, half random bits."""
    one, other = (bits_of(make(rng, data_type, sizes)) for make in (ties, random_bits))
    return np.where(rng.random(sizes) < 0.5, one, other).view(data_type.numpy)


def awkward(data_type: TensorDataType) -> Array:
    """Floats that are hard to round: halves and the floats next to them, at every power of two; where fractions end; others."""
    dtype = data_type.numpy
    info = np.finfo(dtype)
    powers = np.ldexp(dtype.type(1), np.arange(info.minexp, info.nmant + 3)).astype(dtype)
    halves = np.concatenate([powers, powers + dtype.type(0.5), powers - dtype.type(0.5), np.arange(100, dtype=dtype) / 4])
    near = np.concatenate([halves, np.nextafter(halves, dtype.type(np.inf)), np.nextafter(halves, dtype.type(-np.inf))])
    some = np.concatenate([near, special_values(data_type), random_bits(seeded(data_type), data_type, (3000,))])
    return np.concatenate([some, flip_sign(some)])


def ordinary(rng: Generator, data_type: TensorDataType, sizes: tuple[int, ...]) -> Array:
    """Numbers of every size, without NaN and infinities."""
    if not data_type.is_float:
        return random_bits(rng, data_type, sizes)
    found = random_bits(rng, data_type, sizes)
    return np.where(np.isfinite(found), found, rng.standard_normal(sizes).astype(data_type.numpy))


def rising(rng: Generator, data_type: TensorDataType, sizes: tuple[int, ...]) -> Array:
    """Along the last axis, never falling."""
    return np.sort(ordinary(rng, data_type, sizes), axis=-1)


def falling(rng: Generator, data_type: TensorDataType, sizes: tuple[int, ...]) -> Array:
    """Along the last axis, never rising."""
    return np.ascontiguousarray(rising(rng, data_type, sizes)[..., ::-1])


def constant(rng: Generator, data_type: TensorDataType, sizes: tuple[int, ...]) -> Array:
    """One value throughout."""
    return np.full(sizes, 3, data_type.numpy)


def zeros_of_both_signs(rng: Generator, data_type: TensorDataType, sizes: tuple[int, ...]) -> Array:
    """-0 and +0 (only the one zero, for integers)."""
    zeros = np.zeros(sizes, data_type.numpy)
    return np.where(rng.random(sizes) < 0.5, zeros, -zeros if data_type.is_float else zeros)


def all_nan(rng: Generator, data_type: TensorDataType, sizes: tuple[int, ...]) -> Array:
    """NaN of several payloads and both signs; the largest value, for integers."""
    if not data_type.is_float:
        return np.full(sizes, np.iinfo(data_type.tvm).max, data_type.numpy)
    choice = np.concatenate([nans(data_type), flip_sign(nans(data_type))])
    return rng.choice(bits_of(choice), sizes).view(data_type.numpy)


def sparse(rng: Generator, data_type: TensorDataType, sizes: tuple[int, ...], density: float) -> Array:
    """Zeros (for floats of both signs), but for a part of the elements; those are of every kind, NaN among them."""
    zeros, found = zeros_of_both_signs(rng, data_type, sizes), mixture(rng, data_type, sizes)
    unsigned = bits_of(found)
    magnitude = unsigned << unsigned.dtype.type(1) if data_type.is_float else unsigned
    found = np.where(magnitude == 0, data_type.numpy.type(1), found)
    return np.where(rng.random(sizes) < density, found, zeros)


Values = Callable[[Generator, TensorDataType, tuple[int, ...]], Array]
VALUES: tuple[Values, ...] = (mixture, ties, random_bits, rising, falling, constant, zeros_of_both_signs, all_nan)


# -- Layouts ------------------------------------------------------------------------------------------------------


def _packed(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return packed_strides(sizes)


def _padded(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Every row, plane … is followed by a gap."""
    strides = [1]
    for i, size in enumerate(reversed(sizes[1:])):
        strides.append(strides[-1] * size + 1 + 2 * i)
    return tuple(reversed(strides))


def _transposed(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Packed, the first dimension varying fastest."""
    return tuple(reversed(packed_strides(tuple(reversed(sizes)))))


def _spread(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Packed, but with two elements between any two neighbours."""
    return tuple(3 * stride for stride in packed_strides(sizes))


def _shuffled(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions in an order of their own, with gaps."""
    order = [*range(1, len(sizes), 2), *range(0, len(sizes), 2)]
    padded = _padded(tuple(sizes[i] for i in order))
    return tuple(padded[order.index(i)] for i in range(len(sizes)))


def _broadcast_outer(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Every second dimension, from the first on, repeats."""
    return tuple(0 if i % 2 == 0 else s for i, s in enumerate(packed_strides(sizes)))


def _broadcast_inner(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Every second dimension, from the last on, repeats."""
    rank = len(sizes)
    return tuple(0 if (rank - i) % 2 else s for i, s in enumerate(packed_strides(sizes)))


_LAYOUTS: dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "packed": _packed,
    "shifted": _packed,  # and begins one element past a cache line
    "padded": _padded,
    "transposed": _transposed,
    "spread": _spread,
    "shuffled": _shuffled,
    "broadcast outer": _broadcast_outer,
    "broadcast inner": _broadcast_inner,
}

_PATTERN = 0xA5
_LINE = 64


class Placed:
    """An array of some layout inside larger memory; every byte that is not an element's holds a pattern."""

    def __init__(self, data_type: TensorDataType, sizes: tuple[int, ...], layout: str = "packed") -> None:
        strides = _LAYOUTS[layout](sizes)
        self.desc = TensorDesc(data_type, sizes, None if layout in ("packed", "shifted") else strides)
        self._start = 2 * _LINE + (data_type.itemsize if layout == "shifted" else 0)
        memory = np.full(self._start + self.desc.span_in_bytes + 3 * _LINE, _PATTERN, np.uint8)
        aligned = -memory.ctypes.data % _LINE
        self.memory = memory[aligned : aligned + memory.size - _LINE]
        stored = self.desc.stored
        steps = tuple(s * data_type.itemsize for s in (strides if stored is self.desc else stored.layout))
        self.array = np.ndarray(stored.sizes, data_type.numpy, buffer=self.memory, offset=self._start, strides=steps)

    @classmethod
    def holding(cls, values: Array, layout: str = "packed") -> Placed:
        """Values put into a layout; where it repeats elements, the last ones count."""
        placed = cls(TensorDataType.from_numpy(values.dtype), values.shape, layout)
        placed.array[...] = values
        return placed

    def assert_nothing_else_was_written(self) -> None:
        """Every byte outside of the elements still holds the pattern."""
        itemsize = self.array.itemsize
        inside = np.zeros(self.memory.size, bool)
        shape, strides = (*self.array.shape, itemsize), (*self.array.strides, 1)
        elements = np.ndarray(shape, bool, buffer=inside, offset=self._start, strides=strides)
        elements[...] = self.desc.used_bytes()[:, None] if self.desc.data_type.is_nibble else True
        written = np.flatnonzero((self.memory != _PATTERN) & ~inside)
        assert not written.size, (
            f"bytes outside of the tensor were written, at offsets {(written - self._start)[:8]} from its first"
        )


# -- Comparison ---------------------------------------------------------------------------------------------------


def bits_of(array: Array) -> Array:
    """The elements as unsigned numbers of their own width."""
    return np.array(array, order="C", copy=True).view(f"u{array.itemsize}")


def assert_same_bits(actual: Any, expected: Expected, any_nan: bool = False) -> None:
    """Type, shape and every bit agree, or are as near as a ``Near`` allows. With ``any_nan``, a NaN agrees with any other."""
    assert isinstance(actual, np.ndarray)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    problem = difference(actual, expected, any_nan)
    assert not problem, problem


# -- Running descriptors ------------------------------------------------------------------------------------------


def ready(desc: Operator, target: Target) -> CompiledOperator:
    """What ``tvmdml.compile`` makes, for tvmdml's extensions too."""
    desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    return CompiledOperator(desc, target)


def run(desc: Operator, target: Target, *inputs: Array | None, shifted: bool = False) -> tuple[Array, ...]:
    """Run a descriptor on inputs that lie as it says, into guarded outputs of its layouts; returns the outputs."""
    outputs = [_place(tensor, shifted) for _, tensor in desc.tensors(Role.OUTPUT) if tensor is not None]
    before = [None if x is None else bits_of(x) for x in inputs]
    ready(desc, target)(*inputs, *(o.array for o in outputs))
    for output in outputs:
        output.assert_nothing_else_was_written()
    for x, bits in zip(inputs, before, strict=True):
        assert x is None or np.array_equal(bits_of(x), bits), "an input was written to"
    return tuple(o.array for o in outputs)


def _place(desc: TensorDesc, shifted: bool) -> Placed:
    layout = "shifted" if shifted else "packed"
    if desc.strides is not None:
        layout = next(name for name, make in _LAYOUTS.items() if make(desc.sizes) == desc.strides)
    return Placed(desc.data_type, desc.sizes, layout)


def tensor(data_type: TensorDataType | str, sizes: tuple[int, ...], layout: str = "packed") -> TensorDesc:
    """A description in one of the layouts."""
    return Placed(TensorDataType.parse(data_type, "data_type"), sizes, layout).desc


def assert_agrees(desc: Operator, target: Target, *inputs: Array | None, shifted: bool = False) -> None:
    """The kernel's outputs are the reference's, as exactly as the operator's contract says."""
    actual = run(desc, target, *inputs, shifted=shifted)
    assert_outputs_agree(desc, actual, reference(desc, *inputs))


def reference(desc: Operator, *inputs: Array | None) -> tuple[Expected, ...]:
    """The operator's reference; NumPy's warning about signalling NaN is no news."""
    with np.errstate(invalid="ignore"):
        return desc.reference(*inputs)


def assert_outputs_agree(desc: Operator, actual: tuple[Array, ...], expected: tuple[Expected, ...]) -> None:
    """Bit for bit or within the operator's bound, where the operator says that there is something to agree in."""
    problem = desc.mismatch(actual, expected)
    assert not problem, problem


# -- Descriptors by the dozen -------------------------------------------------------------------------------------


def bytes_of(kind: str, sizes: tuple[int, ...], seed: object) -> Array:
    """Bytes, among them many of the least and the largest ones."""
    limits = np.iinfo(kind)
    random = seeded(kind, sizes, seed)
    found = random.integers(limits.min, limits.max, sizes, kind, endpoint=True)
    return np.where(random.random(sizes) < 0.3, random.choice([limits.min, limits.max], sizes).astype(kind), found)


def desc_of(array: Array) -> TensorDesc:
    """An array as it lies."""
    return TensorDesc(array.dtype, array.shape, tuple(step // array.itemsize for step in array.strides))


def round_desc(x: TensorDesc, mode: RoundingMode | str = "toward_zero", layout: str = "packed") -> ElementWiseRound:
    return ElementWiseRound(input_tensor=x, output_tensor=tensor(x.data_type, x.sizes, layout), rounding_mode=mode)


def top_k_desc(
    x: TensorDesc, axis: int, k: int, direction: AxisDirection | str, index: str = "uint32", layout: str = "packed"
) -> TopK1:
    sizes = (*x.sizes[:axis], k, *x.sizes[axis + 1 :])
    return TopK1(
        input_tensor=x,
        output_value_tensor=tensor(x.data_type, sizes, layout),
        output_index_tensor=tensor(index, sizes, layout),
        axis=axis,
        k=k,
        axis_direction=direction,
    )


def nonzero_desc(
    x: TensorDesc, columns: int | None = None, rank: int | None = None, index: str = "uint32", layout: str = "packed"
) -> NonzeroCoordinates:
    columns = x.rank if columns is None else columns
    rank = max(x.rank, 2) if rank is None else rank
    return NonzeroCoordinates(
        input_tensor=x,
        output_count_tensor=tensor("uint32", (1,) * x.rank),
        output_coordinates_tensor=tensor(index, (*(1,) * (rank - 2), x.element_count, columns), layout),
    )


def diagonal_desc(
    x: TensorDesc, value: int | float, begin: int, end: int, has_input: bool = True, layout: str = "packed"
) -> DiagonalMatrix1:
    return DiagonalMatrix1(
        input_tensor=x if has_input else None,
        output_tensor=tensor(x.data_type, x.sizes, layout),
        value_data_type=x.data_type,
        value=value,
        diagonal_fill_begin=begin,
        diagonal_fill_end=end,
    )


# -- Several callers ----------------------------------------------------------------------------------------------


def at_once(work: Callable[[int], None], callers: int) -> None:
    """Have so many threads do ``work(number)`` at once. What it raises in one of them is raised here."""
    wrong: list[BaseException] = []

    def caught(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=caught, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for error in wrong:
        raise error

"""``TensorDesc``: the description of a tensor, with all of DirectML's rules for it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np

from tvmdml._enum import DmlEnum, TensorFlags
from tvmdml.errors import InvalidArgument, counted, message, safe_repr
from tvmdml.tensors.sizes import Size, are_equal, is_one, is_open, naming_sizes, symbols

if TYPE_CHECKING:
    import numpy.typing as npt

NumpyArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array of any shape and type of elements."""
DType: TypeAlias = "TensorDataType | npt.DTypeLike"
"""The type of elements, such as ``"float32"`` or ``numpy.int8``."""
D = TypeVar("D", bound="TensorDesc")

MAX_RANK = 8
MAX_ELEMENTS = 2**32 - 1  # DirectML counts them in UINT, and strides too
MAX_STRIDE = 2**32 - 1
_MOST_BESIDE_0 = 1 << 60
"""NumPy multiplies the sizes of an array without elements, too: their bytes must be less than 2^63."""
MOST_VALUES = 65
"""More sizes or strides than any tensor has: an endless iterator must not cause a hang."""


class TensorDataType(DmlEnum):
    """``DML_TENSOR_DATA_TYPE``, with DirectML's numbers."""

    FLOAT32 = 1
    FLOAT16 = 2
    UINT32 = 3
    UINT16 = 4
    UINT8 = 5
    INT32 = 6
    INT16 = 7
    INT8 = 8
    FLOAT64 = 9
    UINT64 = 10
    INT64 = 11
    UINT4 = 12
    INT4 = 13

    @classmethod
    def parse(cls, value: object, where: str) -> TensorDataType:
        """The member for a value: a member, its number or its name.

        Raises:
            InvalidArgument: there is no such member.
        """
        if issubclass(type(value), str) and str.__str__(value) in _ADVICE:  # a subclass may have no hash
            raise InvalidArgument(message(where, safe_repr(value), TYPE_NAMES, _ADVICE[str.__str__(value)]))
        return super().parse(value, where)

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy data type of the memory: ``uint8`` for the 4-bit types."""
        return _TYPES[self].numpy

    @property
    def tvm(self) -> str:
        """The name in TVM."""
        return _TYPES[self].tvm

    @property
    def bits(self) -> int:
        """Size of one element in bits."""
        return _TYPES[self].dlpack[1]

    @property
    def is_nibble(self) -> bool:
        """True for INT4 and UINT4, which store two elements in a byte."""
        return self.bits == 4

    @property
    def stored(self) -> TensorDataType:
        """The type of the memory: UINT8 for the 4-bit types, otherwise the type itself."""
        return TensorDataType.UINT8 if self.is_nibble else self

    @property
    def dlpack(self) -> tuple[int, int]:
        """``(code, bits)`` in DLPack."""
        return _TYPES[self].dlpack

    @property
    def unpacked(self) -> TensorDataType:
        """The type of the same values as whole bytes: INT8 or UINT8 for the 4-bit types, otherwise the type itself."""
        return TensorDataType[self.name.replace("4", "8")] if self.is_nibble else self

    @property
    def itemsize(self) -> int:
        """Size of one element of the memory in bytes: for the 4-bit types 1, and such an element has two of the tensor's."""
        return _TYPES[self].numpy.itemsize

    @property
    def is_float(self) -> bool:
        """True for FLOAT16, FLOAT32 and FLOAT64."""
        return _TYPES[self].dlpack[0] == 2

    @property
    def is_signed(self) -> bool:
        """True for the signed integers."""
        return _TYPES[self].dlpack[0] == 0

    @classmethod
    def of(cls, value: object, where: str) -> TensorDataType:
        """The data type for a member, its number or name, or a NumPy or PyTorch type.

        Raises:
            InvalidArgument: there is no such type.
        """
        if type(value) is cls:
            return value
        if (type(value).__module__, type(value).__name__) == ("torch", "dtype"):
            value = str(value).removeprefix("torch.")
        if isinstance(value, np.dtype) and value.name in ("int4", "uint4"):  # the package ml_dtypes has them
            value = value.name
        try:
            return cls.parse(value, where)
        except InvalidArgument:
            if not isinstance(value, (np.dtype, type, str)) or value in _UNCLEAR:
                raise
            try:
                dtype = np.dtype(value)
            except (TypeError, ValueError, SyntaxError):  # NumPy raises different errors for texts that are not types
                dtype = None
            if dtype is None or dtype == np.bool_:  # some functions accept bool arrays as UINT8, but DirectML has no bool
                raise
        return cls.from_numpy(dtype, where)

    @classmethod
    def from_numpy(cls, dtype: np.dtype[np.generic], where: str = "data_type") -> TensorDataType:
        """The data type of an array; bool counts as UINT8, whose bytes it shares.

        Raises:
            InvalidArgument: DirectML has no such type.
        """
        found = _FROM_NUMPY.get(native(dtype))
        if found is None:
            advice = _ARRAY_ADVICE.get(str(dtype), "Convert the array first.")
            raise InvalidArgument(message(where, f"data type {dtype}", TYPE_NAMES, advice))
        return found


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in native byte order; not every NumPy type has a byte order."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


class _Names(NamedTuple):
    numpy: np.dtype[np.generic]
    tvm: str
    dlpack: tuple[int, int]


def _names(numpy: str, code: int) -> _Names:
    dtype = np.dtype(numpy)
    return _Names(dtype, numpy, (code, dtype.itemsize * 8))


# One row for each data type: NumPy's and TVM's name, and DLPack's type code (0 signed, 1 unsigned, 2 float).
_TYPES = {
    TensorDataType.FLOAT64: _names("float64", 2),
    TensorDataType.FLOAT32: _names("float32", 2),
    TensorDataType.FLOAT16: _names("float16", 2),
    TensorDataType.INT64: _names("int64", 0),
    TensorDataType.INT32: _names("int32", 0),
    TensorDataType.INT16: _names("int16", 0),
    TensorDataType.INT8: _names("int8", 0),
    TensorDataType.UINT64: _names("uint64", 1),
    TensorDataType.UINT32: _names("uint32", 1),
    TensorDataType.UINT16: _names("uint16", 1),
    TensorDataType.UINT8: _names("uint8", 1),
    TensorDataType.INT4: _Names(np.dtype(np.uint8), "int4", (0, 4)),
    TensorDataType.UINT4: _Names(np.dtype(np.uint8), "uint4", (1, 4)),
}
BYTE_TYPES = tuple(data_type for data_type in TensorDataType if not data_type.is_nibble)
"""The types whose elements are whole bytes: all but INT4 and UINT4."""
_FROM_NUMPY = {data_type.numpy: data_type for data_type in BYTE_TYPES} | {np.dtype(bool): TensorDataType.UINT8}
PRECISIONS = ("exact", "bf16")
"""What factors of products and convolutions of float32 may be rounded to: nothing, or bfloat16."""
NO_BFLOAT16 = "DirectML has no bfloat16: convert to float32, which has all its values, or to float16."
"""The advice for a bfloat16 array."""
TYPE_NAMES = ", ".join(names.tvm for data_type, names in _TYPES.items() if not data_type.is_nibble)
"""The types that arrays have; NumPy has none of 4 bits."""
_PACKED_ONLY = "Arrays have whole bytes: TensorDesc.pack stores two 4-bit elements in each byte of a uint8 array."
_ARRAY_ADVICE = {"bfloat16": NO_BFLOAT16, "int4": _PACKED_ONLY, "uint4": _PACKED_ONLY}
_UNCLEAR = {
    "float": "Write float32 or float64: libraries differ in what float means.",
    "int": "Write int32 or int64: libraries differ in what int means.",
    "uint": "Write uint32 or uint64: libraries differ in what uint means.",
}
_ADVICE = {"bfloat16": NO_BFLOAT16, **_UNCLEAR}
"""Advice for names that are refused but commonly written."""


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class TensorDesc:
    """A tensor's data type, sizes and layout (``DML_BUFFER_TENSOR_DESC``).

    Args:
        data_type: a ``TensorDataType`` or its name.
        sizes: one to eight sizes, each at least 1; the tensor has at most 2**32 - 1 elements.
        strides: one for each dimension, in elements; 0 repeats a dimension (inputs only); ``None`` means packed row-major.
        total_tensor_size_in_bytes: size of the buffer; ``None`` means the smallest that holds the tensor.
        guaranteed_base_offset_alignment: 0, or a power of two that is at least the element size. Kernels do not depend on it.
        flags: ``"OWNED_BY_DML"`` for an input that never changes: ``CompiledOperator.initialize`` takes it.

    Raises:
        InvalidArgument: a rule above is broken; the message says which.
    """

    data_type: TensorDataType
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    total_tensor_size_in_bytes: int | None = None
    guaranteed_base_offset_alignment: int = 0
    flags: TensorFlags = TensorFlags.NONE

    SMALLEST_SIZE: ClassVar[int] = 1
    """The smallest allowed size."""

    @naming_sizes
    def __init__(
        self,
        data_type: DType,
        sizes: Sequence[int],
        strides: Sequence[int] | None = None,
        total_tensor_size_in_bytes: int | None = None,
        guaranteed_base_offset_alignment: int = 0,
        flags: TensorFlags | str = TensorFlags.NONE,
    ) -> None:
        """Convert the fields to their types and check every rule."""
        own = self.__dict__  # beside properties that are computed once
        own["data_type"] = TensorDataType.of(data_type, "TensorDesc.data_type")
        own["sizes"] = _integers("TensorDesc.sizes", sizes, self.SMALLEST_SIZE, MAX_ELEMENTS)
        own["strides"], own["total_tensor_size_in_bytes"] = strides, total_tensor_size_in_bytes
        own["guaranteed_base_offset_alignment"] = guaranteed_base_offset_alignment
        own["flags"] = flags if type(flags) is TensorFlags else TensorFlags.parse(flags, "TensorDesc.flags")
        if not 1 <= self.rank <= MAX_RANK:
            raise InvalidArgument(message("TensorDesc.sizes", f"{self.rank} dimensions", f"1 to {MAX_RANK}"))
        if not symbols.is_symbol(self.element_count) and self.element_count > MAX_ELEMENTS:
            raise InvalidArgument(
                message("TensorDesc.sizes", f"{self.element_count} elements", "at most 2^32 - 1", "Split the tensor.")
            )
        known = [n for n in self.sizes if type(n) is int]  # a question to a symbolic size would be a guard
        if self.SMALLEST_SIZE == 0 and 0 in known and math.prod(n or 1 for n in known) >= _MOST_BESIDE_0:
            raise InvalidArgument(message("TensorDesc.sizes", f"the sizes {list(self.sizes)}", "sizes that an array may have"))
        if strides is not None:
            own["strides"] = steps = _integers("TensorDesc.strides", strides, 0, MAX_STRIDE)
            if len(steps) != self.rank:
                raise InvalidArgument(
                    message("TensorDesc.strides", counted(len(steps), "stride"), f"{self.rank}, one for each size")
                )
        if (
            total_tensor_size_in_bytes is not None
            or type(guaranteed_base_offset_alignment) is not int
            or guaranteed_base_offset_alignment
        ):
            self._check_buffer()

    def _check_buffer(self) -> None:
        own = self.__dict__
        alignment = _integer("TensorDesc.guaranteed_base_offset_alignment", self.guaranteed_base_offset_alignment)
        own["guaranteed_base_offset_alignment"] = alignment
        if alignment and (alignment < self.data_type.itemsize or alignment & (alignment - 1)):
            allowed = f"0, or a power of two of at least {self.data_type.itemsize} (the element size)"
            raise InvalidArgument(message("TensorDesc.guaranteed_base_offset_alignment", alignment, allowed))
        if self.total_tensor_size_in_bytes is not None:
            own["total_tensor_size_in_bytes"] = size = _integer(
                "TensorDesc.total_tensor_size_in_bytes", self.total_tensor_size_in_bytes
            )
            if size < self.minimum_size_in_bytes:
                allowed = f"at least {self.minimum_size_in_bytes}"
                raise InvalidArgument(
                    message("TensorDesc.total_tensor_size_in_bytes", size, allowed, "Leave it out to have it computed.")
                )

    @property
    def rank(self) -> int:
        """Number of dimensions (``DimensionCount``)."""
        return len(self.sizes)

    @property
    def effective_rank(self) -> int:
        """Number of dimensions left after leading dimensions of size 1 are dropped. A symbol counts as a size other than 1."""
        leading = next((i for i, size in enumerate(self.sizes) if symbols.is_symbol(size) or not is_one(size)), self.rank)
        return self.rank - leading

    @functools.cached_property
    def element_count(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @functools.cached_property
    def layout(self) -> tuple[int, ...]:
        """The strides in elements, also for a packed tensor."""
        return packed_strides(self.sizes) if self.strides is None else self.strides

    @functools.cached_property
    def is_packed(self) -> bool:
        """True if the elements are in row-major order without gaps."""
        every = zip(self.sizes, self.layout, packed_strides(self.sizes), strict=True)
        return all((are_equal(s, p) if is_open(s) or is_open(p) else s == p) or is_one(n) for n, s, p in every)

    def is_like(self, other: TensorDesc) -> bool:
        """Whether the other tensor has the same type, sizes and strides, and so may be in the same memory."""
        mine, theirs = ([step for n, step in zip(one.sizes, one.layout, strict=True) if n > 1] for one in (self, other))
        return (self.data_type, self.sizes, mine) == (other.data_type, other.sizes, theirs)

    @functools.cached_property
    def span(self) -> int:
        """Number of elements from the first address to the last, both included."""
        if self.element_count == 0:
            return 0
        return sum((n - 1) * s for n, s in zip(self.sizes, self.layout, strict=True)) + 1

    @property
    def minimum_size_in_bytes(self) -> int:
        """Smallest buffer that holds the tensor, rounded up to a multiple of 4 (``DMLCalcBufferTensorSize``)."""
        return (self.span_in_bytes + 3) // 4 * 4

    @functools.cached_property
    def span_in_bytes(self) -> int:
        """Number of bytes from the first element to the last, both included."""
        return (self.span * self.data_type.bits + 7) // 8

    # -- 4-bit elements -------------------------------------------------------------------------------------------

    @property
    def stored(self: D) -> D:
        """The tensor's arrays: for a 4-bit type a UINT8 tensor of its bytes, with one dimension; otherwise the tensor itself.

        The element at offset ``e`` (strides count elements) is in byte ``e // 2``: the low four bits for an even ``e``, the high
        ones for an odd ``e``. INT4 is two's complement.
        """
        return self.with_sizes((self.span_in_bytes,), self.data_type.stored) if self.data_type.is_nibble else self

    def unpack(self, array: NumpyArray) -> NumpyArray:
        """The elements of a 4-bit tensor's array as INT8 or UINT8, with the tensor's sizes; an array of another type as it is."""
        if not self.data_type.is_nibble:
            return array
        offsets = self._offsets()
        nibbles: NumpyArray = (array[offsets >> 1] >> (offsets % 2 * 4).astype(np.uint8)) & 15
        return ((nibbles ^ 8).astype(np.int8) - np.int8(8)) if self.data_type.is_signed else nibbles

    def pack(self, values: npt.ArrayLike) -> NumpyArray:
        """The array of a 4-bit tensor with these elements: their low four bits; an array of another type as it is.

        Bits that belong to no element are 0. If elements share an address, the last one remains.
        """
        if not self.data_type.is_nibble:
            return values  # type: ignore[return-value] # whatever it is
        nibbles = np.zeros(2 * self.span_in_bytes, np.uint8)
        nibbles[self._offsets()] = np.asarray(values).astype(np.uint8) & 15
        return nibbles[::2] | nibbles[1::2] << 4

    def used_bytes(self) -> npt.NDArray[np.bool_]:
        """For each byte of a 4-bit tensor's array, whether it has an element."""
        return self.pack(np.full(self.sizes, 15)) != 0

    def _offsets(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The offset of each element."""
        offsets = np.zeros(self.sizes, np.int64)
        for axis, (size, step) in enumerate(zip(self.sizes, self.layout, strict=True)):
            offsets += (np.arange(size) * step).reshape(-1, *(1 for _ in self.sizes[axis + 1 :]))
        return offsets

    def with_sizes(self: D, sizes: Iterable[int], data_type: TensorDataType | None = None) -> D:
        """A packed tensor of these sizes, of the same data type unless another is given."""
        given: Any = sizes
        if type(sizes) is not tuple and isinstance(sizes, Iterable):  # what is no sequence is refused there
            given = tuple(itertools.islice(sizes, MOST_VALUES))
        return type(self)(self.data_type if data_type is None else data_type, given)

    def check_writable(self, where: str) -> None:
        """Refuse strides that give two elements the same address: such a tensor cannot be an output.

        Raises:
            InvalidArgument: they do.
        """
        if self.strides is not None and not _addresses_are_distinct(self.sizes, self.strides):
            raise InvalidArgument(
                message(
                    where,
                    f"strides {self.strides} for sizes {self.sizes}",
                    "strides that give each element its own address",
                    "Only inputs may repeat elements.",
                )
            )

    def __repr__(self) -> str:
        """As of every dataclass. It is made once, unless a size is open: that has several texts."""
        found: str | None = self.__dict__.get("_text")
        if found is None:
            fields = ", ".join([f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self)])
            found = f"{type(self).__qualname__}({fields})"
            if all(type(n) is int for n in (*self.sizes, *(self.strides or ()), self.total_tensor_size_in_bytes or 0)):
                self.__dict__["_text"] = found
        return found

    def __str__(self) -> str:
        """``float32[2, 3]``, with the strides if they are given."""
        layout = "" if self.strides is None else f" strides {list(self.strides)}"
        return f"{self.data_type.tvm}{list(self.sizes)}{layout}"


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class ArrayTensorDesc(TensorDesc):
    """The description of a caller's array. Unlike a DirectML tensor, it may have no elements or no dimensions."""

    zero_dimensional: bool = False
    """The array has no dimensions; its sizes are {1}, as in DirectML."""

    def __init__(
        self,
        data_type: TensorDataType,
        sizes: Sequence[int],
        strides: Sequence[int] | None = None,
        total_tensor_size_in_bytes: int | None = None,
        guaranteed_base_offset_alignment: int = 0,
        flags: TensorFlags | str = TensorFlags.NONE,
        zero_dimensional: bool = False,
    ) -> None:
        """As a ``TensorDesc``."""
        super().__init__(data_type, sizes, strides, total_tensor_size_in_bytes, guaranteed_base_offset_alignment, flags)
        self.__dict__["zero_dimensional"] = zero_dimensional

    SMALLEST_SIZE: ClassVar[int] = 0


def packed_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        strides[i] = strides[i + 1] * sizes[i + 1]
    return tuple(strides)


def _integer(where: str, value: object) -> int:
    try:
        number: int = symbols.index(value)
    except (TypeError, RuntimeError):  # PyTorch raises RuntimeError for a tensor that is too large
        raise InvalidArgument(message(where, safe_repr(value), "an integer")) from None
    if isinstance(value, bool) or (not symbols.is_symbol(number) and number < 0):
        raise InvalidArgument(message(where, safe_repr(value), "a non-negative integer"))
    return number


def _integers(where: str, values: object, smallest: int, largest: int) -> tuple[int, ...]:
    if type(values) is tuple and len(values) <= MAX_RANK:
        for n in values:
            if not ((type(n) is int or type(n) is Size) and smallest <= n <= largest):
                break
        else:
            return values
    try:
        given = None if isinstance(values, (str, bytes)) else iter(values)  # type: ignore[call-overload]
    except TypeError:
        given = None
    if given is None:
        raise InvalidArgument(message(where, safe_repr(values), "a sequence of integers"))
    numbers = []
    for i, value in enumerate(given):
        number = _integer(f"{where}[{i}]", value)
        if not symbols.is_symbol(number) and not smallest <= number <= largest:
            raise InvalidArgument(message(f"{where}[{i}]", number, f"{smallest} to {largest}"))
        if i >= MOST_VALUES - 1:
            raise InvalidArgument(message(where, "more than 64 values", f"at most {MAX_RANK}"))
        numbers.append(number)
    return tuple(numbers)


def _addresses_are_distinct(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether no two elements share an address. If the exact answer takes too long to find, the result is false.

    Two elements share an address if dot(d, strides) = 0 for a nonzero difference d of their coordinates, |d[i]| < sizes[i].
    """
    dims = sorted((s, n) for n, s in zip(sizes, strides, strict=True) if n > 1)
    reach = [0]  # reach[i]: the largest offset within dimensions below i
    for stride, size in dims:
        reach.append(reach[-1] + stride * (size - 1))
    if all(stride > reach[i] for i, (stride, _) in enumerate(dims)):
        return True  # each stride is larger than the reach of all smaller dimensions: the usual case
    if math.prod(n for _, n in dims) > reach[-1] + 1:
        return False  # more elements than addresses
    budget = 100_000  # steps of the search; layouts that need more are refused

    def vanishes(i: int, rest: int, nonzero: bool) -> bool:
        """Whether dimensions 0..i can bring ``rest`` to zero, with some difference nonzero."""
        nonlocal budget
        budget -= 1
        if budget < 0:
            return True
        if i < 0:
            return rest == 0 and nonzero
        stride, size = dims[i]
        if stride == 0:
            return True
        low = max(-(size - 1), -((rest + reach[i]) // stride))
        high = min(size - 1, (reach[i] - rest) // stride)
        return any(vanishes(i - 1, rest + d * stride, nonzero or d != 0) for d in range(low, high + 1))

    return not vanishes(len(dims) - 1, 0, False)

"""What the inner loop of a product computes with: the type of a packed element, of a sum, and the step between them.

A packed element has one factor's values of ``group`` places of the contraction: one float; a pair of int16, or four bytes, in an
int32. Zero points are subtracted where values are packed, or, of bytes, when the sum is finished (``ByteProducts``). Pairs of
bfloat16 are in ``_gemm_bfloat16.py``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tvmdml.kernels import tensorir
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import factor, multiply_add


class ProductArithmetic:
    """Base class. Sides are 0 for the factor of the rows, and 1 for that of the columns."""

    packed: str
    total: str
    group: ClassVar[int] = 1
    subtracts: ClassVar[bool] = True
    """Whether zero points are subtracted while values are packed."""
    weaves_lines: ClassVar[bool] = False
    """Whether values of 64 neighbours are woven at once (``woven_lines``), with half of the instructions."""
    unit: ClassVar[int] = 1
    """The packed elements of a line in a panel are a multiple of this; those behind its end are 0."""

    def many(self, side: int, raw: Any, zero: Any = None) -> Any:
        """Neighbouring values of one row or column, a group for each lane, as packed elements."""
        raise NotImplementedError

    def woven(self, side: int, raws: list[Any], zero: Any = None) -> Any:
        """Values of neighbouring rows or columns, a vector for each place of a group, as packed elements."""
        raise NotImplementedError

    def one(self, side: int, raws: list[Any], zero: Any = None) -> Any:
        """The values of one group as a packed element; ``None`` for those behind the last place."""
        raise NotImplementedError

    def step(self, a: Any, b: Any, total: Any) -> Any:
        """The sum with the products of two packed elements, in each lane."""
        raise NotImplementedError

    def key(self) -> str:
        """Its name in a kernel's parameters."""
        return f"{type(self).__name__} {self.packed}"


class FloatProducts(ProductArithmetic):
    """Floats, and differences of integers as floats."""

    def __init__(self, dtype: str) -> None:
        self.packed = self.total = dtype

    def many(self, side: int, raw: Any, zero: Any = None) -> Any:
        return factor(raw, None if zero is None else T.splat(zero, T.lanes(raw)), self.packed)

    def woven(self, side: int, raws: list[Any], zero: Any = None) -> Any:
        return factor(raws[0], zero, self.packed)

    def one(self, side: int, raws: list[Any], zero: Any = None) -> Any:
        return factor(raws[0], zero, self.packed)

    def step(self, a: Any, b: Any, total: Any) -> Any:
        return multiply_add(a, b, total)


class PairProducts(ProductArithmetic):
    """Pairs of int16, with their zero points subtracted: one instruction multiplies and adds both."""

    packed, total, group = "int32", "int32", 2

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes

    def _narrow(self, raw: Any, zero: Any) -> Any:
        value = T.cast(raw, "int16")
        return value if zero is None else value - T.cast(zero, "int16")

    def many(self, side: int, raw: Any, zero: Any = None) -> Any:
        value = self._narrow(raw, None)
        if zero is not None:
            value = value - T.splat(T.cast(zero, "int16"), T.lanes(raw))
        return tensorir.reinterpret(f"int32x{T.lanes(raw) // 2}", value)

    def woven(self, side: int, raws: list[Any], zero: Any = None) -> Any:
        lanes = T.lanes(raws[0])
        pairs = [T.hold(self._narrow(raw, zero)) for raw in raws]
        if lanes == 1:
            return self._joined(pairs)
        order = [row * lanes + lane for lane in range(lanes) for row in range(2)]
        return tensorir.reinterpret(f"int32x{lanes}", T.Shuffle(pairs, order))

    def one(self, side: int, raws: list[Any], zero: Any = None) -> Any:
        return self._joined([None if raw is None else self._narrow(raw, zero) for raw in raws])

    @staticmethod
    def _joined(pair: list[Any]) -> Any:
        low, high = (T.const(0, "int32") if one is None else T.cast(one, "int32") for one in pair)
        return (low & T.const(0xFFFF, "int32")) | (high << T.const(16, "int32"))

    def step(self, a: Any, b: Any, total: Any) -> Any:
        lanes = T.lanes(total)
        names = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
        if lanes == self.lanes and lanes in names and T.has_instructions("x86"):
            shorts = [tensorir.reinterpret(f"int16x{2 * lanes}", one) for one in (a, b)]
            return total + T.call_llvm_pure_intrin(f"int32x{lanes}", names[lanes], *shorts)
        low = [(one << T.like(one, 16)) >> T.like(one, 16) for one in (a, b)]
        high = [one >> T.like(one, 16) for one in (a, b)]
        return total + low[0] * low[1] + high[0] * high[1]


ONES = 0x01010101
"""Four bytes of 1, whose products with others sum these."""


def _exchanges(size: int) -> list[list[int]]:
    """Both halves of each 16 bytes of two vectors of 64, by turns in steps of some bytes."""
    steps = [(quarter + i, first) for quarter in range(0, 64, 16) for i in range(0, 8, size) for first in (0, 64)]
    return [[first + start + at + j for at, first in steps for j in range(size)] for start in (0, 8)]


def interleaved(raws: list[Any]) -> list[Any]:
    """The words of 64 lines, from the bytes of four places, in four vectors: bytes and pairs are exchanged within quarters.

    So the vectors have the words of the first four lines of each 16, then those of the next four …; ``in_order`` puts them right.
    """
    for size in (1, 2):
        raws = [
            T.hold(T.Shuffle([raws[first], raws[second]], order))
            for first, second in (((0, 1), (2, 3)) if size == 1 else ((0, 2), (1, 3)))
            for order in _exchanges(size)
        ]
    return [T.hold(tensorir.reinterpret("int32x16", one)) for one in raws]


def in_order(words: list[Any]) -> list[Any]:
    """Four vectors in the order of lines: the first quarters of all become the first vector, and so on."""
    found = []
    for half in (0, 8):
        low = [*range(half, half + 8), *range(16 + half, 24 + half)]
        pairs = [T.hold(T.Shuffle(words[i : i + 2], low)) for i in (0, 2)]
        for start in (0, 4):
            order = [one + i for one in (start, start + 8, start + 16, start + 24) for i in range(4)]
            found.append(T.hold(T.Shuffle(pairs, order)))
    return found


_BYTES = """
declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <16 x i32>, <16 x i32>)
define <16 x i32> @tvmdml_byte_products(<16 x i32> %total, <16 x i32> %a, <16 x i32> %b) alwaysinline {
  %found = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %total, <16 x i32> %a, <16 x i32> %b)
  ret <16 x i32> %found
}
"""


class ByteProducts(ProductArithmetic):
    """Four bytes, unsigned ones of rows and signed ones of columns, as the instruction multiplies them.

    Bytes of the other sign are shifted by 128, and their zero points with them. The finished sum is corrected by the sums of rows
    and columns.
    """

    packed, total, group, subtracts = "int32", "int32", 4, False
    weaves_lines = True

    def __init__(self, signed: tuple[bool, bool]) -> None:
        self.flips = (signed[0], not signed[1])

    def shift(self, side: int) -> int:
        """What is added to the values of a side: 128 or -128 in their type, or 0."""
        return (128 if self.is_unsigned(side) else -128) if self.flips[side] else 0

    def many(self, side: int, raw: Any, zero: Any = None) -> Any:
        word = tensorir.reinterpret(f"int32x{T.lanes(raw) // 4}", raw)
        return word ^ T.like(word, -0x7F7F7F80) if self.flips[side] else word

    def woven(self, side: int, raws: list[Any], zero: Any = None) -> Any:
        lanes = T.lanes(raws[0])
        if lanes == 1:
            return self.one(side, raws, zero)
        order = [row * lanes + lane for lane in range(lanes) for row in range(4)]
        return self.many(side, T.Shuffle(raws, order))

    def woven_lines(self, side: int, raws: list[Any]) -> list[Any]:
        """The words of 64 lines, from the bytes of four places, in four vectors."""
        found = in_order(interleaved(raws))
        return [T.hold(one ^ T.like(one, -0x7F7F7F80)) if self.flips[side] else one for one in found]

    def one(self, side: int, raws: list[Any], zero: Any = None) -> Any:
        found = None
        for place, raw in enumerate(raws):
            if raw is not None:
                byte = T.cast(T.reinterpret(raw, "uint8"), "int32")
                byte = (byte ^ T.const(0x80, "int32")) if self.flips[side] else byte
                byte = byte << T.const(8 * place, "int32") if place else byte
                found = byte if found is None else found | byte
        return found

    def step(self, a: Any, b: Any, total: Any) -> Any:
        return self._products(a, b, total) if self.is_unsigned(0) else self._products(b, a, total)

    @staticmethod
    def _products(unsigned: Any, signed: Any, total: Any) -> Any:
        return T.call_imported(T.type_of(total), "tvmdml_byte_products", _BYTES, total, unsigned, signed)

    def sum_step(self, side: int, packed: Any, total: Any) -> Any:
        """The sum with the bytes of packed elements of a side, in each lane."""
        one = T.splat(T.const(ONES, "int32"), T.lanes(total))
        return self._products(packed, one, total) if self.is_unsigned(side) else self._products(one, packed, total)

    def is_unsigned(self, side: int) -> bool:
        """Whether packed bytes of a side are unsigned."""
        return side == 0


class RowBytes(ByteProducts):
    """Four bytes, those of columns as they are: only bytes of rows are shifted, to the other sign than the columns have."""

    unit = 16

    def __init__(self, signed: tuple[bool, bool]) -> None:
        self.signed, self.flips = signed[1], (signed[0] == signed[1], False)

    def is_unsigned(self, side: int) -> bool:
        return self.signed == (side == 0)


class TileBytes(ByteProducts):
    """Four bytes, of any signs, as instructions on tiles multiply them (``_gemm_amx.py``)."""

    unit = 16

    def __init__(self, signed: tuple[bool, bool]) -> None:
        super().__init__(signed)
        self.signed, self.flips = signed, (False, False)

    def is_unsigned(self, side: int) -> bool:
        return not self.signed[side]

    def key(self) -> str:
        return f"{super().key()} {' '.join('signed' if one else 'unsigned' for one in self.signed)}"


class TilePairs(ProductArithmetic):
    """float32 or float16 as pairs of bfloat16, as instructions on tiles multiply them (``_gemm_amx.py``).

    A line's packed elements for ``PLACES`` places are the pairs of each part that a value has.
    """

    PLACES: ClassVar[int] = 32
    packed, total = "int32", "float32"
    parts: ClassVar[int]
    """Of how many bfloat16 a value is the sum."""
    apart: ClassVar[int]
    """From the first place of a pair to its second one."""

    def pairs(self, raw: Any) -> tuple[Any, ...]:
        """The pairs of each part, of values of ``PLACES`` places."""
        raise NotImplementedError

    def woven_pairs(self, raws: list[Any]) -> tuple[Any, ...]:
        """The pairs of each part, from vectors of both places."""
        raise NotImplementedError


class TileHalves(TilePairs):
    """Floats as the sum of two bfloat16, which have 16 bits, all of a float16: instructions on tiles multiply each by each.

    The pairs of the first parts are followed by those of the second ones.
    """

    unit, parts, apart = 32, 2, 1

    def split(self, raw: Any) -> tuple[Any, Any]:
        """Both parts: the upper halves of words with the bits of float32. An infinity's second one is not a number."""
        lanes = T.lanes(raw)
        value = T.hold(T.cast(raw, "float32"))
        bits = T.hold(tensorir.reinterpret(f"int32x{lanes}", value) & T.splat(T.const(-0x10000, "int32"), lanes))
        rest = T.hold(value - tensorir.reinterpret(f"float32x{lanes}", bits))
        return bits, T.hold(tensorir.reinterpret(f"int32x{lanes}", rest))

    def pairs(self, raw: Any) -> tuple[Any, Any]:
        """The pairs of both parts, of neighbouring places."""
        count = T.lanes(raw)
        odd = [2 * i + 1 for i in range(count)]
        shorts = [T.hold(tensorir.reinterpret(f"int16x{2 * count}", one)) for one in self.split(raw)]
        first, second = (T.hold(tensorir.reinterpret(f"int32x{count // 2}", T.Shuffle([one], odd))) for one in shorts)
        return first, second

    def woven_pairs(self, raws: list[Any]) -> tuple[Any, Any]:
        """The pairs of both parts, from vectors of two places."""
        lanes = T.lanes(raws[0])
        low, high = (self.split(one) for one in raws)
        mask, upper, sixteen = (T.splat(T.const(one, "int32"), lanes) for one in (0xFFFF, -0x10000, 16))
        first, second = (T.hold(((x >> sixteen) & mask) | (y & upper)) for x, y in zip(low, high, strict=True))
        return first, second

    def value(self, first: Any, second: Any, place: int) -> Any:
        """The value of one of the two places of pairs, as float32."""
        kind = str(T.type_of(first)).replace("int", "float")
        own, rest = (T.hold(pair & T.like(pair, -0x10000) if place else pair << T.like(pair, 16)) for pair in (first, second))
        infinite = (own & T.like(own, 0x7FFFFFFF)) == T.like(own, 0x7F800000)
        one, other = (tensorir.reinterpret(kind, bits) for bits in (own, rest))
        return T.hold(T.Select(infinite, one, one + other))

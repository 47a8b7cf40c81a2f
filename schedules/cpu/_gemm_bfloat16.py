"""Products whose factors are rounded to bfloat16 when they are packed, two in a word, with sums of float32.

The order of a sum is that of ``operators/_matrix_bfloat16_fused.py``, which matrix tiles (AMX) have. The instruction for vectors
(AVX512_BF16) adds the product of a word's upper halves first, then that of the lower ones; without it, both are added by FMA.
Instructions take subnormal sums for 0; FMA does not.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import CHAIN, bfloat16, multiply_add
from tvmdml.schedules.cpu._gemm import ProductLoops, _Where
from tvmdml.schedules.cpu._gemm_arithmetic import ProductArithmetic, TilePairs
from tvmdml.schedules.cpu._sums import Sums, zeros

_WORDS = CHAIN // 2
"""Those of half a block."""
_TILE = 4, 2
"""Rows and vectors of the tile of two panels."""
_FEATURE = "avx512bf16"
_SHUFFLES = {
    "swapped": [i ^ 1 for i in range(32)],
    "halves": [i // 2 + 16 * (i % 2) for i in range(32)],
}
"""How a word's lower and upper half follow from values in order: neighbours, the first one above; or values 16 places apart."""
_SOURCE = """
declare <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float>, <16 x float>)
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define <16 x float> @tvmdml_bfloat16_products(<16 x float> %total, <16 x i32> %a, <16 x i32> %b) alwaysinline {
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %total, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}
""" + "".join(
    f"""define <16 x i32> @tvmdml_bfloat16_{name}(<32 x float> %x) alwaysinline {{
  %low = shufflevector <32 x float> %x, <32 x float> poison, <16 x i32> <{", ".join(f"i32 {i}" for i in range(16))}>
  %high = shufflevector <32 x float> %x, <32 x float> poison, <16 x i32> <{", ".join(f"i32 {i}" for i in range(16, 32))}>
  %y = call <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float> %high, <16 x float> %low)
  %w = bitcast <32 x bfloat> %y to <32 x i16>
  %z = shufflevector <32 x i16> %w, <32 x i16> poison, <32 x i32> <{", ".join(f"i32 {i}" for i in order)}>
  %r = bitcast <32 x i16> %z to <16 x i32>
  ret <16 x i32> %r
}}
"""
    for name, order in _SHUFFLES.items()
)


def _joined(upper: Any, lower: Any) -> Any:
    """Words with these floats in their halves."""
    low = bfloat16(lower)
    return T.hold(bfloat16(upper) | ((low >> T.like(low, 16)) & T.like(low, 0xFFFF)))


def _words(name: str, raw: Any) -> Any:
    """The words of 32 values in order."""
    if T.has_instructions(_FEATURE):
        return T.call_imported("int32x16", f"tvmdml_bfloat16_{name}", _SOURCE, T.hold(raw))
    order = _SHUFFLES[name]
    lower, upper = (T.hold(T.Shuffle([T.hold(raw)], order[start::2])) for start in (0, 1))
    return _joined(upper, lower)


class Bfloat16(ProductArithmetic):  # type: ignore[misc] # mypy knows these modules by another name
    """Words of two neighbouring places, the first one above."""

    packed, total, group, unit = "int32", "float32", 2, 16

    def many(self, side: int, raw: Any, zero: Any = None) -> Any:
        return _words("swapped", raw)

    def woven(self, side: int, raws: list[Any], zero: Any = None) -> Any:
        return _joined(*raws)

    def one(self, side: int, raws: list[Any], zero: Any = None) -> Any:
        return _joined(*raws)

    def step(self, a: Any, b: Any, total: Any) -> Any:
        kind = T.type_of(total)
        if kind == "float32x16" and T.has_instructions(_FEATURE):
            return T.call_imported(kind, "tvmdml_bfloat16_products", _SOURCE, total, a, b)
        upper = [one & T.like(one, -0x10000) for one in (a, b)]
        lower = [one << T.like(one, 16) for one in (a, b)]
        for x, y in (upper, lower):
            total = T.hold(multiply_add(T.hold(T.reinterpret(x, "float32")), T.hold(T.reinterpret(y, "float32")), total))
        return total


class TileBfloat16(TilePairs):  # type: ignore[misc] # as above
    """Words of places 16 apart, the first one below, for tiles."""

    group, unit, parts, apart = 2, 16, 1, CHAIN
    order: ClassVar[str] = "halves"

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        """What values are multiplied by before they are rounded, where their places are contiguous."""

    def pairs(self, raw: Any) -> tuple[Any, ...]:
        return (_words(self.order, raw if self.scale == 1 else T.hold(raw * T.like(raw, self.scale))),)

    def woven_pairs(self, raws: list[Any]) -> tuple[Any, ...]:
        if T.lanes(raws[0]) == CHAIN and T.has_instructions(_FEATURE):
            return (_words("halves", T.Shuffle(self._by_half(raws), list(range(2 * CHAIN)))),)
        upper, lower = self._by_half(raws)[::-1]
        return (_joined(upper, lower),)

    def _by_half(self, raws: list[Any]) -> list[Any]:
        """The values of lower and of upper halves."""
        return raws


class NeighbouringPairs(TileBfloat16):
    """Words of ``Bfloat16``, packed as for tiles."""

    apart = 1
    order = "swapped"

    def _by_half(self, raws: list[Any]) -> list[Any]:
        return raws[::-1]


def product_of_panels(words: Any, a: Any, b: Any, sums: Any, at: Any, units: Any, first: Any = None) -> None:
    """Sums of two panels of 32 lines of ``NeighbouringPairs`` over so many units of places, in vectors of columns.

    ``first`` says whether they begin with 0, and not with what is in memory; ``None``: they do.
    """
    lanes, (rows, vectors), arithmetic = CHAIN, _TILE, Bfloat16()
    width, unit = 2 * CHAIN, 2 * CHAIN * arithmetic.unit

    with T.loop(T.i64(width // rows)) as group, T.loop(T.i64(width // (vectors * lanes))) as part:
        own_a, own_b = T.hold(a + group * (rows * arithmetic.unit)), T.hold(b + part * (vectors * lanes))
        to = T.hold(at + group * (rows * width) + part * (vectors * lanes))

        def run(i: int, j: int, to: Any = to) -> Any:
            return T.run(to + i * width + j * lanes, lanes)

        def before(i: int, j: int, run: Any = run) -> Any:
            return zeros(lanes) if first is None else T.hold(T.Select(T.splat(first, lanes), zeros(lanes), sums[run(i, j)]))

        totals = Sums(rows, vectors, before, arithmetic.step)
        with T.loop(units) as u:
            halves = [Sums(rows, vectors, lambda i, j: zeros(lanes), arithmetic.step) for _ in range(2)]
            for half, own in enumerate(halves):
                with T.loop(T.i64(_WORDS)) as k:
                    word = T.hold(k + half * _WORDS)
                    along = [T.hold(words[T.run(own_b + u * unit + word * width + j * lanes, lanes)]) for j in range(vectors)]
                    own.add(lambda i, word=word: words[own_a + u * unit + i * arithmetic.unit + word], along)
            for i in range(rows):
                for j in range(vectors):
                    totals.set(i, j, T.hold(totals.get(i, j) + T.hold(halves[0].get(i, j) + halves[1].get(i, j))))
        for i in range(rows):
            for j in range(vectors):
                T.store(sums, run(i, j), totals.get(i, j))


class Bfloat16Product(ProductLoops):  # type: ignore[misc] # as above
    """The loops for vectors: of each block the sums of both halves stay in registers, and the whole ones beside them."""

    PARTS = False

    def _tile(self, a: Any, b: Any, groups: Any, at: Any, first: Any, last: Any, where: _Where, late: bool) -> None:
        mr, nr, lanes, vectors = self.shape.rows, self.shape.columns, self.shape.lanes, self.shape.vectors

        def run(i: int, j: int) -> Any:
            return T.run(at + i * nr + j * lanes, lanes)

        def before(i: int, j: int) -> Any:
            return T.hold(T.Select(T.splat(first, lanes), zeros(lanes), self.partial[run(i, j)]))

        totals = Sums(mr, vectors, before, self.arithmetic.step)
        with T.loop(T.hold(T.truncdiv(groups, T.i64(self.arithmetic.unit)))) as block:
            halves = [Sums(mr, vectors, lambda i, j: zeros(lanes), self.arithmetic.step) for _ in range(2)]
            for half, sums in enumerate(halves):
                with T.loop(T.i64(_WORDS)) as k:
                    place = T.hold(block * self.arithmetic.unit + half * _WORDS + k)
                    along = [T.hold(self.panels_b[T.run(b + place * nr + j * lanes, lanes)]) for j in range(vectors)]
                    sums.add(lambda i, place=place: self.panels_a[a + place * mr + i], along)
            for i in range(mr):
                for j in range(vectors):
                    own = T.hold(halves[0].get(i, j) + halves[1].get(i, j))
                    totals.set(i, j, T.hold(totals.get(i, j) + own))
        for i in range(mr):
            for j in range(vectors):
                T.store(self.partial, run(i, j), totals.get(i, j))
        self._finish_kept(at, last, where)

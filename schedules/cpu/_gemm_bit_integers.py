"""Products with a matrix of few bits where the first factor may be rounded: its blocks become integers of 8 bits with a scale.

Four products of bytes are one instruction (AVX-512 VNNI), and their sums are exact. What is rounded is the first factor alone, by
half a step of a 127th of the largest magnitude in its block.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import multiply_add
from tvmdml.operators._matrix_blocks_fused import LARGEST, LEAST
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._gemm_arithmetic import ONES, ByteProducts
from tvmdml.schedules.cpu._gemm_bits import COLUMNS, BitRows
from tvmdml.schedules.cpu._gemm_panels import times
from tvmdml.schedules.cpu._sums import zeros

_LANES = 16
_BYTES = 4 * _LANES


class IntegerRows(BitRows):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the loops.

    A task's scratch memory has, for each row: scales of blocks, and of all lanes, and sums of columns; for each chunk the bytes in
    the order of the words' elements, and their sums; and all bytes in their order.
    """

    @property
    def parts(self) -> int:
        """The vectors of bytes of a chunk."""
        return int(8 // self.bits.bits)

    def rooms(self, rows: int, columns: int, depth: int) -> tuple[tuple[str, int], ...]:
        """Floats, words and bytes."""
        chunks = -(-depth // self.bits.places)
        floats = chunks * (self.bits.scales + _LANES) + COLUMNS
        return (
            ("float32", rows * floats),
            ("int32", rows * chunks * (self.parts + 1) * _LANES),
            ("int8", rows * chunks * self.bits.places),
        )

    def _begin(self, number: Any) -> None:
        bits, (self.floats, self.words, self.bytes) = self.bits, self.scratch
        at_floats, at_words, at_bytes = (T.hold(number * room) for room in self.scratch_rooms)
        self.at_bytes, self.at_words = at_bytes, at_words
        self.at_scales = at_floats
        self.at_lanes = T.hold(at_floats + self.m * self.chunks * bits.scales)
        self.sums = T.hold(self.at_lanes + self.m * self.chunks * _LANES)
        self.results = self.floats

    # -- The first factor

    def _spread(self) -> None:
        """Round it, block by block, and write it in the order of the words' elements."""
        bits = self.bits
        size = bits.block * bits.per_word
        wide = _LANES if size % _LANES == 0 and isinstance(self.a_place, int) and self.a_place == 1 else 1
        places = T.hold(self.chunks * bits.places)
        with T.loop(self.m) as row:
            source = T.hold(self.base_a + times(row, self.a_row))
            to, scales = T.hold(self.at_bytes + row * places), T.hold(self.at_scales + row * self.chunks * bits.scales)

            def values(place: Any, lanes: int, source: Any = source) -> Any:
                at = source + (place if lanes > 1 else times(place, self.a_place))
                return T.hold(T.cast(self.a[T.run(at, lanes)], "float32"))

            with T.loop(self.blocks) as block:
                first = T.hold(block * size)
                count = T.hold(T.min(T.i64(size), self.depth - first))
                vectors = T.hold(T.truncdiv(count, T.i64(wide)))
                largest, alone = (
                    T.Variable(f"float32x{wide}" if wide > 1 else "float32", zeros(wide)),
                    T.Variable("float32", zeros(1)),
                )
                with T.loop(vectors) as v:
                    largest.set(T.maximum(largest.value, T.absolute(values(first + v * wide, wide))))
                with T.loop(T.hold(count - vectors * wide)) as i:
                    alone.set(T.maximum(alone.value, T.absolute(values(first + vectors * wide + i, 1))))
                peak = T.hold(T.maximum(largest_lane(largest.value), alone.value))
                T.store(self.floats, T.hold(scales + block), T.hold(peak * T.const(1 / LARGEST, "float32")))
                inverse = T.hold(
                    T.Select(peak > T.const(LEAST, "float32"), T.const(LARGEST, "float32") / peak, T.const(0, "float32"))
                )

                def put(place: Any, lanes: int, to: Any = to, inverse: Any = inverse) -> None:
                    exact = T.rounded(values(place, lanes) * T.splat(inverse, lanes))
                    whole = T.hold(T.cast(T.round_even(exact), "int32"))
                    T.store(self.bytes, T.run(T.hold(to + place), lanes), T.cast(whole, "int8"))

                with T.loop(vectors) as v:
                    put(T.hold(first + v * wide), wide)
                with T.loop(T.hold(count - vectors * wide)) as i:
                    put(T.hold(first + vectors * wide + i), 1)
            with T.loop(T.hold(places - self.depth)) as k:
                T.store(self.bytes, T.hold(to + self.depth + k), T.const(0, "int8"))
            with T.loop(T.hold(self.chunks * bits.scales - self.blocks)) as k:
                T.store(self.floats, T.hold(scales + self.blocks + k), T.const(0, "float32"))
            with T.loop(self.chunks) as c:
                self._chunk_of_rows(T.hold(row * self.chunks + c), to, scales, c)

    def _chunk_of_rows(self, number: Any, source: Any, scales: Any, c: Any) -> None:
        bits, parts = self.bits, self.parts
        raws = [T.hold(self.bytes[T.run(source + c * bits.places + i * _BYTES, _BYTES)]) for i in range(parts)]
        to = T.hold(self.at_words + number * ((parts + 1) * _LANES))
        total = T.splat(T.const(0, "int32"), _LANES)
        for j in range(parts):
            own = raws[0] if parts == 1 else T.Shuffle(raws, [i * parts + j for i in range(_BYTES)])
            word = T.hold(tensorir.reinterpret(f"int32x{_LANES}", own))
            T.store(self.words, T.run(to + j * _LANES, _LANES), word)
            total = T.hold(ByteProducts._products(T.splat(T.const(ONES, "int32"), _LANES), word, total))
        T.store(self.words, T.run(to + parts * _LANES, _LANES), total if bits.zero else total * bits.vector(-bits.middle, "int32"))
        T.store(self.floats, T.run(self.at_lanes + number * _LANES, _LANES), T.hold(self._of_blocks(self.floats, scales, c, False)))

    # -- Sums

    def _tile(self, first: Any, own: list[Any], row: Any) -> None:
        bits, parts = self.bits, self.parts
        bases, scales, zero_rows = (
            [T.hold(base + times(n, step)) for n in own]
            for base, step in ((self.base_b, self.b_row), (T.i64(0), self.scale_row), (T.i64(0), self.zero_row))
        )
        rows = [T.hold((row + m) * self.chunks) for m in range(self.rows)]
        totals = [[T.Variable(f"float32x{_LANES}", zeros(_LANES)) for _ in range(self.rows)] for _ in own]

        def chunk(c: Any, is_last: bool) -> None:
            elements, factors, less = [], [], []
            for n in range(self.together):
                at = T.hold(bases[n] + c * _BYTES)
                if not is_last:
                    read_ahead(self.b, at + self.ahead[0])
                    read_ahead(self.scale, scales[n] + c * bits.scales + self.ahead[1])
                word = T.hold(bits.words(self._last_words(bases[n], c) if is_last else self.b[T.run(at, _BYTES)]))
                elements.append([T.hold(self._bytes(word, j)) for j in range(parts)])
                factors.append(self._scales(scales[n], c, is_last))
                less.append(self._zeros(zero_rows[n], c, is_last))
            for m in range(self.rows):
                at = T.hold(self.at_words + (rows[m] + c) * ((parts + 1) * _LANES))
                words = [T.hold(self.words[T.run(at + j * _LANES, _LANES)]) for j in range(parts + 1)]
                lanes = T.hold(self.floats[T.run(self.at_lanes + (rows[m] + c) * _LANES, _LANES)])
                for n in range(self.together):
                    start = bits.vector(0, "int32") - less[n] * words[parts] if bits.zero == "bits" else words[parts]
                    total = T.hold(bits.vector(0, "int32") if bits.zero == "floats" else start)
                    for j in range(parts):
                        total = T.hold(ByteProducts._products(elements[n][j], words[j], total))
                    value = T.cast(total, "float32")
                    if bits.zero == "floats":
                        value = value - T.rounded(less[n] * T.cast(words[parts], "float32"))
                    factor = T.hold(T.rounded(factors[n] * lanes))
                    totals[n][m].set(multiply_add(T.hold(value), factor, totals[n][m].value))

        self.over_chunks(chunk, own, first, row, totals)

    def _bytes(self, word: Any, j: int) -> Any:
        """An element of each byte."""
        bits = self.bits
        if bits.bits < 8:
            moved = word >> bits.vector(j * bits.bits, "uint32") if j else word
            word = moved & bits.vector(((1 << bits.bits) - 1) * ONES, "uint32")
        return T.reinterpret(word, "int32")

    def _zeros(self, base: Any, c: Any, is_last: bool) -> Any:
        """The zero points of the lanes, counted as elements without signs."""
        bits = self.bits
        if bits.zero == "bits":
            return T.hold(T.reinterpret(bits.plain(self._zero_points(base, c, is_last)), "int32"))
        if not bits.zero:
            return None
        zero = self._of_blocks(self.zero, base, c, is_last)
        return T.hold(zero + bits.vector(float(bits.middle)) if bits.is_signed else zero)


def largest_lane(vector: Any) -> Any:
    """The largest of a vector's lanes; NaN if one is."""
    lanes = T.lanes(vector)
    while lanes > 1:
        vector, lanes = T.hold(vector), lanes // 2
        vector = T.maximum(*(T.Shuffle([vector], list(range(first, first + lanes))) for first in (0, lanes)))
    return vector

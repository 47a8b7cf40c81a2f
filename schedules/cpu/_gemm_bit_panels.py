"""Packing a matrix of few bits: a block of it becomes panels of floats, which stay in a cache while tiles of many rows read them.

Words of as many lines as a vector has lanes are transposed, so that a vector has one word of each line. Then each element of these
words is a place of the panel: nothing is transposed as floats.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tvmdml.kernels import tensorir
from tvmdml.kernels import tensorir_values as T
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._gemm_arithmetic import TileHalves
from tvmdml.schedules.cpu._gemm_bits import Bits
from tvmdml.schedules.cpu._gemm_panels import times, up
from tvmdml.schedules.cpu._tiles import SIDE, transposed


class BitPacker:
    """Writes panels of a matrix of few bits, as ``Packer`` does of others.

    Args:
        bits: the matrix; its lanes are those of the tile.
        width: lines of a panel.
        buffers: the matrix, its scales, and zero points or ``None``.
        steps: from one line's to the next one's, of each.
        row_bytes: the bytes of a line that may be read.
    """

    together = 1

    def __init__(self, bits: Bits, width: int, buffers: Any, steps: Any, row_bytes: Any) -> None:
        self.bits, self.width = bits, width
        (self.buffer, self.scale, self.zero), (self.row, self.scale_row, self.zero_row) = buffers, steps
        self.row_bytes = row_bytes

    def pack(self, base: Any, zeros: Any, to: Any, at: Any, line: Any, last: Any, place: Any, count: Any, done: Any = 0) -> None:
        """Write a panel, as ``Packer.pack``: its first place begins a chunk."""
        bits, lanes = self.bits, self.bits.lanes
        self.to = to
        end = T.hold(up(count, bits.per_word))
        wide = T.i64(lanes if lanes >= 4 else 1 << 40)
        whole = T.hold(
            T.min(
                T.truncdiv(count, T.i64(bits.places)),
                T.truncdiv(self.row_bytes - T.truncdiv(place, T.i64(bits.per_word)) * 4, wide * 4),
            )
        )
        first = T.hold(T.truncdiv(place, T.i64(bits.per_word)))
        with T.loop(T.i64(self.width // lanes)) as group:
            start = T.hold(group * lanes)
            lines = [T.hold(T.min(line + start + i, last)) for i in range(lanes)]
            rows = [T.hold(base + times(n, self.row) + first * 4) for n in lines]
            scales = [T.hold(times(n, self.scale_row)) for n in lines]
            zero_rows = [T.hold(times(n, self.zero_row)) for n in lines] if self.zero is not None else []
            begin = T.hold(at + start)

            def block_of(
                word: Any, scales: list[Any] = scales, zero_rows: list[Any] = zero_rows
            ) -> tuple[Any, tuple[list[Any], Any]]:
                block = T.hold(T.truncdiv(first + word, T.i64(bits.block)))
                return self._scales(scales, block), self._less(zero_rows, block)

            def put(word: Any, own: Any, parameters: Any, begin: Any = begin, count: Any = None) -> None:
                scale, less = parameters
                values = [T.hold(value * scale) for value in bits.floats(own, *less)]
                self._put(begin, T.hold(word * bits.per_word), values, count)

            if lanes >= 4:
                with T.loop(whole) as c:
                    raws = []
                    for row in rows:
                        read_ahead(self.buffer, row + c * (4 * lanes) + 8 * 4 * lanes)
                        raws.append(T.hold(bits.words(self.buffer[T.run(row + c * (4 * lanes), 4 * lanes)])))
                    parameters = None
                    for i, own in enumerate(transposed(raws)):
                        word = T.hold(c * lanes + i)
                        if i % min(bits.block, lanes) == 0:
                            parameters = block_of(word)
                        put(word, own, parameters)
            with T.loop(T.hold(self._words(count) - whole * lanes)) as i:
                word = T.hold(whole * lanes + i)
                inside = T.hold(T.min(word, end - 1))
                own = [T.hold(tensorir.reinterpret("uint32", self.buffer[T.run(row + inside * 4, 4)])) for row in rows]
                joined = T.hold(T.Shuffle(own, list(range(lanes)))) if lanes > 1 else own[0]
                put(word, T.hold(bits.signless(joined)), block_of(inside), count=count)

    def _words(self, count: Any) -> Any:
        """The words of a line that become so many places of a panel."""
        return up(count, self.bits.per_word)

    def _put(self, begin: Any, place: Any, values: list[Any], count: Any) -> None:
        """Write the elements of words, from a place on; those from ``count`` on, if it is given, are behind the end."""
        for j, value in enumerate(values):
            k = T.hold(place + j)
            with nullcontext() if count is None else T.when(k < count):
                T.store(self.to, T.run(T.hold(begin + k * self.width), self.bits.lanes), value)

    def _scales(self, rows: list[Any], block: Any) -> Any:
        return T.hold(self._floats(self.scale, rows, block))

    def _floats(self, buffer: Any, rows: list[Any], block: Any) -> Any:
        """A block's number of each line, as float32."""
        numbers = [T.hold(buffer[row + block]) for row in rows]
        return T.cast(T.Shuffle(numbers, list(range(len(rows)))) if len(rows) > 1 else numbers[0], "float32")

    def _less(self, rows: list[Any], block: Any) -> tuple[list[Any], Any]:
        """What is subtracted in each step, and zero points that are floats."""
        bits = self.bits
        if bits.zero != "bits":
            return bits.less(None, bits.lanes), T.hold(self._floats(self.zero, rows, block)) if bits.zero else None
        at = T.hold(block * bits.bits)
        byte, shift = T.hold(at >> T.i64(3)), T.hold(T.cast(at & T.i64(7), "uint32"))
        numbers = [T.hold(T.cast(self.zero[row + byte], "uint32")) for row in rows]
        vector = T.Shuffle(numbers, list(range(len(rows)))) if len(rows) > 1 else numbers[0]
        return bits.less((vector >> T.splat(shift, bits.lanes)) & bits.vector((1 << bits.bits) - 1, "uint32"), bits.lanes), None


class BitPairPacker(BitPacker):
    """Writes panels for matrix tiles: elements are sums of two bfloat16 (``TileHalves``), all that floats of up to 16 bits have."""

    def _words(self, count: Any) -> Any:
        return up(count, TileHalves.unit) * (TileHalves.unit // self.bits.per_word)

    def _put(self, begin: Any, place: Any, values: list[Any], count: Any) -> None:
        if count is not None:
            nothing = self.bits.vector(0.0)
            values = [T.hold(T.Select(T.splat(place + j < count, self.bits.lanes), one, nothing)) for j, one in enumerate(values)]
        tile = SIDE * self.width
        for j in range(0, len(values), 2):
            pair = T.hold(T.truncdiv(place, T.i64(2)) + j // 2)
            at = T.hold(begin + T.truncdiv(pair, T.i64(SIDE)) * (2 * tile) + T.truncmod(pair, T.i64(SIDE)) * self.width)
            for part, words in enumerate(TileHalves().woven_pairs(values[j : j + 2])):
                T.store(self.to, T.run(T.hold(at + part * tile), SIDE), words)

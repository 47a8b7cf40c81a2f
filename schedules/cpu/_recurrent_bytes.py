"""Products of a recurrent network's vectors with weights of 8 bits: the vectors become integers, whose digits are bytes.

An element is a multiple of a part of its vector's largest magnitude: an integer of 24 bits, which has three digits of 8. Four
products of bytes are one instruction (AVX-512 VNNI), and their sums are exact. So three instructions compute 64 products, where
floats would take four, and more to make floats of the bytes; and what is lost is no more than what sums of floats lose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmdml.kernels import tensorir
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import multiply_add
from tvmdml.operators._recurrent_reference import LEAST
from tvmdml.schedules.cpu import share
from tvmdml.schedules.cpu._gemm_arithmetic import ByteProducts
from tvmdml.schedules.cpu._gemm_bit_integers import largest_lane
from tvmdml.schedules.cpu._gemm_bits import added
from tvmdml.schedules.cpu._recurrent_products import GatePanels, GateWeights, deep_loop
from tvmdml.schedules.cpu._sums import Sums, zeros

LANES = 16
GROUP = 4
"""Columns whose weights are in a word."""
COLUMNS = 1 << 16
"""With more columns, sums might not fit into 32 bits."""
_HEAD = 16
"""Words before a vector's digits: what an integer of 1 stands for, as the bits of a float, and the sums of digits."""


def words(columns: Any, digits: int) -> Any:
    """The words of a vector."""
    return _HEAD + digits * _plane(columns)


def _plane(columns: Any) -> Any:
    """The words of a digit of all elements."""
    if isinstance(columns, int):
        return -(-columns // LANES) * (LANES // GROUP)
    return T.truncdiv(columns + (LANES - 1), T.i64(LANES)) * (LANES // GROUP)


class Digits:
    """Vectors as integers, in a buffer of words: for each digit, the first one first, bytes in the order of the elements."""

    def __init__(self, count: int, buffer: Any) -> None:
        self.count, self.buffer = count, buffer

    def write(self, to: Any, source: Any, first: Any, columns: Any) -> None:
        """Write a vector of floats. Of one with an element that is not finite, an integer of 1 stands for NaN."""
        vectors, plane = T.hold(T.truncdiv(columns + (LANES - 1), T.i64(LANES))), T.hold(_plane(columns))

        def values(v: Any) -> Any:
            places = T.run(T.cast(v * LANES, "int32"), LANES)
            inside = places < T.splat(T.cast(columns, "int32"), LANES)
            return T.hold(T.Select(inside, source[T.run(first + v * LANES, LANES)], zeros(LANES)))

        peaks = T.Variable(f"float32x{LANES}", zeros(LANES))
        with T.loop(vectors) as v:
            peaks.set(T.maximum(peaks.value, T.absolute(values(v))))
        peak = T.hold(largest_lane(peaks.value))
        limit = 127.0 * 256.0 ** (self.count - 1)
        finite = peak <= T.const(3.4028234663852886e38, "float32")
        step = T.Select(finite, peak * T.const(1 / limit, "float32"), T.const(float("nan"), "float32"))
        T.store(self.buffer, to, tensorir.reinterpret("int32", T.hold(step)))
        large = finite & (peak > T.const(LEAST, "float32"))
        inverse = T.hold(T.Select(large, T.const(limit, "float32") / peak, T.const(0, "float32")))
        totals = [T.Variable(f"int32x{LANES}", zeros(LANES, "int32")) for _ in range(self.count)]
        # 128 more in all digits but the first make each of them a byte without a sign.
        middle = T.splat(T.const(sum(0x80 << 8 * i for i in range(self.count - 1)), "int32"), LANES)
        with T.loop(vectors) as v:
            scaled = T.hold(T.rounded(values(v) * T.splat(inverse, LANES)))
            scaled = T.Select(T.absolute(scaled) <= T.like(scaled, 1.01 * limit), scaled, zeros(LANES))
            whole = T.hold((T.cast(T.round_even(scaled), "int32") + middle) ^ middle)
            for i, total in enumerate(totals):
                shift = 8 * (self.count - 1 - i)
                digit = T.hold(T.cast(whole >> T.like(whole, shift) if shift else whole, "int8"))
                at = T.hold(to + (_HEAD + i * plane) + v * (LANES // GROUP))
                T.store(self.buffer, T.run(at, LANES // GROUP), tensorir.reinterpret(f"int32x{LANES // GROUP}", digit))
                total.set(total.value + T.cast(digit, "int32"))
        for i, total in enumerate(totals):
            T.store(self.buffer, to + (1 + i), added(total.value))


class BytePanels(GatePanels):  # type: ignore[misc] # mypy knows these modules by another name
    """Packed weights of 8 bits, without signs: in a block and a group of columns, each unit of each gate has a word."""

    KIND = "uint8"

    @staticmethod
    def padded_columns(columns: Any) -> Any:
        """Whole groups."""
        if isinstance(columns, int):
            return -(-columns // GROUP) * GROUP
        return T.truncdiv(columns + (GROUP - 1), T.i64(GROUP)) * GROUP

    def of(self, digits: Digits, memory: Any, weights: int) -> BytePanels:
        """These, with the vectors that they multiply, and where their scales are."""
        self.digits, self.memory, self.weights = digits, memory, weights
        return self

    def place(self, direction: Any, block: Any) -> Any:
        """Where a block begins, and its first unit."""
        return self._begin(direction, block), T.hold(block * self.product.units)

    def fill(self, part: Any, parts: Any, directions: Any, tensor: GateWeights) -> None:
        """A part of the packed weights from a tensor."""
        width, steps, source = self.product.width, tensor.steps, tensor.buffer
        begin, end = share(part, parts, T.hold(directions * self.blocks))
        with T.loop(T.hold(end - begin)) as i:
            direction, block = map(T.hold, T.unravel(begin + i, [None, self.blocks]))
            to = self._begin(direction, block)
            groups = T.hold(T.truncdiv(self.padded_columns(self.columns), T.i64(GROUP)))
            with T.loop(T.i64(width)) as line, T.loop(groups) as group:
                number, inside = map(T.hold, T.unravel(line, [None, T.i64(self.product.units)]))
                unit = T.hold(block * self.product.units + inside)
                own = self.hidden * self._gate(number) + T.min(unit, self.hidden - 1)
                row = T.hold(direction * steps[1] + own * steps[2])
                for place in range(GROUP):
                    column = T.hold(group * GROUP + place)
                    raw = T.hold(source[row + T.min(column, self.columns - 1) * steps[3]])
                    byte = T.reinterpret(raw, "uint8") ^ T.const(0x80 if source.dtype == "int8" else 0, "uint8")
                    given = (unit < self.hidden) & (column < self.columns)
                    value = T.Select(given, byte, T.const(0, "uint8"))
                    T.store(self.buffer, T.hold(to + (group * width + line) * GROUP + place), value)

    def sums(self, place: Any, source: Any, rows: Sequence[Any], start: Callable[[int, int, int], Any]) -> list[list[list[Any]]]:
        """As those of ``GatePanels``; ``rows`` are places of vectors among the digits."""
        product, words, count = self.product, self.digits.buffer, self.digits.count
        (begin, unit), bytes_of_vector = place, GROUP * LANES
        every = [(g, v) for g in range(len(product.gates)) for v in range(product.vectors)]

        def parameter(read: Any, i: int) -> Any:
            g, v = every[i]
            return read(self.weights, product.gates[g], unit + v * LANES, LANES)

        less = [T.hold(T.cast(parameter(self.memory.zero_point, i), "int32")) for i in range(len(every))]

        def start_of(number: int, i: int) -> Any:
            row, digit = divmod(number, count)
            return zeros(LANES, "int32") - less[i] * T.splat(T.hold(words[rows[row] + (1 + digit)]), LANES)

        totals = Sums(len(rows) * count, len(every), start_of, lambda a, b, total: T.hold(ByteProducts._products(b, a, total)))
        plane = T.hold(_plane(self.columns))
        firsts = [T.hold(row + (_HEAD + i * plane)) for row in rows for i in range(count)]
        with deep_loop(T.hold(T.truncdiv(self.columns + (GROUP - 1), T.i64(GROUP)))) as group:
            at = T.hold(begin + group * (GROUP * product.width))
            raws = [self.buffer[T.run(at + i * bytes_of_vector, bytes_of_vector)] for i in range(len(every))]
            weights = [T.hold(tensorir.reinterpret(f"int32x{LANES}", raw)) for raw in raws]
            totals.add(lambda number: words[firsts[number] + group], weights)
        scales = [parameter(self.memory.scale, i) for i in range(len(every))]
        found: list[list[list[Any]]] = []
        for r, row in enumerate(rows):
            step = T.splat(T.hold(tensorir.reinterpret("float32", words[row])), LANES)
            found.append([[] for _ in product.gates])
            for i, (g, v) in enumerate(every):
                value = T.cast(totals.get(r * count, i), "float32")
                for digit in range(1, count):
                    more = T.cast(totals.get(r * count + digit, i), "float32")
                    value = multiply_add(value, T.splat(T.const(256.0, "float32"), LANES), more)
                found[r][g].append(T.hold(multiply_add(T.rounded(value * step), scales[i], start(r, g, v))))
        return found

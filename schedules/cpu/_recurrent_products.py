"""Products of vectors with the rows of a recurrent network's weights: packed weights, and tiles of sums in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.schedules.cpu import share
from tvmdml.schedules.cpu._tiles import SIDE, transposed


class Product(NamedTuple):
    """How the weights of some gates lie in memory: by blocks of units, then by columns, then by gates, then by units."""

    gates: tuple[int, ...]
    lanes: int
    vectors: int
    """Vectors of each gate in a block."""
    rows: int
    """The most vectors that are multiplied together."""

    @property
    def units(self) -> int:
        """The units of a block."""
        return self.lanes * self.vectors

    @property
    def width(self) -> int:
        """The weights of a block and a column."""
        return len(self.gates) * self.units

    def blocks(self, hidden: int) -> int:
        """The blocks of so many units."""
        return -(-hidden // self.units)

    def size(self, hidden: int, columns: int) -> int:
        """The weights of a direction."""
        return self.blocks(hidden) * columns * self.width

    @classmethod
    def fitting(cls, gates: tuple[int, ...], lanes: int, registers: int, rows: int, hidden: int) -> Product:
        """As many rows and vectors as there are registers for."""
        own, usual = len(gates), registers * 3 // 4
        vectors = max(1, 4 // own)
        most = min(rows, max(1, usual // (own * vectors)))
        while vectors < 4 and own * vectors * 2 * most <= max(usual * 2 // 3, 4) and lanes * vectors < hidden:
            vectors *= 2
        while vectors > 1 and lanes * vectors // 2 >= hidden:
            vectors //= 2
        return cls(gates, lanes, vectors, most)


class Panels:
    """Packed weights of all directions, and how they are filled and used."""

    def __init__(self, product: Product, buffer: Any, kind: str, columns: Any, hidden: Any, gates: int) -> None:
        self.product, self.buffer, self.kind = product, buffer, kind
        self.columns, self.hidden, self.gates = columns, hidden, gates
        self.blocks = T.let(T.truncdiv(hidden + (product.units - 1), T.i64(product.units)))
        self.padded = T.let(self.blocks * product.units)
        self.whole = T.let(self.blocks * columns * product.width)

    def place(self, direction: Any, block: Any) -> Any:
        """Where a block begins."""
        return T.let(direction * self.whole + block * (self.columns * self.product.width))

    # -- Filling

    def fill(self, part: Any, parts: Any, directions: Any, source: Any, steps: Sequence[Any], unit: bool) -> None:
        """A part of the packed weights from a tensor; ``unit`` if neighbours of a row are neighbours in memory."""
        stripes = T.let(T.truncdiv(self.padded + (SIDE - 1), T.i64(SIDE)))
        begin, end = share(part, parts, T.let(directions * stripes))
        with T.loop(T.let(end - begin)) as i:
            direction = T.hold(T.truncdiv(begin + i, stripes))
            stripe = T.let(begin + i - direction * stripes)
            for number, gate in enumerate(self.product.gates):
                base = T.let(direction * steps[1] + (self.hidden * gate + stripe * SIDE) * steps[2])
                self._stripe(direction, T.let(stripe * SIDE), number, source, base, steps, unit)

    def _stripe(self, direction: Any, first: Any, number: int, source: Any, base: Any, steps: Sequence[Any], unit: bool) -> None:
        """The weights of ``SIDE`` units of a gate, from the unit ``first`` on."""
        whole = T.let(T.truncdiv(self.columns, T.i64(SIDE)) if unit else T.i64(0))
        whole = T.hold(T.Select(first + SIDE <= self.hidden, whole, T.i64(0)))
        pieces = SIDE // self.product.lanes
        if unit:
            places = [self._piece(direction, first + p * self.product.lanes, number) for p in range(pieces)]
            with T.loop(whole) as tile:
                column = T.let(tile * SIDE)
                rows = [T.hold(T.wide(source[T.run(base + r * steps[2] + column, SIDE)])) for r in range(SIDE)]
                for c, vector in enumerate(transposed(rows)):
                    for p, place in enumerate(places):
                        lanes = [*range(p * self.product.lanes, (p + 1) * self.product.lanes)]
                        value = vector if pieces == 1 else T.Shuffle([vector], lanes)
                        to = T.let(place + (column + c) * self.product.width)
                        if pieces == 1:
                            T.store(self.buffer, T.run(to, self.product.lanes), value)
                        else:
                            with T.when(first + (p + 1) * self.product.lanes <= self.padded):
                                T.store(self.buffer, T.run(to, self.product.lanes), value)
        rest = T.let(whole * SIDE)
        with T.loop(T.let(T.min(self.padded - first, T.i64(SIDE)))) as r:
            place = self._piece(direction, T.let(first + r), number)
            inside = first + r < self.hidden
            with T.loop(T.let(self.columns - rest)) as c:
                to = T.let(place + (rest + c) * self.product.width)
                T.either(
                    inside,
                    lambda c=c, to=to, r=r: T.store(
                        self.buffer, to, T.wide(source[base + r * steps[2] + (rest + c) * steps[3]])
                    ),
                    lambda to=to: T.store(self.buffer, to, T.const(0.0, self.kind)),
                )

    def _piece(self, direction: Any, unit: Any, number: int) -> Any:
        """Where the weights of a unit, or of a vector of them, begin."""
        block = T.hold(T.truncdiv(unit, T.i64(self.product.units)))
        inside = T.let(unit - block * self.product.units)
        return T.let(self.place(direction, block) + number * self.product.units + inside)

    # -- Use

    def sums(
        self, place: Any, source: Any, rows: Sequence[Any], start: Callable[[int, int, int], Any]
    ) -> list[list[list[Any]]]:
        """For each row, gate and vector of a block the sums of products.

        Args:
            place: where the block begins.
            source: the buffer of the vectors.
            rows: where each of them begins.
            start: what is added to: called with the row, the gate and the vector by their numbers.
        """
        product = self.product
        kind = f"{self.kind}x{product.lanes}"
        every = [(g, v) for g in range(len(product.gates)) for v in range(product.vectors)]
        totals = [[T.Variable(kind, start(r, g, v)) for g, v in every] for r in range(len(rows))]
        with T.loop(self.columns) as column:
            at = T.let(place + column * product.width)
            weights = [T.let(self.buffer[T.run(at + i * product.lanes, product.lanes)]) for i in range(len(every))]
            for row, own in zip(rows, totals, strict=True):
                x = T.let(T.splat(source[row + column], product.lanes))
                for total, weight in zip(own, weights, strict=True):
                    total.set(total.value + x * weight)
        split = product.vectors
        return [[[one.value for one in own[g * split : (g + 1) * split]] for g in range(len(product.gates))] for own in totals]

"""Products of vectors with the rows of a recurrent network's weights: packed weights, and tiles of sums in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel, Owned
from tvmdml.schedules.cpu import per_task, share, split
from tvmdml.schedules.cpu._sums import Sums
from tvmdml.schedules.cpu._tiles import SIDE, transposed

if TYPE_CHECKING:
    from tvmdml.targets import Target

_TASK_ELEMENTS = 1 << 16
"""The least elements that a task packs."""
_TURN = 64
"""How many turns the inner loop of a ``deep_loop`` has."""


@contextmanager
def deep_loop(count: Any) -> Iterator[Any]:
    """A loop over ``count``, as two loops inside each other.

    LLVM takes the innermost loops for the busiest. If the loop over a step's units were as deep as that of its products, the
    constants of the units' functions would fill the registers in both, and the products' sums would be in memory.
    """
    with T.loop(T.hold(T.truncdiv(count + (_TURN - 1), T.i64(_TURN)))) as turn:
        first = T.hold(turn * _TURN)
        with T.loop(T.hold(T.min(count - first, T.i64(_TURN)))) as i:
            yield T.hold(first + i)


class GateProduct(NamedTuple):
    """How the weights of some gates lie in memory: by blocks of units, then by columns, then by gates, then by units."""

    gates: tuple[int, ...]
    lanes: int
    vectors: int
    """Vectors of each gate in a block."""
    rows: int
    """The most vectors that are multiplied together."""
    packed: bool = True
    """Whether weights are packed; otherwise they are read where they are, which is better for a few vectors."""

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
        """The packed weights of a direction."""
        return self.blocks(hidden) * columns * self.width if self.packed else 0

    @classmethod
    def fitting(cls, gates: tuple[int, ...], lanes: int, registers: int, rows: int, hidden: int, sums: int = 1) -> GateProduct:
        """As many rows and vectors as there are registers for; ``sums`` is how many vectors of sums each vector of a gate has."""
        own, usual = len(gates) * sums, registers * 3 // 4
        vectors = max(1, 4 // len(gates))
        most = min(rows, max(1, usual // (own * vectors)))
        while vectors < 4 and own * vectors * 2 * most <= max(usual * 2 // 3, 4) and lanes * vectors < hidden:
            vectors *= 2
        while vectors > 1 and lanes * vectors // 2 >= hidden:
            vectors //= 2
        return cls(gates, lanes, vectors, most)


class GateWeights(NamedTuple):
    """A tensor of weights."""

    buffer: Any
    steps: Sequence[Any]
    """Its strides; the last is a Python integer, 1, if neighbours in a row are neighbours in memory."""


class GatePanels:
    """Packed weights of all directions, and how they are filled and used."""

    KIND: ClassVar[str] = ""
    """The type of elements, if that is not the one of sums."""

    def __init__(self, product: GateProduct, buffer: Any, kind: str, columns: Any, hidden: Any, base: Any = 0) -> None:
        self.product, self.buffer, self.kind = product, buffer, kind
        self.columns, self.hidden, self.base = columns, hidden, base
        self.blocks = T.hold(T.truncdiv(hidden + (product.units - 1), T.i64(product.units)))
        self.padded = T.hold(self.blocks * product.units)
        self.whole = T.hold(self.blocks * self.padded_columns(columns) * product.width)

    def place(self, direction: Any, block: Any) -> Any:
        """Where a block begins."""
        return self._begin(direction, block)

    def _begin(self, direction: Any, block: Any) -> Any:
        return T.hold(self.base + direction * self.whole + block * (self.padded_columns(self.columns) * self.product.width))

    @staticmethod
    def padded_columns(columns: Any) -> Any:
        """The columns that a block has, with those that fill up the last group."""
        return columns

    # -- Filling

    def fill(self, part: Any, parts: Any, directions: Any, tensor: GateWeights) -> None:
        """A part of the packed weights from a tensor."""
        begin, end = share(part, parts, T.hold(directions * self._stripes() * len(self.product.gates)))
        self._fill(begin, T.hold(end - begin), tensor)

    def fill_block(self, direction: Any, block: Any, tensor: GateWeights) -> None:
        """A block of a direction; its units are a multiple of ``SIDE``."""
        count = self.product.units // SIDE * len(self.product.gates)
        first = T.hold((direction * self._stripes() * len(self.product.gates)) + block * count)
        self._fill(first, T.i64(count), tensor)

    def _stripes(self) -> Any:
        return T.truncdiv(self.padded + (SIDE - 1), T.i64(SIDE))

    def _fill(self, begin: Any, count: Any, tensor: GateWeights) -> None:
        """Stripes of ``SIDE`` units of a gate: numbers count directions, then stripes, then gates."""
        stripes, gates, steps = T.hold(self._stripes()), len(self.product.gates), tensor.steps
        with T.loop(count) as i:
            direction, stripe, number = map(T.hold, T.unravel(begin + i, [None, stripes, gates]))
            first = T.hold(stripe * SIDE)
            base = T.hold(direction * steps[1] + (self.hidden * self._gate(number) + first) * steps[2])
            done = T.i64(0)
            if isinstance(steps[3], int):
                done = self._squares(direction, first, number, tensor.buffer, base, steps)
            self._singly(direction, first, number, tensor.buffer, base, steps, done)

    def _gate(self, number: Any) -> Any:
        """The gate by its number among the product's."""
        found = T.i64(self.product.gates[0])
        for i, gate in enumerate(self.product.gates[1:], 1):
            found = T.Select(number >= T.i64(i), T.i64(gate), found)
        return T.hold(found)

    def _squares(self, direction: Any, first: Any, number: Any, source: Any, base: Any, steps: Sequence[Any]) -> Any:
        """Whole squares of the weights of ``SIDE`` units; returns the number of columns that are done."""
        lanes = self.product.lanes
        whole = T.hold(T.Select(first + SIDE <= self.hidden, T.truncdiv(self.columns, T.i64(SIDE)), T.i64(0)))
        places = [T.hold(self._piece(direction, first + p * lanes, number)) for p in range(SIDE // lanes)]
        with T.loop(whole) as tile:
            column = T.hold(tile * SIDE)
            from_ = T.hold(base + column)
            rows = [T.hold(T.wide(source[T.run(from_ + r * steps[2], SIDE)])) for r in range(SIDE)]
            for c, vector in enumerate(transposed(rows)):
                for p, place in enumerate(places):
                    part = [*range(p * lanes, (p + 1) * lanes)]
                    value = vector if len(places) == 1 else T.Shuffle([vector], part)
                    T.store(self.buffer, T.run(place + (column + c) * self.product.width, lanes), value)
        return T.hold(whole * SIDE)

    def _singly(self, direction: Any, first: Any, number: Any, source: Any, base: Any, steps: Sequence[Any], done: Any) -> None:
        """The rest of the weights of ``SIDE`` units, and zeros for units that only fill up the last block."""
        with T.loop(T.hold(T.min(self.padded - first, T.i64(SIDE)))) as r:
            place = T.hold(self._piece(direction, first + r, number) + done * self.product.width)
            row = T.hold(base + r * steps[2] + done * steps[3])
            count = T.hold(self.columns - done)

            def copied(place: Any = place, row: Any = row, count: Any = count) -> None:
                with T.loop(count) as c:
                    T.store(self.buffer, place + c * self.product.width, T.wide(source[row + c * steps[3]]))

            def cleared(place: Any = place, count: Any = count) -> None:
                with T.loop(count) as c:
                    T.store(self.buffer, place + c * self.product.width, T.const(0.0, self.kind))

            T.either(first + r < self.hidden, copied, cleared)

    def _piece(self, direction: Any, unit: Any, number: int) -> Any:
        """Where the weights of a unit, or of a vector of them, begin."""
        block = T.hold(T.truncdiv(unit, T.i64(self.product.units)))
        inside = T.hold(unit - block * self.product.units)
        return T.hold(self._begin(direction, block) + number * self.product.units + inside)

    # -- Use

    def sums(self, place: Any, source: Any, rows: Sequence[Any], start: Callable[[int, int, int], Any]) -> list[list[list[Any]]]:
        """For each row, gate and vector of a block the sums of products.

        Args:
            place: where the block begins.
            source: the buffer of the vectors.
            rows: where each of them begins.
            start: what is added to: called with the row, the gate and the vector by their numbers.
        """
        product = self.product
        every = [(g, v) for g in range(len(product.gates)) for v in range(product.vectors)]
        totals = Sums(len(rows), len(every), lambda r, i: start(r, *every[i]), lambda a, b, total: total + a * b)
        with deep_loop(self.columns) as column:
            at = T.hold(place + column * product.width)
            weights = [T.hold(self.buffer[T.run(at + i * product.lanes, product.lanes)]) for i in range(len(every))]
            totals.add(lambda r: source[rows[r] + column], weights)
        split, gates = product.vectors, range(len(product.gates))
        return [[[totals.get(r, g * split + v) for v in range(split)] for g in gates] for r in range(len(rows))]


class Unpacked:
    """Weights that are read where they are: rows of them with the columns of a vector, whose lanes are added at the end.

    Units and columns are multiples of the lanes.
    """

    def __init__(self, product: GateProduct, weights: GateWeights, kind: str, columns: Any, hidden: Any) -> None:
        self.product, self.weights, self.kind, self.columns, self.hidden = product, weights, kind, columns, hidden
        self.blocks = T.hold(T.truncdiv(hidden, T.i64(product.units)))

    def fill(self, part: Any, parts: Any, directions: Any, tensor: GateWeights) -> None:
        """Nothing is packed."""

    def fill_block(self, direction: Any, block: Any, tensor: GateWeights) -> None:
        """Nothing is packed."""

    def place(self, direction: Any, block: Any) -> Any:
        """Where the first unit's weights of the first gate begin."""
        steps = self.weights.steps
        return T.hold(direction * steps[1] + block * self.product.units * steps[2])

    def sums(self, place: Any, source: Any, rows: Sequence[Any], start: Callable[[int, int, int], Any]) -> list[list[list[Any]]]:
        """As those of ``GatePanels``."""
        lanes, step = self.product.lanes, self.weights.steps[2]
        found: list[list[list[Any]]] = []
        for r, row in enumerate(rows):
            found.append([])
            for g, gate in enumerate(self.product.gates):
                places = [T.hold(place + (self.hidden * gate + v * lanes) * step) for v in range(self.product.vectors)]
                found[r].append([self._sum(at, source, row, start(r, g, v)) for v, at in enumerate(places)])
        return found

    def _sum(self, first: Any, source: Any, row: Any, start: Any) -> Any:
        """The products of a vector with the weights of some units, from the offset ``first`` on."""
        lanes, step = self.product.lanes, self.weights.steps[2]
        kind = f"{self.kind}x{lanes}"
        totals = [T.Variable(kind, T.splat(T.const(0.0, self.kind), lanes)) for _ in range(lanes)]
        with T.loop(T.hold(T.truncdiv(self.columns, T.i64(lanes)))) as part:
            column = T.hold(part * lanes)
            x = T.hold(source[T.run(T.hold(row + column), lanes)])
            at = T.hold(first + column)
            for unit, total in enumerate(totals):
                total.set(total.value + x * T.wide(self.weights.buffer[T.run(at + step * unit, lanes)]))
        return T.hold(start + _across([one.value for one in totals]))


def _across(vectors: list[Any]) -> Any:
    """A vector of the sums of vectors' lanes; there are as many vectors as lanes."""
    lanes = len(vectors)
    size = lanes
    while size > 1:
        half = size // 2
        begins = range(0, 2 * lanes, size)
        low, high = ([begin + shift + i for begin in begins for i in range(half)] for shift in (0, half))
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [T.hold(T.Shuffle([a, b], low) + T.Shuffle([a, b], high)) for a, b in pairs]
        size = half
    return vectors[0]


class WeightPacking:
    """How weights that never change are packed, once: the panels of one product after the other."""

    def __init__(
        self, desc: Any, name: str, products: Sequence[GateProduct], columns: int, panels: type[GatePanels] = GatePanels
    ) -> None:
        self.desc, self.name, self.products, self.columns, self.panels = desc, name, products, columns, panels

    def bases(self) -> list[int]:
        """Where each product's panels begin, and the end of all."""
        found = [0]
        for one in self.products:
            found.append(found[-1] + self.desc.directions * one.size(self.desc.hidden, self.panels.padded_columns(self.columns)))
        return found

    def owned(self, module: str, target: Target) -> Owned:
        """The packed input."""
        desc, tensor = self.desc, getattr(self.desc, self.name)
        room = self.bases()[-1]
        tasks = split(room, target, _TASK_ELEMENTS)
        dtype = self.panels.KIND or desc.computed
        kinds = f"{tensor.data_type.tvm} {dtype}"
        products = "; ".join(f"{one.gates} {one.lanes} {one.vectors}" for one in self.products)
        layout = f"gates {kinds} {products} of {desc.directions} {desc.hidden} {self.columns} from {tensor.layout}"
        parameters = (("types", kinds), ("products", products), ("row", tensor.layout[3] == 1))
        scalars = (tasks, desc.directions, desc.hidden, self.columns, *self.bases()[:-1], *tensor.layout)
        packer = Kernel(module, "gates", parameters, self.function, scalars)
        return Owned(self.name, dtype, max(1, room), layout, (self.name,), packer)

    def function(self) -> T.PrimFunc:
        """The TensorIR of the packer."""
        tensor, kind = getattr(self.desc, self.name), self.panels.KIND or self.desc.computed
        with T.function() as f:
            source, to = f.buffer("source", tensor.data_type.tvm), f.buffer("packed", kind)
            count, directions, hidden, columns = (f.scalar(name) for name in ("tasks", "directions", "hidden", "columns"))
            bases = f.scalars("base", len(self.products))
            steps = f.scalars("step", 4)
            weights = GateWeights(source, [*steps[:3], 1] if tensor.layout[3] == 1 else steps)
            panels = [self.panels(one, to, kind, columns, hidden, base) for one, base in zip(self.products, bases, strict=True)]

            def task(which: Any) -> None:
                for one in panels:
                    one.fill(which, count, directions, weights)

            per_task(count, task)
        return f.result()

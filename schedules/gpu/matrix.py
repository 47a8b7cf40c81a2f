"""Sums of products on a GPU: each group of threads computes a tile of a result, and each thread a block of it, in registers.

The factors' parts that a tile needs are brought to shared memory, some products of each sum at a time: while a group computes with
them, its threads load what comes next. Edges are predicates of the same kernel: a coordinate past the end reads the last one, and
products past the last one are 0. Factors may be anywhere that a ``Contraction`` says, so that a convolution is a product of its
filter and of an image that is never copied.

Sums have the family's order (``kernels/contraction.py``), whatever the tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC, Contraction, Operand, factor, multiply_add
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.movement import Linear, both, coordinate
from tvmdml.operators._contract import Shared
from tvmdml.operators._matrix import Matrix
from tvmdml.schedules.gpu import Numbers, _default, checked, enough_groups, refuse, require, strided
from tvmdml.schedules.gpu._words import load
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


class Tile(NamedTuple):
    """The rows and columns of a group's part of a result, and of a thread's."""

    rows: int
    columns: int
    own_rows: int
    own_columns: int

    @property
    def threads(self) -> int:
        """The threads of a group."""
        return (self.rows // self.own_rows) * (self.columns // self.own_columns)

    def groups(self, rows: int, columns: int) -> int:
        """How many tiles a result has."""
        return -(-rows // self.rows) * -(-columns // self.columns)

    def __str__(self) -> str:
        """Its name, as a knob's value."""
        return f"{self.rows}x{self.columns}"


TILES = {
    str(tile): tile
    for tile in (
        Tile(128, 128, 8, 8),
        Tile(128, 64, 8, 4),
        Tile(64, 128, 4, 8),
        Tile(64, 64, 4, 4),
        Tile(32, 64, 4, 4),
        Tile(64, 32, 4, 4),
        Tile(32, 32, 4, 4),
        Tile(16, 64, 2, 4),
        Tile(64, 16, 4, 2),
        Tile(16, 16, 2, 2),
    )
}
"""From large to small: a large one reads each factor less often, and small ones are many."""

KNOBS = Knobs(
    "matrix",
    enough_groups(1024),
    tile=Knob("auto", ("auto", *TILES), "rows and columns of a group's part of a result; auto chooses by how many parts there are"),
    depth=Knob(16, (8, 16, 32), "products of each sum that are in shared memory at once"),
    most_groups=Knob(1 << 20, tuple(1 << n for n in range(21)), "maximum groups per launch; each strides over the rest"),
)

_BAND = 8
"""Groups that run at the same time have tiles of so many rows of tiles: they read the same parts of the second factor."""
_PAD = 4
"""Elements after each row in shared memory: rows begin in other banks, and stay aligned for vectors."""
_BUSY = 128
"""Groups that keep a large device busy with large tiles."""


def kernel(desc: Matrix, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """One launch; operators that need whole rows run their computation."""
    if desc.of_rows() is not None or 0 in (contraction := desc.contraction().simplified()).sizes:
        plain: Kernel = _default.kernel(desc, target, shared)
        return plain
    batch, rows, columns, depth = (math.prod(sizes) for sizes in contraction.groups)
    width = 8 if contraction.computed == "float64" else 4
    tile, step = _chosen(knobs, target, batch, rows, columns, depth, width)
    total = batch * tile.groups(rows, columns)
    groups = max(1, min(total, target.max_groups, knobs.most_groups))
    deep = contraction.computed != "int32" and depth > KC
    rounds = -(-total // groups) * (-(-depth // step) * (step + 1) + tile.own_rows * tile.own_columns + 1)
    if target.max_rounds is not None and rounds > target.max_rounds:
        given = f"{rounds} rounds of loops in a thread on {target.name}"
        refuse(desc.where("loops"), given, f"up to {target.max_rounds}, after which the device's driver leaves loops")
    given_numbers = contraction.numbers()
    known = tuple(number if number in (0, 1) else -1 for number in given_numbers)
    numbers = Numbers(
        max(contraction.span, total + groups, (rows + tile.rows) * 2, (columns + tile.columns) * 2, depth + step),
        groups=groups,
        total=total,
        tiles=(-(-rows // tile.rows), -(-columns // tile.columns)),
        steps=-(-depth // step),
        each=tuple(number for number, one in zip(given_numbers, known, strict=True) if one < 0),
    )
    require(
        desc, target, numbers, *(tensor.data_type.tvm for _, tensor in desc.tensors() if tensor is not None), contraction.computed
    )
    writer = _Writer(desc, contraction, numbers, tile=tile, step=step, deep=deep, single=groups == total, known=known)
    module, *also = desc.modules()
    built = Kernel(module, "tiles", writer.parameters, writer.function, numbers.scalars, also=tuple(also))
    found: Kernel = checked(desc, target, built)
    return found


def _chosen(knobs: Any, target: DeviceTarget, batch: int, rows: int, columns: int, depth: int, width: int) -> tuple[Tile, int]:
    """A tile, and how many products of each sum are in shared memory at once."""

    def step_of(tile: Tile) -> int:
        step = min(knobs.depth if width == 4 else 8, max(8, 1 << (depth - 1).bit_length()))
        while step > 8 and step * (tile.rows + tile.columns + 2 * _PAD) * width > min(target.max_shared_bytes, 32 << 10):
            step //= 2
        return int(step)

    def fits(tile: Tile) -> bool:
        step = step_of(tile)
        slab = tile.rows // tile.own_rows * tile.columns
        shared = (step * (tile.rows + _PAD) + max(step * (tile.columns + _PAD), slab)) * width
        # An element of 64 bits has two registers: 8 x 8 of them would not fit.
        registers = tile.own_rows * tile.own_columns * width // 4
        return tile.threads <= target.max_threads and shared <= target.max_shared_bytes and registers <= 64

    tiles = [tile for tile in TILES.values() if fits(tile)]
    wanted = TILES.get(knobs.tile)
    if wanted is not None and wanted in tiles:
        return wanted, step_of(wanted)

    def wasted(tile: Tile) -> bool:
        return (tile.rows >= 2 * rows and tile.rows > 16) or (tile.columns >= 2 * columns and tile.columns > 16)

    fitting = [tile for tile in tiles if not wasted(tile)] or tiles[-1:]
    chosen = next((tile for tile in fitting if batch * tile.groups(rows, columns) >= _BUSY), fitting[-1])
    return chosen, step_of(chosen)


class _Side:
    """A factor: how its part of a tile is brought to shared memory."""

    def __init__(self, operand: Operand, zero: Operand | None, group: int, tile: int) -> None:
        self.operand, self.zero, self.group, self.tile = operand, zero, group, tile


class _Writer:
    """Writes the kernel."""

    tile: Tile
    step: int
    deep: bool
    single: bool
    known: tuple[int, ...]

    def __init__(self, desc: Matrix, contraction: Contraction, numbers: Numbers, **choices: Any) -> None:
        self.desc, self.form, self.numbers, self.dtype = desc, contraction, numbers, numbers.dtype
        self.__dict__.update(choices)
        self.computed = contraction.computed
        named = {name: str(value) if isinstance(value, Tile) else value for name, value in choices.items()}
        self.parameters = (*desc.formula_key(), ("contraction", contraction.form()), *named.items(), *numbers.parameters)
        # Neighbouring threads read along the coordinates in which neighbours in memory lie.
        ranks = [len(sizes) for sizes in contraction.groups]
        ends = [sum(ranks[: i + 1]) - 1 for i in range(4)]
        self.inner_first = tuple(
            self._closest(operand, ends[3], ends[own]) for operand, own in ((contraction.a, 1), (contraction.b, 2))
        )
        self.parameters += (("inner first", self.inner_first),)

    @staticmethod
    def _closest(operand: Operand, inner: int, own: int) -> int:
        def reach(coordinate: int) -> int:
            steps = [operand.place.steps[coordinate], *(rule.step * rule.at.steps[coordinate] for rule in operand.rules)]
            return abs(sum(steps)) or 1 << 62

        return int(reach(inner) <= reach(own))

    # -- Coordinates

    def _number(self, value: int) -> Any:
        return T.const(value, self.dtype)

    def _unraveled(self, index: Any, sizes: Sequence[Any]) -> list[Any]:
        if len(sizes) == 1:
            return [index]
        found: list[Any] = T.unravel(index, [self._number(one) if isinstance(one, int) else one for one in sizes])
        return found

    def _part(self, linear: Linear, group: int, at: Sequence[Any]) -> Any:
        """What a group of coordinates contributes to a linear integer; ``None`` for nothing."""
        total: Any = None
        for position, one in enumerate(at, self.starts[group]):
            step = linear.steps[position]
            if isinstance(step, int) and step == 0:
                continue
            own = one if isinstance(step, int) and step == 1 else one * (self._number(step) if isinstance(step, int) else step)
            total = own if total is None else total + own
        return total

    def _sum(self, *parts: Any) -> Any:
        """The sum of what is present."""
        total: Any = None
        for part in parts:
            if part is None or (isinstance(part, int) and part == 0):
                continue
            part = self._number(part) if isinstance(part, int) else part
            total = part if total is None else total + part
        return self._number(0) if total is None else total

    # -- The kernel

    def function(self) -> PrimFunc:
        with T.on_device(), T.counting(self.dtype), T.function() as f:
            self.buffers = f.tensors(self.desc)
            n = self.numbers.declare(f)
            waiting = iter(n.each)
            self.c = self.form.expressions([next(waiting) if one < 0 else one for one in self.known])
            ranks = [len(sizes) for sizes in self.c.groups]
            self.starts = [sum(ranks[:i]) for i in range(4)]
            self.sizes = [self._product(sizes) for sizes in self.c.groups]
            tile, pitches = self.tile, (self.tile.rows + _PAD, self.tile.columns + _PAD)
            self.sides = (
                _Side(self.c.a, self.c.a_zero, 1, tile.rows),
                _Side(self.c.b, self.c.b_zero, 2, tile.columns),
            )
            with T.launch(n.groups, tile.threads) as (group, thread):
                self.thread = thread
                slab = tile.rows // tile.own_rows * tile.columns
                self.shared = [
                    T.shared(self.computed, size) for size in (self.step * pitches[0], max(self.step * pitches[1], slab))
                ]
                self.pitches = pitches
                self.held = [T.local(self.computed, self._slots(side)) for side in self.sides]
                count = tile.own_rows * tile.own_columns
                self.own = T.local(self.computed, count)
                self.total = T.local(self.computed, count) if self.deep else None
                with self._tiles(group, n) as (batch, above, left):
                    self._tile(n, self._unraveled(batch, self.c.batch), above, left)
        return f.result()

    def _product(self, sizes: Sequence[Any]) -> Any:
        total: Any = self._number(1)
        for size in sizes:
            total = total * (self._number(size) if isinstance(size, int) else size)
        return T.let(total)

    @contextmanager
    def _tiles(self, group: Any, n: SimpleNamespace) -> Iterator[tuple[Any, Any, Any]]:
        """The batch, and the first row and column, of each tile of the group."""
        if self.single:
            yield self._position(T.let(T.cast(group, self.dtype)), n)
            return
        with strided(T.cast(group, self.dtype), n.total, n.groups) as number:
            yield self._position(number, n)
            T.barrier()

    def _position(self, number: Any, n: SimpleNamespace) -> tuple[Any, Any, Any]:
        down, across = n.tiles
        whole = T.let(down * across)
        batch = T.let(T.truncdiv(number, whole))
        rest = T.let(number - batch * whole)
        band = T.let(T.truncdiv(rest, across * _BAND))
        first = T.let(band * _BAND)
        rows = T.let(T.min(down - first, self._number(_BAND)))
        within = T.let(rest - first * across)
        column = T.let(T.truncdiv(within, rows))
        row = T.let(first + (within - column * rows))
        return batch, T.let(row * self.tile.rows), T.let(column * self.tile.columns)

    def _tile(self, n: SimpleNamespace, batch: Sequence[Any], above: Any, left: Any) -> None:
        self.batch = batch
        zero = T.const(0, self.computed)
        count = self.tile.own_rows * self.tile.own_columns
        for i in range(count):
            T.store(self.own, i, zero)
            if self.total is not None:
                T.store(self.total, i, zero)
        outer = [self._outer(side, first) for side, first in zip(self.sides, (above, left), strict=True)]
        self._load(outer, self._number(0))
        with T.loop(n.steps) as step:
            for which in (0, 1):
                self._keep(which)
            T.barrier()
            self._load(outer, T.let((step + 1) * self.step))
            self._multiply()
            if self.total is not None:
                last = self._number(KC // self.step - 1)
                with T.when(T.expression((step & last) == last)):
                    for i in range(count):
                        T.store(self.total, i, self.total[i] + self.own[i])
                        T.store(self.own, i, zero)
            T.barrier()
        self._finish(above, left)

    # -- To shared memory

    def _slots(self, side: _Side) -> int:
        return -(-side.tile * self.step // self.tile.threads)

    def _slot(self, which: int, slot: int) -> tuple[Any, Any, bool]:
        """Of a thread's element: the number of its row or column, and of its product; whether all threads have such an element."""
        side, threads = self.sides[which], self.tile.threads
        place = T.let(self.thread + slot * threads) if slot else self.thread
        along = self.step if self.inner_first[which] else side.tile
        second = T.let(T.truncdiv(place, T.const(along, "int32")))
        first = T.let(place - second * along)
        own, inner = (second, first) if self.inner_first[which] else (first, second)
        return own, inner, (slot + 1) * threads <= side.tile * self.step

    def _outer(self, side: _Side, first: Any) -> list[dict[str, Any]]:
        """Of each of the thread's elements what does not follow from inner coordinates: parts of places, and the zero point."""
        which, found = side.group - 1, []
        for slot in range(self._slots(side)):
            own, inner, _ = self._slot(which, slot)
            position = T.let(T.min(first + T.cast(own, self.dtype), self.sizes[side.group] - 1))
            at = self._unraveled(position, self._sizes_of(side.group))
            parts = [
                T.let(self._sum(one.base, self._part(one, 0, self.batch), self._part(one, side.group, at)))
                for one in side.operand.linears()
            ]
            zero = None
            if side.zero is not None:
                place = side.zero.place
                offset = self._sum(place.base, self._part(place, 0, self.batch), self._part(place, side.group, at))
                zero = T.let(self.buffers[side.zero.name][T.let(offset)])
            found.append({"parts": parts, "zero": zero, "inner": T.let(T.cast(inner, self.dtype))})
        return found

    def _sizes_of(self, group: int) -> Sequence[Any]:
        return self.c.groups[group]

    def _load(self, outer: Sequence[Sequence[dict[str, Any]]], first: Any) -> None:
        """The elements of the next products, to registers."""
        for which, side in enumerate(self.sides):
            known: dict[Any, tuple[Any, list[Any]]] = {}
            for slot, own in enumerate(outer[which]):
                # With inner coordinates first, all of a thread's elements have the same, if they divide the threads.
                same = self.inner_first[which] and self.tile.threads % self.step == 0
                key = 0 if same else slot
                if key not in known:
                    known[key] = self._inner(side, T.let(first + own["inner"]))
                there, parts = known[key]
                T.store(self.held[which], slot, self._element(side, own, there, parts))

    def _inner(self, side: _Side, position: Any) -> tuple[Any, list[Any]]:
        """Whether there is such a product, and what its coordinates contribute to places."""
        depth = self.sizes[3]
        at = self._unraveled(T.let(T.min(position, depth - 1)), self.c.inner)
        return T.let(position < depth), [self._part(one, 3, at) for one in side.operand.linears()]

    def _element(self, side: _Side, own: dict[str, Any], there: Any, parts: Sequence[Any]) -> Any:
        place, *ats = (self._sum(mine, other) for mine, other in zip(own["parts"], parts, strict=True))
        for rule, at in zip(side.operand.rules, ats, strict=True):
            found, inside = coordinate(rule, T.let(at))
            found = T.let(found)
            place = place + found * (self._number(rule.step) if isinstance(rule.step, int) else rule.step)
            there = both(there, None if inside is None else T.let(inside))
        element = T.let(self.buffers[side.operand.name][T.let(place)])
        return T.Select(there, factor(element, own["zero"], self.computed), T.const(0, self.computed))

    def _keep(self, which: int) -> None:
        """The thread's elements, from registers to shared memory."""
        for slot in range(self._slots(self.sides[which])):
            own, inner, every = self._slot(which, slot)
            place = T.let(inner * self.pitches[which] + own)
            if every:
                T.store(self.shared[which], place, self.held[which][slot])
            else:
                limit = T.const(self.sides[which].tile * self.step, "int32")
                with T.when(self.thread + slot * self.tile.threads < limit):
                    T.store(self.shared[which], place, self.held[which][slot])

    # -- In registers

    def _lanes(self, own: int) -> int:
        """How many neighbours a thread reads at once: 16 bytes."""
        return min(own, 2 if self.computed == "float64" else 4)

    def _of_thread(self) -> tuple[Any, Any]:
        """The thread's row and column in the group."""
        across = self.tile.columns // self.tile.own_columns
        down = T.let(T.truncdiv(self.thread, T.const(across, "int32")))
        return down, T.let(self.thread - down * across)

    def _multiply(self) -> None:
        """The products that are in shared memory, added to the thread's sums in order."""
        tile, places = self.tile, self._of_thread()
        owns, sides = (tile.own_rows, tile.own_columns), (tile.rows, tile.columns)
        with T.loop(T.const(self.step, "int32")) as k:
            factors: list[list[Any]] = []
            for which in (0, 1):
                lanes = self._lanes(owns[which])
                spread = sides[which] // owns[which] * lanes
                row = T.let(k * self.pitches[which] + places[which] * lanes)
                factors.append(
                    [one for part in range(owns[which] // lanes) for one in load(self.shared[which], row + part * spread, lanes)]
                )
            for i, a in enumerate(factors[0]):
                for j, b in enumerate(factors[1]):
                    place = i * tile.own_columns + j
                    T.store(self.own, place, multiply_add(a, b, self.own[place]))

    def _finish(self, above: Any, left: Any) -> None:
        """The sums, finished and stored: a row of each thread's at a time, through shared memory, so that neighbours are stored."""
        tile, (down, across) = self.tile, self._of_thread()
        owns, spreads = (tile.own_rows, tile.own_columns), (tile.rows // tile.own_rows, tile.columns // tile.own_columns)
        lanes = [self._lanes(own) for own in owns]
        slab = self.shared[1]
        for i in range(tile.own_rows):
            if i:
                T.barrier()
            row = T.let(down * tile.columns + across * lanes[1])
            for j in range(tile.own_columns):
                place = i * tile.own_columns + j
                total = self.own[place] if self.total is None else self.total[place] + self.own[place]
                T.store(slab, row + (j // lanes[1] * lanes[1] * spreads[1] + j % lanes[1]), total)
            T.barrier()
            first = i // lanes[0] * lanes[0] * spreads[0] + i % lanes[0]
            with T.loop(T.const(tile.own_columns, "int32")) as part:
                number = T.let(self.thread + part * tile.threads)
                line = T.let(T.truncdiv(number, T.const(tile.columns, "int32")))
                at = T.let(above + T.cast(line * lanes[0] + first, self.dtype))
                column = T.let(left + T.cast(number - line * tile.columns, self.dtype))
                with T.when((at < self.sizes[1]) & (column < self.sizes[2])):
                    self._store(at, column, T.let(slab[number]))

    def _store(self, row: Any, column: Any, total: Any) -> None:
        """A sum, finished and stored."""
        rows, columns = self._unraveled(row, self.c.rows), self._unraveled(column, self.c.columns)

        def offset(one: Operand) -> Any:
            place = one.place
            parts = (self._part(place, group, at) for group, at in enumerate((self.batch, rows, columns)))
            return T.let(self._sum(place.base, *parts))

        values = [T.let(self.buffers[one.name][offset(one)]) for one in self.c.addends]
        T.store(self.buffers[self.c.result.name], offset(self.c.result), self.desc.element(total, values))

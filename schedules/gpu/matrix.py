"""Sums of products on a GPU: each group of threads computes a tile of a result, and each thread a block of it, in registers.

The factors' parts that a tile needs are brought to shared memory, some products of each sum at a time: while a group computes with
them, its threads load what comes next. Edges are predicates of the same kernel: a coordinate past the end reads the last one, and
products past the last one are 0. Factors may be anywhere that a ``Contraction`` says, so that a convolution is a product of its
filter and of an image that is never copied.

Sums have the family's order (``kernels/contraction.py``), whatever the tile. There are two variants:

- ``tiles``: a group computes whole sums.
- ``blocks``: results are small and sums long, so a group computes one block of products of each sum. A second launch adds the
  blocks' sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC, Contraction, Operand, factor, multiply_add
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.movement import Linear, both, coordinate
from tvmdml.operators._contract import Shared
from tvmdml.operators._matrix import Matrix
from tvmdml.schedules.gpu import Numbers, _default, checked, enough_groups, position, reduction, refuse, require, strided
from tvmdml.schedules.gpu._matrix_tiles import BUSY, PAD, TILES, Tile, chosen
from tvmdml.schedules.gpu._words import load
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


KNOBS = Knobs(
    "matrix",
    enough_groups(1024),
    algorithm=Knob("auto", ("auto", "tiles", "blocks"), "the variant; auto chooses by the size of results"),
    tile=Knob("auto", ("auto", *TILES), "rows and columns of a group's part of a result; auto chooses by how many parts there are"),
    depth=Knob(16, (8, 16, 32), "products of each sum that are in shared memory at once"),
    most_groups=Knob(1 << 20, tuple(1 << n for n in range(21)), "maximum groups per launch; each strides over the rest"),
)

_BAND = 8
"""Groups that run at the same time have tiles of so many rows of tiles: they read the same parts of the second factor."""
_THREADS = 256
"""The threads of a group that adds blocks' sums."""
_SCRATCH = 1 << 24
"""Most elements of the blocks' sums."""


def kernel(desc: Matrix, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """One launch, or two; then those of a fused operator that needs whole rows."""
    contraction, after = desc.contraction().simplified(), None
    if 0 in contraction.sizes:
        plain: Kernel = _default.kernel(desc, target, shared)
        return plain
    if (rowwise := desc.of_rows()) is not None:
        after = reduction.writer_of(rowwise, target, reduction.KNOBS.now(target))
    batch, rows, columns, depth = (math.prod(sizes) for sizes in contraction.groups)
    width = 8 if contraction.computed == "float64" else 4
    tile, step = chosen(knobs, target, batch, rows, columns, depth, width)
    blocks, count = -(-depth // KC), batch * rows * columns
    few = batch * tile.groups(rows, columns) < BUSY if knobs.algorithm == "auto" else knobs.algorithm == "blocks"
    split = few and after is None and 1 < blocks <= _SCRATCH // count
    if split:
        tile, step = chosen(knobs, target, batch * blocks, rows, columns, KC, width)
    total = batch * tile.groups(rows, columns) * (blocks if split else 1)
    most = min(target.max_groups, knobs.most_groups)
    groups, threads = max(1, min(total, most)), min(_THREADS, target.max_threads)
    steps = KC // step if split else -(-depth // step)
    rounds = -(-total // groups) * (steps * (step + 1) + tile.own_rows * (tile.own_columns + 1) + 1)
    if target.max_rounds is not None and rounds > target.max_rounds:
        given = f"{rounds} rounds of loops in a thread on {target.name}"
        refuse(desc.where("loops"), given, f"up to {target.max_rounds}, after which the device's driver leaves loops")
    given_numbers = contraction.numbers()
    known = tuple(number if number in (0, 1) else -1 for number in given_numbers)
    adding = max(1, min(-(-count // threads), most))
    numbers = Numbers(
        max(
            *(contraction.span, total + groups, (rows + tile.rows) * 2, (columns + tile.columns) * 2, depth + KC),
            *((count * blocks, count + adding * threads) if split else (count,)),
        ),
        # A separate number for each launch, as TVM would name one that two launches share.
        groups=(groups, adding) if split else (groups,),
        total=total,
        tiles=(-(-rows // tile.rows), -(-columns // tile.columns)),
        steps=steps,
        blocks=blocks,
        each=tuple(number for number, one in zip(given_numbers, known, strict=True) if one < 0),
    )
    require(
        desc, target, numbers, *(tensor.data_type.tvm for _, tensor in desc.tensors() if tensor is not None), contraction.computed
    )
    deep = contraction.computed != "int32" and depth > KC and not split
    choices = {"tile": tile, "step": step, "deep": deep, "single": groups == total, "known": known, "adds": threads if split else 0}
    writer = _Writer(desc, contraction, numbers, after, **choices)
    module, *also = desc.modules()
    scratch = ((contraction.computed, count * blocks if split else count),) if split or after else ()
    scalars = numbers.scalars
    if after is not None:
        scratch, scalars = (*scratch, *after.scratch), (*scalars, *after.numbers.scalars)
    way = "blocks" if split else "tiles"
    built = Kernel(module, way, writer.parameters, writer.function, scalars, scratch, also=tuple(also))
    found: Kernel = checked(desc, target, built)
    return found


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
    adds: int
    """The threads of a group that adds blocks' sums; 0 if sums have no such blocks."""

    def __init__(
        self, desc: Matrix, contraction: Contraction, numbers: Numbers, after: reduction.Writer | None, **choices: Any
    ) -> None:
        self.desc, self.form, self.numbers, self.after, self.dtype = desc, contraction, numbers, after, numbers.dtype
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
        if after is not None:
            self.parameters += tuple((f"after {name}", value) for name, value in after.parameters)

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
        for place, one in enumerate(at, self.starts[group]):
            step = linear.steps[place]
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
            if self.adds or self.after is not None:
                self.scratch = f.buffer("scratch", self.computed)
            if self.after is not None:
                self.after.keep(f)
            n = self.numbers.declare(f)
            waiting = iter(n.each)
            self.c = self.form.expressions([next(waiting) if one < 0 else one for one in self.known])
            ranks = [len(sizes) for sizes in self.c.groups]
            self.starts = [sum(ranks[:i]) for i in range(4)]
            self.sizes = [self._product(sizes) for sizes in self.c.groups]
            tile, pitches = self.tile, (self.tile.rows + PAD, self.tile.columns + PAD)
            self.sides = (
                _Side(self.c.a, self.c.a_zero, 1, tile.rows),
                _Side(self.c.b, self.c.b_zero, 2, tile.columns),
            )
            with T.launch(n.groups[0], tile.threads) as (group, thread):
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
                with self._tiles(group, n) as (block, batch, above, left):
                    self._tile(n, block, batch, above, left)
            if self.adds:
                self._add(n)
            if self.after is not None:
                self.after.launches(f, {"input_tensor": self.scratch, "output_tensor": self.buffers["output_tensor"]})
        return f.result()

    def _product(self, sizes: Sequence[Any]) -> Any:
        total: Any = self._number(1)
        for size in sizes:
            total = total * (self._number(size) if isinstance(size, int) else size)
        return T.let(total)

    @contextmanager
    def _tiles(self, group: Any, n: SimpleNamespace) -> Iterator[tuple[Any, Any, Any, Any]]:
        """The block of products, the batch, and the first row and column, of each tile of the group."""
        if self.single:
            yield self._position(T.let(T.cast(group, self.dtype)), n)
            return
        with strided(T.cast(group, self.dtype), n.total, n.groups[0]) as number:
            yield self._position(number, n)
            T.barrier()

    def _position(self, number: Any, n: SimpleNamespace) -> tuple[Any, Any, Any, Any]:
        down, across = n.tiles
        block = self._number(0)
        if self.adds:
            each = T.let(down * across * self.sizes[0])
            block = T.let(T.truncdiv(number, each))
            number = T.let(number - block * each)
        whole = T.let(down * across)
        batch = T.let(T.truncdiv(number, whole))
        rest = T.let(number - batch * whole)
        band = T.let(T.truncdiv(rest, across * _BAND))
        first = T.let(band * _BAND)
        rows = T.let(T.min(down - first, self._number(_BAND)))
        within = T.let(rest - first * across)
        column = T.let(T.truncdiv(within, rows))
        row = T.let(first + (within - column * rows))
        return block, batch, T.let(row * self.tile.rows), T.let(column * self.tile.columns)

    def _tile(self, n: SimpleNamespace, block: Any, batch: Any, above: Any, left: Any) -> None:
        self.batch = self._unraveled(batch, self.c.batch)
        self.slice = T.let(block * self.sizes[0] + batch)
        zero = T.const(0, self.computed)
        count = self.tile.own_rows * self.tile.own_columns
        for i in range(count):
            T.store(self.own, i, zero)
            if self.total is not None:
                T.store(self.total, i, zero)
        outer = [self._outer(side, first) for side, first in zip(self.sides, (above, left), strict=True)]
        begin = T.let(block * KC)
        self._load(outer, begin)
        with T.loop(n.steps) as step:
            for which in (0, 1):
                self._keep(which)
            T.barrier()
            self._load(outer, T.let(begin + (step + 1) * self.step))
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
        return int(-(-side.tile * self.step // self.tile.threads))

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
        if self.total is not None:
            for place in range(tile.own_rows * tile.own_columns):
                T.store(self.own, place, self.total[place] + self.own[place])
        row = T.let(down * tile.columns + across * lanes[1])
        # A loop, as the code that finishes may be long. Its sums are chosen, because registers have no index.
        with T.loop(T.const(tile.own_rows, "int32")) as i:
            T.barrier()
            for j in range(tile.own_columns):
                total = self.own[j]
                for other in range(1, tile.own_rows):
                    total = T.Select(T.expression(i == T.const(other, "int32")), self.own[other * tile.own_columns + j], total)
                T.store(slab, row + (j // lanes[1] * lanes[1] * spreads[1] + j % lanes[1]), total)
            T.barrier()
            block = T.let(T.truncdiv(i, T.const(lanes[0], "int32")))
            first = T.let(block * (lanes[0] * spreads[0]) + (i - block * lanes[0]))
            with T.loop(T.const(tile.own_columns, "int32")) as part:
                number = T.let(self.thread + part * tile.threads)
                line = T.let(T.truncdiv(number, T.const(tile.columns, "int32")))
                at = T.let(above + T.cast(line * lanes[0] + first, self.dtype))
                column = T.let(left + T.cast(number - line * tile.columns, self.dtype))
                with T.when((at < self.sizes[1]) & (column < self.sizes[2])):
                    self._put(at, column, T.let(slab[number]))

    def _put(self, row: Any, column: Any, total: Any) -> None:
        """A sum, finished and stored; that of a block as it is, and one that is a part of a row before it is rounded."""
        if not self.adds and self.after is None:
            self._store(row, column, total)
            return
        place = T.let((self.slice * self.sizes[1] + row) * self.sizes[2] + column)
        T.store(self.scratch, place, total if self.adds else self._finished(row, column, total)[0])

    def _add(self, n: SimpleNamespace) -> None:
        """The launch that adds the blocks' sums."""
        with T.launch(n.groups[1], self.adds) as (group, thread):
            count = T.let(self.sizes[0] * self.sizes[1] * self.sizes[2])
            first = position(group, thread, self.adds, self.dtype)
            with strided(first, count, T.let(n.groups[1] * self.adds)) as number:
                total = T.Variable(self.computed, self.scratch[number])
                with T.loop(T.let(n.blocks - 1)) as block:
                    total.set(total.value + self.scratch[T.let((block + 1) * count + number)])
                batch, row, column = T.unravel(number, self.sizes[:3])
                self.batch = self._unraveled(batch, self.c.batch)
                self._store(row, column, T.let(total.value))

    def _finished(self, row: Any, column: Any, total: Any) -> tuple[Any, Any]:
        """A sum finished but not rounded, and where it goes."""
        rows, columns = self._unraveled(row, self.c.rows), self._unraveled(column, self.c.columns)

        def offset(one: Operand) -> Any:
            place = one.place
            parts = (self._part(place, group, at) for group, at in enumerate((self.batch, rows, columns)))
            return T.let(self._sum(place.base, *parts))

        values = (T.wide(T.let(self.buffers[one.name][offset(one)])) for one in self.c.addends)
        return self.desc.finish(total, *values), offset(self.c.result)

    def _store(self, row: Any, column: Any, total: Any) -> None:
        """A sum, finished and stored."""
        found, place = self._finished(row, column, total)
        T.store(self.buffers[self.c.result.name], place, T.to(found, self.desc.output_tensor.data_type.tvm))

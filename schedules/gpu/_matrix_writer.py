"""What writes the kernels of sums of products on a GPU: in tiles, and with a thread for each sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC, Contraction, Operand, factor, multiply_add
from tvmdml.kernels.movement import Linear
from tvmdml.operators._matrix import Matrix
from tvmdml.schedules.gpu import Numbers, position, reduction, strided
from tvmdml.schedules.gpu._matrix_bits import BitPart
from tvmdml.schedules.gpu._matrix_forms import Leaf, SumPlace
from tvmdml.schedules.gpu._matrix_loads import Crossed, FactorLoads, Moved, TurnedLoads

_BAND = 8
"""Groups that run at the same time have tiles of so many rows of tiles: they read the same parts of the second factor."""


def passed(contraction: Contraction) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """A contraction's integers that are constants, with -1 for the others; and the others, which are passed at launch, by name."""
    given = contraction.numbers()
    known = tuple(number if number in (0, 1) else -1 for number in given)
    named: dict[str, tuple[int, ...]] = dict.fromkeys(("inner", "outer", "each"), ())
    for name, number, one in zip(_names(contraction), given, known, strict=True):
        named[name] += (number,) if one < 0 else ()
    return known, named


def _names(contraction: Contraction) -> list[str]:
    """The name of each integer's group: ``inner`` and ``outer`` have the sizes that coordinates are divided by."""
    names = [
        ("inner" if i == 3 else "outer") if place else "each"
        for i, own in enumerate(contraction.groups)
        for place in range(len(own))
    ]
    return names + ["each"] * (len(contraction.numbers()) - len(names))


class Writer:
    """Writes the kernel."""

    leaf: Leaf
    moved: Sequence[Moved]
    deep: bool
    single: bool
    known: tuple[int, ...]
    own: Any = None
    total: Any = None
    bits: Any = None
    """The second factor as a ``BitMatrix``, if it has few bits."""
    is_scaled: bool = False
    """Whether a block's sums are multiplied by its scale, and not what comes to shared memory."""
    adds: int
    """The threads of a group that adds blocks' sums; 0 if sums have no such blocks."""

    def __init__(
        self, desc: Matrix, contraction: Contraction, numbers: Numbers, after: reduction.SliceWriter | None, **choices: Any
    ) -> None:
        self.desc, self.form, self.numbers, self.after, self.dtype = desc, contraction, numbers, after, numbers.dtype
        self.__dict__.update(choices)
        self.computed = contraction.computed
        named = {**choices, **self.choose()}
        self.parameters = (*desc.formula_key(), ("contraction", contraction.form()), *named.items(), *numbers.parameters)
        if after is not None:
            self.parameters += tuple((f"after {name}", value) for name, value in after.parameters)

    def choose(self) -> dict[str, Any]:
        """What the code depends on, in place of choices that are objects."""
        self.tile, self.step = self.leaf.tile, self.leaf.step
        of_leaf = {"leaf": self.leaf.name, "tile": str(self.tile), "step": self.step, "stages": self.leaf.stages}
        return {**of_leaf, "moved": tuple(map(str, self.moved)), **({} if self.bits is None else {"bits": str(self.bits)})}

    # -- Coordinates

    def number(self, value: int) -> Any:
        """A constant of the integers' type."""
        return T.const(value, self.dtype)

    def unraveled(self, index: Any, sizes: Sequence[Any]) -> list[Any]:
        """The coordinates of a group for an index."""
        if len(sizes) == 1:
            return [index]
        return T.unravel(index, [self.number(one) if isinstance(one, int) else one for one in sizes])

    def part(self, linear: Linear, group: int, at: Sequence[Any]) -> Any:
        """What a group of coordinates contributes to a linear integer; ``None`` for nothing."""
        total: Any = None
        for place, one in enumerate(at, self.starts[group]):
            step = linear.steps[place]
            if isinstance(step, int) and step == 0:
                continue
            own = self.scaled(one, step)
            total = own if total is None else total + own
        return total

    def scaled(self, at: Any, step: Any) -> Any:
        """A coordinate times its step."""
        return at if isinstance(step, int) and step == 1 else at * self.number_of(step)

    def number_of(self, value: Any) -> Any:
        """An integer that may be a constant."""
        return self.number(value) if isinstance(value, int) else value

    def sum(self, *parts: Any) -> Any:
        """The sum of what is present."""
        total: Any = None
        for part in parts:
            if part is None or (isinstance(part, int) and part == 0):
                continue
            part = self.number(part) if isinstance(part, int) else part
            total = part if total is None else total + part
        return self.number(0) if total is None else total

    def zero_at(self, zero: Operand, group: int, at: Sequence[Any]) -> Any:
        """A zero point, for the coordinates of a row or column."""
        place = zero.place
        offset = self.sum(place.base, self.part(place, 0, self.batch), self.part(place, group, at))
        return self.buffers[zero.name][T.let(offset)]

    def count(self, block: Any) -> Any:
        """How many products a sum has, or its block."""
        return T.min(self.sizes[3] - block * KC, self.number(KC)) if self.adds else self.sizes[3]

    # -- The kernel

    def function(self) -> T.PrimFunc:
        with T.on_device(), T.counting(self.dtype), T.function() as f:
            self.buffers = f.tensors(self.desc)
            if self.adds or self.after is not None:
                self.scratch = f.buffer("scratch", self.computed)
            if self.after is not None:
                self.after.keep(f)
            n = self.numbers.declare(f)
            waiting = {name: iter(getattr(n, name)) for name in ("inner", "outer", "each")}
            names = zip(_names(self.form), self.known, strict=True)
            self.c = self.form.expressions([next(waiting[name]) if one < 0 else one for name, one in names])
            ranks = [len(sizes) for sizes in self.c.groups]
            self.starts = [sum(ranks[:i]) for i in range(4)]
            self.sizes = [self._product(sizes) for sizes in self.c.groups]
            self.launches(n)
            if self.after is not None:
                self.after.launches(f, {"input_tensor": self.scratch, "output_tensor": self.buffers["output_tensor"]})
        return f.result()

    def launches(self, n: SimpleNamespace) -> None:
        """The launch that multiplies, and one that adds."""
        with T.launch(n.groups[0], self.leaf.threads) as (group, thread):
            self.thread = thread
            self.parts = [
                (Crossed if way.crossed else TurnedLoads if way.turned else FactorLoads)(self, which, way)
                for which, way in enumerate(self.moved)
            ]
            if self.bits is not None:
                self.bits.begin(self.buffers, n.bits, self.sizes[3], n.words)
                self.parts[1] = BitPart(self, 1, self.moved[1], self.bits)
            self.slab = self.leaf.declare(self.parts)
            if self.leaf.sums:  # a subgroup's sums are the leaf's own
                self.own = T.local(self.computed, self.leaf.sums)
                self.total = T.local(self.computed, self.leaf.sums) if self.deep else None
            self.leaf.begin(self)
            with self._tiles(group, n) as (block, batch, above, left):
                self._tile(n, block, batch, above, left)
        if self.adds:
            self._add(n)

    def _product(self, sizes: Sequence[Any]) -> Any:
        total: Any = self.number(1)
        for size in sizes:
            total = total * (self.number(size) if isinstance(size, int) else size)
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
        block = self.number(0)
        if self.adds:
            each = T.let(down * across * self.sizes[0])
            block = T.let(T.truncdiv(number, each))
            number = T.let(number - block * each)
        whole = T.let(down * across)
        batch = T.let(T.truncdiv(number, whole))
        rest = T.let(number - batch * whole)
        band = T.let(T.truncdiv(rest, across * _BAND))
        first = T.let(band * _BAND)
        rows = T.let(T.min(down - first, self.number(_BAND)))
        within = T.let(rest - first * across)
        column = T.let(T.truncdiv(within, rows))
        row = T.let(first + (within - column * rows))
        return block, batch, T.let(row * self.tile.rows), T.let(column * self.tile.columns)

    def _tile(self, n: SimpleNamespace, block: Any, batch: Any, above: Any, left: Any) -> None:
        self.batch = self.unraveled(batch, self.c.batch)
        self.slice = T.let(block * self.sizes[0] + batch)
        for i in range(self.leaf.sums):
            T.store(self.own, i, T.const(0, self.computed))
            if self.total is not None:
                T.store(self.total, i, T.const(0, self.computed))
        self.leaf.clear()
        for part, first in zip(self.parts, (above, left), strict=True):
            part.start(first)
        self.begin, self.left, self.steps = T.let(block * KC), left, n.steps
        if self.leaf.stages == 1:
            self._multiply_in_turn(n, self.begin)
        else:
            self._multiply_meanwhile(n, self.begin)
        self.leaf.settle(self, above, left, block)
        self._finish(n, above, left, block)

    def _multiply_in_turn(self, n: SimpleNamespace, begin: Any) -> None:
        """Shared memory is written and read in turn; while it is read, elements are on their way to registers."""
        for part in self.parts:
            part.load(begin)
        with T.loop(n.steps) as step:
            for part in self.parts:
                part.keep(None)
            T.barrier()
            for part in self.parts:
                part.load(T.let(begin + (step + 1) * self.step))
            self.leaf.multiply(self, None)
            self._fold(step)
            T.barrier()

    def _multiply_meanwhile(self, n: SimpleNamespace, begin: Any) -> None:
        """A stage of shared memory is written while others are read: what was read last is free after a barrier."""
        stages = self.leaf.stages
        copied, held = ([part for part in self.parts if part.moved.copied is which] for which in (True, False))

        def copy(first: Any, stage: Any) -> None:
            for part in copied:
                part.copy(first, stage)
            if copied:
                T.end_copies()

        for stage in range(stages - 1):
            first = T.let(begin + stage * self.step)
            copy(first, T.const(stage, "int32"))
            for part in held:
                part.load(first)
                part.keep(T.const(stage, "int32"))
        for part in held:
            part.load(T.let(begin + (stages - 1) * self.step))
        stage = T.Variable("int32", T.const(0, "int32"))
        last = T.const(stages - 1, "int32")
        with T.loop(n.steps) as step:
            if copied:
                T.await_copies(stages - 2)
            T.barrier()
            now = T.let(stage.value)
            free = T.let(T.Select(T.expression(now == T.const(0, "int32")), last, now - 1))
            for part in held:
                part.keep(free)
                part.load(T.let(begin + (step + stages) * self.step))
            copy(T.let(begin + (step + (stages - 1)) * self.step), free)
            self.leaf.multiply(self, now)
            stage.set(T.Select(T.expression(now == last), T.const(0, "int32"), now + 1))
            self._fold(step)
        if copied:
            T.await_copies(0)

    def _fold(self, step: Any) -> None:
        """After the last step of a block, its sum is added to the others'."""
        if not self.deep:
            return
        last = self.number((self.bits.period if self.is_scaled else KC) // self.step - 1)
        with T.when(T.expression((step & last) == last)):
            self._add_up(step, self.total)
            for i in range(self.leaf.sums):
                T.store(self.own, i, T.const(0, self.computed))
            self.leaf.fold(self, step)

    def _add_up(self, step: Any, to: Any) -> None:
        """Sums up to a step, of those before and a block's, which has one scale where the second factor is not multiplied by it."""
        leaf: Any = self.leaf
        scales: dict[int, Any] = {}
        for i in range(leaf.sums):
            if not self.is_scaled:
                T.store(to, i, self.total[i] + self.own[i])
                continue
            which, column = leaf.column(i)
            if which not in scales:
                scales[which] = self.scale(column, step)
            T.store(to, i, multiply_add(self.own[i], scales[which], self.total[i]))

    def scale(self, column: Any, step: Any) -> Any:
        """What the products of a column of the tile are multiplied by, in a step; ``None``: in the last one."""
        step = self.steps - 1 if step is None else step
        at = T.let(T.min(self.left + T.cast(column, self.dtype), self.sizes[2] - 1))
        product = T.let(T.min(self.begin + step * self.step, self.sizes[3] - 1))
        return self.bits.scale(self.bits.column(at), self.bits.block_of(product))

    def _finish(self, n: SimpleNamespace, above: Any, left: Any, block: Any) -> None:
        """The sums, finished and stored: some rows at a time, through shared memory, so that neighbours are stored."""
        leaf, columns = self.leaf, T.const(self.tile.columns, "int32")
        if self.total is not None:
            self._add_up(T.let(n.steps - 1), self.own)
        # A loop, as the code that finishes may be long.
        with T.loop(T.const(leaf.rounds, "int32")) as i:
            T.barrier()
            leaf.keep(self, self.slab, i)
            T.barrier()
            with T.loop(T.const(leaf.slab_rows * self.tile.columns // leaf.threads, "int32")) as part:
                number = T.let(self.thread + part * leaf.threads)
                line = T.let(T.truncdiv(number, columns))
                across = T.let(number - line * columns)
                at = T.let(above + T.cast(leaf.row(line, i), self.dtype))
                column = T.let(left + T.cast(across, self.dtype))
                with T.when((at < self.sizes[1]) & (column < self.sizes[2])):
                    self._put(at, column, leaf.settled(self, self.slab, SumPlace(line, across, at, column, block)))

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
                self.batch = self.unraveled(batch, self.c.batch)
                self._store(row, column, T.let(total.value))

    def _finished(self, row: Any, column: Any, total: Any) -> tuple[Any, Any]:
        """A sum finished but not rounded, and where it goes."""
        rows, columns = self.unraveled(row, self.c.rows), self.unraveled(column, self.c.columns)

        def offset(one: Operand) -> Any:
            place = one.place
            parts = (self.part(place, group, at) for group, at in enumerate((self.batch, rows, columns)))
            return T.let(self.sum(place.base, *parts))

        values = (T.wide(T.let(self.buffers[one.name][offset(one)])) for one in self.c.addends)
        return self.desc.finish(total, *values), offset(self.c.result)

    def _store(self, row: Any, column: Any, total: Any) -> None:
        """A sum, finished and stored."""
        found, place = self._finished(row, column, total)
        T.store(self.buffers[self.c.result.name], place, T.to(found, self.desc.output_tensor.data_type.tvm))


class WholeSums(Writer):
    """Writes a kernel in which a thread computes whole sums: some of the same row or column, for which it reads one factor once."""

    threads: int
    several: int
    along: int
    """The group whose coordinates these sums have: 1 for rows, 2 for columns. Those of neighbouring threads are neighbours."""

    def choose(self) -> dict[str, Any]:
        """Nothing more."""
        return {}

    def launches(self, n: SimpleNamespace) -> None:
        """One launch, whose threads stride over the results."""
        unused = Moved(inner_first=False, run=1, size=1, copied=False)
        parts = [FactorLoads(self, which, unused) for which in (0, 1)]
        with T.launch(n.groups[0], self.threads) as (group, thread):
            first, sizes = position(group, thread, self.threads, self.dtype), list(self.sizes[:3])
            whole = sizes[self.along]
            sizes[self.along] = share = T.let(T.truncdiv(whole + (self.several - 1), self.number(self.several)))
            with strided(first, n.total, T.let(n.groups[0] * self.threads)) as number:
                batch, *own = T.unravel(number, sizes)
                self.batch = self.unraveled(batch, self.c.batch)
                places = [own[self.along - 1], *(T.let(own[self.along - 1] + share * i) for i in range(1, self.several))]
                outer = [
                    [
                        part.outside(self.unraveled(T.let(T.min(at, self.sizes[part.group] - 1)), self.c.groups[part.group]))
                        for at in mine
                    ]
                    for part, mine in zip(parts, self._of_both(places, own), strict=True)
                ]
                totals = [T.Variable(self.computed, T.const(0, self.computed)) for _ in places]
                with ExitStack() as loops:
                    inner = [loops.enter_context(T.loop(self.number(one) if isinstance(one, int) else one)) for one in self.c.inner]
                    a, b = ([self._factor(part, one, inner) for one in mine] for part, mine in zip(parts, outer, strict=True))
                    for i, total in enumerate(totals):
                        total.set(multiply_add(a[i % len(a)], b[i % len(b)], total.value))
                for at, total in zip(places, totals, strict=True):
                    row, column = (one[0] for one in self._of_both([at], own))
                    with T.when(at < whole):
                        self._store(row, column, T.let(total.value))

    def _of_both(self, places: list[Any], own: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Rows and columns of a thread's sums."""
        return (places, [own[1]]) if self.along == 1 else ([own[0]], places)

    def _factor(self, part: FactorLoads, outer: dict[str, Any], inner: Sequence[Any]) -> Any:
        """An element for a product; what is outside contributes nothing."""
        parts = [self.part(one, 3, inner) for one in part.operand.linears()]
        (_, inside), place = part.located(outer["parts"], None, parts)
        found = factor(T.let(part.buffer[place]), outer["zero"], self.computed)
        return T.let(found if inside is None else T.Select(inside, found, T.const(0, self.computed)))

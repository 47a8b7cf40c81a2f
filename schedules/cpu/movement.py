"""The movement family on the CPU: limited by memory, so whole lines are moved wherever elements are contiguous.

A task has a share of each move's rows. What a rule decides for a whole row is decided once: where it begins, or that it is fill. A
rule for the coordinate along a row divides it into parts: before the source, inside of it, and behind. There are four ways:

- ``lines``: elements of a row are contiguous on both sides, or one is repeated: vectors of a cache line, streamed if large.
- ``tiles``: the source is contiguous in another dimension than the result: squares are transposed in registers.
- ``woven``: a few runs of the source take turns in the result, or the other way round: vectors are interleaved in registers.
- ``elements``: any other strides, and indices that differ within a row.

Elements move as bits, so types of one width share kernels. Many moves (JOIN, SPLIT) are a loop over a table in one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.kernels import movement
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.formula import Formula, Sink, Source
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.movement import Move, Rule, Transfer
from tvmdml.operators._contract import Shared
from tvmdml.operators._movement import Movement
from tvmdml.operators._movement_scatter import Scattered
from tvmdml.schedules.cpu import (
    STREAMED,
    TASKS_PER_THREAD,
    _default,
    _scatter,
    per_task,
    resampling,
    share,
    split,
    stream_bytes,
)
from tvmdml.schedules.cpu._across import Across, Constant
from tvmdml.schedules.cpu._arranged import (
    columns_of,
    common,
    crossing,
    has_along,
    in_long_runs,
    inner_step,
    last_but_one,
    last_two,
    offsets_in,
    pieced_by,
    repeated_last,
    runs_in_turns,
    tuples_of,
)
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._picked import AT_ONCE, KEPT, alike, picked
from tvmdml.schedules.cpu._runs import aligned_elements, are_lines, lanes_of
from tvmdml.schedules.cpu._tiles import tiles
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

KNOBS = Knobs(
    "movement",
    STREAMED,
    # Moving takes longer for each byte than a pointwise operator does, so that a second thread pays earlier.
    task_bytes=Knob(
        1 << 16, (1, *(1 << n for n in range(13, 27))), "least bytes, read and written together, for each task",
        derived=lambda caches: caches.l2 // 16,
    ),
    tasks_per_thread=TASKS_PER_THREAD,
    block_bytes=Knob(
        1 << 18, (1, *(1 << n for n in range(13, 24))), "bytes, read and written together, of rows that many moves take in turns",
        derived=lambda caches: caches.l2 // 4,
    ),
    stream_bytes=stream_bytes("least bytes of the results to write with non-temporal stores"),
    aligned_elements=aligned_elements(1024),
)  # fmt: skip

_PAGE = 4096
"""Parts of rows that are shorter have lines or pages in common with the next ones."""
_ROWS = 4
"""With fewer rows for each task, tasks also divide rows."""


def kernel(desc: Movement, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """The kernel of one operator."""
    if not desc.is_moved():
        weighed = desc.resampling()
        if weighed is not None:
            between: Kernel = resampling.kernel(weighed, target, shared)
            return between
        found: Kernel | None = _scatter.kernel(desc, target, knobs) if isinstance(desc, Scattered) else None
        return found or _default.kernel(desc, target, shared)
    return kernel_of(desc.transfer(), desc, target, knobs)


def kernel_of(transfer: Transfer, desc: Movement, target: Target, knobs: Any) -> Kernel:
    """The kernel of a transfer whose elements have the types of an operator's."""
    transfer = transfer.simplified()
    moves, formula = transfer.moves, desc.formula()
    lanes = lanes_of(formula, target)
    # Without fused multiply-adds LLVM takes minutes for a tile of functions.
    fused = not formula.key or getattr(target, "processor", None) is None or target.processor.has("fma")  # type: ignore[attr-defined]
    turned, runs = crossing(moves) if fused else None, runs_in_turns(moves)
    if turned is not None:
        moves = tuple(last_but_one(move, turned) for move in moves)
    elif runs is not None:
        moves = tuple(last_two(move, *runs) for move in moves)
        while lanes > moves[0].sizes[-1]:
            lanes //= 2
    else:
        moves = tuple(repeated_last(move) for move in moves)
    steps = [(inner_step(move), *(one.place.steps[-1] for one in move.beside), move.written.steps[-1]) for move in moves]
    last = tuple(common(own) for own in zip(*steps, strict=True))
    itemsize = formula.outputs[0].data_type.itemsize
    columns = 0 if formula.key or len(moves) > 1 else columns_of(moves[0], itemsize, knobs.block_bytes)
    contiguous = last[-1] == 1 and all(one in (0, 1) for one in last)
    elements = sum(math.prod(move.sizes) for move in moves)
    tensors = (formula.inputs[0], *(one for one in formula.inputs[1:] if any(one.layout)), *formula.outputs)
    moved = elements * sum(one.data_type.itemsize for one in tensors)
    tasks = split(moved, target, knobs.task_bytes, knobs.tasks_per_thread)
    parts = tasks > 1 and turned is None and runs is None and min(math.prod(move.sizes[:-1]) for move in moves) < _ROWS * tasks
    shortest, longest = (some(move.sizes[-1] for move in moves) for some in (min, max))
    divided = any(pieced_by(move) is not None for move in moves)
    rows = "short" if longest < lanes else "any" if parts or divided or columns or shortest < lanes else "long"
    streamed = elements * formula.outputs[0].data_type.itemsize >= knobs.stream_bytes and are_lines(formula, lanes)
    writer = _Writer(
        formula,
        Leaves(target),
        transfer=transfer._replace(moves=moves),
        types=desc.kinds(),
        way="tiles" if turned is not None else "woven" if runs is not None else "lines" if contiguous else "elements",
        tuples=tuples_of(moves),
        offsets=offsets_in(moves[0]),
        along=common([move.read.steps[-1] for move in moves]),
        unit=all(rule.step == 1 for rule in moves[0].rules) and not columns,
        columns=columns > 0,
        runs=0 if runs is None or turned is not None else moves[0].sizes[-2],
        lanes=lanes,
        last=last,
        parallel=tasks > 1,
        parts=parts,
        blocks=shortest * itemsize < _PAGE and not parts and len({math.prod(move.sizes[:-1]) for move in moves}) == 1 < len(moves),
        rows=rows,
        stream=streamed and contiguous and all(map(in_long_runs, moves)),
        aligned=knobs.aligned_elements,
    )
    block = columns or max(1, knobs.block_bytes // max(1, 2 * itemsize * sum(move.sizes[-1] for move in moves)))
    tasks = min(tasks, -(-moves[0].sizes[-1] // columns)) if columns else tasks
    fill = transfer.fill - (1 << 64) if transfer.fill >> 63 else transfer.fill
    offset = 0 if transfer.filled_from is None else transfer.filled_from[1]
    scalars = (tasks, fill, offset, block, *writer.scalars)
    module, *also = desc.modules()
    scratch: tuple[tuple[str, int], ...] = (("int64", (len(writer.own) + 1) * len(moves)),) if len(moves) > 1 else ()
    if columns:
        scratch = ((formula.inputs[0].data_type.tvm, tasks * columns * moves[0].rules[0].size),)
    return Kernel(module, writer.way, writer.parameters, writer.function, scalars, scratch, tuple(also))


class _Row(NamedTuple):
    """A row of a move: what is the same for all its elements."""

    move: Move
    outer: Sequence[Any]
    buffers: Sequence[Any]
    source: Any
    """The offset of the source's element without the rules along the row."""
    result: Source
    comes: Any
    """Whether its elements come from the source, as far as that is the same for all; ``None``: they do."""
    beside: tuple[Source, ...] = ()
    """What follows takes these, too."""

    def sink(self, formula: Formula, *sources: Any) -> Sink:
        """Where its elements go: those of a source, if one is given, or else those that are put."""
        return Sink(formula, (*sources, *self.beside), (self.result,))


class _Writer(Across):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    types: tuple[str, ...]
    way: str
    tuples: str
    """The type in which many indices of a row are compared at once; empty if they are not contiguous."""
    offsets: str
    """The type that the offsets of what they mean fit into."""
    along: int
    """The source's step along a row, beside what is looked up, where the code depends on it, else -1."""
    columns: bool
    """Whether some columns of the source at a time are copied to scratch memory, where their elements are looked up."""
    unit: bool
    """Whether what is looked up are offsets: the source's steps there are 1."""
    parallel: bool
    parts: bool
    blocks: bool
    """Whether many moves take turns with some of their rows each, so that lines that they share are still in the cache."""

    def __init__(self, formula: Formula, leaves: Leaves, **choices: Any) -> None:
        super().__init__(formula, leaves, **choices)
        moves = self.transfer.moves
        columns = list(zip(*(move.numbers() for move in moves), strict=True))
        self.own = tuple(i for i, column in enumerate(columns) if len(set(column)) > 1)
        """The integers of moves that are not the same for all: a task reads them from a table in scratch memory."""
        own = [columns[i][k] for k in range(len(moves)) for i in self.own]
        self.scalars = (*(column[0] for column in columns), *own)
        # Many moves are alike but for one tensor each, so the first one's rules are those of all.
        forms = (len(moves), moves[0].form(), len(moves[0].sizes), *self._places())
        rules = tuple(
            f"{rule.kind} {rule.at.steps[-1] != 0} {bool(rule.look and rule.look.place.steps[-1])}" for rule in moves[0].rules
        )
        pieced = pieced_by(moves[0])
        self.parameters = (
            *formula.key,
            *((name, value) for name, value in choices.items() if name != "transfer"),
            ("moves", str(forms)),
            ("own", self.own),
            ("rules", str(rules)),
            ("pieced", -1 if pieced is None else moves[0].rules.index(pieced)),
            ("filled", -1 if self.transfer.filled_from is None else self.transfer.filled_from[0]),
        )

    def _places(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tensors that are read and written, each once."""
        moves = self.transfer.moves
        return tuple(dict.fromkeys(move.source for move in moves)), tuple(dict.fromkeys(move.result for move in moves))

    def function(self) -> PrimFunc:
        moves, count = self.transfer.moves, self.transfer.moves[0].integers()
        sources, results = self._places()
        with T.function() as f:
            buffers = [f.buffer(f"tensor{i}", dtype) for i, dtype in enumerate(self.types)]
            table: Any = f.buffer("table", "int64") if len(moves) > 1 else None
            packed: Any = f.buffer("packed", self.formula.inputs[0].data_type.tvm) if self.columns else None
            tasks, fill, offset, block = (f.scalar(name) for name in ("tasks", "fill", "offset", "block"))
            numbers = f.scalars("number", count)
            for i, number in enumerate(f.scalars("own", len(self.own) * len(moves))):
                T.store(table, i, number)
            # Behind them, where the many sources or results are, of which each move has one.
            behind = len(self.own) * len(moves)
            many = {places[0]: behind for places in (sources, results) if len(places) > 1}

            def one(part: Any, rows: Callable[[Move], tuple[Any, Any]]) -> None:
                """Rows of a move of many."""
                own = {at: T.let(table[part * len(self.own) + i]) for i, at in enumerate(self.own)}
                move = moves[0].expressions([own.get(i, number) for i, number in enumerate(numbers)])
                tensors = list(buffers)
                for of, first in many.items():
                    tensors[of] = self.leaves.kept(table, T.let(part + first), str(buffers[of].dtype))
                self._rows(*rows(move), move, tensors)

            def in_turns(number: Any) -> None:
                """A task's share of many moves."""
                every = T.i64(len(moves))
                if not self.blocks:
                    with T.loop(every) as part:
                        one(part, lambda move: self._share(number, tasks, move))
                    return
                begin, end = share(number, tasks, _rows_of(moves[0].expressions(numbers)))
                with T.loop(T.truncdiv(end - begin + block - 1, block)) as i:
                    first = T.hold(begin + i * block)
                    last = T.hold(T.min(first + block, end))
                    with T.loop(every) as part:
                        one(part, lambda move: (first, last))

            def task(number: Any) -> None:
                bits = self.formula.inputs[0].data_type.tvm
                if self.transfer.filled_from is None:
                    self.fill = T.let(T.cast(fill, bits))
                else:
                    self.fill = T.let(buffers[self.transfer.filled_from[0]][offset])
                if len(moves) > 1:
                    in_turns(number)
                elif self.columns:
                    self._by_columns(number, tasks, moves[0].expressions(numbers), buffers, packed, block)
                else:
                    move = moves[0].expressions(numbers)
                    self._rows(*self._share(number, tasks, move), move, buffers)
                if self.stream:
                    self.leaves.fence()

            with self.leaves.available():
                for places in (sources, results):
                    if len(places) > 1:
                        self.leaves.keep([buffers[i] for i in places], table, behind)
                per_task(tasks, self.parallel, task)
        return f.result()

    def _share(self, number: Any, tasks: Any, move: Move) -> tuple[Any, Any]:
        """A task's part of a move: some of its rows, or of all elements if rows are divided, too."""
        total = T.let(_rows_of(move) * move.sizes[-1]) if self.parts else _rows_of(move, self.way)
        return share(number, tasks, total) if self.parallel or self.parts else (T.i64(0), T.let(total * T.i64(1)))

    def _rows(self, begin: Any, end: Any, move: Move, buffers: Sequence[Any]) -> None:
        """A part of a move."""
        if self.way in ("tiles", "woven"):
            (self.transposed if self.way == "tiles" else self.in_turns)(begin, end, move, buffers)
            return
        *outer, length = move.sizes
        run = self._run
        if not self.parts:
            self.each_row(begin, end, outer, lambda at: run(self._row(move, at, buffers), T.i64(0), length))
            return
        first = T.hold(T.truncdiv(begin, length))
        last = T.hold(T.truncdiv(end + length - 1, length))
        row = T.Variable("int64", first)

        def part(at: list[Any]) -> None:
            now = T.let(row.value)
            start, stop = T.hold(T.max(begin - now * length, T.i64(0))), T.hold(T.min(end - now * length, length))
            run(self._row(move, at, buffers), start, stop)
            row.set(now + 1)

        self.each_row(first, last, outer, part)

    def _by_columns(self, number: Any, tasks: Any, move: Move, buffers: list[Any], packed: Any, block: Any) -> None:
        """Some columns at a time are copied beside each other; then their elements are looked up, row by row."""
        (rule,), (*outer, width) = move.rules, move.sizes
        begin, end = share(number, tasks, T.let(T.truncdiv(width + block - 1, block)))
        base = T.let(number * rule.size * block)
        looked = move._replace(rules=(rule._replace(step=block),))
        given = [packed if i == move.source else one for i, one in enumerate(buffers)]
        with T.loop(end - begin) as i:
            first = T.hold((begin + i) * block)
            stop = T.hold(T.min(first + block, width))
            with T.loop(rule.size) as k:
                column = Source(buffers[move.source], (1,), T.let(move.read.base + k * rule.step))
                self.lines(Sink(self.formula, (column,), (Source(packed, (1,), T.let(base + k * block - first)),)), first, stop)
            source = T.let(base - first)

            def row(at: list[Any], first: Any = first, stop: Any = stop, source: Any = source) -> None:
                self._each(self._row(looked, at, given)._replace(source=source), first, stop)

            self.each_row(T.i64(0), _rows_of(move), outer, row)

    def _row(self, move: Move, outer: Sequence[Any], buffers: Sequence[Any]) -> _Row:
        source, comes = movement.value(move.read, outer) if outer else move.read.base, None
        for rule, known in zip(move.rules, self.transfer.moves[0].rules, strict=True):
            if not known.follows(-1):
                found, inside = movement.resolved(rule, buffers, outer or [T.i64(0)])
                source, comes = source + found * rule.step, movement.both(comes, inside)
        place = T.let(movement.value(move.written, outer) if outer else move.written.base)
        step = move.written.steps[-1] if self.last[-1] < 0 else self.last[-1]
        result = Source(buffers[move.result], (step,), place)
        return _Row(move, outer, buffers, T.let(source), result, comes, self.beside_of(move, outer, buffers))

    # -- A row

    def _run(self, row: _Row, start: Any, stop: Any) -> None:
        """Elements of a row."""
        if row.comes is None:
            self._inside(row, start, stop)
        else:
            T.either(row.comes, lambda: self._inside(row, start, stop), lambda: self._filled(row, start, stop))

    def _inside(self, row: _Row, start: Any, stop: Any) -> None:
        known = self.transfer.moves[0]
        pieced = pieced_by(known)
        if pieced is not None:
            self._pieces(row, row.move.rules[known.rules.index(pieced)], start, stop)
        elif has_along(known):
            self._each(row, start, stop)
        else:
            self._copied(row, row.source, row.move.read.steps[-1], start, stop)

    def _copied(self, row: _Row, base: Any, step: Any, start: Any, stop: Any) -> None:
        """Elements that are a step apart."""
        step = step if self.last[0] < 0 else self.last[0]
        sink = row.sink(self.formula, Source(row.buffers[row.move.source], (step,), T.let(base)))
        apart = self.last[0] if self.last[-1] == 1 and self.last[0] > 1 else 0
        (self.lines if self.way == "lines" else self._apart if apart else self.elements)(sink, start, stop)

    def _apart(self, sink: Sink, start: Any, stop: Any) -> None:
        """Elements that are a few steps apart: all of them are read, and some taken."""
        (source, *beside), apart, lanes = sink.sources, self.last[0], self.lanes
        finished = sink._replace(sources=tuple(beside))
        # Behind the last element there may be none.
        whole = T.let(T.max(T.truncdiv(stop - start - 1, T.i64(lanes)), T.i64(0)))
        with T.loop(whole) as i:
            x = T.let(start + i * lanes)
            several = T.hold(source.buffer[T.run(T.let(source.place([x])), apart * lanes)])
            finished.put([x], T.Shuffle([several], [apart * lane for lane in range(lanes)]))
        self.elements(sink, T.let(start + whole * lanes), stop)

    def _filled(self, row: _Row, start: Any, stop: Any) -> None:
        contiguous = self.last[-1] == 1 and all(one in (0, 1) for one in self.last[1:])
        (self.lines if contiguous else self.elements)(row.sink(self.formula, Constant(self.fill)), start, stop)

    def _each(self, row: _Row, start: Any, stop: Any) -> None:
        """Each element by itself, as all rules say; many indices at once if they are contiguous."""
        sink = row.sink(self.formula)
        if self.tuples:
            rules = [rule for rule, known in zip(row.move.rules, self.transfer.moves[0].rules, strict=True) if known.follows(-1)]
            along = [(rule, row.buffers) for rule in rules]
            rounds = T.let(T.truncdiv(T.max(stop - start, T.i64(0)), T.i64(AT_ONCE)))
            at_once = KEPT // AT_ONCE
            with T.loop(T.truncdiv(rounds + (at_once - 1), T.i64(at_once))) as i:
                first = T.let(start + i * KEPT)
                self._many(row, sink, along, first, T.let(T.min(rounds - i * at_once, T.i64(at_once))))
            start = T.let(start + rounds * AT_ONCE)
        with T.loop(stop - start) as i:
            x = T.let(start + i)
            offset, comes = row.source + x * row.move.read.steps[-1], None
            for rule, known in zip(row.move.rules, self.transfer.moves[0].rules, strict=True):
                if known.follows(-1):
                    found, inside = movement.resolved(rule, row.buffers, [*row.outer, x])
                    offset, comes = offset + found * rule.step, movement.both(comes, inside)
            found = row.buffers[row.move.source][T.let(offset)]
            sink.put([x], found if comes is None else T.Select(comes, T.let(found), self.fill))

    def _many(self, row: _Row, sink: Sink, along: Sequence[tuple[Rule, Any]], first: Any, count: Any) -> None:
        """Elements that some vectors of indices mean. A single index for each is mostly in range, and taken as it is."""

        def each(offset: Callable[[Any], Any]) -> None:
            with T.loop(count) as j:
                own = T.let(j * AT_ONCE)
                self._looked_up(row, sink, T.let(first + own), own, offset)

        def computed() -> None:
            kept = T.local(self.offsets, KEPT)
            with T.loop(count) as j:
                own = T.let(j * AT_ONCE)
                x = [*row.outer, T.let(first + own)]
                T.store(kept, T.run(own, AT_ONCE), picked(along, x, self.tuples, self.offsets, self.unit))
            each(lambda place: T.cast(kept[place], "int64"))

        look = along[0][0].look
        assert look is not None
        if len(along) > 1 or not self.leaves.has("bits"):
            computed()
            return
        indices = row.buffers[look.tensor]
        place = T.let(movement.value(look.place, [*row.outer, first]))
        fits, again, more = alike(self.leaves, indices, place, count, along[0][0].size, self.tuples)
        step = T.i64(1) if self.unit else along[0][0].step
        T.either(fits, lambda: each(lambda place: (T.cast(indices[again + place], "int64") + more) * step), computed)

    def _looked_up(self, row: _Row, sink: Sink, x: Any, first: Any, offset: Callable[[Any], Any]) -> None:
        """Elements with these offsets, from the first one on."""
        source, step = row.buffers[row.move.source], row.move.read.steps[-1] if self.along < 0 else T.i64(self.along)
        # What follows takes a vector of them.
        several = T.local(self.formula.inputs[0].data_type.tvm, AT_ONCE) if self.formula.key else None
        for lane in range(AT_ONCE):
            at = T.let(x + lane)
            found = source[row.source + at * step + offset(first + lane)]
            if several is None:
                T.store(row.result.buffer, row.result.place([at]), self.leaves.apart(found))
            else:
                T.store(several, T.i64(lane), found)
        if several is not None:
            sink.put([x], several[T.run(T.i64(0), AT_ONCE)])

    def _pieces(self, row: _Row, rule: Rule, start: Any, stop: Any) -> None:
        """The part of a row that is inside of the source, and what is around it."""
        kind, n, zero = rule.kind, rule.size, T.i64(0)
        first = T.let(
            movement.value(rule.at, row.outer) if row.outer else rule.at.base
        )  # the coordinate of the row's first element
        looked = None
        if rule.look is not None:
            place = movement.value(rule.look.place, row.outer) if row.outer else rule.look.place.base
            looked = T.let(row.buffers[rule.look.tensor][place])
        step, along = row.move.read.steps[-1], rule.at.steps[-1]
        sink, source = row.sink(self.formula), row.buffers[row.move.source]

        def clipped(bound: Any) -> Any:
            return T.hold(T.max(start, T.min(stop, bound)))

        if kind == movement.TURNED:
            length = T.let(movement.length(looked, n))
            behind = clipped(length - first)
            # From the last element of the sequence back to its first one; behind it, forwards.
            back = T.let(row.source + (length - 1 - first) * rule.step)
            with T.loop(behind - start) as i:
                x = T.let(start + i)
                sink.put([x], source[back + x * (step - rule.step)])
            self._copied(row, row.source + first * rule.step, step + rule.step, behind, stop)
            return
        if kind == movement.WHOLE:
            self._filled(row, start, stop)
            divisor = rule.divisor
            low = T.hold(T.truncdiv(T.max(first + start, zero) + divisor - 1, divisor))
            high = T.hold(T.min(n, T.truncdiv(T.max(first + stop, zero) + divisor - 1, divisor)))
            with T.loop(T.let(T.max(high - low, zero))) as i:
                quotient = T.let(low + i)
                x = T.let(quotient * divisor - first)
                sink.put([x], source[row.source + x * step + quotient * rule.step])
            return
        if kind == movement.EQUAL:
            self._filled(row, start, stop)
            place = T.let(movement.normalized(looked, n) - first)
            # The index itself is in range; a row has all of these places, or a task some of them.
            with T.when((place >= start) & (place < stop)):
                sink.put([place], source[row.source + place * step])
            return
        low = clipped(T.truncdiv(T.max(zero - first, zero) + along - 1, along))
        high = T.hold(T.max(low, clipped(T.truncdiv(T.max(n - first, zero) + along - 1, along))))
        around = self._filled if kind in movement.FILLS else self._each
        with T.when(start < low):
            around(row, start, low)
        with T.when(low < high):
            self._copied(row, row.source + first * rule.step, step + rule.step * along, low, high)
        with T.when(high < stop):
            around(row, high, stop)


def _rows_of(move: Move, way: str = "lines") -> Any:
    """How many rows a move has, or what a way does instead of them."""
    outer = move.sizes[:-1] if way in ("lines", "elements") else move.sizes[:-2]
    if way == "tiles":
        outer = (*outer, tiles(move.sizes[-2]))
    return T.let(math.prod(outer, start=T.i64(1)))

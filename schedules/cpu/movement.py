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
from tvmdml.schedules.cpu import STREAMED, TASKS_PER_THREAD, _default, _scatter, per_task, share, split, stream_bytes
from tvmdml.schedules.cpu._arranged import (
    common,
    crossing,
    has_along,
    in_long_runs,
    inner_step,
    last_but_one,
    last_two,
    pieced_by,
    repeated_last,
    runs_in_turns,
    tuples_of,
)
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._picked import AT_ONCE, as_they_are, picked
from tvmdml.schedules.cpu._runs import Runs, aligned_elements, are_lines, lanes_of
from tvmdml.schedules.cpu._tiles import SIDE, corner, tiles
from tvmdml.schedules.cpu._woven import unwoven, woven
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
    stream_bytes=stream_bytes("least bytes of the results to write with non-temporal stores"),
    aligned_elements=aligned_elements(1024),
)  # fmt: skip

_ROWS = 4
"""With fewer rows for each task, tasks also divide rows."""


def kernel(desc: Movement, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """The kernel of one operator."""
    if not desc.is_moved():
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
    contiguous = last[-1] == 1 and all(one in (0, 1) for one in last)
    elements = sum(math.prod(move.sizes) for move in moves)
    tensors = (formula.inputs[0], *(one for one in formula.inputs[1:] if any(one.layout)), *formula.outputs)
    moved = elements * sum(one.data_type.itemsize for one in tensors)
    tasks = split(moved, target, knobs.task_bytes, knobs.tasks_per_thread)
    parts = tasks > 1 and turned is None and runs is None and min(math.prod(move.sizes[:-1]) for move in moves) < _ROWS * tasks
    shortest, longest = (some(move.sizes[-1] for move in moves) for some in (min, max))
    divided = any(pieced_by(move) is not None for move in moves)
    rows = "short" if longest < lanes else "any" if parts or divided or shortest < lanes else "long"
    streamed = elements * formula.outputs[0].data_type.itemsize >= knobs.stream_bytes and are_lines(formula, lanes)
    writer = _Writer(
        formula,
        Leaves(target),
        transfer=transfer._replace(moves=moves),
        types=desc.kinds(),
        way="tiles" if turned is not None else "woven" if runs is not None else "lines" if contiguous else "elements",
        tuples=tuples_of(moves),
        unit=all(rule.step == 1 for rule in moves[0].rules),
        runs=0 if runs is None or turned is not None else moves[0].sizes[-2],
        lanes=lanes,
        last=last,
        parallel=tasks > 1,
        parts=parts,
        rows=rows,
        stream=streamed and contiguous and all(map(in_long_runs, moves)),
        aligned=knobs.aligned_elements,
    )
    fill = transfer.fill - (1 << 64) if transfer.fill >> 63 else transfer.fill
    offset = 0 if transfer.filled_from is None else transfer.filled_from[1]
    scalars = (tasks, fill, offset, *writer.scalars)
    module, *also = desc.modules()
    scratch = (("int64", (len(writer.own) + 1) * len(moves)),) if len(moves) > 1 else ()
    return Kernel(module, writer.way, writer.parameters, writer.function, scalars, scratch, tuple(also))


class _Constant(NamedTuple):
    """A source whose elements are all alike."""

    value: Any
    buffer: Any = None

    def within(self, outer: Sequence[Any]) -> _Constant:
        """The same everywhere."""
        return self

    def get(self, at: Sequence[Any], lanes: int = 1) -> Any:
        """The element, or a vector of it."""
        return self.value if lanes == 1 else T.splat(self.value, lanes)


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


class _Writer(Runs):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    transfer: Transfer
    types: tuple[str, ...]
    way: str
    runs: int
    """How many runs take turns, if the way is ``woven``."""
    tuples: str
    """The type in which many indices of a row are compared at once; empty if they are not contiguous."""
    unit: bool
    """Whether what is looked up are offsets: the source's steps there are 1."""
    parallel: bool
    parts: bool

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
            tasks, fill, offset = f.scalar("tasks"), f.scalar("fill"), f.scalar("offset")
            numbers = f.scalars("number", count)
            for i, number in enumerate(f.scalars("own", len(self.own) * len(moves))):
                T.store(table, i, number)
            # Behind them, where the many sources or results are, of which each move has one.
            behind = len(self.own) * len(moves)
            many = {places[0]: behind for places in (sources, results) if len(places) > 1}

            def one(number: Any, part: Any) -> None:
                """A task's share of a move of many."""
                own = {at: T.let(table[part * len(self.own) + i]) for i, at in enumerate(self.own)}
                move = moves[0].expressions([own.get(i, number) for i, number in enumerate(numbers)])
                tensors = list(buffers)
                for of, first in many.items():
                    tensors[of] = self.leaves.kept(table, T.let(part + first), str(buffers[of].dtype))
                self._move(number, tasks, move, tensors)

            def task(number: Any) -> None:
                bits = self.formula.inputs[0].data_type.tvm
                if self.transfer.filled_from is None:
                    self.fill = T.let(T.cast(fill, bits))
                else:
                    self.fill = T.let(buffers[self.transfer.filled_from[0]][offset])
                if len(moves) > 1:
                    with T.loop(T.i64(len(moves))) as part:
                        one(number, part)
                else:
                    self._move(number, tasks, moves[0].expressions(numbers), buffers)
                if self.stream:
                    self.leaves.fence()

            with self.leaves.available():
                for places in (sources, results):
                    if len(places) > 1:
                        self.leaves.keep([buffers[i] for i in places], table, behind)
                per_task(tasks, self.parallel, task)
        return f.result()

    def _move(self, number: Any, tasks: Any, move: Move, buffers: Sequence[Any]) -> None:
        if self.way in ("tiles", "woven"):
            (self._tiles if self.way == "tiles" else self._woven)(number, tasks, move, buffers)
            return
        *outer, length = move.sizes
        total = math.prod(outer[1:], start=outer[0]) if outer else T.i64(1)
        run = self._run
        if not self.parts:
            begin, end = share(number, tasks, total) if self.parallel else (T.i64(0), T.let(total * T.i64(1)))
            self._each_row(begin, end, outer, lambda at: run(self._row(move, at, buffers), T.i64(0), length))
            return
        begin, end = share(number, tasks, T.let(total * length))
        first = T.hold(T.truncdiv(begin, length))
        last = T.hold(T.truncdiv(end + length - 1, length))
        row = T.Variable("int64", first)

        def part(at: list[Any]) -> None:
            now = T.let(row.value)
            start, stop = T.hold(T.max(begin - now * length, T.i64(0))), T.hold(T.min(end - now * length, length))
            run(self._row(move, at, buffers), start, stop)
            row.set(now + 1)

        self._each_row(first, last, outer, part)

    def _each_row(self, begin: Any, end: Any, outer: Sequence[Any], body: Callable[[list[Any]], None]) -> None:
        """Coordinates are divided out once, and then counted up."""
        with T.when(begin < end):
            row = [T.Variable("int64", at) for at in T.unravel(begin, outer)]
            with T.loop(end - begin):
                body([T.let(one.value) for one in row])
                T.count_up(row, outer)

    def _row(self, move: Move, outer: Sequence[Any], buffers: Sequence[Any]) -> _Row:
        source, comes = movement.value(move.read, outer) if outer else move.read.base, None
        for rule, known in zip(move.rules, self.transfer.moves[0].rules, strict=True):
            if not known.follows(-1):
                found, inside = movement.resolved(rule, buffers, outer or [T.i64(0)])
                source, comes = source + found * rule.step, movement.both(comes, inside)
        place = T.let(movement.value(move.written, outer) if outer else move.written.base)
        step = move.written.steps[-1] if self.last[-1] < 0 else self.last[-1]
        result = Source(buffers[move.result], (step,), place)
        return _Row(move, outer, buffers, T.let(source), result, comes, self._beside(move, outer, buffers))

    def _beside(self, move: Move, outer: Sequence[Any], buffers: Sequence[Any], along: int = 1) -> tuple[Source, ...]:
        """What follows takes beside elements, by the last coordinates."""
        found = []
        for one, last in zip(move.beside, self.last[1:], strict=False):
            steps = one.place.steps[-along:]
            base = T.let(movement.value(one.place, outer) if outer else one.place.base * T.i64(1))
            found.append(Source(buffers[one.tensor], steps if last < 0 else (*steps[:-1], last), base))
        return tuple(found)

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
        (self.lines if contiguous else self.elements)(row.sink(self.formula, _Constant(self.fill)), start, stop)

    def _each(self, row: _Row, start: Any, stop: Any) -> None:
        """Each element by itself, as all rules say; many indices at once if they are contiguous."""
        sink = row.sink(self.formula)
        if self.tuples:
            rules = [rule for rule, known in zip(row.move.rules, self.transfer.moves[0].rules, strict=True) if known.follows(-1)]
            rounds = T.let(T.truncdiv(T.max(stop - start, T.i64(0)), T.i64(AT_ONCE)))
            with T.loop(rounds) as i:
                x = T.let(start + i * AT_ONCE)

                def put(offsets: Sequence[Any], x: Any = x) -> None:
                    # What follows takes a vector of them.
                    several = T.local(self.formula.inputs[0].data_type.tvm, AT_ONCE) if self.formula.key else None
                    for lane, offset in enumerate(offsets):
                        at = T.let(x + lane)
                        found = row.buffers[row.move.source][row.source + at * row.move.read.steps[-1] + offset]
                        if several is None:
                            T.store(row.result.buffer, row.result.place([at]), self.leaves.apart(found))
                        else:
                            T.store(several, T.i64(lane), found)
                    if several is not None:
                        sink.put([x], several[T.run(T.i64(0), AT_ONCE)])

                def brought(x: Any = x, put: Any = put) -> None:
                    put(picked([(rule, row.buffers) for rule in rules], [*row.outer, x], self.tuples))

                if len(rules) == 1 and self.leaves.has("bits"):
                    fits, offsets = as_they_are(rules[0], row.buffers, [*row.outer, x], self.leaves, self.unit)
                    T.either(fits, lambda put=put, offsets=offsets: put(offsets()), brought)
                else:
                    brought()
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

    # -- Runs that take turns

    def _woven(self, number: Any, tasks: Any, move: Move, buffers: Sequence[Any]) -> None:
        *outer, _, length = move.sizes
        into = self.last[0] == 1
        # Of what follows, whether each run has elements of its own, or one element.
        along = [int(one.place.steps[-1] != 0) for one in self.transfer.moves[0].beside]
        begin, end = share(number, tasks, T.let(math.prod(outer, start=T.i64(1))))

        def row(at: list[Any]) -> None:
            source, place = (T.let(movement.value(one, at) if at else one.base) for one in (move.read, move.written))
            with T.loop(T.let(T.truncdiv(length + (self.lanes - 1), T.i64(self.lanes)))) as i:
                x = T.hold(T.min(i * self.lanes, length - self.lanes))
                one, many = (source, place) if into else (place, source)
                step = (move.read if into else move.written).steps[-2]
                apart = [T.run(T.let(one + step * r + x), self.lanes) for r in range(self.runs)]
                joined = [T.run(T.let(many + x * self.runs + r * self.lanes), self.lanes) for r in range(self.runs)]
                given, taken, weave = (apart, joined, woven) if into else (joined, apart, unwoven)
                values = weave([T.let(buffers[move.source][own]) for own in given])
                for r, (own, value) in enumerate(zip(taken, values, strict=True)):
                    beside = []
                    for one, is_along in zip(move.beside, along, strict=True):
                        base = T.let(movement.value(one.place, at) if at else one.place.base * T.i64(1))
                        first = x * self.runs + r * self.lanes if into else x
                        if not into:
                            base = T.let(base + one.place.steps[-2] * r)
                        beside.append(Source(buffers[one.tensor], (is_along,), base).get([T.let(first)], self.lanes))
                    T.store(buffers[move.result], own, *self.formula.value(value, *beside))

        self._each_row(begin, end, outer, row)

    # -- Tiles

    def _tiles(self, number: Any, tasks: Any, move: Move, buffers: Sequence[Any]) -> None:
        *outer, height, width = move.sizes
        groups = [*outer, tiles(height)]
        begin, end = share(number, tasks, math.prod(groups[1:], start=groups[0]))
        with T.loop(end - begin) as i:
            *at, tile = T.unravel(begin + i, groups)
            source, comes = movement.value(move.read, at) if at else move.read.base, None
            for rule in move.rules:
                found, inside = movement.resolved(rule, buffers, at or [T.i64(0)])
                source, comes = source + found * rule.step, movement.both(comes, inside)
            place = T.let(movement.value(move.written, at) if at else move.written.base)
            result = Source(buffers[move.result], (move.written.steps[-2], 1), place)
            sources = (Source(buffers[move.source], (1, move.read.steps[-1]), T.let(source)),)
            top, beside = corner(tile, height), self._beside(move, at, buffers, 2)

            def copied() -> None:
                self.row_of_tiles(Sink(self.formula, (*sources, *beside), (result,)), top, width)

            def filled() -> None:
                with T.loop(T.i64(SIDE)) as r:
                    alike: Any = _Constant(self.fill)
                    row = Sink(self.formula, (alike, *beside), (result,)).within([T.let(top + r)])
                    self.lines(row, T.i64(0), width)

            copied() if comes is None else T.either(comes, copied, filled)

"""The movement family on the CPU: limited by memory, so whole lines are moved wherever elements are contiguous.

A task has a share of each move's rows. What a rule decides for a whole row is decided once: where it begins, or that it is fill. A
rule for the coordinate along a row divides it into parts: before the source, inside of it, and behind. There are four ways:

- ``lines``: elements of a row are contiguous on both sides, or one is repeated: vectors of a cache line, streamed if large.
- ``tiles``: the source is contiguous in another dimension than the result: squares are transposed in registers.
- ``permuted``: blocks have whole vectors on both sides, with their elements in another order: they are permuted in registers.
- ``elements``: any other strides, and indices that differ within a row.

Elements move as bits, so types of one width share kernels. Many moves (JOIN, SPLIT) are a loop in one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.formula import Formula, Sink, Source
from tvmdml.kernels.kernel import Kernel, Offers
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.movement import Move, Transfer
from tvmdml.operators._contract import Shared
from tvmdml.operators._movement import Movement
from tvmdml.operators._movement_scatter import Scattered
from tvmdml.operators.fold import Fold
from tvmdml.schedules.cpu import (
    STREAMED,
    TASKS_PER_THREAD,
    _default,
    _fold,
    _scatter,
    per_task,
    resampling,
    share,
    split,
    stream_bytes,
)
from tvmdml.schedules.cpu._ahead import FAR, ROWS, read_ahead
from tvmdml.schedules.cpu._arranged import (
    columns_of,
    common,
    crossing,
    in_long_runs,
    inner_step,
    last_but_one,
    looked_bytes,
    offsets_in,
    pieced_by,
    repeated_last,
    tuples_of,
)
from tvmdml.schedules.cpu._blocks import block_of
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._picked import AT_ONCE
from tvmdml.schedules.cpu._row_parts import RowsWriter
from tvmdml.schedules.cpu._runs import aligned_elements, are_lines, lanes_of
from tvmdml.schedules.cpu._tiles import tiles
from tvmdml.targets import Target

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
    ahead_bytes=Knob(
        1 << 15, (1, *(1 << n for n in range(13, 30))), "most bytes to update in no order without asking for them before",
        derived=lambda caches: caches.l1,
    ),
    aligned_elements=aligned_elements(1024),
)  # fmt: skip

_PAGE = 4096
"""Parts of rows that are shorter have lines or pages in common with the next ones."""
_LISTED = 32
"""Of more moves, a kernel reads where tensors are from the list of the call's arguments: TVM's time for parameters is quadratic."""
_ROWS = 4
"""With fewer rows for each task, tasks also divide rows."""


def kernel(desc: Movement, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """The kernel of one operator."""
    if not desc.is_moved():
        weighed = desc.resampling()
        if weighed is not None:
            return resampling.kernel(weighed, target, shared)
        found: Kernel | None = None
        if isinstance(desc, Scattered):
            found = _scatter.kernel(desc, target, knobs)
        elif isinstance(desc, Fold):
            found = _fold.kernel(desc, target, knobs)
        return found or _default.kernel(desc, target, shared)
    return kernel_of(desc.transfer(), desc, target, knobs)


def kernel_of(transfer: Transfer, desc: Movement, target: Target, knobs: Any) -> Kernel:
    """The kernel of a transfer whose elements have the types of an operator's."""
    transfer = transfer.simplified()
    moves, formula = transfer.moves, desc.formula()
    lanes = lanes_of(formula, target)
    # Without fused multiply-adds LLVM takes minutes for a tile of functions.
    fused = not formula.key or getattr(target, "processor", None) is None or target.processor.has("fma")  # type: ignore[attr-defined]
    turned = crossing(moves) if fused else None
    block = block_of(moves, lanes) if turned is None else None
    if turned is not None:
        moves = tuple(last_but_one(move, turned) for move in moves)
    elif block is None:
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
    parts = tasks > 1 and turned is None and block is None and min(math.prod(move.sizes[:-1]) for move in moves) < _ROWS * tasks
    shortest, longest = (some(move.sizes[-1] for move in moves) for some in (min, max))
    divided = any(pieced_by(move) is not None for move in moves)
    counts = [math.prod(move.sizes[:-1]) for move in moves]
    rows = "short" if longest < lanes else "any" if parts or divided or columns or shortest < lanes else "long"
    streamed = elements * formula.outputs[0].data_type.itemsize >= knobs.stream_bytes
    tuples = tuples_of(moves)
    if tuples:
        streamed = streamed and AT_ONCE % lanes == 0 and are_lines(formula, AT_ONCE) and last[-1] == 1
        streamed = streamed and longest >= knobs.aligned_elements and not columns
    elif block is None:
        streamed = streamed and are_lines(formula, lanes) and contiguous and all(map(in_long_runs, moves))
    else:
        streamed = streamed and are_lines(formula, block.lanes) and block.are_lines(moves[0])
    # Rows that share lines take turns. So do those of results that are streamed, one row at a time: the source is read as it lies.
    in_turns = len(moves) > 1 and not parts and all(one == counts[0] for one in counts)
    long_rows = shortest * itemsize >= _PAGE
    writer = _Writer(
        formula,
        Leaves(target),
        transfer=transfer._replace(moves=moves),
        types=desc.kinds(),
        way="tiles" if turned is not None else "permuted" if block is not None else "lines" if contiguous else "elements",
        tuples=tuples,
        far=FAR if tuples and moved + elements * looked_bytes(transfer) >= 8 * knobs.block_bytes else 0,
        offsets=offsets_in(moves[0]),
        along=common([move.read.steps[-1] for move in moves]),
        unit=all(rule.step == 1 for rule in moves[0].rules) and not columns,
        columns=columns,
        block=block,
        lanes=lanes,
        last=last,
        parts=parts,
        blocks=in_turns and (streamed or not long_rows),
        rows=rows,
        stream=streamed,
        aligned=knobs.aligned_elements,
    )
    row_bytes = max(1, itemsize * sum(move.sizes[-1] for move in moves))
    at_once = 1 if streamed and long_rows else max(1, knobs.block_bytes // (2 * row_bytes))
    tasks = min(tasks, -(-moves[0].sizes[-1] // columns)) if columns else tasks
    fill = transfer.fill - (1 << 64) if transfer.fill >> 63 else transfer.fill
    offset = 0 if transfer.filled_from is None else transfer.filled_from[1]
    scalars = (tasks, fill, offset, at_once, *writer.scalars)
    module, *also = desc.modules()
    scratch: tuple[tuple[str, int], ...] = ()
    if len(moves) > 1 and not writer.listed:
        scratch = (("int64", (len(writer.own) + 1) * len(moves)),)
    if columns:
        scratch = ((formula.inputs[0].data_type.tvm, tasks * columns * moves[0].rules[0].size),)
    offers = Offers.OWN if writer.way == "elements" else Offers.OWN | Offers.VECTORS
    return Kernel(module, writer.way, writer.parameters, writer.function, scalars, scratch, tuple(also), offers=offers)


_Each = Callable[[Any], tuple[list[Any], list[Any]]]
"""The integers that are a move's own, and its tensors among many."""


class _Writer(RowsWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    types: tuple[str, ...]
    parts: bool
    blocks: bool
    """Whether many moves take turns with some of their rows each, so that lines that they share are still in the cache."""

    def __init__(self, formula: Formula, leaves: Leaves, **choices: Any) -> None:
        super().__init__(formula, leaves, **choices)
        moves = self.transfer.moves
        columns = list(zip(*(move.numbers() for move in moves), strict=True))
        self.own = tuple(i for i, column in enumerate(columns) if any(one != column[0] for one in column[1:]))
        """The integers of moves that are not the same for all, which follow the others: a task reads them one move at a time."""
        own = [columns[i][k] for k in range(len(moves)) for i in self.own]
        self.scalars = (*(column[0] for column in columns), *own)
        self.listed = len(moves) > _LISTED and all(one == tuple(range(one[0], one[-1] + 1)) for one in self._places())
        """Whether there are so many that the kernel has no parameter for each tensor."""
        # Many moves are alike but for one tensor each, so the first one's rules are those of all.
        forms = (len(moves), moves[0].form(), len(moves[0].sizes), *self._places())
        rules = tuple(
            f"{rule.kind} {rule.at.steps[-1] != 0} {bool(rule.look and rule.look.place.steps[-1])}" for rule in moves[0].rules
        )
        pieced = pieced_by(moves[0])
        self.parameters = (
            *formula.key,
            *((name, value) for name, value in choices.items() if name not in ("transfer", "block")),
            ("block", str(choices["block"])),
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

    def function(self) -> T.PrimFunc:
        if self.listed:
            return self._very_many()
        return self._many() if len(self.transfer.moves) > 1 else self._one()

    def _one(self) -> T.PrimFunc:
        """The kernel of one move."""
        (written,) = self.transfer.moves
        with T.function() as f:
            buffers = [f.buffer(f"tensor{i}", dtype) for i, dtype in enumerate(self.types)]
            packed: Any = f.buffer("packed", self.formula.inputs[0].data_type.tvm) if self.columns else None
            tasks, fill, offset, _ = (f.scalar(name) for name in ("tasks", "fill", "offset", "block"))
            numbers = f.scalars("number", written.integers())

            def task(number: Any) -> None:
                move = written.expressions(numbers)
                if self.columns:
                    self._by_columns(number, tasks, move, buffers, packed)
                else:
                    self._rows(*self._share(number, tasks, move), move, buffers)

            with self.leaves.available():
                self._tasks(tasks, fill, offset, buffers, task)
        return f.result()

    def _many(self) -> T.PrimFunc:
        """The kernel of a move for each of many sources or results."""
        moves, several = self.transfer.moves, [places for places in self._places() if len(places) > 1]
        with T.function() as f:
            buffers = [f.buffer(f"tensor{i}", dtype) for i, dtype in enumerate(self.types)]
            table: Any = f.buffer("table", "int64")
            tasks, fill, offset, block = (f.scalar(name) for name in ("tasks", "fill", "offset", "block"))
            numbers = f.scalars("number", moves[0].integers())
            for i, number in enumerate(f.scalars("own", len(self.own) * len(moves))):
                T.store(table, i, number)
            # Behind them, where the many sources or results are, of which each move has one.
            behind = len(self.own) * len(moves)

            def each(part: Any) -> tuple[list[Any], list[Any]]:
                own = [T.let(table[part * len(self.own) + i]) for i in range(len(self.own))]
                kept = [self.leaves.kept(table, T.let(part + behind), self.types[places[0]]) for places in several]
                return own, kept

            with self.leaves.available():
                for places in several:
                    self.leaves.keep([buffers[i] for i in places], table, behind)
                self._tasks(tasks, fill, offset, buffers, self._in_turns(tasks, block, numbers, buffers, each))
        return f.result()

    def _very_many(self) -> T.PrimFunc:
        """The same of any number, which are neighbours among the tensors."""
        moves, several = self.transfer.moves, [places for places in self._places() if len(places) > 1]
        with T.listed_function() as f:
            first = f.skip(len(self.types))
            apart = {place for places in several for place in places}
            buffers = [None if i in apart else f.tensor(T.i64(first + i), kind) for i, kind in enumerate(self.types)]
            tasks, fill, offset, block = (f.scalar(name) for name in ("tasks", "fill", "offset", "block"))
            numbers = f.scalars("number", moves[0].integers())
            behind = f.skip(len(self.own) * len(moves))

            def each(part: Any) -> tuple[list[Any], list[Any]]:
                own = [f.integer(part * len(self.own) + (behind + i)) for i in range(len(self.own))]
                return own, [f.tensor(part + (first + places[0]), self.types[places[0]]) for places in several]

            with self.leaves.available():
                self._tasks(tasks, fill, offset, buffers, self._in_turns(tasks, block, numbers, buffers, each))
        return f.result()

    def _in_turns(
        self, tasks: Any, block: Any, numbers: Sequence[Any], buffers: Sequence[Any], each: _Each
    ) -> Callable[[Any], None]:
        """What writes a task's share of many moves."""
        several = [places[0] for places in self._places() if len(places) > 1]

        def one(part: Any, rows: Callable[[Move], tuple[Any, Any]]) -> None:
            """Rows of a move of many."""
            own, found = each(part)
            given, tensors = dict(zip(self.own, own, strict=True)), list(buffers)
            move = self.transfer.moves[0].expressions([given.get(i, number) for i, number in enumerate(numbers)])
            for place, tensor in zip(several, found, strict=True):
                tensors[place] = tensor
            self._rows(*rows(move), move, tensors)

        def task(number: Any) -> None:
            every = T.i64(len(self.transfer.moves))
            if not self.blocks:
                with T.loop(every) as part:
                    one(part, lambda move: self._share(number, tasks, move))
                return
            begin, end = share(number, tasks, _product(self.transfer.moves[0].expressions(numbers).sizes[:-1]))
            with T.loop(T.truncdiv(end - begin + block - 1, block)) as i:
                first = T.hold(begin + i * block)
                last = T.hold(T.min(first + block, end))
                with T.loop(every) as part:
                    one(part, lambda move: (first, last))

        return task

    def _tasks(self, tasks: Any, fill: Any, offset: Any, buffers: Sequence[Any], moved: Callable[[Any], None]) -> None:
        """All tasks, each with the fill's value."""

        def task(number: Any) -> None:
            bits = self.formula.inputs[0].data_type.tvm
            if self.transfer.filled_from is None:
                self.fill = T.let(T.cast(fill, bits))
            else:
                self.fill = T.let(buffers[self.transfer.filled_from[0]][offset])
            moved(number)
            if self.stream:
                self.leaves.fence()

        per_task(tasks, task)

    def _share(self, number: Any, tasks: Any, move: Move) -> tuple[Any, Any]:
        """A task's part of a move: some of its rows, or of all elements if rows are divided, too."""
        total = _product(move.sizes) if self.parts else self._items(move)
        begin, end = share(number, tasks, total)
        return begin, end

    def _items(self, move: Move) -> Any:
        """How many rows a move has, or what a way does instead of them."""
        if self.way == "permuted":
            return self.blocks_of(move)
        if self.way == "tiles":
            return T.let(_product(move.sizes[:-2]) * tiles(move.sizes[-2]))
        return _product(move.sizes[:-1])

    def _rows(self, begin: Any, end: Any, move: Move, buffers: Sequence[Any]) -> None:
        """A part of a move."""
        if self.way in ("tiles", "permuted"):
            (self.transposed if self.way == "tiles" else self.permuted)(begin, end, move, buffers)
            return
        *outer, length = move.sizes
        run = self.run
        if not self.parts:
            self.each_row(begin, end, outer, lambda at: run(self.row(move, at, buffers), T.i64(0), length))
            return
        first = T.hold(T.truncdiv(begin, length))
        last = T.hold(T.truncdiv(end + length - 1, length))
        row = T.Variable("int64", first)

        def part(at: list[Any]) -> None:
            now = T.let(row.value)
            start, stop = T.hold(T.max(begin - now * length, T.i64(0))), T.hold(T.min(end - now * length, length))
            run(self.row(move, at, buffers), start, stop)
            row.set(now + 1)

        self.each_row(first, last, outer, part)

    def _by_columns(self, number: Any, tasks: Any, move: Move, buffers: list[Any], packed: Any) -> None:
        """Some columns at a time are copied beside each other; then their elements are looked up, row by row."""
        block = T.i64(self.columns)
        (rule,), (*outer, width) = move.rules, move.sizes
        begin, end = share(number, tasks, T.let(T.truncdiv(width + block - 1, block)))
        base = T.let(number * rule.size * block)
        looked = move._replace(rules=(rule._replace(step=block),))
        given = [packed if i == move.source else one for i, one in enumerate(buffers)]
        with T.loop(end - begin) as i:
            first = T.hold((begin + i) * block)
            stop = T.hold(T.min(first + block, width))
            lines = T.let(T.truncdiv(stop - first + (self.lanes - 1), T.i64(self.lanes)))
            with T.loop(rule.size) as k:
                if self.far:
                    with T.loop(lines) as line:
                        behind = T.let((k + ROWS) * rule.step + first + line * self.lanes)
                        read_ahead(buffers[move.source], T.let(move.read.base + behind))
                column = Source(buffers[move.source], (1,), T.let(move.read.base + k * rule.step))
                self.lines(Sink(self.formula, (column,), (Source(packed, (1,), T.let(base + k * block - first)),)), first, stop)
            source = T.let(base - first)

            def row(at: list[Any], first: Any = first, stop: Any = stop, source: Any = source) -> None:
                self.each(self.row(looked, at, given)._replace(source=source), first, stop)

            self.each_row(T.i64(0), _product(outer), outer, row)


def _product(sizes: Sequence[Any]) -> Any:
    return T.let(math.prod(sizes, start=T.i64(1)))

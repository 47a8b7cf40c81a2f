"""Updates on the CPU: a task copies its part of the result, and then applies those updates that fall into it, in their order.

No task waits for another, and none writes where another one does, so the last update wins with any number of tasks. A part is some
columns, or, where columns are too few, some of their places. There are three ways to apply updates:

- ``places``: one column after the other. A task that has only some of the places compares many indices with them at once.
- ``columns``: neighbouring columns are contiguous: an update of each, then the next one of each.
- ``slices``: neighbouring columns also have the same indices, so each update is a run of elements. If there are many, a task first
  notes the last update of each place: then it writes each place once, from there or from the input.

Updates that are combined (``combination``) are applied in the same ways, each to what is there then.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.formula import Formula, Sink, Source
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.movement import Updates
from tvmdml.operators._movement_scatter import Scattered
from tvmdml.schedules.cpu import per_task, share, split
from tvmdml.schedules.cpu._ahead import FAR, ROWS, ask, read_ahead, write_ahead
from tvmdml.schedules.cpu._arranged import columns_in
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._picked import AT_ONCE, alike
from tvmdml.schedules.cpu._runs import LINE
from tvmdml.schedules.cpu._scatter_applied import AHEAD_LINES, AHEAD_ROWS, Applied
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc

_LEAST = 256
"""The least bytes of neighbouring columns for a task."""
_SEARCHERS = 3
"""The least tasks that divide single places: each looks at all indices, which takes a third to a half as long as all updates."""
_DECIDE = 256
"""What it costs to decide where a place comes from, beside moving it, as bytes that are moved."""
_AHEAD = 8
"""Vectors of updates whose places are on their way into the cache."""
_LOOK = 8
"""What it costs to look where an update goes, beside moving it, as bytes that are moved."""


def kernel(desc: Scattered, target: Target, knobs: Any) -> Kernel | None:
    """The kernel of updates; ``None`` if the indices or the places are not a single sequence in memory."""
    found = desc.updates().simplified()
    sizes = [index.size for index in found.indices]
    places = [_merged(sizes, [getattr(index, side) for index in found.indices]) for side in ("source", "result")]
    if len(found.order) > 1 or None in places:
        return None
    itemsize = desc.outputs()[0].data_type.itemsize
    combination = desc.combination()
    neighbours = bool(found.columns) and found.result.steps[-1] == 1
    alike = neighbours and all(index.at.steps[len(found.columns) - 1] == 0 for index in found.indices)
    inner = neighbours and (alike or found.columns[-1] * itemsize >= LINE)
    rank = len(found.columns) - inner
    width = found.columns[-1] if inner else 1
    way = "slices" if alike else "columns" if inner else "places"
    outer = math.prod(found.columns[:rank])
    work = 2 * itemsize * width * (found.places + found.length) + _LOOK * found.length * (1 if alike else width)
    tasks = split(outer * work, target, knobs.task_bytes, knobs.tasks_per_thread)
    piece, pieces = _pieces(way, found, outer, width * itemsize, itemsize, tasks, 8 * knobs.task_bytes)
    enough = outer * pieces >= 2 * target.tasks() or outer * pieces == target.tasks()
    parts = 1 if tasks == 1 or enough or (way == "places" and target.tasks() < _SEARCHERS) else target.tasks()
    packed = way == "columns" and parts == 1 and found.length * 2 >= found.places
    columns = columns_in(knobs.block_bytes, found.places, width, itemsize) if packed else 0
    if columns:
        piece, pieces = columns, -(-width // columns)
    room = found.places * itemsize * (piece if way == "columns" else 1)  # where updates are put in no order
    asked = room * width > knobs.ahead_bytes or parts > 1
    once = found.length * width * itemsize >= _DECIDE * found.places and found.length < 1 << 31
    rows, noted = (way == "slices" and bool(combination) is combined for combined in (True, False))
    noted = noted and once
    size = outer * width * found.places * itemsize
    along = 1 if inner else 0  # the coordinates of an update: the columns', and its number
    numbers: dict[str, tuple[int, ...]] = {
        "outer": found.columns[:rank],
        "length": (found.length,),
        "width": (width,),
        "pieces": (piece, pieces),
        "parts": (-(-found.places // parts), parts),
        "sizes": tuple(sizes),
        "weights": tuple(math.prod(sizes[j + 1 :]) for j in range(len(sizes))),
        "bases": tuple(index.at.base for index in found.indices),
        "places": tuple(places),  # type: ignore[arg-type]
        "source": found.source.steps[:rank],
        "result": found.result.steps[:rank],
        "given": found.given.steps[:rank],
        "looked": tuple(step for index in found.indices for step in index.at.steps[:rank]),
        "inner": (found.source.steps[rank], found.given.steps[rank], found.indices[0].at.steps[rank]) if inner else (),
        "number": (*(one.steps[rank + along] if found.order else 0 for one in (found.given, *(i.at for i in found.indices))),),
    }
    bits = TensorDesc(f"uint{8 * itemsize}", (1,))
    writer = _Writer(
        Formula((bits,), (bits,), lambda x: (x,), (), (), copied=True),
        Leaves(target),
        types=desc.kinds(),
        way=way,
        counts=tuple((name, len(own)) for name, own in numbers.items()),
        units=tuple((name, *(int(step == 1) for step in numbers[name])) for name in ("places", "inner", "number")),
        whole=inner and pieces == 1 and places == [width, width] and found.source.steps[rank] == 1,
        several=len(sizes) == 1 and (not alike or bool(combination)) and _fits(found, desc, rank if inner and not alike else -1),
        divided=parts > 1,
        packed=columns > 0,
        ahead=_AHEAD if way != "slices" and room > knobs.ahead_bytes else 0,
        far=FAR if outer * work >= 8 * knobs.block_bytes else 0,
        signed=desc.kinds()[1].startswith("i"),
        noted=noted,
        lanes=LINE // itemsize,
        rows="any",
        stream=noted and size >= knobs.stream_bytes,
        aligned=knobs.aligned_elements,
        combination=combination,
        row_lines=min(-(-width * itemsize // LINE), AHEAD_LINES) if rows and asked else 0,
        even=rows and width * itemsize % LINE == 0,
    )
    writer.combined = desc.combined
    total = outer * pieces * parts
    tasks = min(tasks, total) if parts == 1 else total
    scalars = (tasks, *(number for own in numbers.values() for number in own))
    scratch: tuple[tuple[str, int], ...] = ((f"uint{8 * itemsize}", tasks * columns * found.places),) if columns else ()
    if noted:
        scratch = (("int32", tasks * -(-found.places // parts)),)
    module, *also = desc.modules()
    return Kernel(module, f"updates_by_{way}", writer.parameters, writer.function, scalars, scratch, tuple(also))


def _merged(sizes: Sequence[int], steps: Sequence[int]) -> int | None:
    """The step of the row-major number of coordinates; ``None`` if it is not the same everywhere."""
    found, inside = None, 1
    for size, step in zip(reversed(sizes), reversed(steps), strict=True):
        if size == 1:
            continue
        found = step if found is None else found
        if step != found * inside:
            return None
        inside *= size
    return 1 if found is None else found


def _pieces(way: str, found: Updates, outer: int, row: int, itemsize: int, tasks: int, most: int) -> tuple[int, int]:
    """How many neighbouring columns a task has at once, and how many such pieces there are."""
    if way != "columns":  # places are divided instead
        return row // itemsize, 1
    # A piece of the result should stay in the cache, since its rows are written in any order.
    count = 1 if tasks == 1 else min(-(-tasks // outer), max(row // _LEAST, 1))
    count = max(count, min(row * found.places // most, row // _LEAST))
    piece = -(-row // max(count, 1))
    piece = -(-piece // LINE) * LINE // itemsize
    return piece, -(-row // (piece * itemsize))


def _fits(found: Updates, desc: Scattered, along: int) -> bool:
    """Whether indices are contiguous in a dimension, and can be compared in their own type."""
    kind = desc.kinds()[1]
    return len(found.order) == 1 and found.indices[0].at.steps[along] == 1 and (kind.endswith("64") or found.places < 1 << 31)


class _Several(NamedTuple):
    """Updates that are looked at together: neighbours of a row, by their numbers in it."""

    at: Any
    """Where the first one's index is."""
    following: Any
    """Where an index is that is looked at after the last one."""
    rounds: Any
    """How many vectors they are."""
    given: Callable[[Any], Any]
    """Where an update is."""
    goal: Callable[[Any, Any], Any]
    """Where one goes, by its number and its index."""
    one: Callable[[Any], None]
    """Makes an update that is not like the others."""
    asked: Callable[[Any], None]
    """Asks for what is read after these."""


class _Writer(Applied):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    counts: tuple[tuple[str, int], ...]
    """How many integers of each name are passed."""
    units: tuple[tuple[Any, ...], ...]
    """Which of some steps are 1."""
    whole: bool
    """Whether places with all their columns are contiguous."""
    several: bool
    """Whether many indices are looked at together."""
    packed: bool
    """Whether some columns at a time are updated in scratch memory, where they are beside each other."""
    noted: bool
    """Whether each place is written once, after its last update is known."""
    ahead: int
    """How many vectors of updates before one its places are asked for; 0 if they are in the first cache."""
    far: int
    """How many updates before one its index and value are asked for; 0 if a second-level cache has them."""

    def function(self) -> T.PrimFunc:
        with T.function() as f:
            names = ("source", "indices", "updates", "result")
            self.at = SimpleNamespace(**{name: f.buffer(name, kind) for name, kind in zip(names, self.types, strict=True)})
            packed = f.buffer("packed", self.types[0]) if self.packed else None
            last = f.buffer("last", "int32") if self.noted else None
            tasks = f.scalar("tasks")
            self.n = n = SimpleNamespace(**{name: f.scalars(name, count) for name, count in self.counts})
            for name, *known in self.units:
                setattr(n, name, [1 if is_unit else own for is_unit, own in zip(known, getattr(n, name), strict=True)])
            sizes = [*n.outer, n.pieces[1], n.parts[1]]

            def task(number: Any) -> None:
                begin, end = share(number, tasks, T.let(math.prod(sizes[1:], start=sizes[0])))
                if packed is not None:
                    self.room = (packed, T.let(number * n.pieces[0] * n.sizes[0]))
                if last is not None:
                    self.room = (last, T.let(number * n.parts[0]))
                with T.loop(end - begin) as i:
                    self._part(*_split(T.unravel(begin + i, sizes)))
                if self.stream:
                    self.leaves.fence()

            with self.leaves.available():
                per_task(tasks, task)
        return f.result()

    def _part(self, outer: list[Any], piece: Any, part: Any) -> None:
        n, rank = self.n, len(outer)
        places = T.let(math.prod(n.sizes[1:], start=n.sizes[0] * T.i64(1)))
        self.low, self.high = (T.hold(T.min((part + k) * n.parts[0], places)) for k in (0, 1))
        self.first, self.last_column = (T.hold(T.min((piece + k) * n.pieces[0], n.width[0])) for k in (0, 1))
        self.source, self.result, self.given = (T.let(T.dot(outer, own) * T.i64(1)) for own in (n.source, n.result, n.given))
        steps = [n.looked[rank * j : rank * (j + 1)] for j in range(len(n.sizes))]
        self.looked = [T.let(base + T.dot(outer, own)) for base, own in zip(n.bases, steps, strict=True)]
        self.goal: tuple[Any, Any, Any] = (self.at.result, self.result, n.places[1])
        if self.packed:
            buffer, base = self.room
            self.goal = (buffer, T.let(base - self.first), n.pieces[0])
        if self.noted:
            self._written_once()
            return
        self._copied()
        if self.way == "columns":
            with T.loop(n.length[0]) as number:
                one, several = functools.partial(self._moved, number), functools.partial(self._columns, number)
                self._each(self.first, self.last_column, one, several)
            if self.packed:
                self._copied_rows(self.goal, (self.at.result, self.result, n.places[1]), 1)
        elif self.way == "places":
            sought = self._sought if self.divided else self._in_order
            self._each(T.i64(0), n.length[0], self._moved, sought)
        elif self.combination and self.divided:
            self._each(T.i64(0), n.length[0], self._moved, self._sought)
        else:
            with T.loop(n.length[0]) as number:
                if self.row_lines:
                    self._asked_row(T.let(T.min(number + AHEAD_ROWS, n.length[0] - 1)))
                self._moved(number)

    def _each(self, first: Any, end: Any, one: Callable[[Any], None], several: Callable[[Any, Any], None]) -> None:
        """Updates in their order: vectors of them together, as far as that goes, and then each by itself."""
        if self.several and self.leaves.has("bits"):
            rounds = T.let(T.truncdiv(T.max(end - first, T.i64(0)), T.i64(AT_ONCE)))
            several(first, rounds)
            first = T.let(first + rounds * AT_ONCE)
        with T.loop(end - first) as i:
            one(T.let(first + i))

    def _run(self, source: Any, result: Any, start: Any, stop: Any, steps: tuple[Any, Any]) -> None:
        """Elements that are these steps apart."""
        (from_buffer, begin), (to_buffer, place) = source, result
        sink = Sink(
            self.formula,
            (Source(from_buffer, (steps[0],), T.let(begin)),),
            (Source(to_buffer, (steps[1],), T.let(place)),),
        )
        contiguous = all(isinstance(step, int) and step == 1 for step in steps)
        (self.lines if contiguous else self.elements)(sink, start, stop)

    def _copied(self) -> None:
        n, source, result = self.n, self.at.source, self.at.result
        if self.way == "places":
            self._run((source, self.source), (result, self.result), self.low, self.high, n.places)
        elif self.whole and not self.packed:
            begin, end = T.let(self.low * n.width[0]), T.let(self.high * n.width[0])
            self._run((source, self.source), (result, self.result), begin, end, (1, 1))
        else:
            self._copied_rows((source, self.source, n.places[0]), self.goal, n.inner[0])

    def _written_once(self) -> None:
        """Each of the task's places: its last update, or the input."""
        n, (last, base) = self.n, self.room
        first = T.let(base - self.low)
        with T.loop(self.high - self.low) as i:
            T.store(last, base + i, T.const(-1, "int32"))
        with T.loop(n.length[0]) as number:
            place, fits = self._place(number)
            with T.when(fits):
                T.store(last, first + place, T.cast(number, "int32"))
        with T.loop(self.high - self.low) as i:
            place, number = T.let(self.low + i), T.let(T.cast(last[base + i], "int64"))
            result = (self.at.result, self.result + place * n.places[1])

            def run(buffer: Any, begin: Any, step: Any, result: tuple[Any, Any] = result) -> None:
                self._run((buffer, begin), result, self.first, self.last_column, (step, 1))

            def updated(number: Any = number) -> None:
                run(self.at.updates, self.given + number * n.number[0], n.inner[1])

            def kept(place: Any = place) -> None:
                run(self.at.source, self.source + place * n.places[0], n.inner[0])

            T.either(number >= 0, updated, kept)

    def _copied_rows(self, source: tuple[Any, Any, Any], result: tuple[Any, Any, Any], step: Any) -> None:
        """The task's columns of each of its places."""
        with T.loop(self.high - self.low) as i:
            place = T.let(self.low + i)
            if self.far and self.way == "columns":
                self._asked_rows(T.let(place + ROWS), source, result, step)
            whence, where = ((buffer, base + place * own) for buffer, base, own in (source, result))
            self._run(whence, where, self.first, self.last_column, (step, 1))

    def _asked_rows(self, place: Any, source: tuple[Any, Any, Any], result: tuple[Any, Any, Any], step: Any) -> None:
        """Ask for a row that is copied later: a processor takes each row of a few lines for something new."""
        with T.loop(T.let(T.truncdiv(self.last_column - self.first + (self.lanes - 1), T.i64(self.lanes)))) as line:
            column = T.let(self.first + line * self.lanes)
            for how, (buffer, base, own), along in ((read_ahead, source, step), (write_ahead, result, 1)):
                if not (self.packed and buffer is self.goal[0]):  # scratch memory is in a cache
                    how(buffer, T.let(base + place * own + column * along))

    def _moved(self, number: Any, column: Any = None) -> None:
        n = self.n
        place, fits = self._place(number, column)
        given, result = self.given + number * n.number[0], self.result + place * n.places[1]
        with T.when(fits):
            if self.way == "slices" and self.combination:
                self._combined_row(given, result)
            elif self.way == "slices":
                self._run((self.at.updates, given), (self.at.result, result), self.first, self.last_column, (n.inner[1], 1))
            elif column is not None:
                buffer, base, step = self.goal
                self._put(buffer, T.let(base + place * step + column), self.at.updates[given + column * n.inner[1]])
            else:
                self._put(self.at.result, T.let(result), self.at.updates[given])

    def _all(self, several: _Several) -> None:
        """Vectors of updates in their order: with one decision if all are the task's, and all or none count from the end."""
        rounds = several.rounds
        with T.loop(rounds) as i:
            first, later = T.let(i * AT_ONCE), T.let(i + self.ahead)
            place, size, part = T.let(several.at + first), self.n.sizes[0], (self.low, self.high)
            fits, again, more = alike(self.leaves, self.at.indices, place, T.i64(1), size, "int32", part)
            if self.far:
                several.asked(first)
            # Behind the last one of a row, the next row begins.
            inside, behind = later < rounds, T.min(later - rounds, rounds - 1)
            column = T.let(T.Select(inside, later, behind) * AT_ONCE)
            later = T.let(T.Select(inside, several.at, several.following) + column)

            def every(first: Any = first, again: Any = again, more: Any = more, column: Any = column, later: Any = later) -> None:
                for lane in range(AT_ONCE if self.ahead else 0):
                    index = T.let(T.cast(self.at.indices[later + lane], "int64") + more)
                    write_ahead(self.goal[0], several.goal(T.let(column + lane), index))
                for lane in range(AT_ONCE):
                    number, index = T.let(first + lane), T.let(T.cast(self.at.indices[again + lane], "int64") + more)
                    update = self.leaves.apart(self.at.updates[several.given(number)])
                    self._put(self.goal[0], several.goal(number, index), update)

            def some(first: Any = first) -> None:
                with T.loop(T.i64(AT_ONCE)) as lane:
                    several.one(T.let(first + lane))

            T.either(fits, every, some)

    def _in_order(self, first: Any, rounds: Any) -> None:
        n, at = self.n, T.let(self.looked[0] + first)
        given = T.let(self.given + first * n.number[0])

        def asked(number: Any) -> None:
            far = T.let(first + number + self.far)
            ask(read_ahead, self.at.indices, self.looked[0] + far, AT_ONCE)
            ask(read_ahead, self.at.updates, self.given + far * n.number[0], AT_ONCE)
            if n.outer:
                behind = T.let(n.sizes[0] + first + number)
                ask(read_ahead, self.at.source, self.source + behind * n.places[0], AT_ONCE)
                ask(write_ahead, self.at.result, self.result + behind * n.places[1], AT_ONCE)

        self._all(
            _Several(
                at,
                T.let(at + T.max(rounds - self.ahead, T.i64(0)) * AT_ONCE),
                rounds,
                given=lambda number: T.let(given + number * n.number[0]),
                goal=lambda _, index: T.let(self.result + index * n.places[1]),
                one=lambda number: self._moved(T.let(first + number)),
                asked=asked,
            )
        )

    def _columns(self, number: Any, first: Any, rounds: Any) -> None:
        n, (_, base, step) = self.n, self.goal
        given, result = T.let(self.given + number * n.number[0] + first * n.inner[1]), T.let(base + first)
        at, after = (T.let(self.looked[0] + row * n.number[1] + first) for row in (number, T.min(number + 1, n.length[0] - 1)))

        def asked(column: Any) -> None:
            ask(read_ahead, self.at.indices, at + ROWS * n.number[1] + column, AT_ONCE)
            ask(read_ahead, self.at.updates, given + ROWS * n.number[0] + column * n.inner[1], AT_ONCE)

        self._all(
            _Several(
                at,
                after,
                rounds,
                given=lambda column: T.let(given + column * n.inner[1]),
                goal=lambda column, index: T.let(result + column + index * step),
                one=lambda column: self._moved(number, T.let(first + column)),
                asked=asked,
            )
        )


def _split(at: list[Any]) -> tuple[list[Any], Any, Any]:
    *outer, piece, part = at
    return outer, piece, part

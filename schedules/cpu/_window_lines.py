"""Vectors of windows that are neighbours in one dimension (``window.py``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.loops import nested
from tvmdml.operators._window import Reach, WindowAxis, levels_of
from tvmdml.operators._window_largest import Largest, least, logical
from tvmdml.operators._window_sums import Seen, Summed
from tvmdml.schedules.cpu import share
from tvmdml.schedules.cpu._window import Vector, WindowContext, WindowWay, load

_NARROW = 1 << 30
"""The most elements of a tensor whose indices are computed in 32 bits."""
LONGEST = 1 << 29
"""The most elements of a line with edges: taps inside are counted in 32 bits."""

Body = Callable[[list[Any], dict[int, Any]], None]


class Lines(WindowWay):  # type: ignore[misc] # mypy knows these modules by another name
    """Vectors of windows that are neighbours in one dimension."""

    NAME = "lines"

    def __init__(self, desc: Any, along: WindowAxis | None, dimension: int, lanes: int, edges: bool, tasks: int) -> None:
        self.along, self.dimension, self.lanes, self.edges, self.rest = along, dimension, lanes, edges, 0
        if along is not None and edges:  # the elements from the last window's first tap on
            last = (desc.pooled().sizes[dimension] - 1) * along.stride - along.start
            self.rest = desc.whole().sizes[dimension] - last
        # Signed, because one of an element in front of the line may be negative; it is not used.
        self.index = "int32" if desc.whole().element_count <= _NARROW else "int64"
        super().__init__(desc, tasks, dimension=dimension, lanes=lanes, edges=edges, rest=self.rest, index=self.index)
        others = [one for one in desc.windows() if one.dimension != dimension]
        self.others = others
        self.row = self.row_of(desc, dimension)
        self.levels = levels_of(math.prod(one.size for one in others))
        several = along is not None and along.size > 1 and any(one.size > 1 for one in others if one.dimension > dimension)
        # Equal integers are the same, whichever is the first.
        self.behind = several and isinstance(desc, Largest) and (desc.computed.startswith("float") or desc.indices() is not None)
        """Whether a tap of a line is in front of others in row-major order that are not in the line."""

    @staticmethod
    def row_of(desc: Any, dimension: int) -> int:
        """The last dimension beside that of vectors: it is a loop of its own, so that few coordinates are divided out."""
        return max(i for i in range(desc.pooled().rank) if i != dimension)

    def task(self, task: Any, tasks: Any) -> None:
        sizes = [T.index(n) for n in self.desc.pooled().sizes]
        outer = [i for i in range(len(sizes)) if i not in (self.row, self.dimension)]
        units = math.prod((sizes[i] for i in outer), start=T.i64(1))
        # Tasks divide rows: a unit may be shared by two of them.
        total = T.let(units * sizes[self.row])
        begin, end = share(task, tasks, total)
        if self.along is not None:
            self._bounds(sizes[self.dimension])
        unit = T.Variable("int64", T.truncdiv(begin, sizes[self.row]))
        row = T.Variable("int64", begin - unit.value * sizes[self.row])
        left = T.Variable("int64", end - begin)
        with T.loop_while(left.value > T.i64(0)):
            at: list[Any] = [None] * len(sizes)
            for i, place in zip(outer, T.unravel(T.let(unit.value), [sizes[i] for i in outer]), strict=True):
                at[i] = place
            reaches = {one.dimension: self._reach(one, at) for one in self.others if one.dimension != self.row}
            first, rows = T.let(row.value), T.hold(T.min(left.value, sizes[self.row] - row.value))
            self.rows(at, first, rows, reaches)
            left.set(left.value - rows)
            unit.set(unit.value + 1)
            row.set(T.i64(0))

    def rows(self, at: list[Any], first: Any, count: Any, reaches: dict[int, Reach]) -> None:
        """Rows that follow each other. Reaches are those in other dimensions than rows and lines."""
        with T.loop(count) as r:
            here = list(at)
            here[self.row] = T.let(first + r)
            own = {one.dimension: self._reach(one, here) for one in self.others if one.dimension == self.row}
            self._line(here, {**reaches, **own})

    def _reach(self, one: WindowAxis, at: Sequence[Any]) -> Reach:
        return self.desc.reach(one, at[one.dimension], self.desc.whole().sizes[one.dimension])

    def _bounds(self, count: Any) -> None:
        """The windows that are vectors, as in ``_interior``."""
        along, size = self.along, T.index(self.desc.whole().sizes[self.dimension])
        assert along is not None
        self.low = T.let(T.min(T.i64(-(-along.start // along.stride)), count))
        high = T.truncdiv(size + along.start - max(along.span, along.stride), T.i64(along.stride)) + 1
        self.high = T.let(T.max(self.low, T.min(high, count)))

    def _line(self, at: list[Any], reaches: dict[int, Reach]) -> None:
        """All windows of a line."""

        def one(o: Any) -> None:
            here = list(at)
            here[self.dimension] = o
            self.desc.element(self.tensors, here)

        self.each(lambda o, edge: self._block(at, o, reaches, edge), one)

    def each(self, block: Callable[[Any, str], None], one: Callable[[Any], None]) -> None:
        """Give where each vector of a line begins to a function, and which of its edges it has; windows beside these to another."""
        lanes, count = self.lanes, T.index(self.desc.pooled().sizes[self.dimension])
        low, high = (T.i64(0), count) if self.along is None else (self.low, self.high)
        if self.edges:
            block(T.i64(0), "low")
            with T.loop(T.let(T.truncdiv(T.max(count - 2 * lanes, T.i64(0)) + (lanes - 1), T.i64(lanes)))) as i:
                block(T.let(T.max(low, T.min((i + 1) * lanes, count - 2 * lanes))), "")
            block(T.let(count - lanes), "high")
            return
        if self.along is not None:
            with T.loop(low) as o:
                one(T.let(o))
        with T.loop(T.let(T.truncdiv(high - low + (lanes - 1), T.i64(lanes)))) as i:
            block(T.let(T.min(low + i * lanes, high - lanes)), "")
        if self.along is not None:
            with T.loop(T.let(count - high)) as i:
                one(T.let(high + i))

    def _counts(self, edge: str, end: int) -> Any:
        """How many taps are before ``end`` elements behind the line, for each window of the first or the last vector.

        Taps before the line are left out, unless ``end`` is not 0: then they are in the padding, and count.
        """
        along, lanes = self.along, self.lanes
        assert along is not None
        lane = T.Ramp(T.const(0, "int32"), T.const(1, "int32"), lanes)
        taps, zero = (T.splat(T.const(n, "int32"), lanes) for n in (along.size, 0))
        step = along.dilation if along.size > 1 else 1

        def up(number: Any) -> Any:
            dilation = T.splat(T.const(step, "int32"), lanes)
            return T.min(T.truncdiv(T.max(number, zero) + (dilation - T.splat(T.const(1, "int32"), lanes)), dilation), taps)

        def line(first: int, step: int) -> Any:
            return T.splat(T.const(first, "int32"), lanes) + lane * T.splat(T.const(step, "int32"), lanes)

        if edge == "low":
            return taps - up(line(along.start, -along.stride))
        most = along.size * step + lanes * along.stride  # then all taps of all windows are
        return up(line(min(self.rest + (lanes - 1) * along.stride + end, most), -along.stride))

    def _block(self, at: list[Any], o: Any, reaches: dict[int, Reach], edge: str = "") -> None:
        """A vector of windows; with ``edge`` the first (low) or the last (high) one, with taps outside."""
        desc, lanes, along = self.desc, self.lanes, self.along
        x, y = desc.whole(), desc.pooled()
        here = list(at)
        here[self.dimension] = o
        first = o if along is None else T.hold(o * along.stride - along.start)
        inside = list(here)
        inside[self.dimension] = first
        places = desc.indices() if isinstance(desc, Largest) else None
        kind = self.index
        own = [reaches[one.dimension] for one in self.others]

        def index(place: Sequence[Any], tap: int) -> Any:
            """The indices of a tap's elements in all lanes."""
            stride, dilation = (1, 1) if along is None else (along.stride, along.dilation)
            base = logical(place, x.sizes, kind)
            inner: Any = T.const(1, kind)
            for size in x.sizes[self.dimension + 1 :]:
                inner = inner * T.cast(T.index(size), kind)
            steps = T.cast(T.Ramp(T.const(0, "int32"), T.const(stride, "int32"), lanes), kind)
            return T.splat(T.let(base + inner * T.const(tap * dilation, kind)), lanes) + steps * T.splat(T.let(inner), lanes)

        start = None
        if places is not None:
            begin = list(inside)
            for one, reach in zip(self.others, own, strict=True):
                begin[one.dimension] = reach.position + reach.first * reach.step
            start = index(begin, 0)
            if edge == "low" and along is not None:  # the index of each window's first tap inside
                skipped = T.hold(T.splat(T.const(along.size, "int32"), lanes) - self._counts("low", 0))
                inner = math.prod((T.cast(T.index(n), kind) for n in x.sizes[self.dimension + 1 :]), start=T.const(1, kind))
                step = T.splat(T.let(inner * T.const(along.dilation, kind)), lanes)
                start = T.hold(start + T.cast(skipped, kind) * step)
        total = Vector(desc, lanes, self.levels, start)
        rows = {one.dimension: reaches[one.dimension] for one in self.others}
        self.each_row(inside, rows, edge, lambda place, taps: total.add(taps, lambda tap: T.hold(index(place, tap))))
        every = dict(reaches)
        if along is not None:
            every[self.dimension] = Reach(T.i64(0), T.i64(0), T.i64(along.size), along.size, along.dilation, T.i64(along.size))
        seen = Seen(desc, self.tensors, here, [every[one.dimension] for one in desc.windows()])
        counts: Any = None if not edge else self._counts(edge, 0)
        found = WindowContext(seen, lanes)
        if edge and along is not None:
            padded = T.splat(T.const(along.size, "int32"), lanes) if edge == "low" else self._counts(edge, along.end)
            rest = tuple(i for i, one in enumerate(desc.windows()) if one.dimension != self.dimension)
            found = WindowContext(seen, lanes, counts, padded, rest)
        self.store(found, T.let(T.dot(here, y.layout)), total, lanes)
        if places is not None:
            some: Any = T.const(True, "bool")
            for reach in own:
                some = some & (reach.count > T.const(0, T.type_of(reach.count)))
            none = T.splat(T.const(-1, kind), lanes)
            to = T.run(T.let(T.dot(here, places.layout)), lanes)
            result = T.select(some, total.index, none)
            if edge:
                result = T.Select(counts > T.splat(T.const(0, "int32"), lanes), T.hold(result), none)
            T.store(self.tensors["output_indices_tensor"], to, T.cast(T.hold(result), places.data_type.tvm))

    def each_row(self, inside: Sequence[Any], reaches: Mapping[int, Reach], edge: str, body: Body) -> None:
        """Give where each row of windows has its first tap to a function, with the elements of its taps by number.

        Where windows go on behind the dimension of vectors, and order matters, a row is given tap after tap.
        """
        every = range(1 if self.along is None else self.along.size)

        def rows(dimensions: Sequence[int], begin: Sequence[Any], then: Callable[[list[Any]], None]) -> None:
            with nested([reaches[i].places() for i in dimensions]) as there:
                place = list(begin)
                for i, coordinate in zip(dimensions, there, strict=True):
                    place[i] = coordinate
                then(place)

        def read(place: list[Any], taps: Sequence[int] = every) -> None:
            body(place, self._elements(place, taps, edge))

        dimensions = sorted(reaches)
        if not self.behind:
            rows(dimensions, inside, read)
            return
        before, behind = ([i for i in dimensions if (i > self.dimension) == own] for own in (False, True))

        def each_tap(place: list[Any]) -> None:
            for tap in every:
                rows(behind, place, lambda there: read(there, [tap]))  # noqa: B023 - it is run at once

        rows(before, inside, each_tap)

    def _elements(self, place: list[Any], taps: Sequence[int], edge: str) -> dict[int, Any]:
        """The elements of some taps along the line, as vectors."""
        if edge:
            return self._edge_elements(place, taps, edge)
        return self._inner_elements(T.let(T.dot(place, self.desc.whole().layout)), taps)

    def _edge_elements(self, place: list[Any], taps: Sequence[int], edge: str) -> dict[int, Any]:
        """The same in the first or the last vector of a line; in place of those outside, what changes nothing."""
        desc, lanes, along = self.desc, self.lanes, self.along
        assert along is not None
        x, dtype, stride = desc.whole(), desc.computed, along.stride
        line = list(place)
        line[self.dimension] = T.i64(0) if edge == "low" else T.index(x.sizes[self.dimension])
        base = T.let(T.dot(line, x.layout))
        nothing = T.const(0, dtype) if isinstance(desc, Summed) else T.like(T.const(0, dtype), least(dtype))
        others = T.splat(nothing, lanes * stride)
        found, read = {}, {}
        for tap in taps:
            if edge == "low":  # places from the line's first element on
                places = [i * stride - along.start + tap * along.dilation for i in range(lanes)]
                first = max(0, places[-1] - lanes * stride + 1)
                fits = [place >= 0 for place in places]
            else:  # places from the line's end on
                places = [tap * along.dilation - self.rest - (lanes - 1 - i) * stride for i in range(lanes)]
                first = min(places[0], -lanes * stride)
                fits = [place < 0 for place in places]
            if first not in read:
                read[first] = load(self.tensors[desc.WHOLE], T.let(base + first), lanes * stride, dtype)
            lanes_of = [p - first if own else lanes * stride for p, own in zip(places, fits, strict=True)]
            found[tap] = T.hold(T.Shuffle([read[first], others], lanes_of))
        return found

    def _inner_elements(self, offset: Any, taps: Sequence[int]) -> dict[int, Any]:
        """The same where all are inside: every ``stride``-th of contiguous elements."""
        buffer, lanes, dtype = self.tensors[self.desc.WHOLE], self.lanes, self.desc.computed
        if self.along is None:
            return {0: load(buffer, offset, lanes, dtype)}
        stride, steps = self.along.stride, {tap: tap * self.along.dilation for tap in taps}
        if stride == 1:
            return {tap: load(buffer, offset + step if step else offset, lanes, dtype) for tap, step in steps.items()}
        read = {}
        for group in {step // stride for step in steps.values()}:
            last = max(step % stride for step in steps.values() if step // stride == group)
            back = stride - 1 - last if group else 0  # what is read ends with what is needed
            read[group] = back, load(buffer, T.let(offset + (group * stride - back)), lanes * stride, dtype)
        found = {}
        for tap, step in steps.items():
            back, several = read[step // stride]
            found[tap] = T.hold(T.Shuffle([several], [back + step % stride + i * stride for i in range(lanes)]))
        return found

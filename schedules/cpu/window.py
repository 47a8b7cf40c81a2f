"""The window family on the CPU: vectors of neighbouring windows, or of neighbouring elements of a window that is the whole image.

- ``lines``: input and output are contiguous in one dimension. A vector has windows that are neighbours there. If windows extend in
  that dimension, too, their taps are selected from contiguous elements. The first and the last vector of a line may have taps
  outside, and which these are is a part of the code; where lines are too short for that, such windows are done one by one. Other
  dimensions are loops over the taps inside, without a check of bounds.
- ``images``: one window has a whole image, which is contiguous: its elements are combined in vectors.
- Anything else is the computation, one element after the other.

Elements are combined in an order that depends on sizes and the processor's vectors, and not on tasks. A result that is a copy is
that of the first of equal elements: zeros of both signs are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.open_shapes import OpenShapes
from tvmdml.operators._contract import Shared
from tvmdml.operators._window import CHAIN, Along, Cascade, Reach, levels_of, nested
from tvmdml.operators._window_largest import Largest, exceeds, least, logical
from tvmdml.operators._window_sums import Seen, Summed
from tvmdml.schedules.cpu import _default, per_task, share, split
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_POWERS = tuple(1 << n for n in range(24))

KNOBS = Knobs(
    "window",
    task_elements=Knob(1 << 14, (1, *_POWERS[10:]), "least elements, read or written, for each task"),
    tasks_per_thread=Knob(2, (1, 2, 4, 8), "most tasks per thread"),
    registers=Knob(2, (1, 2, 4), "registers of a vector, at most, if windows extend along it"),
    channel_registers=Knob(4, (1, 2, 4), "registers of a vector, at most, if windows do not"),
)

_MOST_STRIDE = 4
"""From a larger step on, most of a vector that is read would not be used."""
_MOST_TAPS = CHAIN
"""The most taps that are written one after the other in the code."""
_NARROW = 1 << 30
"""The most elements of a tensor whose indices are computed in 32 bits."""
_FEWEST = 4
"""The fewest windows of a vector."""
_ACCUMULATORS = 4
"""Vectors of an image that are combined independently."""


def kernel(desc: Any, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """The way that suits the windows."""
    if not isinstance(desc, (Summed, Largest)) or desc.wide():
        plain: Kernel = _default.kernel(desc, target, shared)
        return plain
    full = _register(desc, target)
    work = max(desc.whole().element_count, desc.pooled().element_count * min(desc.taps(), 8))
    tasks = split(work, target, knobs.task_elements, knobs.tasks_per_thread)
    if _is_image(desc):
        return _Images(desc, full, tasks).kernel()
    for along, dimension in _contiguous(desc):
        most = full * (knobs.channel_registers if along is None else knobs.registers)
        edges = along is not None and _edged(desc, along, most) >= _FEWEST
        lanes = _edged(desc, along, most) if along is not None and edges else _lanes(desc, along, dimension, most)
        if lanes >= _FEWEST:
            return _Lines(desc, along, dimension, lanes, edges, tasks).kernel()
    found: Kernel = _default.kernel(desc, target, shared)
    return found


def _register(desc: Any, target: Target) -> int:
    """The elements that are computed in one register."""
    processor = getattr(target, "processor", None)
    width = 64 if processor is not None and processor.has("avx512f") else 32
    return int(width // max(desc.whole().data_type.itemsize, 4 if desc.computed == "float32" else 1))


def _is_image(desc: Any) -> bool:
    """Whether each window has a whole image, which is contiguous."""
    if isinstance(desc, Largest) and desc.indices() is not None:
        return False
    x, step = desc.whole(), 1
    for one in reversed(desc.windows()):
        size = x.sizes[one.dimension]
        whole = desc.pooled().sizes[one.dimension] == 1 and one.start == 0 and one.size >= size and one.dilation == 1
        if not whole or (x.layout[one.dimension] != step and size > 1):
            return False
        step *= size
    return step >= _FEWEST and [one.dimension for one in desc.windows()] == list(range(2, x.rank))


def _contiguous(desc: Any) -> list[tuple[Along | None, int]]:
    """The dimensions in which all tensors are contiguous, and the windows along each; the longest first."""
    windows = {one.dimension: one for one in desc.windows()}
    tensors = [tensor for _, tensor in desc.tensors() if tensor is not None]
    found = [i for i in range(desc.pooled().rank) if all(one.layout[i] == 1 for one in tensors) and desc.pooled().sizes[i] > 1]
    return [(windows.get(i), i) for i in sorted(found, key=lambda i: -desc.pooled().sizes[i])]


def _interior(desc: Any, along: Along, size: int, count: int) -> tuple[int, int]:
    """The windows whose taps are inside, and around which enough can be read."""
    low = min(-(-along.start // along.stride), count)
    high = (size + along.start - max(along.span, along.stride)) // along.stride + 1
    return low, max(low, min(high, count))


def _lanes(desc: Any, along: Along | None, dimension: int, most: int) -> int:
    """The windows of a vector: a power of two."""
    count = desc.pooled().sizes[dimension]
    if along is not None:
        if along.stride > _MOST_STRIDE or along.size > _MOST_TAPS:
            return 0
        low, high = _interior(desc, along, desc.whole().sizes[dimension], count)
        count = high - low
    lanes = most
    while lanes > count:
        lanes //= 2
    return lanes


def _edged(desc: Any, along: Along, most: int) -> int:
    """The windows of a vector if the first and the last one of a line may have taps outside; 0 if that is not worth it."""
    size, count = desc.whole().sizes[along.dimension], desc.pooled().sizes[along.dimension]
    low, high = _interior(desc, along, size, count)
    if along.stride > _MOST_STRIDE or along.size > _MOST_TAPS or (low, high) == (0, count):
        return 0
    lanes = most
    while lanes > min(high - low, count - low, high) or lanes * along.stride > size:
        lanes //= 2
    return lanes


class _Place(NamedTuple):
    """What the results of a vector of windows may depend on beside the sums (``Seen``)."""

    seen: Seen
    lanes: int
    inside: Any = None
    """How many taps along the vector's dimension are inside, for each window, if they differ."""
    counted: Any = None
    """The same, with the padding."""
    others: Any = None
    """The windows' other dimensions, as places of ``seen.reaches``."""

    def number(self, padded: bool, dtype: str) -> Any:
        """The number of taps, which is the same for all without edges."""
        if self.inside is None:
            return _splat(self.seen.number(padded, dtype), self.lanes)
        own = T.to(self.counted if padded else self.inside, dtype)
        sizes, total = self.seen.desc.whole().sizes, T.const(1, dtype)
        windows = self.seen.desc.windows()
        for i in self.others:
            along, reach = windows[i], self.seen.reaches[i]
            found = self.seen.desc.counted(along, reach, sizes[along.dimension]) if padded else reach.count
            total = total * T.cast(found, dtype)
        every = T.hold(own * T.splat(T.hold(total), self.lanes))
        return T.select(every > T.like(every, 0), every, 1)

    def element(self, name: str, dtype: str) -> Any:
        """The elements at the same places."""
        tensor = getattr(self.seen.desc, name)
        return _load(self.seen.tensors[name], T.let(T.dot(self.seen.at, tensor.layout)), self.lanes, dtype)


def _splat(value: Any, lanes: int) -> Any:
    return T.splat(value, lanes) if lanes > 1 else value


def _load(buffer: Any, offset: Any, lanes: int, dtype: str) -> Any:
    """Contiguous elements in the type in which they are combined."""
    return T.hold(T.to(T.wide(buffer[T.run(offset, lanes)]), dtype))


class _Vector:
    """Elements that were taken so far in each lane: a sum, or the largest one and its index."""

    def __init__(self, desc: Any, lanes: int, levels: int, first: Any = None) -> None:
        self._desc, self._dtype = desc, desc.computed
        self._sum = Cascade(self._dtype, levels, lanes) if isinstance(desc, Summed) else None
        self._best = self._index = None
        if self._sum is None:
            none = T.like(T.const(0, self._dtype), least(self._dtype))
            self._best = T.Variable(f"{self._dtype}x{lanes}", T.splat(none, lanes))
            if first is not None:
                self._index = T.Variable(T.type_of(first), first)

    def add(self, row: Sequence[Any], index: Callable[[int], Any]) -> None:
        """The next taps of all lanes, in their order."""
        if self._sum is not None:
            total = None
            for x in row:
                term = self._desc.term(x)
                total = term if total is None else total + term
            self._sum.add(total)
            return
        assert self._best is not None
        if self._index is None:
            found, nan = self._best.value, None
            for x in row:
                found = T.hold(T.Select(x > found, x, found))
                nan = (T.is_nan(x) if nan is None else nan | T.is_nan(x)) if T.is_float(x) else None
            # No number is larger than a NaN, so one is kept; but a NaN is not larger than a number.
            self._best.set(T.select(nan, float("nan"), found) if T.is_float(found) else found)
            return
        for tap, x in enumerate(row):
            best = self._best.value
            take = exceeds(x, best)
            self._index.set(T.Select(take, index(tap), self._index.value))
            self._best.set(T.Select(take, x, best))

    def total(self) -> Any:
        """The sums."""
        assert self._sum is not None
        return T.hold(self._sum.value())

    @property
    def best(self) -> Any:
        """The largest elements."""
        assert self._best is not None
        return self._best.value

    @property
    def index(self) -> Any:
        """Their indices; ``None`` if there are none."""
        return None if self._index is None else self._index.value


def larger(x: Any, best: Any) -> Any:
    """The larger one, of equal ones the second, and a NaN rather than a number."""
    found = T.Select(x > best, x, best)
    return T.Select(T.is_nan(x), x, T.hold(found)) if T.is_float(x) else found


class _Way:
    """What the ways to write a kernel share."""

    NAME = ""

    def __init__(self, desc: Any, tasks: int, **choices: Any) -> None:
        self.given, self.tasks = desc, tasks
        self.shapes = OpenShapes()
        self.wanted = desc.with_tensors(self.shapes.open)
        self.choices = choices

    def kernel(self) -> Kernel:
        """The kernel."""
        module, *also = self.wanted.modules()
        parameters = (("desc", self.wanted.exactly()), *self.choices.items(), ("parallel", self.tasks > 1))
        scalars = (*self.shapes.scalars, self.tasks)
        return Kernel(module, self.NAME, parameters, self.function, scalars, also=tuple(also))

    def function(self) -> PrimFunc:
        """The TensorIR."""
        self.desc = self.given.with_tensors(OpenShapes().open)
        with T.function() as f:
            self.tensors = f.tensors(self.desc)
            tasks = f.scalar("tasks")
            per_task(tasks, self.tasks > 1, lambda task: self.task(task, tasks))
        return f.result()

    def task(self, task: Any, tasks: Any) -> None:
        """A task's share."""
        raise NotImplementedError

    def store(self, place: Any, offset: Any, total: _Vector, lanes: int) -> None:
        """The results of a vector of windows."""
        y = self.desc.pooled()
        found = self.desc.result(total.total(), place) if isinstance(self.desc, Summed) else total.best
        T.store(self.tensors[self.desc.POOLED], T.run(offset, lanes), T.to(found, y.data_type.tvm))


class _Lines(_Way):
    """Vectors of windows that are neighbours in one dimension."""

    NAME = "lines"

    def __init__(self, desc: Any, along: Along | None, dimension: int, lanes: int, edges: bool, tasks: int) -> None:
        self.along, self.dimension, self.lanes, self.edges, self.rest = along, dimension, lanes, edges, 0
        if along is not None and edges:  # the elements from the last window's first tap on
            last = (desc.pooled().sizes[dimension] - 1) * along.stride - along.start
            self.rest = desc.whole().sizes[dimension] - last
        # Signed, because one of an element in front of the line may be negative; it is not used.
        self.index = "int32" if desc.whole().element_count <= _NARROW else "int64"
        super().__init__(desc, tasks, dimension=dimension, lanes=lanes, edges=edges, rest=self.rest, index=self.index)
        others = [one for one in desc.windows() if one.dimension != dimension]
        self.others = others
        # The last dimension beside the vectors' is a loop of its own, so that few coordinates are divided out.
        self.row = max(i for i in range(desc.pooled().rank) if i != dimension)
        self.levels = levels_of(math.prod(one.size for one in others))

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
            with T.loop(rows) as r:
                here = list(at)
                here[self.row] = T.let(first + r)
                own = {one.dimension: self._reach(one, here) for one in self.others if one.dimension == self.row}
                self._line(here, {**reaches, **own})
            left.set(left.value - rows)
            unit.set(unit.value + 1)
            row.set(T.i64(0))

    def _reach(self, one: Along, at: Sequence[Any]) -> Reach:
        return self.desc.reach(one, at[one.dimension], self.desc.whole().sizes[one.dimension])  # type: ignore[no-any-return]

    def _bounds(self, count: Any) -> None:
        """The windows that are vectors, as in ``_interior``."""
        along, size = self.along, T.index(self.desc.whole().sizes[self.dimension])
        assert along is not None
        self.low = T.let(T.min(T.i64(-(-along.start // along.stride)), count))
        high = T.truncdiv(size + along.start - max(along.span, along.stride), T.i64(along.stride)) + 1
        self.high = T.let(T.max(self.low, T.min(high, count)))

    def _line(self, at: list[Any], reaches: dict[int, Reach]) -> None:
        """All windows of a line."""
        lanes, count = self.lanes, T.index(self.desc.pooled().sizes[self.dimension])
        low, high = (T.i64(0), count) if self.along is None else (self.low, self.high)
        if self.edges:
            self._block(at, T.i64(0), reaches, "low")
            with T.loop(T.let(T.truncdiv(T.max(count - 2 * lanes, T.i64(0)) + (lanes - 1), T.i64(lanes)))) as block:
                self._block(at, T.let(T.max(low, T.min((block + 1) * lanes, count - 2 * lanes))), reaches)
            self._block(at, T.let(count - lanes), reaches, "high")
            return

        def one(o: Any) -> None:
            here = list(at)
            here[self.dimension] = T.let(o)
            self.desc.element(self.tensors, here)

        if self.along is not None:
            with T.loop(low) as o:
                one(o)
        with T.loop(T.let(T.truncdiv(high - low + (lanes - 1), T.i64(lanes)))) as block:
            self._block(at, T.let(T.min(low + block * lanes, high - lanes)), reaches)
        if self.along is not None:
            with T.loop(T.let(count - high)) as i:
                one(high + i)

    def _counts(self, edge: str, end: int) -> Any:
        """How many taps are before ``end`` elements behind the line, for each window of the first or the last vector.

        Taps before the line are left out, unless ``end`` is not 0: then they are in the padding, and count.
        """
        along, lanes = self.along, self.lanes
        assert along is not None
        lane = T.Ramp(T.const(0, "int32"), T.const(1, "int32"), lanes)
        taps, zero = (T.splat(T.const(n, "int32"), lanes) for n in (along.size, 0))

        def up(number: Any) -> Any:
            dilation = T.splat(T.const(along.dilation, "int32"), lanes)
            return T.min(T.truncdiv(T.max(number, zero) + (dilation - T.splat(T.const(1, "int32"), lanes)), dilation), taps)

        def line(first: int, step: int) -> Any:
            return T.splat(T.const(first, "int32"), lanes) + lane * T.splat(T.const(step, "int32"), lanes)

        if edge == "low":
            return taps - up(line(along.start, -along.stride))
        return up(line(self.rest + (lanes - 1) * along.stride + end, -along.stride))

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
        total = _Vector(desc, lanes, self.levels, start)
        with nested([reach.places() for reach in own]) as at_tap:
            place = list(inside)
            for one, there in zip(self.others, at_tap, strict=True):
                place[one.dimension] = there
            offset = T.let(T.dot(place, x.layout))
            row = self._taps(offset) if not edge else self._edge_taps(place, edge)
            total.add(row, lambda tap: T.hold(index(place, tap)))
        every = dict(reaches)
        if along is not None:
            every[self.dimension] = Reach(T.i64(0), T.i64(0), T.i64(along.size), along.size, along.dilation)
        seen = Seen(desc, self.tensors, here, [every[one.dimension] for one in desc.windows()])
        counts: Any = None if not edge else self._counts(edge, 0)
        found = _Place(seen, lanes)
        if edge and along is not None:
            padded = T.splat(T.const(along.size, "int32"), lanes) if edge == "low" else self._counts(edge, along.end)
            rest = tuple(i for i, one in enumerate(desc.windows()) if one.dimension != self.dimension)
            found = _Place(seen, lanes, counts, padded, rest)
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

    def _edge_taps(self, place: list[Any], edge: str) -> list[Any]:
        """The elements of each tap in the first or the last vector of a line; in place of those outside, what changes nothing."""
        desc, lanes, along = self.desc, self.lanes, self.along
        assert along is not None
        x, dtype, stride = desc.whole(), desc.computed, along.stride
        line = list(place)
        line[self.dimension] = T.i64(0) if edge == "low" else T.index(x.sizes[self.dimension])
        base = T.let(T.dot(line, x.layout))
        nothing = T.const(0, dtype) if isinstance(desc, Summed) else T.like(T.const(0, dtype), least(dtype))
        others = T.splat(nothing, lanes * stride)
        found, read = [], {}
        for tap in range(along.size):
            if edge == "low":  # places from the line's first element on
                places = [i * stride - along.start + tap * along.dilation for i in range(lanes)]
                first = max(0, places[-1] - lanes * stride + 1)
                fits = [place >= 0 for place in places]
            else:  # places from the line's end on
                places = [tap * along.dilation - self.rest - (lanes - 1 - i) * stride for i in range(lanes)]
                first = min(places[0], -lanes * stride)
                fits = [place < 0 for place in places]
            if first not in read:
                read[first] = _load(self.tensors[desc.WHOLE], T.let(base + first), lanes * stride, dtype)
            lanes_of = [p - first if own else lanes * stride for p, own in zip(places, fits, strict=True)]
            found.append(T.hold(T.Shuffle([read[first], others], lanes_of)))
        return found

    def _taps(self, offset: Any) -> list[Any]:
        """The elements of each tap along the line, as vectors: every ``stride``-th of contiguous elements."""
        buffer, lanes, dtype = self.tensors[self.desc.WHOLE], self.lanes, self.desc.computed
        if self.along is None:
            return [_load(buffer, offset, lanes, dtype)]
        stride, steps = self.along.stride, [tap * self.along.dilation for tap in range(self.along.size)]
        if stride == 1:
            return [_load(buffer, offset + step if step else offset, lanes, dtype) for step in steps]
        read = {}
        for group in {step // stride for step in steps}:
            last = max(step % stride for step in steps if step // stride == group)
            back = stride - 1 - last if group else 0  # what is read ends with what is needed
            read[group] = back, _load(buffer, T.let(offset + (group * stride - back)), lanes * stride, dtype)
        found = []
        for step in steps:
            back, several = read[step // stride]
            found.append(T.hold(T.Shuffle([several], [back + step % stride + i * stride for i in range(lanes)])))
        return found


class _Images(_Way):
    """Windows that have a whole image each."""

    NAME = "images"

    def __init__(self, desc: Any, full: int, tasks: int) -> None:
        x = desc.whole()
        length = math.prod(x.sizes[one.dimension] for one in desc.windows())
        lanes = full
        while lanes > length:
            lanes //= 2
        self.lanes = lanes
        self.accumulators = _ACCUMULATORS if length >= 2 * _ACCUMULATORS * lanes else 1
        self.levels = levels_of(-(-length // (self.accumulators * lanes * CHAIN)) + 1)
        super().__init__(desc, tasks, lanes=lanes, accumulators=self.accumulators, levels=self.levels)

    def task(self, task: Any, tasks: Any) -> None:
        x, y = self.desc.whole(), self.desc.pooled()
        sizes = [T.index(n) for n in x.sizes]
        begin, end = share(task, tasks, sizes[0] * sizes[1])
        length = T.let(math.prod(sizes[3:], start=sizes[2]))
        with T.loop(T.let(end - begin)) as i:
            batch, channel = T.unravel(T.let(begin + i), sizes[:2])
            at = [batch, channel, *[T.i64(0)] * (x.rank - 2)]
            offset = T.let(T.dot(at, x.layout))
            to = T.let(T.dot(at, y.layout))
            if isinstance(self.desc, Summed):
                seen = Seen(self.desc, self.tensors, at, self.desc.reaches(at))
                found = self.desc.result(self._sum(offset, length), seen)
            else:
                found = self._largest(offset, length)
            T.store(self.tensors[self.desc.POOLED], to, T.to(found, y.data_type.tvm))

    def _read(self, place: Any) -> Any:
        return _load(self.tensors[self.desc.WHOLE], place, self.lanes, self.desc.computed)

    def _each(self, offset: Any, length: Any, some: list[Callable[[Any], None]], chain: Callable[[], None]) -> Any:
        """Give vectors to functions in turn, and after each ``CHAIN`` rounds call ``chain``; returns where the rest begins."""
        lanes, several = self.lanes, len(some)
        step = lanes * several
        rounds = T.let(T.truncdiv(length, T.i64(step)))
        with T.loop(T.let(T.truncdiv(rounds + (CHAIN - 1), T.i64(CHAIN)))) as number:
            first = T.let(number * CHAIN)
            with T.loop(T.hold(T.min(rounds - first, T.i64(CHAIN)))) as i:
                base = T.let(offset + (first + i) * step)
                for j, add in enumerate(some):
                    add(self._read(T.let(base + j * lanes)))
            chain()
        done = T.let(rounds * step)
        if several > 1:
            rest = T.let(T.truncdiv(length - done, T.i64(lanes)))
            with T.loop(rest) as i:
                some[0](self._read(T.let(offset + done + i * lanes)))
            done = T.let(done + rest * lanes)
        return done

    def _sum(self, offset: Any, length: Any) -> Any:
        desc, lanes, dtype = self.desc, self.lanes, self.desc.computed
        zero = _splat(T.const(0, dtype), lanes)
        totals = [T.Variable(T.type_of(zero), zero) for _ in range(self.accumulators)]
        cascade = Cascade(dtype, self.levels, lanes)

        def adder(total: T.Variable) -> Callable[[Any], None]:
            return lambda x: total.set(total.value + desc.term(x))

        def chain() -> None:
            values = [total.value for total in totals]
            while len(values) > 1:
                values = [T.hold(a + b) for a, b in zip(values[::2], values[1::2], strict=True)]
            cascade.add(values[0])
            for total in totals:
                total.set(zero)

        done = self._each(offset, length, [adder(total) for total in totals], chain)
        left = T.let(length - done)
        with T.when(left > T.i64(0)):
            # The last elements, with what is before them, which is left out.
            term = desc.term(self._read(T.let(offset + length - lanes)))
            lane = T.Ramp(T.const(0, "int32"), T.const(1, "int32"), lanes)
            own = lane >= T.splat(T.cast(T.i64(lanes) - left, "int32"), lanes)
            totals[0].set(totals[0].value + T.Select(own, term, _zero(term)))
        chain()
        return T.hold(_folded(T.hold(cascade.value()), lambda a, b: a + b))

    def _largest(self, offset: Any, length: Any) -> Any:
        dtype, lanes = self.desc.computed, self.lanes
        best = [T.Variable(f"{dtype}x{lanes}", self._read(offset)) for _ in range(self.accumulators)]

        def taker(one: T.Variable) -> Callable[[Any], None]:
            return lambda x: one.set(larger(x, one.value))

        self._each(offset, length, [taker(one) for one in best], lambda: None)
        taker(best[0])(self._read(T.let(offset + length - lanes)))
        found = best[0].value
        for one in best[1:]:
            found = T.hold(larger(one.value, found))
        result = T.Variable(dtype, _folded(found, larger))
        if T.is_float(result.value):
            # Of zeros the first, whatever its sign is.
            with T.when(result.value == T.like(result.value, 0)):
                buffer, at = self.tensors[self.desc.WHOLE], T.Variable("int64", T.i64(0))
                value = T.Variable(dtype, T.to(buffer[offset], dtype))
                with T.loop_while(value.value != T.like(value.value, 0)):
                    at.set(at.value + 1)
                    value.set(T.to(buffer[offset + at.value], dtype))
                result.set(value.value)
        return result.value


def _zero(value: Any) -> Any:
    """0 in all lanes."""
    return T.like(value, 0)


def _folded(x: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """The lanes of a vector combined, the halves with each other."""
    lanes = T.lanes(x)
    while lanes > 1:
        lanes //= 2
        parts = [T.hold(T.Shuffle([x], list(range(k, k + lanes)))) for k in (0, lanes)]
        x = T.hold(combine(*parts))
    return x

"""Gradients of pooling on the CPU: a row of elements sums rows of windows that are shifted against each other, in vectors.

For some rows of an image, what the windows that reach them give is computed once, into lines of scratch memory with zeros at both
ends: the shares of an average, or the gradients beside the indices of the largest elements. A vector has elements of a row with the
same remainder by the windows' step: each tap adds neighbours of a line, those of maxima where the index is the element's own. What
is added in place of nothing is +0, and no sum that begins with +0 becomes -0, so the sums have the computation's bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.loops import nested
from tvmdml.kernels.open_shapes import OpenShapes
from tvmdml.operators._window import WindowAxis, levels_of, up
from tvmdml.operators._window_gradients import Gathered
from tvmdml.operators._window_largest import least
from tvmdml.operators.pooling_grad import AveragePoolingGrad, MaxPoolingGrad
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._window import WindowWay, kept, load
from tvmdml.schedules.cpu._woven import MOST, woven

_MOST_TAPS = 16
"""The most taps along a row: they are written one after the other in the code."""
_MOST_ELEMENTS = 1 << 30
"""The most elements of an image: their indices have 32 bits, and those that no element has are below 0."""
_FEWEST = 4
"""The fewest elements of a vector."""
_ROWS = 32
"""The most rows whose windows are computed together."""
_BYTES = 1 << 16
"""The bytes of these windows, which should stay in a second-level cache."""
_MOST_SCRATCH = 1 << 17
"""The most elements of a task's scratch memory, unless tensors have more: it has the paddings, too, which may be of any size."""


def kernel(desc: Any, full: int, tasks: int) -> Kernel | None:
    """The kernel of a gradient, with up to ``full`` lanes; ``None`` for what this does not serve."""
    way = next((own for kind, own in _WAYS.items() if isinstance(desc, kind)), None)
    if way is None or desc.wide() or levels_of(desc.windows_at()) > 1:
        return None
    image, along = desc.whole(), desc.windows()[-1]
    contiguous = all(tensor.layout[-1] == 1 for _, tensor in desc.tensors())
    if not contiguous or along.size > _MOST_TAPS or along.stride > MOST or math.prod(image.sizes[2:]) > _MOST_ELEMENTS:
        return None
    lanes = full
    while lanes > image.sizes[-1] // along.stride:
        lanes //= 2
    writer = way(desc, tasks, lanes) if lanes >= _FEWEST else None
    if writer is None or not writer.pays():
        return None
    return writer.kernel()


class _Tap(NamedTuple):
    """A tap of the windows that give to the elements with a remainder."""

    remainder: int
    shift: int
    """How many windows behind the vector's own number its windows are."""


def _taps(along: WindowAxis) -> list[_Tap]:
    """In the order of the windows."""
    found = [(r, r + along.start - t * along.dilation) for t in reversed(range(along.size)) for r in range(along.stride)]
    return [_Tap(r, past // along.stride) for r, past in found if past % along.stride == 0]


class _Shifted(WindowWay):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel."""

    NAME = "shifted"

    def __init__(self, desc: Gathered, tasks: int, lanes: int) -> None:
        self.lanes = lanes
        *self.others, self.along = desc.windows()
        self.taps = _taps(self.along)
        shifts = [tap.shift for tap in self.taps] or [0]
        self.left = max(0, -min(shifts))
        height, width = desc.whole().sizes[-2:]
        counts = desc.pooled().sizes
        self.length = self.left + max(counts[-1], width // self.along.stride + 1 + max(shifts)) + 2 * lanes
        *far, down = self.others
        beside = math.prod(min(-(-one.span // one.stride), counts[one.dimension]) for one in far)
        fitting = _BYTES // (self.length * desc.whole().data_type.itemsize * beside) * down.stride - down.span
        self.rows = min(height, max(min(fitting, _ROWS), 2 * down.span))
        self.lines = min(counts[-2], (self.rows + down.span - 2) // down.stride + 1)
        """The most windows that reach so many rows."""
        self.total = beside * self.lines * self.length
        blocks = math.prod(desc.whole().sizes[:-2]) * -(-height // self.rows)
        super().__init__(desc, min(tasks, blocks), lanes=lanes)

    def kernel(self) -> Kernel:
        """The kernel: it is given the number of tasks, rows and lines, their length, and that of its scratch memory."""
        module, *also = self.wanted.modules()
        parameters = (("desc", self.wanted.exactly_in_code()), *self.choices.items())
        sizes = self.scratch()
        scalars = (*self.shapes.scalars, self.tasks, self.rows, self.lines, self.length, *(count for _, _, count in sizes))
        temporaries = tuple((dtype, self.tasks * count) for _, dtype, count in sizes)
        return Kernel(module, self.NAME, parameters, self.function, scalars, temporaries, also=tuple(also))

    def pays(self) -> bool:
        """Whether scratch memory is not much larger than the tensors."""
        elements = self.given.whole().element_count + self.given.pooled().element_count
        return bool(sum(count for _, _, count in self.scratch()) <= max(_MOST_SCRATCH, 2 * elements))

    def scratch(self) -> list[tuple[str, str, int]]:
        """The name, the type, and a task's elements of each part of scratch memory."""
        return [("given", self.given.computed, self.total)]

    def function(self) -> Any:
        """The TensorIR."""
        self.desc = self.given.with_tensors(OpenShapes().open)
        with T.function() as f:
            types = {name: dtype for name, dtype, _ in self.scratch()}
            self.tensors = f.tensors(self.desc, scratch=types)
            tasks, self.rows, self.lines, self.length = (f.scalar(name) for name in ("tasks", "rows", "lines", "length"))
            counts = {name: f.scalar(f"{name}_count") for name in types}

            def task(number: Any) -> None:
                self.parts = {name: (self.tensors[name], T.let(number * count)) for name, count in counts.items()}
                self.cleared("given", counts["given"], 0)
                self.prepare(counts)
                self.task(number, tasks)

            per_task(tasks, task)
        return f.result()

    def prepare(self, counts: dict[str, Any]) -> None:
        """What a task does first."""
        raise NotImplementedError

    def line(self, window: list[Any], to: Any) -> None:
        """What a row of windows gives, to a line."""
        raise NotImplementedError

    def term(self, place: Any, number: Any) -> Any:
        """What neighbours of a line give to the elements with these numbers in their image."""
        raise NotImplementedError

    # -- Vectors

    def cleared(self, name: str, count: Any, value: float) -> None:
        """Fill a part of scratch memory."""
        buffer, begin = self.parts[name]

        def clear(j: Any, lanes: int) -> None:
            T.store(buffer, T.run(begin + j, lanes), T.splat(T.like(T.const(0, str(buffer.dtype)), value), lanes))

        self.vectors(count, clear)

    def vectors(self, count: Any, body: Callable[[Any, int], None]) -> None:
        """Vectors of a row, and what is left of it."""
        whole = T.let(T.truncdiv(count, T.i64(self.lanes)))
        with T.loop(whole) as i:
            body(T.let(i * self.lanes), self.lanes)
        done = T.let(whole * self.lanes)
        with T.loop(T.let(count - done)) as i:
            body(T.let(done + i), 1)

    def read(self, name: str, at: Sequence[Any], j: Any, lanes: int) -> Any:
        """Elements of a tensor's row, in the type in which they are added."""
        tensor = getattr(self.desc, name)
        offset = T.let(T.dot([*at, T.i64(0)], tensor.layout) + j)
        if lanes == 1:
            return T.hold(T.to(self.tensors[name][offset], self.desc.computed))
        return load(self.tensors[name], offset, lanes, self.desc.computed)

    # -- Blocks of rows

    def task(self, task: Any, tasks: Any) -> None:
        """Blocks are divided among tasks."""
        *outer, height, _ = (T.index(n) for n in self.desc.whole().sizes)
        blocks = T.let(T.truncdiv(height + (self.rows - 1), self.rows))
        begin, end = share(task, tasks, T.let(math.prod(outer, start=blocks)))
        with T.loop(T.let(end - begin)) as i:
            *at, block = T.unravel(T.let(begin + i), [*outer, blocks])
            top = T.let(block * self.rows)
            self._block(list(at), top, T.hold(T.min(top + self.rows, height)))

    def _meeting(self, one: WindowAxis, first: Any, last: Any) -> tuple[Any, Any]:
        """The windows that reach some places along a dimension: the first, and how many."""
        begin = T.hold(up(first + (one.start - one.span + 1), one.stride))
        stop = T.min(T.truncdiv(last + one.start, T.i64(one.stride)) + 1, T.index(self.desc.pooled().sizes[one.dimension]))
        return begin, T.hold(T.max(stop - begin, T.i64(0)))

    def _block(self, at: list[Any], top: Any, bottom: Any) -> None:
        """Some rows of an image."""
        *far, down = self.others
        beside = [self._meeting(one, at[one.dimension], at[one.dimension]) for one in far]
        first, count = self._meeting(down, top, T.let(bottom - 1))
        with nested([T.loop(number) for _, number in [*beside, (first, count)]]) as rounds:
            window = list(at[:2])
            for (begin, _), i in zip([*beside, (first, count)], rounds, strict=True):
                window.append(T.let(begin + i))
            self.line(window, self._line_of(beside, rounds))
        with T.loop(T.let(bottom - top)) as i:
            y = T.let(top + i)
            begin, number = self._meeting(down, y, y)
            self._row([*at, y], beside, T.let(begin - first), number)

    def _line_of(self, beside: Sequence[tuple[Any, Any]], rounds: Sequence[Any]) -> Any:
        """Where a line begins: that of so many windows behind the first one in each dimension."""
        *numbers, last = rounds
        number = T.i64(0)
        for (_, count), i in zip(beside, numbers, strict=True):
            number = number * count + i
        return T.let((number * self.lines + last) * self.length + self.left)

    def _row(self, at: list[Any], beside: Sequence[tuple[Any, Any]], first: Any, count: Any) -> None:
        """The elements of a row."""
        image, stride, lanes = self.desc.whole(), self.along.stride, self.lanes
        width = T.index(image.sizes[-1])
        to = T.let(T.dot([*at, T.i64(0)], image.layout))
        row = T.let(_row_of(at[2:], image.sizes[2:]))
        several = T.let(T.truncdiv(width, T.i64(stride)))

        def sums(q: Any, remainders: Sequence[int], lanes: int) -> list[Any]:
            zero = T.splat(T.const(0, self.desc.computed), lanes)
            totals = {r: T.Variable(T.type_of(zero), zero) for r in remainders}
            numbers = {r: self.numbers(row + (q * stride + r), stride, lanes) for r in remainders}
            with nested([T.loop(number) for _, number in [*beside, (first, count)]]) as rounds:
                *before, last = rounds
                line = T.let(self._line_of(beside, [*before, last + first]) + q)
                for r, total in totals.items():
                    value = total.value
                    for tap in self.taps:
                        if tap.remainder == r:
                            value = T.hold(value + self.term(T.let(line + tap.shift), numbers[r]))
                    total.set(value)
            return [T.hold(total.value) for total in totals.values()]

        def store(place: Any, value: Any, lanes: int) -> None:
            T.store(self.tensors[self.desc.WHOLE], T.run(T.let(place), lanes), T.to(value, image.data_type.tvm))

        with T.loop(T.let(T.truncdiv(several + (lanes - 1), T.i64(lanes)))) as i:
            q = T.hold(T.min(i * lanes, several - lanes))
            for v, vector in enumerate(woven(sums(q, range(stride), lanes))):
                store(to + q * stride + v * lanes, vector, lanes)
        for r in range(stride - 1):
            with T.when(several * stride + r < width):
                store(to + several * stride + r, sums(several, [r], 1)[0], 1)

    def numbers(self, first: Any, step: int, lanes: int) -> Any:
        """The numbers of elements in their image."""
        number = T.let(T.cast(T.let(first), "int32"))
        if lanes == 1:
            return number
        return T.hold(T.splat(number, lanes) + T.Ramp(T.const(0, "int32"), T.const(step, "int32"), lanes))


class _Shares(_Shifted):
    """Averages: each window gives the same to all its elements."""

    def scratch(self) -> list[tuple[str, str, int]]:
        return [*super().scratch(), ("counts", self.given.computed, self.given.pooled().sizes[-1])]

    def prepare(self, counts: dict[str, Any]) -> None:
        buffer, begin = self.parts["counts"]
        with T.loop(counts["counts"]) as o:
            T.store(buffer, begin + o, T.cast(self._counted(self.along, o), self.desc.computed))

    def _counted(self, along: WindowAxis, o: Any) -> Any:
        size = self.desc.whole().sizes[along.dimension]
        reach = self.desc.reach(along, o, size)
        return self.desc.counted(along, reach, size) if self.desc.include_padding else reach.count

    def line(self, window: list[Any], to: Any) -> None:
        dtype, (given, begin), (counts, own) = self.desc.computed, self.parts["given"], self.parts["counts"]
        number: Any = None
        for one in self.others:
            count = T.cast(self._counted(one, window[one.dimension]), dtype)
            number = count if number is None else number * count
        number, place = T.hold(number), T.let(begin + to)

        def divide(j: Any, lanes: int) -> None:
            total = T.hold(T.splat(number, lanes) * counts[T.run(own + j, lanes)])
            total = T.Select(total > T.like(total, 0), total, T.like(total, 1))
            T.store(given, T.run(place + j, lanes), self.read(self.desc.POOLED, window, j, lanes) / total)

        self.vectors(T.index(self.desc.pooled().sizes[-1]), divide)

    def term(self, place: Any, number: Any) -> Any:
        given, begin = self.parts["given"]
        return given[T.run(T.let(begin + place), T.lanes(number))]


class _Taken(_Shifted):
    """Maxima: each window gives to its largest element."""

    def __init__(self, desc: Gathered, tasks: int, lanes: int) -> None:
        super().__init__(desc, tasks, lanes)
        along, width = self.along, desc.whole().sizes[-1]
        self.vector_count = -(-desc.pooled().sizes[-1] // lanes)
        windows = self.vector_count * lanes
        self.width = max(along.start + width, windows * along.stride + (along.size - 1) * along.dilation) + along.stride

    def scratch(self) -> list[tuple[str, str, int]]:
        rows = math.prod(one.size for one in self.others)
        own = [("places", "int32", self.total), ("firsts", "int32", self.vector_count * self.lanes)]
        return [*super().scratch(), *own, ("elements", self.given.computed, rows * self.width)]

    def prepare(self, counts: dict[str, Any]) -> None:
        along, (firsts, begin) = self.along, self.parts["firsts"]
        width = T.index(self.desc.whole().sizes[-1])
        self.cleared("elements", counts["elements"], least(self.desc.computed))
        self.windows = counts["firsts"]
        self.row_length = T.let(T.truncdiv(counts["elements"], T.i64(math.prod(one.size for one in self.others))))
        with T.loop(self.windows) as o:
            position = T.let(o * along.stride - along.start)
            skipped = T.let(up(-position, along.dilation))
            place = T.let(position + skipped * along.dilation)
            inside = (skipped < along.size) & (place < width)
            T.store(firsts, begin + o, T.cast(T.Select(inside, place, T.i64(-_MOST_ELEMENTS)), "int32"))

    def line(self, window: list[Any], to: Any) -> None:
        desc, lanes, along = self.desc, self.lanes, self.along
        sizes = desc.whole().sizes
        (given, begin), (places, own) = self.parts["given"], self.parts["places"]

        def give(j: Any, lanes: int) -> None:
            T.store(given, T.run(T.let(begin + to + j), lanes), self.read(desc.POOLED, window, j, lanes))

        self.vectors(T.index(desc.pooled().sizes[-1]), give)
        reaches = [desc.reach(one, window[one.dimension], sizes[one.dimension]) for one in self.others]
        with nested([T.loop(reach.count) for reach in reaches]) as rounds:
            self._copied([*window[:2], *self._there(reaches, rounds)], self._row_at(rounds))
        (firsts, before), none = self.parts["firsts"], T.splat(T.const(-1, "int32"), lanes)
        some: Any = T.const(True, "bool")
        for reach in reaches:
            some = some & (reach.count > T.const(0, T.type_of(reach.count)))
        some = T.hold(some)
        upper = T.let(T.cast(_row_of(self._there(reaches, [T.i64(0) for _ in reaches]), sizes[2:]), "int32"))
        with T.loop(T.truncdiv(self.windows, T.i64(lanes))) as i:
            o = T.let(i * lanes)
            start = T.hold(T.splat(upper, lanes) + firsts[T.run(before + o, lanes)])
            index = T.Variable(f"int32x{lanes}", T.hold(T.Select(T.splat(some, lanes), start, none)))
            best = T.Variable(f"{desc.computed}x{lanes}", T.splat(T.like(T.const(0, desc.computed), least(desc.computed)), lanes))
            with nested([T.loop(reach.count) for reach in reaches]) as rounds:
                row = T.let(_row_of(self._there(reaches, rounds), sizes[2:]) + (o * along.stride - along.start))
                for tap, x in enumerate(self._tap_elements(T.let(self._row_at(rounds) + o * along.stride))):
                    stays = kept(x, best.value)
                    index.set(T.Select(stays, index.value, self.numbers(row + tap * along.dilation, along.stride, lanes)))
                    best.set(T.Select(stays, best.value, x))
            T.store(places, T.run(T.let(own + to + o), lanes), index.value)

    def _there(self, reaches: Sequence[Any], rounds: Sequence[Any]) -> list[Any]:
        """The coordinates of taps, by their numbers among those inside."""
        return [T.let(one.position + (one.first + i) * one.step) for one, i in zip(reaches, rounds, strict=True)]

    def _row_at(self, rounds: Sequence[Any]) -> Any:
        """Where scratch memory has the row of a tap, from the first window's first tap on."""
        number = T.i64(0)
        for one, i in zip(self.others, rounds, strict=True):
            number = number * one.size + i
        return T.let(self.parts["elements"][1] + number * self.row_length)

    def _copied(self, at: list[Any], row: Any) -> None:
        elements, place = self.parts["elements"][0], T.let(row + self.along.start)

        def copy(j: Any, lanes: int) -> None:
            T.store(elements, T.run(place + j, lanes), self.read("input_tensor", at, j, lanes))

        self.vectors(T.index(self.desc.whole().sizes[-1]), copy)

    def _tap_elements(self, place: Any) -> list[Any]:
        """The elements of each tap along a row."""
        elements, lanes, stride = self.parts["elements"][0], self.lanes, self.along.stride
        found, read = [], {}
        for tap in range(self.along.size):
            group, past = divmod(tap * self.along.dilation, stride)
            if group not in read:
                read[group] = T.hold(elements[T.run(T.let(place + group * stride), lanes * stride)])
            own = read[group]
            found.append(own if stride == 1 else T.hold(T.Shuffle([own], [past + i * stride for i in range(lanes)])))
        return found

    def term(self, place: Any, number: Any) -> Any:
        (given, begin), (places, own) = self.parts["given"], self.parts["places"]
        lanes = T.lanes(number)
        value = T.hold(given[T.run(T.let(begin + place), lanes)])
        return T.Select(places[T.run(T.let(own + place), lanes)] == number, value, T.like(value, 0))


_WAYS: dict[type[Any], type[_Shifted]] = {AveragePoolingGrad: _Shares, MaxPoolingGrad: _Taken}


def _row_of(at: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """The number of a row's first element in its image."""
    number: Any = T.i64(0)
    *outer, width = sizes
    for size, one in zip(outer, at, strict=True):
        number = number * T.index(size) + one
    return number * T.index(width)

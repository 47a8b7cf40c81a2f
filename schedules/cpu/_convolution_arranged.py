"""What a direct convolution reads: the table of its steps, packed filters, and the frame of an image (``_convolution_plan.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._convolution_plan import DIMENSIONS, ConvolutionPlan
from tvmdml.schedules.cpu._part import load_part, store_part
from tvmdml.schedules.cpu._tiles import SIDE, transposed

_ROWS_AHEAD = 4
"""How many rows before it is read a part of an image is asked for, if only some of its rows are read."""


class ArrangedTile(NamedTuple):
    """The register tile."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Its places."""
        return self.vectors * self.lanes

    @property
    def narrow(self) -> ArrangedTile:
        """The tile for the last places, if they are few."""
        return self._replace(vectors=max(self.vectors // 2, 1))


class Ways(NamedTuple):
    """What there is a choice of."""

    by_rows: bool
    """Whether tiles of the same filters follow each other, or those of the same places."""
    packed: bool
    """Whether filters are packed for the tile."""
    panelled: bool
    """Whether places are, too: where a filter has one tap, so that each element is read for one place."""
    masked: bool
    """Whether the processor reads and writes parts of vectors."""


class Phase(NamedTuple):
    """A phase of the output: forward, there is one."""

    rest: list[Any]
    least: list[Any]
    """The first ``t`` along each dimension."""
    counts: list[Any]
    """The places along each dimension."""
    taps: Any
    """How many taps meet it."""
    first: Any
    """The taps of the phases before it."""

    def places(self, numbers: Sequence[Any], strides: list[Any], padding: list[Any]) -> list[Any]:
        """The places of the output, given their numbers in the phase."""
        own = zip(numbers, self.least, self.rest, strides, padding, strict=True)
        return [(least + t) * stride + rest - start for t, least, rest, stride, start in own]


class Arranged:
    """A direct convolution's parts that arrange what the tiles read."""

    plan: ConvolutionPlan
    tile: ArrangedTile
    tasks: int
    sums: str
    factors: str
    packed: bool
    arranges: bool
    """Whether filters are packed by this kernel: otherwise they are packed already, if they are."""
    masked: bool
    copy_step: int
    n: SimpleNamespace
    """The plan's numbers in the kernel."""
    count: Any
    """The number of tasks in the kernel."""
    tensors: dict[str, Any]
    frame: Any
    filters: Any
    table: Any
    places: Any
    panels: Any

    def each(self, name: str) -> list[Any]:
        return [getattr(self.n, f"{name}{i}") for i in range(DIMENSIONS)]

    def phases(self, body: Any) -> None:
        """Run the body for each phase of the output."""
        n, zero = self.n, T.i64(0)
        if not self.plan.backward:
            body(Phase([zero] * DIMENSIONS, [zero] * DIMENSIONS, self.each("output"), n.taps, zero))
            return
        first = T.Variable("int64", zero)
        strides = self.each("backward")
        with T.loop(strides[0]) as a, T.loop(strides[1]) as b, T.loop(strides[2]) as c:
            rest, least, counts, every = [a, b, c], [], [], []
            for i, (one, stride) in enumerate(zip(rest, strides, strict=True)):
                padding, size = self.each("padding")[i], self.each("output")[i]
                start = T.let(T.truncdiv(padding - one + stride - 1, stride))
                least.append(start)
                counts.append(T.hold(T.max(T.truncdiv(size - 1 + padding - one + stride, stride) - start, zero)))
                number = T.Variable("int64", zero)
                with T.loop(self.each("kernel")[i]) as j, T.when(T.truncmod(j * self.each("dilation")[i], stride) == one):
                    number.set(number.value + 1)
                every.append(T.let(number.value))
            taps, before = T.let(every[0] * every[1] * every[2]), T.let(first.value)
            body(Phase(rest, least, counts, taps, before))
            first.set(before + taps)

    def taps(self, phase: Phase, body: Callable[[Any, Any, list[tuple[Any, Any]]], None]) -> None:
        """Run the body for each tap that meets a phase.

        Args:
            phase: the phase.
            body: it is given the tap's number among them, its place in the tensor of filters, and how many strides it reaches along
                each dimension: whole ones, and the rest.
        """
        number = T.Variable("int64", T.i64(0))
        kernel, strides = self.each("kernel"), self.each("backward" if self.plan.backward else "forward")
        with T.loop(kernel[0]) as a, T.loop(kernel[1]) as b, T.loop(kernel[2]) as c:
            tap, meets, reached = self.n.filter_base, None, []
            for i, (j, stride) in enumerate(zip((a, b, c), strides, strict=True)):
                reach = T.let(j * self.each("dilation")[i])
                whole = T.hold(T.truncdiv(reach, stride))
                reached.append((whole, reach - whole * stride))
                tap = tap + j * self.each("tap_step")[i]
                if self.plan.backward:
                    fits = reached[i][1] == phase.rest[i]
                    meets = fits if meets is None else meets & fits

            def put(tap: Any = tap) -> None:
                body(number.value, tap, reached)
                number.set(number.value + 1)

            if meets is None:
                put()
            else:
                with T.when(meets):
                    put()

    def prepare(self, phase: Phase) -> None:
        """The table of steps, and the packed filters."""
        n = self.n
        other = T.let(n.channels * n.taps + phase.first * 2)
        steps = [n.plane_step, n.row_step, T.i64(1)]

        def put(number: Any, tap: Any, reached: list[tuple[Any, Any]]) -> None:
            place, inner = T.i64(0), [n.phases1 * n.phases2 * n.area, n.phases2 * n.area, n.area]
            for i, (whole, rest) in enumerate(reached):
                if self.plan.backward:
                    place = place + (phase.least[i] - whole - self.each("first")[i]) * steps[i]
                else:
                    place = place + whole * steps[i] + rest * inner[i]
            T.store(self.table, other + number * 2, place)
            T.store(self.table, other + number * 2 + 1, tap)

        self.taps(phase, put)
        base = T.let(n.channels * phase.first)
        with T.loop(n.channels) as c, T.loop(phase.taps) as t:
            T.store(self.table, base + c * phase.taps + t, self.table[other + t * 2] + c * n.frame)
        if self.packed and self.arranges:
            per_task(self.count, lambda task: self._pack(phase, other, task))

    def packed_at(self, phase: Phase, unit: Any) -> Any:
        """Where a panel of filters is: those of all phases before are in front."""
        n = self.n
        phases = n.backward0 * n.backward1 * n.backward2
        room = T.let(n.channels * n.taps * self.tile.rows + phases * SIDE)
        number = (phase.rest[0] * n.backward1 + phase.rest[1]) * n.backward2 + phase.rest[2]
        return T.let(unit * room + phase.first * n.channels * self.tile.rows + number * SIDE)

    def _pack(self, phase: Phase, other: Any, task: Any) -> None:
        n, rows = self.n, self.tile.rows
        w, depth = self.tensors["filter_tensor"], T.let(n.channels * phase.taps)
        begin, end = share(task, self.count, n.groups * self.panels)
        with T.loop(T.let(end - begin)) as i:
            unit = T.let(begin + i)
            group = T.hold(T.truncdiv(unit, self.panels))
            row = T.let((unit - group * self.panels) * rows)
            source = T.let(group * n.filter_group + row * n.filter_row)
            to, left = self.packed_at(phase, unit), T.let(n.filters - row)
            channel = T.let(group * n.filters + row)
            done = T.Variable("int64", T.i64(0))
            if self.plan.rows_contiguous:
                with T.when(left >= rows):
                    with T.loop(T.truncdiv(depth, T.i64(SIDE))) as block:
                        at = T.let(source + block * SIDE)
                        own = [
                            T.hold(self._factor(w[T.run(at + r * n.filter_row, SIDE)], "filter", channel + r)) for r in range(rows)
                        ]
                        zero = T.splat(T.const(0, self.factors), SIDE)
                        for k, column in enumerate(transposed(own + [zero] * (SIDE - rows))):
                            T.store(self.filters, T.run(to + (block * SIDE + k) * rows, SIDE), column)
                    done.set(T.truncdiv(depth, T.i64(SIDE)) * SIDE)
            rest = T.let(done.value)

            def put(position: Any, place: Any, whole: bool) -> None:
                for r in range(rows):
                    inside = T.i64(r) < left
                    at = place + r * n.filter_row if whole else T.let(T.Select(inside, place + r * n.filter_row, place))
                    value = self._factor(w[at], "filter", channel + r if whole else T.Select(inside, channel + r, channel))
                    found = value if whole else T.Select(inside, value, T.const(0, self.factors))
                    T.store(self.filters, to + position * rows + r, found)

            def every(whole: bool) -> None:
                if self.plan.rows_contiguous:
                    with T.loop(T.let(depth - rest)) as k:
                        put(T.let(rest + k), T.let(source + rest + k), whole)
                else:
                    with T.loop(n.channels) as c, T.loop(phase.taps) as t:
                        tap = self.table[other + t * 2 + 1]
                        put(T.let(c * phase.taps + t), T.let(source + c * n.filter_channel + tap), whole)

            T.either(left >= rows, lambda: every(True), lambda: every(False))

    def _factor(self, value: Any, name: str, channel: Any = None) -> Any:
        """An element as a factor: of integers less its zero point, as a float."""
        if self.sums != "int32":
            return T.cast(T.wide(value), self.factors)
        found = T.cast(T.cast(value, "int32"), "float32")
        zero = self.tensors.get(f"{name}_zero_point_tensor")
        if zero is None:
            return found
        own = zero[T.i64(0) if channel is None else T.let(channel * self.n.filter_zero_step)]
        return (
            found - T.repeated(T.cast(T.cast(own, "int32"), "float32"), T.lanes(found))
            if T.lanes(found) > 1
            else found - T.cast(T.cast(own, "int32"), "float32")
        )

    def copy_image(self, image: Any, task: Any) -> None:
        """Channels of an image to its frame."""
        n, x = self.n, self.tensors["input_tensor"]
        phases, rooms, sizes = self.each("phases"), self.each("room"), self.each("image")
        forward, starts, steps = self.each("forward"), self.each("start"), self.each("image_step")
        planes = T.let(phases[0] * phases[1] * phases[2])
        begin, end = share(task, self.count, n.groups * n.channels * planes)
        with T.loop(T.let(end - begin)) as unit:
            number = T.let(begin + unit)
            channel, *phase = T.unravel(number, [n.groups * n.channels, *phases])
            base = T.let(image * n.image_batch + channel * n.image_channel)
            to = T.let(self.frame_of(image) + number * n.area)
            # The places of a row that are inside of the image.
            offset = T.let(phase[2] - starts[2])
            low = T.hold(
                T.max(T.min(T.truncdiv(T.max(T.i64(0) - offset, T.i64(0)) + forward[2] - 1, forward[2]), rooms[2]), T.i64(0))
            )
            high = T.hold(T.truncdiv(T.max(sizes[2] - offset, T.i64(0)) + forward[2] - 1, forward[2]))
            high = T.hold(T.max(T.min(high, rooms[2]), low))
            with T.loop(rooms[0]) as a, T.loop(rooms[1]) as b:
                z = T.let(a * forward[0] + phase[0] - starts[0])
                y = T.let(b * forward[1] + phase[1] - starts[1])
                row = T.let(to + (a * rooms[1] + b) * rooms[2])
                inside = (z >= T.i64(0)) & (z < sizes[0]) & (y >= T.i64(0)) & (y < sizes[1])
                begin_x, end_x = (T.hold(T.Select(inside, one, T.i64(0))) for one in (low, high))
                if self.masked and self.copy_step:
                    source = T.let(base + z * steps[0] + y * steps[1] + offset * steps[2])
                    self._masked_row(x, source, row, rooms[2], begin_x, end_x)
                else:
                    source = T.let(base + z * steps[0] + y * steps[1] + offset * steps[2])
                    self._plain_row(x, source, row, begin_x, end_x)

    def _plain_row(self, x: Any, source: Any, row: Any, begin: Any, end: Any) -> None:
        """A row of the frame: zeros, elements and zeros."""
        n, zero = self.n, T.const(0, self.factors)
        with T.loop(begin) as c:
            T.store(self.frame, row + c, zero)
        self._row(x, source, T.let(n.forward2 * n.image_step2), row, begin, end)
        with T.loop(T.let(n.room2 - end)) as c:
            T.store(self.frame, row + end + c, zero)

    def _masked_row(self, x: Any, source: Any, row: Any, room: Any, begin: Any, end: Any) -> None:
        """The same in vectors, whose lanes outside are zeros."""
        lanes, step, kind = self.tile.lanes, self.copy_step, str(x.dtype)
        zero = self.tensors.get("input_zero_point_tensor") if self.sums == "int32" else None
        other = T.splat(T.const(0, kind) if zero is None else zero[T.i64(0)], lanes)
        ahead = T.let(self.n.forward1 * self.n.image_step1 * _ROWS_AHEAD)
        with T.loop(up(room, lanes)) as i:
            at = T.let(i * lanes)
            first, last = (T.let(T.cast((one - at) * step, "int32")) for one in (begin, end))
            vectors = []
            for part in range(step):
                # Of a pair, the second element may be behind the image.
                ends = last - (step - 1) - part * lanes
                place = T.let(source + at * step + part * lanes)
                if step == 2:
                    read_ahead(x, place + ahead)
                vectors.append(T.hold(load_part(x, place, first - part * lanes, ends, other)))
            value = vectors[0] if step == 1 else T.hold(T.Shuffle(vectors, list(range(0, 2 * lanes, 2))))
            left = T.let(T.cast(room - at, "int32"))
            found = T.hold(self._factor(value, "input"))
            T.either(
                left >= T.const(lanes, "int32"),
                lambda: T.store(self.frame, T.run(row + at, lanes), found),
                lambda: store_part(self.frame, row + at, T.const(0, "int32"), left, found),
            )

    def pack_places(self, image: Any, task: Any) -> None:
        """The places of each tile, so that the elements of a step are neighbours of those of the next one."""
        n, tile = self.n, self.tile
        places = T.let((n.output0 - 1) * n.plane_step + (n.output1 - 1) * n.row_step + n.output2)
        columns = T.let(up(places, tile.columns))
        begin, end = share(task, self.count, n.groups * columns)
        with T.loop(T.let(end - begin)) as i:
            unit = T.let(begin + i)
            group = T.hold(T.truncdiv(unit, columns))
            first, _ = self.first_place(T.let(unit - group * columns), places)
            source, origin = self.origin_of(image, group, first)
            to = T.let(unit * (n.channels * tile.columns))
            with T.loop(n.channels) as c:
                at, target = T.let(origin + c * n.frame), T.let(to + c * tile.columns)
                for j in range(tile.vectors):
                    T.store(self.places, T.run(target + j * tile.lanes, tile.lanes), source[T.run(at + j * tile.lanes, tile.lanes)])

    def origin_of(self, image: Any, group: Any, first: Any) -> tuple[Any, Any]:
        """The frame, and where a place of a group is in it."""
        n = self.n
        if self.plan.in_place:
            at = image * n.image_batch + group * n.channels * n.image_channel + first
            return self.tensors["input_tensor"], T.let(at)
        return self.frame, T.let(self.frame_of(image) + group * n.channels * n.frame + first)

    def frame_of(self, image: Any) -> Any:
        """Where the frame of an image is: all images have the same one, unless several are copied before the first is read."""
        return T.i64(0)

    def _row(self, x: Any, source: Any, step: Any, row: Any, begin: Any, end: Any) -> None:
        """A row's elements, every ``step``-th one."""
        done, lanes = T.Variable("int64", begin), self.tile.lanes
        if self.copy_step == 2:
            # The last vector ends before the row does, so that nothing behind the image is read.
            with T.loop(T.let(T.truncdiv(T.max(end - begin - 1, T.i64(0)), T.i64(lanes)))) as i:
                at = T.let(begin + i * lanes)
                pair = self._factor(x[T.run(source + at * 2, 2 * lanes)], "input")
                T.store(self.frame, T.run(row + at, lanes), T.Shuffle([T.hold(pair)], list(range(0, 2 * lanes, 2))))
            done.set(begin + T.truncdiv(T.max(end - begin - 1, T.i64(0)), T.i64(lanes)) * lanes)
        known = self.copy_step or step
        first = T.let(done.value)
        with T.loop(T.let(end - first)) as c:
            place = first + c
            T.store(self.frame, row + place, self._factor(x[source + place * known], "input"))

    def first_place(self, column: Any, places: Any) -> tuple[Any, Any]:
        """The first place of a tile, and whether it is narrow. Of an image in place, the last tile is moved back to end with it."""
        tile = self.tile
        first = T.let(column * tile.columns)
        narrow = T.let(places - first <= T.i64(tile.narrow.columns))
        if self.plan.in_place:
            width = T.Select(narrow, T.i64(tile.narrow.columns), T.i64(tile.columns))
            first = T.hold(T.min(first, places - width))
        return first, narrow


class Typed:
    """A tensor of which kernels know the type: its sizes and steps are numbers of the plan."""

    def __init__(self, tensor: Any) -> None:
        self.data_type, self.element_count = tensor.data_type, tensor.element_count
        self.rank, self.sizes, self.layout = tensor.rank, tensor.sizes, tensor.layout


def up(value: Any, divisor: int) -> Any:
    """A quotient, rounded up."""
    return T.truncdiv(value + (divisor - 1), T.i64(divisor))

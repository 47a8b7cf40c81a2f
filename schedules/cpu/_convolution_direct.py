"""Direct convolution: a register tile of filters by places reads the image's frame where its elements lie (``_convolution_plan.py``).

A step of the tile takes a product of each of its elements: one element of each filter, which are packed so that they are neighbours,
and vectors of the frame. A table has the distance of a step's elements from a place. Sums have the order of the family. Integers are
computed as float32 within a block of ``KC`` products, which is exact, and blocks are summed as int32.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC, multiply_add
from tvmdml.kernels.kernel import Kernel
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._convolution_plan import DIMENSIONS, NAMES, Plan
from tvmdml.schedules.cpu._part import load_part, read_ahead, store_part
from tvmdml.schedules.cpu._tiles import SIDE, transposed

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


_LINE = 16
"""Elements of a cache line."""


class Tile(NamedTuple):
    """The register tile."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Its places."""
        return self.vectors * self.lanes

    @property
    def narrow(self) -> Tile:
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


class Direct:
    """A direct convolution as a kernel."""

    def __init__(self, desc: Any, plan: Plan, tile: Tile, tasks: int, ways: Ways) -> None:
        self.given, self.plan, self.tile, self.tasks = desc, plan, tile, tasks
        self.by_rows, self.packed, self.panelled, self.masked = ways
        # Elements of neighbouring channels are too far apart for the processor to see what comes next.
        self.ahead = plan.taps == 1 and not self.panelled and not self.by_rows
        self.sums = desc.computed
        self.factors = "float32" if self.sums == "int32" else self.sums
        step = plan.output_step2 * plan.backward2
        self.step = step if step <= 2 else 0
        self.copy_step = plan.image_step2 * plan.forward2 if plan.image_step2 * plan.forward2 <= 2 else 0

    def kernel(self) -> Kernel:
        """The kernel."""
        own, tile = self.plan, self.tile
        panels = -(-own.filters // tile.rows)
        packed = own.groups * panels * (own.products * tile.rows + SIDE * own.backward0 * own.backward1 * own.backward2)
        result = self.given.output_tensor.data_type.tvm
        blocked = own.products > KC or self.sums == "int32"
        temporaries = (
            (self.factors, 1 if own.in_place else own.groups * own.channels * own.frame + tile.columns),
            (self.factors, packed + SIDE if self.packed else 1),
            ("int64", own.products + 2 * own.taps),
            (self.sums, self.tasks * tile.rows * tile.columns if blocked else 1),
            (result, 1 if self._by_mask else self.tasks * tile.rows * tile.lanes),
            (self.factors, own.groups * -(-own.places // tile.columns) * tile.columns * own.channels if self.panelled else 1),
        )
        module, *also = self.given.modules()
        choices = {
            "tile": tuple(tile), "by_rows": self.by_rows, "packed": self.packed, "in_place": own.in_place, "backward": own.backward,
            "step": self.step, "panelled": self.panelled, "masked": self.masked, "ahead": self.ahead, "copy_step": self.copy_step, "contiguous": own.rows_contiguous, "blocked": blocked,
            "parallel": self.tasks > 1,
        }  # fmt: skip
        parameters = (*self.given.formula_key(), *((name, repr(value)) for name, value in choices.items()))
        self.blocked = blocked
        scalars = (*own.scalars(), *self._steps(), self.tasks)
        return Kernel(module, "direct", parameters, self.function, scalars, temporaries, also=tuple(also))

    @property
    def _by_mask(self) -> bool:
        """Whether parts of vectors are stored by masks."""
        return self.masked and self.step in (1, 2)

    def _steps(self) -> list[int]:
        """The steps of addends from one of the output's channels to the next."""
        return [tensor.layout[1] for _, tensor in self.given.addends()]

    def function(self) -> PrimFunc:
        """The TensorIR."""
        self.desc = self.given.with_tensors(Typed)
        with T.function() as f:
            self.tensors = f.tensors(self.desc)
            names = ("frame", "packed", "table", "totals", "stored", "panels")
            result = self.given.output_tensor.data_type.tvm
            types = (self.factors, self.factors, "int64", self.sums, result, self.factors)
            self.frame, self.filters, self.table, self.totals, self.stored, self.places = (
                f.buffer(f"{name}_scratch", dtype) for name, dtype in zip(names, types, strict=True)
            )
            self.n = SimpleNamespace(**{name: f.scalar(name) for name in NAMES})
            self.steps = [f.scalar(f"addend{i}") for i in range(len(self._steps()))]
            self.count = f.scalar("tasks")
            self._body()
        return f.result()

    def _d(self, name: str) -> list[Any]:
        return [getattr(self.n, f"{name}{i}") for i in range(DIMENSIONS)]

    # -- The parts

    def _body(self) -> None:
        n, tile = self.n, self.tile
        self.panels = T.let(_up(n.filters, tile.rows))
        self._phases(self._prepare)
        with T.loop(n.batch) as image:
            if not self.plan.in_place:
                per_task(self.count, self.tasks > 1, lambda task: self._copy(image, task))
            if self.panelled:
                per_task(self.count, self.tasks > 1, lambda task: self._panels(image, task))
            self._phases(lambda phase: per_task(self.count, self.tasks > 1, lambda task: self._compute(image, phase, task)))

    def _phases(self, body: Any) -> None:
        """Run the body for each phase of the output."""
        n, zero = self.n, T.i64(0)
        if not self.plan.backward:
            body(Phase([zero] * DIMENSIONS, [zero] * DIMENSIONS, self._d("output"), n.taps, zero))
            return
        first = T.Variable("int64", zero)
        strides = self._d("backward")
        with T.loop(strides[0]) as a, T.loop(strides[1]) as b, T.loop(strides[2]) as c:
            rest, least, counts, every = [a, b, c], [], [], []
            for i, (one, stride) in enumerate(zip(rest, strides, strict=True)):
                padding, size = self._d("padding")[i], self._d("output")[i]
                start = T.let(T.truncdiv(padding - one + stride - 1, stride))
                least.append(start)
                counts.append(T.hold(T.max(T.truncdiv(size - 1 + padding - one + stride, stride) - start, zero)))
                number = T.Variable("int64", zero)
                with T.loop(self._d("kernel")[i]) as j, T.when(T.truncmod(j * self._d("dilation")[i], stride) == one):
                    number.set(number.value + 1)
                every.append(T.let(number.value))
            taps, before = T.let(every[0] * every[1] * every[2]), T.let(first.value)
            body(Phase(rest, least, counts, taps, before))
            first.set(before + taps)

    def _prepare(self, phase: Phase) -> None:
        """The table of steps, and the packed filters."""
        n = self.n
        kernel, dilation = self._d("kernel"), self._d("dilation")
        other = T.let(n.channels * n.taps + phase.first * 2)
        number = T.Variable("int64", T.i64(0))
        with T.loop(kernel[0]) as a, T.loop(kernel[1]) as b, T.loop(kernel[2]) as c:
            place, tap, meets = T.i64(0), n.filter_base, None
            steps = [n.plane_step, n.row_step, T.i64(1)]
            area = T.let(n.room0 * n.room1 * n.room2)
            inner = [T.let(n.phases1 * n.phases2 * area), T.let(n.phases2 * area), area]
            for i, j in enumerate((a, b, c)):
                reach = T.let(j * dilation[i])
                tap = tap + j * self._d("tap_step")[i]
                if self.plan.backward:
                    stride = self._d("backward")[i]
                    whole = T.hold(T.truncdiv(reach, stride))
                    fits = reach - whole * stride == phase.rest[i]
                    meets = fits if meets is None else meets & fits
                    place = place + (phase.least[i] - whole - self._d("first")[i]) * steps[i]
                else:
                    stride = self._d("forward")[i]
                    whole = T.hold(T.truncdiv(reach, stride))
                    place = place + whole * steps[i] + (reach - whole * stride) * inner[i]

            def put(place: Any = place, tap: Any = tap) -> None:
                T.store(self.table, other + number.value * 2, place)
                T.store(self.table, other + number.value * 2 + 1, tap)
                number.set(number.value + 1)

            if meets is None:
                put()
            else:
                with T.when(meets):
                    put()
        base = T.let(n.channels * phase.first)
        with T.loop(n.channels) as c, T.loop(phase.taps) as t:
            T.store(self.table, base + c * phase.taps + t, self.table[other + t * 2] + c * n.frame)
        if self.packed:
            per_task(self.count, self.tasks > 1, lambda task: self._pack(phase, other, task))

    def _packed_at(self, phase: Phase, unit: Any) -> Any:
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
            to, left = self._packed_at(phase, unit), T.let(n.filters - row)
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
        return found - T.repeated(T.cast(T.cast(own, "int32"), "float32"), T.lanes(found)) if T.lanes(found) > 1 else found - T.cast(
            T.cast(own, "int32"), "float32"
        )

    def _copy(self, image: Any, task: Any) -> None:
        """Channels of an image to its frame."""
        n, x = self.n, self.tensors["input_tensor"]
        phases, rooms, sizes = self._d("phases"), self._d("room"), self._d("image")
        forward, starts, steps = self._d("forward"), self._d("start"), self._d("image_step")
        planes = T.let(phases[0] * phases[1] * phases[2])
        begin, end = share(task, self.count, n.groups * n.channels * planes)
        with T.loop(T.let(end - begin)) as unit:
            number = T.let(begin + unit)
            channel, *phase = T.unravel(number, [n.groups * n.channels, *phases])
            base = T.let(image * n.image_batch + channel * n.image_channel)
            to = T.let(number * (rooms[0] * rooms[1] * rooms[2]))
            # The places of a row that are inside of the image.
            offset = T.let(phase[2] - starts[2])
            low = T.hold(T.max(T.min(T.truncdiv(T.max(T.i64(0) - offset, T.i64(0)) + forward[2] - 1, forward[2]), rooms[2]), T.i64(0)))
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
        with T.loop(_up(room, lanes)) as i:
            at = T.let(i * lanes)
            first, last = (T.let(T.cast((one - at) * step, "int32")) for one in (begin, end))
            vectors = []
            for part in range(step):
                # Of a pair, the second element may be behind the image.
                ends = last - (step - 1) - part * lanes
                place = T.let(source + at * step + part * lanes)
                vectors.append(T.hold(load_part(x, place, first - part * lanes, ends, other)))
            value = vectors[0] if step == 1 else T.hold(T.Shuffle(vectors, list(range(0, 2 * lanes, 2))))
            left = T.let(T.cast(room - at, "int32"))
            found = T.hold(self._factor(value, "input"))
            T.either(
                left >= T.const(lanes, "int32"),
                lambda: T.store(self.frame, T.run(row + at, lanes), found),
                lambda: store_part(self.frame, row + at, T.const(0, "int32"), left, found),
            )

    def _panels(self, image: Any, task: Any) -> None:
        """The places of each tile, so that the elements of a step are neighbours of those of the next one."""
        n, tile = self.n, self.tile
        places = T.let((n.output0 - 1) * n.plane_step + (n.output1 - 1) * n.row_step + n.output2)
        columns = T.let(_up(places, tile.columns))
        begin, end = share(task, self.count, n.groups * columns)
        with T.loop(T.let(end - begin)) as i:
            unit = T.let(begin + i)
            group = T.hold(T.truncdiv(unit, columns))
            first, _ = self._first(T.let(unit - group * columns), places)
            source, origin = self._origin(image, group, first)
            to = T.let(unit * (n.channels * tile.columns))
            with T.loop(n.channels) as c:
                at, target = T.let(origin + c * n.frame), T.let(to + c * tile.columns)
                for j in range(tile.vectors):
                    T.store(
                        self.places, T.run(target + j * tile.lanes, tile.lanes), source[T.run(at + j * tile.lanes, tile.lanes)]
                    )

    def _origin(self, image: Any, group: Any, first: Any) -> tuple[Any, Any]:
        """The frame, and where a place of a group is in it."""
        n = self.n
        if self.plan.in_place:
            at = image * n.image_batch + group * n.channels * n.image_channel + first
            return self.tensors["input_tensor"], T.let(at)
        return self.frame, T.let(group * n.channels * n.frame + first)

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

    # -- Tiles

    def _compute(self, image: Any, phase: Phase, task: Any) -> None:
        n, tile = self.n, self.tile
        places = T.let((phase.counts[0] - 1) * n.plane_step + (phase.counts[1] - 1) * n.row_step + phase.counts[2])
        some = T.And(T.And(phase.counts[0] > T.i64(0), phase.counts[1] > T.i64(0)), phase.counts[2] > T.i64(0))
        columns = T.hold(T.Select(some, _up(places, tile.columns), T.i64(0)))
        each = T.let(self.panels * columns)
        begin, end = share(task, self.count, n.groups * each)
        with T.loop(T.let(end - begin)) as i:
            unit = T.let(begin + i)
            group = T.hold(T.truncdiv(unit, each))
            left = T.let(unit - group * each)
            if self.by_rows:
                panel = T.hold(T.truncdiv(left, columns))
                column = T.let(left - panel * columns)
            else:
                column = T.hold(T.truncdiv(left, self.panels))
                panel = T.let(left - column * self.panels)
            first, narrow = self._first(column, places)
            number = T.let(group * columns + column)
            T.either(
                narrow,
                lambda: self._tile(tile.narrow, image, phase, group, panel, first, number, task),
                lambda: self._tile(tile, image, phase, group, panel, first, number, task),
            )

    def _first(self, column: Any, places: Any) -> tuple[Any, Any]:
        """The first place of a tile, and whether it is narrow. Of an image in place, the last tile is moved back to end with it."""
        tile = self.tile
        first = T.let(column * tile.columns)
        narrow = T.let(places - first <= T.i64(tile.narrow.columns))
        if self.plan.in_place:
            width = T.Select(narrow, T.i64(tile.narrow.columns), T.i64(tile.columns))
            first = T.hold(T.min(first, places - width))
        return first, narrow

    def _tile(
        self, tile: Tile, image: Any, phase: Phase, group: Any, panel: Any, first: Any, number: Any, task: Any
    ) -> None:
        n = self.n
        depth = T.let(n.channels * phase.taps)
        table = T.let(n.channels * phase.first)
        source, origin = self._origin(image, group, first)
        if self.panelled:
            source, origin = self.places, T.let(number * (n.channels * self.tile.columns))
        row = T.let(panel * tile.rows)
        if self.packed:
            filters, start = self.filters, self._packed_at(phase, T.let(group * self.panels + panel))
        else:
            filters, start = self.tensors["filter_tensor"], T.let(group * n.filter_group)
            own = [T.hold(start + T.min(row + i, n.filters - 1) * n.filter_row) for i in range(tile.rows)]
        zero = T.splat(T.const(0, self.factors), tile.lanes)
        kind = f"{self.factors}x{tile.lanes}"
        sums = [[T.Variable(kind, zero) for _ in range(tile.vectors)] for _ in range(tile.rows)]

        # The first filters of a tile ask for the next one's elements.
        next_tile = T.let(T.Select(row == T.i64(0), T.i64(self.tile.columns), T.i64(0)))

        def steps(begin: Any, count: Any) -> None:
            with T.loop(count) as i:
                k = T.let(begin + i)
                at = T.let(origin + (k * self.tile.columns if self.panelled else self.table[table + k]))
                if self.ahead:
                    for j in range(0, tile.vectors * tile.lanes, _LINE):
                        read_ahead(source, at + next_tile + j)
                vectors = [T.let(source[T.run(at + j * tile.lanes, tile.lanes)]) for j in range(tile.vectors)]
                for r in range(tile.rows):
                    value = filters[start + k * tile.rows + r] if self.packed else filters[own[r] + k]
                    factor = T.let(T.splat(value, tile.lanes))
                    for j in range(tile.vectors):
                        sums[r][j].set(multiply_add(factor, vectors[j], sums[r][j].value))

        if not self.blocked:
            steps(T.i64(0), depth)
            self._store(tile, image, phase, group, row, first, task, lambda r, j: sums[r][j].value)
            return
        scratch = T.let(task * (tile.rows * self.tile.columns))

        def kept(r: int, j: int) -> Any:
            return T.run(scratch + (r * tile.columns + j * tile.lanes), tile.lanes)

        def each(body: Any) -> None:
            for r in range(tile.rows):
                for j in range(tile.vectors):
                    body(r, j)

        def block_sum(r: int, j: int) -> Any:
            value = sums[r][j].value
            return value if self.sums != "int32" else T.cast(value, "int32")

        blocks = T.let(_up(depth, KC))
        with T.when(blocks == T.i64(0)):
            each(lambda r, j: T.store(self.totals, kept(r, j), T.splat(T.const(0, self.sums), tile.lanes)))
        with T.loop(blocks) as block:
            begin = T.let(block * KC)
            steps(begin, T.hold(T.min(depth - begin, T.i64(KC))))
            T.either(
                block == T.i64(0),
                lambda: each(lambda r, j: T.store(self.totals, kept(r, j), block_sum(r, j))),
                lambda: each(lambda r, j: T.store(self.totals, kept(r, j), self.totals[kept(r, j)] + block_sum(r, j))),
            )
            each(lambda r, j: sums[r][j].set(zero))
        self._store(tile, image, phase, group, row, first, task, lambda r, j: T.let(self.totals[kept(r, j)]))

    def _store(
        self, tile: Tile, image: Any, phase: Phase, group: Any, row: Any, first: Any, task: Any, total: Any
    ) -> None:
        """Finished sums to the output: vectors whose places are in a row, and others part by part."""
        n, y = self.n, self.tensors["output_tensor"]
        lanes = tile.lanes
        strides, steps, padding = self._d("backward"), self._d("output_step"), self._d("padding")
        base = T.let(image * n.output_batch + (group * n.filters + row) * n.output_channel)
        scratch = T.let(task * (tile.rows * lanes))
        names = [name for name, _ in self.desc.addends()]
        addends = [
            [
                T.let(
                    T.splat(
                        T.wide(self.tensors[name][T.let((group * n.filters + T.min(row + r, n.filters - 1)) * step)]), lanes
                    )
                )
                for name, step in zip(names, self.steps, strict=True)
            ]
            for r in range(tile.rows)
        ]

        def place(i: int, t: Any) -> Any:
            return ((phase.least[i] + t) * strides[i] + phase.rest[i] - padding[i]) * steps[i]

        for j in range(tile.vectors):
            at = T.let(first + j * lanes)
            a = T.hold(T.truncdiv(at, n.plane_step))
            rest = T.let(at - a * n.plane_step)
            b = T.hold(T.truncdiv(rest, n.row_step))
            c = T.let(rest - b * n.row_step)
            inside = T.And(T.And(a < phase.counts[0], b < phase.counts[1]), c + lanes <= phase.counts[2])

            def finished(r: int, j: int = j) -> Any:
                return self.desc.element(total(r, j), addends[r])

            def whole(a: Any = a, b: Any = b, c: Any = c, finished: Any = finished) -> None:
                to = T.let(base + place(0, a) + place(1, b) + c)
                for r in range(tile.rows):
                    with T.when(row + r < n.filters):
                        T.store(y, T.run(to + r * n.output_channel, lanes), finished(r))

            def parts(a: Any = a, b: Any = b, c: Any = c, finished: Any = finished) -> None:
                own = [T.let(finished(r)) for r in range(tile.rows)] if self._by_mask else []
                if not own:
                    for r in range(tile.rows):
                        T.store(self.stored, T.run(scratch + r * lanes, lanes), finished(r))
                where = [T.Variable("int64", one) for one in (a, b, c)]
                lane = T.Variable("int64", T.i64(0))
                with T.loop_while(T.And(lane.value < T.i64(lanes), where[0].value < phase.counts[0])):
                    here = [T.let(one.value) for one in where]
                    done = T.let(lane.value)
                    run = T.hold(T.min(T.i64(lanes) - done, phase.counts[2] - here[2]))
                    with T.when(T.And(run > T.i64(0), here[1] < phase.counts[1])):
                        to = T.let(base + sum(place(i, here[i]) for i in range(DIMENSIONS)))
                        step = T.i64(self.step) if self.step else T.let(strides[2] * steps[2])
                        ends = [T.let(T.cast(one, "int32")) for one in (done, done + run)]
                        for r, value in enumerate(own):
                            with T.when(row + r < n.filters):
                                store_part(y, to + r * n.output_channel - done * step, *ends, value, by=self.step)
                        if not own:
                            with T.loop(T.hold(T.min(n.filters - row, T.i64(tile.rows)))) as r, T.loop(run) as e:
                                T.store(y, to + r * n.output_channel + e * step, self.stored[scratch + r * lanes + done + e])
                    lane.set(done + n.row_step - here[2])
                    where[2].set(T.i64(0))
                    last = T.let((here[1] + 1) * n.row_step == n.plane_step)
                    where[1].set(T.Select(last, T.i64(0), here[1] + 1))
                    where[0].set(T.Select(last, here[0] + 1, here[0]))

            if self.step == 1:
                T.either(inside, whole, parts)
            else:
                parts()


class Typed:
    """A tensor of which kernels know the type: its sizes and steps are numbers of the plan."""

    def __init__(self, tensor: Any) -> None:
        self.data_type, self.element_count = tensor.data_type, tensor.element_count
        self.rank, self.sizes, self.layout = tensor.rank, tensor.sizes, tensor.layout


def _up(value: Any, divisor: int) -> Any:
    """A quotient, rounded up."""
    return T.truncdiv(value + (divisor - 1), T.i64(divisor))




"""Convolutions over blocks of channels that are last: a register tile of places by vectors of filters that never change.

The image is copied once, with its padding, into a frame that has blocks of channels, each with its places: then what a
tile reads is near. A large image is copied band by band, a band being some of its rows: what was copied is still in a cache when
it is read. A tile has places that follow each other, row after row, and holds the address of each in the frame: so one kernel
serves images of all widths and strides. Finished sums are stored as they are where the output's channels are last, and turned
where its places are contiguous (``_convolution_turned.py``).

Tiles that follow each other meet the same block of products before the next one, so that its filters stay in the first cache; where
there are many, tiles ask for those of the next block meanwhile.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels import tiles
from tvmdml.kernels.contraction import KC, multiply_add
from tvmdml.kernels.kernel import Kernel, Offers
from tvmdml.schedules.cpu import per_task, share, split
from tvmdml.schedules.cpu._ahead import read_far_ahead
from tvmdml.schedules.cpu._convolution_after import After
from tvmdml.schedules.cpu._convolution_arranged import Typed, up
from tvmdml.schedules.cpu._convolution_knobs import ORDERS
from tvmdml.schedules.cpu._convolution_plan import ConvolutionPlan
from tvmdml.schedules.cpu._convolution_register_tile import OF_FLOATS, RegisterTile, parts_of_vectors
from tvmdml.schedules.cpu._convolution_turned import Turned
from tvmdml.schedules.cpu._crowded import after, element_at, once_more, place_of, vector_at
from tvmdml.schedules.cpu._gemm_arithmetic import FloatProducts
from tvmdml.schedules.cpu._gemm_owned import TASK_ELEMENTS, FactorPacking, PackedSource, Panels
from tvmdml.schedules.cpu._gemm_panels import ALONG, SINGLE
from tvmdml.schedules.cpu._part import load_part
from tvmdml.schedules.cpu._sums import Sums, zeros
from tvmdml.schedules.cpu._tiles import SIDE, transposed
from tvmdml.schedules.cpu._woven import MOST, woven

if TYPE_CHECKING:
    from tvmdml.targets import Target

TILES = {
    16: ((7, 4), (12, 2), (8, 3), (12, 1), (4, 4), (4, 3), (4, 2), (4, 1), (1, 4), (1, 3), (1, 2), (1, 1)),
    8: ((6, 2), (4, 3), (6, 1), (2, 3), (2, 2), (2, 1), (1, 3), (1, 2), (1, 1)),
}
"""Places, and vectors of filters, by the lanes of a vector: those for many places first."""
_NUMBERS = (
    "batch", "groups", "channels", "filters", "depth", "image_batch", "image_channel", "image_row", "image_column", "height",
    "width", "top", "left", "skip_down", "skip_across", "output_batch", "output_channel", "output_row", "output_column", "rows",
    "columns", "by_rows", "room_rows", "room_columns", "line", "stride", "kernel0", "kernel1", "dilation0",
    "dilation1", "bands", "height_of_output", "band_step",
)  # fmt: skip


_LINE = 16
"""Elements of a cache line."""
_BAND = 1 << 21
"""About so many bytes of a frame are copied before they are read."""
_REACHES = 4
"""A band has at least so many times the rows that filters reach beyond one, which are copied for the next band, too."""
_MOST_SUMS = 26
"""The most sums that leave registers for all that a step reads."""
_NEAR = 40 << 10
"""The most bytes of filters that stay in the first cache while tiles follow each other."""
_PLACES_OF_FILTERS = 8
"""From so many filters for each place on, filters of one tap are read as those of several are; a product packs places instead."""
_FEW_PLACES = 16
"""With fewer places a product reads filters once, too."""
_ASKS = 16
"""Steps between those that ask for filters."""


_FRAME, _OUTPUT = "frame", "output"


class _Band(NamedTuple):
    """Rows of the output that are computed after their part of an image was copied."""

    image: Any
    row: Any
    """The first one."""


class _Run(NamedTuple):
    """Tiles that follow each other."""

    first: Any
    count: Any


class _Image(NamedTuple):
    """An image of the launch: the steps from one of its images, rows and columns to the next."""

    image: Any
    row: Any
    column: Any


def lanes_of(target: Target) -> int:
    """The lanes of float32 of a processor that has tiles here; otherwise 0."""
    processor = getattr(target, "processor", None)
    if processor is None or not processor.has("fma"):
        return 0
    return 16 if processor.has("avx512f") else 8 if processor.has("avx2") else 0


def suits(desc: Any, plan: ConvolutionPlan, target: Target) -> bool:
    """Whether filters never change, and the output's channels are last, or its columns are contiguous and tiles can be turned."""
    lanes, along = lanes_of(target), desc.along()
    if not lanes or plan.backward or len(along) > 2 or desc.filters()[0] < lanes or desc.computed != "float32":
        return False
    x, y = desc.input_tensor, desc.output_tensor
    fixed = "filter_tensor" in desc.owned() and plan.rows_contiguous and desc.filter_tensor.data_type.tvm == "float32"
    after = After(desc)
    follow = len(along) < 2 or y.sizes[-2] == 1 or y.layout[-2] == y.sizes[-1]  # rows follow each other, as columns do
    lies = all(after.places) if _last(y) else y.layout[-1] == 1 and follow and after.suits and parts_of_vectors(target)
    return bool(lies and x.data_type.tvm == "float32" and fixed and set(after.steps()) <= {0, 1})


def _last(tensor: Any) -> bool:
    """Whether channels are last."""
    return bool(tensor.layout[1] == 1 and tensor.layout[-1] >= tensor.sizes[1])


def few(desc: Any, plan: ConvolutionPlan) -> bool:
    """Whether filters of one tap are so many, beside the places, that reading each of them once decides."""
    alone = plan.taps == 1 and all(one.stride == 1 for one in desc.along())
    return alone and _FEW_PLACES <= plan.places <= desc.filters()[0] // _PLACES_OF_FILTERS


class Last:
    """Such a convolution as a kernel."""

    def __init__(self, desc: Any, plan: ConvolutionPlan, tasks: int, target: Target, knobs: Any) -> None:
        self.given, self.plan, self.tasks, self.target, self.after = desc, plan, tasks, target, After(desc)
        self.lanes, self.turns = lanes_of(target), not _last(desc.output_tensor)
        self.masked = parts_of_vectors(target)
        along = desc.along()
        if len(along) == 1:
            along = [along[0]._replace(image=1, kernel=1, output=1, stride=1, dilation=1, start=0), *along]
        alone = plan.taps == 1  # then places are skipped when they are copied
        self.skips = [one.stride if alone else 1 for one in along]
        self.strides = [1 if alone else one.stride for one in along]
        self.filters, self.channels = desc.filters()
        self.block = min(knobs.block, self.channels)
        self.rows, self.columns = self._band(along), along[1].output
        self.room = [
            (output - 1) * stride + (one.kernel - 1) * one.dilation + 1
            for output, one, stride in zip((self.rows, self.columns), along, self.strides, strict=True)
        ]
        x, y = desc.input_tensor, desc.output_tensor
        flat = len(desc.along()) == 1
        self.image_steps = [0 if flat else x.layout[2], x.layout[-1]]
        self.output_steps = [0 if flat else y.layout[2], y.layout[-1]]
        self.images = {name: [one.layout[0], 0 if flat else one.layout[2], one.layout[-1]] for name, one in self.after.images}
        """What follows reads otherwise than it writes: the steps of images, rows and columns."""
        whole = alone and all(one.stride == 1 and one.start == 0 and one.image == one.output for one in along)
        if whole and self.image_steps[0] == self.columns * self.image_steps[1]:  # then the frame is copied as one row
            places = self.rows * self.columns
            along = [one._replace(image=n) for one, n in zip(along, (1, places), strict=True)]
            self.room = [1, places]
        self.line: Any = self.columns if alone else self.strides[0] * self.room[1]
        """From a row of places to the next, in the frame."""
        self.flat = {
            _FRAME: alone,
            **{
                name: bool(self.rows == 1 or row == self.columns * column)
                for name, row, column in ((_OUTPUT, *self.output_steps), *((name, *own[1:]) for name, own in self.images.items()))
            },
        }
        """Whether rows follow each other as columns do."""
        self.along = along
        places, vectors = tiles.of_following_places(
            *(self.rows * self.columns, self.filters, TILES[self.lanes], self.lanes, not self.turns),
            *((OF_FLOATS.begin, OF_FLOATS.read), (knobs.run, knobs.vectors)),
        )
        self.tile = RegisterTile(places, 1, vectors)
        self.width = self.tile.vectors * self.lanes
        self.panels = Panels(self.width, 1, self.filters, plan.products)
        self.stay = KC if min(KC, plan.products) * self.width * 4 <= _NEAR else KC // 2
        self.blocked, self.parted = plan.products > KC, plan.products > self.stay
        self.held = int(self.parted and self.stay < KC)
        self.frame_elements = -(-self.channels // self.block) * self.block * math.prod(self.room)
        self.by_rows = ORDERS[knobs.order](self.filters * plan.products, self.frame_elements)
        self.steps = self.after.steps()
        count = -(-(self.rows * self.columns) // self.tile.places)
        self.follow = -(-count // -(-count // knobs.follow))

    def _band(self, along: Any) -> Any:
        """How many rows of the output a band has. Where filters have one tap, a frame may have no rows: a band has all of them."""
        down, across = along
        self.height = down.output
        if self.plan.taps == 1:
            return self.height
        columns = (across.output - 1) * across.stride + (across.kernel - 1) * across.dilation + 1
        reach = (down.kernel - 1) * down.dilation
        room = ((down.output - 1) * down.stride + reach + 1) * columns * self.channels * self.given.group_count
        bands = 1 + (4 * room - 1) // _BAND
        return min(max(-(-self.height // bands), _REACHES * reach), self.height)

    def kernel(self) -> Kernel:
        """The kernel."""
        own, groups, tile = self.plan, self.given.group_count, self.tile
        temporaries = (
            ("float32", groups * self.frame_elements),
            ("int64", own.products),
            ("float32", max(1, self.tasks * self._room(self.follow))),
        )
        module, *also = self.given.modules()
        choices = {
            "tile": (tile.places, tile.vectors), "lanes": self.lanes, "block": self.block, "blocked": self.blocked,
            "last": self.given.input_tensor.layout[1] == 1, "row": self.image_steps[1] == 1,
            "turns": self.turns, "masked": self.masked,
            "parted": self.parted, "skips": self.skips[1], "steps": self.steps,
            "after": self.after.places, "flat": list(self.flat.values()),
        }  # fmt: skip
        parameters = (*self.given.formula_key(), *((name, repr(value)) for name, value in choices.items()))
        panels = self.panels.panel, self.panels.room, self.panels.count
        scalars = (*self._numbers(), *panels, self.frame_elements, self.follow, self.tasks, *itertools.chain(*self.images.values()))
        return Kernel(
            module, "last", parameters, self.function, scalars, temporaries, tuple(also),
            owned=(self._packing(module),), offers=Offers.OWN | Offers.VECTORS | Offers.CHANNELS_LAST,
        )  # fmt: skip

    def _room(self, follow: Any) -> Any:
        """The sums that a task keeps: those of tiles of which not all is added, and finished ones that are turned."""
        return follow * ((self.blocked + self.held) * self.tile.places * self.width) + self.turns * self.width * SIDE

    def _packing(self, module: str) -> Any:
        """How filters are packed, once."""
        own = self.plan
        tasks = split(self.panels.room * own.groups, self.target, TASK_ELEMENTS)
        form = ALONG if self.width < SIDE or self.width % SIDE == 0 else SINGLE
        source = PackedSource("float32", form, 1, (own.groups,), 0, (own.filter_group,), own.filter_row, 1, None)
        return FactorPacking(self.panels, source, FloatProducts("float32"), self.lanes, False, tasks).owned(
            ("filter_tensor",), module
        )

    def _numbers(self) -> tuple[int, ...]:
        desc, (down, across) = self.given, self.along
        x, y = desc.input_tensor, desc.output_tensor
        return (
            *(y.sizes[0], desc.group_count, self.channels, self.filters, self.plan.products),
            *(x.layout[0], x.layout[1], *self.image_steps, down.image, across.image, down.start, across.start, *self.skips),
            *(y.layout[0], y.layout[1], *self.output_steps, self.rows, self.columns, int(self.by_rows)),
            *(*self.room, self.line, self.strides[1]),
            *(down.kernel, across.kernel, down.dilation, across.dilation),
            *(-(-self.height // self.rows), self.height, self.strides[0] * self.skips[0]),
        )

    def function(self) -> T.PrimFunc:
        """The TensorIR."""
        self.desc = self.given.with_tensors(Typed)
        with T.function() as f:
            self.tensors = f.tensors(self.desc, packed={"filter_tensor": "float32"})
            self.frame, self.table = f.buffer("frame_scratch", "float32"), f.buffer("table_scratch", "int64")
            self.totals = f.buffer("totals_scratch", "float32")
            self.n = SimpleNamespace(**{name: f.scalar(name) for name in _NUMBERS})
            self.panel, self.of_group, self.count_of_panels, self.frame_of_group, self.most, self.count = (
                f.scalar(name) for name in ("panel", "of_group", "panels", "frame", "follow", "tasks")
            )
            self.steps_of = {name: _Image(*f.scalars(f"image{i}_step", 3)) for i, name in enumerate(self.images)}
            self._prepare()
            with T.loop(self.n.batch) as image, T.loop(self.n.bands) as number:
                # The last band ends with the image, and has rows of the one before.
                band = _Band(image, T.hold(T.min(number * self.n.rows, self.n.height_of_output - self.n.rows)))
                per_task(self.count, lambda task: self._copy(band, task))
                per_task(self.count, lambda task: self._compute(band, task))
        return f.result()

    def _prepare(self) -> None:
        """The table: how far from a place the element of each product is."""
        n = self.n
        self.by_filters = T.hold(n.by_rows > T.i64(0))
        number = T.Variable("int64", T.i64(0))
        area = T.let(n.room_rows * n.room_columns * self.block)
        with T.loop(n.channels) as c:
            block = T.let(T.truncdiv(c, T.i64(self.block)))
            base = T.let(block * area + (c - block * self.block))
            with T.loop(n.kernel0) as a, T.loop(n.kernel1) as b:
                at = T.let(base + (a * n.dilation0 * n.room_columns + b * n.dilation1) * self.block)
                T.store(self.table, number.value, at)
                number.set(number.value + 1)

    # -- The frame

    def _copy(self, band: _Band, task: Any) -> None:
        """Rows of blocks of channels: tasks that compute rows of the output copy those of the image, which are near them then."""
        n, x = self.n, self.tensors["input_tensor"]
        blocks = T.let(up(n.channels, self.block))
        begin, end = share(task, self.count, T.let(n.groups * blocks * n.room_rows))
        with T.loop(T.let(end - begin)) as i:
            unit = T.let(begin + i)
            group, block, row = self._ordered(T.unravel(unit, self._sizes(n.groups, blocks, n.room_rows)))
            to = T.let(((group * blocks + block) * n.room_rows + row) * (n.room_columns * self.block))
            channel = T.let(block * self.block)
            y = T.let(band.row * n.band_step + row * n.skip_down - n.top)
            inside = T.And(y >= T.i64(0), y < n.height)
            # The columns of the image that are there: from ``low`` to ``high``.
            low = T.hold(T.min(up(n.left, n.skip_across) if self.skips[1] > 1 else n.left, n.room_columns))
            high = T.truncdiv(T.max(n.width + n.left + (n.skip_across - 1), T.i64(0)), n.skip_across)
            high = T.hold(T.max(T.min(high, n.room_columns), low))
            low, high = (T.hold(T.Select(inside, one, T.i64(0))) for one in (low, high))
            base = T.let(band.image * n.image_batch + (group * n.channels + channel) * n.image_channel + y * n.image_row)
            first = T.let(base - n.left * n.image_column)
            self._zeros(to, T.let(low * self.block))
            self._zeros(T.let(to + high * self.block), T.let((n.room_columns - high) * self.block))
            step = T.let(n.image_column * n.skip_across)
            left = T.let(n.channels - channel)
            T.either(
                left >= T.i64(self.block),
                lambda: self._whole(x, first, step, to, low, high),
                lambda: self._part(x, first, step, to, low, high, left),
            )

    def _zeros(self, to: Any, count: Any) -> None:
        with T.loop(count) as i:
            T.store(self.frame, to + i, T.const(0, "float32"))

    def _whole(self, x: Any, first: Any, step: Any, to: Any, low: Any, high: Any) -> None:
        """The places of a block that is full."""
        n, block = self.n, self.block
        if self.given.input_tensor.layout[1] == 1 and block % SIDE == 0:
            with T.loop(T.let(high - low)) as i:
                b = T.let(low + i)
                T.store(self.frame, T.run(to + b * block, block), x[T.run(T.let(first + b * step), block)])
            return
        done = T.Variable("int64", low)
        arranged = transposed if block == SIDE else woven if block <= MOST else None
        if self.image_steps[1] == self.skips[1] == 1 and arranged is not None:
            tiles = T.let(T.truncdiv(high - low, T.i64(SIDE)))
            with T.loop(tiles) as i:
                b = T.let(low + i * SIDE)
                rows = [T.hold(x[T.run(T.let(first + b + n.image_channel * c), SIDE)]) for c in range(block)]
                for c, row in enumerate(arranged(rows)):
                    T.store(self.frame, T.run(to + b * block + c * SIDE, SIDE), row)
            done.set(low + tiles * SIDE)
            if self.masked and block == SIDE:
                self._few(x, T.let(first + done.value), T.let(to + done.value * block), T.let(high - done.value))
                return
        rest = T.let(done.value)
        self._part(x, first, step, to, rest, high, T.i64(block))

    def _few(self, x: Any, first: Any, to: Any, count: Any) -> None:
        """Fewer than ``SIDE`` places of a block that is full."""
        end, zero = T.hold(T.cast(count, "int32")), zeros(SIDE)
        with T.when(count > T.i64(0)):
            rows = [
                T.hold(load_part(x, T.let(first + self.n.image_channel * c), T.const(0, "int32"), end, zero)) for c in range(SIDE)
            ]
            for c, row in enumerate(transposed(rows)):
                with T.when(T.i64(c) < count):
                    T.store(self.frame, T.run(to + c * SIDE, SIDE), row)

    def _part(self, x: Any, first: Any, step: Any, to: Any, low: Any, high: Any, count: Any) -> None:
        """The same element by element."""
        with T.loop(count) as c:
            source = T.let(first + c * self.n.image_channel)
            with T.loop(T.let(high - low)) as i:
                b = T.let(low + i)
                T.store(self.frame, to + b * self.block + c, x[source + b * step])

    # -- Tiles

    def _sizes(self, groups: Any, major: Any, minor: Any) -> list[Any]:
        """The sizes of loops whose order the launch says."""
        return [groups, *(T.hold(T.Select(self.by_filters, a, b)) for a, b in ((major, minor), (minor, major)))]

    def _ordered(self, where: Any) -> list[Any]:
        """The places in such loops: of the group, the major and the minor one."""
        group, outer, inner = (T.hold(one) for one in where)
        return [group, *(T.hold(T.Select(self.by_filters, a, b)) for a, b in ((outer, inner), (inner, outer)))]

    def _compute(self, band: _Band, task: Any) -> None:
        """A task's tiles: runs of those that meet the same filters one after the other."""
        n, most = self.n, self.most
        count = T.let(up(T.let(n.rows * n.columns), self.tile.places))
        order = self._sizes(n.groups, self.count_of_panels, T.let(up(count, most)))
        begin, end = share(task, self.count, T.let(order[0] * order[1] * order[2] * most))
        first = T.let(T.truncdiv(begin, most))
        where = [T.Variable("int64", one) for one in T.unravel(first, order)]
        with T.loop(T.let(up(end, most) - first)) as i:
            group, panel, run = self._ordered([one.value for one in where])
            T.count_up(where, order)
            at, number = T.let((first + i) * most), T.let(run * most)
            low = T.hold(T.max(begin - at, T.i64(0)))
            high = T.hold(T.max(T.min(T.min(end - at, count - number), most), low))
            self._run(band, group, panel, _Run(T.let(number + low), T.let(high - low)), task)

    def _along(self, image: str, first: tuple[Any, Any], row: Any, column: Any) -> list[Any]:
        """How far each place of a tile is from that of row and column 0, by the steps to the next row and column."""
        y, x = first
        at = T.let(y * row + x * column)
        if self.flat[image]:
            return [at, *(T.let(at + column * i) for i in range(1, self.tile.places))]
        places, columns = [at], self.n.columns
        turn = T.let(row - (columns - 1) * column)  # from the last place of a row to the first of the next
        end = T.let(columns - x)
        for i in range(1, self.tile.places):
            ends = T.hold(T.expression(end == T.i64(i)))
            end = T.hold(T.Select(ends, end + columns, end))
            places.append(T.hold(places[-1] + T.Select(ends, turn, column)))
        return places

    def _run(self, band: _Band, group: Any, panel: Any, run: _Run, task: Any) -> None:
        """Its tiles, for each block of products: sums of half of ``KC`` are continued, those of ``KC`` are added to the others."""
        n, tile, zero = self.n, self.tile, zeros(self.lanes)
        start = T.let(group * self.of_group + panel * self.panel)
        size = tile.places * self.width
        scratch = T.let(task * self._room(self.most))
        with T.loop(T.let(up(n.depth, self.stay)) if self.parted else T.i64(1)) as block, T.loop(run.count) as i:
            place = T.hold(T.min((run.first + i) * tile.places, n.rows * n.columns - tile.places))
            y = T.hold(T.truncdiv(place, n.columns))
            where = y, T.hold(place - y * n.columns)
            begin = T.let(block * self.stay)
            end = T.hold(T.min(begin + self.stay, n.depth))
            sums = Sums(tile.places, tile.vectors, lambda r, j: zero, multiply_add)
            totals, unfinished = (
                self._kept(T.let(scratch + i * size)),
                self._kept(T.let(scratch + (i + self.most * self.blocked) * size)),
            )
            if self.held:
                with T.when(T.truncmod(begin, T.i64(KC)) > T.i64(0)):
                    self._each(lambda r, j, sums=sums, kept=unfinished: sums.set(r, j, self.totals[kept(r, j)]))
            self._steps(sums, (group, start, where), begin, T.let(end - begin), (i, run.count))

            def finish(value: Any, place: Any = place, where: Any = where) -> None:
                if self.turns:
                    self._turn(band, group, panel, place, value, T.let(scratch + self._room(self.most) - self.width * SIDE))
                else:
                    self._finish(band, group, panel, where, value)

            def add(sums: Sums = sums, begin: Any = begin, end: Any = end, kept: Any = totals, finish: Any = finish) -> None:
                self._add(sums, kept, begin, end, finish)

            if self.held:
                more = T.And(T.truncmod(end, T.i64(KC)) > T.i64(0), end < n.depth)
                T.either(more, lambda sums=sums, kept=unfinished: self._keep(kept, sums.get), add)
            else:
                add()

    def _kept(self, scratch: Any) -> Any:
        """Where a tile's sums are kept."""
        return lambda r, j: T.run(scratch + (r * self.width + j * self.lanes), self.lanes)

    def _each(self, body: Any) -> None:
        for r in range(self.tile.places):
            for j in range(self.tile.vectors):
                body(r, j)

    def _keep(self, kept: Any, value: Any) -> None:
        self._each(lambda r, j: T.store(self.totals, kept(r, j), value(r, j)))

    def _add(self, sums: Sums, kept: Any, begin: Any, end: Any, finish: Any) -> None:
        """The sums of a block of products to those of the blocks before."""
        if not self.blocked:
            finish(sums.get)
            return

        def total(r: int, j: int) -> Any:
            return self.totals[kept(r, j)] + sums.get(r, j)

        def later() -> None:
            T.either(end == self.n.depth, lambda: finish(total), lambda: self._keep(kept, total))

        T.either(begin < T.i64(KC), lambda: self._keep(kept, sums.get), later)

    def _steps(self, sums: Sums, where: tuple[Any, Any, Any], begin: Any, count: Any, part: tuple[Any, Any]) -> None:
        """Add a block of products. Each tile of a run asks for its part of the filters that the next block needs.

        Where there are few filters, which stay in the second cache, it asks for none.
        """
        n, filters = self.n, self.tensors["filter_tensor"]
        group, start, first = where
        step = T.i64(self.block) if self.flat[_FRAME] else T.let(n.stride * self.block)
        along = self._along(_FRAME, first, T.let(n.line * self.block), step)
        places = [place_of(self.frame, group * self.frame_of_group + one) for one in along]
        number, of = part
        every = T.hold(T.Select(self.by_filters, T.i64(_ASKS), count))
        times = T.let(up(count, T.max(every, T.i64(1))))
        lines = T.hold(up(count * self.width, T.let(times * of * _LINE)))
        lines = T.hold(T.Select(self.by_filters, lines, T.i64(0)))
        to = T.let(start + (begin + self.stay) * self.width + number * times * lines * _LINE)
        with T.loop(times) as i:
            with T.loop(lines) as j:
                read_far_ahead(filters, T.let(to + (i * lines + j) * _LINE))
            done = T.let(i * every)
            with T.loop(T.hold(T.min(count - done, every))) as j:
                k = T.let(begin + done + j)
                self._step(sums, places, T.let(self.table[k]), T.let(start + k * self.width))

    def _step(self, sums: Sums, places: list[Any], product: Any, at: Any) -> None:
        """Add a product to each sum. Without a register for the last vector of filters, it is read again for each place."""
        tile, filters = self.tile, self.tensors["filter_tensor"]
        crowded = tile.places * tile.vectors > _MOST_SUMS
        there = tile.vectors - crowded
        vectors = [T.let(filters[T.run(at + j * self.lanes, self.lanes)]) for j in range(there)]
        last = place_of(filters, at + there * self.lanes) if crowded else None
        for r in range(tile.places):
            if r:  # else all places are read first, into registers that sums need
                product = after(product, [sums.get(r - 1, j) for j in range(tile.vectors)])
            if last is not None:
                last = once_more(last)
            sums.add_row(r, element_at(places[r], product), [*vectors, *([] if last is None else [vector_at(last)])])

    def _finish(self, band: _Band, group: Any, panel: Any, where: tuple[Any, Any], total: Any) -> None:
        """Finished sums to the output, vector by vector."""
        n, tile, out = self.n, self.tile, self.tensors["output_tensor"]
        first = T.hold(T.min(panel * self.width, n.filters - self.width))
        base = T.let(band.image * n.output_batch + band.row * n.output_row)
        places = self._along(_OUTPUT, where, n.output_row, n.output_column)
        images = {name: self._along(name, where, own.row, own.column) for name, own in self.steps_of.items()}
        names = self.after.addends()
        for j in range(tile.vectors):
            channel = T.let(group * n.filters + first + j * self.lanes)

            def of_channel(name: str, number: int, channel: Any = channel) -> Any:
                buffer = self.tensors[name]
                return buffer[T.run(channel, self.lanes)] if self.steps[number] else T.repeated(buffer[T.i64(0)], self.lanes)

            addends = [T.hold(T.wide(of_channel(name, number))) for number, name in enumerate(names)]
            for r in range(tile.places):
                at = T.let(base + places[r] + channel)

                def of_image(name: str, r: int = r, channel: Any = channel) -> Any:
                    own = self.steps_of[name]
                    first = band.image * own.image + band.row * own.row + images[name][r]
                    return self.tensors[name][T.run(T.let(first + channel), self.lanes)]

                value = T.hold(self.after.head.element(T.hold(total(r, j)), addends))
                if self.after.changes:
                    value = self.after.value(
                        *(value, self.tensors, of_channel, lambda buffer, at=at: buffer[T.run(at, self.lanes)], of_image)
                    )
                T.store(out, T.run(at, self.lanes), value)

    def _turn(self, band: _Band, group: Any, panel: Any, place: Any, total: Any, scratch: Any) -> None:
        """Finished sums to an output whose places are contiguous, filter by filter."""
        n, steps = self.n, [T.i64(step) for step in self.steps]
        turned = Turned(self.tile, self.after, self.tensors, self.totals, steps, 1, T.i64(1))
        count = T.hold(T.min(n.filters, T.i64(self.width)))
        turned.turn(total, scratch, count, kept=False)
        first = T.hold(T.max(T.min(panel * self.width, n.filters - self.width), T.i64(0)))
        base = T.let(band.image * n.output_batch + band.row * n.columns + place)

        def places(channel: Any) -> list[Any]:
            return [T.let(base + channel * n.output_channel)]

        turned.store(scratch, count, T.let(group * n.filters + first), places)

"""Direct convolutions whose vectors are of filters: a register tile of places by vectors of filters, over an image's frame.

Places of a tile are some neighbours in some rows, so few are computed for nothing, however narrow the image is. Filters are packed
so that those of a vector are neighbours (``_convolution_filters.py``). Of bytes, a step multiplies four channels
(``_convolution_bytes.py``). Finished tiles are transposed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC
from tvmdml.kernels.kernel import Kernel, Owned
from tvmdml.schedules.cpu import per_task, share, split
from tvmdml.schedules.cpu._ahead import read_far_ahead
from tvmdml.schedules.cpu._convolution_after import After
from tvmdml.schedules.cpu._convolution_arranged import Arranged, Phase, Typed, up
from tvmdml.schedules.cpu._convolution_bytes import GROUP, Interleaved
from tvmdml.schedules.cpu._convolution_filters import Filters
from tvmdml.schedules.cpu._convolution_knobs import ORDERS
from tvmdml.schedules.cpu._convolution_plan import NAMES, ConvolutionPlan
from tvmdml.schedules.cpu._convolution_register_tile import DEEP, LANES, OF_FLOATS, TILES, RegisterTile, late, tile_for
from tvmdml.schedules.cpu._convolution_turned import Turned
from tvmdml.schedules.cpu._gemm_arithmetic import ByteProducts, FloatProducts
from tvmdml.schedules.cpu._gemm_owned import TASK_ELEMENTS, Panels
from tvmdml.schedules.cpu._sums import Sums, zeros
from tvmdml.schedules.cpu._tiles import SIDE

if TYPE_CHECKING:
    from tvmdml.targets import Target

_SLACK = 64
_TOGETHER = 256
"""The most tiles over places that share a block of packed filters: their sums are kept meanwhile."""


class Lanes(Arranged, Interleaved):  # type: ignore[misc] # mypy knows these modules by another name
    """Such a convolution as a kernel."""

    WAY, words = "lanes", 1

    def __init__(self, desc: Any, plan: ConvolutionPlan, tasks: int, target: Target, knobs: Any) -> None:
        self.given, self.tasks, self.target, self.after = desc, tasks, target, After(desc)
        self.tile: Any = SimpleNamespace(lanes=LANES)  # of frames
        self.sums = desc.computed
        self.bytes = self.sums == "int32"
        self.owned = "filter_tensor" in desc.owned()
        self.late = late(desc, plan) and knobs.order != "places"
        """Whether a block of a panel of filters is packed just before the tiles that read it."""
        sizes = SimpleNamespace(
            output1=plan.output1 // plan.backward1, output2=plan.output2 // plan.backward2, filters=plan.filters
        )  # backward, those of the smallest phase
        self.shape: RegisterTile = self._shape(sizes, knobs)
        self.packs: Any = None if self.bytes else Filters(plan, desc.filter_tensor.data_type.tvm, self.shape.width)
        self.by_tap = self.packs is not None and self.packs.by_channel
        """Whether there is a table of where taps are in packed filters."""
        self.step = plan.output_step2 * plan.backward2 if plan.output_step2 * plan.backward2 <= 2 else 0
        types = [one.data_type.tvm for one in (desc.input_tensor, desc.filter_tensor)]
        self.arithmetic: Any = self._bytes((types[0] == "int8", types[1] == "int8")) if self.bytes else FloatProducts(self.sums)
        self.channels = plan.channels
        if self.bytes:
            numbers = {**plan.numbers, "channels": -(-plan.channels // (GROUP * self.words))}
            plan = dataclasses.replace(plan, numbers=numbers)
        self.plan, self.factors = plan, self.arithmetic.packed
        self.packed, self.masked, self.arranges = True, True, False
        step = plan.image_step2 * plan.forward2
        self.copy_step = step if step <= 2 else 0
        self.blocked = plan.products > KC and not self.bytes
        zero = desc.zero_points()
        self.of_filters = self.bytes and (zero[1] is not None or self.arithmetic.flips[0])
        """Whether sums of filters are needed."""
        self.of_places = self.bytes and (zero[0] is not None or self.arithmetic.flips[1])
        frame, filters = plan.frame * plan.channels * plan.groups, plan.groups * plan.filters
        self.by_rows = self.late or ORDERS[knobs.order](filters * plan.products, frame)
        self.images = max(1, min(plan.batch, _TOGETHER // max(self._tiles, 1))) if self.late else 1
        """How many images share packed filters."""
        self.per_line = 64 // desc.filter_tensor.data_type.numpy.itemsize
        units = plan.groups * self.panels_of(plan).count
        even = units % tasks == 0 or units >= 4 * tasks
        self.by_panel = plan.backward and plan.batch == 1 and even and not (self.owned or self.bytes)
        """Whether a panel of filters is packed just before the tiles of all phases that read it."""

    def _shape(self, sizes: Any, knobs: Any) -> RegisterTile:
        """The tile for the sizes of the smallest phase."""
        tiles = DEEP if self.late else TILES
        return tile_for(sizes, 3, knobs=knobs) if self.bytes else tile_for(sizes, 4, tiles, cycles=OF_FLOATS, knobs=knobs)

    def _bytes(self, signed: tuple[bool, bool]) -> ByteProducts:
        """What a step of bytes computes."""
        return ByteProducts(signed)

    @property
    def _tiles(self) -> int:
        """The tiles of an image over places."""
        own, tile = self.plan, self.shape
        return own.output0 * -(-own.output1 // tile.lines) * -(-own.output2 // tile.run)

    @property
    def _scratch(self) -> int:
        """The sums that a task keeps: finished ones that are transposed, and those of tiles of which not all is added."""
        tile = self.shape
        tiles = min(self._tiles * self.images, _TOGETHER) if self.late and self.blocked else 1
        return tile.width * SIDE + tiles * tile.places * tile.width

    def panels_of(self, plan: Any) -> Panels:
        """The packed filters of a group; of a kernel if the plan has its numbers."""
        return Panels(self.shape.width, 1, plan.filters, plan.channels * plan.taps * self.words)

    def _window_room(self) -> int:
        """The elements of the sums of bytes that filters meet."""
        own = self.plan
        return own.groups * own.output0 * own.output1 * (own.output2 + LANES) + LANES

    def kernel(self) -> Kernel:
        """The kernel."""
        own, tile = self.plan, self.shape
        part = KC * tile.width if self.late else self.panels_of(own).panel if self.by_panel else 0
        room = self.panels_of(own).room * own.groups
        temporaries = (
            (self.factors, 1 if own.in_place else (self.images * own.groups * own.channels * own.frame + _SLACK) * self.words),
            (self.factors, 1 if self.owned else self.tasks * part if part else room),
            ("int64", own.products + (4 if self.by_tap else 2) * own.taps + KC),
            (self.sums, self.tasks * self._scratch),
            ("int32", self._window_room() if self.of_places else 1),
        )
        module, *also = self.given.modules()
        choices = {
            "tile": tuple(tile), "by_rows": self.by_rows, "in_place": own.in_place, "copy_step": self.copy_step,
            "contiguous": own.rows_contiguous, "taps": self.known_taps, "blocked": self.blocked,
            "owned": self.owned, "late": self.late, "by_panel": self.by_panel, "step": self.step, "backward": own.backward,
            "filters": self.packs and self.packs.key(),
            "after": self.after.places,
        }  # fmt: skip
        parameters = (*self.given.formula_key(), *((name, repr(value)) for name, value in choices.items()))
        scalars = (*own.scalars(), self.channels, *self._steps(), self.tasks, self._scratch, self.images)
        owned = (self._packing(module),) if self.owned else ()
        return Kernel(module, self.WAY, parameters, self.function, scalars, temporaries, also=tuple(also), owned=owned)

    def _packing(self, module: str) -> Owned:
        """How filters that never change are packed once."""
        own = self.plan
        panels = self.panels_of(own)
        if self.bytes:
            return self.bytes_packing(module, panels, split(panels.room * own.groups, self.target, TASK_ELEMENTS))

        def order(n: Any, table: Any) -> Any:
            self.n, self.table = n, table
            if self.by_tap:
                self.phases(lambda phase: self._order(phase, T.i64(0)))
            return lambda tap: self._place_of(tap, T.i64(0))

        return self.packs.owned("filter_tensor", module, panels, self.target, order)

    def _steps(self) -> list[int]:
        """The steps of addends from one of the output's channels to the next, and of what follows."""
        return self.after.steps()

    def function(self) -> T.PrimFunc:
        """The TensorIR."""
        self.desc = self.given.with_tensors(Typed)
        with T.function() as f:
            self.tensors = f.tensors(self.desc, packed={"filter_tensor": self.factors} if self.owned else {})
            names = ("frame", "packed", "table", "totals", "windows")
            types = (self.factors, self.factors, "int64", self.sums, "int32")
            self.frame, self.filters, self.table, self.totals, self.windows = (
                f.buffer(f"{name}_scratch", dtype) for name, dtype in zip(names, types, strict=True)
            )
            if self.owned:
                self.filters = self.tensors["filter_tensor"]
            self.n = SimpleNamespace(**{name: f.scalar(name) for name in NAMES})
            self.real_channels = f.scalar("channels_of_image")
            self.steps = [f.scalar(f"addend{i}") for i in range(len(self._steps()))]
            self.count, self._scratch_room, self.images_at_once = (f.scalar(name) for name in ("tasks", "scratch", "images"))
            self._body()
        return f.result()

    def _body(self) -> None:
        n = self.n
        self.set_panels()
        self.phases(self._tables)
        if not (self.owned or self.late or self.by_panel):
            per_task(self.count, self.pack_bytes if self.bytes else self._pack_floats)
        if self.late:
            self._by_images()
            return
        with T.loop(n.batch) as image:
            if not self.plan.in_place:
                copy = self.copy_bytes if self.bytes else self.copy_image
                per_task(self.count, lambda task: copy(image, task))
            if self.of_places:
                self.sum_places()
                per_task(self.count, self.sum_windows)
            if self.by_panel:
                per_task(self.count, lambda task: self._compute_panels(image, task))
            else:
                self.phases(lambda phase: per_task(self.count, lambda task: self._compute(image, phase, task)))

    def _by_images(self) -> None:
        """Several images at a time, whose tiles read a block of filters before the next is packed."""
        n, at_once = self.n, self.images_at_once
        with T.loop(T.let(up(n.batch, at_once))) as turn:
            first = self.first_image = T.let(turn * at_once)
            some = T.hold(T.min(n.batch - first, at_once))
            if not self.plan.in_place:
                with T.loop(some) as i:
                    per_task(self.count, lambda task: self.copy_image(T.let(first + i), task))
            self.phases(lambda phase: per_task(self.count, lambda task: self._compute_late(some, phase, task)))

    def frame_of(self, image: Any) -> Any:
        n = self.n
        return (image - self.first_image) * (n.groups * n.channels * n.frame) if self.late else T.i64(0)

    def _pack_floats(self, task: Any) -> None:
        start = self._of_taps()
        self.packs.pack(
            self.n, self.tensors["filter_tensor"], self.filters, task, self.count, lambda tap: self._place_of(tap, start)
        )

    def _tables(self, phase: Phase) -> None:
        """The places of a phase's steps, and those of its taps in packed filters."""
        self.prepare(phase)
        if self.late:
            n, start, lines = self.n, self._of_taps(), KC // self.per_line
            with T.loop(T.i64(self.per_line)) as row, T.loop(T.i64(lines)) as line:
                T.store(self.table, start + row * lines + line, row * n.filter_row + line * self.per_line)
        if self.by_tap and not self.owned:
            self._order(phase, self._of_taps())

    def _order(self, phase: Phase, start: Any) -> None:
        """Where the taps of a phase are in packed filters: those of all phases before are in front."""
        n = self.n

        def put(number: Any, tap: Any, _: Any) -> None:
            at = T.let(start + tap * 2)
            T.store(self.table, at, n.channels * phase.first + number)
            T.store(self.table, at + 1, phase.taps)

        self.taps(phase, put)

    def _place_of(self, tap: Any, start: Any) -> tuple[Any, Any]:
        """The place of a tap's first channel, and how far the next is."""
        at = T.let(start + tap * 2)
        return self.table[at], self.table[at + 1]

    def _of_taps(self) -> Any:
        """Where the places of taps are in the table."""
        return self.n.channels * self.n.taps + 2 * self.n.taps

    def set_panels(self) -> None:
        """Where packed filters are."""
        own = self.panels_of(self.n)
        self.panel, self.sums_at, self.room, self.panels = (T.hold(one) for one in (own.panel, own.sums, own.room, own.count))

    # -- Tiles

    def _places(self, phase: Phase) -> tuple[Any, Any]:
        """How many tiles of places a phase has, and what says where one is."""
        tile = self.shape
        deep, rows, columns = phase.counts
        across, down = T.let(up(columns, tile.run)), T.let(up(rows, tile.lines))

        def place(number: Any) -> tuple[Any, Any, Any]:
            z, row, column = T.unravel(number, [deep, down, across])
            y = T.hold(T.min(row * tile.lines, rows - tile.lines))
            return T.hold(z), y, T.hold(T.min(column * tile.run, columns - tile.run))

        return T.let(deep * down * across), place

    def _compute(self, image: Any, phase: Phase, task: Any) -> None:
        n = self.n
        places, place = self._places(phase)
        begin, end = share(task, self.count, T.let(n.groups * self.panels * places))
        sizes = [n.groups, self.panels, places] if self.by_rows else [n.groups, places, self.panels]
        where = [T.Variable("int64", one) for one in T.unravel(begin, sizes)]
        with T.loop(T.let(end - begin)):
            group, *inner = [T.let(one.value) for one in where]
            panel, number = inner if self.by_rows else inner[::-1]
            T.count_up(where, sizes)
            self._tile(image, phase, group, panel, place(number), task, T.let(group * self.room + panel * self.panel))

    def _compute_panels(self, image: Any, task: Any) -> None:
        """Whole panels: each is packed, and then read by the tiles of all phases."""
        n, of_taps = self.n, self._of_taps()
        begin, end = share(task, self.count, T.let(n.groups * self.panels))
        start = T.let(task * self.panel)
        with T.loop(T.let(end - begin)) as i:
            group, panel = (T.hold(one) for one in T.unravel(T.let(begin + i), [None, self.panels]))
            taps = self.tensors["filter_tensor"]
            self.packs.panel(n, taps, self.filters, group, panel, start, places=lambda tap: self._place_of(tap, of_taps))

            def compute(phase: Phase, group: Any = group, panel: Any = panel) -> None:
                places, place = self._places(phase)
                with T.loop(places) as number:
                    self._tile(image, phase, group, panel, place(number), task, start)

            self.phases(compute)

    def _compute_late(self, images: Any, phase: Phase, task: Any) -> None:
        """Tiles of some images, panel after panel: those that read a block of it follow each other."""
        n = self.n
        of_image, place_in = self._places(phase)
        places = T.let(images * of_image)
        begin, end = share(task, self.count, T.let(n.groups * self.panels * places))

        def place(number: Any) -> tuple[Any, tuple[Any, Any, Any]]:
            image = T.hold(T.truncdiv(number, of_image))
            return T.let(self.first_image + image), place_in(T.let(number - image * of_image))

        first = T.let(T.truncdiv(begin, places))
        with T.loop(T.let(T.truncdiv(end + places - 1, places) - first)) as i:
            number = T.let(first + i)
            group = T.hold(T.truncdiv(number, self.panels))
            panel = T.let(number - group * self.panels)
            low = T.hold(T.max(begin - number * places, T.i64(0)))
            count = T.let(T.min(end - number * places, places) - low)
            with T.loop(T.let(up(count, _TOGETHER))) as part:
                start = T.let(part * _TOGETHER)
                some = T.hold(T.min(count - start, T.i64(_TOGETHER)))
                self._compute_panel(phase, group, panel, T.let(low + start), some, place, task)

    def _compute_panel(self, phase: Phase, group: Any, panel: Any, low: Any, some: Any, place: Any, task: Any) -> None:
        """Some tiles of a panel, which is packed block by block. Meanwhile they ask for what is packed next."""
        n, w, width = self.n, self.tensors["filter_tensor"], self.shape.width
        depth, start, steps_of_lines = T.let(n.channels * n.taps), T.let(task * (KC * width)), self._of_taps()
        with T.loop(T.let(up(depth, KC))) as block:
            done = T.let(block * KC)
            count = T.hold(T.min(depth - done, T.i64(KC)))
            self.packs.panel(n, w, self.filters, group, panel, start, done, count)
            last = T.let(done + count >= depth)
            row = T.let((panel + T.Select(last, T.i64(1), T.i64(0))) * width)
            later = T.let(group * n.filter_group + row * n.filter_row + T.Select(last, T.i64(0), done + count))
            with T.loop(some) as j:
                # The tile asks for some rows, a line in each step; the tiles behind the last row for nothing new.
                line = T.let(T.min(j * self.per_line, width - self.per_line) * n.filter_row + later)
                each = T.let(T.Select(j * self.per_line < width, T.i64(1), T.i64(0)))

                def ask(step: Any, line: Any = line, each: Any = each) -> None:
                    read_far_ahead(w, line + self.table[steps_of_lines + step * each])

                image, at = place(T.let(low + j))
                sums, steps = self._sums(image, phase, group, at, T.let(start - done * width), ask)
                steps(done, count)
                if self.blocked:
                    total = self._keep(task, j, block, sums)
                    with T.when(last):
                        self._finish(image, phase, group, panel, at, task, total, kept=True)
                else:
                    self._finish(image, phase, group, panel, at, task, sums.get)

    def _sums(
        self, image: Any, phase: Phase, group: Any, at: tuple[Any, Any, Any], start: Any, also: Any = None
    ) -> tuple[Sums, Any]:
        """The sums of a tile, and what adds steps to them. ``start``: where filters are; ``also(i)``: what a step does besides."""
        n, tile = self.n, self.shape
        table = T.let(n.channels * phase.first)
        start = T.let(start + table * tile.width)
        source, origin = self.origin_of(image, group, T.let(at[0] * n.plane_step + at[1] * n.row_step + at[2]))
        zero = zeros(LANES, self.arithmetic.total)
        sums = Sums(tile.places, tile.vectors, lambda i, j: zero, self.arithmetic.step)

        def steps(begin: Any, count: Any) -> None:
            with T.loop(count) as i:
                k = T.let(begin + i)
                if also is not None:
                    also(i)
                place = T.let(origin + self.table[table + k])
                own = T.let(start + k * tile.width)
                lines = [place, *(T.let(place + n.row_step * line) for line in range(1, tile.lines))]
                vectors = [T.let(self.filters[T.run(own + j * LANES, LANES)]) for j in range(tile.vectors)]
                sums.add(lambda r: source[lines[r // tile.run] + r % tile.run], vectors)

        return sums, steps

    def _keep(self, task: Any, slot: Any, block: Any, sums: Sums) -> Callable[[int, int], Any]:
        """Add sums of a block to those before, in memory: ``slot`` is the tile's number. Returns what reads the totals."""
        tile = self.shape
        first = T.let(task * self._scratch_room + tile.width * SIDE + slot * (tile.places * tile.width))

        def kept(r: int, j: int) -> Any:
            return T.run(first + (r * tile.width + j * LANES), LANES)

        def each(body: Any) -> None:
            for r in range(tile.places):
                for j in range(tile.vectors):
                    body(r, j)

        T.either(
            block == T.i64(0),
            lambda: each(lambda r, j: T.store(self.totals, kept(r, j), sums.get(r, j))),
            lambda: each(lambda r, j: T.store(self.totals, kept(r, j), self.totals[kept(r, j)] + sums.get(r, j))),
        )
        return lambda r, j: self.totals[kept(r, j)]

    def _tile(self, image: Any, phase: Phase, group: Any, panel: Any, at: tuple[Any, Any, Any], task: Any, start: Any) -> None:
        n, tile = self.n, self.shape
        depth, zero = T.let(n.channels * phase.taps), zeros(LANES, self.arithmetic.total)
        sums, steps = self._sums(image, phase, group, at, start)
        if not self.blocked:
            steps(T.i64(0), depth)
            self._finish(image, phase, group, panel, at, task, sums.get)
            return
        if self.plan.backward:
            with T.when(depth == T.i64(0)):
                self._keep(task, T.i64(0), T.i64(0), sums)
        with T.loop(T.let(up(depth, KC))) as block:
            begin = T.let(block * KC)
            steps(begin, T.hold(T.min(depth - begin, T.i64(KC))))
            self._keep(task, T.i64(0), block, sums)
            for r in range(tile.places):
                for j in range(tile.vectors):
                    sums.set(r, j, zero)
        first = T.let(task * self._scratch_room + tile.width * SIDE)
        self._finish(
            *(image, phase, group, panel, at, task),
            lambda r, j: self.totals[T.run(first + (r * tile.width + j * LANES), LANES)],
            kept=True,
        )

    def _finish(
        self, image: Any, phase: Phase, group: Any, panel: Any, at: tuple[Any, Any, Any], task: Any, total: Any, kept: bool = False
    ) -> None:
        """Finished sums to the output, filter by filter. ``kept``: they are in memory, where a loop can take them from."""
        n, tile = self.n, self.shape
        scratch, own = T.let(task * self._scratch_room), T.hold(T.min(n.filters, T.i64(tile.width)))
        turned = Turned(
            *(tile, self.after, self.tensors, self.totals, self.steps),
            *(self.step, T.let(n.backward2 * n.output_step2)),
        )
        turned.turn(total, scratch, own, kept)
        first = T.hold(T.max(T.min(panel * tile.width, n.filters - tile.width), T.i64(0)))
        windows = self.window(group, at, turned.ends) if self.of_places else None
        where = phase.places(at, self.each("backward"), self.each("padding"))
        base = T.let(image * n.output_batch + T.dot(where, self.each("output_step")))
        line_step = T.let(n.backward1 * n.output_step1)

        def places(channel: Any) -> list[Any]:
            return [T.let(base + channel * n.output_channel + line_step * line) for line in range(tile.lines)]

        def corrected(found: Any, f: Any, channel: Any) -> Any:
            if not self.bytes:
                return found
            return self.corrected(found, T.let(group * self.room + self.sums_at + panel * tile.width + f), channel, windows)

        turned.store(scratch, own, T.let(group * n.filters + first), places, corrected)

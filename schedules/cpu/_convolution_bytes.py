"""Bytes in direct convolutions (``_convolution_lanes.py``): a word has the bytes of four channels, at a place or of a filter.

An instruction multiplies unsigned bytes of places by signed ones of filters; finished sums are corrected for zero points.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel, Owned
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._convolution_plan import NAMES
from tvmdml.schedules.cpu._gemm_owned import Panels
from tvmdml.schedules.cpu._part import load_part, store_part
from tvmdml.schedules.cpu._tiles import SIDE, transposed

GROUP = 4
"""The channels of a word."""
LANES = 16
_MOST_TAPS = 16
_READ = 64
"""The bytes that are read of a filter at once."""


class ImageRow(NamedTuple):
    """A channel's row of an image."""

    source: Any
    """Where it would be if it began with the frame's row."""
    begin: Any
    """The places in the frame's row that it has: from here on before ``end``."""
    end: Any
    other: Any
    """What is outside of it."""


class Interleaved:
    """The parts of a convolution that arrange bytes."""

    given: Any
    plan: Any
    shape: Any
    arithmetic: Any
    n: Any
    tensors: dict[str, Any]
    frame: Any
    filters: Any
    table: Any
    windows: Any
    channels: int
    real_channels: Any
    copy_step: int
    count: Any
    panel: Any
    panels: Any
    room: Any
    sums_at: Any
    of_filters: bool
    tasks: int
    words: int
    """The words of a step: neighbours in the frame, and packed one after the other for each filter."""
    each: Any
    phases: Any
    prepare: Any
    set_panels: Any

    @property
    def known_taps(self) -> int:
        """The taps of a filter that is contiguous, if they are few: words of it are arranged in registers; otherwise 0."""
        taps = self.plan.taps
        return int(taps) if self.plan.rows_contiguous and taps <= _MOST_TAPS else 0

    # -- The image

    def copy_bytes(self, image: Any, task: Any) -> None:
        """Channels of an image to its frame, four at a time; padding is the zero point."""
        n, x = self.n, self.tensors["input_tensor"]
        phases, rooms, sizes = self.each("phases"), self.each("room"), self.each("image")
        forward, starts, steps = self.each("forward"), self.each("start"), self.each("image_step")
        planes = T.let(phases[0] * phases[1] * phases[2])
        kind = str(x.dtype)
        zero = self.tensors.get("input_zero_point_tensor")
        padding = T.hold(T.const(0, kind) if zero is None else zero[T.i64(0)])
        nothing = T.reinterpret(T.const(-128, "int8"), kind) if self.arithmetic.flips[0] else T.const(0, kind)
        begin, end = share(task, self.count, n.groups * n.channels * planes)
        with T.loop(T.let(end - begin)) as unit:
            number = T.let(begin + unit)
            group, word, *phase = [T.hold(one) for one in T.unravel(number, [n.groups, n.channels, *phases])]
            to = T.let(number * n.area * self.words)
            offset = T.let(phase[2] - starts[2])
            low = T.hold(
                T.max(T.min(T.truncdiv(T.max(T.i64(0) - offset, T.i64(0)) + forward[2] - 1, forward[2]), rooms[2]), T.i64(0))
            )
            high = T.hold(T.truncdiv(T.max(sizes[2] - offset, T.i64(0)) + forward[2] - 1, forward[2]))
            high = T.hold(T.max(T.min(high, rooms[2]), low))

            def four(word: Any, group: Any = group) -> list[tuple[Any, Any, Any]]:
                """Of a word's channels whether they are there, where they are, and what is outside of them."""
                found = []
                for i in range(GROUP):
                    channel = T.let(word * GROUP + i)
                    inside = T.let(channel < self.real_channels)
                    own = T.let(group * self.real_channels + T.Select(inside, channel, T.i64(0)))
                    base = T.let(image * n.image_batch + own * n.image_channel)
                    found.append((inside, base, T.hold(T.Select(inside, padding, nothing))))
                return found

            alone = four(word) if self.words == 1 else []
            with T.loop(rooms[0]) as a, T.loop(rooms[1]) as b:
                z = T.let(a * forward[0] + phase[0] - starts[0])
                y = T.let(b * forward[1] + phase[1] - starts[1])
                row = T.let(to + (a * rooms[1] + b) * (rooms[2] * self.words))
                inside = (z >= T.i64(0)) & (z < sizes[0]) & (y >= T.i64(0)) & (y < sizes[1])
                begin_x, end_x = (T.hold(T.Select(inside, one, T.i64(0))) for one in (low, high))
                source = T.let(z * steps[0] + y * steps[1] + offset * steps[2])

                def lines(some: Any, source: Any = source, low: Any = begin_x, high: Any = end_x) -> list[ImageRow]:
                    return [
                        ImageRow(T.let(base + source), low, T.hold(T.Select(own, high, low)), other) for own, base, other in some
                    ]

                if self.words == 1:
                    (self._vectors if self.copy_step else self._words)(x, lines(alone), row, rooms[2])
                else:
                    start = T.let(word * self.words)
                    self.copy_steps(x, lambda i, start=start, lines=lines: lines(four(start + i)), row, rooms[2], task)

    def copy_steps(self, x: Any, lines: Any, row: Any, room: Any, task: Any) -> None:
        """A row of the frame, of steps that have several words."""
        raise NotImplementedError

    def sum_places(self) -> None:
        """What precedes the sums of windows."""

    def woven(self, x: Any, lines: list[ImageRow], at: Any) -> Any:
        """Words of some neighbours."""
        step, found = self.copy_step, []
        for source, begin, end, other in lines:
            wide = T.splat(other, LANES)
            first, last = (T.let(T.cast((one - at) * step, "int32")) for one in (begin, end))
            parts = []
            for part in range(step):
                place = T.let(source + at * step + part * LANES)
                # Of a pair, the second element may be behind the image.
                parts.append(T.hold(load_part(x, place, first - part * LANES, last - (step - 1) - part * LANES, wide)))
            found.append(parts[0] if step == 1 else T.hold(T.Shuffle(parts, list(range(0, 2 * LANES, 2)))))
        return T.hold(self.arithmetic.woven(0, found))

    def word(self, x: Any, lines: list[ImageRow], i: Any) -> Any:
        """A word alone."""
        step = T.let(self.n.forward2 * self.n.image_step2)
        some = [T.hold(T.if_then_else((i >= one.begin) & (i < one.end), x[one.source + i * step], one.other)) for one in lines]
        return self.arithmetic.one(0, some)

    def _vectors(self, x: Any, lines: list[ImageRow], row: Any, room: Any) -> None:
        """A row of the frame; what runs over its end is written again, or is slack."""
        with T.loop(T.let(T.truncdiv(room + (LANES - 1), T.i64(LANES)))) as i:
            at = T.let(i * LANES)
            words = self.woven(x, lines, at)
            left = T.let(room - at)
            T.either(
                left >= T.i64(LANES),
                lambda: T.store(self.frame, T.run(row + at, LANES), words),
                lambda: store_part(self.frame, row + at, T.const(0, "int32"), T.cast(left, "int32"), words),
            )

    def _words(self, x: Any, lines: list[ImageRow], row: Any, room: Any) -> None:
        with T.loop(room) as i:
            T.store(self.frame, row + i, self.word(x, lines, i))

    def sum_windows(self, task: Any) -> None:
        """The sums of the bytes that a filter meets at each place."""
        n = self.n
        depth = T.let(n.channels * n.taps)
        one = T.splat(T.const(0x01010101, "int32"), LANES)
        begin, end = share(task, self.count, T.let(n.groups * n.output0 * n.output1))
        with T.loop(T.let(end - begin)) as i:
            unit = T.let(begin + i)
            group, z, y = T.unravel(unit, [None, n.output0, n.output1])
            origin = T.let(group * n.channels * n.frame + z * n.plane_step + y * n.row_step)
            with T.loop(T.let(T.truncdiv(n.output2 + (LANES - 1), T.i64(LANES)))) as v:
                total = T.Variable(f"int32x{LANES}", T.splat(T.const(0, "int32"), LANES))
                with T.loop(depth) as k:
                    words = self.frame[T.run(origin + self.table[k] + v * LANES, LANES)]
                    total.set(self.arithmetic.step(words, one, total.value))
                T.store(self.windows, T.run(unit * (n.output2 + LANES) + v * LANES, LANES), total.value)

    def window(self, group: Any, at: tuple[Any, Any, Any], ends: list[tuple[int, int]]) -> Any:
        """Those of a tile's places."""
        n = self.n
        found = T.splat(T.const(0, "int32"), LANES)
        for line, (begin, end) in enumerate(ends):
            row = (group * n.output0 + at[0]) * n.output1 + at[1] + line
            place = T.let(row * (n.output2 + LANES) + at[2] - begin)
            found = T.hold(load_part(self.windows, place, T.const(begin, "int32"), T.const(end, "int32"), found))
        return found

    def corrected(self, total: Any, sum_at: Any, channel: Any, windows: Any) -> Any:
        """A filter's sums less what zero points and shifts of bytes add."""
        n = self.n
        zeros = []
        for side, name, place in ((0, "input", T.i64(0)), (1, "filter", T.let(channel * n.filter_zero_step))):
            tensor = self.tensors.get(f"{name}_zero_point_tensor")
            shift = T.const(self.arithmetic.shift(side), "int32")
            zeros.append(shift if tensor is None else T.cast(tensor[place], "int32") + shift)
        if self.of_filters:
            one = T.hold(zeros[0] * self.filters[sum_at])
            if windows is not None:
                one = T.hold(one - zeros[0] * zeros[1] * T.cast(self.real_channels * n.taps, "int32"))
            total = total - T.splat(one, LANES)
        if windows is not None:
            total = total - T.splat(T.hold(zeros[1]), LANES) * windows
        return T.hold(total)

    # -- Filters

    def pack_bytes(self, task: Any) -> None:
        """Panels of filters: for each step the words of its filters; and the sums of filters."""
        n, width = self.n, self.shape.width
        begin, end = share(task, self.count, T.let(n.groups * self.panels))
        with T.loop(T.let(end - begin)) as i:
            group, panel = T.unravel(T.let(begin + i), [None, self.panels])
            first = T.hold(T.max(T.min(panel * width, n.filters - width), T.i64(0)))
            to = T.let(group * self.room + panel * self.panel)
            with T.loop(T.i64(width // LANES)) as j:
                rows = [
                    T.hold(group * n.filter_group + T.min(first + j * LANES + r, n.filters - 1) * n.filter_row)
                    for r in range(LANES)
                ]
                self._pack_rows(rows, T.let(to + j * LANES))
                if self.of_filters:
                    total = T.Variable(f"int32x{LANES}", T.splat(T.const(0, "int32"), LANES))
                    with T.loop(T.let(n.channels * n.taps * self.words)) as k:
                        words = self.filters[T.run(to + j * LANES + k * width, LANES)]
                        total.set(self.arithmetic.sum_step(1, words, total.value))
                    at = T.let(group * self.room + self.sums_at + panel * width + j * LANES)
                    T.store(self.filters, T.run(at, LANES), total.value)

    def _pack_rows(self, rows: list[Any], to: Any) -> None:
        """The words of sixteen filters."""
        n, width, taps = self.n, self.shape.width, self.known_taps
        w = self.tensors["filter_tensor"]
        done = T.Variable("int64", T.i64(0))
        if taps:
            # Some words at a time, as long as nothing is read behind the last filter.
            many = _MOST_TAPS // taps
            size = many * GROUP * taps
            whole = T.let((n.groups - 1) * n.filter_group + (n.filters - 1) * n.filter_row + self.real_channels * n.taps)
            some = T.hold(T.truncdiv(T.max(whole - rows[-1] - _READ, T.i64(-1)) + size, T.i64(size)))
            some = T.hold(T.max(T.min(some, T.truncdiv(self.real_channels, T.i64(GROUP * many))), T.i64(0)))
            order = [q * GROUP * taps + i * taps + t for q in range(many) for t in range(taps) for i in range(GROUP)]
            order += [0] * (_READ - len(order))
            with T.loop(some) as block:
                vectors = []
                for row in rows:
                    raw = T.hold(w[T.run(row + block * size, _READ)])
                    vectors.append(T.hold(self.arithmetic.many(1, T.hold(T.Shuffle([raw], order)))))
                for t, column in enumerate(transposed(vectors)[: many * taps]):
                    at = self._word_at(T.let(block * many + t // taps), t % taps, taps)
                    T.store(self.filters, T.run(to + at * width, SIDE), column)
            done.set(some * many)
        kinds = str(w.dtype)
        nothing = T.reinterpret(T.const(-128, "int8"), kinds) if self.arithmetic.flips[1] else T.const(0, kinds)
        first = T.let(done.value)
        table = T.let(n.channels * n.taps)
        with T.loop(T.let(n.channels * self.words - first)) as rest, T.loop(n.taps) as t:
            word = T.let(first + rest)
            tap = T.let(self.table[table + t * 2 + 1])
            at = T.let(to + self._word_at(word, t, n.taps) * width)
            for r, row in enumerate(rows):
                four = []
                for i in range(GROUP):
                    channel = T.let(word * GROUP + i)
                    place = T.let(row + T.min(channel, self.real_channels - 1) * n.filter_channel + tap)
                    four.append(T.hold(T.if_then_else(channel < self.real_channels, w[place], nothing)))
                T.store(self.filters, at + r, self.arithmetic.one(1, four))

    def _word_at(self, word: Any, tap: Any, taps: Any) -> Any:
        """Where a tap of a word is among the packed ones of a filter."""
        if self.words == 1:
            return word * taps + tap
        step = T.let(T.truncdiv(word, T.i64(self.words)))
        return (step * taps + tap) * self.words + (word - step * self.words)

    def bytes_packing(self, module: str, panels: Panels, tasks: int) -> Owned:
        """How filters that never change are packed once."""
        own = self.plan
        kind = self.given.filter_tensor.data_type.tvm
        types = f"{self.given.input_tensor.data_type.tvm} {kind}"
        sums = int(self.of_filters)
        layout = f"words {self.words} {types} {self.shape.width} of {own.groups} {own.filters} {self.channels} {own.taps}"
        layout = f"{layout} sums {sums} from {own.filters_from()}"
        choices = (
            ("types", types),
            ("width", self.shape.width),
            ("words", self.words),
            ("taps", self.known_taps),
            ("sums", sums),
        )
        scalars = (*own.scalars(), self.channels, tasks)
        table = ("int64", own.products + 2 * own.taps)

        def function() -> T.PrimFunc:
            with T.function() as f:
                self.tensors = {"filter_tensor": f.buffer("filter", kind)}
                self.filters, self.table = f.buffer("packed", self.arithmetic.packed), f.buffer("table_scratch", "int64")
                self.n = SimpleNamespace(**{name: f.scalar(name) for name in NAMES})
                self.real_channels, self.count = f.scalar("channels_of_image"), f.scalar("tasks")
                self.set_panels()
                self.phases(self.prepare)
                per_task(self.count, self.pack_bytes)
            return f.result()

        packer = Kernel(module, "words", choices, function, scalars, (table,))
        return Owned("filter_tensor", self.arithmetic.packed, panels.room * own.groups, layout, ("filter_tensor",), packer)

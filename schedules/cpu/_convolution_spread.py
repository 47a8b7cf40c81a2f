"""Transposed convolutions whose steps are as large as their filters: each place of the image becomes a block of the output.

That is a product of matrices, of all taps of all filters by places of the image. Filters are read as they lie, places are packed
for a tile. In finished sums, taps along a row are woven, so that neighbours of the output are stored together.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC, multiply_add
from tvmdml.kernels.kernel import Kernel
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._convolution_after import After
from tvmdml.schedules.cpu._convolution_arranged import Typed, up
from tvmdml.schedules.cpu._convolution_plan import DIMENSIONS, ConvolutionPlan
from tvmdml.schedules.cpu._convolution_register_tile import parts_of_vectors
from tvmdml.schedules.cpu._part import load_part, store_part
from tvmdml.schedules.cpu._sums import Sums, zeros
from tvmdml.schedules.cpu._woven import woven

if TYPE_CHECKING:
    from tvmdml.targets import Target

LANES = 16
ROWS = 8
"""The taps of a tile."""
WIDE, NARROW = 3, 2
"""Vectors of places of a tile: as many narrow ones as leave nothing over."""
_NUMBERS = (
    "batch", "groups", "channels", "rows", "places", "image1", "image2", "image_batch", "image_channel", "filter_group",
    "filter_channel", "kernel0", "kernel1", "output_batch", "output_channel", "output_step0", "output_step1", "filters", "wide",
    "tiles",
)  # fmt: skip


def suits(desc: Any, plan: ConvolutionPlan, target: Target) -> bool:
    """Whether blocks are whole, floats lie so, and the processor stores parts of vectors."""
    if not parts_of_vectors(target):
        return False
    n = plan.numbers
    kinds = {one.data_type.tvm for one in (desc.input_tensor, desc.filter_tensor)}
    if not plan.backward or desc.computed != "float32" or kinds != {"float32"}:
        return False
    tap, image = 1, 1
    for i in reversed(range(DIMENSIONS)):
        kernel, size = n[f"kernel{i}"], n[f"image{i}"]
        whole = kernel == n[f"backward{i}"] and n[f"output{i}"] == size * kernel and not n[f"padding{i}"]
        lies = (kernel == 1 or (n[f"tap_step{i}"] == tap and n[f"dilation{i}"] == 1)) and (
            size == 1 or n[f"image_step{i}"] == image
        )
        if not (whole and lies):
            return False
        tap, image = tap * kernel, image * size
    filters = plan.filters == 1 or plan.filter_row == plan.taps
    woven_taps = plan.kernel2 <= ROWS and ROWS % plan.kernel2 == 0
    return bool(
        filters and woven_taps and plan.output_step2 == 1 and plan.image2 >= LANES and image >= WIDE * LANES
        and plan.filters * plan.taps >= ROWS
    )  # fmt: skip


class Spread:
    """Such a convolution as a kernel."""

    def __init__(self, desc: Any, plan: ConvolutionPlan, tasks: int) -> None:
        self.given, self.plan, self.tasks, self.after = desc, plan, tasks, After(desc)
        self.turns = plan.kernel2
        self.steps = self.after.steps()

    def kernel(self) -> Kernel:
        """The kernel."""
        own = self.plan
        places = own.image0 * own.image1 * own.image2
        vectors = -(-places // LANES)
        narrow = -vectors % WIDE
        wide = (vectors - narrow * NARROW) // WIDE
        more = {"rows": own.filters * own.taps, "places": places, "wide": wide, "tiles": wide + narrow}
        module, *also = self.given.modules()
        choices = {"turns": self.turns, "blocked": own.channels > KC, "after": self.after.places}
        parameters = (*self.given.formula_key(), *((name, repr(value)) for name, value in choices.items()))
        scalars = (*((own.numbers | more)[name] for name in _NUMBERS), *self.steps, self.tasks)
        temporaries = (
            ("float32", self.tasks * own.channels * WIDE * LANES),
            ("float32", self.tasks * ROWS * WIDE * LANES),
            ("int64", self.tasks * 3 * WIDE),
        )
        return Kernel(module, "spread", parameters, self.function, scalars, temporaries, also=tuple(also))

    def function(self) -> T.PrimFunc:
        """The TensorIR."""
        self.desc = self.given.with_tensors(Typed)
        with T.function() as f:
            self.tensors = f.tensors(self.desc)
            self.panels, self.totals = f.buffer("panels_scratch", "float32"), f.buffer("totals_scratch", "float32")
            self.table = f.buffer("table_scratch", "int64")
            self.n = SimpleNamespace(**{name: f.scalar(name) for name in _NUMBERS})
            self.addends = [f.scalar(f"addend{i}") for i in range(len(self.steps))]
            count = f.scalar("tasks")
            with T.loop(self.n.batch) as image:
                per_task(count, lambda task: self._task(image, task, count))
        return f.result()

    def _task(self, image: Any, task: Any, count: Any) -> None:
        n = self.n
        begin, end = share(task, count, T.let(n.groups * n.tiles))
        with T.loop(T.let(end - begin)) as i:
            group, tile = (T.hold(one) for one in T.unravel(T.let(begin + i), [None, n.tiles]))
            narrow = T.let(n.wide * (WIDE * LANES) + (tile - n.wide) * (NARROW * LANES))
            T.either(
                tile < n.wide,
                lambda: self._columns(image, group, T.let(T.min(tile * (WIDE * LANES), n.places - WIDE * LANES)), WIDE, task),
                lambda: self._columns(image, group, T.let(T.min(narrow, n.places - NARROW * LANES)), NARROW, task),
            )

    def _columns(self, image: Any, group: Any, column: Any, vectors: int, task: Any) -> None:
        """All taps of some places."""
        n, x = self.n, self.tensors["input_tensor"]
        width = vectors * LANES
        source = T.let(image * n.image_batch + group * n.channels * n.image_channel + column)
        panel = T.let(task * (n.channels * (WIDE * LANES)))
        table = T.let(task * (3 * WIDE))
        with T.loop(n.channels) as c:
            for j in range(vectors):
                own = x[T.run(T.let(source + c * n.image_channel + j * LANES), LANES)]
                T.store(self.panels, T.run(panel + c * width + j * LANES, LANES), own)
        with T.loop(T.i64(vectors)) as j:
            z, y, first = (T.hold(one) for one in T.unravel(T.let(column + j * LANES), [None, n.image1, n.image2]))
            last = T.let(y + 1 == n.image1)
            own = T.let(z * n.kernel0 * n.output_step0 + y * n.kernel1 * n.output_step1)
            row = T.Select(last, (z + 1) * n.kernel0 * n.output_step0, own + n.kernel1 * n.output_step1)
            left = T.let((n.image2 - first) * self.turns)
            for i, one in enumerate((own + first * self.turns, row - left, left)):
                T.store(self.table, table + j * 3 + i, one)
        with T.loop(T.let(up(n.rows, ROWS))) as number:
            row = T.let(T.min(number * ROWS, n.rows - ROWS))
            self._tile(T.let(group * n.filter_group + row), panel, vectors, task)
            self._finish(image, group, row, table, vectors, task)

    def _tile(self, filters: Any, panel: Any, vectors: int, task: Any) -> None:
        """The sums of a tile, to memory."""
        n, w = self.n, self.tensors["filter_tensor"]
        zero, width = zeros(LANES), vectors * LANES
        totals = T.let(task * (ROWS * WIDE * LANES))

        def block(start: Any, count: Any, first: bool) -> None:
            sums = Sums(ROWS, vectors, lambda r, j: zero, multiply_add)
            with T.loop(count) as i:
                k = T.let(start + i)
                line = T.let(filters + k * n.filter_channel)
                along = [T.let(self.panels[T.run(panel + k * width + j * LANES, LANES)]) for j in range(vectors)]
                sums.add(lambda r: w[line + r], along)
            for r in range(ROWS):
                for j in range(vectors):
                    at = T.run(totals + r * width + j * LANES, LANES)
                    T.store(self.totals, at, sums.get(r, j) if first else self.totals[at] + sums.get(r, j))

        if self.plan.channels <= KC:
            block(T.i64(0), n.channels, True)
            return
        block(T.i64(0), T.i64(KC), True)
        with T.loop(T.let(up(n.channels - KC, KC))) as more:
            start = T.let((more + 1) * KC)
            block(start, T.hold(T.min(n.channels - start, T.i64(KC))), False)

    def _finish(self, image: Any, group: Any, row: Any, table: Any, vectors: int, task: Any) -> None:
        """Finished sums to the output: of a filter's rows of taps one after the other."""
        n, turns, y = self.n, self.turns, self.tensors["output_tensor"]
        totals = T.let(task * (ROWS * WIDE * LANES))
        with T.loop(T.i64(ROWS // turns)) as g:
            taps = T.let(T.truncdiv(row, T.i64(turns)) + g)
            own, a, b = (T.hold(one) for one in T.unravel(taps, [None, n.kernel0, n.kernel1]))
            channel = T.let(group * n.filters + own)
            base = T.let(image * n.output_batch + channel * n.output_channel + a * n.output_step0 + b * n.output_step1)

            def of_channel(name: str, number: int, channel: Any = channel) -> Any:
                return T.hold(T.splat(self.tensors[name][T.let(channel * self.addends[number])], LANES))

            addends = [T.wide(of_channel(name, number)) for number, name in enumerate(self.after.addends())]
            with T.loop(T.i64(vectors)) as j:
                first, second, left = (T.let(self.table[table + j * 3 + i]) for i in range(3))
                start = T.let(totals + g * (turns * vectors * LANES) + j * LANES)
                found = woven([T.hold(self.totals[T.run(start + b * (vectors * LANES), LANES)]) for b in range(turns)])
                found = [T.hold(self.after.head.element(one, addends)) for one in found]

                def value(one: Any, read: Any, of_channel: Any = of_channel) -> Any:
                    return T.hold(self.after.value(one, self.tensors, of_channel, read)) if self.after.changes else one

                def whole(found: Any = found, to: Any = base + first, value: Any = value) -> None:
                    for i, one in enumerate(found):
                        at = T.let(to + i * LANES)
                        T.store(y, T.run(at, LANES), value(one, lambda buffer, at=at: buffer[T.run(at, LANES)]))

                def parts(
                    found: Any = found, one: Any = base + first, two: Any = base + second, left: Any = left, value: Any = value
                ) -> None:
                    for i, vector in enumerate(found):
                        ends = T.let(T.cast(left - i * LANES, "int32"))
                        parts = [(T.let(one + i * LANES), T.const(0, "int32"), ends)]
                        parts += [(T.let(two + i * LANES), ends, T.const(LANES, "int32"))]

                        def read(buffer: Any, parts: Any = parts) -> Any:
                            kept = zeros(LANES, str(buffer.dtype))
                            for at, low, high in parts:
                                kept = T.hold(load_part(buffer, at, low, high, kept))
                            return kept

                        result = value(vector, read)
                        for at, low, high in parts:
                            store_part(y, at, low, high, result)

                T.either(left >= LANES * turns, whole, parts)

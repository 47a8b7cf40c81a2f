"""Depthwise convolutions of images whose channels are last in memory: vectors of channels, several places of a row at a time.

Filters are arranged first, so that those of neighbouring channels are neighbours for each tap; those that never change, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels import tiles
from tvmdml.kernels.contraction import KC, multiply_add
from tvmdml.kernels.kernel import Kernel, Offers
from tvmdml.schedules.cpu import per_task, share, split
from tvmdml.schedules.cpu._convolution_after import After
from tvmdml.schedules.cpu._convolution_arranged import Typed
from tvmdml.schedules.cpu._convolution_plan import ConvolutionPlan
from tvmdml.schedules.cpu._gemm_arithmetic import FloatProducts
from tvmdml.schedules.cpu._gemm_owned import TASK_ELEMENTS, FactorPacking, PackedSource, Panels
from tvmdml.schedules.cpu._gemm_panels import ALONG, up

if TYPE_CHECKING:
    from tvmdml.targets import Target

_PLACES = {16: (4, 2, 1), 32: (4, 2, 1), 64: (7, 4, 2, 1)}
"""Places of a row that are computed together, by the bytes of a register. Rows of networks are often multiples of 7."""
_FEWEST = 4
_NUMBERS = (
    "batch", "groups", "batch_step", "row_step", "column_step", "height", "width", "output_batch", "output_row", "output_column",
    "rows", "columns", "filter_step", "filter_row", "filter_column", "filter_base", "top", "left", "kernel", "dilation", "stride",
    "filter_zero_step", "panel", "tasks",
)  # fmt: skip


class _Column(NamedTuple):
    """A column of the image that a tile reads."""

    place: Any
    """How far it is from the first one; of one beyond an edge, the next one's place."""
    there: Any
    """Whether it is in the image; ``None`` if it always is."""


def suits(desc: Any) -> bool:
    """Whether each channel has a filter of its own, and channels are contiguous."""
    along = desc.along()
    if desc.backward or desc.filters() != (1, 1) or len(along) > 2 or any(one.padding for one in along):
        return False
    x, y = desc.input_tensor, desc.output_tensor
    few = along[-1].kernel <= 7 and desc.products() <= KC
    steps = set(After(desc).steps())
    return bool(few and x.layout[1] == y.layout[1] == 1 and desc.group_count >= _FEWEST and steps <= {0, 1})


class Channels:
    """Such a convolution as a kernel."""

    def __init__(self, desc: Any, plan: ConvolutionPlan, width: int, tasks: int, target: Target) -> None:
        self.given, self.tasks, self.target, self.after = desc, tasks, target, After(desc)
        self.sums = desc.computed
        self.factors = "float32" if self.sums == "int32" else self.sums
        along = desc.along()
        self.across = along[-1]
        self.down = along[0] if len(along) == 2 else along[0]._replace(image=1, kernel=1, output=1, stride=1, dilation=1, start=0)
        self.lanes = width // (8 if self.factors == "float64" else 4)
        while self.lanes > desc.group_count:
            self.lanes //= 2
        self.steps = self.after.steps()
        self.taps = range(self.across.kernel)
        self.places = tiles.places_together(self.across.output, _PLACES[width])
        as_packed = plan.rows_contiguous and self.factors == desc.filter_tensor.data_type.tvm == "float32"
        self.owned = as_packed and "filter_tensor" in desc.owned()
        self.panels = Panels(self.lanes, 1, desc.group_count, plan.taps)

    def kernel(self) -> Kernel:
        """The kernel."""
        module, *also = self.given.modules()
        own = self.across
        shape = (own.kernel, own.stride, own.dilation, self.lanes, self.places, self.steps, self.after.places)
        parameters = (*self.given.formula_key(), ("shape", repr(shape)), ("owned", self.owned))
        temporaries = () if self.owned else ((self.factors, self.down.kernel * own.kernel * self.given.group_count),)
        owned = (self._packing(module),) if self.owned else ()
        numbers, offers = self._numbers(), Offers.OWN | Offers.VECTORS | Offers.CHANNELS_LAST
        return Kernel(module, "channels", parameters, self.function, numbers, temporaries, tuple(also), owned=owned, offers=offers)

    def _packing(self, module: str) -> Any:
        """How filters that never change are arranged, once."""
        tasks = split(self.panels.room, self.target, TASK_ELEMENTS)
        source = PackedSource("float32", ALONG, 1, (), 0, (), self.given.filter_tensor.layout[0], 1, None)
        return FactorPacking(self.panels, source, FloatProducts("float32"), self.lanes, False, tasks).owned(
            ("filter_tensor",), module
        )

    def _numbers(self) -> tuple[int, ...]:
        desc, flat, down = self.given, len(self.given.along()) == 1, self.down
        x, y, w = desc.input_tensor, desc.output_tensor, desc.filter_tensor
        steps = [0 if flat else w.layout[2], w.layout[-1]]
        base = 0
        if desc.turned:
            base = (down.kernel - 1) * steps[0] + (self.across.kernel - 1) * steps[1]
            steps = [-step for step in steps]
        zeros = desc.zero_points()[0]
        zero_step = 0 if zeros is None or zeros[1].element_count == 1 else zeros[1].layout[0 if zeros[1].rank == 1 else 1]
        return (
            *(y.sizes[0], desc.group_count, x.layout[0], 0 if flat else x.layout[2], x.layout[-1], down.image, self.across.image),
            *(y.layout[0], 0 if flat else y.layout[2], y.layout[-1], down.output, self.across.output),
            *(w.layout[0], *steps, base, down.start, self.across.start, down.kernel, down.dilation, down.stride),
            *(zero_step, self.panels.panel, self.tasks),
        )

    def function(self) -> T.PrimFunc:
        """The TensorIR."""
        self.desc = self.given.with_tensors(Typed)
        with T.function() as f:
            self.tensors = f.tensors(self.desc, packed={"filter_tensor": "float32"} if self.owned else {})
            self.filters = self.tensors["filter_tensor"] if self.owned else f.buffer("arranged", self.factors)
            self.n = dict(zip(_NUMBERS, (f.scalar(name) for name in _NUMBERS), strict=True))
            if not self.owned:
                per_task(self.n["tasks"], self._arrange)
            per_task(self.n["tasks"], self._task)
        return f.result()

    def _arrange(self, task: Any) -> None:
        """Channel after channel: their taps are read as they lie."""
        n, w = self.n, self.tensors["filter_tensor"]
        begin, end = share(task, n["tasks"], n["groups"])
        with T.loop(T.let(end - begin)) as i:
            c = T.let(begin + i)
            base = T.let(n["filter_base"] + c * n["filter_step"])
            with T.loop(n["kernel"]) as a:
                for b in range(self.across.kernel):
                    own = self._factor(w[T.let(base + a * n["filter_row"] + b * n["filter_column"])], "filter", c)
                    T.store(self.filters, T.let((a * self.across.kernel + b) * n["groups"] + c), own)

    def _factor(self, value: Any, name: str, channel: Any = None) -> Any:
        if self.sums != "int32":
            return T.cast(T.wide(value), self.factors)
        found, zero = T.cast(T.cast(value, "int32"), "float32"), self.tensors.get(f"{name}_zero_point_tensor")
        if zero is None:
            return found
        own = T.cast(T.cast(zero[T.i64(0) if channel is None else T.let(channel * self.n["filter_zero_step"])], "int32"), "float32")
        return found - (T.splat(own, T.lanes(found)) if T.lanes(found) > 1 else own)

    def _task(self, task: Any) -> None:
        n, across, count = self.n, self.across, self.places
        begin, end = share(task, n["tasks"], n["batch"] * n["rows"])
        reach = (count - 1) * across.stride + across.span
        blocks = T.let(up(n["columns"], count))
        with T.loop(T.let(end - begin)) as i:
            unit = T.let(begin + i)
            image = T.hold(T.truncdiv(unit, n["rows"]))
            row = T.let(unit - image * n["rows"])
            first = T.let(row * n["stride"] - n["top"])
            least = T.hold(T.min(self._up(T.i64(0) - first, n["dilation"]), n["kernel"]))
            most = T.hold(T.max(T.min(self._up(n["height"] - first, n["dilation"]), n["kernel"]), least))
            source = T.let(image * n["batch_step"] + first * n["row_step"])
            target = T.let(image * n["output_batch"] + row * n["output_row"])
            with T.loop(blocks) as block:
                o = T.hold(T.min(block * count, n["columns"] - count))
                place = T.hold(o * across.stride - n["left"])
                line, to = T.hold(source + place * n["column_step"]), T.hold(target + o * n["output_column"])
                inside = T.And(place >= T.i64(0), place + reach <= n["width"])

                def run(edge: Any, line: Any = line, to: Any = to, rows: Any = (least, most)) -> None:
                    self._places(line, to, rows, edge)

                T.either(inside, lambda run=run: run(None), lambda run=run, place=place: run(place))

    @staticmethod
    def _up(value: Any, divisor: Any) -> Any:
        """A quotient, rounded up; 0 in place of a negative one."""
        return T.truncdiv(T.max(value, T.i64(0)) + (divisor - 1), divisor)

    def _places(self, source: Any, target: Any, rows: Any, edge: Any) -> None:
        """Places of a row, with all their taps, vector by vector of channels. Beyond an edge of the image, elements are zeros.

        ``edge``: the column of the first one; ``None`` where all are inside.
        """
        n, lanes = self.n, self.lanes
        columns = {}
        for column in sorted({r * self.across.stride + b * self.across.dilation for r in range(self.places) for b in self.taps}):
            if edge is None:
                columns[column] = _Column(T.let(column * n["column_step"]), None)
                continue
            own = T.let(edge + column)
            near = T.max(T.min(own, n["width"] - 1), T.i64(0))
            columns[column] = _Column(T.hold((near - edge) * n["column_step"]), T.hold(T.And(own >= T.i64(0), own < n["width"])))
        last = T.let(n["groups"] - lanes)
        with T.loop(T.let(up(n["groups"], lanes))) as block:
            c = T.hold(T.min(block * lanes, last))
            filters, tap = (T.let(block * n["panel"]), lanes) if self.owned else (c, n["groups"])
            zero = T.splat(T.const(0, self.factors), lanes)
            sums = [T.Variable(f"{self.factors}x{lanes}", zero) for _ in range(self.places)]
            with T.loop(T.let(rows[1] - rows[0])) as k:
                number = T.let(rows[0] + k)
                line = T.let(source + number * n["dilation"] * n["row_step"] + c)
                self._row(line, T.let(filters + number * self.across.kernel * tap), tap, columns, sums)
            self._finish(target, c, sums)

    def _row(self, line: Any, filters: Any, step: Any, columns: Mapping[int, _Column], sums: list[Any]) -> None:
        """All taps of a row, for neighbouring places: each element of the image is read once."""
        across = self.across
        met: dict[int, Any] = {}
        for b in self.taps:
            own = T.let(self.filters[T.run(T.let(filters + b * step), self.lanes)])
            for r, total in enumerate(sums):
                column = r * across.stride + b * across.dilation
                if column not in met:
                    met[column] = self._read(line, columns[column])
                total.set(multiply_add(own, met[column], total.value))

    def _read(self, line: Any, column: _Column) -> Any:
        """A vector of the image's channels."""
        found = self._factor(T.hold(self.tensors["input_tensor"][T.run(T.let(line + column.place), self.lanes)]), "input")
        if column.there is None:
            return T.let(found)
        return T.let(T.Select(T.splat(column.there, self.lanes), found, T.splat(T.const(0, self.factors), self.lanes)))

    def _finish(self, target: Any, c: Any, sums: list[Any]) -> None:
        """Finished sums to the output."""
        lanes, y = self.lanes, self.tensors["output_tensor"]

        def of_channel(name: str, i: int) -> Any:
            return self.tensors[name][T.run(c, lanes)] if self.steps[i] else T.repeated(self.tensors[name][T.i64(0)], lanes)

        addends = [T.hold(T.wide(of_channel(name, i))) for i, name in enumerate(self.after.addends())]
        for r, total in enumerate(sums):
            value = total.value if self.sums != "int32" else T.cast(total.value, "int32")
            at = T.let(target + r * self.n["output_column"] + c)
            found = self.after.head.element(value, addends)
            found = self.after.value(found, self.tensors, of_channel, lambda buffer, at=at: buffer[T.run(at, lanes)])
            T.store(y, T.run(at, lanes), found)

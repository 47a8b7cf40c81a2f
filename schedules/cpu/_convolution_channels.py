"""Depthwise convolutions of images whose channels are last in memory: vectors of channels, several places of a row at a time.

Filters are arranged first, so that those of neighbouring channels are neighbours for each tap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC, multiply_add
from tvmdml.kernels.kernel import Kernel
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._convolution_after import After
from tvmdml.schedules.cpu._convolution_arranged import Typed

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_PLACES = 4
"""Places of a row that are computed together, if all their taps are inside."""
_TOGETHER = 4
"""Vectors of channels that are computed together at one place, so that sums need not wait for those before."""
_FEWEST = 4
_NUMBERS = (
    "batch", "groups", "batch_step", "row_step", "column_step", "height", "width", "output_batch", "output_row", "output_column",
    "rows", "columns", "filter_step", "filter_row", "filter_column", "filter_base", "top", "left", "kernel", "dilation", "stride",
    "filter_zero_step", "tasks",
)  # fmt: skip


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

    def __init__(self, desc: Any, width: int, tasks: int) -> None:
        self.given, self.tasks, self.after = desc, tasks, After(desc)
        self.sums = desc.computed
        self.factors = "float32" if self.sums == "int32" else self.sums
        along = desc.along()
        self.across = along[-1]
        self.down = along[0] if len(along) == 2 else along[0]._replace(image=1, kernel=1, output=1, stride=1, dilation=1, start=0)
        self.lanes = width // (8 if self.factors == "float64" else 4)
        while self.lanes > desc.group_count:
            self.lanes //= 2
        self.steps = self.after.steps()

    def kernel(self) -> Kernel:
        """The kernel."""
        module, *also = self.given.modules()
        own = self.across
        shape = (own.kernel, own.stride, own.dilation, self.lanes, self.steps, self.after.places, self.tasks > 1)
        parameters = (*self.given.formula_key(), ("shape", repr(shape)))
        temporaries = ((self.factors, self.down.kernel * own.kernel * self.given.group_count),)
        return Kernel(module, "channels", parameters, self.function, self._numbers(), temporaries, also=tuple(also))

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
            *(zero_step, self.tasks),
        )

    def function(self) -> PrimFunc:
        """The TensorIR."""
        self.desc = self.given.with_tensors(Typed)
        with T.function() as f:
            self.tensors = f.tensors(self.desc)
            self.filters = f.buffer("arranged", self.factors)
            self.n = dict(zip(_NUMBERS, (f.scalar(name) for name in _NUMBERS), strict=True))
            parallel = self.tasks > 1
            per_task(self.n["tasks"], parallel, self._arrange)
            per_task(self.n["tasks"], parallel, self._task)
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
        n, across = self.n, self.across
        begin, end = share(task, n["tasks"], n["batch"] * n["rows"])
        low = T.let(T.min(T.truncdiv(n["left"] + (across.stride - 1), T.i64(across.stride)), n["columns"]))
        high = T.truncdiv(T.max(n["width"] + n["left"] - across.span + across.stride, T.i64(0)), T.i64(across.stride))
        high = T.let(T.max(low, T.min(high, n["columns"])))
        several = T.let(T.truncdiv(high - low, T.i64(_PLACES)))
        with T.loop(T.let(end - begin)) as i:
            unit = T.let(begin + i)
            image = T.hold(T.truncdiv(unit, n["rows"]))
            row = T.let(unit - image * n["rows"])
            first = T.let(row * n["stride"] - n["top"])
            least = T.hold(T.min(self._up(T.i64(0) - first, n["dilation"]), n["kernel"]))
            most = T.hold(T.max(T.min(self._up(n["height"] - first, n["dilation"]), n["kernel"]), least))
            source = T.let(image * n["batch_step"] + first * n["row_step"])
            target = T.let(image * n["output_batch"] + row * n["output_row"])

            def one(o: Any, source: Any = source, target: Any = target, rows: Any = (least, most)) -> None:
                place = T.let(o * across.stride - n["left"])
                left = T.hold(T.min(self._up(T.i64(0) - place, T.i64(across.dilation)), T.i64(across.kernel)))
                right = T.hold(T.min(self._up(n["width"] - place, T.i64(across.dilation)), T.i64(across.kernel)))
                self._places(source, target, o, rows, 1, (left, T.hold(T.max(right, left))))

            with T.loop(low) as o:
                one(o)
            with T.loop(several) as block:
                self._places(source, target, T.let(low + block * _PLACES), (least, most), _PLACES, None)
            rest = T.let(low + several * _PLACES)
            with T.loop(T.let(n["columns"] - rest)) as o:
                one(T.let(rest + o))

    @staticmethod
    def _up(value: Any, divisor: Any) -> Any:
        """A quotient, rounded up; 0 in place of a negative one."""
        return T.truncdiv(T.max(value, T.i64(0)) + (divisor - 1), divisor)

    def _places(self, source: Any, target: Any, o: Any, rows: Any, count: int, taps: Any) -> None:
        """Some places of a row, with all taps of it, or those from the first to the last: some vectors of channels at a time."""
        n, lanes = self.n, self.lanes
        place = T.let(source + (o * self.across.stride - n["left"]) * n["column_step"])
        together = 1 if taps is None else _TOGETHER
        last = T.let(n["groups"] - lanes)
        with T.loop(T.let(T.truncdiv(n["groups"] + (lanes * together - 1), T.i64(lanes * together)))) as block:
            channels = [T.hold(T.min((block * together + j) * lanes, last)) for j in range(together)]
            zero = T.splat(T.const(0, self.factors), lanes)
            sums = [[T.Variable(f"{self.factors}x{lanes}", zero) for _ in range(count)] for _ in channels]
            with T.loop(T.let(rows[1] - rows[0])) as k:
                number = T.let(rows[0] + k)
                line = T.let(place + number * n["dilation"] * n["row_step"])
                if taps is None:
                    self._row(line, number, channels[0], sums[0])
                else:
                    with T.loop(T.let(taps[1] - taps[0])) as i:
                        b = T.let(taps[0] + i)
                        for c, (total,) in zip(channels, sums, strict=True):
                            own = self._read(line, b * self.across.dilation, c)
                            total.set(multiply_add(self._tap(number, b, c), own, total.value))
            for c, own in zip(channels, sums, strict=True):
                self._finish(T.let(target + o * n["output_column"]), c, own)

    def _read(self, line: Any, column: Any, c: Any) -> Any:
        """A vector of the image's channels."""
        at = T.let(line + column * self.n["column_step"] + c)
        return T.let(self._factor(T.hold(self.tensors["input_tensor"][T.run(at, self.lanes)]), "input"))

    def _tap(self, number: Any, b: Any, c: Any) -> Any:
        """A tap of a vector of filters."""
        at = T.let((number * self.across.kernel + b) * self.n["groups"] + c)
        return T.let(self.filters[T.run(at, self.lanes)])

    def _row(self, line: Any, number: Any, c: Any, sums: list[Any]) -> None:
        """All taps of a row, for neighbouring places: each element of the image is read once."""
        across = self.across
        met: dict[int, Any] = {}
        for b in range(across.kernel):
            own = self._tap(number, b, c)
            for r, total in enumerate(sums):
                column = r * across.stride + b * across.dilation
                if column not in met:
                    met[column] = self._read(line, T.i64(column), c)
                total.set(multiply_add(own, met[column], total.value))

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

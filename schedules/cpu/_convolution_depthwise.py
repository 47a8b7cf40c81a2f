"""Convolutions whose groups have one filter: vectors of places along a row, several rows at a time.

Filters stay in registers, or are read again for each channel of a group. A vector of the image is read once for all rows of the
output that it takes part in. The first and the last vector of a row leave out what is outside of the image.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels import tiles
from tvmdml.kernels.contraction import KC, multiply_add
from tvmdml.kernels.kernel import Kernel
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._convolution_after import After
from tvmdml.schedules.cpu._convolution_arranged import Typed
from tvmdml.schedules.cpu._part import load_part, store_part

_MOST_TAPS = 49  # 7 x 7
_ROWS = (8, 4, 2, 1)
_FEWEST_LANES = 8
_NUMBERS = (
    "units", "groups", "channels", "batch_step", "channel_step", "row_step", "height", "width", "output_batch", "output_channel",
    "output_row", "rows", "columns", "filter_step", "filter_channel", "filter_row", "filter_column", "filter_base", "top", "left",
    "filter_zero_step", "tasks",
)  # fmt: skip


def suits(desc: Any) -> bool:
    """Whether groups have one filter, and rows are contiguous."""
    along, (filters, channels) = desc.along(), desc.filters()
    if desc.backward or filters != 1 or len(along) > 2 or any(one.padding for one in along):
        return False
    x, y = desc.input_tensor, desc.output_tensor
    contiguous = x.layout[-1] == 1 and (y.layout[-1] == 1 or y.sizes[-1] == 1)
    taps = desc.products() // max(channels, 1)
    small = taps <= _MOST_TAPS and desc.products() <= KC and all(one.stride <= 4 and one.dilation <= 8 for one in along)
    far = max(max(one.start, one.end, one.span) for one in along)
    return bool(contiguous and small and along[-1].stride <= 2 and far < 1 << 30 and all(n < 1 << 30 for n in x.sizes))


class Depthwise:
    """Such a convolution as a kernel."""

    def __init__(self, desc: Any, width: int, registers: int, tasks: int) -> None:
        self.given, self.tasks, self.after = desc, tasks, After(desc)
        self.sums = desc.computed
        self.factors = "float32" if self.sums == "int32" else self.sums
        along = desc.along()
        self.across = along[-1]
        self.down = along[0] if len(along) == 2 else along[0]._replace(image=1, kernel=1, output=1, stride=1, dilation=1, start=0)
        full = width // (8 if self.factors == "float64" else 4)
        columns = desc.output_tensor.sizes[-1]
        self.lanes = full
        while self.lanes > _FEWEST_LANES and self.lanes // 2 >= columns:
            self.lanes //= 2
        self.short = columns <= self.lanes
        taps = self.down.kernel * self.across.kernel
        self.kept = taps <= registers // 2 - 2
        room = registers - 4 - (taps if self.kept else 1)
        self.height = tiles.rows_together(self.down.output, tuple(n for n in _ROWS if n <= min(room, max(48 // taps, 2))), taps)

    def kernel(self) -> Kernel:
        """The kernel."""
        module, *also = self.given.modules()
        shape = [(one.kernel, one.stride, one.dilation) for one in (self.down, self.across)]
        choices = {
            "shape": shape, "lanes": self.lanes, "short": self.short, "height": self.height, "kept": self.kept,
            "one": self.given.filters()[1] == 1, "after": self.after.places,
        }  # fmt: skip
        parameters = (*self.given.formula_key(), *((name, repr(value)) for name, value in choices.items()))
        scalars = (*self._numbers(), *self.after.steps())
        return Kernel(module, "depthwise", parameters, self.function, scalars, also=tuple(also))

    def _numbers(self) -> tuple[int, ...]:
        desc, flat = self.given, len(self.given.along()) == 1
        x, y, w = desc.input_tensor, desc.output_tensor, desc.filter_tensor
        steps = [0 if flat else w.layout[2], w.layout[-1]]
        base = 0
        if desc.turned:
            base = (self.down.kernel - 1) * steps[0] + (self.across.kernel - 1) * steps[1]
            steps = [-step for step in steps]
        zeros = desc.zero_points()[0]
        zero_step = 0 if zeros is None or zeros[1].element_count == 1 else zeros[1].layout[0 if zeros[1].rank == 1 else 1]
        return (
            *(y.sizes[0] * desc.group_count, desc.group_count, desc.filters()[1]),
            *(x.layout[0], x.layout[1], 0 if flat else x.layout[2], self.down.image, self.across.image),
            *(y.layout[0], y.layout[1], 0 if flat else y.layout[2], self.down.output, self.across.output),
            *(w.layout[0], w.layout[1], *steps, base, self.down.start, self.across.start, zero_step, self.tasks),
        )

    def function(self) -> T.PrimFunc:
        """The TensorIR."""
        self.desc = self.given.with_tensors(Typed)
        with T.function() as f:
            self.tensors = f.tensors(self.desc)
            self.n = dict(zip(_NUMBERS, (f.scalar(name) for name in _NUMBERS), strict=True))
            self.steps = [f.scalar(f"addend{i}") for i, _ in enumerate(self.after.steps())]
            per_task(self.n["tasks"], self._task)
        return f.result()

    def _task(self, task: Any) -> None:
        n = self.n
        begin, end = share(task, n["tasks"], n["units"])
        with T.loop(T.let(end - begin)) as i:
            unit = T.let(begin + i)
            image = T.hold(T.truncdiv(unit, n["groups"]))
            self._plane(image, T.let(unit - image * n["groups"]))

    def _plane(self, image: Any, group: Any) -> None:
        n, lanes = self.n, self.lanes
        source = T.let(image * n["batch_step"] + group * n["channels"] * n["channel_step"])
        target = T.let(image * n["output_batch"] + group * n["output_channel"])
        taps = None
        if self.kept and self.given.filters()[1] == 1:
            taps = self._taps(group, T.i64(0))
        addends = [
            T.let(T.splat(T.wide(self.tensors[name][T.let(group * step)]), lanes))
            for name, step in zip(self.after.addends(), self.steps, strict=False)
        ]
        below = T.let(n["rows"] - self.height)

        def column(o: Any, edge: bool) -> None:
            with T.loop(T.let(T.truncdiv(n["rows"] + (self.height - 1), T.i64(self.height)))) as block:
                row = T.hold(T.min(block * self.height, below))
                self._block(source, target, group, row, o, edge, taps, addends)

        if self.short:
            column(T.i64(0), True)
            return
        last = T.let(n["columns"] - lanes)
        column(T.i64(0), True)
        # Vectors between them have all their taps inside, if they are not too near to an end.
        with T.loop(T.let(T.truncdiv(last + (lanes - 1), T.i64(lanes)))) as block:
            o = T.hold(T.min((block + 1) * lanes, last))
            begin = T.let(o * self.across.stride - n["left"])
            end = begin + ((lanes + 1) * self.across.stride + self.across.span)
            inside = T.And(begin >= T.i64(0), end <= n["width"])
            T.either(inside, lambda o=o: column(o, False), lambda o=o: column(o, True))

    def _taps(self, group: Any, channel: Any) -> list[list[Any]]:
        n, w = self.n, self.tensors["filter_tensor"]
        base = T.let(group * n["filter_step"] + channel * n["filter_channel"] + n["filter_base"])
        found = []
        for a in range(self.down.kernel):
            row = []
            for b in range(self.across.kernel):
                value = w[T.let(base + n["filter_row"] * a + n["filter_column"] * b)]
                row.append(T.let(T.splat(T.hold(self._factor(value, "filter", group)), self.lanes)))
            found.append(row)
        return found

    def _factor(self, value: Any, name: str, channel: Any = None) -> Any:
        if self.sums != "int32":
            return T.cast(T.wide(value), self.factors)
        found, zero = T.cast(T.cast(value, "int32"), "float32"), self.tensors.get(f"{name}_zero_point_tensor")
        if zero is None:
            return found
        own = T.cast(T.cast(zero[T.i64(0) if channel is None else T.let(channel * self.n["filter_zero_step"])], "int32"), "float32")
        return found - (T.splat(own, T.lanes(found)) if T.lanes(found) > 1 else own)

    def _block(self, source: Any, target: Any, group: Any, row: Any, o: Any, edge: bool, taps: Any, addends: list[Any]) -> None:
        """A vector of places in each of several rows."""
        n, lanes, down = self.n, self.lanes, self.down
        kind = f"{self.factors}x{lanes}"
        sums = [T.Variable(kind, T.splat(T.const(0, self.factors), lanes)) for _ in range(self.height)]
        first = T.let(row * down.stride - n["top"])
        begin = T.let(o * self.across.stride - n["left"])

        def channel(base: Any, own: list[list[Any]]) -> None:
            meets: dict[int, list[tuple[int, int]]] = {}
            for r in range(self.height):
                for a in range(down.kernel):
                    meets.setdefault(r * down.stride + a * down.dilation, []).append((r, a))
            for distance in sorted(meets):
                y = T.let(first + distance)
                with T.when(T.And(y >= T.i64(0), y < n["height"])):
                    vectors = self._row(T.let(base + y * n["row_step"]), begin, edge)
                    for r, a in meets[distance]:
                        for b, x in enumerate(vectors):
                            sums[r].set(multiply_add(own[a][b], x, sums[r].value))

        if taps is not None:
            channel(source, taps)
        elif self.given.filters()[1] == 1:
            channel(source, self._taps(group, T.i64(0)))
        else:
            with T.loop(n["channels"]) as c:
                channel(T.let(source + c * n["channel_step"]), self._taps(group, c))
        y, result = self.tensors["output_tensor"], self.given.output_tensor.data_type.tvm
        for r, total in enumerate(sums):
            value = total.value if self.sums != "int32" else T.cast(total.value, "int32")
            at = T.let(target + (row + r) * n["output_row"] + o)
            ends = T.const(0, "int32"), T.cast(n["columns"], "int32")

            def later(buffer: Any, at: Any = at, ends: Any = ends) -> Any:
                zero = T.splat(T.const(0, str(buffer.dtype)), lanes)
                return load_part(buffer, at, *ends, zero) if self.short else buffer[T.run(at, lanes)]

            def of_channel(name: str, i: int) -> Any:
                return T.repeated(self.tensors[name][T.let(group * self.steps[i])], lanes)

            found = self.after.value(self.after.head.element(value, addends), self.tensors, of_channel, later)
            if self.short:
                store_part(y, at, *ends, T.hold(T.cast(found, result)))
            else:
                T.store(y, T.run(at, lanes), found)

    def _row(self, line: Any, begin: Any, edge: bool) -> list[Any]:
        """The vectors of a row that its taps meet.

        Args:
            line: where the row begins.
            begin: the place of the first lane's first tap.
            edge: whether some lanes may be outside.
        """
        across, lanes = self.across, self.lanes
        steps = [b * across.dilation for b in range(across.kernel)]
        if across.stride == 1:
            return [self._read(line, begin, step, lanes, edge) for step in steps]
        found = []
        read: dict[int, Any] = {}
        for step in steps:
            even = step - step % 2
            if even not in read:
                read[even] = [self._read(line, begin, even + i * lanes, lanes, edge) for i in range(2)]
            found.append(T.hold(T.Shuffle(read[even], list(range(step % 2, 2 * lanes, 2)))))
        return found

    def _read(self, line: Any, begin: Any, step: int, lanes: int, edge: bool) -> Any:
        x = self.tensors["input_tensor"]
        at = T.let(line + begin + step)
        if not edge:
            return T.let(self._factor(T.hold(x[T.run(at, lanes)]), "input"))
        place = T.let(T.cast(begin + step, "int32"))
        kind = str(x.dtype)
        zero = self.tensors.get("input_zero_point_tensor")
        other = T.splat(T.const(0, kind) if zero is None else zero[T.i64(0)], lanes)
        value = load_part(x, at, T.const(0, "int32") - place, T.cast(self.n["width"], "int32") - place, other)
        return T.let(self._factor(T.hold(value), "input"))

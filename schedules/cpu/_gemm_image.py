"""Convolutions as products whose first factor is what filters meet in an image with channels last, read while it is packed.

A row of that factor is a place of the output; its places are the channels of one tap after those of another. Outside of the image
there are zeros. Filters lie in the same order. Channels of a tap begin with a new unit; behind the last one there are zeros, too.
"""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import Contraction, Operand
from tvmdml.kernels.movement import Linear
from tvmdml.operators._matrix_bfloat16_fused import padded
from tvmdml.schedules.cpu._gemm_arithmetic import TilePairs
from tvmdml.schedules.cpu._gemm_panels import Packer
from tvmdml.schedules.cpu._gemm_tile_rows import PairRows
from tvmdml.schedules.cpu._matrix_writer import PlainContraction
from tvmdml.schedules.cpu._part import load_part
from tvmdml.schedules.cpu._tiles import SIDE, transposed
from tvmdml.tensors import TensorDesc

CHANNELS = TilePairs.PLACES
"""Channels that are packed at once, which are of one tap."""
NAMES = (
    *("image_step", "row_step", "column_step", "height", "width", "channels", "present", "run", "taps_across"),
    *("output_height", "output_width", "stride_y", "stride_x", "dilation_y", "dilation_x", "padding_y", "padding_x"),
)
"""The integers of a launch that say where an image is."""


def product_of(desc: Any) -> PlainContraction | None:
    """The convolution as a product; ``None`` if it is none of images and filters whose channels are last."""
    x, w, y = desc.input_tensor, desc.filter_tensor, desc.output_tensor
    if desc.backward or desc.turned or desc.group_count != 1 or any(desc.output_padding) or x.rank not in (3, 4):
        return None
    (filters, present), along = desc.filters(), desc.along()
    channels = padded(present)
    rows = [(y.sizes[0], *y.sizes[2:])]
    addends = [(name, _as_rows(tensor.sizes, tensor.layout)) for name, tensor in desc.addends()]
    result, ordered = _as_rows(y.sizes, y.layout), _as_rows((1, *w.sizes[1:]), w.layout) in ((0, 1), (channels, 1))
    if x.layout[1] != 1 or result is None or not ordered or not _is_whole(w, channels):
        return None
    if any(step is None for _, step in addends):
        return None
    taps = 1
    for one in along:
        taps *= one.kernel
    number = 1
    for size in rows[0]:
        number *= size
    own = [1] * (2 - len(along))
    planes = (x.layout[0], *([0] if len(along) == 1 else []), *x.layout[2:])
    image = (
        *planes,
        *(*own, *(one.image for one in along)),
        *(channels, present, along[-1].kernel * channels * (x.layout[-1] * along[-1].dilation == present == channels)),
        along[-1].kernel,
        *(*own, *(one.output for one in along)),
        *(*own, *(one.stride for one in along)),
        *(*own, *(one.dilation for one in along)),
        *(*[0] * len(own), *(one.start for one in along)),
    )

    def operand(name: str, row: int, column: int, place: int | None = None) -> Operand:
        return Operand(name, Linear(0, (0, row, column, *(() if place is None else (place,)))))

    return PlainContraction(
        Contraction(
            *((1,), (number,), (filters,), (taps * channels,)),
            operand("input_tensor", 0, 0, 1),
            operand("filter_tensor", 0, w.layout[0], 1),
            operand("output_tensor", *result),
            tuple(operand(name, *step) for name, step in addends if step is not None),
            *(None, None),
            desc.computed,
        ),
        image=image,
    )


def _is_whole(filters: TensorDesc, channels: Any) -> bool:
    """Whether memory has so many channels for each tap."""
    whole = math.prod((filters.sizes[0], *filters.sizes[2:])) * channels
    room = max(filters.span_in_bytes, filters.total_tensor_size_in_bytes or 0)
    return bool(filters.layout[0] * filters.sizes[0] >= whole and room >= whole * filters.data_type.itemsize)


def _as_rows(sizes: Any, layout: Any) -> tuple[int, int] | None:
    """The steps of places and of channels, if places follow each other evenly."""
    pairs = list(zip(sizes, layout, strict=True))
    some = [(size, step) for size, step in (*pairs[:1:-1], pairs[0]) if size != 1]
    step = reach = some[0][1] if some else 0
    for size, own in some:
        if own != reach:
            return None
        reach *= size
    return step, layout[1]


class _Image(Packer):  # type: ignore[misc] # mypy knows these modules by another name
    """What both forms of panels share."""

    image: SimpleNamespace
    """The integers by their names."""
    is_ragged: bool
    """Whether the last channels of a tap do not fill a unit."""

    def _read(self, line: Any, channel: Any) -> Any:
        """A unit of channels, where their place's begin, from one on."""
        if not self.is_ragged:
            return T.hold(self.factor.buffer[T.run(T.hold(line + channel), CHANNELS)])
        end = T.hold(T.cast(self.image.present - channel, "int32"))
        nothing = T.splat(T.const(0, "float32"), CHANNELS)
        return T.hold(load_part(self.factor.buffer, T.hold(line + channel), T.const(0, "int32"), end, nothing))

    def _line_of(self, i: Any) -> tuple[Any, Any, Any]:
        """Where the image of a line's place is, and the first row and column that its filters meet."""
        n = self.image
        image, y, x = T.unravel(self._own(i), [None, n.output_height, n.output_width])
        return (
            T.hold(self.base + image * n.image_step),
            T.hold(y * n.stride_y - n.padding_y),
            T.hold(x * n.stride_x - n.padding_x),
        )

    def _first(self, n: SimpleNamespace) -> tuple[Any, Any, Any]:
        """The first tap: its number, and its row and column."""
        first = T.hold(T.truncdiv(self.place, n.channels))
        row = T.hold(T.truncdiv(first, n.taps_across))
        return first, row, T.hold(first - row * n.taps_across)

    def _taps(self, n: SimpleNamespace, body: Any, beginning: tuple[Any, Any, Any]) -> None:
        """Call ``body(y, x, channel, unit, units)`` for each tap: its place, its first channel, and the units of channels."""
        first, row, column = beginning
        ty, tx = T.Variable("int64", row), T.Variable("int64", column)
        end = T.hold(self.place + self.count)
        with T.loop(T.hold(T.truncdiv(end - 1, n.channels) - first + 1)) as i:
            start = T.hold((first + i) * n.channels)
            begin = T.hold(T.max(start, self.place))
            units = T.hold(T.truncdiv(T.min(start + n.channels, end) - begin, T.i64(CHANNELS)))
            unit = T.hold(T.truncdiv(begin - self.place, T.i64(CHANNELS)))
            y, x = T.hold(ty.value), T.hold(tx.value)
            body(T.hold(y * n.dilation_y), T.hold(x * n.dilation_x), T.hold(begin - start), unit, units)
            is_last = T.hold(T.expression(x + 1 == n.taps_across))
            tx.set(T.Select(is_last, T.i64(0), x + 1))
            ty.set(T.Select(is_last, y + 1, y))

    def _inside(self, y: Any, x: Any) -> Any:
        n = self.image
        return T.hold(T.And(T.And(y >= T.i64(0), y < n.height), T.And(x >= T.i64(0), x < n.width)))


class ImageRows(_Image, PairRows):  # type: ignore[misc] # as above
    """Panels for matrix tiles. The taps of a row are as one with all their channels, where these lie side by side, inside."""

    def _along(self) -> None:
        n, size = self.image, self.arithmetic.unit * self.width
        of_rows = SimpleNamespace(**{**vars(n), "channels": T.hold(T.max(n.run, T.i64(1))), "taps_across": T.i64(1)})
        first, first_of_rows = self._first(n), self._first(of_rows)
        last = T.hold((n.taps_across - 1) * n.dilation_x)
        nothing = T.splat(T.const(0, "int32"), SIDE)
        with T.loop(T.i64(self.width)) as i:
            base, y0, x0 = self._line_of(i)
            to = T.hold(self.at + i * SIDE)

            def tap(dy: Any, dx: Any, channel: Any, unit: Any, units: Any) -> None:
                y, x = T.hold(y0 + dy), T.hold(x0 + dx)
                line = T.hold(base + y * n.row_step + x * n.column_step)
                start = T.hold(to + unit * size)

                def read() -> None:
                    with T.loop(units) as k:
                        raw = self._read(line, T.hold(channel + k * CHANNELS))
                        self._parts(T.hold(start + k * size), self.arithmetic.pairs(raw))

                def skip() -> None:
                    with T.loop(units) as k:
                        self._parts(T.hold(start + k * size), (nothing,))

                T.either(self._inside(y, x), read, skip)

            whole = T.hold(T.And(n.run > T.i64(0), T.And(x0 >= T.i64(0), x0 + last < n.width)))
            rows, taps = (functools.partial(self._taps, *one) for one in ((of_rows, tap, first_of_rows), (n, tap, first)))
            T.either(whole, rows, taps)


class ImageColumns(_Image):
    """Panels for vectors: squares are transposed in registers."""

    def _along(self) -> None:
        n = self.image
        lines = [self._line_of(i) for i in range(self.width)]
        nothing, zeros = T.splat(T.const(0, "int32"), SIDE), T.splat(T.const(0, "float32"), CHANNELS)

        def tap(dy: Any, dx: Any, channel: Any, unit: Any, units: Any) -> None:
            places = []
            for base, y0, x0 in lines:
                y, x = T.hold(y0 + dy), T.hold(x0 + dx)
                inside = self._inside(y, x)
                at = base + y * n.row_step + x * n.column_step
                places.append((inside, T.hold(T.Select(inside, at, base))))
            with T.loop(units) as k:
                for start in reversed(range(0, self.width, SIDE)):
                    packed = []
                    for inside, line in places[start : start + SIDE]:
                        raw = self._read(line, T.hold(T.Select(inside, channel + k * CHANNELS, T.i64(0))))
                        raw = T.hold(T.Select(T.splat(inside, CHANNELS), raw, zeros))
                        packed.append(T.hold(self.arithmetic.many(0, raw)))
                    for word, column in enumerate(transposed(packed + [nothing] * (SIDE - len(packed)))):
                        self._put(T.hold((unit + k) * SIDE + word), start, column)

        self._taps(n, tap, self._first(n))

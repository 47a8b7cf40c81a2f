"""DML_OPERATOR_UNFOLD and FOLD: the windows of an image as columns, and the sum of such columns."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np

from tvmdml.kernels import tensorir as T
from tvmdml.kernels import tensorir_values as V
from tvmdml.kernels.loops import counted_loop, nested
from tvmdml.operators._accuracy import within_sum
from tvmdml.operators._contract import NumpyArray, Shared, Uints
from tvmdml.operators._movement import Coordinate, SourceCoordinates, inside
from tvmdml.operators._movement_columns import Columns
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._support import support
from tvmdml.operators._window_reference import unless_overflow
from tvmdml.tensors import TensorDesc

Walk = Callable[[], AbstractContextManager[Any]]
_FEW = 4
"""Where so many times the windows that have an element are no more than a window's elements, they are looked for one by one."""


class Unfold(Columns):
    """The windows of an image as columns (``DML_UNFOLD_OPERATOR_DESC``); elements outside of the image are 0.

    The image has a batch, channels and spatial dimensions; the result has three: the batch, the elements of a window in all
    channels, and the windows.

    Args:
        window_sizes: the sizes of a window, one for each spatial dimension.
        strides: the steps from one window to the next; 1 by default.
        dilations: the steps between the elements of a window; 1 by default.
        start_padding: the number of zeros before each spatial dimension; 0 by default.
        end_padding: that behind each.
    """

    FUNCTION = "unfold"
    SUPPORT = support("6.4 all r3-8")

    def image(self) -> TensorDesc:
        return self.input_tensor

    def columns(self) -> TensorDesc:
        return self.output_tensor

    def infer(self) -> Mapping[str, TensorDesc]:
        """Three dimensions."""
        if self.input_tensor.rank < 3:  # the support table refuses it
            return {"output_tensor": self.input_tensor}
        self.check_image()
        return {"output_tensor": self.input_tensor.with_sizes(self.column_sizes())}

    def source(self, *at: Coordinate) -> SourceCoordinates:
        batch, d, column = at[-3:]
        channel, *window = d.digits(self.image().sizes[1], *self.window_sizes)
        block = column.digits(*self.counts())
        steps = zip(block, window, self.strides, self.dilations, self.start_padding, strict=True)
        return batch, channel, *(inside(b * stride + w * dilation - start) for b, w, stride, dilation, start in steps)

    def numpy(self, x: Any) -> NumpyArray:
        pads = [(0, 0), (0, 0), *zip(self.start_padding, self.end_padding, strict=True)]
        x = np.pad(x, pads)
        found: Any = np.zeros((*x.shape[:2], *self.window_sizes, *self.counts()), x.dtype)
        for w in itertools.product(*map(range, self.window_sizes)):
            place: Any = (..., *self.places(w))
            taken: Any = (slice(None), slice(None), *w)
            found[taken] = x[place]
        return found.reshape(self.output_tensor.sizes)


class Fold(Columns):
    """The sum of columns, each of which is a window of an image (``DML_FOLD_OPERATOR_DESC``). Integers wrap.

    The columns have three dimensions: the batch, the elements of a window in all channels, and the windows.

    Args:
        output_sizes: the image's sizes: the batch, channels and spatial dimensions.
        window_sizes: the sizes of a window, one for each spatial dimension.
        strides: the steps from one window to the next; 1 by default.
        dilations: the steps between the elements of a window; 1 by default.
        start_padding: how many elements windows reach out of each spatial dimension before it; 0 by default.
        end_padding: that behind each.
    """

    FUNCTION = "fold"
    SUPPORT = support("6.4 all r3-8")
    TAKES_BOOL = False
    LAUNCHED_SHAPES = True
    ARGUMENTS = MappingProxyType({"output_sizes": Uints})
    ONNX = ("Col2Im",)

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> Fold:
        """With the image's sizes; numbers that are left out are the usual ones."""
        (columns,) = inputs
        given["output_tensor"] = columns.with_sizes(given.pop("output_sizes"))
        return cls.of(columns, **cls.whole_numbers(given))

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Fold:
        """The sizes are inputs; pads are those before all dimensions, then those behind them."""
        columns, sizes, window = node.tensor(), node.constants("image_shape", 1), node.constants("block_shape", 2)
        k = len(sizes)
        ones, pads = [1] * k, node.attributes.get("pads", [0] * 2 * k)
        channels = columns.sizes[1] // math.prod(window)
        return cls.of(
            columns,
            output_tensor=columns.with_sizes((columns.sizes[0], channels, *sizes)),
            window_sizes=window,
            strides=node.attributes.get("strides", ones),
            dilations=node.attributes.get("dilations", ones),
            start_padding=pads[:k],
            end_padding=pads[k:],
        )

    def image(self) -> TensorDesc:
        return self.output_tensor

    def columns(self) -> TensorDesc:
        return self.input_tensor

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output must be given."""
        return {}

    def is_moved(self) -> bool:
        """If windows are tiles of the image: each element is in one of them."""
        parts = zip(self.output_tensor.sizes[2:], self.counts(), self.window_sizes, self.strides, self.dilations, strict=True)
        tiled = (size == count * window and stride == window and dilation == 1 for size, count, window, stride, dilation in parts)
        return all(tiled) and not any(self.start_padding)

    def source(self, *at: Coordinate) -> SourceCoordinates:
        batch, d, *place = at
        column = Coordinate({})
        for x, count, window in zip(place, self.counts(), self.window_sizes, strict=True):
            block, inner = x.digits(count, window)
            d, column = d * window + inner, column * count + block
        return *[Coordinate({})] * (self.input_tensor.rank - 3), batch, d, column

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element of the image."""
        with T.function() as f:
            self.write(each, f.tensors(self))
        return f.result()

    def write(self, each: T.Each, tensors: dict[str, Any]) -> None:
        """The computation, on tensors that are declared."""
        with T.elements(each, self.output_tensor.sizes, self.output_tensor.layout) as at:
            self.element(tensors, at)

    @property
    def computed(self) -> str:
        """The type of sums."""
        kind = self.output_tensor.data_type
        if not kind.is_float:
            return f"uint{8 * kind.itemsize}"
        return "float64" if kind.itemsize == 8 else "float32"

    def loaded(self, value: Any) -> Any:
        """An element, or a vector of them, in the type of sums."""
        return V.wide(value) if self.output_tensor.data_type.is_float else V.reinterpret(value, self.computed)

    def result(self, total: Any) -> Any:
        """The element of the image for a sum, or a vector of them."""
        kind = self.output_tensor.data_type
        return V.to(total, kind.tvm) if kind.is_float else V.reinterpret(total, kind.tvm)

    def element(self, tensors: dict[str, Any], at: list[Any]) -> None:
        """An element of the image: the sum over all windows that have it."""
        image = self.output_tensor
        total = T.Variable(self.computed, T.const(0, self.computed))
        found = math.prod(map(self._most_windows, range(len(self.window_sizes))))
        few = T.is_on_device() or _FEW * found <= math.prod(self.window_sizes)
        with (self._windows if few else self._taps)(at) as offset:
            total.set(total.value + self.loaded(tensors["input_tensor"][offset]))
        T.store(tensors["output_tensor"], T.dot(at, image.layout), self.result(total.value))

    def _most_windows(self, i: int) -> int:
        """How many windows may have an element, along a dimension."""
        reach = (self.window_sizes[i] - 1) * self.dilations[i]
        return min(reach // self.strides[i] + 1, self.window_sizes[i])

    @contextmanager
    def _taps(self, at: list[Any]) -> Iterator[Any]:
        """Run the statements for the offset of each window's element that is at these coordinates: LLVM makes vectors of these."""
        batch, channel, *place = at
        columns, counts = self.input_tensor, self.counts()
        with T.loop(T.index(math.prod(self.window_sizes))) as number:
            blocks, fits = [], None
            for i, w in enumerate(T.unravel(number, self.window_sizes)):
                past = T.let(place[i] + T.index(self.start_padding[i]) - w * T.index(self.dilations[i]))
                block = T.hold(T.truncdiv(past, T.index(self.strides[i])))
                own = (past >= T.index(0)) & (block * T.index(self.strides[i]) == past) & (block < T.index(counts[i]))
                blocks.append(block)
                fits = own if fits is None else fits & own
            column = blocks[0]
            for block, count in zip(blocks[1:], counts[1:], strict=True):
                column = column * T.index(count) + block
            row = channel * T.index(math.prod(self.window_sizes)) + number
            with T.when(fits):
                yield T.dot([T.index(0)] * (columns.rank - 3) + [batch, row, column], columns.layout)

    @contextmanager
    def _windows(self, at: list[Any]) -> Iterator[Any]:
        """The same, by the windows that extend over the element."""
        start, walks = self.walks(at, len(self.window_sizes))
        with nested([walk() for walk in walks]) as found:
            yield functools.reduce(operator.add, found, start)

    def walks(self, at: list[Any], dimensions: int) -> tuple[Any, list[Walk]]:
        """Where the columns have an element's channel, and the ways over the windows that have it, along the first dimensions."""
        batch, channel, *place = at
        *_, batch_step, row, column = self.input_tensor.layout
        start = T.let(batch * batch_step + channel * T.index(math.prod(self.window_sizes)) * row)
        found: list[Walk] = []
        for i, count in reversed([*enumerate(self.counts())]):
            if i < dimensions:
                steps = T.let(T.index(1) * row), T.let(T.index(1) * column)
                found.insert(0, self._walk(i, place[i], T.index(count), steps))
            row, column = row * T.index(self.window_sizes[i]), column * T.index(count)
        return start, found

    def _walk(self, i: int, place: Any, count: Any, steps: tuple[Any, Any]) -> Walk:
        """Runs the statements for each window that has an element, along a dimension; gives that window's part of the offset.

        They are found by the windows that extend over the element, or by a window's elements, whichever are fewer. ``steps`` are
        those in the columns to a window's next element, and to the next window.
        """
        stride, dilation, size = self.strides[i], self.dilations[i], self.window_sizes[i]
        reach, zero = (size - 1) * dilation, T.index(0)
        past = T.let(place + T.index(self.start_padding[i]))

        @contextmanager
        def by_taps() -> Iterator[Any]:
            with T.loop(T.index(size)) as tap:
                way = T.let(past - tap * T.index(dilation))
                block = T.hold(T.truncdiv(way, T.index(stride)))
                with T.when((way >= zero) & (block * T.index(stride) == way) & (block < count)):
                    yield T.let(tap * steps[0] + block * steps[1])

        if reach // stride + 1 > size:
            return by_taps
        last = T.hold(T.min(T.truncdiv(past, T.index(stride)), count - 1))
        first = T.hold(T.truncdiv(T.max(past - T.index(reach), zero) + T.index(stride - 1), T.index(stride)))
        rounds = T.hold(T.max(last - first + 1, zero))
        way = T.let(past - last * T.index(stride))
        start, step = T.let(last * steps[1]), T.let(T.index(stride) * steps[0] - steps[1])
        if dilation == 1:
            start = T.let(start + way * steps[0])

        @contextmanager
        def by_windows() -> Iterator[Any]:
            with counted_loop(rounds, reach // stride + 1) as number:
                if dilation == 1:
                    yield T.let(start + number * step)
                else:
                    far = T.let(way + number * T.index(stride))
                    tap = T.hold(T.truncdiv(far, T.index(dilation)))
                    with T.when(tap * T.index(dilation) == far):
                        yield T.let(start - number * steps[1] + tap * steps[0])

        return by_windows

    def numpy(self, x: Any) -> Any:
        kind = x.dtype
        wide: Any = kind if kind.kind != "f" else np.longdouble if kind == np.float64 else np.float64
        n, c, *spatial = self.output_tensor.sizes
        x = x.reshape((n, c, *self.window_sizes, *self.counts())).astype(wide)
        padded = [a + size + b for a, size, b in zip(self.start_padding, spatial, self.end_padding, strict=True)]
        total: Any
        magnitudes: Any
        terms: Any
        total, magnitudes, terms = (np.zeros((n, c, *padded), wide) for _ in range(3))
        part: Any
        with np.errstate(all="ignore"):
            for w in itertools.product(*map(range, self.window_sizes)):
                part = (..., *self.places(w))
                taken: Any = (slice(None), slice(None), *w)
                own = x[taken]
                total[part] += own
                magnitudes[part] += np.where(np.isfinite(own), np.abs(own), 0)
                terms[part] += wide(1) if kind.kind == "f" else 1
        crop: Any = (..., *(slice(a, a + size) for a, size in zip(self.start_padding, spatial, strict=True)))
        if kind.kind != "f":
            return total[crop]
        near = within_sum(total[crop], kind, terms[crop].astype(np.float64) + 1, magnitudes[crop])
        return near._replace(error=unless_overflow(np.asarray(near.error), magnitudes[crop], total[crop], kind))

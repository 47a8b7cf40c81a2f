"""DML_OPERATOR_UNFOLD and FOLD: the windows of an image as columns, and the sum of such columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml.kernels import tensorir as T
from tvmdml.kernels import tensorir_values as V
from tvmdml.operators._accuracy import within_sum
from tvmdml.operators._contract import Array, Shared, Uints
from tvmdml.operators._movement import Coordinate, Source, inside
from tvmdml.operators._movement_columns import Columns
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDesc

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

__all__ = ["Fold", "Unfold"]


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

    def source(self, *at: Coordinate) -> Source:
        batch, d, column = at[-3:]
        channel, *window = d.digits(self.image().sizes[1], *self.window_sizes)
        block = column.digits(*self.counts())
        steps = zip(block, window, self.strides, self.dilations, self.start_padding, strict=True)
        return batch, channel, *(inside(b * stride + w * dilation - start) for b, w, stride, dilation, start in steps)

    def numpy(self, x: Any) -> Array:
        pads = [(0, 0), (0, 0), *zip(self.start_padding, self.end_padding, strict=True)]
        x = np.pad(x, pads)
        found: Any = np.zeros((*x.shape[:2], *self.window_sizes, *self.counts()), x.dtype)
        for w in itertools.product(*map(range, self.window_sizes)):
            place: Any = (..., *self.places(w))
            taken: Any = (slice(None), slice(None), *w)
            found[taken] = x[place]
        columns: Array = found.reshape(self.output_tensor.sizes)
        return columns


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
        return False

    def computation(self, each: T.Each, shared: Shared = ()) -> PrimFunc:
        """One item for each element of the image: the sum over all elements of a window, in ascending order."""
        columns, image = self.input_tensor, self.output_tensor
        kind = image.data_type
        summed = f"uint{8 * kind.itemsize}" if not kind.is_float else "float64" if kind.itemsize == 8 else "float32"
        with T.function() as f:
            tensors = f.tensors(self)
            counts = self.counts()
            with T.elements(each, image.sizes, image.layout) as at:
                batch, channel, *place = at
                total = T.Variable(summed, T.const(0, summed))
                with T.loop(T.index(math.prod(self.window_sizes))) as number:
                    blocks, fits = [], None
                    for i, w in enumerate(T.unravel(number, self.window_sizes)):
                        past = T.let(place[i] + T.index(self.start_padding[i]) - w * T.index(self.dilations[i]))
                        block = T.hold(T.truncdiv(past, T.index(self.strides[i])))
                        own = (past >= T.index(0)) & (block * T.index(self.strides[i]) == past) & (block < T.index(counts[i]))
                        blocks.append(block)
                        fits = own if fits is None else fits & own
                    column, missing = blocks[0], columns.rank - 3
                    for block, count in zip(blocks[1:], counts[1:], strict=True):
                        column = column * T.index(count) + block
                    row = channel * T.index(math.prod(self.window_sizes)) + number
                    with T.when(fits):
                        offset = T.dot([T.index(0)] * missing + [batch, row, column], columns.layout)
                        found = tensors["input_tensor"][offset]
                        found = V.wide(found) if kind.is_float else T.reinterpret(summed, found)
                        total.set(total.value + found)
                result = V.to(total.value, kind.tvm) if kind.is_float else V.reinterpret(total.value, kind.tvm)
                T.store(tensors["output_tensor"], T.dot(at, image.layout), result)
        return f.result()

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
                magnitudes[part] += np.abs(own)
                terms[part] += wide(1) if kind.kind == "f" else 1
        crop: Any = (..., *(slice(a, a + size) for a, size in zip(self.start_padding, spatial, strict=True)))
        if kind.kind != "f":
            return total[crop]
        return within_sum(total[crop], kind, terms[crop].astype(np.float64) + 1, magnitudes[crop])

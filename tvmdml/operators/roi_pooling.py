"""DML_OPERATOR_ROI_POOLING: the largest elements in the bins of regions that a tensor says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmdml.enums import FeatureLevel
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.channels import Channels
from tvmdml.kernels.loops import counted_loop
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import Float, Input, NumpyArray, Operator, Output, Shared, Size, defaults
from tvmdml.operators._onnx import OnnxNode
from tvmdml.operators._support import support
from tvmdml.operators._window_largest import Best
from tvmdml.tensors import ArrayTensorDesc, TensorDataType, TensorDesc

_EDGE = 2.0**31
_FEW_BINS = 1 << 15
"""The square of a lower number has 32 bits."""


class RoiPooling(Operator):
    """The largest elements in the bins of regions of an image (``DML_ROI_POOLING_OPERATOR_DESC``).

    A region has a batch and the coordinates ``x1, y1, x2, y2`` of its corners, which belong to it. They are multiplied by
    ``spatial_scale`` and rounded, halves away from zero. The region is divided into bins, which may overlap; one without an element
    of the image gives 0. All bins of a region with a NaN, or of a batch that the image does not have, are empty.

    Args:
        roi_tensor: the regions: float16, float32 or float64, as the input; a shape of (1, 1, regions, 5).
        spatial_scale: the factor of the coordinates; 1 by default.
        pooled_size: the number of bins: width and height.
    """

    FUNCTION = "roi_pooling"
    FAMILY = "window"
    ANY_NAN = True
    channels = 1
    """Channels of an item of the computation."""
    SUPPORT = support("1.0 F r4 · ext +D")
    DEFAULTS = defaults(spatial_scale=1.0)
    ONNX = ("MaxRoiPool",)

    input_tensor: Input
    roi_tensor: Input
    output_tensor: Output
    spatial_scale: Float
    pooled_size: Size

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Operator:
        """Regions are rows of a matrix."""
        x, rows = node.tensor(), node.tensor(1)
        height, width = node.attributes["pooled_shape"]
        roi = ArrayTensorDesc(rows.data_type, (1,) * (4 - rows.rank) + rows.sizes)
        return cls.of(x, roi, spatial_scale=float(node.attributes.get("spatial_scale", 1.0)), pooled_size=(width, height))

    def infer(self) -> Mapping[str, TensorDesc]:
        """A row of bins for each region and channel."""
        x, roi, size = self.input_tensor, self.roi_tensor, self.pooled_size
        if x.rank != 4 or roi.rank != 4:  # the support table refuses it
            return {"output_tensor": x}
        self._check_size()
        return {"output_tensor": x.with_sizes((roi.sizes[2], x.sizes[1], size.height, size.width))}

    def _check_size(self) -> None:
        for name, number in zip(self.pooled_size._fields, self.pooled_size, strict=True):
            self.require(number >= 1, f"pooled_size.{name}", number, "1 or more")

    def check_attributes(self, level: FeatureLevel) -> None:
        """Bins, and a number."""
        self._check_size()
        self.require(math.isfinite(self.spatial_scale), "spatial_scale", self.spatial_scale, "a finite number")

    def check(self) -> None:
        """One type; five numbers for each region; bins for each region and channel."""
        for name in ("roi_tensor", "output_tensor"):
            self.require_same("data_type", name, "input_tensor")
        x, roi, size = self.input_tensor, self.roi_tensor, self.pooled_size
        given = roi.sizes
        wanted = (1, 1, given[2], 5)
        self.require(given == wanted, "roi_tensor.sizes", given, f"{wanted}: a batch and two corners for each region")
        for i in (2, 3):
            self.require(x.sizes[i] >= 1, f"input_tensor.sizes[{i}]", x.sizes[i], "1 or more")
        sizes = (given[2], x.sizes[1], size.height, size.width)
        self.require(self.output_tensor.sizes == sizes, "output_tensor.sizes", self.output_tensor.sizes, f"{sizes}")

    def bounds(self, name: str) -> tuple[int, int] | None:
        """Regions near the image."""
        sizes = self.input_tensor.sizes
        return (-1, max(sizes[0], *sizes[2:])) if name == "roi_tensor" else None

    @property
    def computed(self) -> str:
        """The type of scaled coordinates, and in which elements are compared."""
        return "float64" if self.input_tensor.data_type is TensorDataType.FLOAT64 else "float32"

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each bin."""
        with T.function() as f:
            self.write(each, f.tensors(self, shared))
        return f.result()

    def write(self, each: T.Each, tensors: dict[str, Any]) -> None:
        """The computation, on tensors that are declared."""
        x, roi, y, dtype = self.input_tensor, self.roi_tensor, self.output_tensor, self.computed
        blocks = Channels.blocks(x.sizes[1], self.channels)
        with T.elements(each, (y.sizes[0], blocks, *y.sizes[2:]), y.layout) as (region, block, *bins):
            numbers = [
                T.hold(T.to(tensors["roi_tensor"][region * roi.layout[2] + T.index(i) * roi.layout[3]], dtype)) for i in range(5)
            ]
            batch = T.trunc(numbers[0])
            valid: Any = (batch >= T.like(batch, 0)) & (batch < T.cast(T.index(x.sizes[0]), dtype))
            for one in numbers[1:]:
                valid = valid & (one <= T.like(one, math.inf))
            channels = Channels(block, x.sizes[1], self.channels)
            best = [Best(dtype, 0, "int32") for _ in range(self.channels)]
            filled = T.Variable("int32", T.const(0, "int32"))
            with T.when(valid):
                x1, y1, x2, y2 = (T.hold(self._rounded(one)) for one in numbers[1:])
                rows = self._bin(y1, y2, bins[0], self.pooled_size.height, x.sizes[2])
                columns = self._bin(x1, x2, bins[1], self.pooled_size.width, x.sizes[3])
                inside = (rows[1] > T.like(rows[1], 0)) & (columns[1] > T.like(columns[1], 0))
                filled.set(T.select(inside, T.const(1, "int32"), 0))
                bases = channels.offsets(T.cast(batch, T.type_of(T.index(0))) * x.layout[0], x.layout[1])
                with counted_loop(rows[1], _known(x.sizes[2])) as i, counted_loop(columns[1], _known(x.sizes[3])) as j:
                    place = T.let((rows[0] + i) * x.layout[2] + (columns[0] + j) * x.layout[3])
                    for own, base in zip(best, bases, strict=True):
                        own.add(T.hold(T.to(tensors["input_tensor"][base + place], dtype)), [])
            for i, own in enumerate(best):
                with channels.existing(i) as channel:
                    found = T.to(T.select(filled.value != T.const(0, "int32"), own.value, 0), y.data_type.tvm)
                    T.store(tensors["output_tensor"], T.dot([region, channel, *bins], y.layout), found)

    def _rounded(self, coordinate: Any) -> Any:
        """A scaled coordinate, rounded, halves away from zero, as an integer of 64 bits."""
        value = T.hold(T.rounded(coordinate * T.like(coordinate, self.spatial_scale)))
        edge = T.like(value, _EDGE)
        value = T.hold(T.select(value > edge, edge, T.select(value < T.negative(edge), T.negative(edge), value)))
        cut = T.hold(T.trunc(value))
        away = T.select(T.absolute(value - cut) >= T.like(value, 0.5), T.with_sign_of(T.like(value, 1), value), T.like(value, 0))
        return T.cast(cut + away, "int64")

    @staticmethod
    def _bin(first: Any, last: Any, number: Any, count: int, size: Any) -> tuple[Any, Any]:
        """Where a bin begins in the image, and how many elements it has there."""
        one, zero, end = T.i64(1), T.i64(0), T.cast(T.index(size), "int64")
        length = T.hold(T.max(last - first + one, one))
        share = T.hold(T.truncdiv(length, T.i64(count)))  # of each bin, and what is left, in few bits if there are few bins
        kind = "int32" if count < _FEW_BINS else "int64"
        rest, number = T.hold(T.cast(length - share * count, kind)), T.cast(number, kind)
        bins, wide = T.const(count, kind), T.cast(number, "int64")
        begin = T.hold(first + wide * share + T.cast(T.truncdiv(number * rest, bins), "int64"))
        past = T.truncdiv((number + T.const(1, kind)) * rest + T.const(count - 1, kind), bins)
        stop = T.hold(first + (wide + one) * share + T.cast(past, "int64"))
        begin, stop = (T.hold(T.min(T.max(place, zero), end)) for place in (begin, stop))
        dtype = T.type_of(T.index(0))
        return T.let(T.cast(begin, dtype)), T.let(T.cast(T.max(stop - begin, zero), dtype))

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy: bins one after the other."""
        x, roi = (one for one in inputs if one is not None)
        wide = np.float64 if x.dtype == np.float64 else np.float32
        result = np.zeros(self.output_tensor.sizes, x.dtype)
        height, width = result.shape[2:]
        for number, row in enumerate(roi.reshape(-1, 5)):
            batch = np.trunc(row[0])
            with np.errstate(all="ignore"):
                scaled = row[1:].astype(wide) * wide(self.spatial_scale)
            if np.isnan(row).any() or np.isnan(scaled).any() or not 0 <= batch < x.shape[0]:
                continue
            scaled = np.clip(scaled.astype(np.longdouble), -_EDGE, _EDGE)
            x1, y1, x2, y2 = (int(np.copysign(np.floor(abs(v)) + (abs(v) % 1 >= 0.5), v)) for v in scaled)
            for i, j in np.ndindex(height, width):
                parts = []
                for first, last, at, count, size in ((y1, y2, i, height, x.shape[2]), (x1, x2, j, width, x.shape[3])):
                    length = max(last - first + 1, 1)
                    begin, stop = first + at * length // count, first - (-(at + 1) * length // count)
                    parts.append(slice(min(max(begin, 0), size), min(max(stop, 0), size)))
                taken = x[int(batch), :, parts[0], parts[1]].reshape(x.shape[1], -1)
                if taken.shape[1]:
                    result[number, :, i, j] = taken[np.arange(len(taken)), np.argmax(taken, 1)]
        return (result,)


def _known(size: Any) -> int | None:
    return size if isinstance(size, int) else None

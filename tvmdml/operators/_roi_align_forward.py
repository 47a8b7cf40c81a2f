"""The base of ROI_ALIGN and ROI_ALIGN1: the contract, and the computation, one sample after the other."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.channels import Channels
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import NumpyArray, Shared
from tvmdml.operators._roi_align import Corners, Region, RoiOperator, region
from tvmdml.operators._roi_align_reference import aligned
from tvmdml.tensors import TensorDesc

if TYPE_CHECKING:
    from tvmdml.operators._contract import Float, Input, Output


def _element(buffer: Any, base: Any, place: Any) -> Any:
    return T.hold(T.wide(buffer[base + place]))


class Aligned(RoiOperator):
    """Base class of the operators that resample regions."""

    if TYPE_CHECKING:  # the fields stand in DirectML's order, in each class
        input_tensor: Input
        output_tensor: Output
        out_of_bounds_input_value: Float

    # -- The contract

    def ends(self) -> tuple[TensorDesc, TensorDesc]:
        return self.input_tensor, self.output_tensor

    def images(self) -> int:
        return self.input_tensor.sizes[0]

    def extent(self) -> int:
        return max(self.input_tensor.sizes[2:])

    def infer(self) -> Mapping[str, TensorDesc]:
        """The output must be given: the numbers of parts are free."""
        return {}

    def check(self) -> None:
        """A part of the result for each region and channel."""
        self.require_same("data_type", "output_tensor", "input_tensor")
        self.check_regions("input_tensor")
        given, wanted = self.output_tensor.sizes[:2], (self.regions, self.input_tensor.sizes[1])
        self.require(given == wanted, "output_tensor.sizes[:2]", given, f"{wanted}, the regions and the channels")

    # -- The computation

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element: all samples of it that are inside of the image."""
        with T.function() as f:
            self.write(each, f.tensors(self))
        return f.result()

    def write(self, each: T.Each, tensors: dict[str, Any]) -> None:
        """The computation, on tensors that are declared."""
        source, result = self.ends()
        *_, height, width = source.sizes
        blocks = Channels.blocks(source.sizes[1], self.channels)
        with T.elements(each, (result.sizes[0], blocks, *result.sizes[2:]), result.layout) as (r, block, oy, ox):
            own = region(self, tensors, r, height, width)
            channels = Channels(block, source.sizes[1], self.channels)
            outside = T.hold(T.like(T.const(0, self.computed), self.out_of_bounds_input_value))
            found = T.Variable.several(self.computed, [outside] * self.channels)
            with T.when(own.valid > T.const(0, "int32")):
                bases = channels.offsets(own.image * source.layout[0], source.layout[1])
                self._samples(own, oy, ox, tensors["input_tensor"], bases, outside, found)
            for i, value in enumerate(found):
                with channels.existing(i) as channel:
                    place = T.dot([r, channel, oy, ox], result.layout)
                    T.store(tensors["output_tensor"], place, T.to(value.value, result.data_type.tvm))

    def _samples(self, own: Region, oy: Any, ox: Any, buffer: Any, bases: list[Any], outside: Any, found: list[T.Variable]) -> None:
        """The average of the samples, or the largest, in each channel."""
        zero, like, linear = T.const(0, "int32"), outside, self.is_linear
        (y0, y1), (x0, x1) = own.y.inside(oy), own.x.inside(ox)
        count = T.hold(T.rounded(own.y.count * own.x.count))
        seen = T.hold(T.rounded(T.cast(y1 - y0, self.computed) * T.cast(x1 - x0, self.computed)))
        missing = T.hold(T.cast(seen < count, "int32"))
        part = T.hold(T.like(like, 1) / count)
        first = T.Variable("int32", T.const(1, "int32"))
        if self.is_max:
            first.set(T.cast((y0 == zero) & (x0 == zero) & (seen > T.like(like, 0)), "int32"))
        else:
            for total in found:
                total.set(T.like(like, 0))
        with T.loop(T.let(y1 - y0), most=own.y.most) as i:
            rows = own.y.taps(own.y.at(oy, y0 + i), linear)
            with T.loop(T.let(x1 - x0), most=own.x.most) as k:
                corners = Corners(rows, own.x.taps(own.x.at(ox, x0 + k), linear), self.input_tensor.layout[2:], linear)
                for base, total in zip(bases, found, strict=True):
                    value = corners.mixed(functools.partial(_element, buffer, base))
                    if self.is_max:
                        best = total.value
                        better = (first.value > zero) | (value > best) | T.is_nan(value)
                        total.set(T.Select(better, value, best))
                    else:
                        total.set(total.value + T.rounded(value * part))
                if self.is_max:
                    first.set(zero)
        with T.when(missing > zero):
            rest = T.hold(T.rounded(T.hold(T.rounded((count - seen) * part)) * outside))
            for total in found:
                if self.is_max:
                    total.set(T.Select((outside > total.value) | T.is_nan(outside), outside, total.value))
                else:
                    total.set(total.value + rest)

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy, in higher precision, with coordinates in the region's type."""
        x, roi, batch = inputs
        assert x is not None
        assert roi is not None
        assert batch is not None
        return (aligned(self, x, roi, batch),)

"""The base of ROI_ALIGN and ROI_ALIGN1: the contract, and the computation, one sample after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import Array, Shared
from tvmdml.operators._roi_align import Region, RoiOperator, region, sampled
from tvmdml.operators._roi_align_reference import aligned
from tvmdml.tensors import TensorDesc

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.operators._contract import Float, Input, Output


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

    def computation(self, each: T.Each, shared: Shared = ()) -> PrimFunc:
        """One item for each element: all samples of it that are inside of the image."""
        source, result = self.ends()
        with T.function() as f:
            tensors = f.tensors(self)
            *_, height, width = source.sizes
            with T.elements(each, result.sizes) as at:
                r, c, oy, ox = at
                own = region(self, tensors, r, height, width)
                found = T.Variable(self.computed, T.const(0, self.computed))
                outside = T.hold(T.like(T.const(0, self.computed), self.out_of_bounds_input_value))

                def element(y: Any, x: Any) -> Any:
                    place = [own.image, c, T.cast(y, T.type_of(c)), T.cast(x, T.type_of(c))]
                    return T.hold(T.wide(tensors["input_tensor"][T.dot(place, source.layout)]))

                found.set(outside)
                with T.when(own.valid > T.const(0, "int32")):
                    self._samples(own, oy, ox, element, outside, found)
                T.store(tensors["output_tensor"], T.dot(at, result.layout), T.to(found.value, result.data_type.tvm))
        return f.result()

    def _samples(self, own: Region, oy: Any, ox: Any, element: Any, outside: Any, found: T.Variable) -> None:
        """The average of the samples, or the largest."""
        zero, like = T.const(0, "int32"), outside
        (y0, y1), (x0, x1) = own.y.inside(oy), own.x.inside(ox)
        count = T.hold(T.rounded(own.y.count * own.x.count))
        seen = T.hold(T.rounded(T.cast(y1 - y0, self.computed) * T.cast(x1 - x0, self.computed)))
        missing = T.hold(T.cast(seen < count, "int32"))
        part = T.hold(T.like(like, 1) / count)
        first = T.Variable("int32", T.const(1, "int32"))
        if self.is_max:
            first.set(T.cast((y0 == zero) & (x0 == zero) & (seen > T.like(like, 0)), "int32"))
        else:
            found.set(T.like(like, 0))
        with T.loop(T.let(y1 - y0), most=own.y.most) as i:
            y = own.y.at(oy, y0 + i)
            with T.loop(T.let(x1 - x0), most=own.x.most) as k:
                value = sampled((own.y, own.x), y, own.x.at(ox, x0 + k), self.is_linear, element)
                if self.is_max:
                    best = found.value
                    better = (first.value > zero) | (value > best) | T.is_nan(value)
                    found.set(T.Select(better, value, best))
                    first.set(zero)
                else:
                    found.set(found.value + T.rounded(value * part))
        with T.when(missing > zero):
            if self.is_max:
                found.set(T.Select((outside > found.value) | T.is_nan(outside), outside, found.value))
            else:
                found.set(found.value + T.rounded(T.hold(T.rounded((count - seen) * part)) * outside))

    def reference(self, *inputs: Array | None) -> tuple[Expected, ...]:
        """The operator in NumPy, in higher precision, with coordinates in the region's type."""
        x, roi, batch = inputs
        assert x is not None
        assert roi is not None
        assert batch is not None
        return (aligned(self, x, roi, batch),)

"""DML_OPERATOR_ROI_ALIGN and ROI_ALIGN1: regions of images, resampled to one size; and the gradients of that."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tvmdml.enums import InterpolationMode, ReduceFunction
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.loops import nested
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import Bool, Float, Input, NumpyArray, OptionalInput, OptionalOutput, Output, Shared, Uint
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._roi_align import RoiOperator
from tvmdml.operators._roi_align_forward import Aligned
from tvmdml.operators._roi_align_gradient import of_images, of_regions
from tvmdml.operators._roi_align_reference import gradients
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDesc

_MOST = (1 << 32) - 1


class RoiAlign(Aligned):
    """Regions of images, resampled to one size (``DML_ROI_ALIGN_OPERATOR_DESC``): ROI_ALIGN1 with centres in the middles."""

    SUPPORT = support("3.0 F r4 · ext +D", roi_tensor="3.0 F r2-4 · ext +D", batch_indices_tensor="3.0 u r1-4 · 5.0 +W · ext +iL")

    input_tensor: Input
    roi_tensor: Input
    batch_indices_tensor: Input
    output_tensor: Output
    reduction_function: ReduceFunction
    interpolation_mode: InterpolationMode
    spatial_scale_x: Float
    spatial_scale_y: Float
    out_of_bounds_input_value: Float
    minimum_samples_per_output: Uint
    maximum_samples_per_output: Uint


class RoiAlign1(Aligned):
    """Regions of images, resampled to one size (``DML_ROI_ALIGN1_OPERATOR_DESC``).

    A region is divided into parts of equal size. A part's result is the average of samples in it, or the largest of them. A sample
    at most one element beyond the edge has the element at the edge, and one farther away is ``out_of_bounds_input_value``. A region
    of an image that does not exist, or with a number that is not finite, has only such samples.

    Args:
        input_tensor: images, with channels: float16, float32 or float64; 4 dimensions.
        roi_tensor: the regions: x1, y1, x2 and y2 of each. A region may be turned, or empty.
        batch_indices_tensor: for each region the number of its image.
        reduction_function: ``"average"`` or ``"max"``.
        spatial_scale_x: what x1 and x2 are multiplied by.
        spatial_scale_y: what y1 and y2 are multiplied by.
        input_pixel_offset: 0.5 if an element's centre is in its middle, 0 if it is at its corner.
        output_pixel_offset: -0.5 if a sample is in the middle of its place, 0 if it is at its corner; unused with corners aligned.
        minimum_samples_per_output: the least number of samples in each direction: 1 to 65536.
        maximum_samples_per_output: the most samples in each direction. Within both there is one for each element of the image.
        align_regions_to_corners: whether the first and the last sample are at the corners of a region.
        output_height: the number of parts of a region from top to bottom.
        output_width: the number of parts of a region from left to right.
    """

    FUNCTION = "roi_align"
    SUPPORT = support("4.0 F r4 · ext +D", roi_tensor="4.0 F r2-4 · ext +D", batch_indices_tensor="4.0 u r1-4 · 5.0 +W · ext +iL")
    ARGUMENTS = MappingProxyType({"output_height": Uint, "output_width": Uint})
    ONNX = ("RoiAlign",)

    input_tensor: Input
    roi_tensor: Input
    batch_indices_tensor: Input
    output_tensor: Output
    reduction_function: ReduceFunction
    interpolation_mode: InterpolationMode
    spatial_scale_x: Float
    spatial_scale_y: Float
    input_pixel_offset: Float
    output_pixel_offset: Float
    out_of_bounds_input_value: Float
    minimum_samples_per_output: Uint
    maximum_samples_per_output: Uint
    align_regions_to_corners: Bool

    @classmethod
    def of_call(cls, *inputs: Any, **given: Any) -> RoiAlign1:
        """With the sizes of the result."""
        x, roi, batch = inputs
        height, width = given.pop("output_height"), given.pop("output_width")
        regions = roi.sizes[-2] if roi.rank > 1 else 1
        channels = x.sizes[1] if x.rank > 1 else 1
        return cls.of(x, roi, batch, output_tensor=x.with_sizes((regions, channels, height, width)), **given)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> RoiAlign1:
        """The average of samples; ONNX's maximum is that of the weighed elements, which DirectML has not."""
        given = node.attributes
        text = {name: value.decode() if isinstance(value, bytes) else value for name, value in given.items()}
        if text.get("mode", "avg") != "avg":
            raise NotConvertible(
                f"its mode is {text['mode']}, which is the largest of the weighed elements, and not the largest sample"
            )
        half = text.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
        count, scale = node.integer("sampling_ratio", 0), float(given.get("spatial_scale", 1.0))
        return cls.of_call(
            node.tensor(), node.tensor(1), node.tensor(2),
            reduction_function=ReduceFunction.AVERAGE,
            interpolation_mode=InterpolationMode.LINEAR,
            spatial_scale_x=scale, spatial_scale_y=scale,
            input_pixel_offset=0.5 if half else 0.0, output_pixel_offset=-0.5,
            out_of_bounds_input_value=0.0,
            minimum_samples_per_output=count or 1, maximum_samples_per_output=count or _MOST,
            align_regions_to_corners=False,
            output_height=node.integer("output_height", 1), output_width=node.integer("output_width", 1),
        )  # fmt: skip


class RoiAlignGrad(RoiOperator):
    """The gradients of ROI_ALIGN1: of its images, and of its regions (``DML_ROI_ALIGN_GRAD_OPERATOR_DESC``).

    Samples beyond the image are constant, and none of them is the largest. Of equal ones the first is the largest, row by row.
    """

    SUPPORT = support(
        "4.1 F r4 · ext +D",
        roi_tensor="4.1 F r2-4 · ext +D",
        batch_indices_tensor="4.1 u r1-4 · ext +iLW",
        output_roi_gradient_tensor="4.1 F r2-4 · ext +D",
    )

    input_tensor: OptionalInput = None
    input_gradient_tensor: Input
    roi_tensor: Input
    batch_indices_tensor: Input
    output_gradient_tensor: OptionalOutput = None
    output_roi_gradient_tensor: OptionalOutput = None
    reduction_function: ReduceFunction
    interpolation_mode: InterpolationMode
    spatial_scale_x: Float
    spatial_scale_y: Float
    input_pixel_offset: Float
    output_pixel_offset: Float
    minimum_samples_per_output: Uint
    maximum_samples_per_output: Uint
    align_regions_to_corners: Bool

    # -- The contract

    def ends(self) -> tuple[TensorDesc | None, TensorDesc]:
        return self.input_tensor or self.output_gradient_tensor, self.input_gradient_tensor

    def images(self) -> int:
        image, _ = self.ends()
        return image.sizes[0] if image is not None else 1

    def extent(self) -> int:
        image, _ = self.ends()
        return max(image.sizes[2:]) if image is not None else 1

    def infer(self) -> Mapping[str, TensorDesc]:
        """The gradient of the regions is like the regions; that of the images is like the images."""
        found = {"output_roi_gradient_tensor": self.roi_tensor.with_sizes(self.roi_tensor.sizes)}
        if self.input_tensor is not None:
            found["output_gradient_tensor"] = self.input_tensor.with_sizes(self.input_tensor.sizes)
        return found

    def check(self) -> None:
        """At least one result, and the images where they are needed."""
        names = ("output_gradient_tensor", "output_roi_gradient_tensor")
        present = [name for name in names if getattr(self, name) is not None]
        self.require(bool(present), names[0], "None", "a TensorDesc: at least one of both outputs")
        needed = self.is_max or names[1] in present
        why = "the largest samples, and gradients of regions, depend on the images"
        self.require(self.input_tensor is not None or not needed, "input_tensor", "None", f"a TensorDesc: {why}")
        for name in ("input_tensor", *names):
            if getattr(self, name) is not None:
                self.require_same("data_type", name, "input_gradient_tensor")
        self.check_regions("input_gradient_tensor")
        if self.input_tensor is not None and self.output_gradient_tensor is not None:
            self.require_same("sizes", "output_gradient_tensor", "input_tensor")
        if self.output_roi_gradient_tensor is not None:
            self.require_same("sizes", "output_roi_gradient_tensor", "roi_tensor")
        image, parts = self.ends()
        assert image is not None
        wanted = (self.regions, image.sizes[1])
        self.require(parts.sizes[:2] == wanted, "input_gradient_tensor.sizes[:2]", parts.sizes[:2], f"{wanted}")

    # -- The computation

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """One item for each element of an image, and one for each number of a region: everything that has a part in it."""
        with T.function() as f:
            self.write(each, f.tensors(self))
        return f.result()

    def write(self, each: T.Each, tensors: dict[str, Any]) -> None:
        """The computation, on tensors that are declared."""
        if self.output_gradient_tensor is not None:
            of_images(self, tensors, each)
        if self.output_roi_gradient_tensor is not None:
            of_regions(self, tensors, each, lambda sizes: nested([T.loop(T.index(size)) for size in sizes]))

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The operator in NumPy, in higher precision, with coordinates in the region's type."""
        x, gradient, roi, batch = inputs
        assert gradient is not None
        assert roi is not None
        assert batch is not None
        return gradients(self, x, gradient, roi, batch)

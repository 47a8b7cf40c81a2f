"""``tvmdml.roi_align_grad``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from tvmdml.doors._made import door, truth
from tvmdml.doors._renamed import ABSENT, REQUIRED, refuse
from tvmdml.enums import InterpolationMode, ReduceFunction
from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.operators.roi_align import RoiAlignGrad
from tvmdml.tensors import ArrayTensorDesc

__all__ = ["RoiAlignGradResult", "roi_align_grad"]


class RoiAlignGradResult(NamedTuple):
    """The results of ``roi_align_grad``."""

    output_gradient: AnyArray
    """The gradient of the images."""
    output_roi_gradient: AnyArray
    """The gradient of the regions."""


@door(
    RoiAlignGrad,
    ({"compute_output_roi_gradient": "Literal[False]", "out": "AnyArray | None"}, "AnyArray"),
    ({"compute_output_gradient": "Literal[False]", "out": "AnyArray | None"}, "AnyArray"),
    ({"out": "Sequence[AnyArray] | None"}, "RoiAlignGradResult"),
)
def roi_align_grad(
    input: AnyArray | None,  # noqa: A002
    input_gradient: AnyArray,
    roi: AnyArray,
    batch_indices: AnyArray,
    *,
    reduction_function: ReduceFunction | str,
    interpolation_mode: InterpolationMode | str = REQUIRED,
    spatial_scale_x: float,
    spatial_scale_y: float,
    input_pixel_offset: float,
    output_pixel_offset: float,
    minimum_samples_per_output: int,
    maximum_samples_per_output: int,
    align_regions_to_corners: bool,
    batch_size: int | None = None,
    image_height: int | None = None,
    image_width: int | None = None,
    compute_output_gradient: bool = True,
    compute_output_roi_gradient: bool = True,
    out: AnyArray | Sequence[AnyArray] | None = None,
    device: str | None = None,
    mode: object = ABSENT,
) -> AnyArray:
    """Find the gradients of ``roi_align``: of its images, and of its regions (DML_OPERATOR_ROI_ALIGN_GRAD).

    Samples beyond the image are constant, and none of them is the largest. Of equal ones the first is the largest, row by row. A
    region of an image that does not exist, or with a number that is not finite, contributes nothing.

    Args:
        input: the images: float16, float32 or float64; 4 dimensions. ``None`` if only the gradient of the images is asked for, and
            the reduction function is ``"average"``.
        input_gradient: the gradient of the result of ``roi_align``, of the same type.
        roi: the regions, of the same type: x1, y1, x2 and y2 of each; 2 to 4 dimensions.
        batch_indices: for each region the number of its image: uint32, uint64, int32 or int64.
        reduction_function: ``"average"`` or ``"max"``.
        interpolation_mode: ``"nearest_neighbor"`` or ``"linear"``. The nearest element does not depend on the region.
        spatial_scale_x: what x1 and x2 are multiplied by.
        spatial_scale_y: what y1 and y2 are multiplied by.
        input_pixel_offset: as in ``roi_align``.
        output_pixel_offset: as in ``roi_align``.
        minimum_samples_per_output: the least number of samples in each direction.
        maximum_samples_per_output: the most samples in each direction.
        align_regions_to_corners: whether the first and the last sample are at the corners of a region.
        batch_size: the number of images; needed without ``input``.
        image_height: the height of the images; needed without ``input``.
        image_width: the width of the images; needed without ``input``.
        compute_output_gradient: whether the gradient of the images is returned.
        compute_output_roi_gradient: whether the gradient of the regions is returned.
        out: arrays for the results; one array for a single result.

    Returns:
        ``(output_gradient, output_roi_gradient)``, or one of them alone: arrays of the kind of the inputs.
    """
    if mode is not ABSENT or interpolation_mode is REQUIRED:
        refuse("roi_align_grad", "interpolation_mode", "mode", mode)
    names = ("compute_output_gradient", "compute_output_roi_gradient")
    wanted = tuple(map(partial(truth, "roi_align_grad"), names, (compute_output_gradient, compute_output_roi_gradient)))
    attributes = (
        *(reduction_function, interpolation_mode, spatial_scale_x, spatial_scale_y, input_pixel_offset, output_pixel_offset),
        *(minimum_samples_per_output, maximum_samples_per_output, align_regions_to_corners),
    )
    sizes = (batch_size, image_height, image_width, *wanted)
    inputs = (input, input_gradient, roi, batch_indices)
    results = call(_describe, inputs, (*attributes, *sizes), out, device, optional=True)
    return RoiAlignGradResult(*results) if all(wanted) else results[0]


_ATTRIBUTES = [field.name for field in RoiAlignGrad.fields() if not field.name.endswith("_tensor")]


@describes("tvmdml.roi_align_grad", "input", "input_gradient", "roi", "batch_indices")
def _describe(
    input: ArrayTensorDesc | None,  # noqa: A002
    input_gradient: ArrayTensorDesc,
    roi: ArrayTensorDesc,
    batch_indices: ArrayTensorDesc,
    *given: Any,
) -> Described:
    attributes = dict(zip(_ATTRIBUTES, given, strict=False))
    *sizes, of_images, of_regions = given[len(_ATTRIBUTES) :]
    results: dict[str, Any] = {}
    if of_images:
        own = (None, None, None, None) if input is None or input.rank != 4 else input.sizes
        names = ("batch_size", "image_height", "image_width")
        n, h, w = (_size(*one) for one in zip(names, sizes, (own[0], own[2], own[3]), strict=True))
        channels = input_gradient.sizes[1] if input_gradient.rank > 1 else 1
        results["output_gradient_tensor"] = input_gradient.with_sizes((n, channels if own[1] is None else own[1], h, w))
    if of_regions:
        results["output_roi_gradient_tensor"] = roi.with_sizes(roi.sizes)
    return Described(RoiAlignGrad.of(input, input_gradient, roi, batch_indices, **results, **attributes))


def _size(name: str, given: Any, own: int | None) -> Any:
    """A size that is given, that of the images, or both."""
    if given is None and own is None:
        raise InvalidArgument(message(RoiAlignGrad.where(name), "None", "a size: there is no input that has it"))
    if own is not None and given is not None and given != own:
        raise InvalidArgument(message(RoiAlignGrad.where(name), safe_repr(given), f"{own}, as in input", "Leave it out."))
    return own if given is None else given

"""``tvmdml.resample`` and ``tvmdml.resample_grad``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmdml.doors._made import as_tuple, described, door
from tvmdml.doors._renamed import ABSENT, REQUIRED, refuse
from tvmdml.doors._sizes import hashable
from tvmdml.enums import AxisDirection, InterpolationMode
from tvmdml.errors import InvalidArgument, message
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.operators.resample import Resample3, ResampleGrad1
from tvmdml.operators.resample import ResampleGrad as _ResampleGrad
from tvmdml.tensors import ArrayTensorDesc

__all__ = ["resample", "resample_grad"]


@door(Resample3)
def resample(
    input: AnyArray,  # noqa: A002
    output_sizes: Sequence[int],
    *,
    interpolation_mode: InterpolationMode | str = REQUIRED,
    rounding_direction: AxisDirection | str = AxisDirection.INCREASING,
    scales: Sequence[float] | None = None,
    input_pixel_offsets: Sequence[float] | None = None,
    output_pixel_offsets: Sequence[float] | None = None,
    antialiased: bool = False,
    out: AnyArray | None = None,
    device: str | None = None,
    mode: object = ABSENT,
) -> AnyArray:
    """Enlarge or reduce a tensor: ``output = (input + input_pixel_offset) * scale + output_pixel_offset`` (DML_OPERATOR_RESAMPLE3).

    Places beyond the edge have the element at the edge. A scale that is the rounded quotient of the sizes means the exact one.

    The nearest element is the one after a place, unless it is an element: with the default offsets, enlarging shifts the image by
    half an element, as in DirectMLX. With ``input_pixel_offsets`` of 0 and ``rounding_direction="decreasing"`` it does not.

    Args:
        input: float16, float32, float64, int8, uint8; a shape of up to 8 dimensions, 4 of which may change.
        output_sizes: the sizes of the result, as many as the input has.
        interpolation_mode: ``"nearest_neighbor"`` copies elements; ``"linear"`` weighs neighbours. Integers are then cut toward
            zero.
        rounding_direction: ``"increasing"`` or ``"decreasing"``: the nearest element is that after a place, or that before it.
        scales: a number for each dimension; by default the quotients of the sizes.
        input_pixel_offsets: a number for each dimension; by default 0.5.
        output_pixel_offsets: a number for each dimension; by default -0.5.
        antialiased: whether a dimension that is reduced to less than half has all elements in it, with weights; linear only.
        out: an array for the result.
        device: where to run, such as ``"cpu"``, ``"cuda:0"`` or ``"vulkan:0"``; by default the device of the input.
    """
    if mode is not ABSENT or interpolation_mode is REQUIRED:
        refuse("resample", "interpolation_mode", "mode", mode)
    sizes = hashable(output_sizes, "tvmdml.resample: output_sizes")
    numbers = map(as_tuple, (scales, input_pixel_offsets, output_pixel_offsets))
    attributes = (sizes, interpolation_mode, rounding_direction, *numbers, antialiased)
    return call(_describe, (input,), attributes, out, device)[0]


@door(ResampleGrad1)
def resample_grad(
    input: AnyArray,  # noqa: A002
    output_sizes: Sequence[int],
    *,
    interpolation_mode: InterpolationMode | str = REQUIRED,
    rounding_direction: AxisDirection | str | None = None,
    scales: Sequence[float] | None = None,
    input_pixel_offsets: Sequence[float] | None = None,
    output_pixel_offsets: Sequence[float] | None = None,
    out: AnyArray | None = None,
    device: str | None = None,
    mode: object = ABSENT,
) -> AnyArray:
    """The gradient of ``resample`` (DML_OPERATOR_RESAMPLE_GRAD, RESAMPLE_GRAD1): what each element contributed to the result.

    Args:
        input: the gradient of the result: float16, float32, float64; a shape of up to 8 dimensions.
        output_sizes: the sizes of the tensor that was resampled, as many as the gradient has.
        interpolation_mode: ``"nearest_neighbor"`` or ``"linear"``.
        rounding_direction: ``"increasing"`` or ``"decreasing"``, as in ``resample``. By default it is the nearest of two elements,
            and of two equally near ones the one after.
        scales: a number for each dimension; by default the quotients of the sizes.
        input_pixel_offsets: a number for each dimension; by default 0.5.
        output_pixel_offsets: a number for each dimension; by default -0.5.
        out: an array for the result.
        device: where to run, such as ``"cpu"``, ``"cuda:0"`` or ``"vulkan:0"``; by default the device of the input.
    """
    if mode is not ABSENT or interpolation_mode is REQUIRED:
        refuse("resample_grad", "interpolation_mode", "mode", mode)
    sizes = hashable(output_sizes, "tvmdml.resample_grad: output_sizes")
    numbers = map(as_tuple, (scales, input_pixel_offsets, output_pixel_offsets))
    return call(_describe_gradient, (input,), (sizes, interpolation_mode, rounding_direction, *numbers), out, device)[0]


@describes("tvmdml.resample")
def _describe(input: ArrayTensorDesc, *given: Any) -> Described:  # noqa: A002
    sizes, mode, direction, scales, before, after, antialiased = given
    numbers = _defaults(Resample3, input.sizes, sizes, (scales, before, after))
    output = input.with_sizes(sizes)
    modes = {"interpolation_mode": mode, "rounding_direction": direction, "antialiased": antialiased}
    return described(Resample3.of(input, output_tensor=output, **modes, **numbers), (input,))


@describes("tvmdml.resample_grad")
def _describe_gradient(input: ArrayTensorDesc, *given: Any) -> Described:  # noqa: A002
    sizes, mode, direction, scales, before, after = given
    numbers = _defaults(ResampleGrad1, sizes, input.sizes, (scales, before, after))
    output = input.with_sizes(sizes)
    if direction is None:
        desc: Any = _ResampleGrad.of(input, output_gradient_tensor=output, interpolation_mode=mode, **numbers)
    else:
        modes = {"interpolation_mode": mode, "rounding_direction": direction}
        desc = ResampleGrad1.of(input, output_gradient_tensor=output, **modes, **numbers)
    return described(desc, (input,))


def _defaults(cls: Any, elements: Any, places: Any, given: tuple[Any, Any, Any]) -> dict[str, Any]:
    """The numbers that were not given: quotients of the sizes, and middles of elements."""
    if len(elements) != len(places):
        where = cls.where("output_sizes")
        raise InvalidArgument(message(where, f"{len(places)} sizes", f"{len(elements)}, as many as the input has"))
    scales, before, after = given
    return {
        "scales": tuple(m / n if m and n else 1.0 for n, m in zip(elements, places, strict=True)) if scales is None else scales,
        "input_pixel_offsets": (0.5,) * len(elements) if before is None else before,
        "output_pixel_offsets": (-0.5,) * len(elements) if after is None else after,
    }

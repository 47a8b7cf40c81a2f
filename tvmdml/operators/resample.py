"""DML_OPERATOR_RESAMPLE, RESAMPLE1, RESAMPLE2 and RESAMPLE3: tensors enlarged or reduced; and the gradients of that."""

from __future__ import annotations

from tvmdml.enums import AxisDirection, InterpolationMode
from tvmdml.operators._contract import Bool, Floats, Input, Output
from tvmdml.operators._gradients import gradients
from tvmdml.operators._onnx import NotConvertible, OnnxNode
from tvmdml.operators._resampling import Resampled, ResampledGradient
from tvmdml.operators._resampling_onnx import resize
from tvmdml.operators._support import support


class Resample(Resampled):
    """A tensor enlarged or reduced (``DML_RESAMPLE_OPERATOR_DESC``): elements have their centres in their middles.

    A place of the result is that place divided by the scale in the input; places beyond the edge have the element at the edge. A
    scale that is the quotient of the sizes, rounded, means the exact quotient. The nearest of two elements is the one after.
    """

    SUPPORT = support("2.0 F r4 · 5.1 r1-4 · 6.2 +bytes · ext +D r8")

    input_tensor: Input
    output_tensor: Output
    interpolation_mode: InterpolationMode
    scales: Floats


class Resample1(Resampled):
    """A tensor enlarged or reduced (``DML_RESAMPLE1_OPERATOR_DESC``): ``output = (input + before) * scale + after``.

    ``before`` and ``after`` are the pixel offsets. The nearest of two elements is the one after.
    """

    SUPPORT = support("2.1 F r4 · 5.1 r1-4 · 6.2 +bytes · ext +D r8")

    input_tensor: Input
    output_tensor: Output
    interpolation_mode: InterpolationMode
    scales: Floats
    input_pixel_offsets: Floats
    output_pixel_offsets: Floats


class Resample2(Resampled):
    """A tensor enlarged or reduced (``DML_RESAMPLE2_OPERATOR_DESC``): ``output = (input + before) * scale + after``.

    ``before`` and ``after`` are the pixel offsets. The nearest element is the one after a place, or the one before it.
    """

    SUPPORT = support("5.1 F r1-4 · 6.2 +bytes · ext +D r8")

    input_tensor: Input
    output_tensor: Output
    interpolation_mode: InterpolationMode
    rounding_direction: AxisDirection
    scales: Floats
    input_pixel_offsets: Floats
    output_pixel_offsets: Floats


class Resample3(Resampled):
    """A tensor enlarged or reduced (``DML_RESAMPLE3_OPERATOR_DESC``): ``output = (input + before) * scale + after``.

    ``before`` and ``after`` are the pixel offsets. The nearest element is the one after a place, or the one before it. If the
    result is antialiased, a dimension that is reduced to less than half has all elements in it, with weights.
    """

    SUPPORT = support("6.4 F +bytes r1-4 · ext +D r8")
    ONNX = ("Resize", "Upsample")
    GRADIENT = gradients(
        input="undefined('antialiased=True') if antialiased else resample_grad("
        "gradient, input_sizes, interpolation_mode=interpolation_mode, rounding_direction=rounding_direction, scales=scales, "
        "input_pixel_offsets=input_pixel_offsets, output_pixel_offsets=output_pixel_offsets)"
    )

    input_tensor: Input
    output_tensor: Output
    interpolation_mode: InterpolationMode
    rounding_direction: AxisDirection
    scales: Floats
    input_pixel_offsets: Floats
    output_pixel_offsets: Floats
    antialiased: Bool

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Resample3:
        """Offsets that say the same as the node's modes."""
        found = resize(node)
        desc = cls.of(found.tensor, output_tensor=found.tensor.with_sizes(found.sizes), **found.attributes)
        if desc.antialiased and any(1 / rule.scale > 1 and not rule.acts for rule in desc.rules()):
            raise NotConvertible("it is antialiased where a dimension is reduced by less than a half")
        return desc


class ResampleGrad(ResampledGradient):
    """The gradient of RESAMPLE1 (``DML_RESAMPLE_GRAD_OPERATOR_DESC``)."""

    SUPPORT = support("3.0 F r4 · 5.1 r1-4 · ext +D r8")

    input_gradient_tensor: Input
    output_gradient_tensor: Output
    interpolation_mode: InterpolationMode
    scales: Floats
    input_pixel_offsets: Floats
    output_pixel_offsets: Floats


class ResampleGrad1(ResampledGradient):
    """The gradient of RESAMPLE2 (``DML_RESAMPLE_GRAD1_OPERATOR_DESC``)."""

    SUPPORT = support("5.1 F r1-4 · ext +D r8")
    GRADIENT = gradients(
        input="undefined('rounding_direction=None') if rounding_direction is None else resample("
        "gradient, input_sizes, interpolation_mode=interpolation_mode, rounding_direction=rounding_direction, scales=scales, "
        "input_pixel_offsets=input_pixel_offsets, output_pixel_offsets=output_pixel_offsets)"
    )

    input_gradient_tensor: Input
    output_gradient_tensor: Output
    interpolation_mode: InterpolationMode
    rounding_direction: AxisDirection
    scales: Floats
    input_pixel_offsets: Floats
    output_pixel_offsets: Floats

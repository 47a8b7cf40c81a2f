"""The table of functions: a row names functions that have the same parameters.

Each is tvmdml's function of the same name, unless the row says otherwise, with expressions for arrays. What a parameter takes is
said by its annotation, which ``functions.py`` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tvmdml.directml import expressions, results
from tvmdml.directml.errors import Refused
from tvmdml.directml.expressions import Expression, check_pair
from tvmdml.directml.tensors import numpy_type

Arguments = dict[str, Any]


class FunctionRow(NamedTuple):
    """Functions that have the same parameters."""

    names: str
    parameters: str
    renamed: Mapping[str, str] = {}
    """Keywords of tvmdml's function that have other names there."""
    fixed: Mapping[str, Any] = {}
    """More keywords for tvmdml's function."""
    before: Callable[[str, Arguments], None] | None = None
    """Checks or changes the converted arguments; it gets the function's name, too."""
    after: Callable[[Any, Arguments], Any] | None = None
    """Makes the result of the expressions that tvmdml's function gave, and of the arguments."""


# -- Steps before and after


def _agree(name: str, given: Arguments) -> None:
    one, other = given["a"], given["b"]
    symbol = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}.get(name)
    check_pair(f"{one!r} {symbol} {other!r}" if symbol else f"{name}({one!r}, {other!r})", one, other)


def _agree_with_condition(name: str, given: Arguments) -> None:
    condition, one, other = given["condition"], given["a"], given["b"]
    where = f"{name}({condition!r}, {one!r}, {other!r})"
    check_pair(where, one, other)
    if condition.shape != one.shape:
        raise ValueError(f"{where}: shapes differ, the condition's from the others'; dml.broadcast() views it in their shape")


def _agree_if_tensors(name: str, given: Arguments) -> None:
    if isinstance(given["exponent"], Expression):
        check_pair(f"{name}({given['input']!r}, {given['exponent']!r})", given["input"], given["exponent"])


def _four_dimensions(name: str, given: Arguments) -> None:
    for one in ("a", "b", "c"):
        if given[one] is not None and len(given[one].shape) != 4:
            raise Refused(f"{name}: {one} is {given[one]!r}; allowed: four dimensions. E_INVALIDARG (0x80070057)")


def _numbers(*names: str) -> Callable[[str, Arguments], None]:
    """The values of a fill must be of its type."""

    def check(name: str, given: Arguments) -> None:
        kind = numpy_type(given.get("dtype") or np.float32)
        given["dtype"], given["sizes"] = kind.name, given["sizes"] or [1]
        for one in names:
            try:
                given[one] = np.array(given[one], kind).item()
            except (OverflowError, TypeError, ValueError) as error:
                raise ValueError(f"{name}(): {one}={given[one]!r} is not a {kind.name}: {error}") from None

    return check


def _batch_second(name: str, given: Arguments) -> None:
    """Move the batch to where the operator has it: a view, as one of the two sizes is 1."""
    for one in ("query", "key", "value"):
        tensor = given[one]
        if len(tensor.shape) == 4 and tensor.shape[0] != 1:
            batch, middle, *rest = tensor.shape
            given[one] = expressions.reinterpret(tensor, [middle, batch, *rest])


def _batch_first(found: Any, given: Arguments) -> Expression:
    if len(found.shape) == 4 and found.shape[1] != 1:
        middle, batch, *rest = found.shape
        return expressions.reinterpret(found, [batch, middle, *rest])
    return found


def _filled(kind: Any) -> Callable[[Any, Arguments], Any]:
    """A named tuple of the results, with ``None`` for those that are absent."""

    def result(found: Any, given: Arguments) -> Any:
        several = found if isinstance(found, tuple) else (found,)
        return kind(*several, *(None,) * (len(kind._fields) - len(several)))

    return result


def _gru(found: Any, given: Arguments) -> results.GRUOutputs:
    if given["output_options"] == "single":
        return results.GRUOutputs(None, found)
    return results.GRUOutputs(*found) if isinstance(found, tuple) else results.GRUOutputs(found, None)


def _roi_align_grad(found: Any, given: Arguments) -> results.RoiAlignGradOutputs:
    if isinstance(found, tuple):
        return results.RoiAlignGradOutputs(*found)
    return (
        results.RoiAlignGradOutputs(found, None) if given["compute_output_gradient"] else results.RoiAlignGradOutputs(None, found)
    )


# -- The table

_PADDINGS = "start_padding: Sequence[int] = (), end_padding: Sequence[int] = (), "
_WINDOWS = f"strides: Sequence[int] = (), dilations: Sequence[int] = (), {_PADDINGS}"
_GRADIENT = "input: Expression, input_gradient: Expression, mean: Expression, variance: Expression, scale: Expression, "
_ROI = (
    "reduction_function: ReduceFunction, interpolation_mode: InterpolationMode, spatial_scale_x: float, spatial_scale_y: float, "
    "input_pixel_offset: float, output_pixel_offset: float, "
)
_SAMPLES = "minimum_samples_per_output: int, maximum_samples_per_output: int, align_regions_to_corners: bool, "
_WINDOW = "input_window_offsets: Sequence[int], input_window_sizes: Sequence[int], input_window_strides: Sequence[int]"
_OFFSETS = "scales: Sequence[float] = (), input_pixel_offsets: Sequence[float] = (), output_pixel_offsets: Sequence[float] = ()"
_FUSED = "fused_activation: FusedActivation | None = None"
_PAIR = "a: Expression, b: Expression"
_PREDICATE = "output_dtype: DtypeLike = TensorDataType.UINT8"
_INPUT = "input: Expression"

TABLE = (
    FunctionRow(
        "identity abs acos asin atan ceil cos exp floor log recip sin sqrt tan erf sinh cosh tanh asinh acosh atanh",
        f"{_INPUT}, *, scale_bias: ScaleBias | None = None",
    ),
    FunctionRow("sign negate logical_not bit_not", _INPUT),
    FunctionRow("clip", f"{_INPUT}, *, min: float, max: float, scale_bias: ScaleBias | None = None"),
    FunctionRow("threshold", f"{_INPUT}, *, min: float, scale_bias: ScaleBias | None = None"),
    FunctionRow("round", f"{_INPUT}, *, rounding_mode: RoundingMode = RoundingMode.HALVES_TO_NEAREST_EVEN"),
    FunctionRow("is_nan bit_count", f"{_INPUT}, *, {_PREDICATE}"),
    FunctionRow("is_infinity", f"{_INPUT}, *, infinity_mode: IsInfinityMode = IsInfinityMode.EITHER, {_PREDICATE}"),
    FunctionRow("cast", f"{_INPUT}, *, dtype: DtypeLike"),
    FunctionRow(
        "subtract multiply divide max min mean atan_yx difference_square logical_and logical_or logical_xor bit_and bit_or bit_xor "
        "bit_shift_left bit_shift_right modulus_truncate modulus_floor",
        _PAIR,
        before=_agree,
    ),
    FunctionRow("add", f"{_PAIR}, *, {_FUSED}", before=_agree),
    FunctionRow(
        "equals greater_than greater_than_or_equal less_than less_than_or_equal",
        f"{_PAIR}, *, {_PREDICATE}",
        before=_agree,
    ),
    FunctionRow(
        "pow",
        f"{_INPUT}, exponent: Expression | float, *, scale_bias: ScaleBias | None = None",
        before=_agree_if_tensors,
    ),
    FunctionRow("where", f"condition: Expression, {_PAIR}", before=_agree_with_condition),
    FunctionRow(
        "activation_relu activation_sigmoid activation_identity activation_tanh activation_gelu activation_hardmax "
        "activation_log_softmax activation_softsign",
        _INPUT,
    ),
    FunctionRow("activation_linear activation_parametric_softplus", f"{_INPUT}, *, alpha: float, beta: float"),
    FunctionRow("activation_softmax", f"{_INPUT}, *, axes: Sequence[int] = ()"),
    FunctionRow("activation_elu activation_celu activation_thresholded_relu", f"{_INPUT}, *, alpha: float = 1.0"),
    FunctionRow("activation_leaky_relu", f"{_INPUT}, *, alpha: float = 0.01"),
    FunctionRow("activation_hard_sigmoid", f"{_INPUT}, *, alpha: float = 0.2, beta: float = 0.5"),
    FunctionRow("activation_scaled_tanh", f"{_INPUT}, *, alpha: float = 1.0, beta: float = 0.5"),
    FunctionRow(
        "activation_scaled_elu",
        f"{_INPUT}, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875",
    ),
    FunctionRow("activation_shrink", f"{_INPUT}, *, bias: float = 0.0, threshold: float = 0.5"),
    FunctionRow("activation_softplus", f"{_INPUT}, *, steepness: float = 1.0"),
    FunctionRow("activation_parameterized_relu", f"{_INPUT}, slope: Expression"),
    FunctionRow("split", f"{_INPUT}, *, axis: int, output_axis_sizes: Sequence[int]", after=lambda found, given: list(found)),
    FunctionRow("tile", f"{_INPUT}, *, repeats: Sequence[int]"),
    FunctionRow("join", "inputs: Sequence[Expression], *, axis: int"),
    FunctionRow("one_hot", "indices: Expression, values: Expression, *, output_length: int, axis: int"),
    FunctionRow(
        "top_k",
        f"{_INPUT}, *, axis: int, k: int, axis_direction: AxisDirection = AxisDirection.DECREASING",
        after=_filled(results.TopKOutputs),
    ),
    FunctionRow("gather", f"{_INPUT}, indices: Expression, *, axis: int, index_dimensions: int"),
    FunctionRow("gather_elements", f"{_INPUT}, indices: Expression, *, axis: int"),
    FunctionRow(
        "gather_nd",
        f"{_INPUT}, indices: Expression, *, input_dimension_count: int, indices_dimension_count: int, "
        "batch_dimension_count: int = 0",
    ),
    FunctionRow("scatter_elements", f"{_INPUT}, indices: Expression, updates: Expression, *, axis: int"),
    FunctionRow(
        "scatter_nd",
        f"{_INPUT}, indices: Expression, updates: Expression, *, input_dimension_count: int, indices_dimension_count: int",
    ),
    FunctionRow(
        "space_to_depth depth_to_space",
        f"{_INPUT}, *, block_size: int, order: DepthSpaceOrder = DepthSpaceOrder.DEPTH_COLUMN_ROW",
    ),
    FunctionRow("reverse_subsequences", f"{_INPUT}, sequence_lengths: Expression, *, axis: int"),
    FunctionRow(
        "resample",
        f"{_INPUT}, *, output_sizes: Sequence[int], mode: InterpolationMode, "
        f"rounding_direction: AxisDirection = AxisDirection.INCREASING, {_OFFSETS}, antialiased: bool = False",
        renamed={"mode": "interpolation_mode"},
    ),
    FunctionRow(
        "resample_grad",
        f"input_gradient: Expression, *, output_sizes: Sequence[int], mode: InterpolationMode, {_OFFSETS}",
        renamed={"input_gradient": "input", "mode": "interpolation_mode"},
        fixed={"rounding_direction": "increasing"},  # the gradient of what `resample` does by default
    ),
    FunctionRow("slice", f"{_INPUT}, *, {_WINDOW}"),
    FunctionRow(
        "slice_grad",
        f"input_gradient: Expression, *, output_gradient_sizes: Sequence[int], {_WINDOW}",
        renamed={"input_gradient": "input"},
    ),
    FunctionRow(
        "padding",
        f"{_INPUT}, *, padding_mode: PaddingMode = PaddingMode.CONSTANT, padding_value: float = 0.0, "
        "start_padding: Sequence[int], end_padding: Sequence[int]",
    ),
    FunctionRow("value_scale_2d", f"{_INPUT}, *, scale: float, bias: Sequence[float]"),
    FunctionRow("upsample_2d", f"{_INPUT}, *, scale_size: Sequence[int], interpolation_mode: InterpolationMode"),
    FunctionRow(
        "fill_value_constant",
        "graph: Graph, *, sizes: Sequence[int], value: Any, dtype: DtypeLike | None = None",
        before=_numbers("value"),
    ),
    FunctionRow(
        "fill_value_sequence",
        "graph: Graph, *, sizes: Sequence[int], value_start: Any, value_delta: Any, dtype: DtypeLike | None = None",
        before=_numbers("value_start", "value_delta"),
    ),
    FunctionRow(
        "reduce",
        f"{_INPUT}, *, function: ReduceFunction, axes: Sequence[int] = (), output_dtype: DtypeLike | None = None",
    ),
    FunctionRow(
        "cumulative_summation",
        f"{_INPUT}, *, axis: int, axis_direction: AxisDirection = AxisDirection.INCREASING, has_exclusive_sum: bool = False",
    ),
    FunctionRow(
        "cumulative_product",
        f"{_INPUT}, *, axis: int, axis_direction: AxisDirection = AxisDirection.INCREASING, has_exclusive_product: bool = False",
    ),
    FunctionRow("non_zero_coordinates", _INPUT, fixed={"trim": False}, after=_filled(results.NonZeroCoordinatesOutputs)),
    FunctionRow("quantize_linear", f"{_INPUT}, scale: Expression, zero_point: Expression, *, {_PREDICATE}"),
    FunctionRow("dequantize_linear", f"{_INPUT}, scale: Expression, zero_point: Expression"),
    FunctionRow("dequantize", f"{_INPUT}, quantization_parameters: Sequence[Expression], *, quantization_type: QuantizationType"),
    FunctionRow(
        "random_generator",
        "input_state: Expression, *, output_sizes: Sequence[int], output_state: bool = True, "
        "type: RandomGeneratorType = RandomGeneratorType.PHILOX_4X32_10",
        after=_filled(results.RandomGeneratorOutputs),
    ),
    FunctionRow(
        "roi_align",
        f"{_INPUT}, roi: Expression, batch_indices: Expression, *, {_ROI}out_of_bounds_input_value: float, {_SAMPLES}"
        "output_height: int, output_width: int",
    ),
    FunctionRow(
        "roi_align_grad",
        "input_gradient: Expression, roi: Expression, batch_indices: Expression, input: Expression | None = None, *, "
        f"{_ROI}{_SAMPLES}batch_size: int, image_height: int, image_width: int, compute_output_gradient: bool = True, "
        "compute_output_roi_gradient: bool = False",
        after=_roi_align_grad,
    ),
    FunctionRow(
        "convolution",
        f"{_INPUT}, filter: Expression, bias: Expression | None = None, *, "
        "mode: ConvolutionMode = ConvolutionMode.CROSS_CORRELATION, "
        f"direction: ConvolutionDirection = ConvolutionDirection.FORWARD, {_WINDOWS}output_padding: Sequence[int] = (), "
        f"group_count: int = 1, {_FUSED}, output_sizes: Sequence[int] = ()",
    ),
    FunctionRow(
        "convolution_integer",
        f"{_INPUT}, filter: Expression, input_zero_point: Expression | None = None, filter_zero_point: Expression | None = None, "
        f"*, {_WINDOWS}group_count: int = 1, output_sizes: Sequence[int] = ()",
    ),
    FunctionRow(
        "quantized_linear_convolution",
        f"{_INPUT}, input_scale: Expression, filter: Expression, filter_scale: Expression, output_scale: Expression, "
        "input_zero_point: Expression | None = None, filter_zero_point: Expression | None = None, bias: Expression | None = None, "
        f"output_zero_point: Expression | None = None, *, output_dtype: DtypeLike, {_WINDOWS}group_count: int = 1, "
        "output_sizes: Sequence[int] = ()",
    ),
    FunctionRow(
        "gemm",
        f"{_PAIR}, c: Expression | None = None, *, trans_a: MatrixTransform = MatrixTransform.NONE, "
        f"trans_b: MatrixTransform = MatrixTransform.NONE, alpha: float = 1.0, beta: float = 1.0, {_FUSED}",
        before=_four_dimensions,
    ),
    FunctionRow(
        "mean_variance_normalization",
        f"{_INPUT}, scale: Expression | None = None, bias: Expression | None = None, *, axes: Sequence[int], "
        f"normalize_variance: bool = True, normalize_mean: bool = True, epsilon: float = 1e-05, {_FUSED}",
    ),
    FunctionRow(
        "batch_normalization",
        f"{_INPUT}, mean: Expression, variance: Expression, scale: Expression, bias: Expression, *, spatial: bool = True, "
        f"epsilon: float = 1e-05, {_FUSED}",
    ),
    FunctionRow(
        "batch_normalization_training",
        f"{_INPUT}, scale: Expression, bias: Expression, fused_add: Expression | None = None, *, epsilon: float = 1e-05, {_FUSED}",
        after=_filled(results.BatchNormalizationTrainingOutputs),
    ),
    FunctionRow(
        "batch_normalization_grad batch_normalization_training_grad",
        f"{_GRADIENT}*, epsilon: float = 1e-05",
        after=_filled(results.BatchNormalizationGradOutputs),
    ),
    FunctionRow(
        "local_response_normalization",
        f"{_INPUT}, *, cross_channel: bool, local_size: int, alpha: float, beta: float, bias: float",
    ),
    FunctionRow(
        "average_pooling",
        f"{_INPUT}, *, strides: Sequence[int], window_sizes: Sequence[int], start_padding: Sequence[int] = (), "
        "end_padding: Sequence[int] = (), dilations: Sequence[int] = (), include_padding: bool = False, "
        "output_sizes: Sequence[int] = ()",
    ),
    FunctionRow(
        "max_pooling",
        f"{_INPUT}, *, window_sizes: Sequence[int], strides: Sequence[int] = (), start_padding: Sequence[int] = (), "
        "end_padding: Sequence[int] = (), dilations: Sequence[int] = (), output_indices: bool = False",
        after=_filled(results.MaxPoolingOutputs),
    ),
    FunctionRow(
        "multihead_attention",
        "query: Expression, key: Expression, value: Expression, *, head_count: int, scale: float",
        before=_batch_second,
        after=_batch_first,
    ),
    FunctionRow(
        "gru",
        f"{_INPUT}, weight: Expression, recurrence: Expression, bias: Expression | None = None, "
        "hidden_init: Expression | None = None, sequence_lengths: Expression | None = None, *, "
        "activation_descs: Sequence[FusedActivation], direction: RecurrentNetworkDirection = RecurrentNetworkDirection.FORWARD, "
        "linear_before_reset: bool = True, output_options: GRUOutputOptions = GRUOutputOptions.Both",
        after=_gru,
    ),
    FunctionRow("clip_grad", f"{_INPUT}, input_gradient: Expression, *, min: float, max: float"),
)

"""The surface of the package's interface: names, signatures, enumerations, arithmetic, views, errors, and programs as they are."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import python

import tvmdml
import tvmdml.directml as dml
from tvmdml import pydirectml, targets
from tvmdml.directml import devices

MEMBERS = {
    "TensorDataType": "UNKNOWN FLOAT32 FLOAT16 UINT32 UINT16 UINT8 INT32 INT16 INT8 FLOAT64 UINT64 INT64",
    "TensorFlags": "NONE OWNED_BY_DML",
    "MatrixTransform": "NONE TRANSPOSE",
    "RecurrentNetworkDirection": "FORWARD BACKWARD BIDIRECTIONAL",
    "GRUOutputOptions": "Both Sequence Single",
    "ConvolutionMode": "CONVOLUTION CROSS_CORRELATION",
    "ConvolutionDirection": "FORWARD BACKWARD",
    "InterpolationMode": "NEAREST_NEIGHBOR LINEAR",
    "PaddingMode": "CONSTANT EDGE REFLECTION",
    "RoundingMode": "HALVES_TO_NEAREST_EVEN TOWARD_ZERO TOWARD_INFINITY",
    "IsInfinityMode": "EITHER POSITIVE NEGATIVE",
    "AxisDirection": "INCREASING DECREASING",
    "DepthSpaceOrder": "DEPTH_COLUMN_ROW COLUMN_ROW_DEPTH",
    "ReduceFunction": "ARGMAX ARGMIN AVERAGE L1 L2 LOG_SUM LOG_SUM_EXP MAX MIN MULTIPLY SUM SUM_SQUARE",
    "RandomGeneratorType": "PHILOX_4X32_10",
    "QuantizationType": "SCALE SCALE_ZERO_POINT",
    "ExecutionFlags": "NONE ALLOW_HALF_PRECISION_COMPUTATION DISABLE_META_COMMANDS DESCRIPTORS_VOLATILE",
}
FIELDS = {
    "MaxPoolingOutputs": "values indices",
    "GRUOutputs": "sequence single",
    "TopKOutputs": "values indices",
    "NonZeroCoordinatesOutputs": "count coordinates",
    "RandomGeneratorOutputs": "values state",
    "BatchNormalizationTrainingOutputs": "output mean variance",
    "BatchNormalizationGradOutputs": "gradient scale_gradient bias_gradient",
    "RoiAlignGradOutputs": "gradient roi_gradient",
}
ATTRIBUTES = {
    "Expression": "desc shape strides dtype size",
    "CompiledOperator": "initialize dispatch temporary_size persistent_size descriptor_count initialized",
    "Buffer": "numpy desc device nbytes shape strides dtype size",
    "TensorDesc": "data_type flags sizes strides total_tensor_size_in_bytes guaranteed_base_offset_alignment",
    "TensorPolicy": "default interleaved_channel",
    "Graph": "input constant compile",
    "FusedActivation": "none elu hard_sigmoid identity leaky_relu linear parametric_softplus relu scaled_elu scaled_tanh sigmoid "
    "softplus softsign tanh thresholded_relu shrink celu gelu",
}

# Parameters after `*` are keywords; those with `?` may be left out.
SIGNATURES = """
identity abs acos asin atan ceil cos exp floor log recip sin sqrt tan erf sinh cosh tanh asinh acosh atanh: input * scale_bias?
sign negate logical_not bit_not non_zero_coordinates: input
activation_relu activation_sigmoid activation_identity activation_tanh activation_gelu activation_hardmax: input
activation_log_softmax activation_softsign: input
clip: input * min max scale_bias?
threshold: input * min scale_bias?
round: input * rounding_mode?
is_nan bit_count: input * output_dtype?
is_infinity: input * infinity_mode? output_dtype?
cast: input * dtype
max min mean atan_yx difference_square logical_and logical_or logical_xor bit_and bit_or bit_xor bit_shift_left: a b
bit_shift_right modulus_truncate modulus_floor subtract multiply divide: a b
add: a b * fused_activation?
equals greater_than greater_than_or_equal less_than less_than_or_equal: a b * output_dtype?
pow: input exponent * scale_bias?
where: condition a b
activation_linear activation_parametric_softplus: input * alpha beta
activation_softmax: input * axes?
activation_elu activation_celu activation_leaky_relu activation_thresholded_relu: input * alpha?
activation_hard_sigmoid activation_scaled_tanh: input * alpha? beta?
activation_scaled_elu: input * alpha? gamma?
activation_shrink: input * bias? threshold?
activation_softplus: input * steepness?
activation_parameterized_relu: input slope
split: input * axis output_axis_sizes
tile: input * repeats
join: inputs * axis
one_hot: indices values * output_length axis
top_k: input * axis k axis_direction?
gather: input indices * axis index_dimensions
gather_elements: input indices * axis
gather_nd: input indices * input_dimension_count indices_dimension_count batch_dimension_count?
scatter_elements: input indices updates * axis
scatter_nd: input indices updates * input_dimension_count indices_dimension_count
space_to_depth depth_to_space: input * block_size order?
reverse_subsequences: input sequence_lengths * axis
resample: input * output_sizes mode rounding_direction? scales? input_pixel_offsets? output_pixel_offsets? antialiased?
resample_grad: input_gradient * output_sizes mode scales? input_pixel_offsets? output_pixel_offsets?
slice: input * input_window_offsets input_window_sizes input_window_strides
slice_grad: input_gradient * output_gradient_sizes input_window_offsets input_window_sizes input_window_strides
padding: input * padding_mode? padding_value? start_padding end_padding
value_scale_2d: input * scale bias
upsample_2d: input * scale_size interpolation_mode
fill_value_constant: graph * sizes value dtype?
fill_value_sequence: graph * sizes value_start value_delta dtype?
reduce: input * function axes? output_dtype?
cumulative_summation: input * axis axis_direction? has_exclusive_sum?
cumulative_product: input * axis axis_direction? has_exclusive_product?
quantize_linear: input scale zero_point * output_dtype?
dequantize_linear: input scale zero_point
dequantize: input quantization_parameters * quantization_type
random_generator: input_state * output_sizes output_state? type?
roi_align: input roi batch_indices * ROI out_of_bounds_input_value SAMPLES output_height output_width
roi_align_grad: input_gradient roi batch_indices input? * ROI SAMPLES batch_size image_height image_width compute_output_gradient? compute_output_roi_gradient?
convolution: input filter bias? * mode? direction? WINDOWS output_padding? group_count? fused_activation? output_sizes?
convolution_integer: input filter input_zero_point? filter_zero_point? * WINDOWS group_count? output_sizes?
quantized_linear_convolution: input input_scale filter filter_scale output_scale input_zero_point? filter_zero_point? bias? output_zero_point? * output_dtype WINDOWS group_count? output_sizes?
gemm: a b c? * trans_a? trans_b? alpha? beta? fused_activation?
mean_variance_normalization: input scale? bias? * axes normalize_variance? normalize_mean? epsilon? fused_activation?
batch_normalization: input mean variance scale bias * spatial? epsilon? fused_activation?
batch_normalization_training: input scale bias fused_add? * epsilon? fused_activation?
batch_normalization_grad batch_normalization_training_grad: input input_gradient mean variance scale * epsilon?
local_response_normalization: input * cross_channel local_size alpha beta bias
average_pooling: input * strides window_sizes start_padding? end_padding? dilations? include_padding? output_sizes?
max_pooling: input * window_sizes strides? start_padding? end_padding? dilations? output_indices?
multihead_attention: query key value * head_count scale
gru: input weight recurrence bias? hidden_init? sequence_lengths? * activation_descs direction? linear_before_reset? output_options?
clip_grad: input input_gradient * min max
reinterpret: input sizes strides? dtype?
broadcast: input shape
"""  # noqa: E501
SHORT = {
    "WINDOWS": "strides? dilations? start_padding? end_padding?",
    "ROI": "reduction_function interpolation_mode spatial_scale_x spatial_scale_y input_pixel_offset output_pixel_offset",
    "SAMPLES": "minimum_samples_per_output maximum_samples_per_output align_regions_to_corners",
}


def stated(function: Any) -> tuple[set[str], set[str]]:
    """The parameters as in the table: positional in order as one text, and keywords."""
    positional, keywords = [], set()
    for name, one in inspect.signature(function).parameters.items():
        text = name + ("" if one.default is one.empty else "?")
        if one.kind is one.KEYWORD_ONLY:
            keywords.add(text)
        else:
            positional.append(text)
    return {" ".join(positional)}, keywords


@pytest.fixture(scope="module")
def graph() -> dml.Graph:
    return dml.Graph(dml.Device())


def test_functions_have_the_parameters_of_the_package() -> None:
    seen = set()
    for line in SIGNATURES.strip().splitlines():
        names, _, parameters = line.partition(": ")
        for short, whole in SHORT.items():
            parameters = parameters.replace(short, whole)
        positional, _, keywords = parameters.partition(" * ")
        for name in names.split():
            assert stated(getattr(dml, name)) == ({positional}, set(keywords.split())), name
            seen.add(name)
    assert len(seen) == 128


def test_enumerations_and_results_have_their_members() -> None:
    for name, members in MEMBERS.items():
        assert list(getattr(dml, name).__members__) == members.split(), name
    for name, fields in FIELDS.items():
        assert getattr(dml, name)._fields == tuple(fields.split()), name
    for name, attributes in ATTRIBUTES.items():
        assert all(hasattr(getattr(dml, name), one) for one in attributes.split()), name
    assert len(dml.OperatorType.__members__) == 99
    assert {dml.OperatorType[f"ACTIVATION_{name}"] for name in ("CELU", "GELU", "RELU", "SHRINK", "TANH")}
    assert str(dml.RoundingMode.TOWARD_ZERO) == "RoundingMode.TOWARD_ZERO"
    assert int(dml.TensorDataType.UINT64) == 10
    assert dml.TensorDataType(2) is dml.TensorDataType.FLOAT16
    assert dml.ReduceFunction.SUM != 10
    assert dml.ExecutionFlags.DISABLE_META_COMMANDS | dml.ExecutionFlags.DESCRIPTORS_VOLATILE == 6
    assert dml.__version__ == tvmdml.__version__


@pytest.mark.full(first=1)
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("elu", ()), ("hard_sigmoid", ()), ("identity", ()), ("leaky_relu", ()), ("linear", (2.0, 1.0)),
        ("parametric_softplus", (2.0, 0.5)), ("relu", ()), ("scaled_elu", ()), ("scaled_tanh", ()), ("sigmoid", ()),
        ("softplus", ()), ("softsign", ()), ("tanh", ()), ("thresholded_relu", ()), ("shrink", ()), ("celu", ()), ("gelu", ()),
    ],
)  # fmt: skip
def test_fused_activations_are_the_activations(graph: dml.Graph, name: str, given: tuple[float, ...]) -> None:
    x = graph.input([1, 1, 2, 3])
    fused = dml.add(x, x, fused_activation=getattr(dml.FusedActivation, name)(*given))
    keywords = dict(zip(("alpha", "beta"), given, strict=False))
    apart = getattr(dml, f"activation_{name}")(dml.add(x, x), **keywords)
    found, right = graph.compile([fused, apart])({x: np.linspace(-1, 1, 6, dtype=np.float32)})
    np.testing.assert_allclose(found, right, rtol=1e-6)


def test_fused_activations_by_type(graph: dml.Graph) -> None:
    x = graph.input([1, 1, 2, 3])
    none = dml.add(x, x, fused_activation=dml.FusedActivation.none())
    elu = dml.add(x, x, fused_activation=dml.FusedActivation(dml.OperatorType.ACTIVATION_ELU, 2.0))
    given = np.linspace(-1, 1, 6, dtype=np.float32).reshape(x.shape)
    found = graph.compile([none, elu])({x: given})
    assert np.array_equal(found[0], 2 * given)
    np.testing.assert_allclose(found[1], np.where(given > 0, 2 * given, 2 * np.expm1(2 * given)), rtol=1e-6)
    with pytest.raises(RuntimeError, match="GEMM"):
        dml.add(x, x, fused_activation=dml.FusedActivation(dml.OperatorType.GEMM))
    with pytest.raises(TypeError):
        dml.FusedActivation("relu")
    with pytest.raises(TypeError, match="FusedActivation"):
        dml.add(x, x, fused_activation="relu")
    with pytest.raises(TypeError, match="a list of Expressions"):
        graph.compile(elu)


def test_arithmetic_with_numbers_and_expressions(graph: dml.Graph) -> None:
    x, y = graph.input([1, 1, 2, 2]), graph.input([1, 1, 2, 2])
    a, b = np.array([1, 2, 4, 8], np.float32).reshape(1, 1, 2, 2), np.full((1, 1, 2, 2), 3, np.float32)
    pairs = [
        (x * y - x / y, a * b - a / b), (x % y, a % b), (-x, -a), (1.0 - x * 0.5, 1 - a * 0.5), (2 / x, 2 / a), (x / 2, a / 2),
        (x - 1, a - 1), (np.float32(3) + x, 3 + a), (np.float64(2) * x, 2 * a), (np.float32(1) / x, 1 / a),
        (np.int64(1) - x, 1 - a),
    ]  # fmt: skip
    found = graph.compile([one for one, _ in pairs])({x: a, y: b})
    for one, (_, right) in zip(found, pairs, strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-6)
    for wrong in (lambda: x % 2, lambda: x + "1", lambda: x**2, lambda: x + a, lambda: a * x, lambda: x < y, lambda: x + 1j):
        with pytest.raises(TypeError):
            wrong()


def test_an_expression_is_what_it_is(graph: dml.Graph) -> None:
    x = same = graph.input([1, 1, 2, 2])
    x += 1.0
    assert x is not same
    assert x != same
    assert same == same
    assert len({same, x, same}) == 2
    assert not any(hasattr(dml.Expression, f"__i{name}__") for name in ("add", "sub", "mul", "truediv", "mod"))
    assert repr(same) == "<dml.Expression float32 [1, 1, 2, 2]>"
    (found,) = graph.compile([x])({same: np.zeros((2, 2), np.float32)})
    assert np.all(found == 1)


def test_pairs_must_agree(graph: dml.Graph) -> None:
    a, b, c = graph.input([1, 1, 2, 2]), graph.input([1, 1, 2, 3]), graph.input([1, 1, 2, 2], np.float16)
    for wrong, said in (
        (lambda: a + b, r"\[1, 1, 2, 2\].*\[1, 1, 2, 3\].*broadcast"),
        (lambda: dml.add(a, b), "shapes differ"),
        (lambda: dml.max(a, b), r"max\(.*shapes differ"),
        (lambda: dml.where(a, a, b), r"where\(.*shapes differ"),
        (lambda: dml.where(b, a, a), r"where\(.*shapes differ"),
        (lambda: dml.pow(a, b), r"pow\(.*shapes differ"),
        (lambda: a * c, "element types differ"),
        (lambda: dml.join([], axis=0), "no expressions"),
        (lambda: a + dml.Graph(dml.Device()).input([1, 1, 2, 2]), "different graphs"),
    ):
        with pytest.raises(ValueError, match=said):
            wrong()


def test_broadcasts_are_views(graph: dml.Graph) -> None:
    x = graph.input([1, 3, 1, 1])
    assert dml.broadcast(x, [2, 3, 4, 5]).strides == (0, 1, 0, 0)
    assert dml.broadcast(graph.input([3, 4]), [2, 3, 4]).strides == (0, 4, 1)
    assert dml.broadcast(x, [1, 3, 1, 1]) is x
    turned = dml.reinterpret(graph.input([1, 2, 3, 4]), [1, 2, 4, 3], [24, 12, 1, 4])
    assert dml.broadcast(turned, [5, 2, 4, 3]).strides == (0, 12, 1, 4)
    y = graph.input([1, 3, 2, 2])
    for shape, said in (([1, 3, 4, 4], "cannot broadcast"), ([3, 2, 2], "fewer axes")):
        with pytest.raises(ValueError, match=said):
            dml.broadcast(y, shape)
    (found,) = graph.compile([y + dml.broadcast(x, y.shape)])({x: [1.0, 2.0, 3.0], y: np.zeros(12, np.float32)})
    assert found[0, :, 1, 1].tolist() == [1, 2, 3]


def test_views_read_the_same_bytes(graph: dml.Graph) -> None:
    x = graph.input([1, 1, 2, 2])
    bits = dml.reinterpret(x, [4], dtype=np.uint32)
    assert (bits.shape, bits.dtype, bits.strides) == ((4,), np.uint32, None)
    given = np.array([1, -2, 0.5, 3], np.float32)
    assert np.array_equal(graph.compile([dml.bit_and(bits, bits)])({x: given})[0], given.view(np.uint32))
    with pytest.raises(RuntimeError, match="E_INVALIDARG"):
        dml.reinterpret(x, [1, 1, 2, 3])


def test_what_operators_refuse_is_a_runtime_error(graph: dml.Graph) -> None:
    x, matrix, bits = graph.input([1, 1, 2, 2]), graph.input([2, 2]), graph.input([1, 1, 2, 2], np.uint32)
    rois = {
        "reduction_function": dml.ReduceFunction.MAX, "interpolation_mode": dml.InterpolationMode.LINEAR, "spatial_scale_x": 1.0,
        "spatial_scale_y": 1.0, "input_pixel_offset": 0.5, "output_pixel_offset": -0.5, "minimum_samples_per_output": 1,
        "maximum_samples_per_output": 1, "align_regions_to_corners": False, "batch_size": 1, "image_height": 4, "image_width": 4,
    }  # fmt: skip
    region, batch = graph.input([1, 1, 1, 4]), graph.input([1, 1, 1, 1], np.uint32)
    for refused in (
        lambda: dml.gemm(matrix, matrix),
        lambda: dml.gemm(x, x, matrix),
        lambda: dml.join([x, matrix], axis=3),
        lambda: dml.activation_relu(bits),
        lambda: dml.reduce(x, function=dml.ReduceFunction.SUM, axes=[9]),
        lambda: dml.slice(x, input_window_offsets=[0] * 4, input_window_sizes=[9] * 4, input_window_strides=[1] * 4),
        lambda: dml.roi_align_grad(x, region, batch, compute_output_roi_gradient=True, **rois),  # it needs the image
    ):
        with pytest.raises(RuntimeError, match=r"E_INVALIDARG \(0x80070057\)$"):
            refused()


def test_arguments_of_the_wrong_kind_are_type_errors(graph: dml.Graph) -> None:
    x = graph.input([1, 1, 2, 2])
    for wrong in (
        lambda: dml.abs(np.zeros(4, np.float32)),
        lambda: dml.abs(),
        lambda: dml.abs(x, scale_bias=2.0),
        lambda: dml.abs(x, scale_bias=(1.0, 2.0, 3.0)),
        lambda: dml.join(x, axis=1),
        lambda: dml.round(x, rounding_mode="toward_zero"),
        lambda: dml.round(x, rounding_mode=dml.AxisDirection.INCREASING),
        lambda: dml.split(x, axis=1.5, output_axis_sizes=[1]),
        lambda: dml.tile(x, repeats="2"),
        lambda: dml.cast(x, dtype=bool),
        lambda: dml.clip(x, min="0", max=1),
        lambda: dml.convolution(x, x, None, [1, 1]),
        lambda: dml.fill_value_constant(x, sizes=[1], value=1),
        lambda: graph.compile([x, 3]),
        lambda: graph.compile(x),
        lambda: dml.Graph("cpu"),
        lambda: dml.TensorDesc(np.float32, [1], flags="none"),
        lambda: bool(dml.TensorDesc(np.float32, 3)),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_what_is_not_there_is_an_error_that_says_what_is(graph: dml.Graph) -> None:
    x = graph.input([1, 1, 2, 3])
    takes = "allowed: activation_softmax(input, *, axes=())"
    with pytest.raises(
        TypeError, match=rf"^activation_softmax\(\) got an unexpected keyword argument 'axis'.*; {re.escape(takes)}$"
    ):
        dml.activation_softmax(x, axis=1)
    takes = "allowed: gemm(a, b, c=None, *, trans_a=MatrixTransform.NONE, "
    with pytest.raises(TypeError, match=rf"^gemm\(\) missing .* 'b'; {re.escape(takes)}"):
        dml.gemm(x)
    takes = "allowed: add(a, b, fused_activation=None)"
    with pytest.raises(TypeError, match=rf"^add\(\): .*unexpected keyword argument 'c'; {re.escape(takes)}$"):
        pydirectml.add(x, x, c=x)
    for mixed in (lambda: x + np.ones(3), lambda: np.ones(3) * x):
        with pytest.raises(TypeError, match=r"a NumPy array; allowed: expressions and numbers\. graph\.constant\(array\)"):
            mixed()
    recorded = tvmdml.Graph().input((2, 3), np.float32)
    for what, name, near in (
        (dml, "relu", "activation_relu"),
        (dml, "reshape", "reinterpret"),
        (pydirectml, "activation_softmax", "activation_soft_max"),
        (x, "reshape", "dml.reinterpret"),
        (x, "relu", "dml.activation_relu"),
        (recorded, "matmul", "tvmdml.gemm"),
    ):
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}'\. Did you mean '{near}'\?$"):
            getattr(what, name)
    assert not hasattr(x, "__deepcopy__")


def test_values_of_fills_must_be_of_the_type(graph: dml.Graph) -> None:
    assert dml.fill_value_constant(graph, sizes=[], value=1).shape == (1,)
    with pytest.raises(ValueError, match="value=300"):
        dml.fill_value_constant(graph, sizes=[1, 1, 2, 2], value=300, dtype=np.uint8)
    with pytest.raises(ValueError, match="value_delta='a'"):
        dml.fill_value_sequence(graph, sizes=[2], value_start=0, value_delta="a")


def test_descriptions_of_tensors() -> None:
    desc = dml.TensorDesc(np.float16, [2, 3])
    assert (desc.data_type, desc.sizes, desc.strides) == (dml.TensorDataType.FLOAT16, [2, 3], None)
    assert (desc.flags, desc.total_tensor_size_in_bytes, desc.guaranteed_base_offset_alignment) == (dml.TensorFlags.NONE, 12, 0)
    assert dml.TensorDesc(np.float16, [3]).total_tensor_size_in_bytes == 8
    assert dml.TensorDesc(dml.TensorDataType.INT8, [4], total_tensor_size_in_bytes=64).total_tensor_size_in_bytes == 64
    nhwc = dml.TensorDesc(np.float32, [2, 3, 4, 5], tensor_policy=dml.TensorPolicy.interleaved_channel)
    assert nhwc.strides == [60, 1, 15, 3]
    with pytest.raises(ValueError, match="strides"):
        dml.TensorDesc(np.float32, [2], strides=[1], tensor_policy=dml.TensorPolicy.default)
    with pytest.raises(AttributeError):
        desc.sizes = [1]
    with pytest.raises(ValueError, match="sizes"):
        dml.TensorDesc(np.float32, [0, 1])


def test_channels_are_interleaved() -> None:
    graph = dml.Graph(dml.Device(), tensor_policy=dml.TensorPolicy.interleaved_channel)
    desc = dml.TensorDesc(np.float32, [1, 3, 2, 2], tensor_policy=dml.TensorPolicy.interleaved_channel)
    x = graph.input(desc=desc)
    y = dml.activation_relu(x)
    assert y.strides == (12, 1, 6, 3)
    memory = dml.reinterpret(y, [12])
    given = np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3) - 4
    found = graph.compile([y, memory])({x: given})
    assert np.array_equal(found[0], np.maximum(given, 0).transpose(0, 3, 1, 2))
    assert np.array_equal(found[1], np.maximum(given, 0).ravel())


@pytest.mark.full
def test_arguments_that_have_several_ways(graph: dml.Graph) -> None:
    x, state = graph.input([1, 1, 1, 4]), graph.input([1, 1, 1, 6], np.uint32)
    given = np.array([1, 3, 2, 0.5], np.float32)
    values, indices = dml.max_pooling(x, window_sizes=[1, 2], strides=[1, 2], output_indices=True)
    alone = dml.random_generator(state, output_sizes=[2, 3], output_state=False)
    assert alone.state is None
    assert dml.max_pooling(x, window_sizes=[1, 2]).indices is None
    outputs = [
        dml.reduce(x, function=dml.ReduceFunction.SUM),
        dml.reduce(x, function=dml.ReduceFunction.ARGMAX, axes=[3], output_dtype=np.uint32),
        dml.reduce(x, function=dml.ReduceFunction.ARGMIN, axes=[3], output_dtype=dml.TensorDataType.UNKNOWN),
        dml.pow(x, 2.0),
        dml.abs(x, scale_bias=(2, -3)),
        dml.less_than(x, x, output_dtype=dml.TensorDataType.UINT32),
        dml.activation_softmax(x, axes=[3]),
        dml.round(x, rounding_mode=dml.RoundingMode.TOWARD_INFINITY),
        dml.is_nan(x, output_dtype=np.uint32),
        dml.top_k(x, axis=3, k=2, axis_direction=dml.AxisDirection.INCREASING).values,
        values,
        indices,
        alone.values,
    ]
    found = graph.compile(outputs)({x: given, state: np.zeros(6, np.uint32)})
    right = [6.5, 1, 3, given**2, np.abs(2 * given - 3), [0] * 4, np.exp(given) / np.exp(given).sum(), [1, 3, 2, 1], [0] * 4]
    right += [[0.5, 1], [3, 2], [1, 2]]
    for one, other in zip(found, right, strict=False):
        np.testing.assert_allclose(one.ravel(), other, rtol=1e-6)
    assert found[1].dtype == found[2].dtype == found[5].dtype == found[8].dtype == np.uint32
    assert found[-1].shape == (2, 3)


@pytest.mark.full
def test_gru_returns_what_is_asked_for(graph: dml.Graph) -> None:
    tensors = [graph.input(sizes) for sizes in ([1, 3, 2, 4], [1, 1, 9, 4], [1, 1, 9, 3])]
    given = {one: np.random.default_rng(i).standard_normal(one.shape) for i, one in enumerate(tensors)}
    functions = [dml.FusedActivation.sigmoid(), dml.FusedActivation.tanh()]
    options = dml.GRUOutputOptions
    both, first, last = (
        dml.gru(*tensors, activation_descs=functions, output_options=one)
        for one in (options.Both, options.Sequence, options.Single)
    )
    assert first.single is None
    assert last.sequence is None
    found = graph.compile([both.sequence, both.single, first.sequence, last.single])(given)
    assert np.array_equal(found[0], found[2])
    assert np.array_equal(found[1], found[3])


# -- Devices, and programs as they are

PROGRAM = """
import sys
import numpy as np
import directml as dml
from directml import Device, Graph

graph = Graph(Device(use_gpu=False, use_debug_layer=True))
x = graph.input([2, 2], name="x")
op = graph.compile([dml.activation_relu(x)])
print(dml.__version__, __name__, sys.argv[1:], op({"x": np.array([1.0, -1.0, 2.0, -2.0])})[0].tolist())
"""


def test_everything_may_be_imported_at_once() -> None:
    names: dict[str, Any] = {}
    exec("from tvmdml.directml import *", names)
    found = {name for name in names if name != "__builtins__"}
    assert found >= {"Device", "Graph", "slice", "TensorPolicy", *MEMBERS, *FIELDS, *ATTRIBUTES}
    assert not any(inspect.ismodule(names[name]) for name in found)


def rows(*states: tuple[str, str, str]) -> Any:
    """Drivers that find such devices."""

    def target_class(kind: str) -> Any:
        own = [{"target": target, "device": name, "state": state} for target, name, state in states if target.startswith(kind)]
        return type("Kind", (), {"devices": staticmethod(lambda: own)})

    return target_class


@pytest.mark.parametrize(
    ("states", "right"),
    [
        ((), "cpu"),
        ((("vulkan:0", "llvmpipe, CPU", "ready; Vulkan"), ("vulkan:1", "Radeon, GPU", "ready; Vulkan")), "vulkan:1"),
        ((("vulkan:0", "Radeon, GPU", "ready"), ("cuda:0", "H100, sm_90", "ready; CUDA 12; compiles with nvcc")), "cuda:0"),
        ((("vulkan:0", "Radeon, GPU", "ready"), ("cuda:0", "H100, sm_90", "ready; CUDA 12; no compiler")), "vulkan:0"),
        ((("vulkan:0", "Radeon, GPU", "its driver is too old"), ("cuda", "none", "no driver")), "cpu"),
    ],
)
def test_the_best_device_is_the_first_gpu_that_works(monkeypatch: pytest.MonkeyPatch, states: Any, right: str) -> None:
    monkeypatch.setattr(devices, "_NODES", ("/",))
    monkeypatch.setattr(targets, "target_class", rows(*states))
    assert devices._best() == right
    monkeypatch.setattr(devices, "_NODES", ("/nothing/of/this/name",))
    assert devices._best() == "cpu"  # nobody is asked


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repr(dml.Device(use_gpu=False)) == "dml.Device on CPU"
    assert dml.Device() != dml.Device()
    monkeypatch.setenv("TVMDML_DEVICE", "cpu")
    assert repr(dml.Device(use_debug_layer=True)) == "dml.Device on CPU"
    monkeypatch.setenv("TVMDML_DEVICE", "toaster")
    with pytest.raises(ValueError, match="TVMDML_DEVICE"):
        dml.Device()
    assert repr(dml.Device(use_gpu=False)) == "dml.Device on CPU"


@pytest.mark.full
def test_programs_run_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    right = f"{dml.__version__} __main__ ['a', '-b'] [[1.0, 0.0], [2.0, 0.0]]\n"
    for way in (["program.py"], ["-m", "program"]):
        command = [sys.executable, "-m", "tvmdml.directml", *way, "a", "-b"]
        assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == right
    for way in ([], ["nothing.py"], ["-m", "nothing"], ["-m", "program.nothing"]):
        found = subprocess.run([sys.executable, "-m", "tvmdml.directml", *way], capture_output=True, text=True, check=False)
        assert found.returncode == 2
        assert "python -m tvmdml.directml" in found.stderr
        assert "Traceback" not in found.stderr


def test_an_import_loads_what_every_program_needs() -> None:
    program = "import sys, tvmdml.directml; print(*(one for one in sys.modules if one.startswith('tvmdml')))"
    found = set(python(program).split())
    assert {"tvmdml.graph", "tvmdml.directml.functions"} <= found
    assert (
        not {"tvmdml.dxdispatch", "tvmdml.graph.stored.saving", "tvmdml.operators._movement_fused", "tvmdml.operators.gather"}
        & found
    )

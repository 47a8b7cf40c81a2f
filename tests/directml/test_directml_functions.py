"""Every function of the package's interface, once, against NumPy or tvmdml's function of arrays."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

import tvmdml
import tvmdml.directml as dml
from tvmdml.targets import Target


class Case(NamedTuple):
    """A call of a function, and what is right."""

    arrays: tuple[np.ndarray, ...]
    right: Any
    """Arrays, or a function of the arrays."""
    keywords: Mapping[str, Any] = MappingProxyType({})
    call: Callable[..., Any] | None = None
    """Calls the function with expressions, where they are not simply its first arguments."""


def shaped(values: Any, dtype: Any = np.float32) -> np.ndarray:
    """Numbers in four dimensions."""
    array = np.asarray(values, dtype)
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def drawn(*shape: int, seed: int = 1) -> np.ndarray:
    """Numbers of a normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


MIXED = shaped([[-2.5, -0.5, 0.0], [0.5, 1.5, 3.0]])
UNIT = shaped([[-0.75, -0.25], [0.25, 0.75]])
POSITIVE = shaped([[0.25, 0.5], [1.5, 4.0]])
LARGE = shaped([[1.25, 1.5], [2.0, 4.0]])
ONE, OTHER = shaped([[1.0, 2.0], [3.0, 4.0]]), shaped([[4.0, 2.0], [2.0, 1.0]])
BITS, MORE_BITS = shaped([[1, 6], [255, 4096]], np.uint32), shaped([[3, 5], [15, 4]], np.uint32)
TRUTH, OTHER_TRUTH = shaped([0, 0, 1, 2], np.uint8), shaped([0, 3, 0, 4], np.uint8)
ODD = shaped([0.0, np.nan, np.inf, -np.inf])
ROW = shaped([1.0, 3.0, 2.0, 0.5])
INTEGERS, DIVISORS = shaped([-7, -1, 1, 7], np.int32), shaped([5, 5, -5, -5], np.int32)
IMAGE, FILTER, BIAS = drawn(1, 3, 6, 6), drawn(4, 3, 3, 3, seed=2), drawn(1, 4, 1, 1, seed=3)
INDICES = shaped([[1, 0], [0, 1]], np.uint32)

UNARY = {
    "identity": (MIXED, lambda x: x),
    "abs": (MIXED, np.abs),
    "acos": (UNIT, np.arccos),
    "asin": (UNIT, np.arcsin),
    "atan": (MIXED, np.arctan),
    "ceil": (MIXED, np.ceil),
    "cos": (MIXED, np.cos),
    "exp": (MIXED, np.exp),
    "floor": (MIXED, np.floor),
    "log": (POSITIVE, np.log),
    "recip": (POSITIVE, np.reciprocal),
    "sin": (MIXED, np.sin),
    "sqrt": (POSITIVE, np.sqrt),
    "tan": (UNIT, np.tan),
    "erf": (MIXED, np.vectorize(math.erf)),
    "sinh": (MIXED, np.sinh),
    "cosh": (MIXED, np.cosh),
    "tanh": (MIXED, np.tanh),
    "asinh": (MIXED, np.arcsinh),
    "acosh": (LARGE, np.arccosh),
    "atanh": (UNIT, np.arctanh),
    "sign": (MIXED, np.sign),
    "negate": (MIXED, np.negative),
    "bit_not": (BITS, np.invert),
    "logical_not": (TRUTH, lambda x: (x == 0).astype(np.uint8)),
    "round": (shaped([0.5, 1.5, -1.5, 2.4]), lambda x: np.round(x)),
    "is_nan": (ODD, lambda x: np.isnan(x).astype(np.uint8)),
    "is_infinity": (ODD, lambda x: np.isinf(x).astype(np.uint8)),
    "bit_count": (BITS, lambda x: shaped([[1, 2], [8, 1]], np.uint8)),
    "activation_relu": (MIXED, lambda x: np.maximum(x, 0)),
    "activation_sigmoid": (MIXED, lambda x: 1 / (1 + np.exp(-x))),
    "activation_identity": (MIXED, lambda x: x),
    "activation_tanh": (MIXED, np.tanh),
    "activation_gelu": (MIXED, lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))),
    "activation_hardmax": (ROW, lambda x: (x == x.max()).astype(np.float32)),
    "activation_log_softmax": (ROW, lambda x: x - np.log(np.exp(x).sum())),
    "activation_softsign": (MIXED, lambda x: x / (1 + np.abs(x))),
    "activation_softmax": (ROW, lambda x: np.exp(x) / np.exp(x).sum()),
    "activation_elu": (MIXED, lambda x: np.where(x > 0, x, np.expm1(x))),
    "activation_celu": (MIXED, lambda x: np.where(x > 0, x, np.expm1(x))),
    "activation_thresholded_relu": (MIXED, lambda x: np.where(x > 1, x, 0)),
    "activation_leaky_relu": (MIXED, lambda x: np.where(x > 0, x, 0.01 * x)),
    "activation_hard_sigmoid": (MIXED, lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "activation_scaled_tanh": (MIXED, lambda x: np.tanh(0.5 * x)),
    "activation_scaled_elu": (MIXED, lambda x: 1.050701 * np.where(x > 0, x, 1.6732632 * np.expm1(x))),
    "activation_shrink": (MIXED, lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    "activation_softplus": (MIXED, lambda x: np.log1p(np.exp(x))),
}
"""Functions of one tensor, with their defaults."""

BINARY = {
    "add": (ONE, OTHER, np.add),
    "subtract": (ONE, OTHER, np.subtract),
    "multiply": (ONE, OTHER, np.multiply),
    "divide": (ONE, OTHER, np.divide),
    "max": (ONE, OTHER, np.maximum),
    "min": (ONE, OTHER, np.minimum),
    "mean": (ONE, OTHER, lambda a, b: (a + b) / 2),
    "atan_yx": (ONE, OTHER, np.arctan2),
    "difference_square": (ONE, OTHER, lambda a, b: (a - b) ** 2),
    "logical_and": (TRUTH, OTHER_TRUTH, lambda a, b: np.logical_and(a, b).astype(np.uint8)),
    "logical_or": (TRUTH, OTHER_TRUTH, lambda a, b: np.logical_or(a, b).astype(np.uint8)),
    "logical_xor": (TRUTH, OTHER_TRUTH, lambda a, b: np.logical_xor(a, b).astype(np.uint8)),
    "bit_and": (BITS, MORE_BITS, np.bitwise_and),
    "bit_or": (BITS, MORE_BITS, np.bitwise_or),
    "bit_xor": (BITS, MORE_BITS, np.bitwise_xor),
    "bit_shift_left": (BITS, MORE_BITS, np.left_shift),
    "bit_shift_right": (BITS, MORE_BITS, np.right_shift),
    "modulus_truncate": (INTEGERS, DIVISORS, lambda a, b: np.fmod(a, b)),
    "modulus_floor": (INTEGERS, DIVISORS, np.mod),
    "equals": (ONE, OTHER, lambda a, b: (a == b).astype(np.uint8)),
    "greater_than": (ONE, OTHER, lambda a, b: (a > b).astype(np.uint8)),
    "greater_than_or_equal": (ONE, OTHER, lambda a, b: (a >= b).astype(np.uint8)),
    "less_than": (ONE, OTHER, lambda a, b: (a < b).astype(np.uint8)),
    "less_than_or_equal": (ONE, OTHER, lambda a, b: (a <= b).astype(np.uint8)),
    "pow": (ONE, OTHER, np.power),
    "activation_parameterized_relu": (MIXED, MIXED + 1, lambda x, slope: np.where(x > 0, x, slope * x)),
}
"""Functions of two tensors, with their defaults."""

ROI = {
    "reduction_function": dml.ReduceFunction.AVERAGE,
    "interpolation_mode": dml.InterpolationMode.LINEAR,
    "spatial_scale_x": 1.0,
    "spatial_scale_y": 1.0,
    "input_pixel_offset": 0.5,
    "output_pixel_offset": -0.5,
    "minimum_samples_per_output": 1,
    "maximum_samples_per_output": 1,
    "align_regions_to_corners": False,
}
REGION, FIRST = shaped([[0.0, 0.0, 4.0, 4.0]]), shaped([0], np.uint32)
FLAT = np.full((1, 1, 4, 4), 3.0, np.float32)
WINDOW = {"input_window_offsets": [0, 0, 1, 1], "input_window_sizes": [1, 3, 4, 4], "input_window_strides": [1, 1, 2, -1]}


def _same(name: str, **keywords: Any) -> Callable[..., Any]:
    """tvmdml's function of arrays."""
    return lambda *arrays: getattr(tvmdml, name)(*arrays, **keywords)


def _placed(cut: np.ndarray) -> np.ndarray:
    found = np.zeros((1, 3, 6, 6), np.float32)
    found[:, :, 1:5:2, 4:0:-1] = cut
    return found


def _normal(x: np.ndarray, axes: tuple[int, ...], epsilon: float = 1e-5) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(x.shape[0], x.shape[2], 2, -1).transpose(0, 2, 1, 3)

    scores = np.exp(0.5 * heads(q) @ heads(k).transpose(0, 1, 3, 2))
    found = scores / scores.sum(-1, keepdims=True) @ heads(v)
    return found.transpose(0, 2, 1, 3).reshape(q.shape[0], 1, q.shape[2], -1)


C = (1, 3, 1, 1)
STATISTICS = (drawn(*C, seed=4), np.abs(drawn(*C, seed=5)) + 1, drawn(*C, seed=6), drawn(*C, seed=7))
TRAINED = (_normal(IMAGE, (0, 2, 3)) * STATISTICS[2] + STATISTICS[3], IMAGE.mean((0, 2, 3), keepdims=True))
GRU = (drawn(1, 3, 2, 4), drawn(1, 1, 9, 4, seed=2), drawn(1, 1, 9, 3, seed=3))

CASES = {name: Case((x,), right) for name, (x, right) in UNARY.items()}
CASES |= {name: Case((a, b), right) for name, (a, b, right) in BINARY.items()}
CASES |= {
    "clip": Case((MIXED,), lambda x: np.clip(x, -1, 1), {"min": -1.0, "max": 1.0}),
    "threshold": Case((MIXED,), lambda x: np.maximum(x, 0.25), {"min": 0.25}),
    "cast": Case((shaped([1.7, -1.7, 2.5, -0.5]),), shaped([1, -1, 2, 0], np.int32), {"dtype": np.int32}),
    "where": Case((shaped([1, 0, 2, 0], np.uint8), ROW, -ROW), lambda c, a, b: np.where(c, a, b)),
    "activation_linear": Case((MIXED,), lambda x: 2 * x + 1, {"alpha": 2.0, "beta": 1.0}),
    "activation_parametric_softplus": Case((MIXED,), lambda x: 2 * np.log1p(np.exp(0.5 * x)), {"alpha": 2.0, "beta": 0.5}),
    "split": Case((IMAGE,), lambda x: np.split(x, [1, 3], 2), {"axis": 2, "output_axis_sizes": [1, 2, 3]}),
    "tile": Case((ONE,), lambda x: np.tile(x, (1, 1, 2, 3)), {"repeats": [1, 1, 2, 3]}),
    "join": Case(
        (ONE, OTHER), lambda a, b: np.concatenate([a, b], 1), {"axis": 1}, lambda a, b, **given: dml.join([a, b], **given)
    ),
    "one_hot": Case(
        (shaped([[0], [2]], np.uint32), shaped([5.0, 7.0])),
        shaped([[7, 5, 5, 5], [5, 5, 7, 5]]),
        {"output_length": 4, "axis": 3},
    ),
    "top_k": Case((ROW,), (shaped([3.0, 2.0]), shaped([1, 2], np.uint32)), {"axis": 3, "k": 2}),
    "gather": Case((IMAGE, shaped([2, 0], np.uint32)), lambda x, i: x[:, :, :, [2, 0]], {"axis": 3, "index_dimensions": 1}),
    "gather_elements": Case((ONE, INDICES), shaped([[2.0, 1.0], [3.0, 4.0]]), {"axis": 3}),
    "gather_nd": Case(
        (ONE, shaped([[0, 0], [1, 1], [1, 0]], np.uint32)),
        lambda x, i: shaped([1.0, 4.0, 3.0]),
        {"input_dimension_count": 2, "indices_dimension_count": 2},
    ),
    "scatter_elements": Case(
        (ONE, INDICES, shaped([[10.0, 20.0], [30.0, 40.0]])), shaped([[20.0, 10.0], [30.0, 40.0]]), {"axis": 3}
    ),
    "scatter_nd": Case(
        (ONE, shaped([[0, 0], [1, 1]], np.uint32), shaped([10.0, 40.0])),
        shaped([[10.0, 2.0], [3.0, 40.0]]),
        {"input_dimension_count": 2, "indices_dimension_count": 2},
    ),
    "space_to_depth": Case((IMAGE,), _same("space_to_depth", block_size=2), {"block_size": 2}),
    "depth_to_space": Case((drawn(1, 4, 2, 2),), _same("depth_to_space", block_size=2), {"block_size": 2}),
    "reverse_subsequences": Case(
        (shaped([[1, 2, 3, 4], [5, 6, 7, 8]]), shaped([[2], [4]], np.uint32)),
        shaped([[2, 1, 3, 4], [8, 7, 6, 5]]),
        {"axis": 3},
    ),
    "resample": Case(
        (ONE,),
        lambda x: x.repeat(2, 2).repeat(2, 3),
        {
            "output_sizes": [1, 1, 4, 4],
            "mode": dml.InterpolationMode.NEAREST_NEIGHBOR,
            "rounding_direction": dml.AxisDirection.DECREASING,
            "input_pixel_offsets": [0.0] * 4,
            "output_pixel_offsets": [0.0] * 4,
        },
    ),
    "resample_grad": Case(
        (drawn(1, 1, 4, 4),),
        lambda x: np.add.reduceat(np.add.reduceat(x, [0, 1], 2), [0, 1], 3),  # as `resample` takes 0, 1, 1, 1
        {"output_sizes": [1, 1, 2, 2], "mode": dml.InterpolationMode.NEAREST_NEIGHBOR},
    ),
    "slice": Case((IMAGE,), lambda x: x[:, :, 1:5:2, 4:0:-1], WINDOW),
    "slice_grad": Case((drawn(1, 3, 2, 4),), _placed, {**WINDOW, "output_gradient_sizes": [1, 3, 6, 6]}),
    "padding": Case(
        (IMAGE,),
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2), (2, 1)), "reflect"),
        {"padding_mode": dml.PaddingMode.REFLECTION, "start_padding": [0, 0, 1, 2], "end_padding": [0, 0, 2, 1]},
    ),
    "value_scale_2d": Case(
        (IMAGE,), lambda x: 2 * x + np.array([1, 2, 3], np.float32).reshape(C), {"scale": 2.0, "bias": [1.0, 2.0, 3.0]}
    ),
    "upsample_2d": Case(
        (ONE,),
        lambda x: x.repeat(3, 2).repeat(2, 3),
        {"scale_size": (2, 3), "interpolation_mode": dml.InterpolationMode.NEAREST_NEIGHBOR},
    ),
    "fill_value_constant": Case((), np.full((1, 1, 2, 2), -3, np.int32), {"sizes": [1, 1, 2, 2], "value": -3, "dtype": np.int32}),
    "fill_value_sequence": Case(
        (), shaped([[1, 1.5, 2], [2.5, 3, 3.5]]), {"sizes": [1, 1, 2, 3], "value_start": 1.0, "value_delta": 0.5}
    ),
    "reduce": Case((IMAGE,), lambda x: x.sum((1, 2), keepdims=True), {"function": dml.ReduceFunction.SUM, "axes": [1, 2]}),
    "cumulative_summation": Case(
        (ROW,),
        shaped([5.5, 2.5, 0.5, 0.0]),
        {"axis": 3, "axis_direction": dml.AxisDirection.DECREASING, "has_exclusive_sum": True},
    ),
    "cumulative_product": Case((ROW,), lambda x: np.cumprod(x, 3), {"axis": 3}),
    "non_zero_coordinates": Case(
        (shaped([[0.0, 2.0], [3.0, 0.0]]),), (np.array([2], np.uint32), np.array([[0, 0, 0, 1], [0, 0, 1, 0]], np.uint32))
    ),
    "quantize_linear": Case((ROW, np.full_like(ROW, 0.5), np.full((1, 1, 1, 4), 2, np.uint8)), shaped([4, 8, 6, 3], np.uint8)),
    "dequantize_linear": Case((shaped([4, 8, 6, 3], np.uint8), np.full_like(ROW, 0.5), np.full((1, 1, 1, 4), 2, np.uint8)), ROW),
    "dequantize": Case(
        (shaped([[0, 128], [255, 1]], np.uint8), np.full((1, 1, 1, 1), 0.5, np.float32)),
        shaped([[-64.0, 0.0], [63.5, -63.5]]),
        {"quantization_type": dml.QuantizationType.SCALE},
        lambda x, scale, **given: dml.dequantize(x, [scale], **given),
    ),
    "random_generator": Case(
        (np.zeros((1, 1, 1, 6), np.uint32),), _same("random_generator", output_sizes=[1, 1, 1, 4]), {"output_sizes": [1, 1, 1, 4]}
    ),
    "roi_align": Case(
        (FLAT, REGION, FIRST),
        FLAT[:, :, :2, :2],
        {**ROI, "out_of_bounds_input_value": 0.0, "output_height": 2, "output_width": 2},
    ),
    "roi_align_grad": Case(
        (np.ones((1, 1, 2, 2), np.float32), REGION, FIRST, FLAT),
        lambda gradient, roi, batch, x: tuple(
            tvmdml.roi_align_grad(
                x,
                gradient,
                roi,
                batch,
                **{**ROI, "reduction_function": "average", "interpolation_mode": "linear"},
                batch_size=1,
                image_height=4,
                image_width=4,
            )
        ),
        {**ROI, "batch_size": 1, "image_height": 4, "image_width": 4, "compute_output_roi_gradient": True},
    ),
    "convolution": Case(
        (IMAGE, FILTER, BIAS),
        lambda x, w, b: tvmdml.activation_relu(tvmdml.convolution(x, w, b, strides=[2, 2], start_padding=[1, 1])),
        {"strides": [2, 2], "start_padding": [1, 1], "fused_activation": dml.FusedActivation.relu()},
    ),
    "convolution_integer": Case(
        (IMAGE.astype(np.int8), FILTER.astype(np.int8)),
        lambda x, w: np.rint(tvmdml.convolution(x.astype(np.float32), w.astype(np.float32))).astype(np.int32),
    ),
    "quantized_linear_convolution": Case(
        (
            shaped([[1, 2], [3, 4]], np.uint8),
            *(np.full((1, 1, 1, 1), n, kind) for n, kind in ((0.5, "f4"), (3, "u1"), (1, "f4"), (1, "f4"))),
        ),
        shaped([[2, 3], [4, 6]], np.uint8),  # 1.5, 3, 4.5 and 6: halves are rounded to even
        {"output_dtype": np.uint8},
    ),
    "gemm": Case(
        (ONE, OTHER, ROW[..., :2].repeat(2, 2)),
        lambda a, b, c: 2 * a.swapaxes(2, 3) @ b + 3 * c,
        {"trans_a": dml.MatrixTransform.TRANSPOSE, "alpha": 2.0, "beta": 3.0},
    ),
    "mean_variance_normalization": Case(
        (IMAGE, STATISTICS[0], STATISTICS[3]),
        lambda x, scale, bias: _normal(x, (2, 3)) * scale + bias,
        {"axes": [2, 3]},
    ),
    "batch_normalization": Case(
        (IMAGE, *STATISTICS),
        lambda x, mean, variance, scale, bias: np.maximum(scale * (x - mean) / np.sqrt(variance + 1e-5) + bias, 0),
        {"fused_activation": dml.FusedActivation.relu()},
    ),
    "batch_normalization_training": Case(
        (IMAGE, *STATISTICS[2:], IMAGE),
        lambda x, scale, bias, more: (
            np.maximum(TRAINED[0] + more, 0),
            TRAINED[1],
            x.var((0, 2, 3), keepdims=True),
        ),
        {"fused_activation": dml.FusedActivation.relu()},
    ),
    "batch_normalization_grad": Case((IMAGE, IMAGE[::-1] + 1, *STATISTICS[:3]), _same("batch_normalization_grad")),
    "batch_normalization_training_grad": Case(
        (IMAGE, IMAGE[::-1] + 1, *STATISTICS[:3]), _same("batch_normalization_training_grad")
    ),
    "local_response_normalization": Case(
        (IMAGE,),
        _same("local_response_normalization", cross_channel=True, local_size=3, alpha=0.5, beta=0.75, bias=2.0),
        {"cross_channel": True, "local_size": 3, "alpha": 0.5, "beta": 0.75, "bias": 2.0},
    ),
    "average_pooling": Case(
        (IMAGE,),
        lambda x: x.reshape(1, 3, 3, 2, 3, 2).mean((3, 5)),
        {"strides": [2, 2], "window_sizes": [2, 2]},
    ),
    "max_pooling": Case((IMAGE,), lambda x: x.reshape(1, 3, 3, 2, 3, 2).max((3, 5)), {"strides": [2, 2], "window_sizes": [2, 2]}),
    "multihead_attention": Case(
        (drawn(2, 1, 3, 8), drawn(2, 1, 5, 8, seed=2), drawn(2, 1, 5, 8, seed=3)), _attention, {"head_count": 2, "scale": 0.5}
    ),
    "gru": Case(
        GRU,
        lambda *arrays: tuple(tvmdml.gru(*arrays)),
        {"activation_descs": [dml.FusedActivation.sigmoid(), dml.FusedActivation.tanh()]},
    ),
    "clip_grad": Case((MIXED, MIXED + 7), lambda x, g: np.where(np.abs(x) <= 1, g, 0), {"min": -1.0, "max": 1.0}),
    "reinterpret": Case((IMAGE,), lambda x: x.swapaxes(2, 3), {"sizes": [1, 3, 6, 6], "strides": [108, 36, 1, 6]}),
    "broadcast": Case((BIAS,), lambda x: np.broadcast_to(x, (2, 4, 3, 5)), {"shape": [2, 4, 3, 5]}),
}


def computed(device: dml.Device, case: Case, name: str) -> list[np.ndarray]:
    """The results of a graph of one function."""
    graph = dml.Graph(device)
    inputs = [graph.input(array.shape, array.dtype) for array in case.arrays]
    found = (case.call or getattr(dml, name))(*(inputs or [graph]), **case.keywords)
    several = [found] if isinstance(found, dml.Expression) else [one for one in found if one is not None]
    described = [(one.shape, one.dtype) for one in several]
    results = graph.compile(several)(dict(zip(inputs, case.arrays, strict=True)))
    assert [(one.shape, one.dtype) for one in results] == described
    return results


def test_the_table_has_every_function() -> None:
    written = {name for name, one in vars(dml).items() if inspect.isfunction(one) and name[0] != "_"}
    assert len(CASES) == 128
    assert written == set(CASES)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", CASES)
def test_a_function_computes_what_it_says(name: str) -> None:
    check(dml.Device(use_gpu=False), name)


@pytest.mark.full(first=1)
@pytest.mark.drawn("name", CASES, 12, "fill_value_sequence", "gemm", "split", "top_k")
def test_functions_compute_the_same_on_other_devices(device: Target, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TVMDML_DEVICE", device.name)
    home = dml.Device()
    assert repr(home) == "dml.Device on GPU"
    check(home, name)


def check(device: dml.Device, name: str) -> None:
    """Compare a function's results with what is right."""
    case = CASES[name]
    found = computed(device, case, name)
    right = case.right(*case.arrays) if callable(case.right) else case.right
    wanted = [right] if isinstance(right, np.ndarray) else list(right)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if name == "non_zero_coordinates":
            one = one[: len(other)]
        assert one.shape == np.shape(other)
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        else:
            assert one.dtype == np.asarray(other).dtype
            assert np.array_equal(one, other)

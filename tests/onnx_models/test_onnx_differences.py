"""The table of differing answers in ``tvmdml/onnx/DIFFERENCES.md``: each of its rows has a model here, and the three answers."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import single  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX

F, H, NONE = np.float32, np.float16, np.zeros(0, np.float32)
INF, NAN, MOST = np.inf, np.nan, float(np.finfo(np.float32).max)
LEAST32, MOST32, MOST64 = -(2**31), 2**31 - 1, 2**63 - 1
CONTRIB = "com.microsoft"
REFUSED = None  # in place of the results of an operator that is refused or not there


class Case(NamedTuple):
    """A node, or one of each operator of the row, and its results: of all these operators, one after the other.

    An answer is compared by shape and elements, and where it is an array also by type.
    """

    inputs: Any  # for each operator, where it is a dict
    about: dict[str, Any]
    here: list[Any]
    runtime: list[Any]
    reference: list[Any]
    loaded: Mapping[str, str] = {}  # of ``load``


def f(*numbers: float) -> Any:
    return np.array(numbers, F)


def i32(*numbers: int) -> Any:
    return np.array(numbers, np.int32)


def i64(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def line(*numbers: float, kind: Any = F) -> Any:
    """An image of one row."""
    return np.array(numbers, kind).reshape(1, 1, 1, -1)


def scaled(x: Any, *scales: float, **about: Any) -> tuple[Any, dict[str, Any]]:
    return [x, NONE, f(*scales)], {"known": [1, 2], **about}


def sized(x: Any, *sizes: int, region: Any = NONE, **about: Any) -> tuple[Any, dict[str, Any]]:
    return [x, region, NONE, i64(*sizes)], {"known": [1, 2, 3], **about}


SQUARE = np.arange(16, dtype=F).reshape(1, 1, 4, 4)
BYTES = (np.arange(16) * 7 % 16 * 7).astype(np.uint8).reshape(4, 4)
ROWS = (np.arange(5)[None, :, None] + np.zeros(8)).astype(F)
PAST = np.full((2, 1, 3, 8), 7, F)
NEXT = np.ones((2, 1, 8), F)
ZERO = np.zeros((1, 1, 2, 1), F)
STEPS = f(1, 2, 3).reshape(3, 1, 1)


def gates(count: int) -> Any:
    """Steps, weights and recurrent weights of one cell."""
    return [STEPS, np.ones((1, count, 1), F), np.full((1, count, 1), 0.5, F)]


def column(*numbers: float) -> Any:
    return np.array(numbers, F).reshape(-1, 1, 1, 1)


def heads(*rows: Any) -> Any:
    """Of two texts: rows of 8 equal elements."""
    return (np.array(rows, F)[:, None, :, None] + np.zeros(8, F)).tolist()


def eights(*numbers: float) -> Any:
    """Rows of 8 equal elements."""
    return [[number] * 8 for number in numbers]


CASES: dict[tuple[str, str], Case] = {
    ("AffineGrid", "aligned corners, and an axis of one element"): Case(
        [np.array([[[1, 0, 0], [0, 1, 0]]], F), i64(1, 1, 1, 2)],
        {"align_corners": 1, "known": [1]},
        [[[[[-1, 0], [1, 0]]]]],
        [[[[[-1, 1], [1, 1]]]]],
        [[[[[-1, -1], [1, -1]]]]],
    ),
    ("ArgMax, ArgMin", "NaN"): Case([f(1, NAN, 3)], {"keepdims": 0}, [1, 1], [2, 0], [1, 1]),
    ("Attention", "is_causal, one query, earlier rows and several new ones"): Case(
        [ZERO[:, :, :1], ZERO, f(1, 3).reshape(ZERO.shape), None, ZERO[:, :, :1], f(7).reshape(1, 1, 1, 1)],
        {"opset": 23, "outputs": 3, "is_causal": 1},
        [[[[[4]]]], [[[[0], [0], [0]]]], [[[[7], [1], [3]]]]],
        [[[[[11 / 3]]]], [[[[0], [0], [0]]]], [[[[7], [1], [3]]]]],
        [[[[[4]]]], [[[[0], [0], [0]]]], [[[[7], [1], [3]]]]],
    ),
    ("Attention", "scores that are masked, as an output"): Case(
        [ZERO, ZERO, f(1, 3).reshape(ZERO.shape)],
        {"opset": 23, "outputs": 4, "is_causal": 1, "qk_matmul_output_mode": 2},
        [[[[[1], [2]]]], [[[[0], [0]]]], [[[[1], [3]]]], [[[[0, -INF], [0, 0]]]]],
        [[[[[1], [2]]]], [[[[0], [0]]]], [[[[1], [3]]]], [[[[0, -MOST], [0, 0]]]]],
        [[[[[1], [2]]]], [[[[0], [0]]]], [[[[1], [3]]]], [[[[0, -INF], [0, 0]]]]],
    ),
    ("AveragePool, LpPool, MaxPool", "auto_pad of SAME, and dilations"): Case(
        [f(1, 2, 3, 4).reshape(1, 1, 4)],
        {"auto_pad": "SAME_UPPER", "kernel_shape": [2], "dilations": [2]},
        [[[[2, 2, 3, 3]]], [[[2, 10**0.5, 20**0.5, 3]]], [[[2, 3, 4, 3]]]],
        [[[[2, 3, 3]]], [[[10**0.5, 20**0.5, 3]]], [[[3, 4, 3]]]],
        [[[[2, 3, 3, 0]]], [[[10**0.5, 20**0.5, 3, 0]]], [[[2, 3, 4, 3]]]],
    ),
    ("AveragePool, LpPool, MaxPool", "auto_pad of SAME, and a kernel that is smaller than the stride"): Case(
        [f(1, 2, 3).reshape(1, 1, 3)],
        {"auto_pad": "SAME_UPPER", "kernel_shape": [1], "strides": [3]},
        [[[[1]]], [[[1]]], [[[1]]]],
        [[[[2]]], [[[2]]], REFUSED],
        [REFUSED, REFUSED, [[[2]]]],
    ),
    ("BatchNormalization", "float16, with statistics of float32"): Case(
        [np.array([[1], [3]], H), np.ones(1, H), np.zeros(1, H), f(0), f(1)],
        {"outputs": 3, "training_mode": 1},
        [np.array([[-1], [1]], H), f(0.2), f(1)],
        [np.array([[-1], [1]], H), f(0.2), f(1)],
        [np.array([[-1], [1]], H), np.array([0.2], H), np.ones(1, H)],
    ),
    ("Cast", "a float beyond the integer's range, or NaN"): Case(
        [f(300, -129, NAN)], {"to": 2}, [[255, 0, 0]], [[44, 127, 0]], [[44, 127, 0]]
    ),
    ("CenterCropPad", "sizes of int32"): Case([f(0, 1, 2, 3), i32(2)], {}, [[1, 2]], [REFUSED], [[1, 2]]),
    ("Clip", "infinities without limits, from version 11"): Case(
        [f(INF, -INF)], {"opset": 13}, [[MOST, -MOST]], [[MOST, -MOST]], [[INF, -INF]]
    ),
    ("Col2Im", "dilations, in one dimension of space"): Case(
        [np.arange(1, 13, dtype=F).reshape(1, 4, 3), i64(5), i64(2)],
        {"dilations": [2], "known": [1, 2]},
        [[[[1, 2, 7, 5, 6], [7, 8, 19, 11, 12]]]],
        [[[[1, 2, 7, 5, 13], [10, 11, 12, 0, 0]]]],
        [[[[1, 2, 7, 5, 6], [7, 8, 19, 11, 12]]]],
    ),
    ("ConvTranspose", "auto_pad of SAME, and a kernel that is smaller than the stride"): Case(
        [f(1, 2, 3).reshape(1, 1, 3), f(1).reshape(1, 1, 1)],
        {"strides": [2], "auto_pad": "SAME_UPPER"},
        [[[[1, 0, 2, 0, 3]]]],
        [[[[1, 0, 2, 0, 3]]]],
        [[[[0, 1, 0, 2, 0, 3]]]],
    ),
    ("DFT", "inverse and onesided, to other lengths than the usual one"): Case(
        [f(1, 0, 2, 1, 4, 0).reshape(1, 3, 2), i64(6).reshape(()), i64(1).reshape(())],
        {"inverse": 1, "onesided": 1, "known": [1, 2]},
        [[[[2.1666667], [-0.4553418], [-1.1220086], [0.8333333], [-0.5446582], [0.1220085]]]],
        [[[[1.5], [-0.1220084], [-0.7886752], [0.1666664], [-0.211325], [0.4553415]]]],
        [[[[2.1666667], [-0.4553418], [-1.1220086], [0.8333333], [-0.5446582], [0.1220085]]]],
    ),
    ("Div, Mod", "integers, by 0"): Case([i32(7, -7), i32(0, 0)], {}, [[0, 0], [0, 0]], [REFUSED, REFUSED], [[0, 0], [0, 0]]),
    ("Dropout", "its mask, before version 12"): Case(
        [f(1, 2)], {"opset": 10, "outputs": 2}, [[1, 2], [1, 1]], [[1, 2], [0, 0]], [[1, 2], [1, 1]]
    ),
    ("DynamicQuantizeLinear", "zeros only"): Case([f(0, 0)], {"outputs": 3}, [[0, 0], 1, 0], [[0, 0], 1, 0], [[0, 0], 1 / 255, 0]),
    ("DynamicQuantizeLSTM", "elements that are no multiples of a 255th of their range"): Case(
        # Of a unit whose functions change nothing, and whose cell is the sum of the elements.
        [
            f(127, 0.4).reshape(1, 1, 2),
            np.array([[[0, 0, 0, 1]] * 2], np.int8),
            np.zeros((1, 1, 4), np.int8),
            f(1, 1, 0, 0, 0, 0, 0, 0).reshape(1, 8),
            *[None] * 4,
            *[f(1), np.zeros(1, np.int8)] * 2,
        ],
        {
            "hidden_size": 1,
            "activations": ["Affine"] * 3,
            "activation_alpha": [1.0] * 3,
            "activation_beta": [0.0] * 3,
            "known": [1, 2, 3, 8, 9, 10, 11],
            "domain": CONTRIB,
        },
        [[[[[127.4]]]]],
        [[[[[127.49804]]]]],
        [REFUSED],
    ),
    ("Einsum", "sums of int64, beyond 2^53"): Case([i64(2**53 + 1)], {"equation": "i->"}, [2**53 + 1], [2**53], [2**53 + 1]),
    ("Einsum", "sums of int32, beyond the range"): Case(
        [i32(2**30, 2**30, 5)], {"equation": "i->"}, [-(2**31) + 5], [MOST32], [-(2**31) + 5]
    ),
    ("Gather", "an index beyond the elements"): Case([f(1, 2, 3), i64(5, -9)], {}, [[3, 1]], [REFUSED], [REFUSED]),
    ("GlobalMaxPool", "NaN"): Case([line(1, NAN, 3)], {}, [line(NAN)], [line(3)], [line(NAN)]),
    ("GlobalMaxPool", "one axis of space"): Case([f(1, 3, 2).reshape(1, 1, 3)], {}, [[[[3]]]], [[[[3]]]], [[[3]]]),
    ("GridSample", "infinities"): Case(
        [f(1, 2, 3, 4).reshape(1, 1, 2, 2), f(INF, 0, -INF, 0, 0, INF).reshape(1, 1, 3, 2)],
        {"mode": "nearest"},
        [[[[[0, 0, 0]]]]],
        [[[[[1, 1, 1]]]]],
        [[[[[0, 0, 0]]]]],
    ),
    ("GridSample", "linear, of integers"): Case(
        [i32(1, 100).reshape(1, 1, 1, 2), f(0.5, 0).reshape(1, 1, 1, 2)],
        {"align_corners": 1},
        [[[[[75]]]]],
        [REFUSED],
        [[[[[0]]]]],
    ),
    ("GroupQueryAttention", "rows of what is kept behind a text's end"): Case(
        [NEXT * 0, NEXT, NEXT, PAST, PAST, i32(2, 1), i32(3).reshape(())],
        {"num_heads": 1, "kv_num_heads": 1, "outputs": 3, "domain": CONTRIB},
        [[eights(5), eights(4)], heads([7, 7, 1], [7, 1, 7]), heads([7, 7, 1], [7, 1, 7])],
        [[eights(5), eights(4)], heads([7, 7, 1], [7, 1, 0]), heads([7, 7, 1], [7, 1, 0])],
        [REFUSED],
    ),
    ("Hardmax", "NaN"): Case([f(1, NAN, 2)], {}, [[0, 1, 0]], [[0, 0, 1]], [[0, 1, 0]]),
    ("LayerNormalization", "float16, with statistics asked for"): Case(
        [np.array([[1, 3]], H), np.ones(2, H), np.zeros(2, H)],
        {"outputs": 3},
        [np.array([[-1, 1]], H), f(2).reshape(1, 1), f(0.999995).reshape(1, 1)],
        [np.array([[-1, 1]], H), f(2).reshape(1, 1), f(0.999995).reshape(1, 1)],
        [np.array([[-1, 1]], H), np.full((1, 1), 2, H), np.ones((1, 1), H)],
    ),
    ("LSTM, GRU, RNN", "a clip"): Case(
        {"LSTM": gates(4), "GRU": gates(3), "RNN": gates(1)},
        {"hidden_size": 1, "clip": 0.5},
        [column(0.1742697, 0.2710987, 0.3245003), column(0.174468, 0.2830672, 0.3506658), column(0.4621171, 0.4621171, 0.4621171)],
        [column(0.1742697, 0.2710987, 0.3245003), column(0.174468, 0.2830672, 0.3506658), column(0.4621171, 0.4621171, 0.4621171)],
        [column(0.3696064, 0.7912359, 0.948218), column(0.2048242, 0.2881166, 0.3173808), column(0.7615942, 0.9830411, 0.9981468)],
    ),
    ("LRN", "more channels than images"): Case(
        [f(1, 2).reshape(1, 2, 1, 1)],
        {"size": 1, "alpha": 1.0, "beta": 1.0},
        [[[[[0.5]], [[0.4]]]]],
        [[[[[0.5]], [[0.4]]]]],
        [[[[[0.5]], [[2]]]]],
    ),
    ("LSTM", "the functions Affine, ScaledTanh and ThresholdedRelu without their numbers"): Case(
        gates(4),
        {"hidden_size": 1, "activations": ["Affine", "ThresholdedRelu", "ScaledTanh"]},
        [column(0, 1.9986587, 3.9993293)],
        [column(0, 0, 0)],
        [column(0.3696064, 0.7912359, 0.948218)],
    ),
    ("MaxPool", "NaN"): Case(
        [f(1, NAN, 3, 2).reshape(1, 1, 4)], {"kernel_shape": [2]}, [[[[NAN, NAN, 3]]]], [[[[1, 3, 3]]]], [[[[1, 3, 3]]]]
    ),
    ("MaxPool", "a storage_order of 1"): Case(
        [np.arange(6, dtype=F).reshape(1, 1, 2, 3)],
        {"outputs": 2, "kernel_shape": [1, 1], "storage_order": 1},
        [[[[[0, 1, 2], [3, 4, 5]]]], [[[[0, 2, 4], [1, 3, 5]]]]],
        [[[[[0, 1, 2], [3, 4, 5]]]], [[[[0, 2, 4], [1, 3, 5]]]]],
        [[[[[0, 1, 2], [3, 4, 5]]]], [[[[0, 1, 2], [3, 4, 5]]]]],
    ),
    ("MaxRoiPool", "NaN"): Case(
        [line(1, NAN, 3), f(0, 0, 0, 2, 0).reshape(1, 5)], {"pooled_shape": [1, 1]}, [line(NAN)], [line(3)], [REFUSED]
    ),
    ("MatMul", 'weights, and factors of more than 8 bits, where precision="bf16"'): Case(
        [np.full((1, 32), 1 + 2**-8, F), np.ones((32, 1), F)],
        {"known": [1]},
        [[[32]]],
        [[[32.125]]],
        [[[32.125]]],
        {"precision": "bf16"},
    ),
    ("MatMulNBits", "an accuracy_level of 4"): Case(
        [f(127, 0.4, *[0] * 14).reshape(1, 16), np.full((1, 1, 8), 0x99, np.uint8), f(1)],
        {"K": 16, "N": 1, "bits": 4, "block_size": 16, "accuracy_level": 4, "known": [1, 2], "domain": CONTRIB},
        [[[127.4]]],
        [[[127]]],
        [REFUSED],
    ),
    ("MaxUnpool", "an output_shape that is larger than the windows"): Case(
        [f(1, 2).reshape(1, 1, 1, 2), i64(1, 6).reshape(1, 1, 1, 2), i64(1, 1, 2, 5)],
        {"kernel_shape": [2, 2], "strides": [2, 2], "known": [2]},
        [[[[[0, 1, 0, 0, 0], [0, 0, 2, 0, 0]]]]],
        [[[[[0, 1, 0, 0, 0], [0, 2, 0, 0, 0]]]]],
        [[[[[0, 1, 0, 0, 0], [0, 0, 2, 0, 0]]]]],
    ),
    ("MeanVarianceNormalization", "a deviation of less than 1e-6"): Case(
        [line(0, 2e-9)], {}, [line(-0.7071068, 0.7071068)], [line(-1, 1)], [line(-0.5, 0.5)]
    ),
    ("MultiHeadAttention", "unidirectional, and more or fewer keys than queries"): Case(
        [np.zeros((1, 3, 8), F), np.zeros((1, 5, 8), F), ROWS],
        {"num_heads": 1, "unidirectional": 1, "domain": CONTRIB},
        [[eights(1, 1.5, 2)]],
        [[eights(0, 0.5, 2)]],
        [REFUSED],
    ),
    ("Pad", "constant axes of int32"): Case(
        [f(1, 2), i64(1, 1), None, i32(0)], {"known": [1, 3]}, [[0, 1, 2, 0]], [REFUSED], [[0, 1, 2, 0]]
    ),
    ("Pow", "integers, beyond the range"): Case(
        [i32(3, 2), i32(25, 33)], {}, [[1180052131, 0]], [[LEAST32, LEAST32]], [[1180052131, 0]]
    ),
    ("Pow", "0 to the power of a negative integer"): Case([i32(0), i32(-1)], {}, [[0]], [[LEAST32]], [REFUSED]),
    ("Pow", "int64 to the power of a fraction"): Case(
        [i64(123456789), f(1.5)], {}, [[1371742142464]], [[1371742093758]], [[1371742093758]]
    ),
    ("QuantizeLinear", "infinity"): Case(
        [f(INF, -INF), f(1).reshape(()), np.uint8(3)], {"known": [1, 2]}, [[255, 0]], [[255, 0]], [[0, 0]]
    ),
    ("QuantizeLinear", "NaN"): Case([f(NAN), f(1).reshape(()), np.int8(3)], {"known": [1, 2]}, [[3]], [[-128]], [[-128]]),
    ("ReduceLogSum", "integers whose sum is negative"): Case([i32(-5, 2)], {"keepdims": 0}, [0], [LEAST32], [REFUSED]),
    ("ReduceLogSumExp", "nothing but negative infinity"): Case([f(-INF, -INF)], {"keepdims": 0}, [-INF], [-INF], [NAN]),
    ("ReduceMax, ReduceMin", "NaN behind a number"): Case([f(1, NAN, 3)], {"keepdims": 0}, [NAN, NAN], [3, 1], [NAN, NAN]),
    ("ReduceMean", "int64, beyond 2^53"): Case([i64(2**53 + 1)], {"keepdims": 0}, [2**53 + 1], [2**53], [2**53]),
    ("ReduceMean", "integers whose sum is beyond the range"): Case(
        [i32(2**30, 2**30, 2**30)], {"keepdims": 0}, [2**30], [2**30], [-357913941]
    ),
    ("ReduceMean", "no floats"): Case(
        [np.zeros((0, 2), F), i64(0)], {"keepdims": 0, "known": [1]}, [[NAN, NAN]], [[0, 0]], [[NAN, NAN]]
    ),
    ("ReduceMean", "no integers"): Case(
        [np.zeros((0, 2), np.int32), i64(0)], {"keepdims": 0, "known": [1]}, [[0, 0]], [[0, 0]], [[LEAST32, LEAST32]]
    ),
    ("ReduceSum, ReduceProd, ReduceL1", "int64, beyond 2^53"): Case(
        [i64(2**53 + 1)], {"keepdims": 0}, [2**53 + 1] * 3, [2**53] * 3, [2**53 + 1] * 3
    ),
    ("ReduceSum, ReduceProd, ReduceL1, ReduceSumSquare", "int32, beyond the range"): Case(
        [i32(2**30, 2**30, 5)],
        {"keepdims": 0},
        [-(2**31) + 5, 0, -(2**31) + 5, 25],
        [MOST32] * 4,
        [-(2**31) + 5, 0, -(2**31) + 5, 25],
    ),
    ("Resize", "antialias of int8 below 0"): Case(
        *sized(np.arange(16).astype(np.int8).reshape(4, 4) - np.int8(20), 2, 2, mode="linear", antialias=1),
        [[[-17, -15], [-10, -8]]],
        [[[0, 0], [0, 0]]],
        [[[-17, -15], [-10, -8]]],
    ),
    ("Resize", "antialias of integers along two axes"): Case(
        *sized(BYTES, 2, 2, mode="linear", antialias=1), [[[46, 52], [57, 55]]], [[[47, 51], [57, 55]]], [[[46, 52], [57, 55]]]
    ),
    ("Resize", "cubic, of integers"): Case(
        *sized(BYTES, 2, 2, mode="cubic"), [[[30, 55], [76, 48]]], [REFUSED], [[[30, 55], [76, 48]]]
    ),
    ("Resize", "half_pixel_symmetric, nearest, at an element's place"): Case(
        *scaled(np.arange(9, dtype=F), 0.5, coordinate_transformation_mode="half_pixel_symmetric"),
        [[1, 3, 5, 7]],
        [[1, 3, 5, 7]],
        [[0, 3, 5, 7]],
    ),
    ("Resize", "keep_aspect_ratio_policy with negative axes"): Case(
        *sized(f(0, 1).reshape(1, 2), 2, 2, axes=[-2, -1], keep_aspect_ratio_policy="not_smaller"),
        [[[0, 0, 1, 1], [0, 0, 1, 1]]],
        [[[0, 1]]],
        [REFUSED],
    ),
    ("Resize", "linear, of integers, without antialias"): Case(
        *sized(line(0, 7, kind=np.uint8), 1, 1, 1, 4, mode="linear"),
        [[[[[0, 1, 5, 7]]]]],
        [[[[[0, 1, 5, 7]]]]],
        [[[[[0, 2, 5, 7]]]]],
    ),
    ("Resize", "linear, with aligned corners, by a scale of which a part of an element is left"): Case(
        *scaled(line(0, 1, 2, 3), 1, 1, 1, 1.7, mode="linear", coordinate_transformation_mode="align_corners"),
        [line(0, 0.6, 1.2, 1.8, 2.4, 3)],
        [line(0, 0.6, 1.2, 1.8, 2.4, 3)],
        [line(0, 0.5172414, 1.0344827, 1.5517241, 2.068966, 2.5862069)],
    ),
    ("Resize", "scales whose product with the size is nearly an integer"): Case(
        *scaled(np.arange(20, dtype=F), 1.3, coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        [[i * 10 // 13 for i in range(26)]],
        [[i * 10 // 13 for i in range(26)]],
        [[i * 10 // 13 for i in range(25)]],
    ),
    ("Resize", "tf_crop_and_resize to the size that the input has"): Case(
        *sized(f(0, 1, 2, 3), 4, region=f(0, 0.5), coordinate_transformation_mode="tf_crop_and_resize"),
        [[0, 0, 1, 1]],
        [[0, 1, 2, 3]],
        [[0, 0, 1, 1]],
    ),
    ("RoiAlign", "versions 10 to 15"): Case(
        [SQUARE, f(0, 0, 2, 2).reshape(1, 4), i64(0)],
        {"opset": 15, "output_height": 2, "output_width": 2, "sampling_ratio": 1},
        [[[[[2.5, 3.5], [6.5, 7.5]]]]],
        [[[[[2.5, 3.5], [6.5, 7.5]]]]],
        [[[[[0, 1], [4, 5]]]]],
    ),
    ("ScatterElements, ScatterND", "an index beyond the elements"): Case(
        {"ScatterElements": [f(1, 2), i64(2, 0), f(9, 8)], "ScatterND": [f(1, 2), i64(2, 0).reshape(2, 1), f(9, 8)]},
        {},
        [[8, 2], [8, 2]],
        [REFUSED, REFUSED],
        [REFUSED, REFUSED],
    ),
    ("ScatterElements, ScatterND", "max, and an element that is NaN"): Case(
        {"ScatterElements": [f(NAN, 2), i64(0), f(9)], "ScatterND": [f(NAN, 2), i64(0).reshape(1, 1), f(9)]},
        {"reduction": "max"},
        [[NAN, 2], [NAN, 2]],
        [[9, 2], [9, 2]],
        [[NAN, 2], [NAN, 2]],
    ),
    ("Shrink", "integers, beyond 2^24"): Case([i32(2**24 + 1)], {"bias": 1.0}, [[2**24]], [[2**24 - 1]], [[2**24]]),
    ("Shrink", "integers, with a bias that is none"): Case([i32(3, -3)], {"bias": 0.5}, [[3, -3]], [[2, -2]], [[2, -2]]),
    ("Sign", "NaN"): Case([f(NAN, 2)], {}, [[0, 1]], [[NAN, 1]], [[NAN, 1]]),
    ("Slice", "an end of 2^63 - 1, and a step of -1"): Case(
        [f(1, 2, 3), i64(2), i64(MOST64), i64(0), i64(-1)], {"known": [1, 2, 3, 4]}, [[]], [[3, 2, 1]], [[]]
    ),
    ("TopK", "not sorted"): Case(
        [f(3, 1, 5, 4, 2, 0, 9, 7), i64(3)],
        {"outputs": 2, "sorted": 0},
        [[9, 7, 5], [6, 7, 2]],
        [[5, 7, 9], [2, 7, 6]],
        [[9, 7, 5], [6, 7, 2]],
    ),
    ("Unique", "NaN"): Case(
        [f(NAN, 1, NAN, 1)],
        {"outputs": 4},
        [[1, NAN], [1, 0], [1, 0, 1, 0], [2, 2]],
        [[NAN], [0], [0, 0, 0, 0], [4]],
        [[1, NAN], [1, 0], [1, 0, 1, 0], [2, 2]],
    ),
}


def answer(operators: str, case: Case, run: Callable[[Any, Any, Mapping[str, str]], Any], may_refuse: bool = True) -> list[Any]:
    """The results of all operators of a row, with ``REFUSED`` in place of those of an operator that is refused."""
    results: list[Any] = []
    for kind in operators.split(", "):
        model, feeds = single(kind, case.inputs[kind] if isinstance(case.inputs, dict) else case.inputs, **case.about)
        try:
            results.extend(np.asarray(array) for array in run(model, feeds, case.loaded))
        except Exception:
            if not may_refuse:
                raise
            results.append(REFUSED)
    return results


def same(given: Any, right: Any) -> bool:
    """Whether a result is the one in the table: integers exactly, floats but for their last digits."""
    if given is REFUSED or right is REFUSED:
        return given is right
    if isinstance(right, np.ndarray) and given.dtype != right.dtype:
        return False
    right = np.asarray(right)
    if given.shape != right.shape:
        return False
    if given.dtype.kind == "f":
        rough = 1e-3 if given.dtype == np.float16 else 1e-5
        return bool(np.allclose(given.astype(np.float64), right.astype(np.float64), rough, rough, equal_nan=True))
    return bool(np.array_equal(given, right))


def others(library: str, run: Callable[[Any, Any, Mapping[str, str]], Any], may_refuse: bool = True) -> dict[str, Any]:
    """The rows of which a library's answers are not those in the table."""
    wrong = {}
    for (operators, text), case in CASES.items():
        given, right = answer(operators, case, run, may_refuse), getattr(case, library)
        if len(given) != len(right) or not all(map(same, given, right)):
            wrong[f"{operators}: {text}"] = given, right
    return wrong


def needs(package: str, version: str) -> None:
    """Skip, where a package's answers are not those that the table is about."""
    if util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; the table is about {version}")
    installed = metadata.version(package)
    if not installed.startswith(f"{version}."):
        pytest.skip(f"{package} {installed} is installed; the table is about {version}")
    if platform.machine() not in {"x86_64", "AMD64"}:
        pytest.skip(f"conversions of {package} depend on the processor; the table is about x86-64, and not {platform.machine()}")


def test_the_document_has_the_rows_of_the_cases_in_the_order_of_operators() -> None:
    text = (Path(tvmdml.onnx.__file__).parent / "DIFFERENCES.md").read_text(encoding="utf-8")
    rows = [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in text.splitlines() if row.startswith("| ")][2:]
    assert {len(row) for row in rows} == {6}
    written = [row[:2] for row in rows]
    assert len(set(written)) == len(written)
    assert set(written) == set(CASES)
    operators = [row[0].casefold() for row in rows]
    assert operators == sorted(operators)


def test_the_answers_of_a_row_differ() -> None:
    assert not [key for key, case in CASES.items() if repr(case.here) == repr(case.runtime) == repr(case.reference)]


@pytest.mark.full
def test_answers_here_are_those_of_the_table() -> None:
    assert not others("here", lambda model, feeds, loaded: tvmdml.onnx.load(model, **loaded)(feeds), may_refuse=False)


@pytest.mark.full
def test_answers_of_onnx_runtime_are_those_of_the_table() -> None:
    needs("onnxruntime", "1.32")
    runtime: Any = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # models that are refused are no news
    options.intra_op_num_threads = 1

    def run(model: Any, feeds: Any, _: Mapping[str, str]) -> Any:
        session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, feeds)

    assert not others("runtime", run)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_answers_of_the_reference_are_those_of_the_table() -> None:
    needs("onnx", "1.23")
    from onnx.reference import ReferenceEvaluator

    assert not others("reference", lambda model, feeds, _: ReferenceEvaluator(model).run(None, feeds))

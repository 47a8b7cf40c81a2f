"""Small models at the edges of what ONNX allows, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

from onnx_nodes import single  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX


def f(*shape: int) -> Any:
    return np.random.default_rng(9).standard_normal(shape).astype(np.float32)


def i(*shape: int) -> Any:
    return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)


ODD: dict[str, tuple[str, list[Any], dict[str, Any], tuple[int, ...]]] = {
    "a window beyond the padding": (
        "MaxPool",
        [f(1, 2, 4, 4)],
        {"kernel_shape": [6, 5], "strides": [4, 2], "pads": [0, 0, 1, 0]},
        (),
    ),
    "its average": ("AveragePool", [f(2, 1, 4, 3)], {"kernel_shape": [5, 3], "strides": [2, 2]}, ()),
    "its average, with padding": (
        "AveragePool",
        [f(2, 1, 4)],
        {"kernel_shape": [3], "dilations": [3], "strides": [3], "pads": [1, 0], "count_include_pad": 1},
        (),
    ),
    "its norm": ("LpPool", [f(1, 1, 3, 4, 3)], {"kernel_shape": [4, 2, 2], "strides": [2, 1, 1]}, ()),
    "a window that begins behind the input": ("MaxPool", [f(1, 2, 4)], {"kernel_shape": [3], "strides": [4], "ceil_mode": 1}, ()),
    "two of those": (
        "AveragePool",
        [f(1, 2, 4, 8)],
        {"kernel_shape": [4, 3], "strides": [4, 4], "pads": [0, 0, 1, 1], "ceil_mode": 1},
        (),
    ),
    "no images": ("Resize", [f(0, 2, 4, 4), None, None, np.array([0, 2, 8, 3])], {"mode": "linear"}, (3,)),
    "images without rows": ("Resize", [f(1, 2, 0, 4), None, None, np.array([0, 3])], {"axes": [2, 3]}, (3,)),
    "a scatter of nothing": ("ScatterElements", [f(3, 4), i(0, 4), f(0, 4)], {}, ()),
    "a scatter of no columns": ("ScatterElements", [f(3, 4), i(2, 0), f(2, 0)], {"axis": 0, "reduction": "max"}, ()),
    "a scatter of some columns": ("ScatterElements", [f(3, 4), np.array([[-1, 0]]), f(1, 2)], {"axis": 0}, ()),
    "a scatter of some bools": (
        "ScatterElements",
        [f(3, 4, 2) > 0, np.array([[[2], [0]], [[3], [1]]], np.int32), f(2, 2, 1) > 0],
        {"axis": -2},
        (),
    ),
    "a slice from before the first element": (
        "Slice",
        [f(2, 4), np.array([-9, 3]), np.array([-9, -9]), np.array([0, 1]), np.array([-1, -2])],
        {},
        (1, 2, 3, 4),
    ),
    "a slice of constants": ("Slice", [f(2), np.array([-9]), np.array([-9]), np.array([0]), np.array([-1])], {}, (0, 1, 2, 3, 4)),
    "more cut than there is": ("Pad", [f(1, 2), np.array([3, 0, -2, 1]), np.array(1.5, np.float32)], {}, (1, 2)),
    "the first of corners": (
        "Resize",
        [f(1, 1, 5, 3), None, None, np.array([1, 1, 4, 1])],
        {"mode": "nearest", "coordinate_transformation_mode": "align_corners", "nearest_mode": "ceil"},
        (3,),
    ),
    "one cubic element": (
        "Resize",
        [f(1, 1, 2, 5), None, None, np.array([1, 1, 2, 1])],
        {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel"},
        (3,),
    ),
    "a scatter of no rows": ("ScatterND", [i(3, 4), i(0, 1), i(0, 4)], {}, (1,)),
    "a sum of no updates": ("ScatterND", [f(3, 4), i(0, 2), f(0)], {"reduction": "add"}, (1,)),
    "a product of no depth": ("Gemm", [f(3, 0), f(4, 0), f(4)], {"transB": 1, "alpha": 3.0, "beta": 2.0}, ()),
    "products of no depth": ("MatMul", [f(2, 3, 0), f(0, 4)], {}, ()),
    "a mean of integers": ("ReduceMean", [i(3, 4) - 5, np.array([1])], {"keepdims": 0}, (1,)),
    "a mean of one integer": ("ReduceMean", [np.array(-7, np.int32)], {}, ()),
    "a logarithm of integers": ("ReduceLogSum", [i(3, 4), np.array([0])], {}, (1,)),
    "an image without channels": ("Conv", [f(1, 0, 4, 4), f(3, 0, 2, 2), f(3)], {}, (1,)),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_at_the_edge_is_what_onnx_runtime_makes(name: str) -> None:
    kind, arrays, attributes, weights = ODD[name]
    made, given = single(kind, arrays, weights, **attributes)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (right,), (found,) = session.run(None, given), tvmdml.onnx.load(made)(given)
    assert (found.dtype, found.shape) == (right.dtype, right.shape)
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)

"""Arithmetic of models: integers wrap and are exact, and types that ONNX allows together give what the wider one does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import N, model, results  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX


def same(found: Any, wanted: Any) -> bool:
    wanted = np.asarray(wanted)
    return found.dtype == wanted.dtype and found.shape == wanted.shape and bool(np.array_equal(found, wanted, equal_nan=True))


def test_powers_of_integers_are_exact_and_wrap() -> None:
    x = np.array([4097, 5001, -46341, 3, -1, 0], np.int32)
    y = np.array([2, 2, 3, 21, 7, 0], np.int32)
    wanted = [(int(a) ** int(b) + 2**31) % 2**32 - 2**31 for a, b in zip(x, y, strict=True)]
    assert results("Pow", [x, y])[0].tolist() == wanted
    wide, two = np.array([2097151, -3037000500], np.int64), np.array(2, np.int64)
    for constants in ((), (1,), (0, 1)):
        assert same(results("Pow", [wide, two], constants)[0], wide * wide)


@pytest.mark.full
def test_reductions_of_integers_have_no_sum_beyond_the_range() -> None:
    large = np.array([[2**31 - 1, 2**31 - 1, 2**31 - 3], [-(2**31), -(2**31), -(2**31) + 2], [-5, 3, 1], [5, -3, -1]], np.int32)
    axis = np.array([1])
    wanted = [int(np.sign(n)) * (abs(int(n)) // 3) for n in large.astype(object).sum(1)]
    assert results("ReduceMean", [large, axis], (1,), keepdims=0)[0].tolist() == wanted
    wide = np.array([[2**63 - 1, 2**63 - 1], [-(2**63), -(2**63)], [-(2**63), 2**63 - 1]], np.int64)
    assert results("ReduceMean", [wide, axis], (1,), keepdims=0)[0].tolist() == [2**63 - 1, -(2**63), 0]
    legs = np.array([[30000, 40000], [3, 4], [-5, 12]], np.int32)
    assert results("ReduceL2", [legs, axis], (1,), keepdims=0)[0].tolist() == [50000, 5, 13]
    sums = np.array([[2**30, 2**30], [1, 1]], np.int64)
    assert results("ReduceLogSum", [sums, axis], (1,), keepdims=0)[0].tolist() == [21, 0]
    squares = np.array([[2**16, 3], [1, 2]], np.int32)
    assert results("ReduceSumSquare", [squares, axis], (1,), keepdims=0)[0].tolist() == [9, 5]  # it wraps
    assert results("ReduceLogSum", [np.array([3, 9])], noop_with_empty_axes=1)[0].tolist() == [1, 2]


def test_reductions_of_no_integers_are_the_nearest_numbers() -> None:
    none = np.zeros((0, 2), np.int32)
    limits = np.iinfo(np.int32)
    wanted = {"ReduceMean": 0, "ReduceLogSum": limits.min, "ReduceMax": limits.min, "ReduceMin": limits.max, "ReduceL2": 0}
    for kind, number in wanted.items():
        assert results(kind, [none, np.array([0])], (1,))[0].tolist() == [[number] * 2], kind


@pytest.mark.full
def test_products_of_integers_wrap() -> None:
    rng = np.random.default_rng(0)
    wrong = []
    for dtype in ("int32", "int64", "uint32"):
        limits = np.iinfo(dtype)
        a, b = (rng.integers(limits.min, limits.max, shape).astype(dtype) for shape in ((2, 3, 5), (5, 4)))
        wrong += [] if same(results("MatMul", [a, b])[0], a @ b) else [f"MatMul {dtype}"]
    vector = np.arange(5, dtype=np.uint32)
    wrong += [] if same(results("MatMul", [a[0], vector])[0], a[0] @ vector) else ["MatMul of a vector"]
    a, b, c = (rng.integers(-(2**31), 2**31, shape).astype(np.int32) for shape in ((5, 3), (4, 5), (4,)))
    found = results("Gemm", [a, b, c], transA=1, transB=1, alpha=3.0, beta=-2.0)[0]
    wrong += [] if same(found, a.T @ b.T * np.int32(3) + c * np.int32(-2)) else ["Gemm"]
    x, y = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((3, 4), (4, 2)))
    wrong += [] if same(results("Einsum", [x, y], equation="ij,jk->ki")[0], (x @ y).T) else ["Einsum int8"]
    assert not wrong, wrong


@pytest.mark.full
def test_products_of_many_integers_are_exact() -> None:
    rng = np.random.default_rng(1)
    for dtype in ("int32", "int64"):
        limits = np.iinfo(dtype)
        a, b = (rng.integers(limits.min, limits.max, (300, 300)).astype(dtype) for _ in range(2))
        assert same(results("MatMul", [a, b])[0], a @ b)


def test_einsum_repeats_dimensions_of_1() -> None:
    a, b = np.float32([[1, 2, 3]]), np.float32([[1, 1, 1], [2, 2, 2]])
    assert same(results("Einsum", [a, b], equation="ij,ij->ij")[0], a * b)
    assert same(results("Einsum", [a, b], equation="ij,ij->j")[0], (a * b).sum(0))


def test_batches_may_be_behind_the_first_dimension() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 4), (3, 4, 5)))
    (found,) = results("FusedMatMul", [a, b], domain="com.microsoft", transBatchA=1, alpha=0.5)
    np.testing.assert_allclose(found, a.swapaxes(0, 1) @ b * 0.5, rtol=1e-5, atol=1e-6)
    turned = np.ascontiguousarray(b.transpose(2, 0, 1))
    (found,) = results("FusedMatMul", [a, turned], domain="com.microsoft", transBatchA=1, transBatchB=1, transB=1)
    np.testing.assert_allclose(found, a.swapaxes(0, 1) @ b, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 23, reason="this version of ONNX has no output_dtype")
def test_a_scale_of_float16_with_a_result_of_float32() -> None:
    x, scale = np.array([-7, 3, 5], np.int8), np.float16(1.208)
    (found,) = results("DequantizeLinear", [x, np.asarray(scale)], (1,), opset=23, output_dtype=1)
    assert same(found, x.astype(np.float32) * np.float32(scale))


def test_no_elements_are_quantized_by_a_scale_of_1() -> None:
    found = results("DynamicQuantizeLinear", [np.zeros((0, 2), np.float32)], outputs=3)
    assert [(str(one.dtype), one.shape, one.tolist()) for one in found] == [
        ("uint8", (0, 2), []), ("float32", (), 1.0), ("uint8", (), 0),
    ]  # fmt: skip


def test_windows_as_integers_reach_1() -> None:
    for kind in ("BlackmanWindow", "HannWindow", "HammingWindow"):
        for size, periodic in ((11, 0), (10, 1)):
            found = results(kind, [np.array(size, np.int32)], (0,), periodic=periodic, output_datatype=6)[0]
            assert found.tolist() == [int(i == 5) for i in range(size)], kind
    found = results("BlackmanWindow", [np.array(4)], (0,), output_datatype=11)[0]
    np.testing.assert_allclose(found, np.blackman(5)[:4], atol=1e-15)


def test_sizes_and_axes_of_32_bits() -> None:
    x = np.arange(1, 21, dtype=np.float32).reshape(5, 4)
    two = np.array([2, 7], np.int32)
    wanted = np.pad(x[1:3], ((0, 0), (1, 2)))
    assert same(results("CenterCropPad", [x, two], (1,))[0], wanted)
    starts, ends, axes, steps = (np.array([n], np.int32) for n in (4, 0, 0, -2))
    assert same(results("Slice", [x, starts, ends, axes, steps], (1, 2, 3, 4))[0], x[4:0:-2])
    for steps in ([-2, 1], [1, 1]):  # an axis twice: ONNX says nothing of that
        with pytest.raises(tvmdml.TvmdmlError, match=r"name one twice|referred to more than once"):
            results("Slice", [x, *(np.array(numbers) for numbers in ([4, 1], [0, 3], [0, 0], steps))], (1, 2, 3, 4))
    assert same(results("CumSum", [x, np.array(1, np.int32)], (1,))[0], np.cumsum(x, 1))
    pads, value = np.array([1, 0]), np.float32(7)
    found = results("Pad", [x, pads, np.asarray(value), np.array([1], np.int32)], (1, 2, 3))[0]
    assert same(found, np.pad(x, ((0, 0), (1, 0)), constant_values=7))
    assert same(results("Gather", [x, np.array([4, -1], np.int32)])[0], x[[4, -1]])


@pytest.mark.parametrize("kind", ["GreaterOrEqual", "LessOrEqual"])
def test_types_follow_from_schemas_where_onnx_infers_none(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its versions before 1.20 do of these comparisons; what reads the result needs a bool."""
    known = onnx.shape_inference.infer_node_outputs

    def infer(schema: Any, *given: Any, **more: Any) -> Any:
        return {} if schema.name == kind else known(schema, *given, **more)

    monkeypatch.setattr(onnx.shape_inference, "infer_node_outputs", infer)
    nodes = [N(kind, ["x", "z"], ["c"]), N("And", ["c", "c"], ["d"]), N("Where", ["d", "x", "z"], ["y"])]
    x = np.arange(-2, 3, dtype=np.float32)
    infos = [onnx.helper.make_tensor_value_info("x", 1, x.shape)]
    (found,) = tvmdml.onnx.load(model(nodes, infos, [onnx.ValueInfoProto(name="y")], {"z": np.float32(0)}))(x)
    assert found.tolist() == [max(n, 0) if kind == "GreaterOrEqual" else min(n, 0) for n in x]


@pytest.mark.full
def test_places_of_ones_may_have_every_type() -> None:
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"):
        places = np.array([0, 2, 1]) if dtype.startswith("u") else np.array([0, -1, 1])
        (found,) = results("OneHot", [places.astype(dtype), np.array(3), np.array([0, 1], np.float32)], (1,))
        assert found.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]], dtype

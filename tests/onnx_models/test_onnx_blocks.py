"""Weights of few bits in blocks, of random sizes, axes, bits and zero points: results are those of float64, from the bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tvmdml

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import model  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX

LIMITS = {"uint4": (0, 16), "int4": (-8, 8), "uint8": (0, 256), "int8": (-128, 128), "uint2": (0, 4)}
FLOATS = {"float32": 1e-6, "float16": 1e-3}


class Blocks:
    """A table with scales, and perhaps zero points, for blocks along an axis.

    Args:
        kind: the type of the elements.
        packed: whether they are bytes of several elements, as of ONNX Runtime's operators.
    """

    def __init__(
        self,
        rng: Any,
        kind: str,
        shape: Any,
        axis: int,
        size: int,
        dtype: str = "float32",
        zeros: bool = False,
        packed: bool = True,
    ) -> None:
        self.bits = int(kind[-1])
        blocks = tuple(-(-n // size) if i == axis else n for i, n in enumerate(shape))
        scale = (rng.standard_normal(blocks) * 0.1).astype(dtype)
        self.q, self.scale = rng.integers(*LIMITS[kind], shape), scale
        zero = rng.integers(*LIMITS[kind], blocks)
        self.zero = zero if zeros else 0 * zero + (1 << (self.bits - 1) if packed else 0)
        less, factor = (np.repeat(one, size, axis).take(range(shape[axis]), axis) for one in (self.zero, scale))
        self.floats = (self.q - less) * factor.astype(float)
        stored = self._packed if packed else lambda elements, name: tensor(elements, kind, name)
        scales = onnx.numpy_helper.from_array(scale, "scale")
        self.weights = [stored(self.q, "q"), scales, *([stored(zero, "zero")] if zeros else [])]

    def _packed(self, elements: Any, name: str) -> Any:
        count = 8 // self.bits
        padded = np.pad(elements, [(0, 0)] * (elements.ndim - 1) + [(0, -elements.shape[-1] % count)])
        parts = padded.reshape(*padded.shape[:-1], -1, count) << np.arange(0, 8, self.bits)
        return onnx.numpy_helper.from_array(parts.sum(-1).astype(np.uint8), name)


def tensor(elements: Any, kind: str, name: str) -> Any:
    """A tensor of ONNX, two elements of 4 bits in a byte."""
    if kind.endswith("8"):
        return onnx.numpy_helper.from_array(elements.astype(kind), name)
    flat = np.pad(elements.reshape(-1) & 15, (0, elements.size % 2)).astype(np.uint8)
    data = (flat[::2] | flat[1::2] << 4).tobytes()
    return onnx.helper.make_tensor(name, getattr(onnx.TensorProto, kind.upper()), elements.shape, data, raw=True)


def loaded(nodes: list[Any], x: tuple[Any, Any], weights: list[Any], target: str = "cpu") -> Any:
    """A model of some nodes with one input."""
    kind, shape = x
    info = onnx.helper.make_tensor_value_info("x", onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)
    made = model(nodes, [info], [onnx.helper.ValueInfoProto(name="y")], {}, 21)
    made.graph.initializer.extend(weights)
    made.ir_version = 10
    return tvmdml.onnx.load(made.SerializeToString(), target=target)


def node(kind: str, inputs: str, result: str = "y", **attributes: Any) -> Any:
    domain = "com.microsoft" if kind in ("GatherBlockQuantized", "MatMulNBits") else ""
    return onnx.helper.make_node(kind, inputs.split(","), [result], domain=domain, **attributes)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", LIMITS)
def test_slices_of_a_table(kind: str, seed: int) -> None:
    """Of ONNX Runtime's operator, and of ONNX's own two."""
    rng = np.random.default_rng([seed, *kind.encode()])
    own = kind not in ("uint2", "uint8") and (seed % 2 == 0 or kind == "int8")
    packed = kind in ("uint2", "uint8") or (kind == "uint4" and not own and seed % 3 == 0)
    rank, dtype, zeros = int(rng.integers(2, 4)), str(rng.choice(list(FLOATS))), bool(rng.integers(2))
    shape = tuple(map(int, (*rng.integers(1, 9, rank - 1), rng.integers(1, 100))))
    axis, gathered = (rank - 1, 0) if packed else map(int, rng.integers(0, rank, 2))
    if packed:
        shape = (*shape[:-1], -(-shape[-1] // 4) * 4)
    size = int(rng.choice([16, 32, 64]))
    table = Blocks(rng, kind, shape, axis, size, dtype, zeros, packed)
    names = ",zero" if zeros else ""
    if own:
        floats = node("DequantizeLinear", "q,scale" + names, "floats", axis=axis, block_size=size)
        nodes = [floats, node("Gather", "floats,x", axis=gathered)]
    else:
        options = {"bits": table.bits if packed else 4, "block_size": size, "gather_axis": gathered, "quantize_axis": axis}
        nodes = [node("GatherBlockQuantized", "q,x,scale" + names, **options)]
    indices = rng.integers(-shape[gathered], shape[gathered], tuple(rng.integers(1, 5, int(rng.integers(0, 3)))))
    net = loaded(nodes, ("int64", [f"n{i}" for i in range(indices.ndim)]), table.weights)
    (found,) = net({"x": indices})
    right = np.take(table.floats, indices, gathered)
    assert (found.shape, found.dtype) == (right.shape, np.dtype(dtype))
    assert np.allclose(found, right, rtol=FLOATS[dtype], atol=1e-7)
    if math.prod(shape[i] for i in range(rank) if i != gathered) > 1:
        assert "FUSED_BLOCKWISE_GATHER" in str(net.compiled(x=indices.shape).explain())


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("how", ["whole groups", "any groups", "two groups"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_groups_of_columns_in_any_order(bits: int, how: str, rows: int, target: Any) -> None:
    """A column's group decides about its scale and zero point; the matrix stays packed."""
    rng = np.random.default_rng([bits, rows, *how.encode()])
    k, n, size = 200 if how == "any groups" else 192, 40, int(rng.choice([16, 32]))
    count, zeros = -(-k // size), str(rng.choice(["none", "bits", "floats"]))
    dtype = str(rng.choice(list(FLOATS)))
    group = rng.permutation(np.arange(k) // size) if how == "whole groups" else rng.integers(0, count, k)
    group = np.where(rng.integers(0, 2, k), 1, count - 1) if how == "two groups" else group
    table = Blocks(rng, f"uint{bits}", (n, count * size), 1, size, dtype, zeros == "bits")
    less = table.zero
    weights = [*table.weights, onnx.numpy_helper.from_array(group.astype(np.int32), "group")]
    if zeros == "floats":
        less = rng.standard_normal((n, count)).astype(dtype)
        weights.append(onnx.numpy_helper.from_array(less, "zero"))
    matrix = (table.q[:, :k] - less[:, group].astype(float)) * table.scale[:, group]
    names = "x,q,scale," + ("" if zeros == "none" else "zero") + ",group"
    net = loaded([node("MatMulNBits", names, K=k, N=n, bits=bits, block_size=size)], (dtype, ["rows", k]), weights, target)
    x = rng.standard_normal((rows, k)).astype(dtype)
    (found,) = net({"x": x})
    right = x.astype(float) @ matrix.T
    assert np.abs(found - right).max() <= 4 * FLOATS[dtype] * (np.abs(x.astype(float)) @ np.abs(matrix.T)).max()
    text = str(net.compiled(x=(rows, k)).explain())
    assert "default of" not in text
    assert "of FUSED_BLOCKWISE_GEMM" in text


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", [*LIMITS][:4])
def test_products_behind_dequantize_linear(kind: str, seed: int) -> None:
    """Places of a sum are rows of the matrix, or columns, and the last block may have fewer."""
    rng = np.random.default_rng([seed, *kind.encode(), 1])
    size, dtype, turned = int(rng.choice([16, 32, 64])), str(rng.choice(list(FLOATS))), bool(rng.integers(2))
    rows, k, n = int(rng.choice([1, 2, 9, 20])), int(rng.integers(1, 300)), int(rng.integers(1, 80))
    table = Blocks(rng, kind, (n, k) if turned else (k, n), int(turned), size, dtype, bool(rng.integers(2)), packed=False)
    names = ",".join(one.name for one in table.weights)
    floats = node("DequantizeLinear", names, "floats", axis=int(turned), block_size=size)
    net = loaded([floats, node("Gemm", "x,floats", transB=int(turned))], (dtype, ["rows", k]), table.weights)
    x, matrix = rng.standard_normal((rows, k)).astype(dtype), table.floats.T if turned else table.floats
    (found,) = net({"x": x})
    assert np.abs(found - x.astype(float) @ matrix).max() <= 4 * FLOATS[dtype] * (np.abs(x.astype(float)) @ np.abs(matrix)).max()
    if k > 32:
        assert "of FUSED_BLOCKWISE_GEMM" in str(net.compiled(x=(rows, k)).explain())


@pytest.mark.parametrize("group", [[0] * 31 + [2], [0] * 31, [-1] * 32])
def test_groups_that_are_refused(group: list[int]) -> None:
    table = Blocks(np.random.default_rng(1), "uint4", (4, 32), 1, 16)
    weights = [*table.weights, onnx.numpy_helper.from_array(np.array(group, np.int32), "group")]
    with pytest.raises(tvmdml.TvmdmlError, match="g_idx has"):
        loaded([node("MatMulNBits", "x,q,scale,,group", K=32, N=4, bits=4, block_size=16)], ("float32", [2, 32]), weights)


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"bits": 3}, "3 bits"), ({"block_size": 0}, "blocks of 0"), ({"block_size": 16}, r"scales have the sizes \[4, 1\]")],
)
def test_tables_that_are_refused(changed: dict[str, int], said: str) -> None:
    table = Blocks(np.random.default_rng(1), "uint4", (4, 32), 1, 32)
    options = {"bits": 4, "block_size": 32, "gather_axis": 0, "quantize_axis": 1, **changed}
    with pytest.raises(tvmdml.TvmdmlError, match=said):
        loaded([node("GatherBlockQuantized", "q,x,scale", **options)], ("int64", [2]), table.weights)

"""Matrices of few bits whose blocks have their own scales: MatMulNBits, MatMulBnb4 and GatherBlockQuantized."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tvmdml
from tvmdml._whole import at_hand
from tvmdml.arrays import NumpyArray
from tvmdml.enums import QuantizationType
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.node import Node, Results, along, reshaped, rule
from tvmdml.onnx.types import is_ours
from tvmdml.onnx.values import Value
from tvmdml.onnx_nodes import Refused
from tvmdml.operators._matrix_blocks_fused import BlockwiseGemm
from tvmdml.operators.quantization import Dequantize
from tvmdml.tensors import TensorDesc

_BYTES_LEVEL = 4
"""The accuracy_level of products of bytes."""


@rule("com.microsoft.MatMulNBits")
def _blocks(node: Node) -> Results:
    """A matrix in blocks of 2, 4 or 8 bits, dequantized as it is multiplied."""
    k, n = node.integer("K", 0), node.integer("N", 0)
    size, bits = node.integer("block_size", 0), node.integer("bits", 4)
    if bits not in (2, 4, 8) or size < 1 or node.integer("weight_prepacked", 0):
        raise Refused(f"it has {bits} bits, blocks of {size}, or the layout of a device")
    if not node.value(1).size:
        found = node.like(0, node.x()).broadcast((*node.shape()[:-1], n))
    else:
        x = node.x().reshape(-1, k)
        own = _of_bits(node, x, n, size, bits)
        found = (_product(node, x, n, size, bits) if own is None else own).reshape(*node.shape()[:-1], n)
    return found + node.x(5) if node.has(5) else found


def _is_in_order(node: Node, k: int, size: int) -> bool:
    """Whether the block of each column is that of its place."""
    return not node.has(4) or bool(np.array_equal(node.known(4).reshape(-1)[:k], np.arange(k) // size))


def _of_bits(node: Node, x: Expression, n: int, size: int, bits: int) -> Expression | None:
    """The product as one operator on the bytes as they are stored, where DirectML has no DEQUANTIZE for them."""
    k = x.shape[1]
    count = -(-k // size)
    floats = node.has(3) and node.dtype(3).kind == "f"
    may_round = node.around.may_round and node.integer("accuracy_level", 0) == _BYTES_LEVEL
    if not (bits == 2 or floats or may_round) or not _is_in_order(node, k, size):
        return None
    given = [x, node.x(1).reshape(n, -1), reshaped(node.x(2), (n, count))]
    if node.has(3):
        given.append(reshaped(node.x(3), (n, count)) if floats else node.x(3).reshape(n, -1))
    desc = BlockwiseGemm.of(*(x.desc for x in given), bits=bits, block_size=size, is_signed=False, may_round=may_round)
    return node.graph.add(desc, [*given, None][:4])[0]


def _product(node: Node, x: Expression, n: int, size: int, bits: int) -> Expression:
    """DEQUANTIZE and GEMM, of which a pass makes one operator where the target has a kernel for that."""
    k = x.shape[1]
    count = -(-k // size)
    scales = reshaped(node.x(2), (n, count))
    stored = node.x(1).reshape(n, -1)
    if not _is_in_order(node, k, size):
        matrix = of_bits(node.known(1).reshape(n, -1), bits, count * size)
        wide = _in_order(node, matrix[:, :k].astype(np.uint8), scales, _zero_points(node, n, count, bits, scales))
        own: Expression = tvmdml.gemm(x, wide, trans_b="transpose")
        return own
    given, tensors = [stored, scales], [_narrow(stored, bits, count * size), scales.desc]
    if node.has(3):
        given.append(node.x(3).reshape(n, -1))
        tensors.append(_narrow(given[-1], bits, count))
    desc = Dequantize.of(tensors[0], tensors[1:], quantization_type=QuantizationType(len(given) - 1))
    (floats,) = node.graph.add(desc, given)
    assert floats is not None
    product: Expression = tvmdml.gemm(x, floats[:, :k], trans_b="transpose")
    return product


def _narrow(stored: Expression, bits: int, count: int) -> TensorDesc:
    """The first elements of rows of bytes, as DirectML describes them."""
    rows, width = stored.shape
    if width * 8 < count * bits:
        raise Refused(f"its rows have {width} bytes, which are fewer than {count} elements of {bits} bits")
    return TensorDesc(f"uint{bits}", (rows, count), (width * 8 // bits, 1))


def _zero_points(node: Node, n: int, count: int, bits: int, scales: Expression) -> Expression:
    """The zero point of each block as a float."""
    if not node.has(3):
        return node.constant(np.full((n, count), 1 << (bits - 1), scales.dtype))
    if node.dtype(3).kind == "f":
        return reshaped(node.x(3), (n, count))
    return node.constant(of_bits(node.known(3).reshape(n, -1), bits, count).astype(np.uint8)).astype(scales.dtype)


def _in_order(node: Node, matrix: NumpyArray, scales: Expression, zeros: Expression) -> Expression:
    """With the block of each column in input 4."""
    at = node.constant(node.known(4).reshape(-1)[: matrix.shape[1]].astype(np.int64))
    scale, zero = (tvmdml.gather(one, at, axis=1) for one in (scales, zeros))
    found: Expression = (node.constant(matrix).astype(scales.dtype) - zero) * scale
    return found


def in_blocks(node: Node, matrix: NumpyArray, scales: Expression, zeros: NumpyArray, size: int) -> Expression:
    """Elements of a few bits, minus their block's zero point, times its scale. The last dimension has blocks."""
    inputs = [Value.known(matrix), Value.computed(scales), Value.known(zeros)]
    found: Expression = described.convert(node.replaced("DequantizeLinear", inputs, axis=matrix.ndim - 1, block_size=size))[0]
    return found


def of_bits(stored: Any, bits: int, columns: int) -> Any:
    """The elements of bytes along the last dimension; those in low bits are first."""
    if bits < 8:
        stored = np.stack([stored >> at & (1 << bits) - 1 for at in range(0, 8, bits)], -1).reshape(*stored.shape[:-1], -1)
    if stored.shape[-1] < columns:
        raise Refused(f"its rows have {stored.shape[-1]} elements, and not {columns}")
    return typed(stored[..., :columns], bits)


def typed(array: Any, bits: int) -> Any:
    """As DirectML stores them: two in a byte, or one."""
    if bits == 8:
        return np.ascontiguousarray(array)
    at_hand("ml_dtypes")
    import ml_dtypes

    return array.astype(ml_dtypes.uint4)


_LARGEST_BLOCK = 1 << 16
_THIRDS = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4], np.float32)
_TABLES = (
    np.concatenate([_THIRDS, -_THIRDS]),
    np.array(
        [
            -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
            -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
            0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
        ],
        np.float32,
    ),
)  # fmt: skip
"""The numbers that four bits stand for: FP4 and NF4 of bitsandbytes."""


@rule("com.microsoft.MatMulBnb4")
def _bitsandbytes(node: Node) -> Results:
    """A matrix of numbers from a table of 16, times the largest of their block."""
    k, n, size = (node.integer(name, 0) for name in ("K", "N", "block_size"))
    kind = node.integer("quant_type", 1)
    stored = node.known(1).reshape(-1)
    if kind not in (0, 1) or not 1 <= size <= _LARGEST_BLOCK or min(k, n) < 1 or stored.size < -(-n * k // 2):
        raise Refused(f"its quant_type is {kind}, with blocks of {size} and {stored.size} bytes for {n} times {k} elements")
    numbers = _TABLES[kind][np.stack([stored >> 4, stored & 15], -1).reshape(-1)[: n * k]]
    blocks = -(-n * k // size)
    scales = node.x(2).reshape(-1)[:blocks, None].broadcast(blocks, size).reshape(blocks * size)[: n * k]
    matrix = reshaped(node.constant(numbers.astype(node.dtype())) * scales, (n, k))
    turned: dict[str, Any] = {"trans_b": "transpose"} if node.integer("transB", 1) else {}
    x = node.x()
    found = tvmdml.gemm(x.reshape(-1, x.shape[-1]), matrix, **turned)
    return found.reshape(*x.shape[:-1], found.shape[-1])


@rule("com.microsoft.GatherBlockQuantized")
def _gathered(node: Node) -> Results:
    """Rows are gathered as they are stored, with their scales, and dequantized then."""
    data, scales = node.value(0), node.x(2)
    bits = node.integer("bits", 4) if is_ours(data.dtype) else 4
    rank = scales.ndim
    gathered, quantized = node.axis(rank, 0, "gather_axis"), node.axis(rank, 1, "quantize_axis")
    size = node.integer("block_size", 128)
    packed = np.dtype(data.dtype) == np.uint8
    fits = bits in (2, 4, 8) and size >= 1 and str(np.dtype(data.dtype)) in ("uint8", "int4", "uint4")
    if not fits or gathered == quantized or (packed and gathered == rank - 1):
        places = f"along the axis {quantized}, gathered along {gathered}"
        raise Refused(f"it has {bits} bits of {data.dtype} in blocks of {size} {places}")
    zero = 1 << (bits - 1) if packed else 0
    elements = _bits_of(node, tvmdml.gather(node.x(), node.x(1), axis=gathered), bits) if packed else _wide(node, 0, gathered)
    parameters = [tvmdml.gather(scales, node.x(1), axis=gathered)]
    if node.has(3):
        parameters.append(_zeros(node, bits, scales.shape, gathered) if packed else _wide(node, 3, gathered))
    axis = quantized + (len(node.shape(1)) - 1 if quantized > gathered else 0)
    wide = [_repeated(one.astype(np.float32), axis, size, elements.shape) for one in parameters]
    x = elements.astype(np.float32)
    return ((x - wide[1] if node.has(3) else x - float(zero)) * wide[0]).astype(scales.dtype)


def _wide(node: Node, at: int, axis: int) -> Expression:
    """Constants of four bits, one in a byte, gathered."""
    found: Expression = tvmdml.gather(node.constant(node.known(at).astype(np.int8)), node.x(1), axis=axis)
    return found


def _bits_of(node: Node, x: Expression, bits: int) -> Expression:
    """The elements in bytes along the last dimension."""
    if bits == 8:
        return x
    parts = [
        tvmdml.bit_and(tvmdml.bit_shift_right(x, node.like(at, x)), node.like((1 << bits) - 1, x))[..., None]
        for at in range(0, 8, bits)
    ]
    found: Expression = tvmdml.join(parts, axis=x.ndim).reshape(*x.shape[:-1], x.shape[-1] * len(parts))
    return found


def _zeros(node: Node, bits: int, shape: tuple[int, ...], axis: int) -> Expression:
    """Zero points in bytes, as many as scales."""
    found: Expression = _bits_of(node, tvmdml.gather(node.x(3), node.x(1), axis=axis), bits)[..., : shape[-1]]
    return found


def _repeated(x: Expression, axis: int, size: int, shape: tuple[int, ...]) -> Expression:
    """Each slice of an axis as many times as a block has elements."""
    if any(n != m for i, (n, m) in enumerate(zip(x.shape, shape, strict=True)) if i != axis) or x.shape[axis] * size < shape[axis]:
        raise Refused(f"its scales have the sizes {list(x.shape)}, for blocks of {size} in {list(shape)}")
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    flat = x.reshape(math.prod(before), x.shape[axis], 1, math.prod(after))
    wide = flat.broadcast(flat.shape[0], flat.shape[1], size, flat.shape[3]).reshape(*before, x.shape[axis] * size, *after)
    found: Expression = wide[along(axis, slice(0, shape[axis]))]
    return found

"""Matrices of few bits whose blocks have their own scales: MatMulNBits, MatMulBnb4 and GatherBlockQuantized."""

from __future__ import annotations

from typing import Any

import numpy as np

import tvmdml
from tvmdml.enums import QuantizationType
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, reshaped, rule
from tvmdml.onnx.values import Value
from tvmdml.operators._gather_blocks_fused import BlockwiseGather
from tvmdml.operators._matrix_blocks_fused import BlockwiseGemm, packed
from tvmdml.operators.gather import Gather
from tvmdml.operators.quantization import Dequantize
from tvmdml.system import at_hand
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.arrays import NumpyArray

_BYTES_LEVEL = 4
"""The accuracy_level of products of bytes."""


@rule("com.microsoft.MatMulNBits")
def _blocks(node: Node) -> Results:
    """A matrix in blocks of 2, 4 or 8 bits, dequantized as it is multiplied."""
    k, n = node.integer("K", 0), node.integer("N", 0)
    size, bits = node.integer("block_size", 0), node.integer("bits", 4)
    if bits not in (2, 4, 8) or size < 1 or node.integer("weight_prepacked", 0):
        raise NotConvertible(f"it has {bits} bits, blocks of {size}, or the layout of a device")
    if not node.value(1).size:
        found = node.like(0, node.x()).broadcast((*node.shape()[:-1], n))
    else:
        found = _product(node, node.x().reshape(-1, k), n, size, bits).reshape(*node.shape()[:-1], n)
    return found + node.x(5) if node.has(5) else found


def _product(node: Node, x: Expression, n: int, size: int, bits: int) -> Expression:
    """DEQUANTIZE and GEMM, of which a pass makes one operator where the target has a kernel for that; or that operator."""
    k = x.shape[1]
    count = -(-k // size)
    floats = node.has(3) and node.dtype(3).kind == "f"
    may_round = node.around.may_round and node.integer("accuracy_level", 0) == _BYTES_LEVEL
    given = [node.x(1).reshape(n, -1), reshaped(node.x(2), (n, count))]
    if node.has(3):
        given.append(reshaped(node.x(3), (n, count)) if floats else node.x(3).reshape(n, -1))
    group = node.known(4).reshape(-1)[:k] if node.has(4) else np.arange(k) // size
    is_sorted = np.array_equal(group, np.arange(k) // size)
    if is_sorted and bits != 2 and not floats and not may_round:
        tensors = [_narrow(given[0], bits, count * size), given[1].desc, *(_narrow(one, bits, count) for one in given[2:])]
        desc = Dequantize.of(tensors[0], tensors[1:], quantization_type=QuantizationType(len(given) - 1))
        (matrix,) = node.graph.add(desc, given)
        assert matrix is not None
        return tvmdml.gemm(x, matrix[:, :k], trans_b="transpose")
    if not is_sorted:
        x, given, size = _by_groups(node, x, group, (n, count), size, bits)
    own = BlockwiseGemm.of(*(one.desc for one in (x, *given)), bits=bits, block_size=size, is_signed=False, may_round=may_round)
    (found,) = node.graph.add(own, [x, *given, None][:4])
    assert found is not None
    return found


def _by_groups(
    node: Node, x: Expression, group: NumpyArray, shape: tuple[int, int], size: int, bits: int
) -> tuple[Expression, list[Expression], int]:
    """The first factor and the matrix with the places of a group beside each other, and the size of their blocks.

    A group whose places are no whole blocks gets some more, where the first factor is 0.
    """
    k, (n, count) = x.shape[1], shape
    if group.size != k or group.min() < 0 or group.max() >= count:
        raise NotConvertible(
            f"its g_idx has {group.size} numbers from {group.min()} to {group.max()}, for {k} columns in {count} groups"
        )
    present, each = np.unique(group, return_counts=True)
    sizes = [32 // bits << i for i in range(16) if 32 // bits << i <= size] or [32 // bits]
    block = next((one for one in sizes[::-1] if 8 * (-(-each // one) * one).sum() <= 9 * k), sizes[0])
    ends = np.split(np.argsort(group, kind="stable"), np.cumsum(each)[:-1])
    places = np.concatenate([np.pad(one, (0, -one.size % block), constant_values=k) for one in ends])
    owners = np.repeat(present, -(-each // block))
    elements = of_bits(node.known(1).reshape(n, -1), bits, count * size)[:, :k].astype(np.uint8)
    given = [packed(np.pad(elements, [(0, 0), (0, 1)])[:, places], bits), node.known(2).reshape(n, count)[:, owners]]
    if node.has(3) and node.dtype(3).kind == "f":
        given.append(node.known(3).reshape(n, count)[:, owners])
    elif node.has(3):
        given.append(packed(of_bits(node.known(3).reshape(n, -1), bits, count).astype(np.uint8)[:, owners], bits))
    if places.max() == k:
        x = tvmdml.join([x, node.like(0, x).broadcast(x.shape[0], 1)], axis=1)
    return tvmdml.gather(x, node.constant(places), axis=1), list(map(node.constant, given)), block


def _narrow(stored: Expression, bits: int, count: int) -> TensorDesc:
    """The first elements of rows of bytes, as DirectML describes them."""
    rows, width = stored.shape
    if width * 8 < count * bits:
        raise NotConvertible(f"its rows have {width} bytes, which are fewer than {count} elements of {bits} bits")
    return TensorDesc(f"uint{bits}", (rows, count), (width * 8 // bits, 1))


def in_blocks(node: Node, matrix: NumpyArray, scales: Expression, zeros: NumpyArray, size: int) -> Expression:
    """Elements of a few bits, minus their block's zero point, times its scale. The last dimension has blocks."""
    inputs = [Value.known(matrix), Value.computed(scales), Value.known(zeros)]
    return described.convert(node.replaced("DequantizeLinear", inputs, axis=matrix.ndim - 1, block_size=size))[0]


def of_bits(stored: Any, bits: int, columns: int) -> Any:
    """The elements of bytes along the last dimension; those in low bits are first."""
    if bits < 8:
        stored = np.stack([stored >> at & (1 << bits) - 1 for at in range(0, 8, bits)], -1).reshape(*stored.shape[:-1], -1)
    if stored.shape[-1] < columns:
        raise NotConvertible(f"its rows have {stored.shape[-1]} elements, and not {columns}")
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
        raise NotConvertible(f"its quant_type is {kind}, with blocks of {size} and {stored.size} bytes for {n} times {k} elements")
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
    """Slices of a table of 4 or 8 bits as it is stored; one of 2 bits becomes one of 4."""
    given, scales, indices = str(node.dtype()), node.x(2), node.x(1)
    is_packed = given == "uint8"
    bits = node.integer("bits", 4) if is_packed else 4
    axes, size = (
        [node.axis(scales.ndim, i, name) for i, name in enumerate(("gather_axis", "quantize_axis"))],
        node.integer("block_size", 128),
    )
    if bits not in (2, 4, 8) or size < 1 or given not in ("uint8", "int4", "uint4") or len(node.shape()) != scales.ndim:
        raise NotConvertible(
            f"it has {bits} bits of {given} in blocks of {size}, in {len(node.shape())} dimensions with scales in {scales.ndim}"
        )
    kind = given if not is_packed else f"uint{max(bits, 4)}"
    shape = (*node.shape()[:-1], node.shape()[-1] * (8 // bits if is_packed else 1))
    blocks = tuple(size if i == axes[1] else 1 for i in range(len(shape)))
    if scales.shape != (wanted := tuple(-(-n // block) for n, block in zip(shape, blocks, strict=True))):
        raise NotConvertible(
            f"its scales have the sizes {list(scales.shape)}, and not {list(wanted)}, for blocks of {size} in {list(shape)}"
        )

    def stored(at: int, sizes: tuple[int, ...]) -> tuple[TensorDesc, Expression]:
        """The elements of an input, and how DirectML describes them."""
        if is_packed and bits > 2:
            own = (*node.shape(at)[:-1], node.shape(at)[-1] * (8 // bits))
            if own[:-1] != sizes[:-1] or own[-1] < sizes[-1]:
                raise NotConvertible(f"its input {at} has elements for {list(own)}, and not {list(sizes)}")
            return TensorDesc(kind, sizes, TensorDesc(kind, own).layout), node.x(at)
        elements = of_bits(node.known(at), bits, sizes[-1]) if is_packed else node.known(at)
        return constant(elements.astype(np.int8).reshape(sizes))

    def constant(elements: NumpyArray) -> tuple[TensorDesc, Expression]:
        desc = TensorDesc(kind, elements.shape)
        return desc, node.constant(desc.pack(elements))

    (table, x), parameters = stored(0, shape), [(TensorDesc(scales.desc.data_type, wanted), scales)]
    if node.has(3):
        parameters.append(stored(3, wanted))
    elif kind == "uint4" and (not is_packed or bits == 2):  # DirectML's zero point is another one
        parameters.append(constant(np.full(wanted, 2 if is_packed else 0, np.int8)))
    gather: Any = Gather.of_call(TensorDesc(scales.desc.data_type, shape), indices.desc, axis=axes[0], index_dimensions=None)
    desc = BlockwiseGather.of_table(gather, table, [one for one, _ in parameters], blocks)
    (found,) = node.graph.add(desc, [x, indices, *(one for _, one in parameters)])
    assert found is not None
    return reshaped(found, (*shape[: axes[0]], *indices.shape, *shape[axes[0] + 1 :]))

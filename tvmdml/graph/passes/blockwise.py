"""Read a matrix of few bits as it is stored, where what dequantizes it is before the second factor of a product, or before GATHER.

The matrix of floats is then never in memory. In products it is never rounded to float16: sums are those of exact differences and
scales.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.errors import TvmdmlError
from tvmdml.graph.nodes import Call, Constant, Edge
from tvmdml.graph.packers import reading
from tvmdml.graph.passes import unused
from tvmdml.graph.passes.asking import offered
from tvmdml.graph.program import Fusion, Program
from tvmdml.kernels.kernel import Offers
from tvmdml.operators._contract import Role
from tvmdml.operators._gather_blocks_fused import BlockwiseGather
from tvmdml.operators._matrix_blocks_fused import BlockwiseGemm, packed
from tvmdml.operators.element_wise_binary import ElementWiseAdd
from tvmdml.operators.gather import Gather
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType, TensorDesc
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.sizes import is_open

_DEQUANTIZE = ("DEQUANTIZE", "ELEMENT_WISE_DEQUANTIZE_LINEAR")


def run(program: Program, target: Target) -> None:
    """Fuse wherever the target's kernel takes the bits."""
    fusions: list[Fusion] = []
    anew: dict[object, Edge] = {}
    for call in list(program.calls):
        if call.desc.NAME == "GATHER":
            fusions += _gathered(call)
            continue
        head = call.edges["b_tensor"].source if call.desc.NAME == "GEMM" else None
        if not isinstance(head, Call) or head.desc.NAME not in _DEQUANTIZE:
            continue
        try:
            fused = _product(call, head, anew)
            if fused is None or Offers.OWN not in offered(fused[0], target):
                continue
        except TvmdmlError:
            continue
        desc, edges = fused[0], {"a_tensor": call.edges["a_tensor"], **fused[1]()}
        if (added := call.edges.get("c_tensor")) is None:
            fusions.append(Fusion([call], desc, edges, {(call, 0): 0}))
            continue
        # A call of its own, which follows in the product's kernel together with others.
        product = Call(desc, edges, call.name, call.where, origins=call.origins)
        program.calls.insert(program.calls.index(call), product)
        addition = ElementWiseAdd.of(desc.output_tensor, call.desc.c_tensor)  # type: ignore[attr-defined]
        fusions.append(Fusion([call], addition, {"a_tensor": Edge(product), "b_tensor": added}, {(call, 0): 0}))
    program.fuse_all(fusions)
    if fusions:
        unused.run(program, target)


def _product(call: Call, head: Call, anew: dict[object, Edge]) -> tuple[BlockwiseGemm, Callable[[], dict[str, Edge]]] | None:
    """The product with the matrix of few bits, without what is added, and what it reads of that matrix.

    Constants whose rows are not the product's columns, or begin within a byte, are packed anew, in place of what they were:
    ``anew`` has those of other calls.
    """
    desc: Any = call.desc
    if desc.transposed()[0] or desc.alpha != 1 or desc.fused_activation is not None or call.edges["b_tensor"].offset:
        return None
    if desc.c_tensor is not None and desc.beta != 1:
        return None
    floats: TensorDesc = head.desc.output_tensor  # type: ignore[attr-defined]
    turned = desc.transposed()[1]
    orders = [order for order, own in (((-2, -1), turned), ((-1, -2), not turned)) if _is_matrix(desc.b_tensor, floats, own)]
    own, blocks = _read(head)
    if not orders or any(_is_more(tensor) for tensor, _ in own):
        return None
    row, place = orders[0]
    columns, places, across, along = desc.output_tensor.sizes[-1], floats.sizes[place], blocks[row], blocks[place]
    kind, count = own[0][0].data_type, -(-places // along)
    if across not in (1, floats.sizes[row]):
        return None
    every = []
    for i, (tensor, _) in enumerate(own):
        steps = (0 if i and across > 1 else tensor.layout[row], 0 if i and count == 1 else tensor.layout[place])
        every.append(TensorDesc(tensor.data_type, (columns, count if i else places), steps))
    names = ("b_tensor", "scale_tensor", "zero_point_tensor")[: len(own)]
    stored = {name: _bytes(tensor) for name, tensor in zip(names, every, strict=True)}
    fixed = all(isinstance(edge.source, Constant) for _, edge in own)
    as_stored = None not in stored.values() and (not fixed or places * kind.bits % 32 == 0)  # rows of whole words are faster
    is_across = not as_stored and not fixed
    if is_across:  # bytes have neighbouring columns
        stored = {name: _bytes(_exchanged(tensor)) for name, tensor in zip(names, every, strict=True)}
        if None in stored.values():
            return None
    elif not as_stored:
        stored = {name: _anew(tensor) for name, tensor in zip(names, every, strict=True)}

    def edges() -> dict[str, Edge]:
        found = {}
        for name, tensor, (_, edge) in zip(names, every, own, strict=True):
            key = (*edge.value, edge.offset, tensor)
            is_anew = not as_stored and not is_across
            if is_anew and key not in anew:
                anew[key] = Edge(Constant(_elements(edge, tensor), head.name, head.where))
            found[name] = anew[key] if is_anew else edge
        return found

    result: TensorDesc = desc.output_tensor
    product = BlockwiseGemm(
        a_tensor=desc.a_tensor,
        **stored,  # type: ignore[arg-type]
        output_tensor=TensorDesc(result.data_type, result.sizes, result.strides),
        bits=kind.bits,
        block_size=along if count > 1 else 1 << (max(places, 32 // kind.bits) - 1).bit_length(),
        is_signed=kind.is_signed,
        may_round=False,
        is_across=is_across,
    )
    product.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    return product, edges


def _read(head: Call) -> tuple[list[tuple[TensorDesc, Edge]], tuple[int, ...]]:
    """What a call dequantizes, with scales and zero points, and the elements of a block in each dimension."""
    desc: Any = head.desc
    own = [(tensor, head.edges[name]) for name, tensor in desc.tensors(Role.INPUT) if tensor is not None]
    if desc.NAME == "DEQUANTIZE":
        return own, desc.blocks()
    (x, _), (scale, _), *_ = own
    if len(own) == 2 and not x.data_type.is_signed:  # here it is 0
        zero = TensorDesc(x.data_type, scale.sizes, (0,) * scale.rank)
        own.append((zero, Edge(Constant(np.zeros(1, x.data_type.stored.numpy), head.name, head.where))))
    repeated = [all(tensor.layout[i] == 0 for tensor, _ in own[1:]) for i in range(x.rank)]
    return own, tuple(n if again else 1 for n, again in zip(x.sizes, repeated, strict=True))


def _gathered(call: Call) -> list[Fusion]:
    """The slices of a table of few bits, if the call reads them from the table of floats."""
    desc: Any = call.desc
    edge, view = call.edges["input_tensor"], desc.input_tensor
    head: Any = edge.source
    if isinstance(head, Call) and head.desc.NAME == "ELEMENT_WISE_IDENTITY" and not edge.offset:
        copy: Any = head.desc
        if copy.scale_bias is None and view.is_like(Gather.ranked(copy.output_tensor, view.rank)):
            edge, view = head.edges["input_tensor"], Gather.ranked(copy.input_tensor, view.rank)
            head = edge.source
    if not isinstance(head, Call) or head.desc.NAME not in _DEQUANTIZE or edge.offset:
        return []
    floats: TensorDesc = head.desc.output_tensor  # type: ignore[attr-defined]
    if any(is_open(n) for tensor in head.desc.outputs() for n in tensor.sizes):
        return []
    own, blocks = _read(head)
    numbers = (n for tensor in (view, *(tensor for tensor, _ in own)) for n in (*tensor.sizes, *tensor.layout))
    missing, whole = view.rank - floats.rank, (1,) * (view.rank - floats.rank) + floats.sizes
    if any(map(is_open, numbers)) or missing < 0 or any(n > m for n, m in zip(view.sizes, whole, strict=True)):
        return []
    first, sizes = TensorDesc(view.data_type, view.sizes, (0,) * missing + floats.layout), view.sizes[missing:]
    if not view.is_like(first):
        return []  # neither the table nor the first places of its dimensions
    parts = tuple(-(-n // block) for n, block in zip(sizes, blocks, strict=True))
    each = zip(own, (sizes, parts, parts), strict=False)
    table, *parameters = (TensorDesc(tensor.data_type, some, tensor.layout) for (tensor, _), some in each)
    try:
        gather = BlockwiseGather.of_table(desc, table, parameters, blocks)
        gather.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    except TvmdmlError:
        return []
    edges = {"input_tensor": own[0][1], "indices_tensor": call.edges["indices_tensor"]}
    edges |= {f"quantization_tensors[{i}]": one for i, (_, one) in enumerate(own[1:])}
    return [Fusion([call], gather, edges, {(call, 0): 0})]


def _is_matrix(view: TensorDesc, floats: TensorDesc, turned: bool) -> bool:
    """Whether a second factor is the matrix of floats, turned or not, or the first places of its dimensions."""
    order = slice(None) if turned else slice(None, None, -1)
    sizes, steps = view.sizes[-2:][order], view.layout[-2:][order]
    numbers = (*sizes, *steps, *view.layout[:-2], *floats.sizes, *floats.layout)
    if any(map(is_open, numbers)) or floats.rank < 2:
        return False
    one_of_all = all(n == 1 or step == 0 for n, step in zip(view.sizes[:-2], view.layout[:-2], strict=True))
    return one_of_all and steps == floats.layout[-2:] and all(n <= m for n, m in zip(sizes, floats.sizes[-2:], strict=True))


def _is_more(tensor: TensorDesc) -> bool:
    """Whether a tensor is more than one matrix, or has open sizes."""
    return any(map(is_open, (*tensor.sizes, *tensor.layout))) or any(n != 1 for n in tensor.sizes[:-2])


def _bytes(tensor: TensorDesc) -> TensorDesc | None:
    """A matrix as bytes, or of floats; ``None`` if rows are not contiguous, or one begins within a byte."""
    (rows, count), (step, beside), bits = tensor.sizes, tensor.layout, tensor.data_type.bits
    if count > 1 and beside != 1:
        return None
    if tensor.data_type.is_float:
        return tensor
    step = step * bits if rows > 1 else 8 * -(-count * bits // 8)
    return None if step % 8 else TensorDesc(TensorDataType.UINT8, (rows, -(-count * bits // 8)), (step // 8, 1))


def _exchanged(tensor: TensorDesc) -> TensorDesc:
    """A matrix with its columns as rows."""
    return TensorDesc(tensor.data_type, tensor.sizes[::-1], tensor.layout[::-1])


def _anew(tensor: TensorDesc) -> TensorDesc:
    """A matrix as ``_elements`` has it."""
    (rows, count), kind = tensor.sizes, tensor.data_type
    if kind.is_float:
        return TensorDesc(kind, (rows, count))
    return TensorDesc(TensorDataType.UINT8, (rows, -(-count * kind.bits // 32) * 4))


def _elements(edge: Edge, tensor: TensorDesc) -> NumpyArray:
    """A constant with contiguous rows, of floats or of bytes."""
    assert isinstance(edge.source, Constant)
    found = reading(edge.source.array, edge.offset, tensor)
    if tensor.data_type.is_nibble:
        flat = np.stack([found & 15, found >> 4], -1).reshape(-1)
        found = np.lib.stride_tricks.as_strided(flat, tensor.sizes, tensor.layout)
    return np.ascontiguousarray(found) if tensor.data_type.is_float else packed(found, tensor.data_type.bits)

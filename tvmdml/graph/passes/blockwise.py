"""Read a matrix of few bits as it is stored, where what dequantizes it is before the second factor of a product, or before GATHER.

The matrix of floats is then never in memory. In products it is never rounded to float16: sums are those of exact differences and
scales.
"""

from __future__ import annotations

from typing import Any

from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.errors import TvmdmlError
from tvmdml.graph.nodes import Call, Edge
from tvmdml.graph.passes import unused
from tvmdml.graph.passes.asking import offered
from tvmdml.graph.program import Fusion, Program
from tvmdml.kernels.kernel import Offers
from tvmdml.operators._contract import Role
from tvmdml.operators._gather_blocks_fused import BlockwiseGather
from tvmdml.operators._matrix_blocks_fused import BlockwiseGemm
from tvmdml.operators.element_wise_binary import ElementWiseAdd
from tvmdml.operators.gather import Gather
from tvmdml.sizes import is_open
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType, TensorDesc

_DEQUANTIZE = ("DEQUANTIZE", "ELEMENT_WISE_DEQUANTIZE_LINEAR")


def run(program: Program, target: Target) -> None:
    """Fuse wherever the target's kernel takes the bits."""
    fusions: list[Fusion] = []
    for call in list(program.calls):
        if call.desc.NAME == "GATHER":
            fusions += _gathered(call)
            continue
        head = call.edges["b_tensor"].source if call.desc.NAME == "GEMM" else None
        if not isinstance(head, Call) or head.desc.NAME != "DEQUANTIZE":
            continue
        try:
            fused = _product(call, head)
            if fused is None or Offers.OWN not in offered(fused[0], target):
                continue
        except TvmdmlError:
            continue
        desc, edges = fused
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


def _product(call: Call, head: Call) -> tuple[BlockwiseGemm, dict[str, Edge]] | None:
    """The product with the matrix of few bits, without what is added, and what it reads."""
    desc: Any = call.desc
    if desc.transposed()[0] or desc.alpha != 1 or desc.fused_activation is not None or call.edges["b_tensor"].offset:
        return None
    if desc.c_tensor is not None and desc.beta != 1:
        return None
    q: Any = head.desc
    x, floats, (scale, *zero) = q.input_tensor, q.output_tensor, q.quantization_tensors
    if not _is_matrix(desc.b_tensor, floats, desc.transposed()[1]) or any(map(_is_more, (x, floats, scale, *zero))):
        return None
    *_, across, block = q.blocks()
    bits = x.data_type.bits
    stored = [_bytes(tensor, bits) for tensor in (x, *zero)]
    if across != 1 or None in stored:
        return None
    edges = {"a_tensor": call.edges["a_tensor"], "b_tensor": head.edges["input_tensor"]}
    for i, name in enumerate(("scale_tensor", "zero_point_tensor")[: 1 + len(zero)]):
        edges[name] = head.edges[f"quantization_tensors[{i}]"]
    result: TensorDesc = desc.output_tensor
    product = BlockwiseGemm(
        a_tensor=desc.a_tensor,
        b_tensor=stored[0],  # type: ignore[arg-type]
        scale_tensor=TensorDesc(scale.data_type, scale.sizes[-2:], scale.layout[-2:]),
        zero_point_tensor=stored[1] if zero else None,
        output_tensor=TensorDesc(result.data_type, result.sizes, result.strides),
        bits=bits,
        block_size=block,
        is_signed=x.data_type.is_signed,
        may_round=False,
    )
    product.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    return product, edges


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
    own = [(tensor, head.edges[name]) for name, tensor in head.desc.tensors(Role.INPUT) if tensor is not None]
    floats: TensorDesc = head.desc.output_tensor  # type: ignore[attr-defined]
    numbers = (n for tensor in (view, *(tensor for tensor, _ in own)) for n in (*tensor.sizes, *tensor.layout))
    missing, whole = view.rank - floats.rank, (1,) * (view.rank - floats.rank) + floats.sizes
    if any(map(is_open, numbers)) or missing < 0 or any(n > m for n, m in zip(view.sizes, whole, strict=True)):
        return []
    first, sizes = TensorDesc(view.data_type, view.sizes, (0,) * missing + floats.layout), view.sizes[missing:]
    if not view.is_like(first):
        return []  # neither the table nor the first places of its dimensions
    if head.desc.NAME == "DEQUANTIZE":
        blocks = head.desc.blocks()  # type: ignore[attr-defined]
    else:  # parameters are repeated by steps of 0
        repeats = [all(tensor.layout[i] == 0 for tensor, _ in own[1:]) for i in range(floats.rank)]
        blocks = tuple(n if again else 1 for n, again in zip(floats.sizes, repeats, strict=True))
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
    """Whether a second factor is the matrix of floats, with its rows as columns, or the first places of these."""
    order = slice(None) if turned else slice(None, None, -1)
    (columns, places), steps = view.sizes[-2:][order], view.layout[-2:][order]
    numbers = (columns, places, *steps, *view.layout[:-2], *floats.sizes, *floats.layout)
    if any(map(is_open, numbers)) or floats.rank < 2:
        return False
    one_of_all = all(n == 1 or step == 0 for n, step in zip(view.sizes[:-2], view.layout[:-2], strict=True))
    return one_of_all and steps == floats.layout[-2:] and columns == floats.sizes[-2] and places <= floats.sizes[-1]


def _is_more(tensor: TensorDesc) -> bool:
    """Whether a tensor is more than one matrix, or its rows are not contiguous."""
    *outer, columns = tensor.sizes
    open_sizes = any(map(is_open, (*tensor.sizes, *tensor.layout)))
    return open_sizes or any(n != 1 for n in outer[:-1]) or (columns != 1 and tensor.layout[-1] != 1)


def _bytes(tensor: TensorDesc, bits: int) -> TensorDesc | None:
    """A matrix as bytes; ``None`` if a row begins within one."""
    rows, count = tensor.sizes[-2:]
    step = tensor.layout[-2] * bits if rows > 1 else 8 * -(-count * bits // 8)
    return None if step % 8 else TensorDesc(TensorDataType.UINT8, (rows, -(-count * bits // 8)), (step // 8, 1))

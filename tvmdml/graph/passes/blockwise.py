"""Multiply by a matrix of few bits as it is stored, where a DEQUANTIZE with blocks is before the second factor of a product.

The matrix of floats is then never in memory, and never rounded to float16: sums are those of exact differences and scales.
"""

from __future__ import annotations

from typing import Any

from tvmdml.errors import TvmdmlError
from tvmdml.graph.nodes import Call, Edge
from tvmdml.graph.passes import unused
from tvmdml.graph.passes.asking import offered
from tvmdml.graph.program import Fusion, Program
from tvmdml.kernels.kernel import Offers
from tvmdml.operators._contract import Operator
from tvmdml.operators._following import follow
from tvmdml.operators._matrix_blocks_fused import BlockwiseGemm
from tvmdml.operators.element_wise_binary import ElementWiseAdd
from tvmdml.sizes import is_open
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType, TensorDesc


def run(program: Program, target: Target) -> None:
    """Fuse wherever the target's kernel takes the bits."""
    fusions = []
    for call in program.calls:
        head = call.edges["b_tensor"].source if call.desc.NAME == "GEMM" else None
        if not isinstance(head, Call) or head.desc.NAME != "DEQUANTIZE":
            continue
        try:
            found = _fused(call, head)
            if found is not None and Offers.OWN in offered(found[0], target):
                fusions.append(Fusion([call], *found, {(call, 0): 0}))
        except TvmdmlError:
            continue
    program.fuse_all(fusions)
    if fusions:
        unused.run(program, target)


def _fused(call: Call, head: Call) -> tuple[Operator, dict[str, Edge]] | None:
    """The product with the matrix of few bits, and what it reads."""
    desc: Any = call.desc
    q: Any = head.desc
    b, x, floats = desc.b_tensor, q.input_tensor, q.output_tensor
    turned_a, turned_b = desc.transposed()
    adds = desc.reads()
    if (
        turned_a
        or desc.alpha != 1
        or (adds and desc.beta != 1)
        or desc.fused_activation is not None
        or call.edges["b_tensor"].offset
    ):
        return None
    column, place = (b.rank - 2, b.rank - 1) if turned_b else (b.rank - 1, b.rank - 2)
    columns, places = b.sizes[column], b.sizes[place]
    tensors = [x, floats, *q.quantization_tensors]
    outer = [n for one in tensors for n in one.sizes[:-2]] + [
        n for n, step in zip(b.sizes[:-2], b.layout[:-2], strict=True) if step
    ]
    if x.rank < 2 or any(map(is_open, outer)) or any(n != 1 for n in outer):
        return None
    steps = (b.layout[column], b.layout[place])
    if any(map(is_open, (columns, places, *steps, *(n for one in tensors for n in (*one.sizes, *one.layout))))):
        return None
    block, bits = q.blocks(), x.data_type.bits
    beside = all(one.sizes[-1] == 1 or one.layout[-1] == 1 for one in tensors)
    same = steps == tuple(floats.layout[-2:]) and columns == floats.sizes[-2] and places <= floats.sizes[-1]
    if not beside or not same or block[-2] != 1:
        return None
    scale, *zero = q.quantization_tensors
    stored: list[Any] = [_bytes(one, bits) for one in (x, *zero)]
    if None in stored:
        return None
    edges = {"a_tensor": call.edges["a_tensor"], "b_tensor": head.edges["input_tensor"]}
    for i, name in enumerate(("scale_tensor", "zero_point_tensor")[: 1 + len(zero)]):
        edges[name] = head.edges[f"quantization_tensors[{i}]"]
    result = desc.output_tensor
    found: Any = BlockwiseGemm(
        a_tensor=desc.a_tensor,
        b_tensor=stored[0],
        scale_tensor=TensorDesc(scale.data_type, scale.sizes[-2:], scale.layout[-2:]),
        zero_point_tensor=stored[1] if zero else None,
        output_tensor=TensorDesc(result.data_type, result.sizes, result.strides),
        bits=bits,
        block_size=block[-1],
        is_signed=x.data_type.is_signed,
    )
    found.check()
    if not adds:
        return found, edges
    addition = ElementWiseAdd.of(found.output_tensor, desc.c_tensor)
    return follow(found, [addition], [[0, 1]]), {**edges, "epilogue_tensors[0]": call.edges["c_tensor"]}


def _bytes(tensor: TensorDesc, bits: int) -> TensorDesc | None:
    """A matrix as bytes; ``None`` if a row begins within one."""
    rows, count = tensor.sizes[-2:]
    step = tensor.layout[-2] * bits if rows > 1 else 8 * -(-count * bits // 8)
    return None if step % 8 else TensorDesc(TensorDataType.UINT8, (rows, -(-count * bits // 8)), (step // 8, 1))

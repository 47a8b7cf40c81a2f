"""Put attention in the place of two products with a softmax between.

The parts write and read a matrix of all scores, which leaves the caches where there are many rows; attention goes over it by
blocks. Scores may be scaled by a constant, and something may be added to them. Where the graph's precision is "bf16", both products
round their factors, if that is worth it. Half precision is left alone: its scores are rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tvmdml.enums import MatrixTransform
from tvmdml.graph.nodes import Call, Constant, Edge
from tvmdml.graph.program import Fusion, NodeOutput, Program, Use
from tvmdml.operators.activation_softmax import ActivationSoftmax, ActivationSoftmax1
from tvmdml.operators.element_wise_binary import ElementWiseAdd, ElementWiseDivide, ElementWiseMultiply
from tvmdml.operators.element_wise_unary import ElementWiseIdentity
from tvmdml.operators.gemm import Gemm
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType, TensorDesc
from tvmdml.tensors.sizes import is_open

_LEAST_PLACES = 32
"""The least products of a sum."""
_MOST_CHANNELS = 256
"""Channels of a head: panels of them have room in a cache."""
_LEAST_ROWS = 16
"""Fewer query rows would leave most of a matrix tile empty."""


def run(program: Program, target: Target) -> None:
    """Fuse wherever nothing else reads what is between."""
    if target.kind != "cpu":  # other targets' kernels have not been compared on a device
        return
    matcher = _Matcher(program.uses(), program.kept(), program.precision == "bf16")
    fusions: list[Fusion] = []
    taken: set[Call] = set()
    for call in program.calls:
        for fusion in matcher.at(call):
            if taken.isdisjoint(fusion.calls):  # a product may be the last of one attention and the first of another
                taken.update(fusion.calls)
                fusions.append(fusion)
    program.fuse_all(fusions)


class _Scores(NamedTuple):
    """Scores that are made of products, by the calls that do so."""

    calls: list[Call]
    scale: float
    bias: tuple[TensorDesc, Edge] | None


class _Matcher:
    """Finds the calls that are an attention, from the last one to the first."""

    def __init__(self, uses: Mapping[NodeOutput, list[Use]], results: set[NodeOutput], rounds: bool) -> None:
        self._uses, self._results, self._rounds = uses, results, rounds

    def at(self, call: Call) -> Iterator[Fusion]:
        """The attention whose second product is this call."""
        desc: Any = call.desc
        if not _is_product(desc) or desc.alpha != 1 or (softmax := self._before(call, "a_tensor")) is None:
            return
        rows = (desc.a_tensor.rank - 1,)
        if not isinstance(softmax.desc, (ActivationSoftmax, ActivationSoftmax1)) or getattr(softmax.desc, "axes", rows) != rows:
            return
        scores = self._scores(softmax, "input_tensor", _Scores([softmax, call], 1.0, None))
        if scores is None or _is_turned(desc.trans_a):
            return
        first: Any = scores.calls[0].desc
        edges = {
            "query_tensor": scores.calls[0].edges["a_tensor"],
            "key_tensor": scores.calls[0].edges["b_tensor"],
            "value_tensor": call.edges["b_tensor"],
        }
        query = _of_heads(first.a_tensor, _is_turned(first.trans_a))
        key = _of_heads(first.b_tensor, not _is_turned(first.trans_b))
        value = _of_heads(desc.b_tensor, _is_turned(desc.trans_b))
        if query is None or key is None or value is None:
            return
        calls, result, last = scores.calls, _of_heads(desc.output_tensor, False), call
        if (moved := self._moved(call)) is not None:
            calls, (last, result) = [*calls, moved[0]], moved
        tensors: dict[str, Any] = {"query_tensor": query, "key_tensor": key, "value_tensor": value, "output_tensor": result}
        if scores.bias is not None:
            tensors["attention_bias_tensor"], edges["attention_bias_tensor"] = _of_heads(scores.bias[0], False), scores.bias[1]
        yield Fusion(calls, _kind(self._rounds and _suit(query, key, value))(**tensors, scale=scores.scale), edges, {(last, 0): 0})

    def _before(self, call: Call, name: str) -> Call | None:
        """The call whose result an input is, as it is written, if nothing else reads it."""
        edge, tensor = call.edges[name], getattr(call.desc, name)
        node = edge.source
        if not isinstance(node, Call) or edge.offset or edge.value in self._results or len(self._uses[edge.value]) != 1:
            return None
        own = node.outputs()[edge.output]
        return node if own is not None and own.is_like(tensor) else None

    def _scores(self, call: Call, name: str, after: _Scores) -> _Scores | None:
        """What an input is made of, down to a product; ``after`` is what comes behind it."""
        before = self._before(call, name)
        if before is None:
            return None
        desc: Any = before.desc
        after = after._replace(calls=[before, *after.calls])
        if _is_product(desc):
            return after._replace(scale=after.scale * desc.alpha)
        if not isinstance(desc, (ElementWiseAdd, ElementWiseDivide, ElementWiseMultiply)):
            return None
        for scored, other in (("a_tensor", "b_tensor"), ("b_tensor", "a_tensor")):
            edge, tensor = before.edges[other], getattr(desc, other)
            if isinstance(desc, ElementWiseAdd):
                more = after._replace(bias=(tensor, edge)) if after.bias is None and after.scale == 1 else None
            elif scored == "b_tensor" and isinstance(desc, ElementWiseDivide):
                more = None
            else:
                number = _number(tensor, edge)
                own = None if number is None else 1 / number if isinstance(desc, ElementWiseDivide) and number else number
                more = None if not own else after._replace(scale=after.scale * own)
            if more is not None and (whole := self._scores(before, scored, more)) is not None:
                return whole
        return None

    def _moved(self, call: Call) -> tuple[Call, TensorDesc] | None:
        """The copy of the result that puts heads beside each other, and the result as it then lies, if nothing else reads it."""
        value, desc = (call, 0), call.desc.outputs()[0]
        uses = self._uses.get(value, [])
        if value in self._results or len(uses) != 1 or desc.rank != 4 or not isinstance(uses[0].call.desc, ElementWiseIdentity):
            return None
        copy: Any = uses[0].call
        read, written = copy.desc.input_tensor, copy.desc.output_tensor
        order = (0, 2, 1, 3)
        alike = (read.data_type, read.sizes, read.layout) == (
            desc.data_type,
            tuple(desc.sizes[i] for i in order),
            tuple(desc.layout[i] for i in order),
        )
        if not alike or copy.desc.scale_bias is not None or copy.edges["input_tensor"].offset:
            return None
        return copy, TensorDesc(desc.data_type, desc.sizes, [written.layout[i] for i in order])


def _kind(rounds: bool) -> Any:
    """The operator. Few graphs have attention: it is imported here."""
    if rounds:
        from tvmdml.operators._attention_bfloat16_fused import Bfloat16Attention

        return Bfloat16Attention
    from tvmdml.operators._attention_softmax_fused import SoftmaxAttention

    return SoftmaxAttention


def _is_product(desc: Any) -> bool:
    return (
        type(desc) is Gemm
        and desc.a_tensor.data_type is TensorDataType.FLOAT32
        and desc.fused_activation is None
        and not desc.reads()
        and desc.a_tensor.rank <= 4
    )


def _is_turned(transform: MatrixTransform) -> bool:
    return transform is MatrixTransform.TRANSPOSE


def _of_heads(tensor: TensorDesc, turned: bool) -> TensorDesc | None:
    """A matrix, or several, of batches and heads; ``None`` if it has more dimensions."""
    if tensor.rank > 4:
        return None
    sizes, steps = [1] * (4 - tensor.rank) + list(tensor.sizes), [0] * (4 - tensor.rank) + list(tensor.layout)
    if turned:
        sizes[2:], steps[2:] = sizes[:1:-1], steps[:1:-1]
    return TensorDesc(tensor.data_type, sizes, steps)


def _suit(query: TensorDesc, key: TensorDesc, value: TensorDesc) -> bool:
    """Whether panels of rounded factors are worth it, and read what lies right."""
    (rows, channels), keys, values = query.sizes[2:], key.sizes[2], value.sizes[3]
    if is_open(channels) or is_open(values) or any(tensor.layout[3] != 1 for tensor in (query, key, value)):
        return False
    if any(not is_open(size) and size < least for size, least in ((rows, _LEAST_ROWS), (keys, _LEAST_PLACES))):
        return False
    return bool(_LEAST_PLACES <= channels <= _MOST_CHANNELS and values <= _MOST_CHANNELS)


def _number(tensor: TensorDesc, edge: Edge) -> float | None:
    """The constant that all elements are; ``None`` if they are not one."""
    if not isinstance(edge.source, Constant) or any(
        step and size != 1 for size, step in zip(tensor.sizes, tensor.layout, strict=True)
    ):
        return None
    return float(np.frombuffer(np.ascontiguousarray(edge.source.array), np.float32)[edge.offset // 4])

"""``follow``: an operator with pointwise operators behind it, as one descriptor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmdml.errors import InvalidArgument, message
from tvmdml.operators import _attention_fused, _matrix_fused, _movement_fused, _reduction_fused
from tvmdml.operators._contract import Operator
from tvmdml.operators._pointwise_fused import FusedPointwise, Result, fuse
from tvmdml.operators._pointwise_fused import Value as Wire
from tvmdml.tensors import TensorDesc

FOLLOWED: dict[type[Operator], type[Any]] = {
    one.HEAD: one for some in (_matrix_fused, _reduction_fused, _movement_fused, _attention_fused) for one in some.CLASSES
}
"""The classes with what follows, by those without."""


def follow(head: Operator, nodes: Sequence[Operator], wiring: Sequence[Sequence[Wire]], result: Result | None = None) -> Any:
    """An operator with pointwise operators behind it, as one descriptor.

    Args:
        head: a descriptor of one of the classes in ``FOLLOWED``.
        nodes: what follows, as for ``fuse``.
        wiring: as for ``fuse``; input 0 is the head's result, and the others are numbered from 1 on.
        result: what is stored; by default the result of the last node.

    Returns:
        A descriptor whose tensors are the head's, and ``epilogue_tensors``, which are the inputs from number 1 on. The output is
        that of ``result``.

    Raises:
        InvalidArgument: these operators cannot be one.
    """
    last = Result(len(nodes) - 1) if result is None else result
    return follow_by(head, fuse(nodes, wiring, [last]))


def follow_by(head: Operator, chain: FusedPointwise) -> Any:
    """``follow`` by a group whose first input is the head's result.

    Raises:
        InvalidArgument: these operators cannot be one.
    """
    cls = FOLLOWED.get(type(head))
    if cls is None:
        raise InvalidArgument(message("follow: head", head.NAME, ", ".join(one.NAME for one in FOLLOWED)))
    result: TensorDesc = getattr(head, "output_tensor")  # noqa: B009 - a field of all of them
    if not chain.input_tensors or not chain.input_tensors[0].is_like(result):
        given = str(chain.input_tensors[0]) if chain.input_tensors else "none"
        raise InvalidArgument(message("follow: input 0", given, f"{result}, the head's result"))
    fields = {field.name: getattr(head, field.name) for field in type(head).fields()}
    fields["output_tensor"] = chain.output_tensors[0]
    found = cls(**fields, epilogue=chain, epilogue_tensors=chain.input_tensors[1:])
    found.check()
    return found

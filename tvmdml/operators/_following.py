"""``follow``: an operator with pointwise operators behind it, as one descriptor."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from tvmdml.errors import InvalidArgument, message
from tvmdml.operators._contract import Operator
from tvmdml.operators._pointwise_fused import FusedPointwise, Result, fuse
from tvmdml.operators._pointwise_fused import GroupOperand as Wire
from tvmdml.system import whole
from tvmdml.tensors import TensorDesc

FAMILIES = ("_matrix", "_reduction", "_movement", "_attention")
"""The modules of the base classes of all operators that others may follow. Those with what follows are in ``…_fused``."""


_known: dict[Any, type[Any] | None] = {}


def followed(head: type[Operator]) -> type[Any] | None:
    """The class with what follows, of one without; ``None`` if nothing may follow. Its family is imported now."""
    if head not in _known:
        homes = (base.__module__.rpartition(".")[2] for base in head.__mro__)
        family = next((home for home in homes if home in FAMILIES), None)
        _known[head] = None if family is None else next((one for one in _classes(family) if one.HEAD is head), None)
    return _known[head]


@functools.cache
def _classes(family: str) -> Sequence[type[Any]]:
    with whole():
        found: Sequence[type[Any]] = importlib.import_module(f"tvmdml.operators.{family}_fused").CLASSES
    return found


def follow(head: Operator, nodes: Sequence[Operator], wiring: Sequence[Sequence[Wire]], result: Result | None = None) -> Any:
    """An operator with pointwise operators behind it, as one descriptor.

    Args:
        head: a descriptor of a class that ``followed`` knows.
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
    cls = followed(type(head))
    if cls is None:
        allowed = ", ".join(one.HEAD.NAME for family in FAMILIES for one in _classes(family))
        raise InvalidArgument(message("follow: head", head.NAME, allowed))
    result: TensorDesc = getattr(head, "output_tensor")  # noqa: B009 - a field of all of them
    if not chain.input_tensors or not chain.input_tensors[0].is_like(result):
        given = str(chain.input_tensors[0]) if chain.input_tensors else "none"
        raise InvalidArgument(message("follow: input 0", given, f"{result}, the head's result"))
    fields = {field.name: getattr(head, field.name) for field in type(head).fields()}
    fields["output_tensor"] = chain.output_tensors[0]
    found = cls(**fields, epilogue=chain, epilogue_tensors=chain.input_tensors[1:])
    found.check()
    return found

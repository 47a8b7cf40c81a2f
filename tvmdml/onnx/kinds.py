"""``Kind``: what an input or output of a model is: a tensor, a sequence of tensors, or either if it is there.

A call gives a sequence as a list of arrays, and nothing as ``None``. While the model is compiled, and for the graph, each tensor of
a sequence has a name of its own, and the number of its tensors stands where a tensor has its shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A kind of input or output."""

    is_sequence: bool = False
    is_optional: bool = False

    @classmethod
    def of(cls, text: str) -> Kind:
        """From ONNX Runtime's name of a type: ``optional(seq(tensor(float)))``."""
        return cls("seq(" in text, text.startswith("optional("))

    @classmethod
    def read(cls, proto: Any) -> tuple[Kind, Any]:
        """From ONNX's message, with that of the tensors; it is ``None`` for what is none of these."""
        optional = proto.HasField("optional_type")
        inner = proto.optional_type.elem_type if optional else proto
        sequence = inner.HasField("sequence_type")
        inner = inner.sequence_type.elem_type if sequence else inner
        return cls(sequence, optional), inner.tensor_type if inner.HasField("tensor_type") else None

    def named(self, tensor: str) -> str:
        """ONNX Runtime's name of the type, with tensors of a type."""
        found = f"seq({tensor})" if self.is_sequence else tensor
        return f"optional({found})" if self.is_optional else found


def part(name: str, place: int) -> str:
    """The name of a tensor of a sequence."""
    return f"{name}[{place}]"


def parts(name: str, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """The names of all tensors of a sequence."""
    (count,) = shapes[name]
    return (part(name, i) for i in range(count))

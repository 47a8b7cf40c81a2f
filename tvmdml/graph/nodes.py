"""The nodes of a graph: inputs, constants and calls of operators; an ``Edge`` is the memory that one node reads from another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.errors import InvalidArgument, message
from tvmdml.operators._contract import Operator, Role
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.arrays import NumpyArray


class Node:
    """A node. Nodes are compared by identity."""

    def __init__(self, name: str, where: object) -> None:
        self.name = name
        """The name that the program gave, or an empty one."""
        self._where = where

    @property
    def where(self) -> str:
        """The line of the program that made the node: ``model.py:12``."""
        return str(self._where)

    def bytes_of(self, output: int) -> int:
        """The size of the memory of one output."""
        raise NotImplementedError


class Input(Node):
    """An array that is given at each run; with ``owned``, once before the first."""

    def __init__(self, desc: TensorDesc, dtype: np.dtype[Any], owned: bool, name: str, where: object) -> None:
        super().__init__(name, where)
        self.desc, self.owned = desc, owned
        self.dtype = dtype
        """The caller's type: bool or that of the description."""

    def bytes_of(self, output: int) -> int:
        """The size of its memory."""
        return _bytes(self.desc)

    def __str__(self) -> str:
        """For messages: ``input x``."""
        return f"input {self.name}" if self.name else "an input"


class Constant(Node):
    """An array that never changes, row-major without gaps. It is not copied: it may be mapped from a file."""

    def __init__(self, array: NumpyArray, name: str, where: object) -> None:
        super().__init__(name, where)
        self.array = array

    def bytes_of(self, output: int) -> int:
        """The size of the array."""
        return self.array.nbytes

    def __str__(self) -> str:
        """For messages: ``constant weight``."""
        return f"constant {self.name}" if self.name else "a constant"


class SizesArray(Input):
    """An array of integers that follow from open sizes, row-major without gaps. For certain sizes it is a constant."""

    def __init__(self, elements: tuple[Any, ...], desc: TensorDesc, name: str, where: object) -> None:
        super().__init__(desc, desc.data_type.numpy, False, name, where)
        self.elements = elements
        """Each a size, or Python's own integer."""

    def array(self, elements: Sequence[int]) -> NumpyArray:
        """The array with these elements."""
        with np.errstate(over="ignore"):  # a large one is infinite in a narrow float type
            return np.array(elements, self.dtype).reshape(() if getattr(self.desc, "zero_dimensional", False) else self.desc.sizes)

    def __str__(self) -> str:
        """For messages."""
        return "an array of sizes"


def never_changes(node: Node) -> bool:
    """Whether its elements are the same in every run: a constant, or an owned input."""
    return isinstance(node, Constant) or (isinstance(node, Input) and node.owned)


class Edge(NamedTuple):
    """Memory that a node reads: from a byte on, in an output of another node. The reader's ``TensorDesc`` says how it is read."""

    source: Node
    output: int = 0
    """The output's place among the source's output tensors, absent ones included."""
    offset: int = 0
    """Bytes."""

    @property
    def value(self) -> tuple[Node, int]:
        """The memory as a whole."""
        return self.source, self.output


class Call(Node):
    """A call of an operator. The tensors of its descriptor say how the memory of its edges is read, and its outputs are written."""

    def __init__(
        self, desc: Operator, edges: Mapping[str, Edge], name: str, where: object, *, origins: tuple[Call, ...] = ()
    ) -> None:
        super().__init__(name, where)
        self.desc = desc
        self.edges = dict(edges)
        """What each input tensor that is present reads, by the tensor's name."""
        self.origins = origins or (self,)
        """The calls of the graph that this one does the work of."""

    def outputs(self) -> tuple[TensorDesc | None, ...]:
        """The descriptions of the outputs, absent ones included."""
        return self.desc.all_outputs()

    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs, absent ones included."""
        return tuple(name for name, _ in self.desc.tensors(Role.OUTPUT))

    def inputs(self) -> Iterator[tuple[str, TensorDesc, Edge]]:
        """Each input tensor that is present: its name, how it is read, and from where."""
        for name, tensor in self.desc.tensors(Role.INPUT):
            if tensor is not None:
                yield name, tensor, self.edges[name]

    def bytes_of(self, output: int) -> int:
        """The size of an output's memory."""
        desc = self.outputs()[output]
        return 0 if desc is None else _bytes(desc)

    def __str__(self) -> str:
        """For messages: ``GEMM 'fc1' (model.py:12)``."""
        return self.desc.NAME + (f" {self.name!r}" if self.name else "") + (f" ({self.where})" if self.where else "")


def _bytes(desc: TensorDesc) -> int:
    return max(desc.span_in_bytes, desc.total_tensor_size_in_bytes or 0)


def require_room(edge: Edge, tensor: TensorDesc, where: str) -> None:
    """Raise unless all elements of a tensor are inside of the memory that it reads.

    Raises:
        InvalidArgument: they are not.
    """
    room = edge.source.bytes_of(edge.output) - edge.offset
    if tensor.span_in_bytes > room or edge.offset % tensor.data_type.itemsize:
        given = f"{tensor} at byte {edge.offset} of {edge.source}"
        raise InvalidArgument(message(where, given, f"at most {room} bytes, at a multiple of the element size"))

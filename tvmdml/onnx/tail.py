"""``Tail``: the nodes of a model that need elements of large tensors, such as those that count boxes. They run after the graph.

A detector ends in NonMaxSuppression: how many boxes there are is known when all others are computed. Such nodes, and those that
read their results, run one by one on the processor, as ONNX Runtime's DML provider does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvmdml.arrays import NumpyArray
from tvmdml.errors import Unsupported
from tvmdml.onnx.converting import Conversion, Model, raise_all


class Tail:
    """Nodes that run after the graph."""

    def __init__(
        self, model: Model, nodes: Sequence[Any], given: Mapping[str, NumpyArray], reads: Sequence[str], makes: Mapping[int, str]
    ) -> None:
        """
        Args:
            model: the model.
            nodes: in their order.
            given: tensors that they read, and that are known.
            reads: tensors that they read, and that the graph computes.
            makes: the names of the model's outputs that they compute, by their places.
        """
        self._model, self._nodes, self._given, self.reads, self.makes = model, nodes, given, tuple(reads), makes
        self.kinds = tuple(dict.fromkeys(str(one.op_type) for one in nodes))
        """ONNX's names of the nodes' operators."""

    def run(self, arrays: Sequence[NumpyArray]) -> dict[int, NumpyArray]:
        """The outputs, by their places, from what it ``reads``.

        Raises:
            Unsupported, ModelError: a node cannot be computed for these elements.
        """
        given = {**self._given, **dict(zip(self.reads, arrays, strict=True))}
        found, problems = Conversion.eager(self._model, given, self._nodes, list(self.makes.values()))
        raise_all(self._model.source.name, problems)
        outputs = {}
        for place, name in self.makes.items():
            array = found[name]
            if array is None:
                raise Unsupported(f"{self._model.source.name}: the output {name!r} is no tensor")
            outputs[place] = array
        return outputs

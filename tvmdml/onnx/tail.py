"""``Tail``: the nodes of a model that need elements of large tensors, such as those that count boxes. They run after the graph.

A detector ends in NonMaxSuppression: how many boxes there are is known when all others are computed. Such nodes, and those that
read their results, run one by one on the processor, as ONNX Runtime's DML provider does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvmdml.arrays import NumpyArray
from tvmdml.onnx.converting import Conversion, Model
from tvmdml.onnx.scopes import raise_all
from tvmdml.onnx.values import Value


class Tail:
    """Nodes that run after the graph."""

    def __init__(
        self, model: Model, nodes: Sequence[Any], reads: Mapping[str, Value], makes: Mapping[int, str], draws: int
    ) -> None:
        """
        Args:
            model: the model.
            nodes: in their order.
            reads: what they read, by name. Tensors that are not known are those that ``run`` is given.
            makes: the names of the model's outputs that they compute, by their places.
            draws: how many nodes of the graph draw random numbers.
        """
        self._draws = draws
        self._model, self._nodes, self.makes = model, nodes, makes
        self._reads = {name: one.mapped(_without_graph) for name, one in reads.items()}
        self.kinds = tuple(dict.fromkeys(str(one.op_type) for one in nodes))
        """ONNX's names of the nodes' operators."""

    def run(self, arrays: Sequence[NumpyArray], state: NumpyArray) -> dict[int, Any]:
        """The outputs, by their places, from the tensors that it reads: arrays, lists of them, or ``None`` for nothing.

        ``state`` is that of the random numbers of the run.

        Raises:
            Unsupported, ModelError: a node cannot be computed for these elements.
        """
        rest = iter(arrays)
        given = {
            name: one.mapped(lambda tensor: tensor if tensor.is_tensor else Value.known(next(rest)))
            for name, one in self._reads.items()
        }
        found, problems = Conversion.eager(self._model, given, self._nodes, list(self.makes.values()), state, self._draws)
        raise_all(self._model.source.name, problems)
        return {place: _array(found[name]) for place, name in self.makes.items()}


def _without_graph(tensor: Value) -> Value:
    """What is known of a tensor; the graph of other ones is let go."""
    return Value.lost() if tensor.array is None else Value.known(tensor.array)


def _array(value: Value) -> Any:
    if value.parts is not None:
        return [_array(one) for one in value.parts]
    assert value.is_nothing or value.array is not None
    return value.array

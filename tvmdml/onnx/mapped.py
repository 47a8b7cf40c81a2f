"""``MappedModel``: a model that was read, with what all its conversions share, and which of its nodes are mapped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.onnx import bounds, described, folding, inference
from tvmdml.onnx.own_operators import OWN
from tvmdml.onnx.reading import ReadModel, opsets
from tvmdml.onnx.rules import RULES
from tvmdml.onnx.scopes import Problem, kind_of, place_of
from tvmdml.onnx.steps import STEPS
from tvmdml.tensors import PRECISIONS
from tvmdml.tensors.arrays import NumpyArray

if TYPE_CHECKING:
    from tvmdml.onnx.foreign import ForeignRuntime


class MappedModel(NamedTuple):
    """A model that was read, with what all conversions share."""

    source: ReadModel
    arrays: dict[int, tuple[Any, NumpyArray]]
    """The tensors of the model that were read, by the identities of their messages, which are kept."""
    steps: dict[int, tuple[Any, list[Any]]]
    """The nodes that are converted in the places of others, in the same way."""
    fallback: ForeignRuntime | None = None
    """What runs nodes that cannot be converted."""
    may_round: bool = False
    """Whether nodes may round what they multiply, where they say so."""
    precision: str = PRECISIONS[0]
    """That of its graphs."""

    def in_steps(self, proto: Any, kind: str) -> list[Any] | None:
        """The nodes that are converted in the place of one, made once; ``None`` for itself."""
        make = STEPS.get(kind)
        if make is None:
            return None
        made = self.steps.get(id(proto))
        if made is None or made[0] is not proto:
            made = self.steps[id(proto)] = (proto, make(proto))
        return made[1]

    def array(self, tensor: Any) -> NumpyArray:
        """The elements of a tensor of the model, read once."""
        found = self.arrays.get(id(tensor))
        if found is None or found[0] is not tensor:
            found = self.arrays[id(tensor)] = (tensor, self.source.array(tensor))
        return found[1]

    def missing(self) -> list[Problem]:
        """The nodes whose operators map to nothing, whatever the sizes are."""
        own = bounds.functions(self.source.model)
        versions = dict(opsets(self.source.model))
        bodies = [(self.source.model.graph.node, versions), *((one.node, dict(opsets(one))) for one in own.values())]
        return [problem for nodes, around in bodies for problem in self._missing(nodes, around)]

    def is_mapped(self, proto: Any) -> bool:
        """Whether the operators of a node of the model's own graph, and of graphs in it, map to something."""
        return not self._missing([proto], dict(opsets(self.source.model)))

    def _missing(self, nodes: Iterable[Any], around: Mapping[str, int]) -> list[Problem]:
        own, missing = bounds.functions(self.source.model), []
        for proto in bounds.all_nodes(nodes):
            kind = kind_of(proto)
            if is_known(kind):
                continue
            schema = inference.schema(proto, around)
            if schema is None and bounds.key_of(proto) in own:
                continue
            if schema is None:
                missing.append(Problem(kind, place_of(proto), "no operator of this name is known", False))
            elif not (schema.has_function or schema.has_context_dependent_function):
                missing.append(Problem(kind, place_of(proto), "DirectML has no counterpart", False))
        return missing


def is_known(kind: str) -> bool:
    """Whether an operator maps to something."""
    return kind in RULES or kind in STEPS or kind in OWN or described.is_mapped(kind) or folding.folds(kind)

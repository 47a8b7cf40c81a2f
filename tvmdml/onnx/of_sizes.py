"""``Constants``: small constants that follow from sizes, such as positions and masks, computed by the model's own nodes.

A node that was computed while a model was converted is computed again with other elements: its attributes are known by then, and
its result has the type it had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.arrays import NumpyArray
from tvmdml.graph.by_size import Described, Differs
from tvmdml.onnx import folding
from tvmdml.onnx.converting import Conversion, Model
from tvmdml.onnx.function import Needed
from tvmdml.onnx.node import Node, Result
from tvmdml.onnx.scopes import Traced, kind_of
from tvmdml.onnx.values import Value
from tvmdml.onnx_nodes import Refused


class _Step(NamedTuple):
    """A node that is computed for each size."""

    node: Node
    """As it was computed for another size."""
    inputs: tuple[str | Value | None, ...]
    """The name of each one that depends on the size, and the others."""
    output: str
    dtype: Any


class Constants:
    """Constants that follow from sizes: the model's nodes that compute them, from what its Shape nodes give."""

    def __init__(self, model: Model, needed: Needed) -> None:
        """
        Args:
            model: the model.
            needed: what follows from sizes, and how.

        Raises:
            Differs: they are not computed in this way.
        """
        self._model, self.needed = model, needed
        every = model.source.model.graph.node
        self._nodes = [every[i] for i in needed.nodes]
        varying = {name for name, (one, _) in needed.sizes.items() if one.varies}
        varying.update(str(name) for proto in self._nodes for name in proto.output)
        self._steps = self._recorded(needed.first, varying)

    @classmethod
    def through(cls, model: Model, wanted: Sequence[str], tensors: Mapping[int, Mapping[str, Value]]) -> Constants:
        """Those of a model.

        Args:
            model: the model.
            wanted: the tensors that they are.
            tensors: those of the model, by name, for each size that is known.

        Raises:
            Differs: they are not computed in this way.
        """
        every = model.source.model.graph.node
        makers = {str(name): i for i, proto in enumerate(every) for name in proto.output}
        needed: set[int] = set()
        sized: set[str] = set()
        waiting = list(wanted)
        while waiting:
            name = waiting.pop()
            if (i := makers.get(name)) is None or i in needed:
                continue
            if kind_of(every[i]) in ("Shape", "Size"):
                sized.add(name)
            else:
                needed.add(i)
                waiting += map(str, every[i].input)
        sizes: dict[str, tuple[Described, tuple[int, ...]]] = {}
        for name in sized:
            known = [one.array for own in tensors.values() if (one := own.get(name)) is not None and one.array is not None]
            if len(known) < len(tensors):
                raise Differs
            described = Described.through(list(tensors), [tuple(one.reshape(-1).tolist()) for one in known])
            sizes[name] = described, known[0].shape
        varying = {name for name, (one, _) in sizes.items() if one.varies}
        fixed, others = [], []
        for i in sorted(needed):
            if varying.isdisjoint(map(str, every[i].input)):
                fixed.append(every[i])
            else:
                others.append(i)
                varying.update(map(str, every[i].output))
        first = next(iter(tensors))
        names = sorted({str(name) for one in fixed for name in one.output} - {""})
        given, _ = _values(model, _sizes_at(sizes, first), fixed, names)
        found = cls(model, Needed(tuple(wanted), sizes, given, tuple(others), first))
        for n, own in tensors.items():
            if not all(same(array, own[name].array) for name, array in zip(wanted, found.at(n), strict=True)):
                raise Differs
        return found

    def at(self, n: int) -> list[NumpyArray]:
        """The constants for a size, row-major.

        Raises:
            Differs: they cannot be computed.
        """
        found = self._again(n) if self._steps is not None else None
        if found is None:
            found, _ = self._computed(n)
        return [np.ascontiguousarray(found[name]).reshape(found[name].shape) for name in self.needed.wanted]

    def _given(self, n: int) -> dict[str, NumpyArray]:
        return {**self.needed.given, **_sizes_at(self.needed.sizes, n)}

    def _computed(self, n: int) -> tuple[dict[str, NumpyArray], list[Traced]]:
        return _values(self._model, self._given(n), self._nodes, self.needed.wanted)

    # -- Without inference

    def _recorded(self, n: int, varying: set[str]) -> list[_Step] | None:
        """The nodes that depend on the size; ``None`` if there are some that cannot be computed again."""
        _, trace = self._computed(n)
        if len(trace) != len(self._nodes) or not all(one.folded and len(one.results) == 1 for one in trace):
            return None
        steps = []
        for proto, one in zip(self._nodes, trace, strict=True):
            names = [str(name) for name in proto.input]
            named = [names[i] if i < len(names) and names[i] in varying else given for i, given in enumerate(one.node.inputs)]
            (result,) = one.results
            if result is None or result.array is None or not folding.folds_again(one.node.kind):
                return None
            steps.append(_Step(one.node, tuple(named), str(proto.output[0]), result.array.dtype))
        return steps

    def _again(self, n: int) -> dict[str, NumpyArray] | None:
        """The constants for a size; ``None`` if they must be computed in the long way."""
        values = {name: Value.known(array) for name, array in self._given(n).items()}
        with np.errstate(all="ignore"):
            for node, inputs, output, dtype in self._steps or ():
                given = [values[one] if type(one) is str else one for one in inputs]
                one = Node(node.kind, given, node.outputs, node.attributes, [Result(None, None)], node.opset, node.around)  # type: ignore[arg-type]
                try:
                    found = folding.again(one)
                except Refused:
                    return None
                if found is None:
                    return None
                values[output] = Value.known(found if found.dtype == dtype else found.astype(dtype))
        known = {name: values[name].array for name in self.needed.wanted}
        return {name: array for name, array in known.items() if array is not None}


def _sizes_at(sizes: Mapping[str, tuple[Described, tuple[int, ...]]], n: int) -> dict[str, NumpyArray]:
    """What the Shape nodes give for a size."""
    return {name: np.array(one.at(n), np.int64).reshape(shape) for name, (one, shape) in sizes.items()}


def _values(
    model: Model, given: Mapping[str, NumpyArray], nodes: Sequence[Any], wanted: Sequence[str]
) -> tuple[dict[str, NumpyArray], list[Traced]]:
    """Tensors that some nodes compute from those that are given, and how they were computed.

    Raises:
        Differs: they cannot be computed.
    """
    found, trace = Conversion.part(model, given, nodes, wanted)
    known = {name: one for name, one in zip(wanted, found, strict=True) if one is not None}
    if len(known) < len(found):
        raise Differs
    return known, trace


def same(array: NumpyArray, other: NumpyArray | None) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    if other is None or (array.shape, array.dtype) != (other.shape, other.dtype):
        return False
    return array is other or array.tobytes() == other.tobytes()

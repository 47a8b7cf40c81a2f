"""ONNX's own test cases with a single node, for the ONNX operators that can be converted to DirectML's."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tvmdml import onnx_nodes
from tvmdml.conformance.checks import Check, is_taken
from tvmdml.conformance.references import line, tried
from tvmdml.enums import FeatureLevel
from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported
from tvmdml.operators import Operator
from tvmdml.operators._contract import Array
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType
from tvmdml.trial import Trial


class OnnxCase(NamedTuple):
    """An ONNX test case, with one of its data sets."""

    name: str
    model: Any
    """The ONNX model, with one node."""
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]

    @property
    def node(self) -> Any:
        """The model's node."""
        return self.model.graph.node[0]

    @property
    def attributes(self) -> dict[str, Any]:
        """The node's attributes, as ONNX's helper returns them."""
        import onnx

        return {a.name: onnx.helper.get_attribute_value(a) for a in self.node.attribute}

    def unsaid(self) -> str:
        """The reason why it cannot be converted to DirectML's operators; empty if it can."""
        for array in (*self.inputs, *self.outputs):
            try:
                if array.dtype != bool:
                    TensorDataType.from_numpy(array.dtype)
            except InvalidArgument:
                return f"DirectML has no {array.dtype}"
        return "the order of an unsorted answer is left open" if self.attributes.get("sorted") == 0 else ""


@functools.cache
def collected() -> dict[str, list[OnnxCase]]:
    """All cases, by ONNX operator.

    Raises:
        Unsupported: ONNX is not installed.
    """
    try:
        from onnx.backend.test.case import node
    except ImportError:
        raise Unsupported("conformance --onnx takes the package onnx, which is not installed: `pip install onnx`.") from None
    found: dict[str, list[OnnxCase]] = {operator: [] for operator in onnx_nodes.OPERATORS}
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # computing ONNX's expected values gives warnings
        warnings.simplefilter("ignore")
        for case in _of_our_operators(node):
            nodes = case.model.graph.node
            if len(nodes) == 1 and nodes[0].op_type in found:
                for number, (inputs, outputs) in enumerate(case.data_sets):
                    name = case.name if len(case.data_sets) == 1 else f"{case.name} {number}"
                    one = OnnxCase(name, case.model, tuple(map(np.asarray, inputs)), tuple(map(np.asarray, outputs)))
                    found[nodes[0].op_type].append(one)
    return found


def _of_our_operators(node: Any) -> list[Any]:
    """The cases in ONNX's modules for our operators only, because making all cases takes ten seconds."""
    try:
        for kind in onnx_nodes.OPERATORS:
            importlib.import_module(f"{node.__name__}.{kind.lower()}")
        return list(node._NodeTestCases)
    except (ImportError, AttributeError):  # a version of ONNX with other modules
        return list(node.collect_testcases(None))


# -- The outputs that DirectML's operators must give ------------------------------------------------------------------


def _alike(desc: Operator, outputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """The same values in the same shapes; indices are signed in ONNX, and are converted to the descriptor's type."""
    return tuple(
        np.ascontiguousarray(array).astype(tensor.data_type.numpy).reshape(tensor.sizes)
        for array, tensor in zip(outputs, desc.outputs(), strict=True)
    )


def _coordinates(desc: Operator, outputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """A count, and a row for each of ONNX's columns; rows after the count are undefined."""
    (columns,) = outputs
    count, rows = (np.zeros(tensor.sizes, tensor.data_type.numpy) for tensor in desc.outputs())
    count[...] = columns.shape[1]
    rows.reshape(-1, rows.shape[-1])[: columns.shape[1]] = columns.T
    return count, rows


_OUTPUTS: Mapping[str, Callable[[Operator, tuple[Array, ...]], tuple[Array, ...]]] = {"NonZero": _coordinates}
"""The conversions of outputs for operators that cannot use ``_alike``."""


# -- The checks ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class NodeCheck(Check):
    """A kernel gives the results that ONNX expects."""

    part: ClassVar[str] = "onnx"
    name: str
    desc: Operator | None
    inputs: tuple[Array, ...] = ()
    outputs: tuple[Array, ...] = ()
    reason: str = ""

    @property
    def what(self) -> str:
        """ONNX's name for the case, and the descriptor."""
        return self.name if self.desc is None else f"{self.name}: {line(self.desc)}"

    def problem(self, target: Target, seed: int) -> str:
        """What is wrong with the kernel's results."""
        if self.desc is None:
            raise Unsupported(self.reason)
        waiting = iter(self.inputs)
        trial = Trial(self.desc, False, lambda data_type, sizes: next(waiting).view(data_type.numpy).reshape(sizes), self.outputs)
        return tried(self.desc, target, trial)


def checks(names: Iterable[str], level: FeatureLevel) -> Iterator[Check]:
    """The cases of ONNX operators that are converted to these; cases that cannot be converted have a reason."""
    names = list(names)
    for kind, found in collected().items():
        made = [_check(kind, case, level) for case in found]
        operator = next(check.operator for check in made if check.operator)  # the same for all cases of one kind
        if operator in names:
            yield from (dataclasses.replace(check, operator=operator) for check in made)


def _check(kind: str, case: OnnxCase, level: FeatureLevel) -> NodeCheck:
    if reason := case.unsaid():
        return NodeCheck("", case.name, None, reason=reason)
    tensors = dict(zip(case.node.input, case.inputs, strict=True))
    known = {name: onnx_nodes.Tensor(array.dtype, array.shape) for name, array in tensors.items()}
    constants = {name: array.reshape(-1).tolist() for name, array in tensors.items() if array.dtype == np.int64}
    try:
        desc = onnx_nodes.OPERATORS[kind](onnx_nodes.Arguments(case.node, known, constants))
    except (onnx_nodes.Refused, TvmdmlError) as error:
        return NodeCheck("", case.name, None, reason=str(error))
    if any(tensor.element_count == 0 for _, tensor in desc.tensors() if tensor is not None):
        return NodeCheck(desc.NAME, case.name, None, reason="it has no elements, and so needs no kernel")
    if not is_taken(desc, level):
        return NodeCheck(desc.NAME, case.name, None, reason=f"feature level {level} does not take it")
    return NodeCheck(desc.NAME, case.name, desc, case.inputs, _OUTPUTS.get(kind, _alike)(desc, case.outputs))

"""ONNX's own test cases with a single node, for the ONNX operators that can be converted to DirectML's."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tvmdml.enums import FeatureLevel
from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported
from tvmdml.onnx import descriptors
from tvmdml.operators import Operator
from tvmdml.operators._accuracy import Expected, within_steps
from tvmdml.operators._contract import NumpyArray, Role
from tvmdml.operators._pointwise import Pointwise
from tvmdml.operators._reduction import Reduction
from tvmdml.operators._trial import OperatorTrial
from tvmdml.proof.conformance.checks import Check, is_taken
from tvmdml.proof.conformance.references import line, tried
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType, TensorDesc


class OnnxCase(NamedTuple):
    """An ONNX test case, with one of its data sets."""

    name: str
    model: Any
    """The ONNX model, with one node."""
    inputs: tuple[NumpyArray, ...]
    outputs: tuple[NumpyArray, ...]

    @property
    def node(self) -> Any:
        """The model's node."""
        return self.model.graph.node[0]

    @property
    def attributes(self) -> dict[str, Any]:
        """The node's attributes, as ONNX's helper returns them."""
        import onnx

        return {a.name: onnx.helper.get_attribute_value(a) for a in self.node.attribute}

    @property
    def tensors(self) -> dict[str, NumpyArray]:
        """The inputs, by the model's names. The node need not have all of them."""
        return {one.name: array for one, array in zip(self.model.graph.input, self.inputs, strict=True)}

    def unsaid(self) -> str:
        """The reason why it cannot be converted to DirectML's operators; empty if it can."""
        for array in (*self.inputs, *self.outputs):
            try:
                if array.dtype != bool:
                    TensorDataType.of(array.dtype, "array")
            except InvalidArgument:
                return f"DirectML has no {array.dtype}"
        return "ONNX does not specify the order of unsorted results" if self.attributes.get("sorted") == 0 else ""


@functools.cache
def collected() -> dict[str, list[OnnxCase]]:
    """All cases, by ONNX operator.

    Raises:
        Unsupported: ONNX is not installed.
    """
    try:
        from onnx.backend.test.case import node
    except ImportError:
        raise Unsupported("conformance --onnx needs the package onnx, which is not installed: `pip install onnx`.") from None
    found: dict[str, list[OnnxCase]] = {operator: [] for operator in descriptors.OPERATORS}
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # computing ONNX's expected values gives warnings
        warnings.simplefilter("ignore")
        for case in _of_our_operators(node):
            nodes = case.model.graph.node
            if len(nodes) == 1 and nodes[0].op_type in found:
                for number, (inputs, outputs) in enumerate(case.data_sets):
                    name = case.name if len(case.data_sets) == 1 else f"{case.name} {number}"
                    one = OnnxCase(name, case.model, tuple(map(_as_array, inputs)), tuple(map(_as_array, outputs)))
                    found[nodes[0].op_type].append(one)
    return found


def _as_array(value: Any) -> NumpyArray:
    """A value of a case as an array; of objects if it is no tensor."""
    from onnx import TensorProto, numpy_helper

    try:
        found: NumpyArray = numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)
    except ValueError:  # a sequence of tensors of different shapes
        return np.array(None)
    return found


def _of_our_operators(node: Any) -> list[Any]:
    """The cases in ONNX's modules for our operators only, because making all cases takes ten seconds."""
    try:
        modules = {name.replace("_", ""): name for name in (found.name for found in pkgutil.iter_modules(node.__path__))}
        for kind in map(str.lower, descriptors.OPERATORS):
            if (name := modules.get(kind, modules.get(f"{kind}op"))) is not None:  # the others are other libraries' operators
                importlib.import_module(f"{node.__name__}.{name}")
        return list(node._NodeTestCases)
    except (ImportError, AttributeError, KeyError):  # a version of ONNX with other modules
        return list(node.collect_testcases(None))


# -- The outputs that DirectML's operators must give ------------------------------------------------------------------


def _alike(desc: Operator, outputs: tuple[NumpyArray, ...]) -> tuple[NumpyArray, ...]:
    """The same values in the same shapes; indices are signed in ONNX, and are converted to the descriptor's type."""
    return tuple(
        tensor.pack(np.ascontiguousarray(array).astype(tensor.data_type.unpacked.numpy).reshape(tensor.sizes))
        for array, tensor in zip(outputs, desc.outputs(), strict=True)
    )


def _coordinates(desc: Operator, outputs: tuple[NumpyArray, ...]) -> tuple[NumpyArray, ...]:
    """A count, and a row for each of ONNX's columns; rows after the count are 0."""
    (columns,) = outputs
    count, rows = (np.zeros(tensor.sizes, tensor.data_type.numpy) for tensor in desc.outputs())
    count[...] = columns.shape[1]
    rows.reshape(-1, rows.shape[-1])[: columns.shape[1]] = columns.T
    return count, rows


_OUTPUTS: Mapping[str, Callable[[Operator, tuple[NumpyArray, ...]], tuple[NumpyArray, ...]]] = {"NonZero": _coordinates}
"""The conversions of outputs for operators that cannot use ``_alike``."""


# -- The checks ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class NodeCheck(Check):
    """A kernel gives the results that ONNX expects."""

    part: ClassVar[str] = "onnx"
    name: str
    desc: Operator | None
    inputs: tuple[NumpyArray | None, ...] = ()
    """The node's inputs; ``None`` for an absent one."""
    outputs: tuple[NumpyArray, ...] = ()
    reason: str = ""
    kind: str = ""
    """ONNX's name of the operator."""

    @property
    def what(self) -> str:
        """ONNX's name for the case, and the descriptor."""
        return self.name if self.desc is None else f"{self.name}: {line(self.desc)}"

    def problem(self, target: Target, seed: int) -> str:
        """What is wrong with the kernel's results."""
        if self.desc is None:
            raise Unsupported(self.reason)
        given = descriptors.bound(self.desc, self.kind, self.inputs)
        present = [(name, tensor) for name, tensor in self.desc.tensors(Role.INPUT) if tensor is not None]
        waiting = iter([_as_input(given[name], tensor) for name, tensor in present if name in given])
        trial = OperatorTrial(self.desc, (), lambda data_type, sizes: next(waiting), _told(self.desc, self.outputs))
        return tried(self.desc, target, trial)


_OF_SUMS = 1e-3
"""The relative error that ONNX allows in its own cases, some of which have few digits."""


def _told(desc: Operator, outputs: tuple[NumpyArray, ...]) -> tuple[Expected, ...]:
    """What ONNX expects, and as near as it is meant where a function is not exact: ONNX computes it in the outputs' type.

    Sums have the tolerance of ONNX's own tests. Integers are exact: ONNX's cases of inexact functions with an integer output have
    results that are whole numbers.
    """
    if _is_sum(desc):
        errors = (_OF_SUMS * (np.abs(one.astype(np.float64)) + _OF_SUMS) for one in outputs)
        pairs = zip(outputs, errors, strict=True)
        return tuple(within_steps(one, one.dtype, 0, error) if one.dtype.kind == "f" else one for one, error in pairs)
    if not (isinstance(desc, Pointwise) and desc.steps()):
        return outputs
    return tuple(_near(one, desc.steps()) if one.dtype.kind == "f" else one for one in outputs)


def _is_sum(desc: Operator) -> bool:
    """Whether a result depends on the order of steps."""
    if isinstance(desc, Reduction):
        return not all(walk.exact for walk in desc.walks())
    return desc.SUMS or (isinstance(desc, Pointwise) and type(desc).reference is not Pointwise.reference)


def _near(output: NumpyArray, steps: int) -> Expected:
    error = 8 * np.finfo(output.dtype).eps * np.maximum(1, np.abs(output.astype(np.float64)))
    return within_steps(output, output.dtype, steps, error)


def _as_input(array: NumpyArray, tensor: TensorDesc) -> NumpyArray:
    """The array as the tensor's elements, which it may repeat or transpose; two elements in a byte where the tensor has them so."""
    kind = tensor.data_type
    elements = array.astype(kind.unpacked.numpy) if kind.is_nibble else array.view(kind.numpy)
    steps = [step * elements.itemsize for step in tensor.layout]
    return tensor.pack(np.lib.stride_tricks.as_strided(elements.reshape(-1), tensor.sizes, steps))


def checks(names: Iterable[str], level: FeatureLevel) -> Iterator[Check]:
    """The cases of ONNX operators that are converted to these; cases that cannot be converted have a reason."""
    names = list(names)
    for kind, found in collected().items():
        made = [_check(kind, case, level) for case in found]
        operator = next((check.operator for check in made if check.operator), "")
        if operator in names:
            yield from (dataclasses.replace(check, operator=check.operator or operator) for check in made)


def described(kind: str, case: OnnxCase) -> Operator | str:
    """The descriptor of a case's node, or the reason why there is none."""
    if reason := case.unsaid():
        return reason
    tensors = case.tensors
    known = {name: descriptors.OnnxTensor(array.dtype, array.shape) for name, array in tensors.items()}
    small = {name: one for name, one in tensors.items() if one.dtype == np.int64 or one.size == 1 or name in ("scales", "roi")}
    constants = {name: array.reshape(-1).tolist() for name, array in small.items()}
    try:
        return descriptors.OPERATORS[kind](descriptors.OnnxNode(case.node, known, constants))
    except (descriptors.NotConvertible, TvmdmlError) as error:
        return str(error)


def _check(kind: str, case: OnnxCase, level: FeatureLevel) -> NodeCheck:
    desc = described(kind, case)
    if isinstance(desc, str):
        return NodeCheck("", case.name, None, reason=desc)
    if any(tensor.element_count == 0 for _, tensor in desc.tensors() if tensor is not None):
        return NodeCheck(desc.NAME, case.name, None, reason="it has a tensor without elements, so no kernel is needed")
    if not is_taken(desc, level):
        return NodeCheck(desc.NAME, case.name, None, reason=f"feature level {level} does not support it")
    inputs = tuple(case.tensors.get(name) for name in case.node.input)
    return NodeCheck(desc.NAME, case.name, desc, inputs, _OUTPUTS.get(kind, _alike)(desc, case.outputs), kind=kind)

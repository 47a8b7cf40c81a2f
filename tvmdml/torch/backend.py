"""``torch.compile(model, backend="tvmdml")``: the operators that map run as compiled graphs, the others stay in PyTorch.

PyTorch finds the backend by its name where tvmdml is installed. Tensors are on the CPU. Without gradients, parameters and buffers
are constants: weights are packed once, and a graph is made again when one was changed in place. With gradients they are inputs.
"""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from tvmdml.errors import TvmdmlError
from tvmdml.graph import CompiledGraph, Expression, Graph
from tvmdml.tensors import TensorDataType
from tvmdml.torch._aten import MIXED, TABLE

_TYPES = {getattr(torch, one.tvm) for one in TensorDataType if hasattr(torch, one.tvm) and not one.is_nibble} | {torch.bool}
_NUMBERS = {operator.getitem, operator.add, operator.mul, operator.sub, operator.floordiv, torch.ops.aten.sym_size.int}
MOST_CHANGES = 3
"""After so many changes of parameters they are inputs: a program that trains without gradients would compile at each step."""


def tvmdml(module: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """The backend, as ``torch.compile`` calls it."""
    fixed = [isinstance(one, torch.nn.Parameter) or hasattr(one, "_dynamo_static_input_type") for one in examples]

    def without_gradients(traced: GraphModule, _: Any) -> Callable[..., Any]:
        return _parted(traced, fixed)

    def with_gradients(traced: GraphModule, _: Any) -> Callable[..., Any]:
        return _parted(traced, ())

    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=with_gradients, inference_compiler=without_gradients, decompositions=core_aten_decompositions()
    )(module, examples)
    return compiled


def _parted(module: GraphModule, fixed: Sequence[bool]) -> Callable[..., Any]:
    """The module, with parts of it as graphs."""
    partitioner = CapabilityBasedPartitioner(module, _Support(), allows_single_node_partition=True)
    fused: GraphModule = partitioner.partition_and_fuse()
    given = [node for node in fused.graph.nodes if node.op == "placeholder"]
    kept = {node for node, one in zip(given, fixed, strict=False) if one}
    for node in fused.graph.nodes:
        if node.op == "call_module":
            part = getattr(fused, node.target)
            if isinstance(part, GraphModule):
                setattr(fused, node.target, _Part(part, [one in kept for one in node.args]))
    found: Callable[..., Any] = fused.forward
    return found


class _Support(OperatorSupportBase):  # type: ignore[misc] # PyTorch has no types here
    """Which nodes may be in a part."""

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        """Whether the table has the operator, and its tensors have the types of DirectML on the CPU."""
        if node.op != "call_function":
            return False
        if node.target in _NUMBERS:
            source = node.args[0]
            return node.target is operator.getitem and isinstance(source, Node) and source.target in TABLE
        if node.target not in TABLE:
            return False
        tensors = [one.meta.get("val") for one in node.all_input_nodes]
        types = {one.dtype for one in tensors if isinstance(one, torch.Tensor)}
        on_cpu = all(one.device.type == "cpu" for one in tensors if isinstance(one, torch.Tensor))
        result = node.meta.get("val")
        if isinstance(result, torch.Tensor):
            if node.target not in MIXED and any(isinstance(one, float) for one in node.args) and not result.dtype.is_floating_point:
                return False
            types_out = {result.dtype}
        else:
            types_out = set()
        alike = len(types) <= 1 or node.target in MIXED
        floats = all(one.is_floating_point for one in types_out) if not types else True
        return alike and on_cpu and floats and types <= _TYPES and types_out <= _TYPES


class _Part(torch.nn.Module):  # type: ignore[misc] # as above
    """A part of a module, compiled for the sizes that it is called with."""

    def __init__(self, part: GraphModule, fixed: Sequence[bool]) -> None:
        super().__init__()
        self._part, self._fixed = part, list(fixed)
        self._compiled: dict[Any, CompiledGraph] = {}
        self._versions: tuple[Any, ...] = ()
        self._changes = 0
        self._refused = False
        self._lock = threading.RLock()

    def forward(self, *arguments: Any) -> Any:
        """Run on tensors and sizes."""
        if self._refused:
            return self._part(*arguments)
        try:
            compiled, given = self._ready(arguments)
            found = [torch.from_numpy(array) for array in compiled(given)]
        except TvmdmlError as error:
            warnings.warn(f"tvmdml: a part of the graph stays in PyTorch: {error}", stacklevel=2)
            self._refused = True
            return self._part(*arguments)
        return found[0] if isinstance(self._output, Node) else tuple(found)

    @property
    def _output(self) -> Any:
        return next(node for node in self._part.graph.nodes if node.op == "output").args[0]

    def _ready(self, arguments: Sequence[Any]) -> tuple[CompiledGraph, list[Any]]:
        """The graph for such arguments, and the arrays that it takes."""
        given = [one.detach() if isinstance(one, torch.Tensor) else one for one in arguments]
        versions = tuple((one.data_ptr(), one._version) for one, keep in zip(arguments, self._fixed, strict=True) if keep)
        with self._lock:
            if versions != self._versions:
                self._compiled.clear()
                self._versions = versions
                self._changes += 1
                if self._changes > MOST_CHANGES:
                    self._fixed = [False] * len(self._fixed)
                    self._versions = ()
            key = tuple((tuple(one.shape), one.dtype) if isinstance(one, torch.Tensor) else one for one in given)
            compiled = self._compiled.get(key)
            if compiled is None:
                compiled = self._compiled[key] = self._made(given)
        return compiled, [
            one.numpy() for one, keep in zip(given, self._fixed, strict=True) if isinstance(one, torch.Tensor) and not keep
        ]

    def _made(self, given: Sequence[Any]) -> CompiledGraph:
        """The part as a graph."""
        graph = Graph()
        values: dict[Node, Any] = {}
        arguments = iter(zip(given, self._fixed, strict=True))
        for node in self._part.graph.nodes:
            if node.op == "placeholder":
                one, keep = next(arguments)
                if isinstance(one, torch.Tensor):
                    one = graph.constant(one.numpy()) if keep else graph.input(one.shape, str(one.dtype).removeprefix("torch."))
                values[node] = one
            elif node.op == "output":
                results = torch.fx.map_arg(node.args[0], values.__getitem__)
                return graph.compile([results] if isinstance(results, Expression) else list(results))
            else:
                arguments_of = torch.fx.map_arg(node.args, values.__getitem__)
                named = torch.fx.map_arg(node.kwargs, values.__getitem__)
                function = TABLE.get(node.target, node.target)
                values[node] = function(*arguments_of, **named)
        raise AssertionError("a graph of PyTorch without an output")

"""``torch.compile(model, backend="tvmdml")``: the operators that map run as compiled graphs, the others stay in PyTorch.

PyTorch finds the backend by its name where tvmdml is installed. Tensors are on the CPU. Without gradients, parameters and buffers
are constants: weights are packed once, and a graph is made again when one was changed in place. With gradients they are inputs.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._decomp import core_aten_decompositions, remove_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from tvmdml import targets
from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported, message, safe_repr
from tvmdml.graph import CompiledGraph, Expression, Graph
from tvmdml.graph.building import recorded
from tvmdml.graph.open_graph import OpenGraph
from tvmdml.system import logger
from tvmdml.tensors import TensorDataType
from tvmdml.tensors.sizes import Record
from tvmdml.torch import _indexed as _indexed  # it fills the table
from tvmdml.torch._aten import CONDITIONS, FIRST_ONLY, MIXED, TABLE

_TYPES = {getattr(torch, one.tvm) for one in TensorDataType if hasattr(torch, one.tvm) and not one.is_nibble} | {torch.bool}
_NUMBERS = {operator.getitem, operator.add, operator.mul, operator.sub, operator.floordiv, torch.ops.aten.sym_size.int}
_MOST_SHOWN = 5
_LEAST = 2
_WHOLE_WITH_GRADIENTS = (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,)
"""Operators whose decompositions in PyTorch return another second result than the one that their gradients read."""
MOST_CHANGES = 3
"""After so many changes of parameters they are inputs: a program that trains without gradients would compile at each step."""


def tvmdml(module: GraphModule, examples: Sequence[Any], **others: Any) -> Callable[..., Any]:
    """The backend, as ``torch.compile`` calls it.

    Raises:
        InvalidArgument: ``torch.compile`` was given a mode or options, which are those of another backend.
    """
    if others:
        given = ", ".join(f"{name}={safe_repr(one)}" for name, one in others.items())
        advice = "Graphs are always optimized, and run on the CPU; TVMDML_NUM_THREADS sets the threads."
        raise InvalidArgument(message("torch.compile(backend='tvmdml')", given, "neither mode nor options", advice))
    fixed = [isinstance(one, torch.nn.Parameter) or hasattr(one, "_dynamo_static_input_type") for one in examples]

    def without_gradients(traced: GraphModule, _: Any) -> Callable[..., Any]:
        return _parted(traced, fixed)

    def with_gradients(traced: GraphModule, _: Any) -> Callable[..., Any]:
        return make_boxed_func(_parted(traced, ()))  # PyTorch has no types here

    decompositions = core_aten_decompositions()
    tensors = [one for one in (*examples, *module.parameters()) if isinstance(one, torch.Tensor)]
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        remove_decompositions(decompositions, _WHOLE_WITH_GRADIENTS)
    return aot_autograd(fw_compiler=with_gradients, inference_compiler=without_gradients, decompositions=decompositions)(
        module, examples
    )


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
    return fused.forward


class _Support(OperatorSupportBase):  # type: ignore[misc] # PyTorch has no types here
    """Which nodes may be in a part."""

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        """Whether the table has the operator, and its tensors have the types of DirectML on the CPU."""
        if node.op != "call_function":
            return False
        if node.target in _NUMBERS:
            source = node.args[0]
            return node.target is operator.getitem and isinstance(source, Node) and source.target in TABLE
        if node.target not in TABLE or _is_returned_view(node):
            return False
        if not CONDITIONS.get(node.target, bool)(node):
            return False
        if node.target in FIRST_ONLY and any(user.target is not operator.getitem or user.args[1] for user in node.users):
            return False
        tensors = [one.meta.get("val") for one in node.all_input_nodes]
        types = {one.dtype for one in tensors if isinstance(one, torch.Tensor)}
        on_cpu = all(one.device.type == "cpu" for one in tensors if isinstance(one, torch.Tensor))
        result = node.meta.get("val")
        if isinstance(result, torch.Tensor):
            of_floats = any(one.is_floating_point for one in types) or result.dtype.is_floating_point
            if node.target not in MIXED and any(isinstance(one, float) for one in node.args) and not of_floats:
                return False
            types_out = {result.dtype}
        else:
            types_out = set()
        alike = len(types) <= 1 or node.target in MIXED
        floats = all(one.is_floating_point for one in types_out) if not types else True
        return alike and on_cpu and floats and types <= _TYPES and types_out <= _TYPES


def _is_returned_view(node: Node) -> bool:
    """Whether only the program sees this view: made by PyTorch, it has the strides, and shares the memory, that it has there."""
    is_view = getattr(node.target, "is_view", False)
    return is_view and all(user.op == "output" or _is_returned_view(user) for user in node.users)


class _Made(NamedTuple):
    """A part as a graph."""

    graph: CompiledGraph | OpenGraph
    orders: tuple[list[int] | None, ...]
    """For each result that PyTorch expects to lie otherwise than row-major: the order of dimensions that makes it so."""


class _Part(torch.nn.Module):  # type: ignore[misc] # as above
    """A part of a module. Sizes that PyTorch has as symbols stay open, if they are 2 or more, as it assumes of them."""

    def __init__(self, part: GraphModule, fixed: Sequence[bool]) -> None:
        super().__init__()
        self._part, self._fixed = part, list(fixed)
        self._compiled: dict[Any, list[_Made | None]] = {}
        """What was made for arguments that differ in open sizes only; ``None`` for what PyTorch is to compute."""
        self._symbols = [_symbols(node.meta.get("val")) for node in part.graph.nodes if node.op == "placeholder"]
        self._versions: tuple[Any, ...] = ()
        self._changes = 0
        self._lock = threading.RLock()

    def forward(self, *arguments: Any) -> Any:
        """Run on tensors and sizes."""
        graph, orders, given = self._ready(arguments)
        if graph is None:
            return self._part(*arguments)
        found = [
            torch.from_numpy(array) if order is None else torch.from_numpy(array).permute(order)
            for array, order in zip(graph(given), orders, strict=True)
        ]
        return found[0] if isinstance(self._output, Node) else tuple(found)

    @property
    def _output(self) -> Any:
        return next(node for node in self._part.graph.nodes if node.op == "output").args[0]

    def _ready(self, arguments: Sequence[Any]) -> tuple[CompiledGraph | None, tuple[Any, ...], list[Any]]:
        """The graph for such arguments, what ``_Made`` says of results, and the arrays; ``None`` if PyTorch is to compute it."""
        given = [_plain(one) if isinstance(one, torch.Tensor) else one for one in arguments]
        with self._lock:
            versions = tuple(_version(one) for one, keep in zip(arguments, self._fixed, strict=True) if keep)
            if versions != self._versions:
                self._compiled.clear()
                self._versions = versions
                self._changes += 1
                if self._changes > MOST_CHANGES:
                    self._fixed = [False] * len(self._fixed)
                    self._versions = ()
            sizes: dict[str, int] = {}
            key = tuple(
                (_left_open(one.shape, names, sizes), one.dtype)
                if isinstance(one, torch.Tensor)
                else (type(one), *_left_open((one,), names, sizes))
                for one, names in zip(given, self._symbols, strict=True)
            )
            fixed, values = self._fixed, tuple(sizes.values())
            graph, orders = self._found(key, given, sizes, values)
        arrays = [one.numpy() for one, keep in zip(given, fixed, strict=True) if isinstance(one, torch.Tensor) and not keep]
        return graph, orders, arrays

    def _found(
        self, key: Any, given: Sequence[Any], sizes: dict[str, int], values: tuple[int, ...]
    ) -> tuple[CompiledGraph | None, tuple[Any, ...]]:
        """The graph, of what was made before if its guards hold."""
        several = self._compiled.setdefault(key, [])
        for made in several:
            if made is None:
                return None, ()
            if not isinstance(made.graph, OpenGraph) or made.graph.holds(values):
                return self._tried(functools.partial(_of, made, values)), made.orders
        new = self._tried(lambda: self._made(given, sizes))
        graph = None if new is None else self._tried(functools.partial(_of, new, values))
        several.insert(0, None if graph is None else new)
        return graph, () if new is None else new.orders

    def _tried(self, make: Callable[[], Any]) -> Any:
        """What a function makes of the part, or a warning that says why not."""
        try:
            return make()
        except (TvmdmlError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:
            # entries may meet arguments that nobody thought of: PyTorch knows them
            names = list(dict.fromkeys(str(one.target) for one in self._part.graph.nodes if one.op == "call_function"))
            shown = ", ".join(names[:_MOST_SHOWN]) + (", …" if len(names) > _MOST_SHOWN else "")
            logger.warn(f"tvmdml: a part of the graph stays in PyTorch ({shown}): {error}", stacklevel=4)
            return None

    def _made(self, given: Sequence[Any], sizes: dict[str, int]) -> _Made:
        """The part as a graph, with these sizes open."""
        record = Record()
        symbols: dict[str | None, Any] = {name: record.symbol(name, size, least=_LEAST) for name, size in sizes.items()}
        graph = Graph(record=record)
        values: dict[Node, Any] = {}
        arguments = iter(zip(given, self._fixed, self._symbols, strict=True))
        for node in self._part.graph.nodes:
            if node.op == "placeholder":
                one, keep, names = next(arguments)
                if isinstance(one, torch.Tensor):
                    shape = [symbols.get(name, n) for n, name in zip(one.shape, names, strict=True)]
                    dtype = str(one.dtype).removeprefix("torch.")
                    values[node] = graph.constant(one.numpy()) if keep else graph.input(shape, dtype)
                else:
                    values[node] = symbols.get(names[0], one)
            elif node.op == "output":
                nodes = [node.args[0]] if isinstance(node.args[0], Node) else list(node.args[0])
                orders = [_order(one.meta.get("val")) for one in nodes]
                results = [
                    values[one] if order is None else values[one].transpose([order.index(i) for i in range(len(order))])
                    for one, order in zip(nodes, orders, strict=True)
                ]
                place = targets.resolve("cpu", "")
                if not sizes:
                    return _Made(graph.compile(results, place), tuple(orders))
                return _Made(OpenGraph(recorded(graph, results), record, place), tuple(orders))
            else:
                arguments_of = torch.fx.map_arg(node.args, values.__getitem__)
                named = torch.fx.map_arg(node.kwargs, values.__getitem__)
                function = TABLE.get(node.target, node.target)
                values[node] = function(*arguments_of, **named)
                _require_form(node, values[node])
        raise AssertionError("a graph of PyTorch without an output")


def _of(made: _Made, values: tuple[int, ...]) -> CompiledGraph:
    """The graph for open sizes."""
    return made.graph.for_values(values) if isinstance(made.graph, OpenGraph) else made.graph


def _symbols(value: Any) -> list[str | None]:
    """The names of the sizes of a tensor, or of a number, that PyTorch has as symbols. Equal names are equal sizes."""
    numbers = value.shape if isinstance(value, torch.Tensor) else (value,)
    return [str(n) if isinstance(n, torch.SymInt) else None for n in numbers]


def _left_open(numbers: Sequence[Any], names: Sequence[str | None], sizes: dict[str, int]) -> tuple[Any, ...]:
    """Numbers, or the names of those that stay open, whose values ``sizes`` gets."""
    found: list[Any] = []
    for n, name in zip(numbers, names, strict=True):
        if name is None or type(n) is not int or n < _LEAST:
            found.append(n)
        else:
            sizes[name] = n
            found.append(name)
    return tuple(found)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_neg()


def _version(tensor: torch.Tensor) -> tuple[int, int]:
    """What changes with a tensor's elements; tensors of ``torch.inference_mode`` count no changes."""
    return tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version


def _require_form(node: Node, value: Any) -> None:
    """PyTorch has types for results of its own, such as float32 for a quotient of integers."""
    expected = node.meta.get("val")
    if isinstance(expected, torch.Tensor) and isinstance(value, Expression):
        name = str(expected.dtype).removeprefix("torch.")
        if value.dtype.name != name:
            raise Unsupported(f"{node.target} of {value.dtype.name} whose result is {name} in PyTorch")


def _order(expected: Any) -> list[int] | None:
    """How a result's dimensions must be permuted after it is computed, so that its strides are as PyTorch expects them."""
    if not isinstance(expected, torch.Tensor) or expected.ndim < 2:
        return None
    steps = [step if isinstance(step, int) else step.node.hint for step in expected.stride()]
    by_step = sorted(range(expected.ndim), key=lambda i: -steps[i])
    if 0 in steps or None in steps or by_step == list(range(expected.ndim)):
        return None
    return [by_step.index(i) for i in range(expected.ndim)]

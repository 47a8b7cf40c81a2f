"""``Conversion``: a model for certain sizes as a graph. Nodes are walked in order, and each becomes arrays and expressions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import tvmdml
from tvmdml.errors import InvalidArgument, ModelError, TvmdmlError, Unsupported, clean, message, safe_repr
from tvmdml.graph import Expression, Graph
from tvmdml.onnx import bounds, described, dimensions, folding, inference, versions
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.kinds import Kind, parts
from tvmdml.onnx.mapped import MappedModel, is_known
from tvmdml.onnx.node import Node, Result
from tvmdml.onnx.random_state import STATE, WORDS, of_node
from tvmdml.onnx.reading import opsets
from tvmdml.onnx.results import by_rule, finished, wide
from tvmdml.onnx.scopes import Place, Problem, Scope, TracedNode, kind_of, place_of
from tvmdml.onnx.types import Undecided, dtype_of, is_narrow, wide_of
from tvmdml.onnx.values import TooLate, Value
from tvmdml.operators._onnx_messages import attribute_value, element_of, elements, node_of
from tvmdml.tensors import MAX_RANK
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.sizes import Record

if TYPE_CHECKING:
    from tvmdml.onnx.following import Rest


class Conversion:
    """One model for certain shapes of its inputs.

    Attributes:
        graph: the graph.
        outputs: the model's outputs.
        problems: the nodes that cannot be converted.
        trace: the nodes in the order in which they were converted, those of functions and inner graphs included.
        tail: the nodes that run after the graph.
        foreign: which of them another library runs, by their identities.
        draws: how many nodes draw random numbers.
    """

    def __init__(self, model: MappedModel, record: Record | None = None) -> None:
        """Not public: ``of`` converts."""
        self.graph = Graph(str(model.source.model.graph.name), record, precision=model.precision)
        self.outputs: list[Value] = []
        self.problems: list[Problem] = []
        self.trace: list[TracedNode] = []
        self.tail: list[Any] = []
        self.foreign: set[int] = set()
        """The identities of those nodes of the tail that another library computes."""
        self.draws = 0
        self._state: Expression | None = None
        self._opened: Mapping[str, Sequence[int]] = {}
        self._is_eager = False
        self._inferred: inference.Known = {}
        self._model, self._nodes, self._depth = model, 0, 0
        self._functions = bounds.functions(model.source.model)
        self._scope = self._top = Scope(dict(opsets(model.source.model)))

    @classmethod
    def of(
        cls,
        model: MappedModel,
        shapes: Mapping[str, tuple[int, ...]],
        decided: Mapping[str, NumpyArray],
        record: Record | None = None,
        opened: Mapping[str, Sequence[int]] | None = None,
    ) -> Conversion:
        """Convert.

        Args:
            model: the model.
            shapes: the shape of each input. Sizes may be open.
            decided: the elements of the inputs that are known.
            record: of the sizes that are open.
            opened: the elements of inputs that decide, with sizes that are open in the places of some.

        Raises:
            Undecided: the elements of more inputs must be known.
            ModelError: the graph is broken.
        """
        found, graph = cls(model, record), model.source.model.graph
        found._opened = opened or {}
        weights = {one.name for one in graph.initializer}
        for one in graph.input:
            if one.name not in weights or one.name in shapes:
                kind, tensor = Kind.read(one.type)
                found._top.set(one.name, found._given(one.name, kind.is_sequence, dtype_of(tensor.elem_type), shapes, decided))
        found.outputs = found._graph(graph, found._top)
        for one, value in zip(graph.output, found.outputs, strict=True):
            if value.array is None and len(value.shape or ()) > MAX_RANK:
                reason = f"{len(value.shape or ())} dimensions; allowed: up to {MAX_RANK} outside of the model"
                found.problems.append(Problem("output", f"the output {safe_repr(one.name)}", reason, False))
        return found

    @classmethod
    def following(
        cls,
        model: MappedModel,
        part: Rest,
        shapes: Mapping[str, tuple[int, ...]],
        decided: Mapping[str, NumpyArray],
        record: Record | None = None,
        opened: Mapping[str, Sequence[int]] | None = None,
    ) -> Conversion:
        """Convert nodes that follow a stage. The other arguments and errors are those of ``of``."""
        found = cls(model, record)
        found._opened, found.draws = opened or {}, part.draws
        for name, known in part.known.items():
            fresh = known if known.is_outside else known.mapped(lambda tensor: Value.known(tensor.array))
            found._top.set(name, fresh)  # with nothing of another graph
        for about in part.given:
            found._top.set(about.name, found._given(about.name, about.kind.is_sequence, about.dtype, shapes, decided))
        for proto in part.nodes or ():
            found._node(proto, found._top)
        found.outputs = [found._read(name, found._top, lambda: "the outputs") for name in part.wanted]
        return found

    def _given(
        self, name: str, is_sequence: bool, dtype: Any, shapes: Mapping[str, tuple[int, ...]], decided: Mapping[str, NumpyArray]
    ) -> Value:
        """What a call gives."""
        if name not in shapes:
            return Value.nothing()
        if is_sequence:
            return Value.sequence(self._input(own, shapes, dtype, decided) for own in parts(name, shapes))
        return self._input(name, shapes, dtype, decided)

    def _input(self, name: str, shapes: Mapping[str, tuple[int, ...]], dtype: Any, decided: Mapping[str, NumpyArray]) -> Value:
        """A tensor that a call gives."""
        if dtype == np.object_:
            return Value.outside()
        if len(shapes[name]) > MAX_RANK:
            given = f"an input {safe_repr(name)} of {len(shapes[name])} dimensions"
            raise Unsupported(message(self._model.source.name, given, f"up to {MAX_RANK} outside of the model"))
        if name in self._opened:
            return Value.of_sizes(folding.objects(self._opened[name]).reshape(shapes[name]), dtype)
        if name in decided:
            return Value.known(decided[name].astype(dtype) if is_narrow(dtype) else decided[name])
        if 0 in shapes[name]:
            return Value.known(self._of_none(name, shapes[name], dtype))
        if is_narrow(dtype):
            return Value.narrowed(dtype, self.graph.input(shapes[name], wide_of(dtype), name=name))
        return Value.computed(self.graph.input(shapes[name], dtype, name=name))

    @classmethod
    def part(
        cls, model: MappedModel, given: Mapping[str, NumpyArray], nodes: Sequence[Any], wanted: Sequence[str]
    ) -> tuple[list[NumpyArray | None], list[TracedNode]]:
        """Tensors that some nodes of the model compute from others while it is converted; ``None`` for one that is not known. And
        the nodes in the order in which they were converted.
        """
        found = cls(model)
        read = {str(name) for one in nodes for name in one.input}
        for tensor in model.source.model.graph.initializer:
            if tensor.name in read:
                found._top.set(tensor.name, Value.known(model.array(tensor)))
        for name, array in given.items():
            found._top.set(name, Value.known(array))
        for one in nodes:
            found._node(one, found._top)
        values = [found._top.get(name) for name in wanted]
        return [None if one is None else one.array for one in values], found.trace

    @classmethod
    def eager(
        cls,
        model: MappedModel,
        given: Mapping[str, Value],
        nodes: Sequence[Any],
        wanted: Sequence[str],
        state: NumpyArray,
        draws: int,
    ) -> tuple[dict[str, Value], list[Problem]]:
        """Compute nodes of the model from what is known, one by one; returns some of their results, and what cannot be computed.

        Args:
            model: the model.
            given: what is known.
            nodes: the nodes, in their order.
            wanted: the results.
            state: of the random numbers of this run.
            draws: how many nodes before these draw numbers.
        """
        found = cls(model)
        found.draws, found._state, found._is_eager = draws, found.graph.constant(state), True
        for given_name, known in given.items():
            found._top.set(given_name, known)
        for one in nodes:
            found._node(one, found._top)
            results = [value for name in one.output if (value := found._top.get(str(name))) is not None]
            for tensor in (tensor for value in results for tensor in value.tensors() if tensor.is_tensor):
                tensor.decided(found.graph)
            if found.problems:
                break
        return {name: value for name in wanted if (value := found._top.get(name)) is not None}, found.problems

    def attributes(self, proto: Any) -> dict[str, Any]:
        """The attributes of a node of the model's own graph."""
        return self._attributes(proto, self._top)

    def tensors(self) -> Mapping[str, Value]:
        """The tensors of the model's own graph, by name."""
        return self._top.values

    def _of_none(self, name: str, shape: tuple[int, ...], dtype: Any) -> NumpyArray:
        try:
            return np.empty(shape, dtype)
        except ValueError:
            raise self._model.source.error(f"sizes {list(shape)} of {safe_repr(name)}", "sizes that NumPy allows") from None

    # -- Graphs

    def count(self, nodes: int) -> None:
        """Count converted nodes, with those of functions and of the rounds of loops.

        Raises:
            ModelError: there are too many.
        """
        self._nodes += nodes
        if self._nodes > bounds.MAX_NODES:
            raise self._model.source.error(f"more than {bounds.MAX_NODES} nodes, with all loops unrolled", "fewer")

    @contextlib.contextmanager
    def _deeper(self) -> Iterator[None]:
        """Inside of a function, or of a graph in a node.

        Raises:
            ModelError: they are nested too deep.
        """
        if self._depth == bounds.MAX_DEPTH:
            limit = f"{bounds.MAX_DEPTH} functions and graphs in each other"
            raise self._model.source.error(f"more than {limit}", f"at most {limit}")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _graph(self, graph: Any, scope: Scope) -> list[Value]:
        for tensor in graph.initializer:
            if tensor.name in scope.values:
                continue  # an input that has a default, and is given
            try:
                scope.set(tensor.name, Value.known(self._model.array(tensor)))
            except Unsupported as error:
                if self._model.fallback is not None and tensor.data_type == tensor.STRING:
                    scope.set(tensor.name, Value.outside(elements(tensor)))
                    continue
                self.problems.append(Problem("initializer", f"initializer {safe_repr(tensor.name)}", str(error), False))
                scope.set(tensor.name, Value.lost())
        if len(graph.sparse_initializer):
            self.problems.append(Problem("initializer", "sparse initializers", "DirectML has no sparse tensors", False))
        for proto in graph.node:
            self._node(proto, scope)
        return [self._read(one.name, scope, lambda: "the graph's outputs") for one in graph.output]

    def _read(self, name: str, scope: Scope, where: Callable[[], object]) -> Value:
        found = scope.get(name)
        if found is None:
            given = f"{safe_repr(str(name))}, which {where()} read, and no node before makes"
            raise self._model.source.error(given, "nodes in an order in which each tensor is made before it is read")
        return found

    def _node(self, proto: Any, scope: Scope) -> None:
        """Convert a node and name its outputs, or leave it to another library."""
        if self._model.fallback is None or scope is not self._top:
            self._own_node(proto, scope)
            return
        inputs = [scope.get(str(name)) for name in proto.input]
        problems = len(self.problems)
        if self._model.is_mapped(proto) and not any(value is not None and value.is_outside for value in inputs):
            self._own_node(proto, scope)
            if len(self.problems) == problems or any(problem.malformed for problem in self.problems[problems:]):
                return
            del self.problems[problems:]
        self._later(proto, scope)
        self.foreign.add(id(proto))

    def _own_node(self, proto: Any, scope: Scope) -> None:
        self.count(1)
        kind = kind_of(proto)
        if (several := self._model.in_steps(proto, kind)) is not None:
            for step in several:
                self._node(step, scope)
            return

        def place() -> Place:
            return Place(scope.place, place_of(proto))

        inputs = [None if scope.lacks(name) else self._read(name, scope, place) for name in proto.input]
        results: list[Result] = [Result(None, None)] * len(proto.output)
        values: list[Value | None] = []
        if any(one is not None and one.is_later for one in inputs):
            self._later(proto, scope)
            return
        graphs = any(a.type in (a.GRAPH, a.GRAPHS) for a in proto.attribute)
        try:
            attributes = self._attributes(proto, scope)
            if any(one is not None and one.is_lost for one in inputs):
                results = results if graphs else inference.results(proto, attributes, inputs, scope.versions, self._inferred)
            else:
                with self._within(place, scope):
                    results, values = self._made(proto, kind, inputs, attributes, scope, graphs)
        except Undecided:
            raise
        except TooLate:
            if scope is not self._top:
                raise  # the node of the model's own graph that this one belongs to
            self._later(proto, scope)
            return
        except (ModelError, inference.Malformed) as error:
            if isinstance(error, ModelError) and not graphs:
                raise
            self.problems.append(Problem(kind, str(place()), f"{error}{inference.shown(inputs, self.graph.record)}", True))
        except (NotConvertible, Unsupported, InvalidArgument) as error:
            self.problems.append(Problem(kind, str(place()), _line(error), False))
        except (MemoryError, TvmdmlError):
            raise
        except Exception as error:  # what a malformed node leads to
            self.problems.append(Problem(kind, str(place()), f"{type(error).__name__}: {_line(error)}", True))
        for i, name in enumerate(proto.output):
            value = values[i] if i < len(values) else None
            if value is None:
                value = Value.lost(*(results[i][:2] if i < len(results) else (None, None)))
            scope.set(name, value)

    def _made(
        self, proto: Any, kind: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any], scope: Scope, graphs: bool
    ) -> tuple[list[Result], list[Value | None]]:
        """What is known of a node's results, and these. What cannot be done with open sizes is done for those at hand."""

        def made(inputs: Sequence[Value | None]) -> tuple[list[Result], list[Value | None]]:
            results = [Result(None, None)] * len(proto.output)
            if not graphs:
                results = inference.results(proto, attributes, inputs, scope.versions, self._inferred)
            return results, self._converted(proto, kind, inputs, attributes, results, scope)

        unknown = [one for one in inputs if one is not None and one.array is None]
        try:
            return made(inputs)
        except (Undecided, TooLate, MemoryError):
            raise
        except Exception:
            # elements that were computed for this node say more of its results, too
            if not any(one is not None and one.is_open for one in inputs) and all(one.array is None for one in unknown):
                raise
        return made([None if one is None else one.mapped(Value.closed) for one in inputs])

    def _later(self, proto: Any, scope: Scope) -> None:
        """Leave a node for later."""
        if scope is not self._top:
            raise TooLate("it reads what is computed after the graph")
        self.tail.append(proto)
        for name in proto.output:
            scope.set(name, Value.later())

    @contextlib.contextmanager
    def _within(self, place: Callable[[], Place], scope: Scope) -> Iterator[None]:
        """The scope that graphs in the attributes of the node that is being converted see."""
        before, self._scope = self._scope, scope
        line, self.graph.line = self.graph.line, place  # type: ignore[method-assign]
        try:
            yield
        finally:
            self._scope, self.graph.line = before, line  # type: ignore[method-assign]

    @property
    def is_top(self) -> bool:
        """Whether the node that is being converted is one of the model's own graph, and may run between stages."""
        return self._scope is self._top and not self._is_eager

    @property
    def may_round(self) -> bool:
        """As the model's ``accuracy`` says."""
        return self._model.may_round

    def array(self, tensor: Any) -> NumpyArray:
        """The elements of a tensor in an attribute."""
        return self._model.array(tensor)

    def inner(self, graph: Any, inputs: Sequence[Value]) -> list[Value]:
        """Convert a graph in an attribute of the node that is being converted."""
        scope = Scope(self._scope.versions, self._scope)
        if len(inputs) != len(graph.input):
            raise NotConvertible(f"its graph has {len(graph.input)} inputs, and is given {len(inputs)}")
        for one, value in zip(graph.input, inputs, strict=True):
            scope.set(one.name, value)
        with self._deeper():
            return self._graph(graph, scope)

    def other(
        self, node: Node, kind: str, opset: int, inputs: Sequence[Value | None], attributes: Mapping[str, Any]
    ) -> list[Value | None]:
        """What an operator of ONNX's own makes of inputs, in the place of a node."""
        given = [str(i) if one is not None else "" for i, one in enumerate(inputs)]
        made = [f"y{i}" if used else "" for i, used in enumerate(node.outputs)]
        scope = Scope({"": opset}, self._scope)
        proto = node_of(kind, given, made, **attributes)
        results = inference.results(proto, attributes, inputs, scope.versions, self._inferred)
        return self._converted(proto, kind, inputs, attributes, results, scope)

    def random_state(self, seed: float | None) -> Expression:
        """The state of RANDOM_GENERATOR for one more node that draws numbers; ``seed`` is the node's own."""
        if self._state is None:
            self._state = self.graph.input((WORDS,), np.uint32, name=STATE)
        kept, own = map(self.graph.constant, of_node(self.draws, seed))
        self.draws += 1
        return tvmdml.bit_or(self._state if seed is None else tvmdml.bit_and(self._state, kept), own)

    # -- Nodes

    def _attributes(self, proto: Any, scope: Scope) -> dict[str, Any]:
        found = {}
        for one in proto.attribute:
            if one.ref_attr_name:
                if one.ref_attr_name in scope.attributes:
                    found[str(one.name)] = scope.attributes[one.ref_attr_name]
            else:
                found[str(one.name)] = attribute_value(one)
        return found

    def _converted(
        self,
        proto: Any,
        kind: str,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any],
        results: Sequence[Result],
        scope: Scope,
    ) -> list[Value | None]:
        own = self._own(proto, scope)
        if own is not None and not is_known(kind):
            return self._called(own, inputs, attributes, scope)
        opset = scope.versions.get("" if proto.domain == "ai.onnx" else proto.domain, 1)
        outputs = [bool(name) for name in proto.output]
        if kind == "CastLike" and len(inputs) == 2 and inputs[1] is not None and is_narrow(inputs[1].dtype):
            to = element_of(inputs[1].dtype)
            kind, inputs, attributes = "Cast", inputs[:1], {**attributes, "to": to}
        given = inputs if any(a.type in (a.GRAPH, a.GRAPHS) for a in proto.attribute) else [wide(kind, one) for one in inputs]
        node = Node(kind, given, outputs, attributes, results, opset, self)
        versions.modernize(node)
        for way in (described.without_elements, folding.fold):
            if (found := way(node)) is not None:
                return self._traced(node, finished(found, node), folded=True)
        try:
            if (joined := dimensions.convert(node, by_rule)) is not None:
                return self._traced(node, joined)
            return self._traced(node, by_rule(node))
        except (NotConvertible, Unsupported, InvalidArgument):
            body = inference.body(proto, attributes, inputs, scope.versions) or own
            if body is None:
                raise
            problems = len(self.problems)
            values = self._called(body, inputs, attributes, scope)
            if len(self.problems) > problems:  # the first reason is the better one
                del self.problems[problems:]
                raise
            return self._traced(node, finished(values, node))

    def _traced(self, node: Node, results: list[Value | None], *, folded: bool = False) -> list[Value | None]:
        self.trace.append(TracedNode(node, results, folded))
        return results

    def _own(self, proto: Any, scope: Scope) -> Any:
        """The model's own function that a node calls, if any. It is not one that has the name of an operator of ONNX's."""
        found = self._functions.get(bounds.key_of(proto))
        return None if found is None or inference.schema(proto, scope.versions) is not None else found

    def _called(
        self, function: Any, inputs: Sequence[Value | None], attributes: Mapping[str, Any], scope: Scope
    ) -> list[Value | None]:
        """Convert the body of a function in the place of a node that calls it."""
        defaults = {str(one.name): attribute_value(one) for one in function.attribute_proto}
        inner = Scope({**scope.versions, **dict(opsets(function))}, None, {**defaults, **attributes})
        inner.place = Place(scope.place, clean(function.name))
        for name, value in zip(function.input, inputs, strict=False):
            if value is not None:
                inner.set(name, value)
        inner.absent = frozenset(name for name in function.input if name not in inner.values)
        with self._deeper():
            for proto in function.node:
                self._node(proto, inner)
        return [inner.get(name) for name in function.output]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

"""``Origin``: a model as its file describes it, which is converted for sizes. The package onnx is needed from here on."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from tvmdml import targets
from tvmdml.errors import InvalidArgument, Unsupported, message, safe_repr
from tvmdml.graph import Expression, Graph
from tvmdml.graph.building import finished, recorded
from tvmdml.graph.nodes import Input
from tvmdml.graph.open_graph import OpenGraph
from tvmdml.graph.packing import SharedWeights
from tvmdml.graph.program import Finished
from tvmdml.onnx import bounds
from tvmdml.onnx.arguments import ModelMetadata
from tvmdml.onnx.bounds import tensors
from tvmdml.onnx.converting import Conversion
from tvmdml.onnx.counting import COUNTING, plain
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.following import Following, Next, Rest
from tvmdml.onnx.foreign import ForeignNodes, ForeignRuntime
from tvmdml.onnx.kinds import Kind, part
from tvmdml.onnx.looping import Looped, known_size, narrow_outputs, narrow_type, stacked_as
from tvmdml.onnx.mapped import MappedModel
from tvmdml.onnx.reading import ReadModel, opsets
from tvmdml.onnx.recording import LEAST, MOST, Pattern, Recording
from tvmdml.onnx.running import About, Argument, Lengths, Ready, Run, unnamed
from tvmdml.onnx.scopes import kind_of, raise_all
from tvmdml.onnx.stage import Stage
from tvmdml.onnx.tail import Counting, HostNode, Tail
from tvmdml.onnx.types import ACCURACIES, Exactness, dtype_of, is_narrow, is_ours, wide_of
from tvmdml.onnx.values import Value
from tvmdml.operators._onnx_messages import schemas
from tvmdml.system import logger, not_collected
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.sizes import Record, is_open, key_of
from tvmdml.tensors.sizes.evaluating import evaluator

Shapes = Mapping[str, tuple[int, ...]]
_WITH_DEFAULTS = 4
OLDEST_OPSET = 7
"""The lowest version of ONNX's operators; earlier ones broadcast in another way."""


class Recorded(NamedTuple):
    """A model for certain sizes, before its passes."""

    inputs: list[Argument]
    outputs: list[Argument]
    graph: Graph
    results: list[Expression]
    """The tensors of the outputs."""
    lengths: Lengths
    """As those of ``Ready``."""

    def finished(self, target: targets.Target) -> Finished:
        """The graph after all passes for a target."""
        return finished(self.graph, self.results, target)


class Origin:
    """A model that was read."""

    @not_collected()
    def __init__(
        self,
        given: Any,
        file: BinaryIO | None,
        target: targets.Target,
        stage: Following | None = None,
        fallback: ForeignRuntime | None = None,
        exactness: Exactness = Exactness(),  # noqa: B008 - it does not change
    ) -> None:
        """Read it.

        Args:
            given: a path, the bytes of a file, or an ``onnx.ModelProto``; or what was read of one.
            file: the file at the path, where it was opened before.
            target: where it will run.
            stage: the stage of nodes that follow another one.
            fallback: what runs nodes that cannot be converted.
            exactness: as for ``load``.

        Raises:
            ModelError: it is not a valid model.
            Unsupported: operators have no counterpart, all of which are listed; or ONNX is not installed.
        """
        self.source = source = given if isinstance(given, ReadModel) else ReadModel(given, file)
        versions = dict(opsets(source.model))
        version, newest = versions.get("", OLDEST_OPSET), schemas().schema_version_map()[""][1]
        if not OLDEST_OPSET <= version <= newest:
            allowed = f"{OLDEST_OPSET} to {newest}, the newest of the installed package onnx"
            raise Unsupported(message(source.name, f"version {version} of ONNX's operators", allowed))
        may_round = exactness.accuracy == ACCURACIES[1] and target.kind == "cpu"  # kernels of devices multiply floats
        self.model, self._target = MappedModel(source, {}, {}, fallback, may_round, exactness.precision), target
        self._stage = stage or self._own_stage
        self._weights: SharedWeights = WeakValueDictionary()
        """The packed weights of all sizes."""

    @property
    def name(self) -> str:
        """For messages."""
        return self.source.name

    def _own_stage(self, part: Rest) -> Stage:
        """A stage that nobody shares, and the cache does not know."""
        return Stage(self.name, part.given, lambda: self, lambda: None, self._own_stage, part)

    def about(self, sizes: Mapping[str, int]) -> About:
        """Its inputs and outputs, with values of symbolic sizes.

        Raises:
            ModelError, Unsupported: as for a new ``Origin``.
            InvalidArgument: it has no such size.
        """
        source = self.source
        graph = source.model.graph
        weights = {one.name for one in graph.initializer}
        inputs = [self._argument(one, sizes) for one in graph.input if one.name not in weights]
        outputs = [self._argument(one, sizes, result=True) for one in graph.output]
        names = [one.name for one in inputs]
        if "" in names or len(set(names)) != len(names):
            raise source.error("inputs without names, or with the same name", "inputs with different names")
        for one in inputs:
            if one.kind.is_sequence and any(name.startswith(part(one.name, 0)[:-2]) for name in names):
                given = f"an input {safe_repr(one.name)}, a sequence, whose tensors would be named like another input"
                raise Unsupported(message(source.name, given, "inputs with other names"))
        known = open_sizes(source)
        if unknown := set(sizes) - set(known):
            given = ", ".join(map(safe_repr, sorted(map(str, unknown))))
            raise InvalidArgument(message("load sizes", given, f"symbolic sizes of {source.name}: {', '.join(known) or 'none'}"))
        missing = self.model.missing()
        if self.model.fallback is None:
            raise_all(source.name, missing)
        elif missing:
            kinds = ", ".join(dict.fromkeys(problem.kind for problem in missing))
            advice = "print(model.explain()) shows the parts after a run."
            logger.warn(f"{source.name}: {self.model.fallback.name} runs {kinds}. {advice}", stacklevel=5)
        outside = source.messages.TensorProto.EXTERNAL
        places = (one.external_data for one in tensors(source.model) if one.data_location == outside)
        elsewhere = {str(entry.value) for place in places for entry in place if entry.key == "location"}
        return About(inputs, outputs, self._metadata(), tuple(sorted(elsewhere)), self._defaults(sizes))

    def _defaults(self, sizes: Mapping[str, int]) -> list[Argument]:
        """The weights that are inputs, too: before version 4 of the format all were, and none was meant to be given."""
        graph = self.source.model.graph
        weights = {one.name for one in graph.initializer}
        found: list[Argument] = []
        for one in graph.input if self.source.model.ir_version >= _WITH_DEFAULTS else ():
            if one.name in weights:
                with contextlib.suppress(Unsupported):  # a weight that is not read may be of any type
                    found.append(self._argument(one, sizes))
        return found

    @not_collected()
    def recording(self, shapes: Shapes, pattern: Pattern, decided: Mapping[str, NumpyArray], part: Rest | None = None) -> Recording:
        """Convert it for all sizes of which it asks the same as for these.

        Args:
            shapes: of the inputs.
            pattern: which of their sizes are open.
            decided: the elements of inputs that decide how it is computed.
            part: the nodes, and what they read; by default the whole model.

        Raises:
            Undecided: the elements of more inputs must be known.
            ModelError, Unsupported: as ``load``.
        """
        record = Record()
        values = zip(pattern.places, pattern.values(shapes, decided), strict=True)
        sizes: dict[str, Any] = {name: record.symbol(name, value, least=LEAST, most=MOST) for name, value in values}
        opened = pattern.opened_elements(sizes)
        conversion, known, rest, tail, lengths = self._converted(pattern.opened(shapes, sizes), decided, part, record, opened)
        if not rest:
            return Recording(pattern, evaluator(record, []), None, Ready(None, (), known, tail, lengths))
        finished = recorded(conversion.graph, rest)
        graph = OpenGraph(finished, record, self._target, self._weights)
        return Recording(
            pattern, graph.holds_for, graph, Ready(None, tuple(one.name for one in finished.inputs), known, tail, lengths)
        )

    def finished(self, shapes: Shapes, decided: Mapping[str, NumpyArray], part: Rest | None = None) -> Finished:
        """The graph after all passes."""
        conversion, _, rest, *_ = self._converted(shapes, decided, part)
        return finished(conversion.graph, rest, self._target)

    def recorded(self, shapes: Shapes, about: About) -> Recorded:
        """The model for sizes, for a pack.

        Raises:
            Undecided: an input's elements decide how the model is computed.
            ModelError, Unsupported: as ``load``.
        """
        conversion = Conversion.of(self.model, shapes, {})
        raise_all(self.name, conversion.problems)
        if conversion.tail:
            kinds = ", ".join(dict.fromkeys(kind_of(one) for one in conversion.tail))
            given = f"a model whose last nodes run one by one, after the graph: {kinds}"
            raise Unsupported(message(self.name, given, "a model that is a graph", "Cut it before these nodes."))
        results = [tensor.expression(conversion.graph) for one in conversion.outputs for tensor in one.tensors()]
        if not results:
            raise InvalidArgument(message(self.name, "a model without outputs", "one or more outputs"))
        return Recorded(
            [*map(_widened, about.inputs)], [*map(_widened, about.outputs)], conversion.graph, results, _lengths(conversion.outputs)
        )

    def _converted(
        self,
        shapes: Shapes,
        decided: Mapping[str, NumpyArray],
        part: Rest | None = None,
        record: Record | None = None,
        opened: Mapping[str, Sequence[int]] | None = None,
    ) -> tuple[Conversion, dict[int, NumpyArray], list[Expression], Tail | None, Lengths]:
        """The model for shapes, what is known of its outputs' tensors, what the graph computes, and what is computed after it."""
        if part is None:
            conversion = Conversion.of(self.model, shapes, decided, record, opened)
        else:
            conversion = Conversion.following(self.model, part, shapes, decided, record, opened)
        raise_all(self.name, conversion.problems)
        try:
            return conversion, *self._parts(conversion, part)
        except NotConvertible as error:  # what passes from a stage to another one
            raise Unsupported(f"{self.name}: {error}") from None

    def _parts(
        self, conversion: Conversion, part: Rest | None
    ) -> tuple[dict[int, NumpyArray], list[Expression], Tail | None, Lengths]:
        """Those of ``_converted``."""
        outputs, graph = conversion.outputs, conversion.graph
        tensors = [tensor for one in outputs for tensor in one.tensors()]
        known = {i: one.array for i, one in enumerate(tensors) if one.array is not None}
        rest = [one.expression(graph) for i, one in enumerate(tensors) if i not in known and not one.is_later]
        lengths = _lengths(outputs)
        wanted = [str(info.name) for info in self.source.model.graph.output] if part is None else part.wanted
        names = [name for name, one in zip(wanted, outputs, strict=True) for _ in one.tensors()]
        later = {i: names[i] for i, one in enumerate(tensors) if one.is_later}
        if not later:
            return known, rest, None, lengths
        tail, more = self._tail(conversion, later)
        return known, [*rest, *more], tail, lengths

    def _tail(self, conversion: Conversion, later: Mapping[int, str]) -> tuple[Tail, list[Expression]]:
        """What computes some outputs after the graph, and what it reads of the graph."""
        tensors, nodes = conversion.tensors(), _needed(conversion.tail, later.values())
        every = {name: tensors[name] for name in _read(nodes) if name in tensors}
        read = {name: value for name, value in every.items() if not value.is_later}
        passed = tuple(name for name, value in every.items() if value.is_outside and value.texts is None)
        known = {name: value.mapped(_without_graph) for name, value in read.items() if _is_known(value)}
        known |= {name: value for name, value in every.items() if value.texts is not None}
        computed = {name: value for name, value in read.items() if name not in known}
        more = [tensor.expression(conversion.graph) for value in computed.values() for tensor in value.tensors()]
        symbols: dict[Any, str] = {}
        given = {name: _argument_of(name, value, symbols) for name, value in computed.items()}
        given |= {name: Argument(name, "", None, np.dtype(object)) for name in passed}
        host: list[HostNode] = []
        rest = []
        made: set[str] = set()
        for proto in nodes:
            inputs = {name: tensors[name] for name in _read([proto]) if name in tensors}
            if any(value.is_later and name not in given and name not in known for name, value in inputs.items()):
                rest.append(proto)
                continue
            outputs = tuple(map(str, proto.output))
            if (library := self.model.fallback) and (id(proto) in conversion.foreign or not self.model.is_mapped(proto)):
                before = host.pop() if host and isinstance(host[-1], ForeignNodes) else None
                host.append(
                    ForeignNodes(library, self.source.model, [*(before.nodes if isinstance(before, ForeignNodes) else []), proto])
                )
            elif any(name in made for name in inputs):  # by a node between the stages
                rest.append(proto)
                continue
            elif kind_of(proto) in COUNTING:
                host.append(Counting(kind_of(proto), conversion.attributes(proto), tuple(map(str, proto.input)), outputs))
            elif kind_of(proto) == "Loop":
                host.append(self._looped(proto, given, known, conversion.draws))
            elif all(_is_known(value) or _is_given(value) for value in inputs.values()):  # it would be as late again
                host.append(_Converted(proto, self.model, conversion.draws))
            else:
                rest.append(proto)
                continue
            made |= set(outputs)
            given |= {str(name): Argument(str(name), "", None, narrow) for name, narrow in narrow_outputs(proto).items() if name}
        wanted = [name for name in dict.fromkeys(later.values()) if name not in given]
        stage = self._following(rest, given, known, wanted, conversion.draws) if wanted else None
        needed = set(_read([proto for proto in nodes if proto not in rest]))
        arrays = {name: _array(value) for name, value in known.items() if name in needed}
        reads = tuple((name, None if value.parts is None else len(value.parts)) for name, value in computed.items())
        kinds = tuple(dict.fromkeys(kind_of(proto) for proto in nodes))
        return Tail(reads, arrays, tuple(host), stage, dict(later), kinds, passed), more

    def _looped(self, proto: Any, given: Mapping[str, Argument], known: Mapping[str, Value], draws: int) -> Looped:
        """A loop, whose body is a stage."""
        body = next(attribute.g for attribute in proto.attribute if attribute.name == "body")
        takes = {str(info.name): narrow_type(info) for info in body.input}
        inputs = (*map(str, proto.input), *[""] * max(0, 2 - len(proto.input)))
        if len(takes) != len(inputs) or len(body.output) - 1 != len(proto.output):
            raise self.source.error(f"a Loop whose body has {len(takes)} inputs", f"{len(inputs)}, with those of the node")
        weights = {str(tensor.name): Value.known(self.model.array(tensor)) for tensor in body.initializer}
        own = {name: Argument(name, "", None, narrow) for name, narrow in takes.items()}
        names = set(_read(body.node)) | {str(info.name) for info in body.output}
        around = {name: about for name, about in given.items() if name in names and name not in own}
        others = {name: value for name, value in known.items() if name in names and name not in own}
        wanted = [str(info.name) for info in body.output]
        stage = self._following(list(body.node), {**around, **own}, {**others, **weights}, wanted, draws)
        stacked = tuple(map(stacked_as, list(body.output)[len(takes) - 1 :]))
        return Looped(inputs, tuple(map(str, proto.output)), tuple(takes), tuple(around), stacked, stage)

    def _following(
        self, nodes: Sequence[Any], given: Mapping[str, Argument], known: Mapping[str, Value], wanted: Sequence[str], draws: int
    ) -> Next:
        """The stage of nodes: the same one for equal nodes, and equal knowledge."""
        names = {*_read(nodes), *wanted}
        about = [argument for name, argument in given.items() if name in names]
        known = {name: value for name, value in known.items() if name in names}
        weights = {str(tensor.name) for tensor in self.source.model.graph.initializer}
        content = hashlib.sha256(repr([about, wanted, draws]).encode())
        for proto in nodes:
            content.update(proto.SerializeToString(deterministic=True))
        for name, value in sorted(known.items()):
            content.update(name.encode())
            for tensor in () if name in weights or value.is_outside else value.tensors():
                content.update(repr((str(tensor.dtype), tensor.shape)).encode() + np.ascontiguousarray(tensor.array).tobytes())
        return self._stage(Rest(content.hexdigest(), about, wanted, draws, nodes, known))

    def _metadata(self) -> ModelMetadata:
        about = self.source.model
        custom = {str(one.key): str(one.value) for one in about.metadata_props}
        graph = about.graph
        return ModelMetadata(
            about.producer_name, graph.name, about.domain, about.doc_string, graph.doc_string, about.model_version, custom
        )

    def _argument(self, info: Any, sizes: Mapping[str, int], *, result: bool = False) -> Argument:
        kind, tensor = Kind.read(info.type)
        if result and (not info.type.WhichOneof("value") or (tensor is not None and not tensor.elem_type)):
            return Argument(str(info.name), "", None, None, kind)  # some programs leave the types of outputs to inference
        if tensor is None:
            which = str(info.type.WhichOneof("value") or "nothing").removesuffix("_type")
            raise Unsupported(
                message(f"{self.name}: {safe_repr(info.name)}", f"the type {which}", "tensors, and sequences of tensors")
            )
        dtype = dtype_of(tensor.elem_type)
        names = {number: text for text, number in self.source.messages.TensorProto.DataType.items()}
        said = names.get(tensor.elem_type, str(tensor.elem_type)).lower()
        if dtype == np.object_ and self.model.fallback is not None and not kind.is_sequence:
            pass  # texts
        elif not is_ours(dtype) and (kind.is_sequence or not is_narrow(dtype)):
            advice = 'With load(…, fallback="onnxruntime") that library runs what reads texts.' if said == "string" else ""
            raise Unsupported(message(f"{self.name}: {safe_repr(info.name)}", f"the type {said}", "DirectML's types", advice))
        shape: tuple[int | str | None, ...] | None = None
        if tensor.HasField("shape") and not kind.is_sequence:
            where = "" if result else str(info.name)
            shape = tuple(_size(one, sizes, where and unnamed(where, axis)) for axis, one in enumerate(tensor.shape.dim))
        return Argument(str(info.name), kind.named(f"tensor({said})"), shape, dtype, kind)


class _Converted(NamedTuple):
    """A node between stages that is converted for the elements of each run."""

    proto: Any
    model: MappedModel
    draws: int
    """How many nodes before it draw random numbers."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its results."""
        return tuple(str(name) for name in self.proto.output if name)

    def reads(self) -> set[str]:
        """As every node between stages does."""
        return set(_read([self.proto])) - {""}

    def shown(self) -> tuple[str, str]:
        """As every node between stages does."""
        return f"{self.proto.op_type} of {', '.join(self.outputs)}", "converted in each run"

    def run(self, run: Run, arrays: Mapping[str, Any], state: NumpyArray) -> dict[str, Any]:
        """As every node between stages does."""
        given = {name: _value(array) for name, array in arrays.items()}
        made, problems = Conversion.eager(self.model, given, [self.proto], self.outputs, state, self.draws)
        raise_all(self.model.source.name, problems)
        return {name: _array(value) for name, value in made.items()}


def _value(array: Any) -> Value:
    if array is None:
        return Value.nothing()
    return Value.sequence(map(_value, array)) if isinstance(array, list) else Value.known(plain(array))


def _array(value: Value) -> Any:
    if value.is_outside:
        return value.texts
    if value.parts is not None:
        return [_array(tensor) for tensor in value.parts]
    assert value.is_nothing or value.array is not None
    return value.array


def _widened(one: Argument) -> Argument:
    """As a pack has it, where types are DirectML's."""
    if not is_narrow(one.dtype):
        return one
    dtype = wide_of(one.dtype)
    return one._replace(dtype=dtype, type=one.kind.named(f"tensor({'float' if dtype == np.float32 else dtype.name})"))


def _argument_of(name: str, value: Value, symbols: dict[Any, str]) -> Argument:
    """What a stage is given: sizes that are equal in all cases have one name."""
    if value.parts is not None or value.shape is None:
        return Argument(name, "", None, next((tensor.dtype for tensor in value.tensors()), None))
    sizes = (symbols.setdefault(key_of(n), unnamed(name, axis)) if is_open(n) else n for axis, n in enumerate(value.shape))
    return Argument(name, "", tuple(sizes), value.dtype)


def _without_graph(tensor: Value) -> Value:
    """A known tensor; the graph that read it is let go."""
    return Value.known(tensor.array)


def _is_known(value: Value) -> bool:
    return all(tensor.array is not None for tensor in value.tensors())


def _is_given(value: Value) -> bool:
    """Whether a call gives it, as it is."""
    return all(
        tensor.array is not None or (isinstance(tensor.content, Expression) and isinstance(tensor.content.edge.source, Input))
        for tensor in value.tensors()
    )


def _read(nodes: Sequence[Any]) -> list[str]:
    """The names that nodes read, those of graphs in their attributes included."""
    return sorted({str(name) for proto in bounds.all_nodes(nodes) for name in proto.input})


def _needed(nodes: Sequence[Any], wanted: Iterable[str]) -> list[Any]:
    """The nodes that some results need, in their order."""
    names, needed = set(wanted), []
    for proto in reversed(nodes):
        if names & set(map(str, proto.output)):
            needed.append(proto)
            names |= set(_read([proto]))
    return needed[::-1]


def _lengths(outputs: Sequence[Value]) -> Lengths:
    """How many tensors each output has, if some are sequences or nothing."""
    if all(one.is_tensor or one.is_later for one in outputs):
        return ()
    return tuple(-1 if one.is_nothing else None if one.parts is None else len(one.parts) for one in outputs)


def open_sizes(source: ReadModel) -> tuple[str, ...]:
    """The names of the sizes that a model leaves open (``unnamed`` makes those of sizes without a name)."""
    return tuple(dict.fromkeys(n for one in source.model.graph.input for n in _symbols(one)))


def _size(dimension: Any, sizes: Mapping[str, int], otherwise: str) -> int | str | None:
    """A size, its name if it is open, or ``None`` if it has none; ``otherwise`` is what ``sizes`` calls it then."""
    if (known := known_size(dimension)) is not None:
        return known
    named = _symbol(dimension)
    if (name := named or otherwise) in sizes:
        given = sizes[name]
        if not isinstance(given, (int, np.integer)) or given < 0:
            raise InvalidArgument(message(f"load sizes {name}", safe_repr(given), "an integer of 0 or more"))
        return int(given)
    return named or None


def _symbol(dimension: Any) -> str:
    """The name of an open size. Some programs write question marks for one without a name."""
    name = str(dimension.dim_param)
    return name if name.strip("?") else ""


def _symbols(info: Any) -> list[str]:
    kind, tensor = Kind.read(info.type)
    sizes = () if tensor is None or kind.is_sequence else tensor.shape.dim
    return [_symbol(one) or unnamed(str(info.name), axis) for axis, one in enumerate(sizes) if known_size(one) is None]

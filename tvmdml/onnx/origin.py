"""``Origin``: a model as its file describes it, which is converted for sizes. The package onnx is needed from here on."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from tvmdml import onnx_bounds, targets
from tvmdml._garbage import not_collected
from tvmdml.arrays import NumpyArray
from tvmdml.errors import InvalidArgument, Unsupported, message, safe_repr
from tvmdml.graph import Expression, Graph
from tvmdml.graph.building import finished, recorded
from tvmdml.graph.open_graph import OpenGraph
from tvmdml.graph.packing import Shared
from tvmdml.graph.program import Finished
from tvmdml.onnx import converting
from tvmdml.onnx.converting import Conversion
from tvmdml.onnx.kinds import Kind, part
from tvmdml.onnx.reading import Source, opsets
from tvmdml.onnx.recording import LEAST, MOST, Pattern, Recording
from tvmdml.onnx.running import About, Argument, Lengths, Ready, unnamed
from tvmdml.onnx.scopes import kind_of, raise_all
from tvmdml.onnx.session import ModelMetadata
from tvmdml.onnx.tail import Tail
from tvmdml.onnx.types import dtype_of, is_narrow, is_ours, wide_of
from tvmdml.onnx.values import Value
from tvmdml.onnx_bounds import tensors
from tvmdml.sizes import Record
from tvmdml.sizes.evaluating import evaluator

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
    def __init__(self, given: Any, file: BinaryIO | None, target: targets.Target) -> None:
        """Read it.

        Args:
            given: a path, the bytes of a file, or an ``onnx.ModelProto``; or what was read of one.
            file: the file at the path, where it was opened before.
            target: where it will run.

        Raises:
            ModelError: it is not a valid model.
            Unsupported: operators have no counterpart, all of which are listed; or ONNX is not installed.
        """
        self.source = source = given if isinstance(given, Source) else Source(given, file)
        versions = dict(opsets(source.model))
        version, newest = versions.get("", OLDEST_OPSET), source.onnx.defs.onnx_opset_version()
        if not OLDEST_OPSET <= version <= newest:
            allowed = f"{OLDEST_OPSET} to {newest}, the newest of the installed package onnx"
            raise Unsupported(message(source.name, f"version {version} of ONNX's operators", allowed))
        self.model, self._target = converting.Model(source, {}), target
        self._weights: Shared = WeakValueDictionary()
        """The packed weights of all sizes."""

    @property
    def name(self) -> str:
        """For messages."""
        return self.source.name

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
        raise_all(source.name, self.model.missing())
        outside = source.onnx.TensorProto.EXTERNAL
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
    def recording(self, shapes: Shapes, pattern: Pattern, decided: Mapping[str, NumpyArray]) -> Recording:
        """Convert it for all sizes of which it asks the same as for these.

        Args:
            shapes: of the inputs.
            pattern: which of their sizes are open.
            decided: the elements of inputs that decide how it is computed.

        Raises:
            Undecided: the elements of more inputs must be known.
            ModelError, Unsupported: as ``load``.
        """
        record = Record()
        values = zip(pattern.places, pattern.values(shapes), strict=True)
        sizes: dict[str, Any] = {name: record.symbol(name, value, least=LEAST, most=MOST) for name, value in values}
        conversion, known, rest, tail, lengths = self._converted(pattern.opened(shapes, sizes), decided, record)
        if not rest:
            return Recording(pattern, evaluator(record, []), None, Ready(None, (), known, tail, lengths))
        finished = recorded(conversion.graph, rest)
        graph = OpenGraph(finished, record, self._target, self._weights)
        return Recording(
            pattern, graph.holds_for, graph, Ready(None, tuple(one.name for one in finished.inputs), known, tail, lengths)
        )

    def finished(self, shapes: Shapes, decided: Mapping[str, NumpyArray]) -> Finished:
        """The graph after all passes."""
        conversion, _, rest, *_ = self._converted(shapes, decided)
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
        self, shapes: Shapes, decided: Mapping[str, NumpyArray], record: Record | None = None
    ) -> tuple[Conversion, dict[int, NumpyArray], list[Expression], Tail | None, Lengths]:
        """The model for shapes, what is known of its outputs' tensors, what the graph computes, and what is computed after it."""
        conversion = Conversion.of(self.model, shapes, decided, record)
        raise_all(self.name, conversion.problems)
        outputs, graph = conversion.outputs, conversion.graph
        tensors = [tensor for one in outputs for tensor in one.tensors()]
        known = {i: one.array for i, one in enumerate(tensors) if one.array is not None}
        rest = [one.expression(graph) for i, one in enumerate(tensors) if i not in known and not one.is_later]
        lengths = _lengths(outputs)
        names = [str(info.name) for info, one in zip(self.source.model.graph.output, outputs, strict=True) for _ in one.tensors()]
        later = {i: names[i] for i, one in enumerate(tensors) if one.is_later}
        if not later:
            return conversion, known, rest, None, lengths
        tail, more = self._tail(conversion, later)
        return conversion, known, [*rest, *more], tail, lengths

    def _tail(self, conversion: Conversion, later: Mapping[int, str]) -> tuple[Tail, list[Expression]]:
        """What computes some outputs after the graph, and what it reads of the graph."""
        tensors = conversion.tensors()
        names = {str(name) for one in onnx_bounds.all_nodes(conversion.tail) for name in one.input}
        read = {name: tensors[name] for name in sorted(names) if name in tensors and not tensors[name].is_later}
        computed = [
            tensor.expression(conversion.graph) for one in read.values() for tensor in one.tensors() if tensor.array is None
        ]
        return Tail(self.model, conversion.tail, read, later, conversion.draws), computed

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
        names = {number: text for text, number in self.source.onnx.TensorProto.DataType.items()}
        said = names.get(tensor.elem_type, str(tensor.elem_type)).lower()
        if not is_ours(dtype) and (kind.is_sequence or not is_narrow(dtype)):
            raise Unsupported(message(f"{self.name}: {safe_repr(info.name)}", f"the type {said}", "DirectML's types"))
        shape: tuple[int | str | None, ...] | None = None
        if tensor.HasField("shape") and not kind.is_sequence:
            where = "" if result else str(info.name)
            shape = tuple(_size(one, sizes, where and unnamed(where, axis)) for axis, one in enumerate(tensor.shape.dim))
        return Argument(str(info.name), kind.named(f"tensor({said})"), shape, dtype, kind)


def _widened(one: Argument) -> Argument:
    """As a pack has it, where types are DirectML's."""
    if not is_narrow(one.dtype):
        return one
    dtype = wide_of(one.dtype)
    return one._replace(dtype=dtype, type=one.kind.named(f"tensor({'float' if dtype == np.float32 else dtype.name})"))


def _lengths(outputs: Sequence[Value]) -> Lengths:
    """How many tensors each output has, if some are sequences or nothing."""
    if all(one.is_tensor or one.is_later for one in outputs):
        return ()
    return tuple(-1 if one.is_nothing else None if one.parts is None else len(one.parts) for one in outputs)


def open_sizes(source: Source) -> tuple[str, ...]:
    """The names of the sizes that a model leaves open (``unnamed`` makes those of sizes without a name)."""
    return tuple(dict.fromkeys(n for one in source.model.graph.input for n in _symbols(one)))


def _size(dimension: Any, sizes: Mapping[str, int], otherwise: str) -> int | str | None:
    """A size, its name if it is open, or ``None`` if it has none; ``otherwise`` is what ``sizes`` calls it then."""
    if (known := _known(dimension)) is not None:
        return known
    named = _symbol(dimension)
    if (name := named or otherwise) in sizes:
        given = sizes[name]
        if not isinstance(given, (int, np.integer)) or given < 0:
            raise InvalidArgument(message(f"load sizes {name}", safe_repr(given), "an integer of 0 or more"))
        return int(given)
    return named or None


def _known(dimension: Any) -> int | None:
    """Its size. Some programs write -1 for an open one."""
    return int(dimension.dim_value) if dimension.HasField("dim_value") and dimension.dim_value >= 0 else None


def _symbol(dimension: Any) -> str:
    """The name of an open size. Some programs write question marks for one without a name."""
    name = str(dimension.dim_param)
    return name if name.strip("?") else ""


def _symbols(info: Any) -> list[str]:
    kind, tensor = Kind.read(info.type)
    sizes = () if tensor is None or kind.is_sequence else tensor.shape.dim
    return [_symbol(one) or unnamed(str(info.name), axis) for axis, one in enumerate(sizes) if _known(one) is None]

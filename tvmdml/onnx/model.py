"""``load`` and ``Model``: an ONNX model that runs."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from tvmdml import targets
from tvmdml.arrays import NumpyArray
from tvmdml.arrays.device_array import DeviceArray
from tvmdml.errors import InvalidArgument, Unsupported, message, safe_repr
from tvmdml.graph import CompiledGraph, Expression, Graph
from tvmdml.graph.building import finished
from tvmdml.graph.laid import Weights
from tvmdml.graph.loading import is_pack
from tvmdml.graph.program import Finished
from tvmdml.onnx import converting, inference
from tvmdml.onnx.converting import Conversion
from tvmdml.onnx.growing import Growth
from tvmdml.onnx.options import SessionOptions, chosen
from tvmdml.onnx.packed import PackedModel
from tvmdml.onnx.reading import Source, opsets
from tvmdml.onnx.running import Argument, Ready, Runnable, listed
from tvmdml.onnx.session import ModelMetadata
from tvmdml.onnx.values import MOST_DECIDING, Undecided, is_ours

Progress = Callable[[int, int], object]
OLDEST_OPSET = 7
"""The lowest version of ONNX's operators; earlier ones broadcast in another way."""
_MOST_KEPT = 64
"""How many compiled graphs a model keeps: one for each combination of sizes."""
_MOST_TURNS = 16


class Recorded(NamedTuple):
    """A model for certain sizes, before its passes."""

    inputs: list[Argument]
    outputs: list[Argument]
    graph: Graph
    results: list[Expression]

    def finished(self, target: targets.Target) -> Finished:
        """The graph after all passes for a target."""
        return finished(self.graph, self.results, target)


def load(
    model: str | os.PathLike[str] | bytes | Any,
    sizes: Mapping[str, int] | None = None,
    *,
    target: str | targets.Target = "cpu",
    progress: Progress | None = None,
) -> Runnable:
    """Read an ONNX model, or one of a pack, which needs neither the compiler nor the package onnx.

    Args:
        model: the path of a file, its bytes, or an ``onnx.ModelProto``; or the path of a pack, built from ONNX models.
        sizes: values of symbolic sizes, by name; a pack leaves none open. If no size is left open, the model is compiled now;
            otherwise for each combination of sizes on first use.
        target: where to run, as for ``tvmdml.compile``.
        progress: called with (kernels ready, kernels in all) while kernels compile.

    Raises:
        ModelError: it is not a valid model.
        PackError: the pack has no model, is damaged, or not trusted.
        Unsupported: operators have no counterpart, all of which are listed; or ONNX is not installed.
        InvalidArgument: a size or the target is wrong.
    """
    place = targets.resolve(target, "load target")
    if isinstance(model, (str, os.PathLike)) and is_pack(model):
        if sizes:
            raise InvalidArgument(message("load sizes", ", ".join(map(safe_repr, sizes)), "none: a pack leaves no size open"))
        return PackedModel(model, place, progress)
    found = Model(model, sizes or {}, place, progress)
    found.compile_if_known()
    return found


class Model(Runnable):
    """An ONNX model, compiled for each combination of sizes on first use."""

    def __init__(self, model: Any, sizes: Mapping[str, int], target: targets.Target, progress: Progress | None = None) -> None:
        """Not public: ``load`` makes models."""
        self.target = target
        source = model if isinstance(model, Source) else Source(model)
        self.name = source.name
        self._source, self._progress = source, progress
        versions = dict(opsets(source.model))
        version, newest = versions.get("", OLDEST_OPSET), source.onnx.defs.onnx_opset_version()
        if not OLDEST_OPSET <= version <= newest:
            allowed = f"{OLDEST_OPSET} to {newest}, the newest of the installed package onnx"
            raise Unsupported(message(source.name, f"version {version} of ONNX's operators", allowed))
        graph = source.model.graph
        weights = {one.name for one in graph.initializer}
        self.inputs = [self._argument(one, sizes) for one in graph.input if one.name not in weights]
        self.outputs = [self._argument(one, sizes, result=True) for one in graph.output]
        names = [one.name for one in self.inputs]
        if "" in names or len(set(names)) != len(names):
            raise source.error("inputs without names, or with the same name", "inputs with different names")
        self.symbols = tuple(
            dict.fromkeys(n for one in (*self.inputs, *self.outputs) for n in one.shape or () if isinstance(n, str))
        )
        """The names of the sizes that are open."""
        known = open_sizes(source)
        if unknown := set(sizes) - set(known):
            given = ", ".join(map(safe_repr, sorted(map(str, unknown))))
            raise InvalidArgument(message("load sizes", given, f"symbolic sizes of {source.name}: {', '.join(known) or 'none'}"))
        self._model = converting.Model(source, {})
        converting.raise_all(source.name, self._model.missing())
        self._compiled: OrderedDict[Any, Ready] = OrderedDict()
        self._deciding = set()
        self._weights: WeakValueDictionary[object, Weights] = WeakValueDictionary()  # of all sizes
        self._lock = threading.RLock()
        self._growth = Growth(self._model, target, self._check, self._unseen)

    def metadata(self) -> ModelMetadata:
        """What the file says of itself."""
        about = self._source.model
        custom = {str(one.key): str(one.value) for one in about.metadata_props}
        graph = about.graph
        return ModelMetadata(
            about.producer_name, graph.name, about.domain, about.doc_string, graph.doc_string, about.model_version, custom
        )

    def compile_if_known(self) -> None:
        """Compile now, if no size of an input is open."""
        if (shapes := self._known_shapes()) is not None:
            try:
                self._compile(shapes, {})
            except Undecided as error:  # compiled when these inputs are given
                self._deciding |= error.inputs

    def recorded(self) -> Recorded:
        """The model for the sizes that it has, for a pack.

        Raises:
            InvalidArgument: a size is open, or an input's elements decide how the model is computed.
            ModelError, Unsupported: as ``load``.
        """
        shapes = self._known_shapes()
        if shapes is None:
            advice = "Open sizes are given by name (--size NAME=N)."
            wanted = ", ".join(self.symbols) or "sizes in the model: some have no names"
            raise InvalidArgument(
                message(self.name, f"a model with open sizes ({listed(self.inputs)})", f"known sizes: {wanted}", advice)
            )
        try:
            conversion = Conversion.of(self._model, shapes, {})
        except Undecided as error:
            given = f"a model that the elements of {', '.join(sorted(error.inputs))} decide about"
            raise InvalidArgument(message(self.name, given, "one that shapes and constants decide about")) from None
        converting.raise_all(self.name, conversion.problems)
        outputs = [one.expression(conversion.graph) for one in conversion.outputs]
        if not outputs:
            raise InvalidArgument(message(self.name, "a model without outputs", "one or more outputs"))
        return Recorded(self.inputs, self.outputs, conversion.graph, outputs)

    # -- How

    def _known_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """The shapes of the inputs, if no size is open."""
        found = {}
        for one in self.inputs:
            if one.shape is None or not all(isinstance(n, int) for n in one.shape):
                return None
            found[one.name] = tuple(n for n in one.shape if isinstance(n, int))
        return found

    def _ready(self, shapes: Mapping[str, tuple[int, ...]], views: Mapping[str, Any]) -> Ready:
        with self._lock:
            for _ in range(_MOST_TURNS):
                decided = {name: _elements(views[name]) for name in sorted(self._deciding)}
                key = (tuple(shapes.items()), tuple((name, array.tobytes()) for name, array in decided.items()))
                if (found := self._compiled.get(key)) is not None:
                    self._compiled.move_to_end(key)
                    return found
                self._check(shapes)
                try:
                    return self._compile(shapes, decided)
                except Undecided as error:
                    self._deciding |= error.inputs
        raise Unsupported(f"{self.name}: the values of too many inputs decide how it is computed")

    def _compile(self, shapes: Mapping[str, tuple[int, ...]], decided: Mapping[str, NumpyArray]) -> Ready:
        program = None if decided else self._growth.program(shapes)
        if program is not None:
            graph = CompiledGraph(
                program, self.target, progress=self._progress, shared=self._weights, launches=self._growth.launches
            )
            found = Ready(graph, tuple(one.name for one in program.inputs), {})
        else:
            found = self._converted(shapes, decided)
        key = (
            tuple((one.name, shapes[one.name]) for one in self.inputs),
            tuple((name, array.tobytes()) for name, array in sorted(decided.items())),
        )
        with self._lock:
            self._compiled[key] = found
            while len(self._compiled) > _MOST_KEPT:
                self._compiled.popitem(last=False)
        return found

    def _converted(self, shapes: Mapping[str, tuple[int, ...]], decided: Mapping[str, NumpyArray]) -> Ready:
        conversion = Conversion.of(self._model, shapes, decided)
        converting.raise_all(self.name, conversion.problems)
        known = {i: one.array for i, one in enumerate(conversion.outputs) if one.array is not None}
        rest = [one.expression(conversion.graph) for i, one in enumerate(conversion.outputs) if i not in known]
        if not rest:
            return Ready(None, (), known)
        program = finished(conversion.graph, rest, self.target)
        graph = CompiledGraph(program, self.target, calls=conversion.graph.calls, progress=self._progress, shared=self._weights)
        if self._known_shapes() is None and not known and not decided:
            self._growth.saw(shapes, conversion)
        return Ready(graph, tuple(one.name for one in program.inputs), known)

    def _unseen(self, shapes: Mapping[str, tuple[int, ...]]) -> Conversion | None:
        """The model for shapes that it may be called with later."""
        found = Conversion.of(self._model, shapes, {})
        return None if found.problems or any(one.array is not None for one in found.outputs) else found

    def _argument(self, info: Any, sizes: Mapping[str, int], *, result: bool = False) -> Argument:
        kind = info.type
        if result and (not kind.WhichOneof("value") or (kind.HasField("tensor_type") and not kind.tensor_type.elem_type)):
            return Argument(str(info.name), "", None, None)  # some programs leave the types of outputs to inference
        if not kind.HasField("tensor_type"):
            which = str(kind.WhichOneof("value") or "nothing").removesuffix("_type")
            raise Unsupported(message(f"{self.name}: {safe_repr(info.name)}", f"the type {which}", "tensors"))
        tensor = kind.tensor_type
        dtype = inference.dtype_of(tensor.elem_type)
        names = {number: text for text, number in self._source.onnx.TensorProto.DataType.items()}
        said = names.get(tensor.elem_type, str(tensor.elem_type)).lower()
        if not is_ours(dtype):
            raise Unsupported(message(f"{self.name}: {safe_repr(info.name)}", f"the type {said}", "DirectML's types"))
        shape: tuple[int | str | None, ...] | None = None
        if tensor.HasField("shape"):
            shape = tuple(_size(one, sizes) for one in tensor.shape.dim)
        return Argument(str(info.name), f"tensor({said})", shape, dtype)


class InferenceSession(Model):
    """``onnxruntime.InferenceSession``: a model on the target of the first provider that this machine has."""

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **others: Any,
    ) -> None:
        """Read a model.

        Args:
            path_or_bytes: as for ``load``.
            sess_options: ``add_free_dimension_override_by_name`` gives symbolic sizes; nothing else has an effect.
            providers: names of ONNX Runtime's providers, pairs of a name and options, or targets' names; without them, the CPU.
            provider_options: ``device_id`` has an effect.
            others: what else ONNX Runtime takes; it has no effect.

        Raises:
            ModelError, Unsupported, InvalidArgument: as ``load``.
        """
        self.options = sess_options or SessionOptions()
        self.provider, target = chosen(providers, provider_options)
        super().__init__(path_or_bytes, self.options.sizes, target)
        self.compile_if_known()


def open_sizes(source: Source) -> tuple[str, ...]:
    """The names of the sizes that a model leaves open."""
    return tuple(dict.fromkeys(n for one in source.model.graph.input for n in _symbols(one)))


def _size(dimension: Any, sizes: Mapping[str, int]) -> int | str | None:
    if dimension.HasField("dim_value"):
        return int(dimension.dim_value) if dimension.dim_value >= 0 else None  # some programs write -1 for an open size
    name = str(dimension.dim_param)
    if name in sizes:
        given = sizes[name]
        if not isinstance(given, (int, np.integer)) or given < 0:
            raise InvalidArgument(message(f"load sizes {name}", safe_repr(given), "an integer of 0 or more"))
        return int(given)
    return name if name.strip("?") else None


def _symbols(info: Any) -> list[str]:
    return [str(one.dim_param) for one in info.type.tensor_type.shape.dim if one.HasField("dim_param") and one.dim_param]


def _elements(view: Any) -> NumpyArray:
    """The elements of a small input, on the CPU."""
    array = view.numpy() if type(view) is DeviceArray else np.asarray(view)
    if array.size > MOST_DECIDING:
        raise Unsupported(f"an input of {array.size} elements decides how the model is computed; allowed: {MOST_DECIDING}")
    return np.array(array)

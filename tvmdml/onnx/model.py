"""``load`` and ``Model``: an ONNX model that runs."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from tvmdml import arrays, targets
from tvmdml.arrays import NumpyArray
from tvmdml.arrays.device_array import DeviceArray
from tvmdml.errors import InvalidArgument, Unsupported, message, safe_repr
from tvmdml.graph import CompiledGraph
from tvmdml.graph.packing import Weights
from tvmdml.onnx import converting, inference
from tvmdml.onnx.converting import Conversion
from tvmdml.onnx.options import SessionOptions, chosen
from tvmdml.onnx.reading import Source, opsets
from tvmdml.onnx.session import ModelMetadata, Session
from tvmdml.onnx.values import MOST_DECIDING, Undecided, is_ours

Progress = Callable[[int, int], object]
OLDEST_OPSET = 7
"""The lowest version of ONNX's operators; earlier ones broadcast in another way."""
_MOST_KEPT = 64
"""How many compiled graphs a model keeps: one for each combination of sizes."""
_MOST_TURNS = 16


class Argument(NamedTuple):
    """An input or output of a model."""

    name: str
    type: str
    """ONNX's name of the type: ``tensor(float)``; empty for an output whose type the model does not say."""
    shape: tuple[int | str | None, ...] | None
    """The sizes; a string is a symbolic size, ``None`` one without a name. ``None`` if not even their number is known."""
    dtype: Any
    """The NumPy type."""


class _Compiled(NamedTuple):
    """A model for certain shapes."""

    graph: CompiledGraph | None
    """``None`` if all outputs are known."""
    inputs: tuple[str, ...]
    """The inputs that the graph reads."""
    known: Mapping[int, NumpyArray]
    """The outputs that are known."""


def load(
    model: str | os.PathLike[str] | bytes | Any,
    sizes: Mapping[str, int] | None = None,
    *,
    target: str | targets.Target = "cpu",
    progress: Progress | None = None,
) -> Model:
    """Read an ONNX model.

    Args:
        model: the path of a file, its bytes, or an ``onnx.ModelProto``.
        sizes: values of symbolic sizes, by name. If no size is left open, the model is compiled now; otherwise for each
            combination of sizes on first use.
        target: where to run, as for ``tvmdml.compile``.
        progress: called with (kernels ready, kernels in all) while kernels compile.

    Raises:
        ModelError: it is not a valid model.
        Unsupported: operators have no counterpart, all of which are listed; or ONNX is not installed.
        InvalidArgument: a size or the target is wrong.
    """
    found = Model(model, sizes or {}, targets.resolve(target, "load target"), progress)
    found.compile_if_known()
    return found


class Model(Session):
    """An ONNX model. Call it with its inputs: ``model(x=array)``; it returns a list of arrays, one for each output.

    Several threads may run it at the same time.
    """

    inputs: list[Argument]
    outputs: list[Argument]

    def __init__(self, model: Any, sizes: Mapping[str, int], target: targets.Target, progress: Progress | None = None) -> None:
        """Not public: ``load`` makes models."""
        self.target = target
        """Where it runs."""
        source = Source(model)
        self._source, self._progress = source, progress
        versions = dict(opsets(source.model))
        version, newest = versions.get("", OLDEST_OPSET), source.onnx.defs.onnx_opset_version()
        if not OLDEST_OPSET <= version <= newest:
            allowed = f"{OLDEST_OPSET} to {newest}, the newest of the installed package onnx"
            raise Unsupported(message(source.name, f"version {version} of ONNX's operators", allowed))
        graph = source.model.graph
        weights = {one.name for one in graph.initializer}
        self.inputs = [self._argument(one, sizes) for one in graph.input if one.name not in weights]
        """The inputs."""
        self.outputs = [self._argument(one, sizes, result=True) for one in graph.output]
        """The outputs."""
        names = [one.name for one in self.inputs]
        if "" in names or len(set(names)) != len(names):
            raise source.error("inputs without names, or with the same name", "inputs with different names")
        self.symbols = tuple(
            dict.fromkeys(n for one in (*self.inputs, *self.outputs) for n in one.shape or () if isinstance(n, str))
        )
        """The names of the sizes that are open."""
        if unknown := set(sizes) - {n for one in graph.input for n in _symbols(one)}:
            given = ", ".join(map(safe_repr, sorted(map(str, unknown))))
            raise InvalidArgument(message("load sizes", given, f"symbolic sizes of {source.name}: {self._open(graph)}"))
        self._model = converting.Model(source, {})
        converting.raise_all(source.name, self._model.missing())
        self._compiled: OrderedDict[Any, _Compiled] = OrderedDict()
        self._deciding: set[str] = set()
        self._weights: WeakValueDictionary[object, Weights] = WeakValueDictionary()  # of all sizes
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        """The inputs and outputs."""
        return f"<Model {self._source.name} ({_listed(self.inputs)}) -> ({_listed(self.outputs)}) on {self.target}>"

    # -- Running

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> list[Any]:
        """Run.

        Args:
            inputs: arrays of any library by the names of the inputs.
            named: the same, as keywords.

        Returns:
            An array for each output.

        Raises:
            InvalidArgument: an input is missing, unknown, or has another type or shape.
            Unsupported: a node has no counterpart for these sizes.
        """
        given = {**(inputs or {}), **named}
        compiled = self._for(given)
        found: dict[int, Any] = {i: array.copy() for i, array in compiled.known.items()}
        if compiled.graph is not None:
            results = compiled.graph({name: given[name] for name in compiled.inputs})
            found |= dict(zip((i for i in range(len(self.outputs)) if i not in found), results, strict=True))
        return [found[i] for i in range(len(self.outputs))]

    def compiled(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> CompiledGraph:
        """The compiled graph for inputs, for ``explain``, ``profile`` and ``bind``. Inputs are arrays or shapes.

        Raises:
            InvalidArgument: an input is missing or does not fit; or all outputs are known without running.
        """
        given = {
            name: np.broadcast_to(np.zeros((), self._input(name).dtype), one) if isinstance(one, (tuple, list)) else one
            for name, one in {**(inputs or {}), **named}.items()
        }
        found = self._for(given).graph
        if found is None:
            raise InvalidArgument(message("compiled", "a model whose outputs are all known", "a model that computes"))
        return found

    def forms(self, inputs: Mapping[str, Any]) -> list[tuple[Any, tuple[int, ...]]]:
        """The type and shape of each output for inputs, without running the model. Inputs are as for a call.

        Raises:
            InvalidArgument, Unsupported: as a call does.
        """
        compiled = self._for(inputs)
        rest = iter(compiled.graph.parts()[1] if compiled.graph is not None else ())
        known = compiled.known
        return [(known[i].dtype, known[i].shape) if i in known else next(rest) for i in range(len(self.outputs))]

    def plain(self, inputs: Mapping[str, Any]) -> CompiledGraph | None:
        """The compiled graph for inputs if it reads all of them and computes all outputs; ``None`` otherwise.

        Raises:
            InvalidArgument: an input is missing or does not fit.
        """
        found = self._for(inputs)
        whole = not found.known and not self._deciding and set(found.inputs) == set(inputs)
        return found.graph if whole else None

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
        shapes = {one.name: one.shape for one in self.inputs}
        if all(shape is not None and all(isinstance(n, int) for n in shape) for shape in shapes.values()):
            try:
                self._compile({name: tuple(map(int, shape or ())) for name, shape in shapes.items()}, {})  # type: ignore[arg-type]
            except Undecided as error:  # compiled when these inputs are given
                self._deciding |= error.inputs

    # -- How

    def _input(self, name: str) -> Argument:
        for one in self.inputs:
            if one.name == name:
                return one
        raise InvalidArgument(message("Model call", safe_repr(name), ", ".join(one.name for one in self.inputs) or "no inputs"))

    def _for(self, given: Mapping[str, Any]) -> _Compiled:
        """The compiled model for arrays."""
        shapes, views = {}, {}
        for name in given:
            self._input(name)
        for one in self.inputs:
            if one.name not in given:
                raise InvalidArgument(message("Model call", f"no {one.name}", _form(one)))
            view = arrays.view(given[one.name], f"Model {one.name}")
            if view.dtype.newbyteorder("=") != one.dtype:
                raise InvalidArgument(message(f"Model {one.name}", f"{view.dtype}{list(view.shape)}", _form(one)))
            shapes[one.name], views[one.name] = tuple(view.shape), view
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
        raise Unsupported(f"{self._source.name}: the values of too many inputs decide how it is computed")

    def _check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Shapes are those that the model declares, and each symbol has one value."""
        symbols: dict[str, int] = {}
        for one in self.inputs:
            if one.shape is None:
                continue
            shape = shapes[one.name]
            fits = len(shape) == len(one.shape) and all(
                n is None or (symbols.setdefault(n, m) if isinstance(n, str) else n) == m
                for n, m in zip(one.shape, shape, strict=False)
            )
            if not fits:
                same = f" with {', '.join(f'{name}={n}' for name, n in symbols.items())}" if symbols else ""
                raise InvalidArgument(message(f"Model {one.name}", f"{one.dtype}{list(shape)}", _form(one) + same))

    def _compile(self, shapes: Mapping[str, tuple[int, ...]], decided: Mapping[str, NumpyArray]) -> _Compiled:
        conversion = Conversion(self._model, shapes, decided)
        converting.raise_all(self._source.name, conversion.problems)
        known = {i: one.array for i, one in enumerate(conversion.outputs) if one.array is not None}
        rest = [one.expression(conversion.graph) for i, one in enumerate(conversion.outputs) if i not in known]
        graph, inputs = None, []
        if rest:
            conversion.graph.shared = self._weights
            graph = conversion.graph.compile(rest, self.target, progress=self._progress)
            inputs = [one.name for one in conversion.graph.inputs]
        found = _Compiled(graph, tuple(inputs), known)
        key = (
            tuple((one.name, shapes[one.name]) for one in self.inputs),
            tuple((name, array.tobytes()) for name, array in sorted(decided.items())),
        )
        with self._lock:
            self._compiled[key] = found
            while len(self._compiled) > _MOST_KEPT:
                self._compiled.popitem(last=False)
        return found

    def _argument(self, info: Any, sizes: Mapping[str, int], *, result: bool = False) -> Argument:
        kind = info.type
        if result and (not kind.WhichOneof("value") or (kind.HasField("tensor_type") and not kind.tensor_type.elem_type)):
            return Argument(str(info.name), "", None, None)  # some programs leave the types of outputs to inference
        if not kind.HasField("tensor_type"):
            which = str(kind.WhichOneof("value") or "nothing").removesuffix("_type")
            raise Unsupported(message(f"{self._source.name}: {safe_repr(info.name)}", f"the type {which}", "tensors"))
        tensor = kind.tensor_type
        dtype = inference.dtype_of(tensor.elem_type)
        names = {number: text for text, number in self._source.onnx.TensorProto.DataType.items()}
        said = names.get(tensor.elem_type, str(tensor.elem_type)).lower()
        if not is_ours(dtype):
            raise Unsupported(message(f"{self._source.name}: {safe_repr(info.name)}", f"the type {said}", "DirectML's types"))
        shape: tuple[int | str | None, ...] | None = None
        if tensor.HasField("shape"):
            shape = tuple(_size(one, sizes) for one in tensor.shape.dim)
        return Argument(str(info.name), f"tensor({said})", shape, dtype)

    @staticmethod
    def _open(graph: Any) -> str:
        return ", ".join(dict.fromkeys(n for one in graph.input for n in _symbols(one))) or "none"


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


def _form(one: Argument) -> str:
    sizes = "" if one.shape is None else f"[{', '.join('?' if n is None else str(n) for n in one.shape)}]"
    return f"{one.dtype or 'a tensor'}{sizes}"


def _listed(several: Sequence[Argument]) -> str:
    return ", ".join(f"{one.name}: {_form(one)}" for one in several)


def _elements(view: Any) -> NumpyArray:
    """The elements of a small input, on the CPU."""
    array = view.numpy() if type(view) is DeviceArray else np.asarray(view)
    if array.size > MOST_DECIDING:
        raise Unsupported(f"an input of {array.size} elements decides how the model is computed; allowed: {MOST_DECIDING}")
    return np.array(array)

"""``Runnable``: what every model does, wherever it comes from: it checks its inputs and runs."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Protocol

import numpy as np

from tvmdml.errors import InvalidArgument, Unsupported, bounded, message, safe_repr
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.explaining import Explanation
from tvmdml.onnx.arguments import ModelMetadata
from tvmdml.onnx.kinds import Kind, part, parts
from tvmdml.onnx.random_state import STATE, RandomStates
from tvmdml.onnx.session import Session
from tvmdml.onnx.types import is_narrow, named, wide_of
from tvmdml.tensors import arrays
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray

Lengths = tuple[int | None, ...]
Run = Callable[[CompiledGraph, Mapping[str, Any]], list[Any]]
"""Runs a graph with what it reads."""
Inputs = Mapping[str, Any] | Sequence[Any] | Any
"""The inputs of a call: by name, in the order of the inputs, or the array of the only input."""


class Argument(NamedTuple):
    """An input or output of a model."""

    name: str
    type: str
    """ONNX's name of the type: ``tensor(float)``; empty for an output whose type the model does not say."""
    shape: tuple[int | str | None, ...] | None
    """The sizes; a string is a symbolic size, ``None`` one without a name. ``None`` if not even their number is known, and for
    sequences."""
    dtype: Any
    """The NumPy type, of the tensors of a sequence."""
    kind: Kind = Kind()
    """Whether it is a tensor, a sequence, or either if it is there."""

    @classmethod
    def read(cls, name: str, kind: str, shape: list[Any] | None, dtype: str | None) -> Argument:
        """What ``written`` wrote."""
        sizes, own = None if shape is None else tuple(shape), None if dtype is None else named(dtype)
        return cls(name, kind, sizes, own, Kind.of(kind))

    def written(self) -> list[Any]:
        """JSON, for ``read``."""
        own = self.dtype if self.dtype is None else np.dtype(self.dtype)
        return [self.name, self.type, self.shape, own and (own.name if is_narrow(own) else own.str)]

    def open_sizes(self) -> list[str]:
        """The names of an input's sizes that are open."""
        sizes = enumerate(self.shape or ())
        return [n or unnamed(self.name, axis) for axis, n in sizes if not isinstance(n, int)]

    def with_sizes(self, sizes: Mapping[str, int]) -> Argument:
        """The same with the values of these open sizes."""
        if self.shape is None:
            return self
        shape = (n if isinstance(n, int) else sizes.get(n or unnamed(self.name, axis), n) for axis, n in enumerate(self.shape))
        return self._replace(shape=tuple(shape))


def unnamed(name: str, axis: int) -> str:
    """What an open size of an input is called if the model gives it no name: ``x.0``."""
    return f"{name}.{axis}"


class About(NamedTuple):
    """What is known of a model without its nodes."""

    inputs: list[Argument]
    outputs: list[Argument]
    metadata: ModelMetadata
    elsewhere: tuple[str, ...]
    """The files with weights."""
    defaults: list[Argument]
    """Weights that a call may give instead."""


class AfterGraph(Protocol):
    """What runs after a graph: ``tail``."""

    @property
    def makes(self) -> Mapping[int, str]:
        """The names of the model's outputs that are computed here, by their places."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """ONNX's names of the operators."""

    @property
    def tensors(self) -> int:
        """The number of tensors that the graph gives beside outputs."""

    def stages(self) -> Sequence[Any]:
        """Those that it runs."""

    def shown(self) -> Sequence[tuple[str, str]]:
        """The nodes between the stages, and what runs each."""

    def run(self, run: Run, given: Mapping[str, Any], results: Sequence[Any], state: NumpyArray) -> dict[int, Any]:
        """The outputs, by their places."""


class Ready(NamedTuple):
    """A model for certain shapes."""

    graph: CompiledGraph | None
    """``None`` if all outputs are known."""
    inputs: tuple[str, ...]
    """The inputs that the graph reads; the last one is ``STATE`` if it draws random numbers."""
    known: Mapping[int, NumpyArray]
    """The outputs that are known."""
    tail: AfterGraph | None = None
    """What computes other outputs after the graph, of its last ones."""
    lengths: Lengths = ()
    """For each output the number of its tensors; ``None`` for a tensor, -1 for nothing, and ``()`` if all outputs are tensors."""

    @property
    def alone(self) -> bool:
        """Whether the graph takes the inputs and gives the outputs, as they are, and nothing else is to be done."""
        return not (self.graph is None or self.known or self.tail is not None or self.lengths or self.draws)

    @property
    def draws(self) -> bool:
        """Whether the graph draws random numbers."""
        return self.inputs[-1:] == (STATE,)

    def count(self, outputs: int) -> int:
        """The number of tensors of so many outputs."""
        return sum(1 if n is None else max(n, 0) for n in self.lengths) if self.lengths else outputs

    def assembled(self, tensors: Sequence[Any]) -> list[Any]:
        """The outputs, of their tensors: sequences are lists."""
        if not self.lengths:
            return list(tensors)
        rest = iter(tensors)
        return [next(rest) if n is None else None if n < 0 else [next(rest) for _ in range(n)] for n in self.lengths]


class Runnable(Session, abc.ABC):
    """A model that runs. Call it with its inputs: ``model(x=array)``; it returns a list of arrays, one for each output.

    Several threads may run it at the same time.
    """

    name: str
    """The name of its file."""
    inputs: list[Argument]
    """The inputs."""
    outputs: list[Argument]
    """The outputs."""
    defaults: Sequence[Argument] = ()
    """Inputs that have a value if a call does not give one: the model's weights that are inputs, too."""
    symbols: tuple[str, ...]
    """The names of the sizes that are open."""
    numbers: RandomStates
    """What decides about its random numbers."""
    choices: Sequence[Mapping[str, int]] = ()
    """Values of the sizes that were open in the file, of each model of a pack that has several."""
    _deciding: AbstractSet[str] = frozenset()
    """The inputs whose elements decide how it is computed."""

    @abc.abstractmethod
    def explain(self) -> Explanation:
        """What was compiled so far: for which sizes it holds, and the launches with their tensors, whose sizes are expressions."""

    @abc.abstractmethod
    def _ready(self, shapes: Mapping[str, tuple[int, ...]], views: Mapping[str, Any]) -> Ready:
        """The compiled model for arrays of these shapes."""

    def __repr__(self) -> str:
        """The inputs and outputs."""
        given, found = listed(self.inputs), listed(self.outputs)
        return bounded(f"<{type(self).__name__} {self.name} ({given}) -> ({found}) on {self.target}>")

    # -- Running

    def __call__(self, inputs: Inputs = None, /, **named: Any) -> list[Any]:
        """Run.

        Args:
            inputs: arrays of any library by the names of the inputs; or a sequence of them in the order of the inputs; or the array
                of a model's only input.
            named: the same by name, as keywords.

        Returns:
            An array for each output.

        Raises:
            InvalidArgument: an input is missing, unknown, or has another type or shape.
            Unsupported: a node has no counterpart for these sizes.
        """
        given = self._apart(self._by_names(inputs, named))
        compiled = self._for_tensors(given)
        if compiled.graph is not None and compiled.alone and not self._narrows:
            return self._run(compiled.graph, {name: given[name] for name in compiled.inputs})
        state = self.numbers.state() if compiled.draws or compiled.tail is not None else None
        restore = self._restorer(given) if compiled.known or compiled.tail is not None else None
        if compiled.tail is not None:
            given = self._plain(given)
        results = results_of(self._run, compiled, given, len(self.outputs), state)
        if restore is not None:
            results = [_restored(one, restore) for one in results]
        if self._narrows:
            for i, dtype in self._narrows:
                results[i] = _of_type(results[i], wide_of(dtype), dtype)
        return results

    def _run(self, graph: CompiledGraph, inputs: Mapping[str, Any]) -> list[Any]:
        """Run what was compiled."""
        return graph(inputs)

    def _restorer(self, given: Mapping[str, Any]) -> Callable[[Any], Any]:
        """What makes outputs of the kind of the inputs; those of a graph are."""
        if any(type(one) is DeviceArray for one in given.values()):
            return lambda array: self.target.asarray(array) if _travels(array) else array
        several = (one for one in given.values() if not isinstance(one, (np.ndarray, list, str, int)))  # lengths of sequences, too
        library = next((arrays.restorer(one) for one in several), None)

        def restore(array: Any) -> Any:
            plain = array.numpy() if type(array) is DeviceArray else array
            return library(plain) if library is not None and _travels(plain) else plain

        return restore

    def _plain(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The inputs where the stages run."""
        if any(type(one) is DeviceArray for one in given.values()):
            return given
        return {name: self._there(name, one) for name, one in given.items() if type(one) is not int}

    def _there(self, name: str, array: Any) -> Any:
        """An input where the stages run; texts stay."""
        about = self._by_name.get(name)
        if about is not None and about.dtype == np.object_:
            return _texts(array, name)
        return self.target.asarray(np.asarray(arrays.view(array, self.name)))

    def compiled(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> CompiledGraph:
        """The compiled graph for inputs, for ``explain``, ``profile`` and ``bind``. Inputs are arrays or shapes.

        Raises:
            InvalidArgument: an input is missing or does not fit; or all outputs are known without running.
        """

        def array(dtype: Any, one: Any) -> Any:
            sizes = isinstance(one, (tuple, list)) and all(isinstance(n, (int, np.integer)) for n in one)
            return np.broadcast_to(np.zeros((), dtype), one) if sizes else one

        given = {}
        for name, one in {**(inputs or {}), **named}.items():
            about = self._input(name)
            several = about.kind.is_sequence and isinstance(one, (tuple, list))
            given[name] = [array(about.dtype, each) for each in one] if several else array(about.dtype, one)
        found = self._for(given).graph
        if found is None:
            raise InvalidArgument(message("compiled", "a model whose outputs are all known", "a model that computes"))
        return found

    def graphs(self, inputs: Mapping[str, Any]) -> list[tuple[CompiledGraph, Mapping[str, Any]]]:
        """The compiled graphs that a run with these arrays runs, one after the other, and what each is given.

        There are several where elements that are computed decide sizes, and none where all outputs are known.

        Raises:
            InvalidArgument, Unsupported: as a call.
        """
        ran: list[tuple[CompiledGraph, Mapping[str, Any]]] = []
        given = self._apart(inputs)
        ready = self._for_tensors(given)
        if ready.tail is not None:
            given = self._plain(given)

        def run(graph: CompiledGraph, read: Mapping[str, Any]) -> list[Any]:
            ran.append((graph, read))
            return graph(read)

        results_of(run, ready, given, len(self.outputs), self.numbers.state())
        return ran

    def forms(self, inputs: Mapping[str, Any]) -> list[tuple[Any, tuple[int, ...]]]:
        """The type and shape of each output for inputs, without running the model. Inputs are as for a call.

        Raises:
            InvalidArgument, Unsupported: as a call does; or elements decide the shapes.
        """
        compiled = self._for(inputs)
        if compiled.tail is not None:
            given = f"outputs whose shapes elements decide ({', '.join(compiled.tail.kinds)})"
            raise Unsupported(message(f"{self.name} forms", given, "outputs whose shapes follow from those of the inputs"))
        if compiled.lengths:
            raise Unsupported(message(f"{self.name} forms", "outputs that are sequences or optional", "outputs that are tensors"))
        rest = iter(compiled.graph.forms() if compiled.graph is not None else ())
        known = compiled.known
        return [(known[i].dtype, known[i].shape) if i in known else next(rest) for i in range(len(self.outputs))]

    def plain(self, inputs: Mapping[str, Any]) -> CompiledGraph | None:
        """The compiled graph for inputs if it reads all of them and computes all outputs; ``None`` otherwise.

        Raises:
            InvalidArgument: an input is missing or does not fit.
        """
        found = self._for(inputs)
        whole = not (self._narrows or found.known or found.tail or found.lengths or self._deciding) and set(found.inputs) - {
            STATE
        } == set(inputs)
        return found.graph if whole else None

    # -- How

    def _by_names(self, inputs: Any, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """The inputs of a call by their names."""
        if inputs is None:
            return named
        if isinstance(inputs, Mapping):
            return {**inputs, **named}
        rest = [one for one in self.inputs if one.name not in named]
        given = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
        if len(given) != len(rest):
            said = f"a {type(inputs).__name__} of {len(given)}" if given is inputs else "one array"
            allowed = f"{len(rest)}: {listed(rest) or 'none'}"
            names = ", ".join(f"{one.name}=…" for one in rest)
            advice = f"By name: model({names}), or model({{{rest[0].name!r}: …}})." if rest else ""
            raise InvalidArgument(message("Model call", said, allowed, advice))
        return {**{one.name: array for one, array in zip(rest, given, strict=True)}, **named}

    def _input(self, name: str) -> Argument:
        if (found := self._by_name.get(name)) is None:
            raise InvalidArgument(message("Model call", safe_repr(name), ", ".join(self._by_name) or "no inputs"))
        return found

    @functools.cached_property
    def _by_name(self) -> dict[str, Argument]:
        return {one.name: one for one in self.feeds}

    @functools.cached_property
    def _takes_tensors(self) -> bool:
        """Whether all inputs are tensors."""
        return all(one.kind == Kind() for one in self.feeds)

    @functools.cached_property
    def _narrow_inputs(self) -> list[Argument]:
        """The inputs whose type DirectML has not. To ask each at every call took a quarter of a millisecond of a decoder's word."""
        return [one for one in self.feeds if is_narrow(one.dtype)]

    @functools.cached_property
    def _wide(self) -> dict[str, Any]:
        """The types that these are given in."""
        return {one.name: wide_of(one.dtype) for one in self._narrow_inputs}

    @functools.cached_property
    def _narrows(self) -> list[tuple[int, Any]]:
        """The places and types of outputs whose type DirectML has not."""
        return [(i, one.dtype) for i, one in enumerate(self.outputs) if is_narrow(one.dtype)]

    def _for(self, given: Mapping[str, Any]) -> Ready:
        return self._for_tensors(self._apart(given))

    def _apart(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tensors of a call's inputs, by name: a sequence's own, and their number in its place."""
        for name in given:
            self._input(name)
        if narrow := [one for one in self._narrow_inputs if one.name in given]:
            given = {**given, **{one.name: _of_type(given[one.name], one.dtype, wide_of(one.dtype)) for one in narrow}}
        if self._takes_tensors:
            return given
        found: dict[str, Any] = {}
        for name, value in given.items():
            if not (kind := self._input(name).kind).is_sequence or (value is None and kind.is_optional):
                found |= {} if value is None and kind.is_optional else {name: value}
            elif isinstance(value, (list, tuple)):
                found[name] = len(value)
                found |= {part(name, i): array for i, array in enumerate(value)}
            else:
                raise InvalidArgument(
                    message(f"Model {name}", type(value).__name__, f"a list of arrays of {self._input(name).dtype}")
                )
        return found

    def _for_tensors(self, given: Mapping[str, Any]) -> Ready:
        shapes: dict[str, tuple[int, ...]] = {}
        views: dict[str, Any] = {}
        for i, one in enumerate(self.feeds):
            if one.name not in given:
                if one.kind.is_optional or i >= len(self.inputs):
                    continue
                raise InvalidArgument(message("Model call", f"no {one.name}", form(one)))
            names: Iterable[str] = (one.name,)
            if one.kind.is_sequence:
                shapes[one.name] = (given[one.name],)
                names = parts(one.name, shapes)
            for name in names:
                if one.dtype == np.object_:
                    texts = _texts(given[name], name)
                    shapes[name], views[name] = texts.shape, texts
                    continue
                view = arrays.view(given[name], f"Model {name}")
                wanted = self._wide.get(one.name, one.dtype)
                if view.dtype != wanted and view.dtype.newbyteorder("=") != wanted:
                    raise InvalidArgument(message(f"Model {name}", f"{view.dtype}{list(view.shape)}", form(one)))
                shapes[name], views[name] = tuple(view.shape), view
        return self._ready(shapes, views)

    def _check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Shapes are those that the model declares, and each symbol has one value."""
        symbols: dict[str, int] = {}
        for one in self.feeds:
            if one.shape is None or one.name not in shapes:
                continue
            shape = shapes[one.name]
            fits = len(shape) == len(one.shape)
            for n, m in zip(one.shape, shape, strict=False):
                fits = fits and (n is None or (symbols.setdefault(n, m) if type(n) is str else n) == m)
            if not fits:
                same = f" with {', '.join(f'{name}={n}' for name, n in symbols.items())}" if symbols else ""
                fixed = not same and len(shape) == len(one.shape)
                advice = "The model was exported for these sizes: export it with an open size." * fixed
                raise InvalidArgument(message(f"Model {one.name}", f"{one.dtype}{list(shape)}", form(one) + same, advice))


def results_of(run: Run, ready: Ready, given: Mapping[str, Any], outputs: int, state: NumpyArray | None) -> list[Any]:
    """The outputs of what was compiled, and of the stages that follow it.

    Args:
        run: runs a graph.
        ready: what was compiled.
        given: the tensors that its graph reads, by name.
        outputs: the number of outputs.
        state: of the random numbers of this run, if there are any.
    """
    if ready.alone and ready.graph is not None:
        return run(ready.graph, {name: given[name] for name in ready.inputs})
    results: dict[int, Any] = {i: array.copy() for i, array in ready.known.items()}
    count = ready.count(outputs)
    fed = {**given, STATE: state} if ready.draws else given
    computed = [] if ready.graph is None else run(ready.graph, {name: fed[name] for name in ready.inputs})
    later = () if ready.tail is None else ready.tail.makes
    places = [i for i in range(count) if i not in results and i not in later]
    results |= dict(zip(places, computed, strict=ready.tail is None))
    if ready.tail is not None:
        assert state is not None
        results |= ready.tail.run(run, given, computed[len(places) :], state)
    return ready.assembled([results[i] for i in range(count)])


def _texts(value: Any, name: str) -> NumpyArray:
    """An input of texts."""
    texts = np.asarray(value, object)
    if not all(isinstance(text, (str, bytes)) for text in texts.reshape(-1).tolist()):
        raise InvalidArgument(message(f"Model {name}", safe_repr(value), "an array of texts"))
    return texts


def _of_type(array: Any, given: Any, wanted: Any) -> Any:
    """A NumPy array of one type in another one; other libraries' arrays stay as they are."""
    if not (isinstance(array, np.ndarray) and array.dtype == given):
        return array
    with np.errstate(invalid="ignore"):  # NaN
        return array.astype(wanted)


def form(one: Argument) -> str:
    """The type and shape for messages."""
    sizes = "" if one.shape is None else f"[{', '.join('?' if n is None else str(n) for n in one.shape)}]"
    found = f"{one.dtype or 'a tensor'}{sizes}"
    found = f"a list of {found}" if one.kind.is_sequence else found
    return f"{found} or None" if one.kind.is_optional else found


def _travels(array: Any) -> bool:
    """Whether it is NumPy's, and of a type that other libraries have, too."""
    return type(array) is np.ndarray and array.dtype != np.object_ and not is_narrow(array.dtype)


def _restored(one: Any, restore: Callable[[Any], Any]) -> Any:
    """An output with arrays of another library."""
    return None if one is None else [restore(each) for each in one] if isinstance(one, list) else restore(one)


def listed(several: Sequence[Argument]) -> str:
    """Arguments for messages."""
    return ", ".join(f"{one.name}: {form(one)}" for one in several)

"""``PackedModel``: models of a pack for the sizes that it was built for, or a saved graph, called as models are.

No package onnx is needed, and for a pack no compiler.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvmdml import targets
from tvmdml.errors import InvalidArgument, PackError, Unsupported, counted, message
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.explaining import Explanation, explanation
from tvmdml.graph.stored import saving
from tvmdml.graph.stored.loading import in_pack, is_open, of_kind
from tvmdml.graph.stored.saved_plan import SavedPlan
from tvmdml.graph.stored.saving import reading
from tvmdml.graph.stored.written import place, type_of
from tvmdml.library import shelf
from tvmdml.library.files import is_graph
from tvmdml.library.records import GraphRecord
from tvmdml.onnx.arguments import ModelMetadata
from tvmdml.onnx.kinds import Kind
from tvmdml.onnx.random_state import STATE, RandomStates
from tvmdml.onnx.running import Argument, Lengths, Ready, Runnable
from tvmdml.system.console import printable

_TYPES = {"float32": "float", "float64": "double"}
"""ONNX's names of types, where they are not NumPy's."""
_Form = tuple["np.dtype[Any]", "tuple[int, ...] | None"]


def kinds_of(path: str | os.PathLike[str]) -> frozenset[str]:
    """The kinds of target that a pack has graphs for.

    Raises:
        PackError: it is damaged, or not trusted.
    """
    with shelf.load_pack(path) as loaded:
        return frozenset(one.kind for one in loaded.pack.graphs())


def described(
    inputs: Sequence[Argument], outputs: Sequence[Argument], sizes: Mapping[str, int], lengths: Lengths
) -> dict[str, Any]:
    """What a pack keeps of a model beside its graph; ``sizes`` were given for those that it leaves open.

    ``lengths`` are those of ``Ready``. Types of outputs are only there if some are no tensors.
    """
    kinds = {"lengths": list(lengths), "types": [[one.type, one.dtype and one.dtype.name] for one in outputs]}
    return {
        **(kinds if lengths else {}),
        "inputs": [[one.name, one.dtype.str, list(one.shape or ())] for one in inputs],
        "outputs": [one.name for one in outputs],
        "sizes": dict(sizes),
    }


class PackedModel(Runnable):
    """The models, or graphs, of a file with the same inputs and outputs: one for each combination of sizes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        sizes: Mapping[str, int],
        target: targets.Target,
        progress: Callable[[int, int], object] | None = None,
        seed: int | None = None,
    ) -> None:
        """Not public: ``load`` makes models."""
        self.numbers = RandomStates(seed)
        self.name, self.target = Path(path).name, target
        self._by_shapes: dict[tuple[tuple[int, ...], ...], Ready] = {}
        models: list[tuple[list[Argument], list[Argument]]] = []
        there: list[dict[str, int]] = []  # the sizes of all models
        chosen: list[dict[str, int]] = []  # of those that have the wanted ones
        with _opened(path, target, progress) as graphs:
            for graph in graphs:
                with reading(f"{path}: {graph.plan.name}"):
                    inputs, outputs = _arguments(graph.model, graph.plan.forms())
                    lengths = tuple(graph.model.get("lengths", ()))
                    own_sizes = sizes_of(graph.model)
                there.append(own_sizes)
                if not sizes.items() <= own_sizes.items():
                    continue
                chosen.append(own_sizes)
                if models and _names(models[0]) != _names((inputs, outputs)):
                    given = f"models with other inputs than {graph.plan.name}"
                    raise PackError(message(printable(path), given, "one model", "Build a pack for each, or use load_graph."))
                models.append((inputs, outputs))
                own = {one.name for one in graph.plan.inputs}
                read = tuple(name for name in (*(one.name for one in inputs), STATE) if name in own)
                ready = Ready(graph.compiled(), read, {}, lengths=lengths)
                self._by_shapes[tuple(tuple(map(int, one.shape)) for one in inputs)] = ready  # type: ignore[arg-type]
        if not models:
            allowed = "; or ".join(filter(None, map(_shown_sizes, there))) or "none: they are not named in this file"
            raise InvalidArgument(message(f"load {self.name}", _shown_sizes(sizes), allowed, "Build it for these, too."))
        self.inputs, self.outputs = (_joined(several, chosen) for several in zip(*models, strict=True))
        self.symbols: tuple[str, ...] = ()
        """No size is open; those of several models are listed where other ones are given."""
        self.choices = [one for one in chosen if one] if len(chosen) > 1 else []

    def metadata(self) -> ModelMetadata:
        """What the file says of itself: a pack has its name only."""
        return ModelMetadata("", Path(self.name).stem, "", "", "", 0, {})

    def explain(self) -> Explanation:
        """The launches for each combination of sizes."""
        lines = []
        for shapes, ready in self._by_shapes.items():
            about = ", ".join(f"{one.name} {list(shape)}" for one, shape in zip(self.inputs, shapes, strict=True))
            lines.append((f"built for {about}", ""))
            lines += [] if ready.graph is None else ready.graph.explain().lines
        return explanation(lines, counted(len(self._by_shapes), "graph"))

    def _ready(self, shapes: Mapping[str, tuple[int, ...]], views: Mapping[str, Any]) -> Ready:
        found = self._by_shapes.get(tuple(shapes[one.name] for one in self.inputs))
        if found is None:
            names = [one.name for one in self.inputs]
            given = ", ".join(f"{name}{list(shapes[name])}" for name in names)
            have = "; or ".join(
                ", ".join(f"{name}{list(shape)}" for name, shape in zip(names, several, strict=True)) for several in self._by_shapes
            )
            raise InvalidArgument(
                message(f"{self.name} call", given, have, "Build it for these sizes, too, or for an open one: --size NAME=1..64.")
            )
        return found


def open_models(loaded: shelf.LoadedPack, target: targets.Target) -> list[GraphRecord]:
    """The models of a pack whose sizes are open.

    Raises:
        PackError, Unsupported: there are others, too, or none for this kind of target.
    """
    records = of_kind(loaded.pack, target)
    found = [record for record in records if is_open(loaded.pack, record)]
    if found and len(found) < len(records):
        given = "models with open sizes beside those of certain sizes"
        raise loaded.pack.error(given, "one or the other", "Build a pack for each.")
    return found


class _Graph(NamedTuple):
    """A graph of a file."""

    plan: SavedPlan
    model: Mapping[str, Any]
    """What is said of its model (``described``)."""
    compiled: Callable[[], CompiledGraph]


@contextlib.contextmanager
def _opened(
    path: str | os.PathLike[str], target: targets.Target, progress: Callable[[int, int], object] | None
) -> Iterator[Iterator[_Graph]]:
    """The graphs of a file for a kind of target: of a pack, those of models, if it has any."""
    if is_graph(path):
        saved = saving.read(path)
        plan = saved.plan(target)
        with reading(path):
            yield iter([_Graph(plan, _of_graph(plan), lambda: plan.compiled(progress))])
        return
    with shelf.load_pack(path) as loaded:
        several = [in_pack(loaded.pack, record, target) for record in of_kind(loaded.pack, target)]
        models = [one for one in several if "model" in one.described] or several
        yield (
            _Graph(one.plan, one.described.get("model") or _of_graph(one.plan), functools.partial(one.compiled, loaded, progress))
            for one in models
        )


def _of_graph(plan: SavedPlan) -> dict[str, Any]:
    """What is said of a graph that is no model's: its inputs have the names that messages give them, and outputs their numbers.

    Raises:
        Unsupported: some inputs are owned.
    """
    if owned := [one.shown for one in plan.inputs if one.owned]:
        given, allowed = f"a graph with owned inputs ({', '.join(owned)})", "one whose weights are constants"
        raise Unsupported(message(plan.name, given, allowed, "Use load_graph, and initialize it."))
    plan.inputs = [one._replace(name=one.shown) for one in plan.inputs]
    inputs = [[one.name, one.dtype.str, [plan.values[n] for n in one.shape]] for one in plan.inputs]
    return {"inputs": inputs, "outputs": [f"{i}" for i in range(len(plan.results))]}


def _arguments(given: Mapping[str, Any], forms: Sequence[_Form]) -> tuple[list[Argument], list[Argument]]:
    inputs = []
    for name, dtype, sizes in given["inputs"]:
        inputs.append(argument_of(name, type_of(dtype), tuple(place(n, 1 << 32) for n in sizes)))
    if len({one.name for one in inputs}) != len(inputs):
        raise ValueError("two inputs with the same name")
    return inputs, lengths_of(given, forms)[1]


def lengths_of(given: Mapping[str, Any], forms: Sequence[_Form]) -> tuple[Lengths, list[Argument]]:
    """How many tensors each output has, and the outputs; of tensors with these types and shapes.

    Raises:
        ValueError: they do not fit.
    """
    names = list(given["outputs"])
    lengths = given.get("lengths", [None] * len(names))
    if not all(n is None or type(n) is int for n in lengths):
        raise ValueError(f"the lengths {lengths!r}")
    if sum(1 if n is None else max(n, 0) for n in lengths) != len(forms):
        raise ValueError(f"the lengths {lengths!r}, for {len(forms)} tensors")
    rest, outputs = iter(forms), []
    for name, n, (text, dtype) in zip(names, lengths, given.get("types", [("", None)] * len(names)), strict=True):
        if n is None:
            outputs.append(argument_of(name, *next(rest)))
            continue
        outputs.append(Argument(str(name), str(text), None, None if dtype is None else np.dtype(dtype), Kind.of(str(text))))
        collections.deque(itertools.islice(rest, max(n, 0)), 0)
    return tuple(given.get("lengths", ())), outputs


def sizes_of(given: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that a model was built for; packs of earlier versions do not name them."""
    found = dict(given.get("sizes", {}))
    if not all(type(n) is int for n in found.values()):
        raise ValueError(f"the sizes {found!r}")
    return found


def _shown_sizes(sizes: Mapping[str, object]) -> str:
    """``batch=1, length=128``."""
    return ", ".join(f"{name}={n}" for name, n in sizes.items())


def argument_of(name: Any, dtype: np.dtype[Any], shape: tuple[int | str, ...] | None) -> Argument:
    """An input or an output that is a tensor.

    Raises:
        ValueError: its name is none.
    """
    if type(name) is not str:
        raise ValueError(f"the name {name!r}")
    return Argument(name, f"tensor({_TYPES.get(dtype.name, dtype.name)})", shape, dtype)


def _names(arguments: tuple[list[Argument], list[Argument]]) -> list[list[tuple[str, str]]]:
    return [[(one.name, one.type) for one in several] for several in arguments]


def _joined(several: Sequence[list[Argument]], named: Sequence[Mapping[str, int]]) -> list[Argument]:
    """Sizes in which the models differ are open."""
    found = []
    for alike in zip(*several, strict=True):
        shapes: list[Any] = [one.shape or () for one in alike]
        same = len(set(map(len, shapes))) == 1
        shape = tuple(_open(sizes, named) for sizes in zip(*shapes, strict=True)) if same else None
        found.append(alike[0]._replace(shape=None if alike[0].shape is None else shape))
    return found


def _open(sizes: Sequence[int], named: Sequence[Mapping[str, int]]) -> int | str:
    """A size of several models: the number, the name of the open size that has these values, or all values: ``1 or 4``."""
    if len(set(sizes)) == 1:
        return sizes[0]
    names = [name for name in named[0] if all(one.get(name) == n for one, n in zip(named, sizes, strict=True))]
    return names[0] if len(names) == 1 else " or ".join(map(str, sorted(set(sizes))))

"""``OpenPackedModel``: a model of a pack whose sizes are open, within the ranges that it was built for."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmdml import targets
from tvmdml.errors import InvalidArgument, counted, message
from tvmdml.graph.explaining import Explanation, explanation
from tvmdml.graph.laid import Weights
from tvmdml.graph.stored.loading import OpenInPack, PackPlan, open_in_pack
from tvmdml.graph.stored.open_saved import shown
from tvmdml.graph.stored.saving import reading
from tvmdml.graph.stored.written import place, text, type_of
from tvmdml.library.records import GraphRecord
from tvmdml.library.shelf import LoadedPack
from tvmdml.onnx.arguments import ModelMetadata
from tvmdml.onnx.packed import argument_of, lengths_of, sizes_of
from tvmdml.onnx.random_state import STATE, RandomStates
from tvmdml.onnx.running import Ready, Runnable

_MOST_GRAPHS = 64
"""The sizes whose graphs are kept."""
Shapes = Mapping[str, tuple[int, ...]]


class OpenPackedModel(Runnable):
    """A model of a pack, for all sizes of the ranges that it was built for. A new size compiles nothing."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        loaded: LoadedPack,
        records: Sequence[GraphRecord],
        sizes: Mapping[str, int],
        target: targets.Target,
        seed: int | None = None,
    ) -> None:
        """Not public: ``load`` makes models."""
        self.numbers = RandomStates(seed)
        self.name, self.target, self._loaded = Path(path).name, target, loaded
        self._known: OrderedDict[tuple[tuple[int, ...], ...], Ready] = OrderedDict()
        self._lock = threading.RLock()
        self._graphs: list[OpenRecording] = []
        made: dict[object, Weights] = {}
        for record in records:
            graph = open_in_pack(loaded.pack, record, target, made)
            with reading(f"{path}: {record.name}"):
                self._graphs.append(OpenRecording(graph))
        first = self._graphs[0]
        if any(graph.inputs.keys() != first.inputs.keys() or graph.types != first.types for graph in self._graphs):
            raise loaded.pack.error("models with different inputs", "one model", "Build a pack for each.")
        self._ranges = ranges_of(self._graphs)
        for name, size in sizes.items():
            if name not in self._ranges or size not in self._ranges[name]:
                raise InvalidArgument(message(f"load {self.name}", f"{name}={size}", self._shown()))
        shapes = {name: [graph.inputs[name] for graph in self._graphs] for name in first.inputs}
        self.inputs = [
            argument_of(name, first.types[name], tuple(map(_joined, zip(*several, strict=True)))).with_sizes(sizes)
            for name, several in shapes.items()
        ]
        self.outputs = first.outputs
        self.symbols = tuple(name for name in self._ranges if name not in sizes)
        """The names of the sizes that are open."""

    def metadata(self) -> ModelMetadata:
        """What the file says of itself: a pack has its name only."""
        return ModelMetadata("", Path(self.name).stem, "", "", "", 0, {})

    def explain(self) -> Explanation:
        """The ranges that each recording was built for, and how many sizes have been called."""
        lines = []
        for graph in self._graphs:
            limits = ", ".join(f"{limit.name}={shown(limit.values)}" for limit in graph.graph.plan.limits)
            lines.append((f"built for {limits or 'certain sizes'}", ""))
        return explanation(lines, counted(len(self._graphs), "recording"))

    def _ready(self, shapes: Shapes, views: Mapping[str, Any]) -> Ready:
        key = tuple(shapes[argument.name] for argument in self.inputs)
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
            several = [(graph, graph.values(shapes)) for graph in self._graphs]
            for graph, values in several:
                if values is not None and graph.graph.plan.allows(values):
                    ready = graph.ready(values, self._loaded)
                    self._known[key] = ready
                    if len(self._known) > _MOST_GRAPHS:
                        self._known.popitem(last=False)
                    return ready
        given = ", ".join(f"{argument.name}{list(shapes[argument.name])}" for argument in self.inputs)
        wanted = ", ".join(f"{argument.name}[{', '.join(map(str, argument.shape or ()))}]" for argument in self.inputs)
        allowed = f"{wanted} with {self._shown()}"
        advice = "Build it for these sizes, too." if any(values is not None for _, values in several) else ""
        if any(values is not None and graph.graph.plan.are_inside(values) for graph, values in several):
            allowed += ", as far as it was recorded: of large ranges not all sizes are tried"
        raise InvalidArgument(message(f"{self.name} call", given, allowed, advice))

    def _shown(self) -> str:
        return ", ".join(f"{name}={shown(values)}" for name, values in self._ranges.items())


class OpenRecording:
    """One recording."""

    def __init__(self, graph: OpenInPack) -> None:
        """Read what is said of its model.

        Raises:
            Exception: it is damaged.
        """
        model = graph.described["model"]
        self.graph = graph
        self._plan: PackPlan | None = None
        self.names = [limit.name for limit in graph.plan.limits]
        self.inputs = {text(name): tuple(map(self._size, shape)) for name, _, shape in model["inputs"]}
        self.types = {name: type_of(dtype) for name, dtype, _ in model["inputs"]}
        self.sizes = sizes_of(model)
        used = {n for shape in self.inputs.values() for n in shape if isinstance(n, str)}
        if used != set(self.names) or len(self.names) != len(used):
            raise ValueError(f"the sizes {self.names!r}")
        own = [(type_of(dtype), None) for dtype, *_ in graph.described["plan"]["results"]]
        self.lengths, self.outputs = lengths_of(model, own)
        read = {text(name) for name, *_ in graph.described["plan"]["inputs"]}
        self.read = tuple(name for name in (*self.inputs, STATE) if name in read)

    def _size(self, size: Any) -> int | str:
        return size if type(size) is str and size in self.names else place(size, 1 << 32)

    def values(self, shapes: Shapes) -> tuple[int, ...] | None:
        """The values of the open sizes; ``None`` if shapes do not fit."""
        values: dict[str, int] = {}
        for name, own in self.inputs.items():
            shape = shapes[name]
            if len(shape) != len(own):
                return None
            for n, size in zip(own, shape, strict=True):
                if (values.setdefault(n, size) if isinstance(n, str) else n) != size:
                    return None
        return tuple(values[name] for name in self.names)

    def ready(self, values: tuple[int, ...], loaded: LoadedPack) -> Ready:
        """The model for sizes."""
        if self._plan is None:
            self._plan = self.graph.served(loaded)
        return Ready(self._plan.for_sizes(values), self.read, {}, lengths=self.lengths)


def ranges_of(graphs: Sequence[OpenRecording]) -> dict[str, range]:
    """The values that each open size may have: some recordings are for one value of it."""
    ranges: dict[str, range] = {}
    for graph in graphs:
        ranges.update({limits.name: limits.values for limits in graph.graph.plan.limits})
    for graph in graphs:
        for name, size in graph.sizes.items():
            if name in ranges:
                ranges[name] = range(min(ranges[name][0], size), ranges[name][-1] + 1, ranges[name].step)
    return ranges


def _joined(sizes: Sequence[int | str]) -> int | str:
    """A size of several recordings: its name, if it is open in any."""
    return next((n for n in sizes if isinstance(n, str)), sizes[0])

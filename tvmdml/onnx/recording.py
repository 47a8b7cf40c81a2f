"""``Recording``: a model that was converted for all sizes for which the guards hold."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml.graph.launching import AnswerMissing
from tvmdml.graph.stored.cache import DAMAGED
from tvmdml.graph.stored.cache import CachedPlan as Part
from tvmdml.onnx.kept import CachedModel
from tvmdml.onnx.kinds import part, parts
from tvmdml.onnx.random_state import STATE
from tvmdml.onnx.running import Argument, Ready, unnamed
from tvmdml.system import apart, at_hand
from tvmdml.tensors.arrays import NumpyArray

if TYPE_CHECKING:
    from tvmdml.graph.kernels import Progress
    from tvmdml.graph.open_graph import OpenGraph
    from tvmdml.graph.open_plan import OpenPlan
    from tvmdml.graph.program import Finished
    from tvmdml.graph.stored.cached_plan import KeptPlan
    from tvmdml.onnx.following import Following
    from tvmdml.tensors.sizes.evaluating import Evaluator

Shapes = Mapping[str, tuple[int, ...]]
Decided = Mapping[str, NumpyArray]
LEAST = 2
"""The least value of a size that stays open. One of 1 is another recording: kernels, and ways to read memory, are others."""
MOST = 2**31 - 1
"""The largest one: arithmetic with it need not ask whether it has more bits than ONNX's integers."""


class SizeReading(NamedTuple):
    """A dimension of an input, or one of its elements."""

    input: str
    at: int
    is_element: bool = False


class Pattern(NamedTuple):
    """Which sizes of inputs stay open, and which of the elements that decide."""

    sizes: tuple[tuple[Any, ...], ...]
    """For each input its name and shape, with names in the places of open sizes; of a sequence also those of its tensors."""
    elements: tuple[tuple[str, str, tuple[int, ...], Any], ...]
    """For each input whose elements decide its name, type, shape and elements: with names in the places of open ones, or bytes."""
    places: Mapping[str, SizeReading]
    """Where each open size is read, by its name."""

    @property
    def key(self) -> Hashable:
        """Equal for what has the same open sizes, and the same other ones."""
        return self.sizes, self.elements

    def values(self, shapes: Shapes, decided: Decided) -> tuple[int, ...]:
        """The open sizes of what has this pattern."""
        return tuple(
            int(decided[place.input].flat[place.at]) if place.is_element else shapes[place.input][place.at]
            for place in self.places.values()
        )

    def inputs(self) -> Iterator[str]:
        """The names of the inputs, and of the tensors of sequences."""
        for name, *known in self.sizes:
            yield name
            if len(known) > 1:
                yield from parts(name, {name: known[0]})

    def shapes(self, values: Sequence[int]) -> Shapes:
        """Shapes of tensors with these open sizes."""
        sizes = dict(zip(self.places, values, strict=True))
        shapes: dict[str, tuple[int, ...]] = {}
        for name, *known in self.sizes:
            shapes[name] = tuple(sizes[n] if isinstance(n, str) else n for n in known[0])
            shapes |= dict(zip(parts(name, {name: known[0]}), known[1:], strict=True)) if len(known) > 1 else {}
        return shapes

    def decided(self, values: Sequence[int]) -> Decided:
        """The elements of inputs that decide, with these open ones."""
        opened = self.opened_elements(dict(zip(self.places, values, strict=True)))
        return {
            name: np.array(opened[name], dtype).reshape(shape) if name in opened else np.frombuffer(known, dtype).reshape(shape)
            for name, dtype, shape, known in self.elements
        }

    def opened(self, shapes: Shapes, sizes: Mapping[str, int]) -> Shapes:
        """Shapes with these sizes in the places of open ones, by their names."""
        own = {name: known for name, *known in self.sizes}
        return {name: self._opened(own.get(name, ()), shape, sizes) for name, shape in shapes.items()}

    def opened_elements(self, sizes: Mapping[str, int]) -> Mapping[str, list[int]]:
        """The elements of inputs some of which are open, with these sizes in the places of those."""
        return {
            name: [sizes[n] if isinstance(n, str) else n for n in known]
            for name, _, _, known in self.elements
            if not isinstance(known, bytes)
        }

    def shown(self) -> str:
        """The inputs' shapes, with the names of sizes: ``x [1, 3, h, w]``."""
        return ", ".join(f"{name} [{', '.join(map(str, known[0]))}]" for name, *known in self.sizes)

    @staticmethod
    def _opened(known: Sequence[Sequence[int | str]], shape: tuple[int, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
        if not known or not any(isinstance(name, str) for name in known[0]):
            return shape
        return tuple(sizes[name] if isinstance(name, str) else name for name in known[0])


_MOST_OPEN = 16
"""Of inputs with more elements that decide none stays open."""


def pattern_of(shapes: Shapes, feeds: Sequence[Argument], decided: Decided | None = None) -> Pattern:
    """Which sizes stay open.

    Args:
        shapes: of the inputs, and of the tensors of sequences.
        feeds: what a call may give.
        decided: the elements of the inputs that decide how the model is computed.
    """
    decided = decided or {}
    places: dict[str, SizeReading] = {}
    key: list[tuple[Any, ...]] = []
    for about in feeds:
        if about.name not in shapes:
            continue
        shape = shapes[about.name]
        if about.kind.is_sequence:
            key.append((about.name, shape, *(shapes[name] for name in parts(about.name, shapes))))
            continue
        if about.name in decided or 0 in shape:
            key.append((about.name, shape))
            continue
        declared = about.shape or (None,) * len(shape)
        sizes: list[int | str] = []
        for axis, (size, name) in enumerate(zip(shape, declared, strict=True)):
            if isinstance(name, int) or not LEAST <= size <= MOST:
                sizes.append(size)
            else:
                symbol = name or unnamed(about.name, axis)
                places.setdefault(symbol, SizeReading(about.name, axis))
                sizes.append(symbol)
        key.append((about.name, tuple(sizes)))
    elements = []
    for name, array in decided.items():
        known: Any = array.tobytes()
        if array.size <= _MOST_OPEN and array.dtype in (np.int64, np.int32):
            flat: list[int] = array.reshape(-1).tolist()
            opened = {part(name, i): SizeReading(name, i, is_element=True) for i, n in enumerate(flat) if LEAST <= n <= MOST}
            if opened:
                known = tuple(part(name, i) if part(name, i) in opened else n for i, n in enumerate(flat))
                places |= opened
        elements.append((name, array.dtype.str, array.shape, known))
    return Pattern(tuple(key), tuple(elements), places)


_MOST_RECORDINGS = 256
"""So many recordings of a pattern stay: where elements become constants, each of their values makes one."""


class Recording:
    """A model that was converted once, for all sizes that pass the guards of its graph."""

    def __init__(self, pattern: Pattern, holds: Evaluator, graph: OpenGraph | None, ready: Ready) -> None:
        """
        Args:
            pattern: of what it is for.
            holds: whether it holds for sizes: ``None`` if not.
            graph: what computes outputs; ``None`` if all are known.
            ready: what is the same for all sizes: everything but the graph.
        """
        self.pattern, self.graph, self.ready, self._holds = pattern, graph, ready, holds
        self._names: dict[int, str | None] = {}
        """What the cache calls each plan, by its identity; ``None`` if it does not keep it."""

    def at(self, values: tuple[int, ...], progress: Progress | None = None) -> Ready | None:
        """The model for open sizes of its pattern; ``None`` if a guard fails.

        Raises:
            Unsupported, CompileError: a kernel cannot be made.
        """
        if self._holds(*values) is None:
            return None
        if self.graph is None:
            return self.ready
        return self.ready._replace(graph=self.graph.for_values(values, progress))

    def plans(self) -> Sequence[OpenPlan]:
        """The model after passes, for sizes of which they asked the same."""
        return () if self.graph is None else self.graph.plans

    def keep(self, kept: CachedModel, key: Hashable) -> None:
        """Let the cache have what is new."""
        at_hand("tvmdml.graph.stored.cached_plan")
        from tvmdml.graph.stored import cached_plan

        for plan in self.plans():
            if not cached_plan.has_new(plan):
                continue
            if id(plan) not in self._names:
                self._names[id(plan)] = kept.keep_recording(key, plan, self.ready)
            elif (name := self._names[id(plan)]) is not None:
                kept.keep_answers(name, plan)


class KeptRecording:
    """A recording of the cache."""

    def __init__(self, plan: KeptPlan, ready: Ready, parts: Iterator[Part]) -> None:
        """``parts`` are read as far as sizes need them: each has answers and weights."""
        self._plan, self.ready, self._parts = plan, ready, parts
        self._has_run = False

    def at(self, values: Sequence[int], progress: Progress | None = None) -> Ready | None:
        """The model for open sizes of its pattern; ``None`` if a guard fails, or the cache lacks something for them."""
        try:
            while True:
                with contextlib.suppress(AnswerMissing):
                    # The first graph imports, and loads kernels. To start a thread takes longer than another graph.
                    made = functools.partial(self._plan.at, values, progress)
                    graph = made() if self._has_run else apart(made)
                    self._has_run |= graph is not None
                    return None if graph is None else self.ready._replace(graph=graph)
                if (part := next(self._parts, None)) is None:
                    return None
                self._plan.add_part(part.described, part.arrays)
        except DAMAGED:
            return None

    def plans(self) -> Sequence[OpenPlan]:
        """The model after passes."""
        return [self._plan]

    def keep(self, kept: CachedModel, key: Hashable) -> None:
        """Nothing is new in it."""


class StageProtocol(NamedTuple):
    """What recordings know of their stage."""

    name: str
    outputs: int | None
    """How many it computes; ``None`` for those of the model."""
    following: Following
    record: Callable[[Pattern, tuple[int, ...]], Recording]
    """Converts the nodes."""
    finish: Callable[[Pattern, Sequence[int]], Finished]
    """Converts the nodes for sizes; the program after all passes."""


class Recordings:
    """The recordings of a pattern: those of this process, and those of the cache, which are read as far as they are needed."""

    def __init__(self, pattern: Pattern, stage: StageProtocol, kept: CachedModel | None) -> None:
        """
        Args:
            pattern: of what they are for.
            stage: theirs.
            kept: the cache's entries.
        """
        self._pattern, self._stage, self._key, self._kept = pattern, stage, (stage.name, pattern.key), kept
        self.every: list[Recording | KeptRecording] = []
        """The last used is the first."""
        self._names = None if kept is None else iter(kept.recordings(self._key))
        self._arenas: list[Any] = []

    def at(self, values: tuple[int, ...], progress: Progress | None) -> Ready | None:
        """The model for open sizes, if a recording holds for them.

        Raises:
            Unsupported, CompileError: a kernel cannot be made.
        """
        for i, recording in enumerate(self.every):
            if (ready := recording.at(values, progress)) is not None:
                if i:
                    self.every.insert(0, self.every.pop(i))
                self._saved(recording)
                return ready
        while (other := self._read()) is not None:
            self.every.append(other)
            if (ready := other.at(values, progress)) is not None:
                for stage in () if ready.tail is None else ready.tail.stages():
                    stage.follow(lambda: self._stage.record(self._pattern, values))
                return ready
        return None

    def add(self, recording: Recording, values: tuple[int, ...], progress: Progress | None) -> Ready:
        """Add one that was made for open sizes; returns the model for them.

        Raises:
            Unsupported, CompileError: a kernel cannot be made.
        """
        ready = recording.at(values, progress)
        assert ready is not None, "a guard fails in the case that it was recorded for"
        self.every.insert(0, recording)
        del self.every[_MOST_RECORDINGS:]
        self._saved(recording)
        return ready

    def explained(self) -> list[tuple[str, str]]:
        """The recordings that were used: the shapes of inputs, the guards, and the launches with expressions of sizes."""
        lines = []
        for recording in list(self.every):
            plans = recording.plans()
            lines.append((f"recorded with {self._pattern.shown()}", "" if plans else "all outputs are known"))
            for plan in plans:
                lines += plan.explained(tuple(self._pattern.places))
            if recording.ready.tail is not None:
                lines += [(f"then {what}", by) for what, by in recording.ready.tail.shown()]
        return lines

    def _read(self) -> KeptRecording | None:
        """The next one of the cache."""
        if self._names is None or self._kept is None:
            return None
        for name in self._names:
            recording = self._kept.recording(name, self._arenas, self._finished, self._stage.following, self._stage.outputs)
            if recording is not None and set(recording[1].inputs) <= {*self._pattern.inputs(), STATE}:
                return KeptRecording(*recording, self._kept.parts(name))
        self._names = None
        return None

    def _finished(self, values: Sequence[int]) -> Finished:
        return self._stage.finish(self._pattern, values)

    def _saved(self, recording: Recording | KeptRecording) -> None:
        if self._kept is not None:
            recording.keep(self._kept, self._key)

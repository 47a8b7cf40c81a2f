"""``Recording``: a model that was converted for all sizes for which the guards hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml._whole import apart, at_hand
from tvmdml.graph.kept import DAMAGED
from tvmdml.graph.kept import Kept as Part
from tvmdml.graph.launching import Missing
from tvmdml.onnx.kept import Kept
from tvmdml.onnx.kinds import parts
from tvmdml.onnx.random_state import STATE
from tvmdml.onnx.running import Argument, Ready, unnamed

if TYPE_CHECKING:
    from tvmdml.graph.kept_plan import KeptPlan
    from tvmdml.graph.kernels import Progress
    from tvmdml.graph.open_graph import OpenGraph
    from tvmdml.graph.open_plan import OpenPlan
    from tvmdml.graph.program import Finished
    from tvmdml.sizes.evaluating import Evaluator

Shapes = Mapping[str, tuple[int, ...]]
LEAST = 2
"""The least value of a size that stays open. One of 1 is another recording: kernels, and ways to read memory, are others."""
MOST = 2**31 - 1
"""The largest one: arithmetic with it need not ask whether it has more bits than ONNX's integers."""


class Place(NamedTuple):
    """A dimension of an input."""

    input: str
    axis: int


class Pattern(NamedTuple):
    """Which sizes of inputs stay open."""

    key: Hashable
    """Equal for shapes with the same open sizes, and the same other ones."""
    places: Mapping[str, Place]
    """Where each open size is read, by its name."""

    def values(self, shapes: Shapes) -> tuple[int, ...]:
        """The open sizes of shapes with this pattern."""
        return tuple(shapes[place.input][place.axis] for place in self.places.values())

    def shapes(self, values: Sequence[int]) -> Shapes:
        """Shapes of tensors with these open sizes."""
        sizes = dict(zip(self.places, values, strict=True))
        found: dict[str, tuple[int, ...]] = {}
        for name, *known in self.key:  # type: ignore[attr-defined] # tuples of a name and what is known of it
            found[name] = tuple(sizes[n] if isinstance(n, str) else n for n in known[0])
            found |= dict(zip(parts(name, {name: known[0]}), known[1:], strict=True)) if len(known) > 1 else {}
        return found

    def opened(self, shapes: Shapes, sizes: Mapping[str, int]) -> Shapes:
        """Shapes with these sizes in the places of open ones, by their names."""
        own = {name: known for name, *known in self.key}  # type: ignore[attr-defined] # tuples of a name and what is known of it
        return {name: self._opened(own.get(name, ()), shape, sizes) for name, shape in shapes.items()}

    def shown(self) -> str:
        """The inputs' shapes, with the names of sizes: ``x [1, 3, h, w]``."""
        return ", ".join(f"{name} [{', '.join(map(str, known[0]))}]" for name, *known in self.key)  # type: ignore[attr-defined] # as above

    @staticmethod
    def _opened(known: Sequence[Sequence[int | str]], shape: tuple[int, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
        if not known or not any(isinstance(name, str) for name in known[0]):
            return shape
        return tuple(sizes[name] if isinstance(name, str) else name for name in known[0])


def pattern_of(shapes: Shapes, feeds: Sequence[Argument], decided: Sequence[str] = ()) -> Pattern:
    """Which sizes stay open.

    Args:
        shapes: of the inputs, and of the tensors of sequences.
        feeds: what a call may give.
        decided: the inputs whose elements are known.
    """
    places: dict[str, Place] = {}
    key: list[Hashable] = []
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
                places.setdefault(symbol, Place(about.name, axis))
                sizes.append(symbol)
        key.append((about.name, tuple(sizes)))
    return Pattern(tuple(key), places)


class Recording:
    """A model that was converted once, for all sizes that pass the guards of its graph."""

    def __init__(self, pattern: Pattern, holds: Evaluator, graph: OpenGraph | None, ready: Ready) -> None:
        """
        Args:
            pattern: of the shapes.
            holds: whether it holds for sizes: ``None`` if not.
            graph: what computes outputs; ``None`` if all are known.
            ready: what is the same for all sizes: everything but the graph.
        """
        self.pattern, self.graph, self.ready, self._holds = pattern, graph, ready, holds
        self._names: dict[int, str | None] = {}
        """What the cache calls each plan, by its identity; ``None`` if it does not keep it."""

    def at(self, shapes: Shapes, progress: Progress | None = None) -> Ready | None:
        """The model for shapes with the pattern; ``None`` if a guard fails.

        Raises:
            Unsupported, CompileError: a kernel cannot be made.
        """
        values = self.pattern.values(shapes)
        if self._holds(*values) is None:
            return None
        if self.graph is None:
            return self.ready
        return self.ready._replace(graph=self.graph.for_values(values, progress))

    def plans(self) -> Sequence[OpenPlan]:
        """The model after passes, for sizes of which they asked the same."""
        return () if self.graph is None else self.graph.plans

    def keep(self, kept: Kept, key: Hashable) -> None:
        """Let the cache have what is new."""
        at_hand("tvmdml.graph.kept_plan")
        from tvmdml.graph import kept_plan

        for plan in self.plans():
            if not kept_plan.has_new(plan):
                continue
            if id(plan) not in self._names:
                self._names[id(plan)] = kept.keep_recording(key, plan, self.ready)
            elif (name := self._names[id(plan)]) is not None:
                kept.keep_answers(name, plan)


class KeptRecording:
    """A recording of the cache."""

    def __init__(self, pattern: Pattern, plan: KeptPlan, ready: Ready, parts: Iterator[Part]) -> None:
        """``parts`` are read as far as sizes need them: each has answers and weights."""
        self._pattern, self._plan, self._ready, self._parts = pattern, plan, ready, parts

    def at(self, shapes: Shapes, progress: Progress | None = None) -> Ready | None:
        """The model for shapes with the pattern; ``None`` if a guard fails, or the cache lacks something for them."""
        if not set(self._ready.inputs) <= {*shapes, STATE}:
            return None
        values = self._pattern.values(shapes)
        try:
            while True:
                with contextlib.suppress(Missing):
                    graph = apart(lambda: self._plan.at(values, progress))
                    return None if graph is None else self._ready._replace(graph=graph)
                if (part := next(self._parts, None)) is None:
                    return None
                self._plan.add_part(part.described, part.arrays)
        except DAMAGED:
            return None

    def plans(self) -> Sequence[OpenPlan]:
        """The model after passes."""
        return [self._plan]

    def keep(self, kept: Kept, key: Hashable) -> None:
        """Nothing is new in it."""


class Recordings:
    """The recordings of a pattern: those of this process, and those of the cache, which are read as far as they are needed."""

    def __init__(self, pattern: Pattern, key: Hashable, kept: Kept | None, finish: Callable[[Shapes], Finished]) -> None:
        """
        Args:
            pattern: of their shapes.
            key: of the pattern, and of elements that decide.
            kept: the cache's entries.
            finish: makes the program for shapes.
        """
        self._pattern, self._key, self._kept, self._finish = pattern, key, kept, finish
        self.every: list[Recording | KeptRecording] = []
        """The last used is the first."""
        self._names = None if kept is None else iter(kept.recordings(key))
        self._arenas: list[Any] = []

    def at(self, shapes: Shapes, progress: Progress | None) -> Ready | None:
        """The model for shapes, if a recording holds for them.

        Raises:
            Unsupported, CompileError: a kernel cannot be made.
        """
        for i, recording in enumerate(self.every):
            if (ready := recording.at(shapes, progress)) is not None:
                if i:
                    self.every.insert(0, self.every.pop(i))
                self._saved(recording)
                return ready
        while (other := self._read()) is not None:
            self.every.append(other)
            if (ready := other.at(shapes, progress)) is not None:
                return ready
        return None

    def add(self, recording: Recording, shapes: Shapes, progress: Progress | None) -> Ready:
        """Add one that was made for shapes; returns the model for them.

        Raises:
            Unsupported, CompileError: a kernel cannot be made.
        """
        ready = recording.at(shapes, progress)
        assert ready is not None, "a guard fails in the case that it was recorded for"
        self.every.insert(0, recording)
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
        return lines

    def _read(self) -> KeptRecording | None:
        """The next one of the cache."""
        if self._names is None or self._kept is None:
            return None
        for name in self._names:
            found = self._kept.recording(name, self._arenas, lambda values: self._finish(self._pattern.shapes(values)))
            if found is not None:
                return KeptRecording(self._pattern, *found, self._kept.parts(name))
        self._names = None
        return None

    def _saved(self, recording: Recording | KeptRecording) -> None:
        if self._kept is not None:
            recording.keep(self._kept, self._key)

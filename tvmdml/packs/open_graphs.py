"""ONNX models in packs for ranges of sizes: which kernels they need, and how their plans are written.

Schedules are asked for all sizes of the ranges, or for the corners and many sizes drawn from large ones. What one answers holds as
long as what it asked of sizes has the same answer: for most sizes nothing is new. Weights are stored as they are, and packed when
they are loaded: other sizes may read other forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.errors import InvalidArgument, Unsupported, message
from tvmdml.graph.open_planning import ProgramPlan
from tvmdml.graph.stored import answers, open_saved
from tvmdml.graph.stored.array_forms import form
from tvmdml.kernels.kernel import Kernel
from tvmdml.library import spec
from tvmdml.library.scheduling import remembering
from tvmdml.onnx import packed
from tvmdml.onnx.origin import Origin
from tvmdml.onnx.reading import ReadModel as Opened
from tvmdml.onnx.recording import LEAST, Pattern, Recording, pattern_of
from tvmdml.onnx.running import About
from tvmdml.onnx.types import Exactness, Undecided
from tvmdml.operators import Operator
from tvmdml.operators._contract import Shared
from tvmdml.targets import Target

DRAWN = 1 << 12
"""How many sizes are drawn from ranges that have more: to ask for one that is like others takes less than a millisecond."""
_MOST_RECORDINGS = 256
"""Of a model. One with more is another for nearly every size."""


class OpenSource(NamedTuple):
    """A model that a pack should have for ranges of sizes."""

    name: str
    model: Opened
    sizes: Mapping[str, int]
    """Those that have one value."""
    ranges: Mapping[str, range]
    exactness: Exactness = Exactness()


class KernelChoice(NamedTuple):
    """A kernel that some size needs."""

    desc: Operator
    shared: Shared
    name: str
    """As the target was given."""
    machine: Target
    threads: int
    variant: Target
    kernel: Kernel


class OpenPlanned(NamedTuple):
    """A model for a kind of targets."""

    source: OpenSource
    machines: tuple[Target, ...]
    """Of one kind."""
    graphs: tuple[tuple[ProgramPlan, dict[str, Any]], ...]
    """The plans, and what is kept beside each."""
    choices: tuple[KernelChoice, ...]


def planned(
    source: OpenSource, machines: Sequence[tuple[str, Target]], asking: Callable[[int, int], object] | None = None
) -> OpenPlanned:
    """A model for targets of one kind. ``asking`` is called with the number of sizes that were tried, and that of all.

    Raises:
        InvalidArgument: a size is open that no range was given for, or elements decide how the model is computed.
        ModelError, Unsupported: the model cannot be converted, or no target supports it.
    """
    origin = Origin(source.model, None, machines[0][1], exactness=source.exactness)
    about = origin.about(source.sizes)
    model = _Recorded(source, origin, about)
    choices: list[KernelChoice] = []
    known: set[tuple[object, ...]] = set()
    ranges = [open_saved.Limits(*limits) for limits in source.ranges.items()]
    several = list(open_saved.drawn(ranges, DRAWN, np.random.default_rng(0)))
    for done, values in enumerate(several):
        if asking is not None:
            asking(done, len(several))
        if len(model.recordings()) >= _MOST_RECORDINGS:
            break
        sizes = dict(zip(source.ranges, values, strict=True))
        recording, own = model.recording(sizes)
        graph = recording.graph
        assert graph is not None
        plan = graph.plan_at(own)
        for i, (name, machine) in enumerate(machines):
            for threads, variant in machine.variants():
                with remembering():
                    for desc, shared, kernel in plan.asked(own, i * answers.TARGETS + threads, variant):
                        new = {(i, *part.identity) for part in kernel.every} - known
                        if not new:
                            continue
                        known |= new
                        choices.append(KernelChoice(spec.plain(desc), shared, name, machine, threads, variant, kernel))
    graphs = []
    for recording in model.recordings():
        beside = {**model.described(recording), "open": [limits.written() for limits in model.limits(recording)]}
        graphs += [(plan, beside) for plan in recording.graph.plans] if recording.graph is not None else []
    return OpenPlanned(source, tuple(machine for _, machine in machines), tuple(graphs), tuple(choices))


class _Recorded:
    """The recordings of a model, which are made as sizes ask for them."""

    def __init__(self, source: OpenSource, origin: Origin, about: About) -> None:
        self._source, self._origin, self._about = source, origin, about
        self._recordings: dict[Any, list[Recording]] = {}
        for argument in about.inputs:
            if argument.kind.is_sequence or argument.shape is None:
                advice = "Make an input of each tensor, and a sequence of them by SequenceConstruct."
                raise Unsupported(message(origin.name, f"an input {argument.name} without sizes", "tensors, for a pack", advice))
        if missing := [n for argument in about.inputs for n in argument.open_sizes() if n not in source.ranges]:
            advice = f"They are given by name: {' '.join(f'--size {name}=1..N' for name in dict.fromkeys(missing))}"
            raise InvalidArgument(message(origin.name, f"open sizes {', '.join(dict.fromkeys(missing))}", "known sizes", advice))

    def recording(self, sizes: Mapping[str, int]) -> tuple[Recording, tuple[int, ...]]:
        """The recording that holds for sizes, and those that are open in it."""
        shapes = {argument.name: _known(argument.with_sizes(sizes).shape) for argument in self._about.inputs}
        pattern = pattern_of(shapes, self._about.inputs)
        several = self._recordings.setdefault(pattern.key, [])
        values = pattern.values(shapes, {})
        for recording in several:
            if recording.graph is not None and recording.graph.holds(values):
                return recording, values
        try:
            recording = self._origin.recording(shapes, pattern, {})
        except Undecided as error:
            given = f"a model that the elements of {', '.join(sorted(error.inputs))} decide about"
            advice = "Cut it before the nodes that need them, or add initializers with these inputs' names."
            raise InvalidArgument(message(self._origin.name, given, "one that shapes and constants decide about", advice)) from None
        if recording.graph is None or recording.ready.known or recording.ready.tail is not None:
            given = "a model with outputs that are constants, or that nodes after the graph compute"
            raise Unsupported(message(self._origin.name, given, "a model that is a graph, for ranges of sizes"))
        several.insert(0, recording)
        return recording, values

    def recordings(self) -> list[Recording]:
        """All."""
        return [recording for several in self._recordings.values() for recording in several]

    def limits(self, recording: Recording) -> list[open_saved.Limits]:
        """The range of each size that is open in a recording."""
        ranges = self._source.ranges
        return [open_saved.Limits(name, ranges[name][ranges[name][0] < LEAST :]) for name in recording.pattern.places]

    def described(self, recording: Recording) -> dict[str, Any]:
        """What a pack keeps of the model beside a plan."""
        shapes = _shapes(recording.pattern)
        inputs = [argument._replace(shape=shapes[argument.name]) for argument in self._about.inputs]
        sizes = {**self._source.sizes, **{name: 1 for name in self._source.ranges if name not in recording.pattern.places}}
        return {"model": packed.described(inputs, self._about.outputs, sizes, recording.ready.lengths)}


def _known(shape: Any) -> tuple[int, ...]:
    assert all(type(n) is int for n in shape), "each open size has a range"
    return tuple(shape)


def _shapes(pattern: Pattern) -> dict[str, tuple[int | str, ...]]:
    """The shapes of the inputs, with the names of open sizes."""
    return {name: tuple(known[0]) for name, *known in pattern.sizes}


def described(graph: OpenPlanned, i: int, place: Any) -> dict[str, Any]:
    """One plan of a model as a pack has it.

    Args:
        graph: the model.
        i: which plan.
        place: adds an array to the pack; returns its number.
    """
    plan, beside = graph.graphs[i]
    own, arrays = open_saved.describe(plan)
    answered = answers.written(plan, graph.machines)
    own["answers"] = [place(answered), answered.nbytes]
    return {**own, "name": name_of(graph, i), "arrays": [form(array, place(array)) for array in arrays], **beside}


def name_of(graph: OpenPlanned, i: int) -> str:
    """The name of one plan of a model in the pack."""
    return graph.source.name if len(graph.graphs) == 1 else f"{graph.source.name}.{i}"

"""``OpenPlan``: the launches of a program whose sizes are open, and for certain sizes what runs.

What follows from sizes is arithmetic: places, integers of launches, the lengths of pieces of memory. It is one function of the
sizes. Which kernel serves a launch follows from what its schedule asked of sizes: each answer holds for all sizes that pass its
guards, and a size that passes none asks the schedule again, for this launch alone.

A plan is made of a program (``open_planning``), or read from the cache (``cached_plan``). Of the latter nothing is trusted.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from tvmdml.errors import CompileError, Unsupported
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.forms import Forms, GraphArguments
from tvmdml.graph.laid import Given, Laid, Reports, Returned, Weights
from tvmdml.graph.launching import (
    SAME_MEMORY,
    AnswerMissing,
    Chosen,
    LaunchGroup,
    Launching,
    LaunchTensor,
    MemorySource,
    PackedKey,
    Weight,
)
from tvmdml.graph.memory import stacked
from tvmdml.targets import ReadySequence, SequenceStep, Target
from tvmdml.tensors import MAX_ELEMENTS, MAX_STRIDE
from tvmdml.tensors.sizes.evaluating import Evaluator, GuardedIntegers

if TYPE_CHECKING:
    from tvmdml.graph.kernels import Progress
    from tvmdml.graph.program import Finished
    from tvmdml.tensors.arrays import NumpyArray

_MOST_LAYOUTS = 8
_MOST_WIRED = 16
_LITTLE = 1 << 24
"""So many bytes may be more than a size needs, if another one has room for all."""
ARENA = 0
"""The slot of the memory of intermediate results."""
_MOST_STRIDE = 8 * MAX_STRIDE
"""In bytes."""


class Wired:
    """What is in each slot, where kernels take certain weights packed."""

    def __init__(self, plan: OpenPlan, packed: Sequence[Sequence[tuple[Any, ...]]]) -> None:
        """``packed`` has what the kernel of each group takes packed."""
        self.weights: dict[PackedKey, tuple[int, Weight]] = {}
        """By their keys: the first launching that reads it, and it."""
        own: list[dict[str, Weight]] = []
        for i, launching in enumerate(plan.launchings):
            by_name = {argument.name: argument for argument in launching.arguments}
            found = {}
            for name, layout, nbytes, names in packed[launching.group]:
                sources = tuple((by_name[one].source, by_name[one].offset) for one in names)
                found[name] = weight = Weight(name, layout, nbytes, sources)
                self.weights.setdefault(weight.key, (i, weight))
            own.append(found)
        read = {
            argument.source
            for launching, mine in zip(plan.launchings, own, strict=True)
            for argument in launching.arguments
            if argument.name not in mine and argument.source.kind in ("constant", "array")
        }
        self.constants = [source for source in plan.sources if source in read]
        slots = {source: 1 + i for i, source in enumerate(self.constants)}
        first = 1 + len(self.constants)
        packed_slots = {key: first + i for i, key in enumerate(self.weights)}
        first += len(self.weights)
        others = [source for source in plan.sources if source.kind == "input"] + [
            MemorySource("output", i) for i in range(plan.outputs)
        ]
        slots |= {source: first + i for i, source in enumerate(others)}
        self.count = first + len(others)
        self.slot = slots
        self.places: list[list[tuple[int, int, int]]] = []
        """Of each launch the slot of each array, the piece of memory, and the place of the offset among the numbers."""
        self.sizes: list[list[int]] = []
        """The places of their bytes; of packed weights the bytes themselves, as -1 - n."""
        for launching, mine in zip(plan.launchings, own, strict=True):
            places, sizes = [], []
            for argument in launching.arguments:
                if argument.name in mine:
                    places.append((packed_slots[mine[argument.name].key], -1, plan.zero))
                    sizes.append(-1 - mine[argument.name].nbytes)
                elif argument.source.kind == "piece":
                    places.append((ARENA, argument.source.number, argument.offset))
                    sizes.append(argument.size)
                else:
                    places.append((slots[argument.source], -1, argument.offset))
                    sizes.append(argument.size)
            self.places.append(places)
            self.sizes.append(sizes)
        self.looked_at = {
            (*place, size)
            for own, sizes in zip(self.places, self.sizes, strict=True)
            for place, size in zip(own, sizes, strict=True)
        }
        """All of both, each once."""
        fixed = [isinstance(terms, int) for terms in plan.function.wanted]
        self.moving = [i for i, own in enumerate(self.places) if not all(fixed[n] for _, _, n in own)]
        """The launches whose offsets depend on sizes."""
        self.buffers: list[Weights] | None = None
        """The packed weights."""
        self.is_written = False
        """Whether the cache has all of this."""
        self.placed: dict[MemorySource, Any] = {}
        """Constants on a device."""
        self.calls: GraphArguments | None = None
        self.bases: dict[int, tuple[ReadySequence, list[Chosen], Sequence[int]]] = {}
        """For each layout a sequence, its launches and the numbers."""


class _Layout(NamedTuple):
    """Places for pieces of memory."""

    sizes: list[int]
    """The bytes for which each piece has room."""
    offsets: list[int]
    size: int
    number: int
    """Which layout it is."""


class OpenPlan:
    """The launches of a program for all sizes that pass the guards."""

    def __init__(
        self,
        name: str,
        target: Target,
        function: GuardedIntegers,
        groups: Sequence[LaunchGroup],
        launchings: Sequence[Launching],
        pieces: Sequence[int],
        order: Sequence[tuple[int, Sequence[int]]],
        constants: list[NumpyArray],
        tensors: tuple[Sequence[LaunchTensor], Sequence[LaunchTensor], Sequence[LaunchTensor]],
        arenas: list[Any],
    ) -> None:
        """
        Args:
            name: the graph's.
            target: where it runs.
            function: the numbers for sizes, and the guards. The first number is 0.
            groups: of the launches.
            launchings: the launches in order.
            pieces: the place of the bytes of each piece of intermediate memory among the numbers.
            order: on which others each piece lies (``memory.supports``).
            constants: the arrays that never change.
            tensors: the inputs, the outputs, and the arrays of sizes, whose elements are the ``strides``.
            arenas: intermediate memory that plans share.
        """
        self.name, self.target, self.function = name, target, function
        self.groups, self.launchings, self.pieces, self.order = groups, launchings, pieces, order
        self.constants, (self.inputs, self.results, self.arrays) = constants, tensors
        self.zero = 0
        self.outputs = 1 + max((one.source.number for one in self.results if one.source is not None), default=-1)
        self.sources = [
            *(MemorySource("constant", i) for i in range(len(constants))),
            *(MemorySource("array", i) for i in range(len(self.arrays))),
            *(one.source for one in self.inputs if one.source is not None),
        ]
        self._evaluate = function.compiled()
        self._wired: dict[object, Wired] = {}
        self._layouts: list[_Layout] = []
        """The last used is the first. The list never changes: threads read it."""
        self._layout_numbers = itertools.count()
        self._arenas = arenas
        self.last: Callable[[], Laid] | None = None
        """Says what is not needed to run, of the graph that was made last."""
        self.written_weights: set[object] = set()
        """The packed weights, by their keys, and the constants that the cache has."""

    @functools.cached_property
    def _without_guards(self) -> Evaluator:
        return self.function._replace(conditions=(), choices=()).compiled()

    @functools.cached_property
    def in_place(self) -> frozenset[tuple[int, int]]:
        """The inputs, and outputs that may be in the memory of each: one launch alone reads the input, and writes the output."""
        places = {one.source: i for i, one in enumerate(self.results) if one.source is not None}
        read = Counter(argument.source for launching in self.launchings for argument in launching.arguments)
        found = set()
        for launching in self.launchings:
            named = {argument.name: argument for argument in launching.arguments}
            for name, other in SAME_MEMORY.items() if "past_sequence_lengths_tensor" in named else ():
                if name in named and other in named:
                    (source, *_, begin, _), (result, *_, first, _) = named[name], named[other]
                    alone = (source.kind, result.kind, read[source], begin, first) == ("input", "output", 1, self.zero, self.zero)
                    found |= {(source.number, places[result])} if alone else set()
        return frozenset(found)

    # -- For sizes

    def holds(self, values: Sequence[int]) -> bool:
        """Whether the guards hold for sizes."""
        return self._evaluate(*values) is not None

    def at(self, values: Sequence[int], progress: Progress | None = None) -> CompiledGraph | None:
        """The compiled graph for sizes; ``None`` if a guard fails.

        Args:
            values: of the symbols, in their order.
            progress: called with (kernels ready, kernels in all) while kernels compile.

        Raises:
            AnswerMissing: the plan was read, and lacks something.
            Unsupported, CompileError: a kernel cannot be made; the message names the call.
        """
        numbers = self._evaluate(*values)
        if numbers is None:
            return None
        chosen = self.chosen(values, progress)
        wired = self._wired_for([one.answer.packed for one in chosen])
        layout = self._layout(values, numbers)
        self.check(wired, layout, numbers)
        sequence = self._sequence(wired, layout, chosen, numbers)
        if wired.buffers is None:
            wired.buffers = self.packed(wired, chosen)
        constants = [self._array(source, numbers) for source in wired.constants]
        lay = self.last = functools.partial(self._laid, tuple(values), wired, layout, chosen, constants)
        forms = self._forms(numbers)
        calls = wired.calls
        if calls is None:
            returned = self._returned(wired, numbers)
            calls = GraphArguments.of(self._given(wired.slot, numbers), returned, self.target)
            if not any(isinstance(one.copies, np.ndarray) for one in returned):
                wired.calls = calls
        placed = [self._placed(source, array, wired) for source, array in zip(wired.constants, constants, strict=True)]
        return CompiledGraph.of_parts(
            self.name, self.target, sequence, calls, forms, placed, wired.buffers, layout.size, self._arenas, lay,
            functools.partial(self._arrays, wired, numbers), lambda: self.in_place,
        )  # fmt: skip

    def chosen(self, values: Sequence[int], progress: Progress | None) -> list[Chosen]:
        """The launch of each group.

        Raises:
            AnswerMissing, Unsupported, CompileError: as ``at``.
        """
        tasks = self.target.tasks()
        found = []
        for group in self.groups:
            known = group.known(values, tasks)
            if known is None:
                raise AnswerMissing
            answer, numbers = known
            found.append(Chosen(answer.launch(numbers, self.target), answer, numbers))
        return found

    def check(self, wired: Wired, layout: _Layout, numbers: Sequence[int]) -> None:
        """Refuse launches that would write, or read, outside of what a run gives them.

        Raises:
            ValueError: there is one.
        """
        most = [0] * wired.count
        most[ARENA] = layout.size
        for source, slot in wired.slot.items():
            if source.kind == "constant":
                most[slot] = self.constants[source.number].nbytes
            elif source.kind == "array":
                one = self.arrays[source.number]
                most[slot] = one.dtype.itemsize * len(one.strides)
        for one in (*self.inputs, *self.results):
            nbytes = span(one, numbers)
            if one.source is not None:
                most[wired.slot[one.source]] = nbytes
        for one in self.results:
            other = self.results[one.copies] if isinstance(one.copies, int) else None
            copied = span(other, numbers) if other is not None else getattr(one.copies, "nbytes", None)
            if one.source is None and copied != span(one, numbers):
                raise ValueError("an output of other bytes than what it copies")
        if any(numbers[one.nbytes] < span(one, numbers) for one in self.inputs):
            raise ValueError("an input with fewer bytes than its elements need")
        for i, (_, weight) in enumerate(wired.weights.values()):
            most[1 + len(wired.constants) + i] = weight.nbytes
        offsets = layout.offsets
        if any(begin < 0 for begin in layout.sizes):
            raise ValueError("a piece of memory with less than no bytes")
        for slot, piece, n, size in wired.looked_at:
            begin, nbytes = numbers[n] if piece < 0 else offsets[piece] + numbers[n], numbers[size] if size >= 0 else -1 - size
            if begin < 0 or nbytes < 0 or begin + nbytes > most[slot]:
                raise ValueError(f"bytes {begin} to {begin + nbytes} of {most[slot]}")

    def packed(self, wired: Wired, chosen: Sequence[Chosen]) -> list[Weights]:
        """The packed weights.

        Raises:
            AnswerMissing: the plan was read, and the cache has not all of them.
        """
        raise AnswerMissing

    def weights(self, wired: Wired, chosen: Sequence[Chosen], owned: Mapping[int, Any]) -> list[Weights]:
        """The packed weights, given the arrays of owned inputs by the identities of their nodes."""
        assert wired.buffers is not None
        return wired.buffers

    def _wired_for(self, packed: Sequence[Sequence[tuple[Any, ...]]]) -> Wired:
        key = tuple(map(tuple, packed))
        if (wired := self._wired.get(key)) is None:
            wired = Wired(self, packed)
            self.check_wiring(wired)
            if len(self._wired) >= _MOST_WIRED:
                self._wired.pop(list(self._wired)[0], None)  # noqa: RUF015 # a copy: other threads may add
            self._wired[key] = wired
        return wired

    def wired(self) -> list[Wired]:
        """All ways in which kernels take weights."""
        return list(self._wired.values())

    def check_wiring(self, wired: Wired) -> None:
        """Refuse what is not there.

        Raises:
            AnswerMissing: the plan was read, and lacks a constant.
        """

    def _layout(self, values: Sequence[int], numbers: Sequence[int]) -> _Layout:
        """Places for the pieces: those of other sizes, if they have room and not too much of it."""
        sizes = [numbers[n] for n in self.pieces]
        total = sum(sizes)
        layouts = self._layouts
        for i, layout in enumerate(layouts):
            if all(map(int.__le__, sizes, layout.sizes)) and (layout.size <= _LITTLE or sum(layout.sizes) <= 2 * total):
                if i:
                    self._layouts = [layout, *layouts[:i], *layouts[i + 1 :]]
                return layout
        ahead = self._without_guards(*(n + -(-n // 8) for n in values))  # a text that grows has the same places for some words
        if ahead is not None:
            sizes = [max(size, ahead[n]) for size, n in zip(sizes, self.pieces, strict=True)]
        offsets, most = stacked(self.order, sizes)
        layout = _Layout(sizes, offsets, most, next(self._layout_numbers))
        for old in layouts[_MOST_LAYOUTS - 1 :]:
            for wired in self.wired():
                wired.bases.pop(old.number, None)
        self._layouts = [layout, *layouts[: _MOST_LAYOUTS - 1]]
        return layout

    def _sequence(self, wired: Wired, layout: _Layout, chosen: list[Chosen], numbers: Sequence[int]) -> ReadySequence:
        base = wired.bases.get(layout.number)
        if base is not None and (varied := getattr(base[0], "varied", None)) is not None:
            _, launches, old = base
            moved = tuple(
                (i, self._step(i, wired, layout, chosen, numbers).short())
                for i in wired.moving
                if any(numbers[n] != old[n] for _, _, n in wired.places[i])
            )
            pairs = tuple((mine.launch, new.launch) for mine, new in zip(launches, chosen, strict=True))
            return varied(pairs, moved)
        steps = [self._step(i, wired, layout, chosen, numbers) for i in range(len(wired.places))]
        sequence = self.target.sequence(steps, wired.count)
        wired.bases[layout.number] = sequence, chosen, numbers
        return sequence

    def _step(self, i: int, wired: Wired, layout: _Layout, chosen: Sequence[Chosen], numbers: Sequence[int]) -> SequenceStep:
        launching = self.launchings[i]
        offsets = layout.offsets
        places = tuple((slot, numbers[n] if piece < 0 else offsets[piece] + numbers[n]) for slot, piece, n in wired.places[i])
        sizes = tuple(numbers[n] if n >= 0 else -1 - n for n in wired.sizes[i])
        return SequenceStep(chosen[launching.group].launch, places, sizes, launching.wanted)

    def _array(self, source: MemorySource, numbers: Sequence[int]) -> NumpyArray:
        """A constant, or an array of sizes."""
        if source.kind == "constant":
            return self.constants[source.number]
        one = self.arrays[source.number]
        with np.errstate(over="ignore"):  # as SizesArray
            return np.array(_of(numbers, one.strides), one.dtype).reshape(_of(numbers, one.shape))

    def _placed(self, source: MemorySource, array: NumpyArray, wired: Wired) -> Any:
        """A constant where kernels read it."""
        if not self.target.moves:
            return array
        if source.kind == "array":
            return self.target.asarray(array)
        if (known := wired.placed.get(source)) is None:
            known = wired.placed[source] = self.target.asarray(array)
        return known

    # -- What callers see

    def _arrays(self, wired: Wired, numbers: Sequence[int]) -> tuple[Sequence[Given], Sequence[Returned]]:
        return self._given(wired.slot, numbers), self._returned(wired, numbers)

    def _forms(self, numbers: Sequence[int]) -> Forms:
        known: dict[tuple[int, ...], tuple[int, ...]] = {}

        def of(places: tuple[int, ...]) -> tuple[int, ...]:
            if (found := known.get(places)) is None:
                found = known[places] = _of(numbers, places)
            return found

        return Forms(
            tuple([(of(one.shape), of(one.strides)) for one in self.inputs]), tuple([of(one.shape) for one in self.results])
        )

    def _given(self, slots: Mapping[MemorySource, int], numbers: Sequence[int]) -> list[Given]:
        return [
            Given(
                *(one.name, one.shown, one.dtype, _of(numbers, one.shape), _of(numbers, one.strides), numbers[one.nbytes]),
                *(one.owned, -1 if one.source is None else slots.get(one.source, -1), None),
            )
            for one in self.inputs
        ]

    def _returned(self, wired: Wired, numbers: Sequence[int]) -> tuple[Returned, ...]:
        found = []
        for one in self.results:
            shape = _of(numbers, one.shape)
            if one.source is not None:
                found.append(Returned(one.dtype, shape, wired.slot[one.source], None))
            elif isinstance(one.copies, (int, type(None))):
                found.append(Returned(one.dtype, shape, -1, one.copies))
            else:
                found.append(Returned(one.dtype, shape, -1, self.copied(one, numbers, shape)))
        return tuple(found)

    def copied(self, one: LaunchTensor, numbers: Sequence[int], shape: tuple[int, ...]) -> NumpyArray:
        """An output that no kernel computes."""
        assert isinstance(one.copies, np.ndarray)
        return one.copies.reshape(shape)

    def finished(self, values: Sequence[int]) -> Finished:
        """The program for sizes, after all passes.

        Raises:
            AnswerMissing: the plan was read.
        """
        raise AnswerMissing

    def explained(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """The guards, and each launch with its tensors.

        Args:
            names: of the sizes.
        """
        tensors = self.tensors()
        shown = [", ".join(f"{name} {tensor}" for name, tensor in own.items()) for own in tensors]
        guards = "; ".join(self.function.texts(names)) or "all sizes"
        return [("holds for", guards), *((launching.title, shown[launching.group]) for launching in self.launchings)]

    def tensors(self) -> list[dict[str, str]]:
        """The tensors of each group, with the names of sizes."""
        raise NotImplementedError

    def writes(self) -> list[list[str]]:
        """The tensors of each group that are written."""
        raise NotImplementedError

    def reports(self, laid: Laid) -> Reports:
        """What is said of the graph for sizes."""
        raise NotImplementedError

    def _laid(
        self,
        values: tuple[int, ...],
        wired: Wired,
        layout: _Layout,
        chosen: Sequence[Chosen],
        constants: Sequence[NumpyArray],
    ) -> Laid:
        """What is not needed to run the graph for sizes."""
        numbers = self._evaluate(*values)
        assert numbers is not None
        steps = tuple(self._step(i, wired, layout, chosen, numbers) for i in range(len(wired.places)))
        laid = Laid(
            self.name,
            tuple(self._given(wired.slot, numbers)),
            self._returned(wired, numbers),
            steps,
            tuple(chosen[launching.group].answer.name for launching in self.launchings),
            wired.count,
            tuple(constants),
            tuple(weight.nbytes for _, weight in wired.weights.values()),
            layout.size,
            layout.size,
            lambda owned: self.weights(wired, chosen, owned),
            functools.cache(lambda: self.reports(laid)),
            lambda: self.finished(values),
            None,
        )
        return laid


def _of(numbers: Sequence[int], places: Sequence[int]) -> tuple[int, ...]:
    return tuple([numbers[n] for n in places])


def span(one: LaunchTensor, numbers: Sequence[int]) -> int:
    """The bytes of an input or an output, from the first element to the last one.

    Raises:
        ValueError: it has impossible sizes or strides.
    """
    shape, strides = _of(numbers, one.shape), _of(numbers, one.strides)
    if min((*shape, *strides), default=0) < 0 or math.prod(shape) > MAX_ELEMENTS or max(strides, default=0) > _MOST_STRIDE:
        raise ValueError(f"sizes {shape} with strides {strides}")
    if 0 in shape:
        return 0
    if len(strides) != len(shape):
        return math.prod(shape) * one.dtype.itemsize
    return sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + one.dtype.itemsize


T = TypeVar("T")


def naming(title: str, make: Callable[[], T]) -> T:
    """What a function makes for a launch. Errors name its call.

    Raises:
        Unsupported, CompileError: as the function does.
    """
    try:
        return make()
    except (Unsupported, CompileError) as error:
        if type(error) not in (Unsupported, CompileError):
            raise
        raise type(error)(f"{title}: {error}") from error

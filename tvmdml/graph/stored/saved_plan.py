"""``SavedPlan``: the plan of a graph for certain sizes, in a file or a pack. It has the descriptor of each launch.

Launches come from a pack (``loading``), or the schedules choose them, as for a graph that was just made. Nothing is trusted:
before a schedule, or a launch of a pack that may be anybody's, meets the plan, each descriptor is checked against its contract,
and each array of a launch must have the bytes that the descriptor says, and may be written.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.errors import CompileError, Unsupported, counted, message
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.laid import Given, Laid, Picture, Reports, Weights
from tvmdml.graph.launching import Chosen, LaunchArgument, LaunchGroup, Launching, MemorySource, PackedKey, Weight
from tvmdml.graph.open_plan import Wired, span
from tvmdml.graph.packers import packed
from tvmdml.graph.stored.written import ABSENT, ReadPlan, constants_read
from tvmdml.library.tensor_text import is_plain, parse_tensor
from tvmdml.system import at_hand
from tvmdml.targets import Target

if TYPE_CHECKING:
    import numpy as np

    from tvmdml.graph.kernels import Progress
    from tvmdml.graph.nodes import Input
    from tvmdml.operators import Operator
    from tvmdml.operators._contract import Shared
    from tvmdml.tensors import TensorDesc
    from tvmdml.tensors.arrays import NumpyArray

_BUILD = "Build the pack for this target, too."


class Called(NamedTuple):
    """A launch with its descriptor."""

    launching: Launching
    desc: Operator
    shared: Shared
    arguments: tuple[tuple[LaunchArgument, Any], ...]
    """Its arrays, and their tensors. Conditions are not among them."""


class SavedGroup(LaunchGroup):
    """Launches with one descriptor."""

    def __init__(self, line: Any, in_place: Any, title: str) -> None:
        """
        Args:
            line: the descriptor, as ``packs.lines`` writes it.
            in_place: which tensors share memory, as ``operators._shared`` writes it.
            title: for messages.
        """
        super().__init__()
        if type(line) is not dict or type(in_place) not in (bool, str):
            raise ValueError("a call without a descriptor")
        self.line, self.in_place, self.title = line, in_place, title

    @functools.cached_property
    def call(self) -> tuple[Operator, Shared]:
        """The descriptor, and which of its tensors share memory.

        Raises:
            InvalidArgument, ModelError, ValueError: it breaks its contract.
        """
        at_hand("tvmdml.library.lines", "tvmdml.operators._shared")
        from tvmdml.library import lines
        from tvmdml.operators import _shared

        try:
            desc = lines.read(self.line, "a call")
        except Unsupported as error:  # of a file; what a target does not support is found later
            raise ValueError(str(error)) from error
        return desc, _shared.read(desc, self.in_place, "a call")


class StoredPlan(ReadPlan):
    """A plan of a file or a pack, with its weights."""

    groups: Sequence[Any]

    def __init__(
        self,
        described: Mapping[str, Any],
        arrays: Sequence[NumpyArray],
        target: Target,
        made: dict[object, Weights] | None = None,
        groups: Sequence[LaunchGroup] | None = None,
    ) -> None:
        """
        Args:
            described: a graph, as ``saving.describe`` described it.
            arrays: its arrays.
            target: where it runs.
            made: weights that were packed in this process, and that other plans with the same arrays may share.
            groups: the descriptors, if they are known.

        Raises:
            Exception: it is damaged.
        """
        super().__init__(described["plan"], arrays, target, [], groups)
        self.add_weights(described, arrays)
        self.made = {} if made is None else made
        self.absent = frozenset(i for i, array in constants_read(self) if array is ABSENT)
        """The constants that are there in packed forms only."""

    def check_wiring(self, wired: Wired) -> None:
        """Refuse weights that are not there, and packed inputs that are none.

        Raises:
            ValueError: a kernel takes packed what is no constant and no owned input.
            CompileError: a constant is there only as other kernels read it.
        """
        read = {source.number for source in wired.constants if source.kind == "constant"}
        for key, (_, weight) in wired.weights.items():
            for source, _ in weight.sources:
                if source.kind != "constant" and not (source.kind == "input" and self.inputs[source.number].owned):
                    raise ValueError(f"{weight.name} is packed, and is no weight")
            if not self._has_packed(key, weight.nbytes):
                read |= {source.number for source, _ in weight.sources if source.kind == "constant"}
        if read & self.absent:
            given = "a constant only as kernels of other processors read it"
            raise CompileError(message(f"{self.name} on {self.target}", given, "weights that are packed for this one", _BUILD))

    def _has_packed(self, key: PackedKey, nbytes: int) -> bool:
        array = self.packed_weights.get(key)
        return array is not None and array.nbytes == nbytes

    def weights(self, wired: Wired, chosen: Sequence[Chosen], owned: Mapping[int, Any]) -> list[Weights]:
        """The packed weights."""
        weights = []
        for key, (i, weight) in wired.weights.items():
            if self._has_packed(key, weight.nbytes):
                weights.append(Weights(self.target.place(self.packed_weights[key])))
                continue
            shared = self._shared_key(weight)
            if shared in self.made:
                weights.append(self.made[shared])
                continue
            answer: Any = chosen[self.launchings[i].group].answer
            packing = next(packing for packing in answer.packings if packing.owned.name == weight.name)
            read = [
                (
                    self.constants[source.number] if source.kind == "constant" else owned[id(self.nodes[source.number])],
                    self._offset(place),
                    self.tensor(self.launchings[i], name),
                )
                for name, (source, place) in zip(packing.owned.inputs, weight.sources, strict=True)
            ]
            weights.append(Weights(packed(packing, read, self.target)))
            if shared is not None:
                self.made[shared] = weights[-1]
        self.target.wait()
        return weights

    def tensor(self, launching: Launching, name: str) -> TensorDesc:
        """A tensor of a launch.

        Raises:
            InvalidArgument: its sizes are open.
        """
        return parse_tensor(self._tensors[launching.group][name], launching.title)

    @functools.cached_property
    def nodes(self) -> list[Input]:
        """The inputs, if their sizes are known."""
        raise ValueError("inputs that are given once, in a plan with open sizes")

    def _offset(self, place: int) -> int:
        """Of a weight, which is where it is for all sizes."""
        offset = self.function.wanted[place]
        if type(offset) is not int or offset < 0:
            raise ValueError(f"a weight at {offset}")
        return offset

    def _shared_key(self, weight: Weight) -> object:
        """Equal for weights that are the same bytes, in any plan with the same arrays; ``None`` if it is none of constants."""
        if any(source.kind != "constant" for source, _ in weight.sources):
            return None
        read = [(self.constants[source.number].ctypes.data, self._offset(place)) for source, place in weight.sources]
        return (weight.layout, *read)


class SavedPlan(StoredPlan):
    """The plan of a graph for certain sizes."""

    groups: Sequence[SavedGroup]
    is_case = False
    """Whether its tensors have names of sizes, of which these are values."""

    def __init__(
        self,
        described: Mapping[str, Any],
        arrays: Sequence[NumpyArray],
        target: Target,
        made: dict[object, Weights] | None = None,
        groups: Sequence[SavedGroup] | None = None,
    ) -> None:
        """As ``StoredPlan``."""
        if groups is None:
            plan = described["plan"]
            titles = {int(group): str(title) for group, title, *_ in reversed(plan["launchings"])}
            groups = [SavedGroup(line, in_place, titles.get(i, "")) for i, (line, in_place) in enumerate(plan["calls"])]
        super().__init__(described, arrays, target, made, groups)
        names = [node.name for node in self.inputs if node.name]
        if any(self.function[:4]) or not all(type(number) is int for number in self.function.wanted):
            raise ValueError("numbers that depend on sizes")
        if len(set(names)) != len(names):
            raise ValueError("two inputs with one name")
        self.values: tuple[int, ...] = self._evaluate()  # type: ignore[assignment] # it has no conditions
        """The plan's numbers."""

    def forms(self) -> list[tuple[np.dtype[Any], tuple[int, ...]]]:
        """The type and shape of each output."""
        return [(result.dtype, tuple(self.values[n] for n in result.shape)) for result in self.results]

    # -- Checks

    @functools.cached_property
    def calls(self) -> list[Called]:
        """The launches with their descriptors, in order.

        Raises:
            InvalidArgument, ModelError, ValueError: a descriptor breaks its contract, or the arrays do not fit it.
        """
        return list(self._calls())

    def check_calls(self) -> None:
        """Refuse descriptors that do not fit, as ``calls`` does. (An ``assert`` would check nothing with ``python -O``.)"""
        _ = self.calls

    def _calls(self) -> Iterator[Called]:
        for launching in self.launchings:
            desc, shared = self.groups[launching.group].call
            without = {source for source, _ in shared}
            tensors = [(name, tensor) for name, tensor in desc.tensors() if tensor is not None and name not in without]
            count = len(launching.arguments) - len(launching.wanted)
            own = launching.arguments[:count]
            if [argument.name for argument in own] != [name for name, _ in tensors]:
                raise ValueError(f"{launching.title} with the arrays {', '.join(argument.name for argument in own)}")
            written = _outputs(desc)
            for argument, (name, tensor) in zip(own, tensors, strict=True):
                if self.values[argument.size] != tensor.span_in_bytes or self.values[argument.offset] % tensor.data_type.itemsize:
                    raise ValueError(f"{launching.title}: {name} of other bytes than {tensor}")
                shown = self._tensors[launching.group].get(name, "")
                if shown != str(tensor) and (not self.is_case or is_plain(shown)):
                    raise ValueError(f"{launching.title}: {name} of {shown}, which is {tensor}")
                if name in written and argument.source.kind not in ("piece", "output"):
                    raise ValueError(f"{launching.title} writes an array that it may only read")
            pieces = {argument.source for argument in own if argument.name in written and argument.source.kind == "piece"}
            self._check_room(launching, pieces)
            pairs = zip(own, (tensor for _, tensor in tensors), strict=True)
            yield Called(launching, desc, shared, tuple(pairs))

    @functools.cached_property
    def _below(self) -> dict[int, frozenset[int]]:
        """On which other pieces each lies: it meets none of them."""
        return {i: frozenset(others) for i, others in self.order}

    def _check_room(self, launching: Launching, written: set[MemorySource]) -> None:
        if launching.wanted and self.target.moves:
            raise ValueError(f"{launching.title} with conditions, on {self.target.kind}")
        for argument in launching.arguments:
            begin, nbytes = self.values[argument.offset], self.values[argument.size]
            if begin < 0 or nbytes < 0 or begin + nbytes > self._room(argument.source):
                raise ValueError(f"{launching.title}: bytes {begin} to {begin + nbytes} of {argument.source}")
            if not argument.name and nbytes < 1:
                raise ValueError(f"{launching.title}: a condition without a byte")
        read = {argument.source for argument in launching.arguments if argument.source.kind == "piece"}
        for piece in written:
            for other in read - {piece}:
                if other.number not in self._below[piece.number] and piece.number not in self._below[other.number]:
                    raise ValueError(f"{launching.title} writes to a place that it reads from")

    def _room(self, source: MemorySource) -> int:
        """The bytes of an array."""
        if source.kind == "piece":
            return self.values[self.pieces[source.number]]
        if source.kind == "constant":
            return 1 << 62 if source.number in self.absent else self.constants[source.number].nbytes
        if source.kind == "array":
            return self.arrays[source.number].dtype.itemsize * len(self.arrays[source.number].strides)
        tensors = self.inputs if source.kind == "input" else [result for result in self.results if result.source == source]
        return span(tensors[source.number if source.kind == "input" else 0], self.values)

    # -- Running

    def compiled(self, progress: Progress | None = None) -> CompiledGraph:
        """Ready to run.

        Args:
            progress: called with (kernels ready, kernels in all) while kernels compile.

        Raises:
            ValueError, InvalidArgument, ModelError: the plan is damaged.
            Unsupported, CompileError: a kernel cannot be made; the message names the call.
        """
        return self.with_launches([None] * len(self.groups), progress)

    def with_launches(self, known: Sequence[Chosen | None], progress: Progress | None) -> CompiledGraph:
        """The same, where launches of some groups are known. Schedules choose the others."""
        chosen = list(known)
        if missing := [i for i, choice in enumerate(known) if choice is None]:
            self.check_calls()
            for i, asked in zip(missing, self._asked([self.groups[i] for i in missing], progress), strict=True):
                chosen[i] = asked
        ready = [choice for choice in chosen if choice is not None]
        wired = self._wired_for([choice.answer.packed for choice in ready])
        layout = self._layout((), self.values)
        self.check(wired, layout, self.values)
        constants = [self._array(source, self.values) for source in wired.constants]
        laid = self._laid((), wired, layout, ready, constants)
        return CompiledGraph(laid._replace(saved=self), self.target, in_place=lambda: self.in_place)

    def _asked(self, groups: Sequence[SavedGroup], progress: Progress | None) -> list[Chosen]:
        at_hand("tvmdml.graph.open_planning")
        from tvmdml.graph.kernels import compile_all
        from tvmdml.graph.open_planning import chosen_for

        compile_all((group.call for group in groups), self.target, progress)
        return [chosen_for(group.title, *group.call, self.target) for group in groups]

    @functools.cached_property
    def nodes(self) -> list[Input]:
        """The inputs."""
        at_hand("tvmdml.graph.compiled")
        from tvmdml.graph.compiled import node_of

        return [node_of(given) for given in super()._given({}, self.values)]

    def _given(self, slots: Mapping[MemorySource, int], numbers: Sequence[int]) -> list[Given]:
        given = super()._given(slots, numbers)
        if not any(node.owned for node in given):
            return given
        return [one._replace(node=node) for one, node in zip(given, self.nodes, strict=True)]

    # -- What is said of it

    def reports(self, laid: Laid) -> Reports:
        """Each launch, and its kernel."""
        titles = [launching.title for launching in self.launchings]
        lines = [(title, f"kernel {i}: {name}") for i, (title, name) in enumerate(zip(titles, laid.kernels, strict=True))]
        plain, packed = sum(array.nbytes for array in laid.constants), sum(laid.packed)
        total = (
            f"{counted(len(titles), 'kernel')}; {laid.temporary} bytes of intermediate results, "
            f"{plain} bytes of constants, {packed} of packed weights"
        )
        tensors = [self._tensors[launching.group] for launching in self.launchings]
        return Reports(titles, tensors, lines, total, self._picture(titles), self.written())

    def _picture(self, titles: Sequence[str]) -> Picture:
        writers: dict[MemorySource, int] = {}
        edges: list[tuple[int | str, int, str]] = []
        for i, called in enumerate(self.calls):
            results = _outputs(called.desc)
            for argument, tensor in called.arguments:
                source = argument.source
                if source.kind == "input":
                    edges.append((self.inputs[source.number].shown, i, str(tensor)))
                elif argument.name not in results and source in writers:
                    edges.append((writers[source], i, str(tensor)))
            writers |= {argument.source: i for argument, _ in called.arguments if argument.name in results}
        returned: list[tuple[int, str]] = []
        for result in self.results:
            writer = -1 if result.source is None else writers.get(result.source, -1)
            returned.append((writer, f"{result.dtype}[{', '.join(str(self.values[n]) for n in result.shape)}]"))
        return Picture(self.name, titles, edges, returned)


def _outputs(desc: Operator) -> set[str]:
    """The names of the outputs."""
    from tvmdml.operators._contract import Role

    return {name for name, _ in desc.tensors(Role.OUTPUT)}

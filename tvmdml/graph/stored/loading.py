"""``load_graph``: a compiled graph from a file that ``save_graph`` wrote, or from a pack.

In a pack, a graph is a part with its description, JSON as in such a file, and a part for each constant; graphs share equal
constants. A weight that a kernel reads packed is there in that form, for each processor level that the builder could run; if all
kernels read it so, it is there in no other. A reader maps constants from the pack, and copies none.

The launches are those of the pack's operations. If the pack is signed by a key of ``TVMDML_TRUSTED_KEYS``, they are taken as they
are. Otherwise they must be those that the installed schedules choose: this is checked at the first load, and the cache remembers
it of the pack's checksum. From then on neither schedules nor operators are asked, or imported.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml import targets
from tvmdml.errors import CompileError, InvalidArgument, Unsupported, message, safe_repr
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.laid import Laid, Weights
from tvmdml.graph.launching import Chosen, LaunchGroup, Launching, ScheduleAnswer
from tvmdml.graph.open_plan import Wired
from tvmdml.graph.stored import answers, saving
from tvmdml.graph.stored.answers import PackAnswer
from tvmdml.graph.stored.open_saved import Limits, OpenSaved
from tvmdml.graph.stored.saved_plan import SavedGroup, SavedPlan, StoredPlan
from tvmdml.graph.surroundings import key_of
from tvmdml.library import records, shelf
from tvmdml.library.files import is_pack
from tvmdml.library.tensor_text import is_plain
from tvmdml.system import at_hand
from tvmdml.system.disk import plans
from tvmdml.targets import Target
from tvmdml.tensors.arrays import NumpyArray

if TYPE_CHECKING:
    from tvmdml.graph.kernels import Progress
    from tvmdml.library.format import Pack
    from tvmdml.library.records import GraphRecord
    from tvmdml.tensors import TensorDesc


def load_graph(
    path: str | os.PathLike[str],
    target: str | targets.Target = "cpu",
    *,
    name: str | None = None,
    progress: Progress | None = None,
) -> CompiledGraph:
    """Read a graph that ``save_graph`` wrote, or that is in a pack, and prepare it for a target.

    The kernels of a graph in a file come from a loaded pack, the cache, or the compiler; those of a graph in a pack, from the pack.

    Args:
        path: the file. Its constants stay in it: it must not be changed while the graph is used.
        target: where to run.
        name: which graph of a pack, if it has several for this kind of target.
        progress: called with (kernels ready, kernels in all) while kernels compile.

    Raises:
        ModelError: the file cannot be read, or is not such a file.
        PackError: the pack is damaged, or not trusted.
        InvalidArgument: the pack has no such graph, or several.
        Unsupported: the graph is for another kind of target.
        CompileError: a kernel is in no pack, and cannot be compiled.
    """
    where = targets.resolve(target, "load_graph target")
    if is_pack(path):
        with shelf.load_pack(path) as loaded:
            return in_pack(loaded.pack, _chosen(loaded.pack, where, name), where).compiled(loaded, progress)
    saved = saving.read(path)
    if name is not None and name != saved.name:
        raise InvalidArgument(message("load_graph name", safe_repr(name), safe_repr(saved.name)))
    plan = saved.plan(where)
    with saving.reading(path):
        return plan.compiled(progress)


class _Name(NamedTuple):
    """How messages name a graph of a pack."""

    pack: Pack
    graph: str

    def __str__(self) -> str:
        return f"{self.pack.shown}: {self.graph}"


class InPack(NamedTuple):
    """A graph of a pack."""

    record: GraphRecord
    plan: SavedPlan
    described: Mapping[str, Any]

    def compiled(self, loaded: shelf.LoadedPack, progress: Progress | None = None) -> CompiledGraph:
        """Ready to run, with the kernels of its pack.

        Raises:
            ModelError, PackError: it is damaged.
            Unsupported, CompileError: a kernel is not in the pack, and cannot be made.
        """
        with saving.reading(_Name(loaded.pack, self.record.name)):
            launches = _Launches(self.record, self.plan.target, loaded)
            verified = launches.verified((), len(self.plan.groups))
            if verified is None and not loaded.is_trusted:
                self.plan.check_calls()
            several = [*map(launches.of_operation, itertools.count(), self.plan.groups)] if verified is None else verified
            graph = self.plan.with_launches([None if row is None else launches.chosen(row) for row in several], progress)
            if verified is None:
                launches.remember((), several)
            return graph


class _Launches:
    """The launches of a pack for a graph."""

    def __init__(self, graph: GraphRecord, target: Target, loaded: shelf.LoadedPack) -> None:
        self._loaded = loaded
        self._about = (loaded.pack.checksum, *graph[:2], target.name, target.code, target.tasks())
        self.relatives = {relative.code: relative for relative in target.relatives(loaded.codes)}
        """The targets whose kernels run, by their codes, the best first."""

    # -- What schedules chose

    def verified(self, values: Sequence[int], count: int) -> list[PackAnswer] | None:
        """The launches for sizes, so many, if the schedules were asked about them, in any process, and chose these."""
        if self._loaded.is_trusted or plans.is_off() or (content := plans.PlanStore().find(self._key(values))) is None:
            return None
        with contextlib.suppress(*records.NOT_WRITTEN):
            given = json.loads(content.tobytes())
            rows = [PackAnswer.fixed(i, str(code), records.read_launch(launch)) for i, (code, launch) in enumerate(given)]
            return rows if len(rows) == count and all(row.target in self.relatives for row in rows) else None
        return None

    def remember(self, values: Sequence[int], rows: Sequence[PackAnswer | None]) -> None:
        """The schedules need not be asked about sizes again, if the pack has all launches."""
        if not self._loaded.is_trusted and not plans.is_off() and None not in rows:
            given = [[row.target, records.launch_members(row.launch)] for row in rows if row is not None]
            plans.PlanStore().add(self._key(values), [json.dumps(given).encode()])

    def _key(self, values: Sequence[int]) -> str:
        return key_of("launches", *self._about, list(values))

    # -- What the pack has

    def of_operation(self, i: int, group: SavedGroup) -> PackAnswer | None:
        """The best launch of the pack's operation; ``None`` if it has none, or has it from other schedules.

        Raises:
            PackError: the schedules choose another one.
        """
        pack = self._loaded.pack
        for code, relative in self.relatives.items():
            operation = pack.operation(records.operation_key(code, group.line, group.in_place))
            tasks = relative.tasks()
            several = () if operation is None else [launch for launch in operation.launches if launch.threads <= tasks]
            if not several:
                continue
            row = PackAnswer.fixed(i, code, several[-1])
            if not self._loaded.is_trusted:
                asked = self.asked(i, group, several[-1].threads, [relative])
                if asked is None:
                    continue
                if asked != row:
                    raise pack.damaged(f"its launch of {group.title} is another one than the schedules choose")
            if self._loaded.launcher(row.launch.kernel, relative) is not None:
                return row
        return None

    def asked(self, i: int, group: SavedGroup, threads: int = 0, relatives: Iterable[Target] = ()) -> PackAnswer | None:
        """What the schedules choose of the pack's kernels; ``None`` if it lacks them, or has them from other schedules."""
        desc, shared = group.call
        for relative in relatives or self.relatives.values():
            kernel = self._loaded.kernel_for(desc.canonical(), shared, relative)
            if kernel is not None and all(self._loaded.key(part, relative) is not None for part in kernel.every):
                return PackAnswer.fixed(i, relative.code, records.launch_of(relative.code, threads, kernel))
        return None

    def answer(self, row: PackAnswer) -> _OfPack:
        """An answer with the pack's kernel."""
        return _OfPack(row, self._loaded, self.relatives[row.target])

    def chosen(self, row: PackAnswer) -> Chosen:
        """A launch for certain sizes."""
        answer = self.answer(row)
        numbers = answer.numbers()
        assert numbers is not None, "it has no guards"
        return Chosen(answer.launch(numbers, self.relatives[row.target]), answer, numbers)


class _Packing(NamedTuple):
    """How an input is packed."""

    owned: records.PackedRecord
    launch: targets.Launch


class _OfPack(ScheduleAnswer):
    """A launch of a pack."""

    def __init__(self, row: PackAnswer, loaded: shelf.LoadedPack, target: Target) -> None:
        own = row.launch
        packed = [(one.name, one.layout, one.elements * np.dtype(one.dtype).itemsize, one.inputs) for one in own.owned]
        types = [dtype for dtype, _ in own.temporaries]
        super().__init__(row.function, len(row.function.wanted) - len(types), types, packed)
        self._own, self._loaded, self._target = own, loaded, target

    @property
    def name(self) -> str:
        """The kernel's name."""
        kernel = self._loaded.pack.kernel(self._own.kernel)
        return "" if kernel is None else kernel.kernel

    def launch(self, numbers: tuple[int, ...], target: Target) -> targets.Launch:
        """The launch with these integers."""
        return self._made(self._own.kernel, "a kernel of a graph", numbers[: self.count], self.temporaries(numbers))

    @functools.cached_property
    def packings(self) -> tuple[_Packing, ...]:
        """How inputs are packed."""
        own = self._own.owned
        return tuple(_Packing(one, self._made(one.kernel, f"the kernel that packs {one.name}", *one[-2:])) for one in own)

    def _made(self, kernel: bytes, what: str, scalars: Any, temporaries: Any) -> targets.Launch:
        launcher = self._loaded.launcher(kernel, self._target)
        if launcher is None:
            raise self._loaded.pack.damaged(f"it lacks {what}")
        return self._target.launch(launcher, scalars, temporaries)


def of_kind(pack: Pack, target: targets.Target) -> list[GraphRecord]:
    """The graphs of a pack for a target's kind.

    Raises:
        PackError, Unsupported: there is none.
    """
    graphs = [graph for graph in pack.graphs() if graph.kind == target.kind]
    if not graphs:
        kinds = ", ".join(sorted({graph.kind for graph in pack.graphs()}))
        if not kinds:
            raise pack.error("no graph", "a pack that was built from a graph or an ONNX model")
        allowed = f"a target of a kind that {pack.shown} has graphs for: {kinds}"
        raise Unsupported(message("target", target.name, allowed, "Name such a target, or build it for this one, too."))
    return graphs


def _chosen(pack: Pack, target: targets.Target, name: str | None) -> GraphRecord:
    several = of_kind(pack, target)
    names = ", ".join(safe_repr(graph.name) for graph in several)
    if is_open(pack, several[0]):
        return several[0]  # which is refused, whatever its name
    wanted = [graph for graph in several if name is None or graph.name == name]
    if len(wanted) != 1:
        given = "no name" if name is None else safe_repr(name)
        raise InvalidArgument(message("load_graph name", given, names))
    return wanted[0]


def in_pack(pack: Pack, graph: GraphRecord, target: Target) -> InPack:
    """Read a graph of a pack. Nothing of it is trusted.

    Raises:
        ModelError: its description is wrong.
        PackError: a part is damaged.
        Unsupported: its sizes are open.
    """
    where = _Name(pack, graph.name)
    with saving.reading(where):
        described, content = _described(pack, graph)
        if "open" in described:
            raise Unsupported(message(str(where), "a graph with open sizes", "one of certain sizes", "Use tvmdml.onnx.load."))
        return InPack(graph, SavedPlan(described, saving.read_arrays(described, content), target), described)


class OpenInPack(NamedTuple):
    """A graph of a pack whose sizes are open."""

    record: GraphRecord
    plan: OpenSaved
    described: Mapping[str, Any]
    answers: NumpyArray | None
    """What schedules answered (``answers``); ``None`` where they were not written."""

    def served(self, loaded: shelf.LoadedPack) -> PackPlan:
        """The plan with the kernels of its pack.

        Raises:
            ModelError, PackError: it is damaged.
        """
        with saving.reading(_Name(loaded.pack, self.record.name)):
            return PackPlan(self, loaded)


class PackPlan(StoredPlan):
    """The plan of a graph of a pack whose sizes are open, with the pack's kernels.

    A trusted pack says which kernel serves which sizes. Of others the schedules are asked about each size once.
    """

    def __init__(self, graph: OpenInPack, loaded: shelf.LoadedPack) -> None:
        """
        Raises:
            Exception: it is damaged.
        """
        super().__init__(*graph.plan.parts)
        self._graph, self._loaded, self._limits = graph, loaded, graph.plan.limits
        self._where = _Name(loaded.pack, graph.record.name)
        self._launches = _Launches(graph.record, self.target, loaded)
        self._values: tuple[int, ...] = ()
        """The sizes that were asked for last."""
        if loaded.is_trusted and graph.answers is not None:
            self._add(list(answers.read(graph.answers, len(self.groups))))

    def _add(self, rows: Sequence[PackAnswer]) -> None:
        """Know the pack's answers for the targets that run here, the best first."""
        for number, (code, relative) in enumerate(self._launches.relatives.items()):
            counts = {row.threads for row in rows if row.target == code and row.threads <= relative.tasks()}
            for group in self.groups:
                group.answers[number] = []
            for row in rows:
                if row.target == code and row.threads == max(counts, default=0):
                    self.groups[row.group].answers[number].append(self._launches.answer(row))

    def for_sizes(self, values: tuple[int, ...]) -> CompiledGraph | None:
        """The graph for sizes; ``None`` if a guard fails.

        Raises:
            ModelError, PackError: it is damaged.
            CompileError: the pack lacks a kernel for them.
        """
        with saving.reading(self._where):
            self._values = values
            return self.at(values)

    def chosen(self, values: Sequence[int], progress: Progress | None) -> list[Chosen]:
        """The launch of each group.

        Raises:
            CompileError: the pack lacks a kernel for the sizes.
        """
        if self._loaded.is_trusted:
            found = [choice for group in self.groups if (choice := self._answered(group, values)) is not None]
            if len(found) == len(self.groups):
                return found
        rows = self._launches.verified(values, len(self.groups))
        if rows is None:
            rows = self._asked(values)
            self._launches.remember(values, rows)
        return [self._launches.chosen(row) for row in rows]

    def _answered(self, group: LaunchGroup, values: Sequence[int]) -> Chosen | None:
        """The launch that the pack says; ``None`` if it was not built for these sizes."""
        for number in group.answers:
            if (known := group.known(values, number)) is not None:
                answer, numbers = known
                return Chosen(answer.launch(numbers, self.target), answer, numbers)
        return None

    def _asked(self, values: Sequence[int]) -> list[PackAnswer]:
        """The launches that the schedules choose."""
        at_hand("tvmdml.library.scheduling")
        from tvmdml.library.scheduling import remembering

        plan = self._graph.plan.at(values)
        plan.check_calls()
        rows = []
        with remembering():
            for i, group in enumerate(plan.groups):
                row = self._launches.asked(i, group)
                if row is None:
                    sizes = ", ".join(f"{limit.name}={value}" for limit, value in zip(self._limits, values, strict=True))
                    given = f"{sizes}, for which the pack lacks a kernel of {group.title}"
                    allowed = f"sizes of {', '.join(map(str, self._limits))} that were among those it was built for"
                    raise CompileError(message(str(self._where), given, allowed, "Build it again."))
                rows.append(row)
        return rows

    def packed(self, wired: Wired, chosen: Sequence[Chosen]) -> list[Weights]:
        """The packed weights."""
        return self.weights(wired, chosen, {})

    def tensor(self, launching: Launching, name: str) -> TensorDesc:
        """A tensor of a launch, for the sizes that were asked for last if some of its own are open."""
        if is_plain(self._tensors[launching.group][name]):
            return super().tensor(launching, name)
        desc, _ = self._graph.plan.at(self._values).groups[launching.group].call
        return next(tensor for own, tensor in desc.tensors() if own == name and tensor is not None)

    def _laid(self, values: tuple[int, ...], wired: Wired, layout: Any, chosen: Sequence[Chosen], constants: Sequence[Any]) -> Laid:
        """The graph for sizes as one that has these alone."""
        return self._graph.plan.at(values).with_launches(chosen, None).laid


def is_open(pack: Pack, graph: GraphRecord) -> bool:
    """Whether sizes of a graph are open.

    Raises:
        ModelError, PackError: it is damaged.
    """
    with saving.reading(_Name(pack, graph.name)):
        return "open" in _described(pack, graph)[0]


def open_in_pack(pack: Pack, graph: GraphRecord, target: Target, made: dict[object, Weights]) -> OpenInPack:
    """Read a graph of a pack whose sizes are open. Nothing of it is trusted.

    ``made`` are the weights that were packed in this process, for all graphs of the pack.

    Raises:
        ModelError: its description is wrong.
        PackError: a part is damaged.
    """
    with saving.reading(_Name(pack, graph.name)):
        described, content = _described(pack, graph)
        arrays = saving.read_arrays(described, content)
        limits = [Limits.read(*limit) for limit in described["open"]]
        answers = content(*described["answers"]) if "answers" in described else None
        return OpenInPack(graph, OpenSaved(described, arrays, limits, target, made), described, answers)


def _described(pack: Pack, graph: GraphRecord) -> tuple[Mapping[str, Any], Callable[[Any, int], NumpyArray]]:
    """A graph's description, and what finds its arrays."""
    described = json.loads(pack.content(graph.part))
    if described.get("format") != saving.FORMAT:
        raise saving.of_another_format(_Name(pack, graph.name), described.get("format", 1))
    if described["kind"] != graph.kind or described["name"] != graph.name:
        raise ValueError("a description of another graph")
    mapped: dict[int, NumpyArray] = {}

    def content(at: Any, size: int) -> NumpyArray:
        if type(at) is not int or not 0 <= at < len(graph.data):
            raise ValueError(f"constant {safe_repr(at)} of {len(graph.data)}")
        if at not in mapped:
            mapped[at] = pack.mapped(graph.data[at])
        if mapped[at].nbytes != size:
            raise ValueError(f"{mapped[at].nbytes} bytes for a constant of {size}")
        return mapped[at]

    return described, content

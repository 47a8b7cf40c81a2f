"""``load_graph``: a compiled graph from a file that ``save_graph`` wrote, or from a pack.

In a pack, a graph is a part with its description, JSON as in such a file, and a part for each constant; graphs share equal
constants. A weight that a kernel reads packed is there in that form, for each processor level that the builder could run; if all
kernels read it so, it is there in no other. A reader maps constants from the pack, and copies none.

The launches are those of the pack's operations. If the pack is signed by a key of ``TVMDML_TRUSTED_KEYS``, they are taken as they
are. Otherwise they must be those that the installed schedules choose: this is checked at the first load, and the cache remembers
it of the pack's checksum. From then on neither schedules nor operators are asked, or imported.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml import targets
from tvmdml.errors import CompileError, InvalidArgument, Unsupported, message, safe_repr
from tvmdml.graph import saving
from tvmdml.graph.compiled import CompiledGraph
from tvmdml.graph.laid import Weights
from tvmdml.graph.launching import Answer, Chosen
from tvmdml.graph.open_saved import Limits, OpenSaved
from tvmdml.graph.saved_plan import SavedGroup, SavedPlan
from tvmdml.graph.surroundings import key_of
from tvmdml.graph.written import place
from tvmdml.library import records, shelf
from tvmdml.library.files import is_pack
from tvmdml.system import at_hand
from tvmdml.system.disk import plans
from tvmdml.targets import Target
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.sizes.evaluating import Function

if TYPE_CHECKING:
    from tvmdml.graph.kernels import Progress
    from tvmdml.library.format import Pack
    from tvmdml.library.records import Graph


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

    record: Graph
    plan: SavedPlan
    described: Mapping[str, Any]

    def compiled(self, loaded: shelf.LoadedPack, progress: Progress | None = None) -> CompiledGraph:
        """Ready to run, with the kernels of its pack.

        Raises:
            ModelError, PackError: it is damaged.
            Unsupported, CompileError: a kernel is not in the pack, and cannot be made.
        """
        launches = _Launches(self, loaded)
        with saving.reading(_Name(loaded.pack, self.record.name)):
            known = [launches.of(group) for group in self.plan.groups]
            graph = self.plan.with_launches(known, progress)
            if None not in known:
                launches.remember()
            return graph


class _Launches:
    """The launches of a pack's operations for a graph."""

    def __init__(self, graph: InPack, loaded: shelf.LoadedPack) -> None:
        self._loaded, self._target = loaded, graph.plan.target
        about = (loaded.pack.checksum, *graph.record[:2], self._target.name, self._target.code, self._target.tasks())
        self._key = key_of("verified", *about)
        self._plan = graph.plan
        self._is_known = loaded.is_trusted or (not plans.is_off() and plans.PlanStore().find(self._key) is not None)

    def of(self, group: SavedGroup) -> Chosen | None:
        """The best launch that the target can run; ``None`` if the pack has none, or has it from other schedules."""
        pack = self._loaded.pack
        for relative in self._target.relatives(self._loaded.codes):
            operation = pack.operation(records.operation_key(relative.code, group.line, group.in_place))
            tasks = relative.tasks()
            several = () if operation is None else [launch for launch in operation.launches if launch.threads <= tasks]
            if not several or not (self._is_known or self._is_chosen(group, several[-1], relative)):
                continue
            chosen = _of_pack(several[-1], self._loaded, relative)
            if chosen is not None:
                return chosen
        return None

    def _is_chosen(self, group: SavedGroup, launch: records.Launch, relative: Target) -> bool:
        """Whether the schedules choose this launch.

        Raises:
            PackError: they choose another one.
        """
        assert self._plan.calls is not None  # they are checked
        desc, shared = group.call
        kernel = self._loaded.kernel_for(desc.canonical(), shared, relative)
        if kernel is None or not all(self._loaded.fits(part, relative) for part in kernel.every):
            return False
        if records.launch_of(relative.code, launch.threads, kernel) != launch:
            raise self._loaded.pack.damaged(f"its launch of {group.title} is another one than the schedules choose")
        return True

    def remember(self) -> None:
        """They need not be asked about this pack again."""
        if not self._is_known and not plans.is_off():
            plans.PlanStore().add(self._key, [b"verified"])


class _Packing(NamedTuple):
    """How an input is packed."""

    owned: records.Packed
    launch: targets.Launch


class _OfPack(Answer):
    """A launch of a pack."""

    def __init__(self, launch: records.Launch, loaded: shelf.LoadedPack, target: Target) -> None:
        packed = [
            (owned.name, owned.layout, owned.elements * np.dtype(owned.dtype).itemsize, owned.inputs) for owned in launch.owned
        ]
        super().__init__(Function((), (), (), (), ()), 0, (), packed)
        self._launch, self._loaded, self._target = launch, loaded, target

    @property
    def name(self) -> str:
        """The kernel's name."""
        kernel = self._loaded.pack.kernel(self._launch.kernel)
        return "" if kernel is None else kernel.kernel

    def launch(self, numbers: tuple[int, ...], target: Target) -> targets.Launch:
        """The launch that the pack has."""
        launcher = self._loaded.launcher(self._launch.kernel, target)
        if launcher is None:
            raise self._loaded.pack.damaged("it lacks a kernel of a graph")
        return target.launch(launcher, self._launch.scalars, self._launch.temporaries)

    @functools.cached_property
    def packings(self) -> tuple[_Packing, ...]:
        """How inputs are packed."""
        return tuple(_Packing(owned, self._made(owned)) for owned in self._launch.owned)

    def _made(self, owned: records.Packed) -> targets.Launch:
        launcher = self._loaded.launcher(owned.kernel, self._target)
        if launcher is None:
            raise self._loaded.pack.damaged(f"it lacks the kernel that packs {owned.name}")
        return self._target.launch(launcher, owned.scalars, owned.temporaries)


def _of_pack(launch: records.Launch, loaded: shelf.LoadedPack, target: Target) -> Chosen | None:
    launcher = loaded.launcher(launch.kernel, target)
    if launcher is None:
        return None
    return Chosen(target.launch(launcher, launch.scalars, launch.temporaries), _OfPack(launch, loaded, target), ())


def of_kind(pack: Pack, target: targets.Target) -> list[Graph]:
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


def _chosen(pack: Pack, target: targets.Target, name: str | None) -> Graph:
    several = of_kind(pack, target)
    names = ", ".join(safe_repr(graph.name) for graph in several)
    if is_open(pack, several[0]):
        return several[0]  # which is refused, whatever its name
    wanted = [graph for graph in several if name is None or graph.name == name]
    if len(wanted) != 1:
        given = "no name" if name is None else safe_repr(name)
        raise InvalidArgument(message("load_graph name", given, names))
    return wanted[0]


def in_pack(pack: Pack, graph: Graph, target: Target) -> InPack:
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
        arrays, constants = _arrays(described, content)
        packed = saving.read_packed(described["plan"], described["packed"], content)
        return InPack(graph, SavedPlan(described["plan"], arrays, constants, target, packed), described)


class OpenInPack(NamedTuple):
    """A graph of a pack whose sizes are open."""

    record: Graph
    plan: OpenSaved
    described: Mapping[str, Any]
    answers: NumpyArray | None
    """What schedules answered, for programs in C (``packs.answers``); ``None`` where they were not written."""

    def at(self, values: Sequence[int], loaded: shelf.LoadedPack) -> CompiledGraph:
        """The graph for sizes, with the kernels of its pack. Schedules choose them.

        Raises:
            ModelError, PackError: it is damaged.
            InvalidArgument: the pack was not built for these sizes.
            CompileError: the pack lacks a kernel for them.
        """
        with saving.reading(_Name(loaded.pack, self.record.name)):
            plan = self.plan.at(values)
            assert plan.calls is not None  # they are checked
            return plan.with_launches(self.launches(plan, values, loaded), None)

    def launches(self, plan: SavedPlan, values: Sequence[int], loaded: shelf.LoadedPack) -> list[Chosen]:
        """The launches of the plan for sizes.

        Raises:
            CompileError: the pack lacks a kernel for them.
        """
        at_hand("tvmdml.graph.open_planning", "tvmdml.library.scheduling")
        from tvmdml.graph.open_planning import chosen_of
        from tvmdml.library.scheduling import remembering

        chosen = []
        with remembering():
            for group in plan.groups:
                desc, shared = group.call
                ready = loaded.ready(desc.canonical(), plan.target, shared)
                if ready is None:
                    sizes = ", ".join(f"{limit.name}={value}" for limit, value in zip(self.plan.limits, values, strict=True))
                    given = f"{sizes}, for which the pack lacks a kernel of {group.title}"
                    allowed = f"sizes of {', '.join(map(str, self.plan.limits))} that were among those it was built for"
                    raise CompileError(message(str(_Name(loaded.pack, self.record.name)), given, allowed, "Build it again."))
                chosen.append(chosen_of(*ready))
        return chosen


def is_open(pack: Pack, graph: Graph) -> bool:
    """Whether sizes of a graph are open.

    Raises:
        ModelError, PackError: it is damaged.
    """
    with saving.reading(_Name(pack, graph.name)):
        return "open" in _described(pack, graph)[0]


def open_in_pack(pack: Pack, graph: Graph, target: Target, made: dict[object, Weights]) -> OpenInPack:
    """Read a graph of a pack whose sizes are open. Nothing of it is trusted.

    ``made`` are the weights that were packed in this process, for all graphs of the pack.

    Raises:
        ModelError: its description is wrong.
        PackError: a part is damaged.
    """
    with saving.reading(_Name(pack, graph.name)):
        described, content = _described(pack, graph)
        arrays, constants = _arrays(described, content)
        limits = [Limits.read(*limit) for limit in described["open"]]
        answers = content(*described["answers"]) if "answers" in described else None
        return OpenInPack(graph, OpenSaved(described["plan"], limits, arrays, constants, target, made), described, answers)


def _described(pack: Pack, graph: Graph) -> tuple[Mapping[str, Any], Callable[[Any, int], NumpyArray]]:
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


def _arrays(
    described: Mapping[str, Any], content: Callable[[Any, int], NumpyArray]
) -> tuple[list[NumpyArray], list[NumpyArray | None]]:
    """The arrays of outputs that no kernel computes, and the constants."""
    arrays = [None if form[2] is None else saving.array_of(form, content) for form in described["arrays"]]
    count = place(described["plan"]["constants"], len(arrays) + 1)
    return [array for array in arrays[count:] if array is not None], arrays[:count]

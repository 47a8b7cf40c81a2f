"""Graphs in packs: what is compiled for them, and how they and their weights are written.

Weights that kernels read packed are packed here, by the kernels of the pack, for each processor level that this machine can run.
Where it cannot run one, the packers run when the graph is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvmdml import targets
from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported, message
from tvmdml.graph.launching import Launching, PackedKey
from tvmdml.graph.launching import MemorySource as Memory
from tvmdml.graph.packers import reading
from tvmdml.graph.stored import saving
from tvmdml.graph.stored.array_forms import bytes_of, form
from tvmdml.graph.stored.saved_plan import SavedGroup, SavedPlan
from tvmdml.kernels import persistent
from tvmdml.library import format as container
from tvmdml.library import records, spec
from tvmdml.library.format import Contents, Pack, Part, StoredPart
from tvmdml.library.records import GraphRecord, LaunchRecord
from tvmdml.library.shelf import LoadedPack
from tvmdml.library.spec import Wanted
from tvmdml.operators import Operator
from tvmdml.packs import open_graphs
from tvmdml.packs.open_graphs import OpenPlanned, OpenSource
from tvmdml.targets import Target
from tvmdml.tensors.arrays import NumpyArray


class GraphSource(NamedTuple):
    """A graph that a pack should have."""

    name: str
    plan: Callable[[Target], SavedPlan]
    """Its plan after the passes for a target; raises ``Unsupported`` where it is for another kind of target."""
    described: Mapping[str, Any]
    """What is kept beside it."""


class Planned(NamedTuple):
    """A graph for a kind of targets."""

    source: GraphSource
    kind: str
    plan: SavedPlan
    machines: tuple[tuple[str, Target], ...]
    """Each with the name that it was given by."""

    def wanted(self) -> Iterator[Wanted]:
        """The operations of its kernels."""
        yield from spec.once(Wanted(*group.call) for group in self.plan.groups)


def planned(
    sources: Sequence[GraphSource | OpenSource],
    machines: Sequence[tuple[str, Target]],
    asking: Callable[[int, int], object] | None = None,
) -> tuple[list[Planned], list[OpenPlanned], list[str]]:
    """Every graph for every kind of targets, those with open sizes, and why some are left out.

    Raises:
        InvalidArgument: two graphs have the same name.
    """
    plans: list[Planned] = []
    opened: list[OpenPlanned] = []
    skipped = []
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(message("pack build", f"two graphs {name!r}", "graphs of different names", "Rename a file."))
    for source in sources:
        for kind in dict.fromkeys(machine.kind for _, machine in machines):
            alike = tuple(machine for machine in machines if machine[1].kind == kind)
            try:
                if isinstance(source, OpenSource):
                    opened.append(open_graphs.planned(source, alike, asking))
                    continue
                plan = source.plan(alike[0][1])
            except Unsupported as error:
                skipped.append(f"{source.name} for {kind}: {error}")
                continue
            plan.name = source.name
            plans.append(Planned(source, kind, plan, alike))
    return plans, opened, skipped


@contextlib.contextmanager
def with_graphs(
    contents: Contents,
    graphs: Sequence[Planned],
    opened: Sequence[OpenPlanned],
    files: Mapping[str, bytes],
    plain_weights: bool = False,
) -> Iterator[Contents]:
    """The contents of a pack, and the graphs, whose kernels are among them, with files about them.

    Args:
        contents: the pack without graphs.
        graphs: the graphs.
        opened: those with open sizes.
        files: by their names.
        plain_weights: no weight is stored in a packed form: each is packed when the graph is loaded.
    """
    if not graphs and not opened:
        yield contents
        return
    with tempfile.TemporaryDirectory(prefix="tvmdml-") as folder:
        first = Path(folder) / "kernels.tvmdml"
        container.write(first, contents)  # whose own kernels pack the weights
        loaded = LoadedPack(first, own=True)
        try:
            data = _Data(loaded.pack.part_count)
            written = [_written(graph, loaded, data, {} if plain_weights else _packed(graph, loaded)) for graph in graphs]
            written += [_written_open(graph, i, data) for graph in opened for i in range(len(graph.graphs))]
            descriptions = [Part(".graph", json.dumps(described, separators=(",", ":")).encode()) for described, _ in written]
            start = loaded.pack.part_count + len(data.parts)
            rows = [
                GraphRecord(described["name"], described["kind"], start + i, tuple(own))._asdict()
                for i, (described, own) in enumerate(written)
            ]
            stored: list[Part | StoredPart] = [StoredPart(loaded.pack, number) for number in range(loaded.pack.part_count)]
            parts = [*stored, *data.parts, *descriptions]
            head = {**contents.head, "graphs": rows}
            if files:
                head["files"] = {name: len(parts) + i for i, name in enumerate(sorted(files))}
                parts += [Part(container.FILE, files[name]) for name in sorted(files)]
            yield contents._replace(head=head, parts=parts)
        finally:
            loaded.close()


class _Data:
    """The constants of all graphs: equal ones are one part."""

    def __init__(self, start: int) -> None:
        self.parts: list[Part] = []
        self._start = start
        self._known: dict[bytes, int] = {}

    def add(self, array: NumpyArray) -> int:
        """The number of the array's part."""
        content = bytes_of(array)
        key = hashlib.sha256(content).digest()
        if key not in self._known:
            self._known[key] = self._start + len(self.parts)
            self.parts.append(Part(container.DATA, content))
        return self._known[key]


_Packed = Mapping[PackedKey, NumpyArray]
"""Weights by their layouts, and what they are made of."""


def _written(graph: Planned, loaded: LoadedPack, data: _Data, packed: _Packed) -> tuple[dict[str, Any], list[int]]:
    """A graph's description, and the parts of its constants."""
    needed = _needed(graph, loaded.pack, packed.keys())
    constants = [(i, graph.plan.constants[i]) for i in sorted(needed)]
    bytes_only = [(key, array.reshape(-1).view(np.uint8)) for key, array in packed.items()]
    described, arrays = saving.described_plan(graph.plan, constants, bytes_only)
    own: list[int] = []
    forms = [form(array, _placed(data, own, array)) for array in arrays]
    return {**described, **graph.source.described, "arrays": forms}, own


def _written_open(graph: OpenPlanned, i: int, data: _Data) -> tuple[dict[str, Any], list[int]]:
    own: list[int] = []
    return open_graphs.described(graph, i, functools.partial(_placed, data, own)), own


def _placed(data: _Data, own: list[int], array: NumpyArray) -> int:
    """Add an array; returns its place among the graph's own parts."""
    number = data.add(array)
    if number not in own:
        own.append(number)
    return own.index(number)


def _packed(graph: Planned, loaded: LoadedPack) -> _Packed:
    """The packed weights for all targets that run here."""
    weights: dict[PackedKey, NumpyArray] = {}
    for target in filter(None, (_here(name, machine) for name, machine in graph.machines)):
        for launching, desc, shared, _ in graph.plan.calls:
            if not desc.owned() or (ready := loaded.ready(desc.canonical(), target, shared)) is None:
                continue
            kernel, _, packers = ready
            for owned, launch in zip(kernel.owned, packers, strict=True):
                key = owned.layout, _sources(launching, owned.inputs)
                if key in weights or (arrays := _arrays(graph.plan, desc, owned.inputs, key[1])) is None:
                    continue
                weights[key] = persistent.empty((owned.elements,), np.dtype(owned.dtype), target)
                launch(*arrays, weights[key])
    return weights


def _here(name: str, machine: Target) -> Target | None:
    """A target of this machine that runs the code for another one."""
    if machine.moves:
        return None
    with contextlib.suppress(TvmdmlError):
        target = targets.resolve(machine.name)
        if any(relative.code == machine.code for relative in target.relatives([machine.code])):
            return target
    return None


def _sources(launching: Launching, names: Sequence[str]) -> tuple[tuple[Memory, int], ...]:
    """What a packer reads of a launch."""
    by_name = {argument.name: argument for argument in launching.arguments}
    return tuple((by_name[name].source, by_name[name].offset) for name in names)


def _arrays(
    plan: SavedPlan, desc: Operator, names: Sequence[str], sources: Sequence[tuple[Memory, int]]
) -> list[NumpyArray] | None:
    """The constants that a packer reads; ``None`` if it reads others."""
    tensors = dict(desc.tensors())
    arrays = []
    for name, (source, offset) in zip(names, sources, strict=True):
        tensor = tensors[name]
        if source.kind != "constant" or tensor is None:
            return None
        arrays.append(reading(plan.constants[source.number], plan.values[offset], tensor))
    return arrays


def _needed(graph: Planned, pack: Pack, packed: Any) -> set[int]:
    """The numbers of the constants that some kernel or packer reads as they are, or that say whether kernels run."""
    needed: set[int] = set()
    for launching in graph.plan.launchings:
        for _, machine in graph.machines:
            for launch in _launches(graph.plan.groups[launching.group], pack, machine):
                done = [owned for owned in launch.owned if (owned.layout, _sources(launching, owned.inputs)) in packed]
                unpacked = {name for owned in launch.owned if owned not in done for name in owned.inputs}
                plain = {argument.name for argument in launching.arguments} - {owned.name for owned in launch.owned}
                read = {argument.source for argument in launching.arguments if argument.name in plain | unpacked}
                needed |= {source.number for source in read if source.kind == "constant"}
    return needed


def _launches(group: SavedGroup, pack: Pack, machine: Target) -> Sequence[LaunchRecord]:
    operation = pack.operation(records.operation_key(machine.code, group.line, group.in_place))
    every = LaunchRecord(0, b"", (), ())  # which reads all as it is: the operation is not supported there
    return (every,) if operation is None else operation.launches

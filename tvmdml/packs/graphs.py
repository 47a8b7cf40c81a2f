"""Graphs in packs: what is compiled for them, and how they and their weights are written.

Weights that kernels read packed are packed here, by the kernels of the pack, for each processor level that this machine can run.
Where it cannot run one, the packers run when the graph is loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tvmdml import persistent, targets
from tvmdml.arrays import NumpyArray
from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported, message
from tvmdml.graph import saving
from tvmdml.graph.nodes import Call, Constant
from tvmdml.graph.passes.constants import reading
from tvmdml.graph.plan import arranged, computing
from tvmdml.graph.program import Finished
from tvmdml.operators import _shared
from tvmdml.operators._contract import Shared
from tvmdml.packs import format as container
from tvmdml.packs import lines, records, spec
from tvmdml.packs.format import Contents, Pack, Part, StoredPart
from tvmdml.packs.records import Graph, Launch
from tvmdml.packs.shelf import LoadedPack
from tvmdml.packs.spec import Wanted
from tvmdml.targets import Target


class Source(NamedTuple):
    """A graph that a pack should have."""

    name: str
    finished: Callable[[Target], Finished]
    """The graph after the passes for a target; raises ``Unsupported`` where it is for another kind of target."""
    described: Mapping[str, Any]
    """What is kept beside it."""


class Planned(NamedTuple):
    """A graph for a kind of targets."""

    source: Source
    kind: str
    finished: Finished
    machines: tuple[tuple[str, Target], ...]
    """Each with the name that it was given by."""

    def wanted(self) -> Iterator[Wanted]:
        """The operations of its kernels."""
        yield from spec.once(Wanted(spec.plain(call.desc), shared) for _, call, shared in self.calls())

    def calls(self) -> list[tuple[int, Call, Shared]]:
        """The calls that have a kernel, with their places in the saved program, and which tensors of each share memory."""
        calls, pieces = arranged(self.finished.program, self.kind)
        places = {id(call): i for i, call in enumerate(computing(self.finished.program))}
        return [(places[id(call)], call, pieces.shared.get(call, ())) for call in calls]


def planned(sources: Sequence[Source], machines: Sequence[tuple[str, Target]]) -> tuple[list[Planned], list[str]]:
    """Every graph for every kind of targets, and why some are left out.

    Raises:
        InvalidArgument: two graphs have the same name.
    """
    found: list[Planned] = []
    skipped = []
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(message("pack build", f"two graphs {name!r}", "graphs of different names", "Rename a file."))
    for source in sources:
        for kind in dict.fromkeys(machine.kind for _, machine in machines):
            alike = tuple(one for one in machines if one[1].kind == kind)
            try:
                finished = source.finished(alike[0][1])._replace(name=source.name)
            except Unsupported as error:
                skipped.append(f"{source.name} for {kind}: {error}")
                continue
            found.append(Planned(source, kind, finished, alike))
    return found, skipped


@contextlib.contextmanager
def with_graphs(contents: Contents, graphs: Sequence[Planned], plain_weights: bool = False) -> Iterator[Contents]:
    """The contents of a pack, and the graphs, whose kernels are among them.

    Args:
        contents: the pack without graphs.
        graphs: the graphs.
        plain_weights: no weight is stored in a packed form: each is packed when the graph is loaded.
    """
    if not graphs:
        yield contents
        return
    with tempfile.TemporaryDirectory(prefix="tvmdml-") as folder:
        first = Path(folder) / "kernels.tvmdml"
        container.write(first, contents)  # whose own kernels pack the weights
        loaded = LoadedPack(first, own=True)
        try:
            data = _Data(loaded.pack.part_count)
            written = [_written(graph, loaded, data, {} if plain_weights else _packed(graph, loaded)) for graph in graphs]
            descriptions = [Part(".graph", json.dumps(described, separators=(",", ":")).encode()) for described, _ in written]
            start = loaded.pack.part_count + len(data.parts)
            rows = [
                Graph(graph.source.name, graph.kind, start + i, tuple(own))._asdict()
                for i, (graph, (_, own)) in enumerate(zip(graphs, written, strict=True))
            ]
            stored: list[Part | StoredPart] = [StoredPart(loaded.pack, number) for number in range(loaded.pack.part_count)]
            yield contents._replace(head={**contents.head, "graphs": rows}, parts=[*stored, *data.parts, *descriptions])
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
        content = saving.bytes_of(np.ascontiguousarray(array))
        key = hashlib.sha256(content).digest()
        if key not in self._known:
            self._known[key] = self._start + len(self.parts)
            self.parts.append(Part(container.DATA, content))
        return self._known[key]


_Packed = Mapping[tuple[int, str, str], NumpyArray]
"""Weights by their call, their input and their layout."""


def _written(graph: Planned, loaded: LoadedPack, data: _Data, packed: _Packed) -> tuple[dict[str, Any], list[int]]:
    """A graph's description, and the parts of its constants."""
    described, constants = saving.describe(graph.finished, graph.kind)
    described.update(graph.source.described)
    own: list[int] = []

    def place(array: NumpyArray) -> int:
        number = data.add(array)
        if number not in own:
            own.append(number)
        return own.index(number)

    described["packed"] = [
        [at, name, layout, place(array), len(array), array.dtype.name] for (at, name, layout), array in packed.items()
    ]
    needed = _needed(graph, loaded.pack, packed.keys())
    nodes = graph.finished.program.constants()
    for one, node, array in zip(described["constants"], nodes, constants, strict=True):
        one["place"] = place(array) if id(node) in needed else None
    return described, own


def _packed(graph: Planned, loaded: LoadedPack) -> _Packed:
    """The packed weights for all targets that run here."""
    found: dict[tuple[int, str, str], NumpyArray] = {}
    for target in filter(None, (_here(name, machine) for name, machine in graph.machines)):
        for at, call, shared in graph.calls():
            if not call.desc.owned() or (ready := loaded.ready(call.desc.canonical(), target, shared)) is None:
                continue
            kernel, _, packers = ready
            for owned, launch in zip(kernel.owned, packers, strict=True):
                key = at, owned.name, owned.layout
                if key not in found and (arrays := _arrays(call, owned.inputs)) is not None:
                    found[key] = persistent.empty((owned.elements,), np.dtype(owned.dtype), target)
                    launch(*arrays, found[key])
    return found


def _here(name: str, machine: Target) -> Target | None:
    """A target of this machine that runs the code for another one."""
    if machine.moves:
        return None
    with contextlib.suppress(TvmdmlError):
        target = targets.resolve(machine.name)
        if any(one.code == machine.code for one in target.relatives([machine.code])):
            return target
    return None


def _arrays(call: Call, names: Sequence[str]) -> list[NumpyArray] | None:
    """The constants that a packer reads; ``None`` if it reads others."""
    tensors = dict(call.desc.tensors())
    found = []
    for name in names:
        edge, tensor = call.edges[name], tensors[name]
        if not isinstance(edge.source, Constant) or tensor is None:
            return None
        found.append(reading(edge.source.array, edge.offset, tensor))
    return found


def _needed(graph: Planned, pack: Pack, packed: Any) -> set[int]:
    """The constants that some kernel or packer reads as they are, or that say whether kernels run, by identity."""
    needed = {id(one.edge.source) for one in graph.finished.program.results}
    needed |= arranged(graph.finished.program, graph.kind)[1].deciding()
    for at, call, shared in graph.calls():
        for _, machine in graph.machines:
            for launch in _launches(call, shared, pack, machine):
                done = {one.name for one in launch.owned if (at, one.name, one.layout) in packed}
                unpacked = {name for one in launch.owned if one.name not in done for name in one.inputs}
                plain = call.edges.keys() - {one.name for one in launch.owned}
                needed |= {id(call.edges[name].source) for name in plain | unpacked}
    return needed


def _launches(call: Call, shared: Shared, pack: Pack, machine: Target) -> Sequence[Launch]:
    desc = spec.plain(call.desc)
    operation = pack.operation(records.operation_key(machine.code, lines.of(desc), _shared.write(desc, shared)))
    every = Launch(0, b"", (), ())  # which reads all as it is: the operation is not supported there
    return (every,) if operation is None else operation.launches

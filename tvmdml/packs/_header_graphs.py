"""The graphs of a pack in a C header: rows of its tables, a function for each, and the file with the weights."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml import targets
from tvmdml.arrays import NumpyArray
from tvmdml.errors import ModelError
from tvmdml.graph.launching import Argument, Tensor
from tvmdml.graph.loading import in_pack
from tvmdml.graph.memory import stacked
from tvmdml.graph.saved_plan import Called
from tvmdml.graph.saving import reading
from tvmdml.packs import lines
from tvmdml.packs.format import Pack
from tvmdml.packs.records import Graph, Launch
from tvmdml.tensors import ArrayTensorDesc, TensorDataType, TensorDesc

_ALIGNMENT = 64
_MARK_BYTES = 64
_ARENA, _DATA, _GIVEN = range(3)
"""The slots: the memory of intermediate results, the weights, and the graph's own tensors."""
_NAME = re.compile(r"[\w .+-]{1,200}", re.ASCII)

Chosen = Sequence[Sequence[Sequence[Launch]]]
"""The launches of each operation, by level."""


class _Place(NamedTuple):
    slot: int
    offset: int
    """-1 for a constant that is there in packed forms only."""
    weight: int = -1


class _Step(NamedTuple):
    called: Called
    operation: int
    places: tuple[_Place, ...]
    guards: tuple[tuple[_Place, bool], ...]
    """Where each condition is, and what it must be."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of its tensors."""
        return tuple(argument.name for argument, _ in self.called.arguments)

    @property
    def title(self) -> str:
        """For messages."""
        return self.called.launching.title


class Data:
    """The file: equal arrays of the pack are there once."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, int], tuple[NumpyArray, int]] = {}
        self.nbytes = _MARK_BYTES

    def add(self, array: NumpyArray) -> int:
        """The byte where an array begins."""
        key = array.__array_interface__["data"][0], array.nbytes
        if key not in self._arrays:
            self._arrays[key] = array, self.nbytes
            self.nbytes += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return self._arrays[key][1]

    def pieces(self) -> Iterator[bytes]:
        """Its content, after the mark."""
        for array, _ in self._arrays.values():
            yield array.reshape(-1).view(np.uint8).tobytes() if array.nbytes else b""
            yield b"\0" * (-array.nbytes % _ALIGNMENT)

    def mark(self) -> bytes:
        """The first bytes of the file, which the header has, too."""
        digest = hashlib.sha512()
        for piece in self.pieces():
            digest.update(piece)
        return digest.digest()


class GraphTables:
    """All graphs of a pack for CPUs."""

    def __init__(self, pack: Pack, graphs: Sequence[Graph], operations: Sequence[str]) -> None:
        """Read the graphs.

        Args:
            pack: the pack.
            graphs: those for CPUs.
            operations: the texts of the operations, by their numbers; of equal ones the last is taken, which has all launches.
        """
        self._pack = pack
        numbers = {text: number for number, text in enumerate(operations)}
        self._data = Data()
        self._graphs = [_Graph(pack, graph, numbers, self._data) for graph in graphs]
        self._names = distinct([identifier(graph.name) for graph in graphs])

    def data(self) -> Iterable[bytes]:
        """The content of the file with the weights. The header is made before."""
        yield self._data.mark()
        yield from self._data.pieces()

    def columns(self, name: str, tensor: Callable[[TensorDesc, bool], str], chosen: Chosen) -> dict[str, Iterable[str]]:
        """The rows of the header's tables.

        Args:
            name: the header's name.
            tensor: makes the row of a tensor.
            chosen: the launches of all operations.

        Raises:
            PackError: a graph lacks weights for its kernels.
        """
        tensors: list[str] = []
        places: list[str] = []
        guards: list[str] = []
        steps: list[str] = []
        copies: list[str] = []
        graphs, plans = [], []
        weight_steps: list[str] = []
        weights: list[list[int]] = [[] for _ in chosen]
        for graph, own in zip(self._graphs, self._names, strict=True):
            first = len(tensors)
            tensors += [tensor(desc, output) for desc, output in graph.tensors()]
            plan = f"{len(steps)}, {len(graph.steps)}, {len(copies)}, {len(graph.copies)}, {graph.arena}"
            for step in graph.steps:
                found = []
                for tensor_name, place in zip(step.names, step.places, strict=True):
                    if any(self._packing(launches[step.operation], tensor_name) for launches in chosen):
                        place = place._replace(weight=len(weight_steps))
                        weight_steps.append(f"{len(steps)},")
                        for level, launches in zip(weights, chosen, strict=True):
                            level.append(self._stored(graph, step, tensor_name, launches[step.operation]))
                    found.append(place)
                self._require(graph, step, found, chosen)
                steps.append(f"{{{step.operation}, {len(places)}, {len(guards)}, {len(step.guards)}}},")
                guards += [f"{{{one.slot}, {int(wanted)}, {one.offset}}}," for one, wanted in step.guards]
                places += [f"{{{one.slot}, {one.weight}, {one.offset}}}," for one in found]
            copies += [f"{{{', '.join(map(str, one))}}}," for one in graph.copies]
            plans.append(f"{{{plan}}},")
            counts = f"{len(graph.inputs)}, {len(graph.outputs)}"
            shown = graph.record.name if _NAME.fullmatch(graph.record.name) else own
            memory = graph.arena + max(
                (_temporaries(one) for level in chosen for step in graph.steps for one in level[step.operation]), default=0
            )
            graphs.append(f'{{"{shown}", "{name}_graph_{own}", {counts}, &{name}_graph_tensors_[{first}], {memory}}},')
        count = max(len(weight_steps), 1)
        mark = ", ".join(map(str, self._data.mark()))
        return {
            "GRAPH_COUNT": [str(len(graphs))],
            "GRAPH_TENSORS": tensors or ["{{0, 8, 1}, 0, 0, NULL, NULL, 0},"],
            "GRAPHS": graphs,
            "PLACES": places or ["{0, 0, 0},"],
            "GUARDS": guards or ["{0, 0, 0},"],
            "STEPS": steps or ["{0, 0, 0, 0},"],
            "COPIES": copies or ["{0, 0, 0, 0},"],
            "PLANS": plans,
            "WEIGHT_STEPS": weight_steps or ["0"],
            "WEIGHTS": [f"{{{', '.join(map(str, level or [-1]))}}}," for level in weights],
            "WEIGHT_COUNT": [str(count)],
            "OWN_WEIGHTS": [str(len(weight_steps))],
            "MARK": [mark],
            "DATA": [f"{name}.data"],
            "DATA_BYTES": [str(self._data.nbytes)],
        }

    def functions(self, name: str) -> list[str]:
        """A function for each graph."""
        return [
            graph.function(name, own, number) for number, (graph, own) in enumerate(zip(self._graphs, self._names, strict=True))
        ]

    @staticmethod
    def _packing(launches: Sequence[Launch], name: str) -> str | None:
        """The layout in which an input is packed, if it is."""
        return next((layout for launch in launches for packed, layout in launch.layouts if packed == name), None)

    def _stored(self, graph: _Graph, step: _Step, name: str, launches: Sequence[Launch]) -> int:
        """Where a packed weight is in the file; -1 if it is packed when the header is opened."""
        launch = next((one for one in launches if any(packed == name for packed, _ in one.layouts)), None)
        array = None if launch is None else graph.packed(step, launch, name)
        return -1 if array is None else self._data.add(array)

    def _require(self, graph: _Graph, step: _Step, places: Sequence[_Place], chosen: Chosen) -> None:
        """Every kernel and packer finds what it reads, and packers read constants."""
        by_name = dict(zip(step.names, places, strict=True))
        if any(one.offset < 0 for one, _ in step.guards):
            raise self._pack.damaged(f"its graph {graph.record.name!r} lacks a condition of {step.title}")
        for level in chosen:
            for launch in level[step.operation][:1]:
                read = set(step.names) - {one.name for one in launch.owned}
                for one in launch.owned:
                    if self._stored(graph, step, one.name, [launch]) < 0:
                        read |= set(one.inputs)
                        if any(by_name[name].slot != _DATA for name in one.inputs):
                            raise self._pack.error(
                                f"a graph {graph.record.name!r} with owned inputs", "graphs whose weights are constants, for C"
                            )
                if any(by_name[name].offset < 0 for name in read):
                    raise self._pack.damaged(f"its graph {graph.record.name!r} lacks a weight of {step.title}")


class _Graph:
    """One graph: its steps, and where each finds its tensors."""

    def __init__(self, pack: Pack, record: Graph, numbers: Mapping[str, int], data: Data) -> None:
        self.record = record
        self.found = in_pack(pack, record, targets.resolve(record.kind))
        self.plan = plan = self.found.plan
        # An owned input that nothing reads was given when the graph was compiled.
        self.inputs = [one for one in plan.inputs if not one.owned or one.source is not None]
        self.outputs = plan.forms()
        first = _GIVEN + len(self.inputs)
        slots = {one.source: _GIVEN + i for i, one in enumerate(self.inputs) if one.source is not None}
        slots |= {one.source: first + i for i, one in enumerate(plan.results) if one.source is not None}
        offsets, self.arena = stacked(plan.order, [plan.values[n] for n in plan.pieces])

        def place(argument: Argument) -> _Place:
            source, offset = argument.source, plan.values[argument.offset]
            if source.kind == "piece":
                return _Place(_ARENA, offsets[source.number] + offset)
            if source in slots:
                return _Place(slots[source], offset)
            absent = source.number in plan.absent
            return _Place(_DATA, -1 if absent else data.add(plan.constants[source.number]) + offset)

        self.steps = []
        with reading(f"{pack.shown}: {record.name}"):
            for called in plan.calls:
                group = plan.groups[called.launching.group]
                text = lines.toml(group.line, group.in_place)
                if text not in numbers:
                    raise pack.damaged(f"it lacks an operation of its graph {record.name!r}: {text}")
                own = tuple(place(argument) for argument, _ in called.arguments)
                conditions = called.launching.arguments[len(own) :]
                guards = tuple(zip(map(place, conditions), called.launching.wanted, strict=True))
                self.steps.append(_Step(called, numbers[text], own, guards))
        self.copies = []
        for i, (one, (dtype, shape)) in enumerate(zip(plan.results, self.outputs, strict=True)):
            if one.source is None:
                nbytes = math.prod(shape) * dtype.itemsize
                source = (first + one.copies, 0) if isinstance(one.copies, int) else (_DATA, self._added(data, one, nbytes))
                self.copies.append((first + i - _GIVEN, *source, nbytes))

    @staticmethod
    def _added(data: Data, one: Tensor, nbytes: int) -> int:
        assert isinstance(one.copies, np.ndarray)
        if one.copies.nbytes != nbytes:
            raise ModelError(f"an output of {nbytes} bytes, which has {one.copies.nbytes}")
        return data.add(np.ascontiguousarray(one.copies))

    def packed(self, step: _Step, launch: Launch, name: str) -> NumpyArray | None:
        """A weight as a launch takes it, if it is there."""
        by_name = {argument.name: argument for argument, _ in step.called.arguments}
        own = next(one for one in launch.owned if one.name == name)
        sources = tuple((by_name[one].source, by_name[one].offset) for one in own.inputs)
        return self.plan.packed_weights.get((own.layout, sources))

    def tensors(self) -> Iterator[tuple[TensorDesc, bool]]:
        """The inputs and outputs, and whether they are written."""
        for one in self.inputs:
            shape, strides = ([self.plan.values[n] for n in places] for places in (one.shape, one.strides))
            elements = [step // one.dtype.itemsize for step in strides]
            packed = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
            yield ArrayTensorDesc(kind_of(one.dtype), shape or (1,), None if elements == packed else elements), False
        for dtype, sizes in self.outputs:
            yield TensorDesc(kind_of(dtype), sizes or (1,)), True

    def function(self, name: str, own: str, number: int) -> str:
        """Its function in C."""
        model = self.found.described.get("model")
        outputs = outputs_of(model) if model else [f"{i}" for i in range(len(self.outputs))]
        names = distinct(
            [
                *(f"in_{identifier(node.name or str(i))}" for i, node in enumerate(self.inputs)),
                *(f"out_{identifier(str(one))}" for one in outputs),
            ]
        )
        kinds = [c_type(desc.data_type) for desc, _ in self.tensors()]
        pairs = list(zip(names, kinds, strict=True))
        parameters = [f"{kind} *{one}" if i >= len(self.inputs) else f"const {kind} *{one}" for i, (one, kind) in enumerate(pairs)]
        arguments = [one if i >= len(self.inputs) else f"(void *){one}" for i, (one, _) in enumerate(pairs)]
        shapes = ", ".join(f"{one} {desc}" for (one, _), (desc, _) in zip(pairs, self.tensors(), strict=True))
        return (
            f"/* Graph {own}: {shapes} */\n"
            f"static inline int {name}_graph_{own}({', '.join([f'{name}_context *context', *parameters])}) {{\n"
            f"    void *const tensors[] = {{{', '.join(arguments)}}};\n"
            f"    return {name}_run_in_(context, &{name}_graphs[{number}], tensors);\n"
            f"}}\n"
        )


def outputs_of(model: Mapping[str, Any]) -> list[str]:
    """The names of the tensors of a model's outputs: those of a sequence have a number."""
    lengths = model.get("lengths", [None] * len(model["outputs"]))
    pairs = zip(model["outputs"], lengths, strict=True)
    return [one for name, n in pairs for one in ([str(name)] if n is None else [f"{name}_{i}" for i in range(n)])]


def kind_of(dtype: np.dtype[Any]) -> TensorDataType:
    """The type of a tensor with elements of NumPy's type."""
    return TensorDataType.from_numpy(dtype)


def c_type(data_type: TensorDataType) -> str:
    """The C type of elements."""
    names = {TensorDataType.FLOAT64: "double", TensorDataType.FLOAT32: "float", TensorDataType.FLOAT16: "uint16_t"}
    return names.get(data_type) or f"{data_type.stored.tvm}_t"


def _temporaries(launch: Launch) -> int:
    """The bytes of the temporaries of a launch, each from a cache line on."""
    return sum(-(-np.dtype(dtype).itemsize * count // _ALIGNMENT) * _ALIGNMENT for dtype, count in launch.temporaries)


def identifier(name: str) -> str:
    """The same in letters, digits and ``_``."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)[:60] or "_"


def distinct(names: Sequence[str]) -> list[str]:
    """Names, with a number where they would be equal."""
    found: list[str] = []
    for name in names:
        own, times = name, 2
        while own in found:
            own, times = f"{name}_{times}", times + 1
        found.append(own)
    return found

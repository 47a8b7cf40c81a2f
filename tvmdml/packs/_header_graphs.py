"""The graphs of a pack in a C header: rows of its tables, functions for each, and the file with the weights.

The plans are those that Python reads. Expressions of sizes become a table of values (``_header_values``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.graph.memory import stacked
from tvmdml.graph.stored.open_saved import shown
from tvmdml.graph.stored.saved_plan import SavedPlan
from tvmdml.graph.stored.saving import reading
from tvmdml.library.format import Pack
from tvmdml.library.records import GraphRecord
from tvmdml.onnx.packed_open import ranges_of
from tvmdml.onnx.random_state import STATE
from tvmdml.packs import _header_choices, _header_text
from tvmdml.packs._header_data import Data, c_type, distinct, identifier, kind_of
from tvmdml.packs._header_rows import PlanRows, TableContext, TableRows, fixed_recording, open_recording, size_row, text_of
from tvmdml.tensors import ArrayTensorDesc, TensorDataType, TensorDesc

_LINE = 64
"""The bytes of a cache line, to which temporaries are aligned."""
_NAME = re.compile(r"[\w .+-]{1,200}", re.ASCII)
_NO_ROWS = {
    "CONDITIONS": '{0, ""},',
    "FORMS": "{{0, 8, 1}, 0, 0, 0, 0, 0},",
    "ARRAYS": "{{0, 8, 1}, 0, 0},",
    "PLACES": "{0, 0, 0, 0, 0, 0},",
    "GUARDS": "{0, 0},",
    "STEPS": "{0, 0, 0, 0, 0, 0},",
    "COPIES": "{0, 0, 0, 0, 0},",
    "PACKINGS": "{0, 0},",
    "ANSWERS": "{0, 0, 0, 0, 0, 0, 0, 0, 0, 0},",
    "WAYS": "{0, 0, 0},",
    "TITLES": '"",',
    "PACKERS": "{0, 0, 0, 0, 0, 0},",
    "ALL_WEIGHTS": "{{0, 8, 1}, 0, -1, 0, 0, 0},",
    "SIZES": '{"", 0, 0, 1},',
    "VALUES": "{1, 0, 0},",
}
"""For tables that would be empty, which C does not allow."""


class _Model(NamedTuple):
    """A graph: that of one plan without open sizes, or a model with one plan for each recording."""

    shown: str
    own: str
    """In the names of its functions."""
    recordings: Sequence[PlanRows]
    ranges: Mapping[str, range]
    """Its open sizes, in the order of the inputs' shapes."""
    inputs: Sequence[str]
    outputs: Sequence[str]

    @property
    def fixed(self) -> SavedPlan | None:
        """Its plan, if no size is open."""
        plan = self.recordings[0].plan
        return plan if isinstance(plan, SavedPlan) else None

    def tensors(self) -> list[TensorDesc]:
        """The inputs and outputs of a graph without open sizes."""
        plan = self.fixed
        assert plan is not None
        several: list[TensorDesc] = []
        for node in self.recordings[0].inputs.values():
            shape, strides = ([plan.values[n] for n in places] for places in (node.shape, node.strides))
            elements = [step // node.dtype.itemsize for step in strides]
            dense = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
            several.append(ArrayTensorDesc(kind_of(node.dtype), shape or (1,), None if elements == dense else elements))
        return [*several, *(TensorDesc(kind_of(dtype), sizes or (1,)) for dtype, sizes in plan.forms())]

    def forms(self) -> list[tuple[TensorDataType, str]]:
        """The type of each input and output, and the tensor in words."""
        if self.fixed is not None:
            return [(desc.data_type, str(desc)) for desc in self.tensors()]
        widest = max(self.recordings, key=lambda recording: len(recording.ranges))
        kinds = [(kind_of(dtype), shape) for dtype, shape in widest.shown(self.inputs)]
        return [(kind, f"{kind.tvm}{text_of(shape)}") for kind, shape in kinds]

    def memory(self) -> int:
        """The bytes of intermediate results and temporaries; 0 if sizes are open."""
        if (plan := self.fixed) is None:
            return 0
        _, arena = stacked(plan.order, [plan.values[n] for n in plan.pieces])
        several = (answer.launch.temporaries for answer in self.recordings[0].answers)
        return arena + max((sum(-(-np.dtype(t).itemsize * n // _LINE) * _LINE for t, n in each) for each in several), default=0)


class GraphTables:
    """The graphs of a pack, for CPUs: either all have open sizes, and are one model, or none has."""

    def __init__(self, pack: Pack, records: Sequence[GraphRecord], name: str, are_open: bool, codes: Iterable[str]) -> None:
        """Read them.

        Args:
            pack: the pack.
            records: its graphs for CPUs.
            name: the header's.
            are_open: whether they have open sizes.
            codes: of the targets that the pack has operations for.

        Raises:
            PackError: it is damaged, or has no answers of schedules.
        """
        self._pack, self._name = pack, name
        self._models = [_open_model(pack, records)] if are_open else list(_fixed_models(pack, records, codes))
        recordings = [recording for model in self._models for recording in model.recordings]
        self.codes = {answer.target for recording in recordings for answer in recording.answers}
        self._data = Data()
        self.used: list[set[bytes]] = []
        """The keys of each level's kernels."""
        self.most_inputs = 1
        """Of a kernel that packs a weight."""

    def data(self) -> Iterable[bytes]:
        """The content of the file with the weights. The header is made before."""
        yield self._data.mark()
        yield from self._data.pieces()

    def columns(self, context: TableContext, tensor: Callable[[TensorDesc, bool], str]) -> dict[str, Iterable[str]]:
        """The rows of the header's tables.

        Args:
            context: what the header has beside graphs.
            tensor: makes the row of a tensor.

        Raises:
            PackError: it lacks a kernel or a weight, or has numbers that are too large for C.
        """
        tables = TableRows(self._pack, context, self._data)
        rows = tables.rows
        plans: list[str] = []
        tensors: list[str] = []
        graphs, plans_of = [], []
        for model in self._models:
            plans_of.append(f"{{{len(plans)}, {len(model.recordings)}}},")
            for recording in model.recordings:
                with reading(f"{self._pack.shown}: {recording.record.name}"):
                    plans.append(tables.plan(recording, list(model.ranges), model.inputs))
            sizes = f"&{self._name}_sizes_[{len(rows['SIZES'])}]" if model.ranges else "NULL"
            rows["SIZES"] += [size_row(name, values) for name, values in model.ranges.items()]
            static = "NULL"
            if model.fixed is not None:
                static = f"&{self._name}_graph_tensors_[{len(tensors)}]"
                tensors += [tensor(desc, i >= len(model.inputs)) for i, desc in enumerate(model.tensors())]
            counts = f"{len(model.ranges)}, {len(model.inputs)}, {len(model.outputs)}"
            function = f"{self._name}_graph_{model.own}"
            graphs.append(f'{{"{model.shown}", "{function}", {counts}, {sizes}, {static}, {model.memory()}}},')
        self.used, self.most_inputs = tables.used, tables.most_inputs
        groups = [[f"{{{ways}, {count}}}" for ways, count in level] for level in tables.groups]
        return {
            "GRAPH_COUNT": [str(len(graphs))],
            **{name: rows[name] or [row] for name, row in _NO_ROWS.items()},
            "GRAPH_TENSORS": tensors or ["{{0, 8, 1}, 0, 0, NULL, NULL, 0},"],
            "GRAPHS": graphs,
            "PLANS_OF_GRAPHS": plans_of,
            "PLANS": plans,
            "GROUP_ROWS": [f"{{{', '.join(level or ['{0, 0}'])}}}," for level in groups],
            "GROUP_COUNT": [str(max(len(rows["TITLES"]), 1))],
            "WEIGHT_COUNT": [str(max(len(rows["ALL_WEIGHTS"]), 1))],
            **{f"MOST_{name.upper()}": [str(max(number, 1))] for name, number in tables.most.items()},
            "MOST_CHOICE": [str(_header_choices.MOST_ARGUMENTS)],
            "MOST_SIZES": [str(max(1, *(len(model.ranges) for model in self._models)))],
            "MOST_GIVEN": [str(max(1, *(len(model.inputs) + len(model.outputs) for model in self._models)))],
            "MARK": [", ".join(map(str, self._data.mark()))],
            "DATA": [f"{self._name}.data"],
            "DATA_BYTES": [str(self._data.nbytes)],
        }

    def text(self) -> dict[str, Iterable[str]] | None:
        """What functions that go on with a text need, if it is a language model."""
        first = self._models[0]
        largest = {name: values[-1] for name, values in first.ranges.items()}
        return _header_text.columns(self._pack, first.inputs, first.outputs, largest)

    def functions(self) -> Iterator[str]:
        """The functions in C of each graph: one that runs it, and of one with open sizes one that prepares a context for them."""
        for number, model in enumerate(self._models):
            yield from self._functions(number, model)

    def _functions(self, number: int, model: _Model) -> Iterator[str]:
        name, own, forms = self._name, model.own, model.forms()
        names = distinct(
            [
                *(f"size_{identifier(size)}" for size in model.ranges),
                *(f"in_{identifier(part)}" for part in model.inputs),
                *(f"out_{identifier(part)}" for part in model.outputs),
            ]
        )
        count = len(model.ranges)
        sizes = [f"int64_t {size}" for size in names[:count]]
        tensors, arguments = [], []
        for i, (part, (kind, _)) in enumerate(zip(names[count:], forms, strict=True)):
            is_output = i >= len(model.inputs)
            tensors.append(f"{c_type(kind)} *{part}" if is_output else f"const {c_type(kind)} *{part}")
            arguments.append(part if is_output else f"(void *){part}")
        shapes = ", ".join(f"{part} {words}" for part, (_, words) in zip(names[count:], forms, strict=True))
        ranges = ", ".join(f"{part}={shown(values)}" for part, values in zip(names, model.ranges.values(), strict=False))
        given = f"    const int64_t sizes[] = {{{', '.join(names[:count])}}};\n" if sizes else ""
        yield (
            f"/* Graph {own}: {f'{ranges}; ' if sizes else ''}{shapes} */\n"
            f"static inline int {name}_graph_{own}({', '.join([f'{name}_context *context', *sizes, *tensors])}) {{\n"
            f"{given}    void *const tensors[] = {{{', '.join(arguments)}}};\n"
            f"    return {name}_run_at_(context, &{name}_graphs[{number}], {'sizes' if sizes else 'NULL'}, tensors);\n"
            f"}}\n"
        )
        if sizes:
            yield (
                f"/* Prepare a context for sizes: {name}_tensors then has the sizes of the outputs. */\n"
                f"static inline int {name}_resize_{own}({', '.join([f'{name}_context *context', *sizes])}) {{\n"
                f"{given}    return {name}_resize_to_(context, &{name}_graphs[{number}], sizes);\n"
                f"}}\n"
            )


def _open_model(pack: Pack, records: Sequence[GraphRecord]) -> _Model:
    """The model of a pack whose sizes are open.

    Raises:
        PackError: it is damaged, has no answers of schedules, or is more than one model.
    """
    recordings = [open_recording(pack, record) for record in records]
    models = [recording.model for recording in recordings if recording.model is not None]
    kinds = [
        (model.inputs.keys(), model.types, [result.dtype for result in recording.plan.results])
        for model, recording in zip(models, recordings, strict=True)
    ]
    if any(kind != kinds[0] for kind in kinds[1:]):
        raise pack.error("models with different inputs or outputs", "one model, for C", "Build a pack for each.")
    known = ranges_of(models)
    shapes = [zip(*(model.inputs[name] for model in models), strict=True) for name in models[0].inputs]
    ranges = {str(n): known[str(n)] for several in shapes for sizes in several for n in sizes if n in known}
    title = records[0].name if len(records) == 1 else records[0].name.rpartition(".")[0] or records[0].name
    read = {node.name for recording in recordings for node in recording.plan.inputs}
    if not ranges or any(node.owned for recording in recordings for node in recording.plan.inputs):
        raise pack.error(f"a graph {title!r} with owned inputs, or without sizes", "models with open sizes, for C")
    inputs = [part for part in (*models[0].inputs, STATE) if part in read]
    outputs = _outputs_of(recordings[0].described["model"])
    return _Model(text_of(title), identifier(title), recordings, ranges, inputs, outputs)


def _fixed_models(pack: Pack, records: Sequence[GraphRecord], codes: Iterable[str]) -> Iterator[_Model]:
    """The graphs of a pack for certain sizes."""
    names = distinct([identifier(record.name) for record in records])
    for record, own in zip(records, names, strict=True):
        recording = fixed_recording(pack, record, codes)
        count = len(recording.plan.results)
        with reading(f"{pack.shown}: {record.name}"):
            model = recording.described.get("model")
            outputs = _outputs_of(model) if model else [f"{i}" for i in range(count)]
            if len(outputs) != count:
                raise ValueError(f"{len(outputs)} names of {count} outputs")
        shown_name = record.name if _NAME.fullmatch(record.name) else own
        yield _Model(shown_name, own, [recording], {}, list(recording.inputs), outputs)


def _outputs_of(model: Mapping[str, Any]) -> list[str]:
    """The names of the tensors of a model's outputs: those of a sequence have a number."""
    lengths = model.get("lengths", [None] * len(model["outputs"]))
    pairs = zip(model["outputs"], lengths, strict=True)
    return [part for name, n in pairs for part in ([str(name)] if n is None else [f"{name}_{i}" for i in range(n)])]

"""A model with open sizes in a C header: rows of its tables, its functions, and the file with the weights.

The plan is the one that Python reads. Its expressions of sizes become a table of values (``_header_values``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvmdml.graph.open_saved import shown
from tvmdml.graph.saving import reading
from tvmdml.onnx.packed_open import ranges_of
from tvmdml.onnx.random_state import STATE
from tvmdml.packs import _header_choices, _header_text
from tvmdml.packs._header_graphs import Data, c_type, distinct, identifier, kind_of, outputs_of
from tvmdml.packs._header_open_rows import Context, Recording, Rows, size_row, text_of
from tvmdml.packs.format import Pack
from tvmdml.packs.records import Graph


class OpenTables:
    """The model of a pack, for CPUs."""

    def __init__(self, pack: Pack, records: Sequence[Graph], name: str) -> None:
        """Read it.

        Args:
            pack: the pack.
            records: its graphs for CPUs.
            name: the header's.

        Raises:
            PackError: it is damaged, or has no answers of schedules.
        """
        self._pack, self._name = pack, name
        self.recordings = [Recording(pack, record) for record in records]
        models = [recording.model for recording in self.recordings]
        own = [
            (recording.model.inputs.keys(), recording.model.types, [each.dtype for each in recording.plan.results])
            for recording in self.recordings
        ]
        if any(recording != own[0] for recording in own[1:]):
            raise pack.error("models with different inputs or outputs", "one model, for C", "Build a pack for each.")
        ranges = ranges_of(models)
        shapes = [zip(*(recording.inputs[name] for recording in models), strict=True) for name in models[0].inputs]
        named = (n for several in shapes for sizes in several for n in sizes if n in ranges)
        self.ranges = {str(n): ranges[str(n)] for n in named}
        """In the order of the inputs' shapes."""
        self._title = records[0].name if len(records) == 1 else records[0].name.rpartition(".")[0] or records[0].name
        first = models[0]
        read = {node.name for recording in self.recordings for node in recording.plan.inputs}
        self.inputs = [part for part in (*first.inputs, STATE) if part in read]
        self.outputs = [str(recording) for recording in outputs_of(self.recordings[0].described["model"])]
        if not self.ranges or any(node.owned for recording in self.recordings for node in recording.plan.inputs):
            raise pack.error(f"a graph {self._title!r} with owned inputs, or without sizes", "models with open sizes, for C")
        self.codes = {answer.target for recording in self.recordings for answer in recording.answers}
        self._data = Data()
        self._tables: dict[str, list[str]] = {}
        self.used: list[set[bytes]] = []
        """The keys of each level's kernels."""
        self.most_inputs = 1
        """Of a kernel that packs a weight."""

    def data(self) -> Iterable[bytes]:
        """The content of the file with the weights. The header is made before."""
        yield self._data.mark()
        yield from self._data.pieces()

    def columns(self, context: Context) -> dict[str, Iterable[str]]:
        """The rows of the header's tables.

        Raises:
            PackError: it lacks a kernel or a weight, or has numbers that are too large for C.
        """
        tables = Rows(self._pack, context, self._data, list(self.ranges), self.inputs)
        plans = []
        for recording in self.recordings:
            with reading(f"{self._pack.shown}: {recording.record.name}"):
                plans.append(tables.plan(recording))
        self.used, self.most_inputs = tables.used, tables.most_inputs
        own = identifier(self._title)
        shown = text_of(self._title)
        rows = tables.rows
        counts = f"{len(self.ranges)}, {len(self.inputs)}, {len(self.outputs)}"
        sizes = [size_row(name, values) for name, values in self.ranges.items()]
        first = len(rows["SIZES"])
        groups = [[f"{{{ways}, {count}}}" for ways, count in level] for level in tables.groups]
        mark = self._data.mark()
        empty = {
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
            "PACKERS": "{0, 0, 0, 0, 0, 0, 0, 0},",
            "ALL_WEIGHTS": "{{0, 8, 1}, 0, 0, 0, 0},",
        }
        return {
            "GRAPH_COUNT": ["1"],
            **{name: rows[name] or [row] for name, row in empty.items()},
            "VALUES": rows["VALUES"],
            "SIZES": [*rows["SIZES"], *sizes],
            "GRAPHS": [f'{{"{shown}", "{self._name}_graph_{own}", {counts}, &{self._name}_sizes_[{first}]}},'],
            "PLANS_OF_GRAPHS": [f"{{0, {len(plans)}}},"],
            "PLANS": plans,
            "GROUP_ROWS": [f"{{{', '.join(level or ['{0, 0}'])}}}," for level in groups],
            "GROUP_COUNT": [str(max(len(rows["TITLES"]), 1))],
            "WEIGHT_COUNT": [str(max(len(rows["ALL_WEIGHTS"]), 1))],
            **{f"MOST_{name.upper()}": [str(max(number, 1))] for name, number in tables.most.items()},
            "MOST_CHOICE": [str(_header_choices.MOST_ARGUMENTS)],
            "MOST_SIZES": [str(len(self.ranges))],
            "MOST_GIVEN": [str(max(len(self.inputs) + len(self.outputs), 1))],
            "MARK": [", ".join(map(str, mark))],
            "DATA": [f"{self._name}.data"],
            "DATA_BYTES": [str(self._data.nbytes)],
        }

    def text(self) -> dict[str, Iterable[str]] | None:
        """What functions that go on with a text need, if it is a language model."""
        largest = {name: values[-1] for name, values in self.ranges.items()}
        return _header_text.columns(self._pack, self.inputs, self.outputs, largest)

    def functions(self) -> list[str]:
        """Its functions in C: one that runs it for sizes, and one that prepares a context for them."""
        name, own = self._name, identifier(self._title)
        widest = max(self.recordings, key=lambda recording: len(recording.model.names))
        names = distinct(
            [
                *(f"size_{identifier(size)}" for size in self.ranges),
                *(f"in_{identifier(part)}" for part in self.inputs),
                *(f"out_{identifier(part)}" for part in self.outputs),
            ]
        )
        count, end = len(self.ranges), len(self.ranges) + len(self.inputs)
        forms = widest.shown(self.inputs)
        kinds = [c_type(kind_of(dtype)) for dtype, _ in forms]
        sizes = [f"int64_t {size}" for size in names[:count]]
        tensors = [
            f"{kind} *{part}" if i >= end - count else f"const {kind} *{part}"
            for i, (part, kind) in enumerate(zip(names[count:], kinds, strict=True))
        ]
        arguments = [part if i >= end - count else f"(void *){part}" for i, part in enumerate(names[count:])]
        shapes = ", ".join(
            f"{part} {kind_of(dtype).tvm}{text_of(str(shape))}" for part, (dtype, shape) in zip(names[count:], forms, strict=True)
        )
        ranges = ", ".join(f"{part}={shown(values)}" for part, values in zip(names, self.ranges.values(), strict=False))
        given = f"    const int64_t sizes[] = {{{', '.join(names[:count])}}};\n"
        return [
            f"/* Graph {own}: {ranges}; {shapes} */\n"
            f"static inline int {name}_graph_{own}({', '.join([f'{name}_context *context', *sizes, *tensors])}) {{\n"
            f"{given}    void *const tensors[] = {{{', '.join(arguments)}}};\n"
            f"    return {name}_run_at_(context, &{name}_graphs[0], sizes, tensors);\n"
            f"}}\n",
            f"/* Prepare a context for sizes: {name}_tensors then has the sizes of the outputs. */\n"
            f"static inline int {name}_resize_{own}({', '.join([f'{name}_context *context', *sizes])}) {{\n"
            f"{given}    return {name}_resize_to_(context, &{name}_graphs[0], sizes);\n"
            f"}}\n",
        ]

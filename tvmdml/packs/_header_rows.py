"""The rows of a header's tables for graphs: those of one plan after another.

A graph for certain sizes has one plan without sizes. A model with open sizes has one for each recording.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml import targets
from tvmdml.graph.launching import LaunchArgument, Launching, LaunchTensor, PackedKey
from tvmdml.graph.stored import answers
from tvmdml.graph.stored.answers import PackAnswer
from tvmdml.graph.stored.loading import in_pack, open_in_pack
from tvmdml.graph.stored.open_saved import drawn
from tvmdml.graph.stored.saved_plan import SavedPlan, StoredPlan
from tvmdml.graph.stored.saving import reading
from tvmdml.graph.stored.written import ReadPlan
from tvmdml.library import lines, records
from tvmdml.library.format import Pack
from tvmdml.library.records import GraphRecord, LaunchRecord, PackedRecord
from tvmdml.onnx.packed_open import OpenRecording
from tvmdml.packs._header_data import Data, distinct, kind_of
from tvmdml.packs._header_values import PlanValues
from tvmdml.tensors.arrays import NumpyArray

_ARENA, _DATA, _ARRAY, _GIVEN = range(4)
_CHECKED = 8
"""So many sizes are checked as Python checks them when a pack is loaded."""
_MOST_BYTES = 1 << 47
"""Of an array: more than a process has."""
_TEXT = re.compile(r"[^\w .,:;()\[\]<>=!*/%+'-]", re.ASCII)
_LONGEST_TEXT = 200


class TableContext(NamedTuple):
    """What a header has beside the graphs."""

    numbers: Any
    """The table of integers."""
    lists: Any
    """The table of lists of values."""
    kernel: Callable[[bytes], int]
    """The number of a kernel. Raises ``PackError`` if it is not there."""
    packer: Callable[[PackedRecord], str]
    """The row of a launch that packs a weight."""
    levels: Sequence[Sequence[str]]
    """Of each level the codes of targets that it may run, the best one first."""


class _Form(NamedTuple):
    """How a kernel of a group takes an input packed."""

    target: str
    packed: PackedRecord


class _Group(NamedTuple):
    """What the answers of a group take."""

    forms: list[_Form]
    """Of inputs that some of them take packed."""
    read: set[str]
    """The arrays that some of them read as they are. That without a name is a condition."""


class PlanRows(NamedTuple):
    """One plan of a graph."""

    record: GraphRecord
    described: Mapping[str, Any]
    plan: ReadPlan
    answers: Sequence[PackAnswer]
    """The launches of its groups."""
    inputs: Mapping[str, LaunchTensor]
    """Those that a run is given, by their names; an input that has none has its number."""
    packed: Mapping[PackedKey, NumpyArray]
    """Weights as kernels read them."""
    absent: frozenset[int]
    """The constants that are there in packed forms only."""
    ranges: Mapping[str, range]
    """The sizes that are open in the plan, in the order of its function's symbols."""
    model: OpenRecording | None
    """What is said of a model with open sizes."""

    def shown(self, names: Sequence[str]) -> list[tuple[np.dtype[Any], str]]:
        """The type and shape of each input and output of a model with open sizes, in words."""
        assert self.model is not None
        numbers = self.plan.function.shown(list(self.ranges))
        forms = []
        for name in names:
            own = self.inputs.get(name)
            shape = list(map(str, self.model.inputs[name])) if own is None else [numbers[n] for n in own.shape]
            forms.append((self.model.types[name] if own is None else own.dtype, f"[{', '.join(shape)}]"))
        return [*forms, *((result.dtype, f"[{', '.join(numbers[n] for n in result.shape)}]") for result in self.plan.results)]


def open_recording(pack: Pack, record: GraphRecord) -> PlanRows:
    """A recording of a model with open sizes.

    Raises:
        PackError, ModelError: it is damaged, or has no answers of schedules.
    """
    opened = open_in_pack(pack, record, targets.resolve(record.kind), {})
    with reading(f"{pack.shown}: {record.name}"):
        model = OpenRecording(opened)
        plan = StoredPlan(*opened.plan.parts)
        ranges = {limit.name: limit.values for limit in opened.plan.limits}
        for sizes in itertools.islice(
            filter(opened.plan.allows, drawn(opened.plan.limits, _CHECKED, np.random.default_rng(0))), _CHECKED
        ):
            opened.plan.at(sizes).check_calls()
        if opened.answers is None:
            raise pack.error("a model without answers of schedules", "one that this version built", "Build it again.")
        chosen = list(answers.read(opened.answers, len(plan.groups)))
        inputs = {node.name: node for node in plan.inputs}
        return PlanRows(record, opened.described, plan, chosen, inputs, {}, frozenset(), ranges, model)


def fixed_recording(pack: Pack, record: GraphRecord, codes: Iterable[str]) -> PlanRows:
    """The plan of a graph for certain sizes. Its launches are those of the pack's operations for targets with these codes.

    Raises:
        PackError, ModelError: it is damaged.
    """
    graph = in_pack(pack, record, targets.resolve(record.kind))
    plan = graph.plan
    with reading(f"{pack.shown}: {record.name}"):
        plan.check_calls()
        # An owned input that nothing reads was given when the graph was compiled.
        places = [i for i, node in enumerate(plan.inputs) if not node.owned or node.source is not None]
        names = distinct([plan.inputs[i].name or str(k) for k, i in enumerate(places)])
        plan.inputs = list(plan.inputs)
        for i, name in zip(places, names, strict=True):
            plan.inputs[i] = plan.inputs[i]._replace(name=name)
        inputs = {plan.inputs[i].name: plan.inputs[i] for i in places}
        chosen = list(_of_operations(pack, record, plan, list(codes)))
        return PlanRows(record, graph.described, plan, chosen, inputs, plan.packed_weights, plan.absent, {}, None)


def _of_operations(pack: Pack, record: GraphRecord, plan: SavedPlan, codes: Sequence[str]) -> Iterator[PackAnswer]:
    for number, group in enumerate(plan.groups):
        operations = [(code, pack.operation(records.operation_key(code, group.line, group.in_place))) for code in codes]
        if not any(operation is not None for _, operation in operations):
            text = lines.toml(group.line, group.in_place)
            raise pack.damaged(f"it lacks an operation of its graph {record.name!r}: {text}")
        for code, operation in operations:
            launches: list[LaunchRecord] = [] if operation is None else sorted(operation.launches)
            for launch in launches:
                if not launch.threads < 1 << 31:
                    raise pack.damaged(f"it has a launch of {group.title} on {launch.threads} threads")
                if launch.layouts == launches[0].layouts:  # weights are packed once, for any number of threads
                    yield PackAnswer.fixed(number, code, launch)


class TableRows:
    """The rows of all tables."""

    def __init__(self, pack: Pack, context: TableContext, data: Data) -> None:
        self._pack, self._context, self._data = pack, context, data
        self._names: Sequence[str] = ()
        self._inputs: Sequence[str] = ()
        self.rows: dict[str, list[str]] = {
            name: []
            for name in (
                *("VALUES", "SIZES", "CONDITIONS", "FORMS", "ARRAYS", "PLACES", "GUARDS", "STEPS", "COPIES", "PACKINGS", "ANSWERS"),
                *("WAYS", "TITLES", "PACKERS", "ALL_WEIGHTS"),
            )
        }
        self._known: dict[tuple[str, str], int] = {}
        self.groups: list[list[tuple[int, int]]] = [[] for _ in context.levels]
        self.used: list[set[bytes]] = [set() for _ in context.levels]
        self._weights: dict[tuple[Any, ...], int] = {}
        self.most_inputs = 1
        self.most = dict.fromkeys(("values", "pieces", "arrays", "dimensions", "views", "arguments"), 1)

    def _row(self, table: str, row: str) -> int:
        """Add a row that may be there."""
        key = table, row
        if key not in self._known:
            self._known[key] = len(self.rows[table])
            self.rows[table].append(row)
        return self._known[key]

    def _grown(self, what: str, number: int) -> None:
        self.most[what] = max(self.most[what], number)

    def plan(self, recording: PlanRows, names: Sequence[str], inputs: Sequence[str]) -> str:
        """The row of a recording, whose other rows are added.

        Args:
            recording: it.
            names: the open sizes of its graph.
            inputs: the inputs of its graph.

        Raises:
            PackError, ValueError: it is damaged, or has numbers that are too large.
        """
        self._names, self._inputs = names, inputs
        values = PlanValues(self._context.numbers.add, self._context.lists.add)
        first_limit = len(self.rows["SIZES"])
        for name in names:
            self.rows["SIZES"].append(size_row(name, recording.ranges.get(name) or _only(recording, name)))
        sizes = [values.size(names.index(name)) for name in recording.ranges]
        read = values.reading(recording.plan.function, sizes)
        numbers = read.wanted()
        first_condition = len(self.rows["CONDITIONS"])
        for value, condition in read.conditions():
            text = "a choice" if condition is None else self._condition(recording, condition)
            self.rows["CONDITIONS"].append(f'{{{value}, "{text_of(text)}"}},')
        conditions = f"{first_condition}, {len(self.rows['CONDITIONS']) - first_condition}"
        forms = self._forms(recording, values, numbers)
        arrays = f"{len(self.rows['ARRAYS'])}, {len(recording.plan.arrays)}"
        for array in recording.plan.arrays:
            self.rows["ARRAYS"].append(self._array(array, numbers))
        first_group = len(self.rows["TITLES"])
        groups = self._groups(recording, values, sizes)
        steps = f"{len(self.rows['STEPS'])}, {len(recording.plan.launchings)}"
        for launching in recording.plan.launchings:
            self._step(recording, launching, numbers, first_group, groups[launching.group])
        copies = self._copies(recording)
        needed = sorted({*numbers, *read.quotients})
        pieces = self._list([numbers[n] for n in recording.plan.pieces])
        order = self._list([n for i, below in recording.plan.order for n in (i, len(below), *below)])
        self._grown("values", len(values.rows))
        self._grown("pieces", len(recording.plan.pieces))
        self._grown("arrays", len(recording.plan.arrays))
        first_value = len(self.rows["VALUES"])
        for operation, a, b in values.rows:
            self.rows["VALUES"].append(f"{{{operation}, {a}, {b}}},")
        parts = (
            *(f"{first_limit}", f"{first_value}, {len(values.rows)}", conditions, f"{self._list(needed)}, {len(needed)}"),
            *(f"{forms}", f"{pieces}, {len(recording.plan.pieces)}", f"{order}", arrays, steps, copies, self._pairs(recording)),
        )
        return f"{{{', '.join(parts)}}},"

    def _list(self, several: Sequence[int]) -> int:
        return self._context.lists.add(several)

    @staticmethod
    def _condition(recording: PlanRows, condition: Any) -> str:
        only = recording.plan.function._replace(conditions=(condition,), choices=())
        return " and ".join(only.texts(list(recording.ranges)))

    # -- Tensors

    def _forms(self, recording: PlanRows, values: PlanValues, numbers: Sequence[int]) -> int:
        first, dimensions = len(self.rows["FORMS"]), 0
        for name in self._inputs:
            if (node := recording.inputs.get(name)) is not None:
                shape, strides = ([numbers[n] for n in places] for places in (node.shape, node.strides))
                dtype, nbytes = node.dtype, numbers[node.nbytes]
            else:  # nothing reads it
                assert recording.model is not None
                dtype = recording.model.types[name]
                open_sizes = {size: values.size(self._names.index(size)) for size in recording.ranges}
                own = recording.model.inputs[name]
                shape = [open_sizes[n] if isinstance(n, str) else values.number(n) for n in own]
                item = values.number(dtype.itemsize)
                strides = [values.product([item, *shape[i + 1 :]]) for i in range(len(shape))]
                nbytes = values.product([item, *shape])
            if len(shape) != len(strides):
                raise ValueError(f"{len(shape)} sizes and {len(strides)} strides")
            self._form(dtype, 0, shape, strides, nbytes)
            dimensions += 2 * len(shape)
        for result in recording.plan.results:
            shape = [numbers[n] for n in result.shape]
            self._form(result.dtype, 1, shape, [], 0)
            dimensions += 2 * len(shape)
        self._grown("dimensions", dimensions)
        return first

    def _form(self, dtype: np.dtype[Any], written: int, shape: Sequence[int], strides: Sequence[int], nbytes: int) -> None:
        lists = f"{self._list(shape)}, {self._list(strides)}"
        self.rows["FORMS"].append(f"{{{_type(dtype)}, {len(shape)}, {written}, {lists}, {nbytes}}},")

    def _array(self, array: LaunchTensor, numbers: Sequence[int]) -> str:
        if array.dtype.kind == "f" and array.dtype.itemsize < 4:
            raise self._pack.error("an array of sizes in float16", "other types, for C")
        elements = self._list([numbers[n] for n in array.strides])
        code = 6 if array.dtype.kind == "b" else kind_of(array.dtype).dlpack[0]
        return f"{{{{{code}, {array.dtype.itemsize * 8}, 1}}, {elements}, {len(array.strides)}}},"

    def _copies(self, recording: PlanRows) -> str:
        first, inputs = len(self.rows["COPIES"]), len(self._inputs)
        for i, result in enumerate(recording.plan.results):
            if isinstance(result.copies, int):
                self.rows["COPIES"].append(f"{{{inputs + i}, {_GIVEN}, {inputs + result.copies}, 0, 0}},")
            elif result.source is None:
                array = np.ascontiguousarray(result.copies)
                sizes = [recording.plan.function.wanted[n] for n in result.shape]
                if not recording.ranges and math.prod(sizes) * result.dtype.itemsize != array.nbytes:
                    raise ValueError(f"an output of the sizes {sizes}, which has {array.nbytes} bytes")
                self.rows["COPIES"].append(f"{{{inputs + i}, {_DATA}, 0, {self._data.add(array)}, {array.nbytes}}},")
        return f"{first}, {len(self.rows['COPIES']) - first}"

    def _pairs(self, recording: PlanRows) -> str:
        names = [node.name for node in recording.plan.inputs]
        pairs = sorted((self._inputs.index(names[i]), len(self._inputs) + j) for i, j in recording.plan.in_place)
        return f"{self._list([n for pair in pairs for n in pair])}, {len(pairs)}"

    # -- Launches

    def _step(self, recording: PlanRows, launching: Launching, numbers: Sequence[int], first_group: int, group: _Group) -> None:
        count = len(launching.arguments) - len(launching.wanted)
        places = len(self.rows["PLACES"])
        for argument in launching.arguments:
            self.rows["PLACES"].append(self._place(recording, argument, numbers, argument.name in group.read, launching.title))
        guards = len(self.rows["GUARDS"])
        for i, wanted in enumerate(launching.wanted):
            self.rows["GUARDS"].append(f"{{{places + count + i}, {int(wanted)}}},")
        weights = self._list([self._weight(recording, launching, form) for form in group.forms])
        row = f"{first_group + launching.group}, {places}, {count}, {guards}, {len(launching.wanted)}, {weights}"
        self.rows["STEPS"].append(f"{{{row}}},")

    def _place(self, recording: PlanRows, argument: LaunchArgument, numbers: Sequence[int], is_read: bool, title: str) -> str:
        source, rest = argument.source, f"{numbers[argument.offset]}, {numbers[argument.size]}"
        if source.kind == "piece":
            return f"{{{_ARENA}, {source.number}, {rest}, 0, 0}},"
        if source.kind == "array":
            array = recording.plan.arrays[source.number]
            return f"{{{_ARRAY}, {source.number}, {rest}, 0, {array.dtype.itemsize * len(array.strides)}}},"
        if source.kind == "constant":
            if source.number in recording.absent:
                if is_read:
                    raise self._lacks(recording, argument, title)
                return f"{{{_DATA}, 0, {rest}, 0, {_MOST_BYTES}}},"
            constant = recording.plan.constants[source.number]
            return f"{{{_DATA}, 0, {rest}, {self._data.add(constant) if is_read else 0}, {constant.nbytes}}},"
        if source.kind == "input":
            number = self._inputs.index(recording.plan.inputs[source.number].name)
        else:
            number = len(self._inputs) + next(i for i, each in enumerate(recording.plan.results) if each.source == source)
        return f"{{{_GIVEN}, {number}, {rest}, 0, 0}},"

    def _groups(self, recording: PlanRows, values: PlanValues, sizes: Sequence[int]) -> list[_Group]:
        """Add the answers of each group."""
        first = {launching.group: launching for launching in reversed(recording.plan.launchings)}
        groups = []
        for group in range(len(recording.plan.groups)):
            launching = first[group]
            self.rows["TITLES"].append(f'"{text_of(launching.title)}",')
            own = [answer for answer in recording.answers if answer.group == group]
            forms: list[_Form] = []
            read = {""}
            names = [argument.name for argument in launching.arguments]
            names = names[: len(names) - len(launching.wanted)]
            for codes, level, used in zip(self._context.levels, self.groups, self.used, strict=True):
                code = next((code for code in codes if any(answer.target == code for answer in own)), "")
                mine = [answer for answer in own if answer.target == code]
                start = len(self.rows["WAYS"])
                before: list[int] = []
                for threads in sorted({answer.threads for answer in mine}):
                    several = [self._answer(each, values, sizes, names, forms) for each in mine if each.threads == threads]
                    if several != before:
                        self.rows["WAYS"].append(f"{{{threads}, {self._list(several)}, {len(several)}}},")
                    before = several
                used.update(key for answer in mine for key in answer.launch.kernels)
                read.update(name for answer in mine for name in {*names} - {packed.name for packed in answer.launch.owned})
                level.append((start, len(self.rows["WAYS"]) - start))
            groups.append(_Group(forms, read))
        return groups

    def _answer(
        self, answer: PackAnswer, values: PlanValues, sizes: Sequence[int], names: Sequence[str], forms: list[_Form]
    ) -> int:
        """The number of an answer's row."""
        launch: LaunchRecord = answer.launch
        read = values.reading(answer.function, sizes)
        wanted = read.wanted()
        count = len(wanted) - len(launch.temporaries)
        conditions = [value for value, _ in read.conditions()]
        packings = []
        for packed in launch.owned:
            form = _Form(answer.target, packed)
            if form not in forms:
                forms.append(form)
            if packed.name not in names or not packed.inputs or not set(packed.inputs) <= set(names):
                raise ValueError(f"a kernel that packs {packed.name}")
            packings.append(f"{{{names.index(packed.name)}, {forms.index(form)}}},")
        first_packing = self._sequence("PACKINGS", packings)
        types = self._context.numbers.add([_numpy_type(dtype).itemsize for dtype, _ in launch.temporaries])
        self._grown("views", len(names) + len(launch.temporaries))
        self._grown("arguments", len(names) + len(wanted))
        lists = f"{self._list(conditions)}, {self._list(wanted[:count])}, {self._list(wanted[count:])}, {types}, {first_packing}"
        counts = f"{len(conditions)}, {count}, {len(launch.temporaries)}, {len(packings)}"
        return self._row("ANSWERS", f"{{{self._context.kernel(launch.kernel)}, {lists}, {counts}}},")

    def _sequence(self, table: str, rows: Sequence[str]) -> int:
        """Where rows begin that follow each other."""
        key = table, "".join(rows)
        if key not in self._known:
            self._known[key] = len(self.rows[table])
            self.rows[table] += rows
        return self._known[key]

    # -- Weights

    def _weight(self, recording: PlanRows, launching: Launching, form: _Form) -> int:
        """The number of a weight in a packed form."""
        by_name = {argument.name: argument for argument in launching.arguments}
        sources = tuple((by_name[name].source, by_name[name].offset) for name in form.packed.inputs)
        stored = recording.packed.get((form.packed.layout, sources))
        dtype = _numpy_type(form.packed.dtype)
        if form.packed.elements > _MOST_BYTES // dtype.itemsize:  # whose bytes C could not count
            raise ValueError(f"a weight of {form.packed.elements} elements")
        if stored is not None and stored.nbytes == form.packed.elements * dtype.itemsize:
            at = self._data.add(stored)
            return self._one_weight(
                ("stored", at, form.packed), lambda: f"{{{_type(dtype)}, {form.packed.elements}, {at}, 0, 0, 0}},"
            )
        if any(source.kind == "input" for source, _ in sources):
            given = f"a graph {recording.record.name!r} with owned inputs"
            raise self._pack.error(given, "graphs whose weights are constants, for C")
        offsets = [recording.plan.function.wanted[offset] for _, offset in sources]
        if any(source.kind != "constant" for source, _ in sources) or not all(isinstance(offset, int) for offset in offsets):
            raise ValueError(f"{launching.title}: {form.packed.name} is packed, and is no weight")
        for name in form.packed.inputs:
            if by_name[name].source.number in recording.absent:
                raise self._lacks(recording, by_name[name], launching.title)
        arrays = [recording.plan.constants[source.number] for source, _ in sources]
        begins = [self._data.add(array) + offset for array, offset in zip(arrays, offsets, strict=True)]  # type: ignore[operator] # checked
        return self._one_weight((form.target, form.packed.layout, *begins), lambda: self._packed_here(form, begins))

    def _one_weight(self, key: tuple[Any, ...], row: Callable[[], str]) -> int:
        if key not in self._weights:
            self._weights[key] = len(self._weights)
            self.rows["ALL_WEIGHTS"].append(row())
        return self._weights[key]

    def _packed_here(self, form: _Form, begins: Sequence[int]) -> str:
        """The row of a weight that is packed when it is needed first."""
        inputs = f"{self._context.numbers.add(begins)}, {len(begins)}"
        self.rows["PACKERS"].append(self._context.packer(form.packed))
        self.most_inputs = max(self.most_inputs, len(begins) + 1)
        packer = len(self.rows["PACKERS"]) - 1
        return f"{{{_type(_numpy_type(form.packed.dtype))}, {form.packed.elements}, -1, {inputs}, {packer}}},"

    def _lacks(self, recording: PlanRows, argument: LaunchArgument, title: str) -> Exception:
        what = "weight" if argument.name else "condition"
        return self._pack.damaged(f"its graph {recording.record.name!r} lacks a {what} of {title}")


def _only(recording: PlanRows, name: str) -> range:
    """The value of a size that is not open in a recording."""
    assert recording.model is not None
    size = recording.model.sizes[name]
    return range(size, size + 1)


def _numpy_type(name: str) -> np.dtype[Any]:
    """The type of temporaries and weights. C divides by the bytes of an element: they must not be 0.

    Raises:
        ValueError: there is no such type.
    """
    dtype = np.dtype(name)
    if dtype.kind not in "iufb":
        raise ValueError(f"the type {name!r}")
    return dtype


def size_row(name: str, values: range) -> str:
    """The row of a size."""
    return f'{{"{text_of(name)}", {values[0]}, {values[-1]}, {values.step}}},'


def _type(dtype: np.dtype[Any]) -> str:
    code, bits = kind_of(dtype).dlpack
    return f"{{{code}, {bits}, 1}}"


def text_of(given: str) -> str:
    """A text for strings and comments of C, which it must not be able to end."""
    return _TEXT.sub("_", given).replace("*/", "* /").replace("/*", "/ *")[:_LONGEST_TEXT]

"""The CPU kernels of a pack for C and C++: a header with a function for each operation and each graph, and the files that it loads.

The fixed text of the header is in files of C (``_header_c``); this module adds the tables that describe the pack, with
``_header_graphs``.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tvmdml
from tvmdml.enums import DmlEnum
from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.graph.stored.loading import is_open
from tvmdml.library import files, lines
from tvmdml.library.format import Pack
from tvmdml.library.records import KernelRecord, LaunchRecord, OperationRecord, PackedRecord
from tvmdml.operators import Operator, _shared
from tvmdml.operators._contract import Role, Shared
from tvmdml.packs import _header_c
from tvmdml.packs._header_graphs import GraphTables
from tvmdml.packs._header_rows import TableContext
from tvmdml.targets.cpu import host
from tvmdml.tensors import TensorDataType, TensorDesc

_TARGET = "cpu:"
_OPERATOR = re.compile(r"[a-z0-9_]+")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LONGEST_NAME = 96
_MOST_BYTES = 1 << 48
"""The limit of a temporary: more memory than any machine has."""
# The characters of a descriptor's text. It is written into comments and strings of C, which it must not be able to end.
_TEXT = re.compile(r"""[\w {}\[\]=",.+-]*""", re.ASCII)
# The C type of each data type, and its short name.
_C_TYPES = {
    TensorDataType.FLOAT64: ("double", "f64"),
    TensorDataType.FLOAT32: ("float", "f32"),
    TensorDataType.FLOAT16: ("uint16_t", "f16"),
    **{t: (f"{t.stored.tvm}_t", t.tvm.replace("uint", "u").replace("int", "i")) for t in TensorDataType if not t.is_float},
}
_NO_TENSOR, _NO_LAUNCH = "{{0, 8, 1}, 0, 0, NULL, NULL, 0},", "{0, 0, 0, 0, 0, 0},"
_DLPACK_KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}


def write(pack: Pack, folder: Path, name: str = "") -> list[Path]:
    """Write ``<name>.h``, the libraries that it opens, and ``<name>.data``, the weights of graphs, into a folder.

    Args:
        pack: a pack with kernels for CPUs. The caller has checked that it is trusted: its native code will run.
        folder: the folder to write to; it is created if it does not exist.
        name: the prefix of all names in the header; by default the name of the pack's file.

    Returns:
        The files, the header first.

    Raises:
        PackError: the pack has no kernels for CPUs, or is damaged, or has graphs of certain sizes beside those with open ones.
        InvalidArgument: the name is not valid in C, or this version does not know an operation.
        OSError: a file cannot be written.
    """
    name = name or _identifier(pack.path.stem)
    if not _IDENTIFIER.fullmatch(name):
        raise InvalidArgument(message("name of a header", safe_repr(name), "a name in C: letters, digits and _, a letter first"))
    content = HeaderContent(pack, name)
    header = content.header()
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{name}.h", *(folder / file for file in content.libraries.values())]
    for part, path in zip(content.libraries, written[1:], strict=True):
        files.replace(path, pack.unpacked(part))
    if content.graphs is not None:
        written.append(folder / f"{name}.data")
        files.replace(written[-1], content.graphs.data())
    files.replace(written[0], [header.encode()])
    return written


def functions(path: Path) -> list[str]:
    """The names of the functions of a header, for its operations, graphs and texts of language models."""
    text = path.read_text().partition("_IMPLEMENTED_")[0]
    return re.findall(r"^(?:static inline int |[\w ]+[ *](?=\w+_(?:text_\w+|step)\())(\w+[^\W_])\(", text, re.MULTILINE)


class _Entry(NamedTuple):
    """An operation, for one or more processors."""

    text: str
    desc: Operator
    shared: Shared
    launches: dict[str, tuple[LaunchRecord, ...]]
    """By target."""

    def tensors(self) -> list[tuple[str, TensorDesc, bool]]:
        """The tensors of its kernels: name, tensor, and whether it is written. Inputs in an output's memory are left out."""
        desc = self.desc.canonical()
        outputs, same = {name for name, _ in desc.tensors(Role.OUTPUT)}, dict(self.shared)
        return [
            (_parameter(name), tensor, name in outputs)
            for name, tensor in desc.tensors()
            if name not in same and tensor is not None
        ]


class HeaderContent:
    """The contents of the header: the rows of its tables."""

    def __init__(self, pack: Pack, name: str) -> None:
        self._pack = pack
        self._name = name
        self._entries, self._left_out, codes = _entries(pack)
        records = [graph for graph in pack.graphs() if graph.kind == "cpu"]
        several = [graph for graph in records if is_open(pack, graph)]
        if several and len(several) < len(records):
            raise pack.error("models with open sizes beside graphs of certain sizes", "one or the other", "Build a pack for each.")
        if not codes and not several:
            if records:
                given = f"a graph {records[0].name!r} without kernels: all its outputs are constants"
                raise pack.error(given, "graphs that compute something", "Write the constants into the program.")
            raise pack.error("nothing for CPUs", "a pack with operations for a target such as cpu:x86-64-v3")
        self.graphs = GraphTables(pack, records, name, bool(several), sorted(codes)) if records else None
        if self.graphs is not None:
            codes |= self.graphs.codes
        self._levels = _levels(pack, codes)
        self._kernels: dict[bytes, KernelRecord] = {}
        self._numbers_of_kernels: dict[bytes, int] = {}
        self._numbers, self._lists = _Sequences(), _Sequences()
        self._temporaries = _Sequences()
        self._launch_rows: list[str] = []
        self._most_arguments = self._most_temporaries = 1  # C has no empty arrays
        self.libraries: dict[int, str] = {}
        """The names of the library files, by part number."""
        for kernel in sorted(pack.kernels(), key=lambda kernel: (kernel.target, kernel.operator, kernel.part)):
            if kernel.target.startswith(_TARGET):
                self._add_library(kernel)

    def _add_library(self, kernel: KernelRecord) -> None:
        self._kernels[kernel.key] = kernel
        if not _OPERATOR.fullmatch(kernel.operator) or host.known(kernel.target.removeprefix(_TARGET)) is None:
            raise self._pack.damaged(f"it has a kernel of {kernel.operator!r} for {kernel.target!r}")
        if self._pack.part(kernel.part).suffix != ".so":
            raise self._pack.damaged(f"part {kernel.part} is not a library")
        if kernel.part not in self.libraries:
            file = f"{self._name}-{kernel.target.removeprefix(_TARGET)}-{kernel.operator}"
            again = sum(known.partition(".")[0] == file for known in self.libraries.values())
            self.libraries[kernel.part] = f"{file}.{again + 1}.so" if again else f"{file}.so"

    def header(self) -> str:
        """The text of the header."""
        prefix = f"{self._name}_"
        names = [prefix + name for name in _names(self._entries)]
        tensors: list[str] = []
        operations, functions = [], []
        for number, (entry, function) in enumerate(zip(self._entries, names, strict=True)):
            rows = [self._tensor(tensor, written) for _, tensor, written in entry.tensors()]
            operations.append(f'{{"{_escaped(entry.text)}", "{function}", {len(rows)}, &{prefix}tensors_[{len(tensors)}]}},')
            tensors += rows
            functions.append(_function(entry, function, prefix, number))
        count = len(self._entries)
        graphs = {} if self.graphs is None else self.graphs.columns(self._context(), self._tensor)
        levels, tables = self._level_rows()
        kernels = [self._kernels[key] for key in self._numbers_of_kernels]
        numbers_of = {part: number for number, part in enumerate(self.libraries)}
        columns: dict[str, Iterable[str]] = {
            "VERSION": [tvmdml.__version__],
            "COUNT": [str(count)],
            "OPERATION_ROWS": [str(max(count, 1))],
            "FUNCTIONS": [*functions, *(f"/* Only in graphs, as its inputs are packed: {text} */" for text in self._left_out)],
            "MOST_TENSORS": [str(max((len(entry.tensors()) for entry in self._entries), default=1))],
            "MOST_ARGUMENTS": [str(self._most_arguments)],
            "MOST_TEMPORARIES": [str(self._most_temporaries)],
            "LEVEL_COUNT": [str(len(levels))],
            "LIBRARY_COUNT": [str(len(self.libraries))],
            "KERNEL_COUNT": [str(len(kernels))],
            "NUMBERS": _wrapped(map(_c_integer, self._numbers.items or [0])),
            "TENSORS": tensors or [_NO_TENSOR],
            "OPERATIONS": operations or ["{NULL, NULL, 0, NULL},"],
            "LIBRARIES": [f'"{file}",' for file in self.libraries.values()],
            "KERNELS": [f'{{{numbers_of[kernel.part]}, "__tvm_ffi_{kernel.symbol}"}},' for kernel in kernels],
            "TEMPORARIES": [f"{{{{{kind}, {bits}, 1}}, {count}}}," for kind, bits, count in self._temporaries.items or [(0, 8, 0)]],
            "LAUNCHES": self._launch_rows or [_NO_LAUNCH],
            "TABLES": tables,
            "LEVELS": levels,
            "LEVEL_NAMES": [", ".join(processor.name for _, processor in self._levels)],
        }
        pieces = dict.fromkeys(("INCLUDES", "DECLARATIONS", "TABLES", "MAPPING", "WEIGHTS", "CLOSING", "RUNS"), "")
        columns.update({"OPEN_WEIGHTS": [], "CLOSE_WEIGHTS": []})
        if self.graphs is not None:
            pieces = _header_c.pieces("graphs")
            pieces["RUNS"] = _header_c.text("choices") + pieces["RUNS"]
            columns["OPEN_WEIGHTS"] = [" && pack_open_weights_(folder, level) == 0"]
            columns["CLOSE_WEIGHTS"] = ["    pack_close_weights_();\n"]
            columns.update(graphs)
            if (steps := self.graphs.text()) is not None:
                texts = _header_c.pieces("texts")
                pieces = {name: piece + texts.get(name, "") for name, piece in pieces.items()}
                columns.update(steps)
            columns["LISTS"] = _wrapped(map(str, self._lists.items or [0]))
            columns["MOST_TENSORS"] = [str(max(int("".join(columns["MOST_TENSORS"])), self.graphs.most_inputs))]
            columns["MOST_ARGUMENTS"] = [str(max(self._most_arguments, int("".join(graphs["MOST_ARGUMENTS"]))))]
            columns["FUNCTIONS"] = [*columns["FUNCTIONS"], *self.graphs.functions()]
        text = _header_c.text("operations")
        for name, piece in pieces.items():
            text = text.replace(f"@GRAPH_{name}@", piece)
        for what in ("OPEN_WEIGHTS", "CLOSE_WEIGHTS"):
            text = text.replace(f"@{what}@", "".join(columns.pop(what)))
        text = re.sub("pack_|PACK_", lambda match: prefix if match[0].islower() else prefix.upper(), text)
        for what, column in columns.items():
            text = text.replace(f"@{what}@", "\n".join(column))
        return text

    def _tensor(self, tensor: TensorDesc, written: bool) -> str:
        tensor = tensor.stored
        kind, bits = tensor.data_type.dlpack
        at = self._numbers.add([*tensor.sizes, *tensor.layout])
        size = tensor.span_in_bytes
        numbers = ", ".join(f"&{self._name}_numbers_[{start}]" for start in (at, at + tensor.rank))
        return f"{{{{{kind}, {bits}, 1}}, {tensor.rank}, {int(written)}, {numbers}, {size}}},"

    def _level_rows(self) -> tuple[list[str], list[str]]:
        """The levels, best first, each with a table of where the launches of its operations begin, and its libraries."""
        rows, tables = [], []
        prefix = f"{self._name}_"
        numbers_of = {part: number for number, part in enumerate(self.libraries)}
        for number, (_, processor) in enumerate(self._levels):
            starts: list[int] = []
            used: set[int] = set()
            usable = self._usable(number)
            if self.graphs is not None:
                used.update(numbers_of[self._kernel(key, "a graph").part] for key in self.graphs.used[number])
            for entry in self._entries:
                starts.append(len(self._launch_rows))
                for launch in sorted(next((entry.launches[other] for other in usable if other in entry.launches), ())):
                    used.add(numbers_of[self._add_launch(entry, launch)])
            starts.append(len(self._launch_rows))
            tables += [f"static const uint32_t {prefix}launches_of_{number}_[] = {{", *_wrapped(map(str, starts)), "};"]
            tables += [f"static const uint16_t {prefix}libraries_of_{number}_[] = {{", *_wrapped(map(str, sorted(used))), "};"]
            quoted = f'"{processor.name}", "{processor.machine}", "{" ".join(processor.words)}"'
            rows.append(f"{{{quoted}, {prefix}launches_of_{number}_, {prefix}libraries_of_{number}_, {len(used)}}},")
        return rows, tables

    def _usable(self, number: int) -> list[str]:
        """The codes of a level and those below: if it does not have an operation, the next one that it can run may have it."""
        code, processor = self._levels[number]
        return [other for other, lower in self._levels[number:] if other == code or processor.runs(lower)]

    def _context(self) -> TableContext:
        """What the tables of a model with open sizes are made with."""
        about = "a model"
        return TableContext(
            *(self._numbers, self._lists, lambda key: self._kernel_number(key, about)),
            lambda packed: self._launch_row(about, len(packed.inputs), packed, 0),
            [self._usable(i) for i in range(len(self._levels))],
        )

    def _kernel(self, key: bytes, about: str) -> KernelRecord:
        if key not in self._kernels:
            raise self._pack.damaged(f"it lacks a kernel of {about}")
        return self._kernels[key]

    def _kernel_number(self, key: bytes, about: str) -> int:
        return self._numbers_of_kernels.setdefault(self._kernel(key, about).key, len(self._numbers_of_kernels))

    def _add_launch(self, entry: _Entry, launch: LaunchRecord) -> int:
        """Add a row to the table of launches. Returns the part of its kernel."""
        if not 0 <= launch.threads < 1 << 31:
            raise self._pack.damaged(f"it has a launch of {entry.text} on {launch.threads} threads")
        self._launch_rows.append(self._launch_row(entry.text, len(entry.tensors()), launch, launch.threads))
        return self._kernels[launch.kernel].part

    def _launch_row(self, about: str, tensors: int, launch: LaunchRecord | PackedRecord, threads: int) -> str:
        index = self._kernel_number(launch.kernel, about)
        temporaries = [self._temporary(dtype, number) for dtype, number in launch.temporaries]
        scalars_at, temporaries_at = self._numbers.add(launch.scalars), self._temporaries.add(temporaries)
        self._most_temporaries = max(self._most_temporaries, len(temporaries))
        self._most_arguments = max(self._most_arguments, tensors + 1 + len(temporaries) + len(launch.scalars))
        return f"{{{threads}, {index}, {scalars_at}, {temporaries_at}, {len(launch.scalars)}, {len(temporaries)}}},"

    def _temporary(self, dtype: str, count: int) -> tuple[int, int, int]:
        """DLPack's kind and bits, and the count."""
        try:
            kind = np.dtype(dtype)
            if not 0 <= count * kind.itemsize <= _MOST_BYTES:
                raise ValueError(count)
            return _DLPACK_KINDS[kind.kind], kind.itemsize * 8, count
        except (TypeError, ValueError, KeyError):
            raise self._pack.damaged(f"it has a temporary of {count} {dtype}") from None


class _Sequences:
    """Short sequences stored in one list; equal ones are stored once."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._known: dict[tuple[Any, ...], int] = {}

    def add(self, sequence: Sequence[Any]) -> int:
        """The index where the sequence begins."""
        key = tuple(sequence)
        if key not in self._known:
            self._known[key] = len(self.items) if key else 0
            self.items += key
        return self._known[key]


# -- What is in the pack ------------------------------------------------------------------------------------------


def _entries(pack: Pack) -> tuple[list[_Entry], list[str], set[str]]:
    """The operations for CPUs that have a function, in the order of their text; the text of those that only graphs run, since all
    their targets take inputs packed; and the codes of the targets.
    """
    entries: dict[str, _Entry] = {}
    texts: set[str] = set()
    codes: set[str] = set()
    for operation in pack.operations():
        if operation.target.startswith(_TARGET):
            entry = _entry(pack, operation)
            texts.add(entry.text)
            codes.add(operation.target)
            if not any(launch.owned for launch in operation.launches):
                entries.setdefault(entry.text, entry).launches[operation.target] = operation.launches
    return [entries[text] for text in sorted(entries)], sorted(texts - entries.keys()), codes


def _entry(pack: Pack, operation: OperationRecord) -> _Entry:
    desc = lines.read(operation.line, str(pack.path))
    try:
        shared = _shared.read(desc, operation.in_place, "in_place")
    except InvalidArgument as error:
        raise pack.damaged(str(error)) from None
    text = lines.toml(lines.of(desc), _shared.write(desc, shared))
    if not _TEXT.fullmatch(text) or not _OPERATOR.fullmatch(desc.NAME.lower()):
        raise pack.damaged(f"it has an operation that cannot be written in C: {text!r}")
    if not operation.launches:
        raise pack.damaged(f"{text} has no launches")
    return _Entry(text, desc, shared, {})


def _levels(pack: Pack, codes: Iterable[str]) -> list[tuple[str, host.Processor]]:
    """The processors of the targets, sorted by family, best first."""
    levels = []
    for code in codes:
        processor = host.known(code.removeprefix(_TARGET))
        if processor is None:
            raise pack.error(f"operations for {code!r}", "processors that this version knows", "Use the tvmdml that built it.")
        levels.append((code, processor))
    return sorted(levels, key=lambda level: (level[1].machine, *(-number for number in level[1].rank), level[0]))


# -- Names --------------------------------------------------------------------------------------------------------


def _identifier(stem: str) -> str:
    name = re.sub(r"\W", "_", stem, flags=re.ASCII)
    return name if _IDENTIFIER.fullmatch(name) else f"pack_{name}".rstrip("_")


def _parameter(field: str) -> str:
    """``output_value`` for ``output_value_tensor``, ``input_0`` for ``input_tensors[0]``."""
    return re.sub(r"_tensors?(?:\[(\d+)\])?$", lambda match: f"_{match[1]}" if match[1] else "", field)


def _names(entries: Sequence[_Entry]) -> list[str]:
    """A name for each entry: ``top_k1_f32_32x32000_k50_axis1_decreasing``; with a hash where names would be equal.

    Entries with tensors that are not packed always have a hash, so that adding one does not change the name of another entry.
    """
    plain = [_plain_name(entry) for entry in entries]
    times: dict[str, int] = defaultdict(int)
    for name, entry in zip(plain, entries, strict=True):
        times[name] += 1 if _is_packed(entry) else 0
    marked = [times[name] > 1 or not _is_packed(entry) for name, entry in zip(plain, entries, strict=True)]
    hashed = (hashlib.sha256(entry.text.encode()).hexdigest()[:10] for entry in entries)
    return [
        f"{name[:_LONGEST_NAME]}_{mark}" if needed or len(name) > _LONGEST_NAME else name
        for name, mark, needed in zip(plain, hashed, marked, strict=True)
    ]


def _is_packed(entry: _Entry) -> bool:
    return all(tensor.strides is None for _, tensor, _ in entry.tensors())


def _plain_name(entry: _Entry) -> str:
    _, first, _ = entry.tensors()[0]
    words = [entry.desc.NAME.lower(), _C_TYPES[first.data_type][1], "x".join(map(str, first.sizes))]
    for field in entry.desc.fields():
        value = getattr(entry.desc, field.name)
        said = value is None or value is first.data_type
        if not said and field.role not in (Role.INPUT, Role.OUTPUT, Role.OPERATOR):
            words.append(_attribute(field.name, value))
    if entry.shared:
        words.append("in_place")
    if len(entry.desc.pairs()) > 1:  # which input
        words += [_parameter(source) for source, _ in entry.shared]
    return "_".join(words)


def _attribute(field: str, value: Any) -> str:
    """``decreasing``, ``k50``, ``begin_m3``: the name of an enum's member, or the last word of the field and the number."""
    if isinstance(value, DmlEnum):
        return value.name.lower()
    word = field.rpartition("_")[2]
    if isinstance(value, tuple):
        return word + "x".join(map(_number, value))
    return word + ("_" if word[-1:].isdigit() else "") + _number(value)


def _number(value: Any) -> str:
    return re.sub(r"[^a-z0-9]", "", str(value).lower().replace("-", "m").replace(".", "p"))


# -- C ------------------------------------------------------------------------------------------------------------


def _function(entry: _Entry, name: str, prefix: str, number: int) -> str:
    parameters, arguments = [], []
    for parameter, tensor, written in entry.tensors():
        c_type = _C_TYPES[tensor.data_type][0]
        parameters.append(f"{c_type} *{parameter}" if written else f"const {c_type} *{parameter}")
        arguments.append(parameter if written else f"(void *){parameter}")
    return (
        f"/* {entry.text} */\n"
        f"static inline int {name}({', '.join(parameters)}) {{\n"
        f"    void *const tensors[] = {{{', '.join(arguments)}}};\n"
        f"    return {prefix}run(&{prefix}operations[{number}], tensors);\n"
        f"}}\n"
    )


def _c_integer(number: int) -> str:
    """C has no literal for the smallest integer."""
    return f"({number + 1} - 1)" if number == -(1 << 63) else str(number)


def _escaped(text: str) -> str:
    return text.replace('"', '\\"')


def _wrapped(items: Iterable[str], width: int = 120) -> Iterator[str]:
    """The items, separated by commas, in lines of limited width."""
    row = ""
    for item in items:
        if len(row) + len(item) > width:
            yield row
            row = ""
        row += f"{item}, "
    yield row

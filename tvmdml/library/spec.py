"""The spec of a pack: a TOML file with targets, exact descriptors, products of descriptors, and knobs::

    targets = ["cpu:x86-64-v3", "cuda:sm_80,sm_90"]        # optional

    kernels = [                                            # one descriptor a line, as `write` has them
        { operator = "ELEMENT_WISE_ROUND", InputTensor = "float32[2, 3]", …, in_place = true },
    ]

    [[operators]]                                          # lists are multiplied out
    operator = "TOP_K1"
    types = ["float32", "float16"]                         # of the first tensor
    sizes = [[32, 32000], [1, { from = 16, to = 4096, times = 2 }]]
    K = [1, 50]
    Axis = 1
    AxisDirection = "DECREASING"
    OutputIndexTensor = "uint64"

    [knobs.top_k]
    algorithm = "sort"

``logs = ["tuning_logs/folder", "more.jsonl"]`` names tuning logs, relative to the spec's folder. ``cases`` (types) and ``networks``
(patterns of titles) stand for what ``conformance`` and ``bench --models`` run: ``listed`` has their operations.

In ``[[operators]]``, an attribute is a value, a list of values, or, for an integer, a range ``{ from = 1, to = 64, step = 1 }``. An
attribute that is itself a sequence is a list, or a list of lists. The same holds for ``sizes``, in which each size may again be a
list or a range, and for ``strides``; both describe the first tensor. Any other tensor is given by its type, exactly
(``"uint64[32, 50]"``), or, if it is optional, by ``true``; what is not given is derived as in ``dxdispatch.sketch``. Combinations
that break the operator's contract are an error, unless ``skip_invalid`` is set, which omits them.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tvmdml import operators, targets
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.errors import InvalidArgument, ModelError, TvmdmlError, Unsupported, message, reason
from tvmdml.kernels import knobs as all_knobs
from tvmdml.library import files, lines, tuned
from tvmdml.library.tensor_text import parse_tensor
from tvmdml.operators import Operator, _shared
from tvmdml.operators._contract import Field, Role, Shared
from tvmdml.operators._json import descriptors, sketch
from tvmdml.operators._json.nodes import JsonNode
from tvmdml.operators._roles import TENSORS
from tvmdml.operators._shared import InPlace
from tvmdml.tensors import MAX_ELEMENTS, TensorDataType, TensorDesc

MAX_SPEC_BYTES = 1 << 28
"""A spec is read into memory as a whole."""
MAX_COMBINATIONS = 100_000
"""The limit for all products of a spec: minutes of reading, and days of compiling."""
_MAX_DEPTH, _MAX_BITS, _MAX_KEY_PARTS = 16, 1024, 256
_FIELDS = ("targets", "logs", "kernels", "operators", "cases", "networks", "knobs")
_OWN = ("operator", "types", "sizes", "strides", "in_place", "skip_invalid")
_RANGE = ("from", "to", "step", "times")

KnobValues = Mapping[str, Mapping[str, all_knobs.Value]]
"""Values of knobs, by the operator's module."""


class Wanted(NamedTuple):
    """A descriptor that a pack should have kernels for."""

    desc: Operator
    shared: Shared = ()
    """The pairs (input, output) in the same memory."""

    @property
    def line(self) -> str:
        """The line in TOML. Equal lines mean equal descriptors."""
        return lines.toml(lines.of(self.desc), _shared.write(self.desc, self.shared))


class Spec(NamedTuple):
    """The contents of a spec."""

    targets: tuple[str, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    """Without repeats, in the order of first appearance."""
    knobs: KnobValues = MappingProxyType({})
    logs: tuple[str, ...] = ()
    """Tuning logs, files and folders. The logs of the building machine are not used."""
    graphs: tuple[Any, ...] = ()
    """Graphs and models: ``packs.graphs.GraphSource``."""
    cases: tuple[str, ...] = ()
    """The types of the first tensors of conformance's cases whose operations are wanted."""
    networks: tuple[str, ...] = ()
    """Patterns of titles of the bench's models whose operations are wanted."""
    files: Mapping[str, bytes] = MappingProxyType({})
    """Small files that a program finds in the pack, by their names."""


def plain(desc: Operator) -> Operator:
    """A descriptor with only what its line says, and nothing about buffers or the caller's arrays.

    Raises:
        InvalidArgument, ModelError, Unsupported: it breaks its contract.
    """
    return lines.read(lines.of(desc), desc.NAME)


def _plain(one: Wanted) -> Wanted:
    desc = plain(one.desc)
    return Wanted(desc, _shared.check(desc, one.shared, "spec: kernels"))


def once(wanted: Iterable[Wanted]) -> tuple[Wanted, ...]:
    """Without repeats, in the order of first appearance."""
    found: dict[str, Wanted] = {}
    for one in wanted:
        found.setdefault(one.line, one)
    return tuple(found.values())


# -- Writing ------------------------------------------------------------------------------------------------------


def write(
    path: str | os.PathLike[str],
    wanted: Iterable[Wanted],
    targets: Iterable[str] = (),
    knobs: KnobValues | None = None,
    logs: Iterable[str] = (),
) -> None:
    """Write a spec atomically.

    Raises:
        InvalidArgument, ModelError, Unsupported: something in it is not allowed in a spec.
        OSError: it cannot be written.
    """
    files.replace(path, [text(wanted, targets, knobs, logs).encode()])


def text(wanted: Iterable[Wanted], targets: Iterable[str] = (), knobs: KnobValues | None = None, logs: Iterable[str] = ()) -> str:
    """A spec in TOML. Equal specs give equal texts.

    Raises:
        InvalidArgument, ModelError, Unsupported: something in it is not allowed in a spec.
    """
    where = "spec"
    named = _targets(JsonNode(list(targets), where, "targets"))
    turned = _knobs(JsonNode({name: dict(values) for name, values in (knobs or {}).items()}, where, "knobs"))
    tuned_by = _logs(JsonNode(list(logs), where, "logs"))
    kernels = once(_plain(one) for one in wanted)
    lists = {"targets": named, "logs": tuned_by}
    parts = [lines.toml({name: list(values)})[2:-2] + "\n" for name, values in lists.items() if values]
    parts.append("\n".join(["kernels = [", *(f"    {one.line}," for one in kernels), "]\n"]))
    for operator, values in turned.items():
        parts.append(f"[knobs.{operator}]\n" + "".join(f"{lines.toml({name: value})[2:-2]}\n" for name, value in values.items()))
    return "\n".join(parts)


# -- Reading ------------------------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> Spec:
    """Read the file of a spec.

    Raises:
        InvalidArgument: it cannot be read, or is wrong; the message names the file, the place and what is allowed.
    """
    file, wanted = str(path), f"a file of TOML of at most {MAX_SPEC_BYTES >> 20} MiB"
    try:
        about = Path(path).stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_SPEC_BYTES:
            raise InvalidArgument(message(file, "a folder, a device or a larger file", wanted))
        content = Path(path).read_text(encoding="utf-8-sig")
    except InvalidArgument:
        raise
    except (OSError, ValueError) as error:
        raise InvalidArgument(message(file, f"a file that cannot be read ({reason(error)})", wanted)) from None
    return parse(content, file)


def parse(given: str | Mapping[str, Any], where: str) -> Spec:
    """The spec of a TOML text, or of the values parsed from it.

    Raises:
        InvalidArgument: it is wrong; the message names the place and what is allowed.
    """
    try:
        root = JsonNode(_sane(_decode(given, where) if isinstance(given, str) else given, where), where)
        root.only(_FIELDS)
        exact = [_exact(node) for node in _items(root, "kernels")]
        products = [_Product(node) for node in _items(root, "operators")]
        _check_count(root, products)
        named, tuned_by, turned = root.get("targets"), root.get("logs"), root.get("knobs")
        return Spec(
            targets=_targets(named) if named else (),
            wanted=once([*exact, *itertools.chain.from_iterable(products)]),
            knobs=_knobs(turned) if turned else {},
            logs=_logs(tuned_by) if tuned_by else (),
            cases=tuple(_type(item).tvm for item in _items(root, "cases")),
            networks=tuple(item.text() for item in _items(root, "networks")),
        )
    except (ModelError, Unsupported) as error:
        raise InvalidArgument(str(error)) from None


def _decode(content: str, where: str) -> Any:
    # A reader's time goes with the square of a key's parts.
    if any(piece.count(".") > _MAX_KEY_PARTS for piece in re.split(r"[\n,=\[\]{}]", content)):
        raise InvalidArgument(message(where, f"a key of more than {_MAX_KEY_PARTS} parts", "the keys of a spec"))
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return toml.loads(content)
    except RecursionError:
        raise InvalidArgument(message(where, "TOML that is nested too deeply", f"up to {_MAX_DEPTH} levels")) from None
    except ValueError as error:
        raise InvalidArgument(message(where, f"text that is not valid TOML ({error})", "TOML")) from None


def _sane(value: Any, where: str, depth: int = 0) -> Any:
    """The value, restricted to the types that JSON has too, which messages and checks can handle."""
    if isinstance(value, Mapping) and depth < _MAX_DEPTH and all(isinstance(name, str) for name in value):
        return {name: _sane(one, where, depth + 1) for name, one in value.items()}
    if isinstance(value, (list, tuple)) and depth < _MAX_DEPTH:
        return [_sane(one, where, depth + 1) for one in value]
    if isinstance(value, (bool, str, float)) or (type(value) is int and value.bit_length() <= _MAX_BITS):
        return value
    given = f"a {type(value).__name__}, {depth} levels deep"
    raise InvalidArgument(message(where, given, f"tables, lists, strings, ordinary numbers, true and false; {_MAX_DEPTH} levels"))


def _items(root: JsonNode, name: str) -> list[JsonNode]:
    found = root.get(name)
    return found.items() if found else []


def _blame(where: str, error: Exception) -> InvalidArgument:
    said = str(error)
    return InvalidArgument(said if said.startswith(where) else f"{where}: {said}")


def _exact(node: JsonNode) -> Wanted:
    """The descriptor of a line of ``kernels``."""
    line = {name: member.value for name, member in node.members().items() if name != "in_place"}
    in_place = node.get("in_place")
    try:
        desc = lines.read(line, node.where)
        if any(isinstance(value, (dict, list)) for value in line.values()):
            desc = plain(desc)
        return Wanted(desc, () if in_place is None else _shared.read(desc, _in_place(in_place), node.where))
    except (TvmdmlError, ValueError) as error:
        raise _blame(node.where, error) from None


def _targets(node: JsonNode) -> tuple[str, ...]:
    """Names of targets. Whether a target exists is checked later, by the build."""
    kinds = targets.kinds()
    names = dict.fromkeys(item.text().strip() for item in node.items())
    for item in node.items():
        name = item.text()
        if name.strip().lower().partition(":")[0] not in kinds or not (name.isascii() and name.isprintable()):
            raise item.wrong(f"{', '.join(kinds)}, with a processor level or architectures after a colon")
    return tuple(names)


def _logs(node: JsonNode) -> tuple[str, ...]:
    """Paths of tuning logs, each read once to check it. Relative paths are relative to the spec's folder."""
    found: dict[str, None] = {}
    for item in node.items():
        path = Path(node.file).parent / item.text()
        try:
            tuned.read(path)
        except InvalidArgument as error:
            raise item.blame(error, "") from None
        found[str(path)] = None
    return tuple(found)


def _knobs(node: JsonNode) -> KnobValues:
    names = sorted({operators.tuned_as(cls) for cls in operators.all_operators().values()})
    node.only(names)
    found = {}
    for name, table in node.members().items():
        values: dict[str, all_knobs.Value] = {knob: member.value for knob, member in table.members().items()}
        try:
            all_knobs.check(name, values)
        except InvalidArgument as error:
            raise table.blame(error, name) from None
        found[name] = values
    return found


# -- Products -----------------------------------------------------------------------------------------------------


class _Choice(NamedTuple):
    """The values that one field can have."""

    total: int
    """The number of values, known before they are generated."""
    values: Callable[[], Iterable[Any]]


_ABSENT = object()
_NOTHING_SAID = (None, None)
"""A tensor that is present, with type and sizes to be derived."""


class _Product:
    """A table of ``[[operators]]``, and all its combinations."""

    def __init__(self, node: JsonNode) -> None:
        self._node = node
        self._cls = _class(node.need("operator", ", ".join(operators.all_operators())))
        fields = {field.dml_name.lower(): field for field in self._cls.fields()}
        members = {name: member for name, member in node.members().items() if name in _OWN}
        others: dict[str, JsonNode] = {}
        for name, member in node.members().items():
            field = fields.get(name.replace("_", "").lower())
            if name not in _OWN and field is not None:
                if field.dml_name in others:
                    raise member.error("a field that is given twice", f"{field.dml_name} once")
                others[field.dml_name] = member
        known = {name for name in node.value if name in _OWN or name.replace("_", "").lower() in fields}
        node.only([*_OWN, *(field.dml_name for field in fields.values())], ignored=known)
        first = next((field for field in fields.values() if field.role in TENSORS), None)
        self._choices = {
            "types": _several(node.need("types", _TYPES), _type),
            "sizes": _lists(node.need("sizes", "a list of sizes"), _size),
            "strides": _lists(members["strides"], _stride) if "strides" in members else _Choice(1, lambda: [None]),
            "in_place": _several(members["in_place"], _in_place) if "in_place" in members else _Choice(1, lambda: [False]),
        }
        for name, member in others.items():
            field = fields[name.lower()]
            self._choices[name] = _tensor(member, field is first) if field.role in TENSORS else _attribute(member, field)
        skip = members.get("skip_invalid")
        self._skips = skip is not None and skip.flag()
        self.total = math.prod(choice.total for choice in self._choices.values())

    def __iter__(self) -> Iterator[Wanted]:
        """All combinations; the last field varies fastest."""
        for values in itertools.product(*(choice.values() for choice in self._choices.values())):
            chosen = dict(zip(self._choices, values, strict=True))
            try:
                yield self._one(**chosen)
            except (TvmdmlError, ValueError) as error:
                if not self._skips:
                    told = {name: value for name, value in chosen.items() if not any(value is no for no in (None, False, _ABSENT))}
                    given = ", ".join(f"{name} = {_said(value)}" for name, value in told.items())
                    advice = "skip_invalid = true leaves out what breaks the contract."
                    raise InvalidArgument(f"{self._node.where} with {given}: {error} {advice}") from None

    def _one(self, types: TensorDataType, sizes: Any, strides: Any, in_place: InPlace, **others: Any) -> Wanted:
        fields: dict[str, Any] = {}
        tensors = {}
        for field in self._cls.fields():
            value = others.get(field.dml_name, _ABSENT)
            if isinstance(value, TensorDesc):
                fields[field.dml_name] = [_json(value)] if field.many else _json(value)
            elif value is not _ABSENT and field.role in TENSORS:
                tensors[field.dml_name] = value
            elif value is not _ABSENT:
                fields[field.dml_name] = value
            elif in_place and strides is not None and field.role is Role.OUTPUT:
                # The output is the first tensor's memory.
                fields[field.dml_name] = _json(TensorDesc(types, sizes, strides))
        level = NEWEST_FEATURE_LEVEL
        desc = sketch.describe(self._cls, types, sizes, fields, tensors, level, strides=strides, extensions=True)
        return Wanted(desc, _shared.read(desc, in_place, self._node.where))


def _in_place(node: JsonNode) -> InPlace:
    if not isinstance(node.value, (bool, str)):
        raise node.wrong('true or false, or the pairs of tensors, such as "BTensor=OutputTensor"')
    return node.value


def _json(desc: TensorDesc) -> dict[str, Any]:
    """A tensor in the form of DirectML's JSON."""
    strides = {} if desc.strides is None else {"Strides": list(desc.strides)}
    return {"DataType": desc.data_type.name, "Sizes": list(desc.sizes), **strides}


def _class(node: JsonNode) -> type[Operator]:
    try:
        return descriptors.find(node)
    except Unsupported as error:
        raise node.blame(error, "operator") from None


def _check_count(root: JsonNode, products: Sequence[_Product]) -> None:
    count = sum(product.total for product in products)
    if count > MAX_COMBINATIONS:
        given = f"{count} combinations" if count < 10**18 else "more than 10^18 combinations"
        raise root.error(f"operators of {given}", f"at most {MAX_COMBINATIONS}", "Make several packs.")


def _said(value: Any) -> str:
    """A chosen value, for messages."""
    if isinstance(value, tuple) and len(value) == 2 and (value == _NOTHING_SAID or isinstance(value[0], TensorDataType)):
        value = value[0] or "true"
    return value.tvm if isinstance(value, TensorDataType) else str(value)


def _several(node: JsonNode, one: Callable[[JsonNode], Any]) -> _Choice:
    """A value, or a list of values."""
    return _some(node, [one(item) for item in (node.items() if isinstance(node.value, list) else [node])])


def _some(node: JsonNode, found: Sequence[Any]) -> _Choice:
    if not found:
        raise node.error("an empty list", "one value or more")
    return _Choice(len(found), lambda: found)


_TYPES = ", ".join(member.tvm for member in TensorDataType)


def _type(node: JsonNode) -> TensorDataType:
    try:
        return TensorDataType.parse(node.text(), node.where)
    except InvalidArgument:
        raise node.wrong(_TYPES) from None


def _size(node: JsonNode) -> Sequence[int]:
    return _integers(node, 1, MAX_ELEMENTS)


def _stride(node: JsonNode) -> Sequence[int]:
    return _integers(node, 0, MAX_ELEMENTS)


def _integers(node: JsonNode, low: int, high: int) -> Sequence[int]:
    """An integer, a list of them, or a range."""
    if isinstance(node.value, dict):
        return _range(node, low, high)
    items = node.items() if isinstance(node.value, list) else [node]
    return [item.integer(low, high) for item in items]


def _range(node: JsonNode, low: int, high: int) -> Sequence[int]:
    node.only(_RANGE)
    start = node.need("from", "the first number").integer(low, high)
    stop = node.need("to", "the last number").integer(start, high)
    step, times = node.get("step"), node.get("times")
    if times is None:
        return range(start, stop + 1, 1 if step is None else step.integer(1, high))
    if step is not None or start < 1:
        raise node.wrong("either a step, or times and numbers from 1")
    factor = times.integer(2, high)
    return [start * factor**i for i in range(stop.bit_length() + 1) if start * factor**i <= stop]


def _lists(node: JsonNode, one: Callable[[JsonNode], Sequence[int]]) -> _Choice:
    """A list of integers, or a list of such lists. In place of an integer there may be a list or a range."""
    items = node.items()
    several = items and all(isinstance(item.value, list) for item in items)
    found = [[one(number) for number in row.items()] for row in (items if several else [node])]
    if not all(row and all(row) for row in found):
        raise node.error("an empty list", "one number or more")
    counts = [math.prod(map(_length, row)) for row in found]
    return _Choice(sum(counts), lambda: itertools.chain.from_iterable(itertools.product(*row) for row in found))


def _length(numbers: Sequence[int]) -> int:
    return len(numbers)


def _attribute(node: JsonNode, field: Field) -> _Choice:
    if field.role in (Role.UINT, Role.INT) and isinstance(node.value, dict):
        numbers = _range(node, 0 if field.role is Role.UINT else -(2**31), 2**32 - 1)
        return _Choice(_length(numbers), lambda: numbers)
    if field.is_array:
        several = node.value and all(isinstance(item.value, list) for item in node.items())
        return _some(node, node.value if several else [node.value])
    return _some(node, node.value if isinstance(node.value, list) else [node.value])


def _tensor(node: JsonNode, is_first: bool) -> _Choice:
    found: list[Any] = []
    for item in node.items() if isinstance(node.value, list) else [node]:
        if isinstance(item.value, bool):
            found.append(_NOTHING_SAID if item.value else _ABSENT)
        elif is_first:
            raise item.wrong("true or false: the first tensor is described by types, sizes and strides")
        elif "[" in item.text():
            found.append(_exactly(item))
        else:
            found.append((_type(item), None))
    return _some(node, found)


def _exactly(node: JsonNode) -> TensorDesc:
    try:
        return parse_tensor(node.text(), node.where)
    except ValueError as error:
        raise _blame(node.where, error) from None

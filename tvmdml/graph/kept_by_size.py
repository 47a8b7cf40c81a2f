"""A program as a function of a size (``BySize``) as JSON and arrays, and back: what the cache keeps of a model that grows.

A description is its form and its numbers. A form is ``0`` where an integer is; a list with a class and the forms of its parts; or
an object with one member, a value by its type. Equal forms, and equal descriptions, are written once. The classes are those of
descriptors, and no others: a file cannot name anything else.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml import enums, operators
from tvmdml.arrays import NumpyArray
from tvmdml.enums import DmlEnum
from tvmdml.errors import InvalidArgument
from tvmdml.graph.by_size import NUMBER, BySize, Described, Form, Made, Number, Other, Place
from tvmdml.graph.nodes import Constant, require_room
from tvmdml.graph.program import Finished
from tvmdml.operators._contract import Operator
from tvmdml.operators._roles import STRUCTS
from tvmdml.tensors import ArrayTensorDesc, TensorDataType, TensorDesc

_PLAIN: tuple[type[Any], ...] = (tuple, Place, TensorDesc, ArrayTensorDesc, *(one.kind for one in STRUCTS.values()))
_KINDS: Mapping[str, type[Any]] = {f".{one.__name__}": one for one in _PLAIN}
"""What has parts, beside operators, which have DirectML's names."""
_NAMES = {kind: name for name, kind in _KINDS.items()}
_TYPES = {one.tvm: one.numpy for one in TensorDataType if not one.is_nibble} | {"bool": np.dtype(np.bool_)}
_FLOAT = struct.Struct("<d")
_LISTS = ("descs", "edges", "inputs", "ends", "results", "forms")


class Written(NamedTuple):
    """What is kept."""

    described: dict[str, Any]
    """JSON."""
    arrays: list[NumpyArray]


# -- Writing


class Writer:
    """Descriptions as JSON. ``table`` has what was written."""

    def __init__(self) -> None:
        self._forms: dict[Form, int] = {}
        self._every: dict[Any, int] = {}
        self.table: dict[str, list[Any]] = {"forms": [], "every": []}

    def number(self, one: Described) -> int:
        """The place of a description in the table.

        Raises:
            ValueError: it has a part that cannot be written.
        """
        if (known := self._every.get(one.key)) is None:
            if one.form not in self._forms:
                self._forms[one.form] = len(self._forms)
                self.table["forms"].append(_written(one.form))
            known = self._every[one.key] = len(self._every)
            self.table["every"].append([self._forms[one.form], *(list(n) if isinstance(n, Number) else n for n in one.numbers)])
        return known


def written(programs: BySize, writer: Writer) -> Written:
    """A program as a function of a size; its descriptions are in the writer's table.

    Raises:
        ValueError: it has a part that cannot be written.
    """
    described = {
        "name": programs.name,
        "titles": [list(one) for one in programs.titles],
        "constants": [[one.name, one.where] for one in programs.constants],
        "names": list(programs.names),
        "wanted": list(programs.wanted),
        **{name: [writer.number(one) for one in getattr(programs, name)] for name in _LISTS},
    }
    return Written(described, [one.array for one in programs.constants])


def _written(form: Form) -> Any:
    if form is NUMBER:
        return 0
    if isinstance(form, Other):
        return _value(form.value)
    name = form.kind.NAME if issubclass(form.kind, Operator) else _NAMES.get(form.kind)
    if not name or (issubclass(form.kind, Operator) and operators.by_name(name) is not form.kind):
        raise ValueError(f"a {form.kind.__name__}")
    return [name, *map(_written, form.parts)]


def _value(value: Any) -> Any:
    if value is None or type(value) in (bool, str):
        return {"is": value}
    if type(value) is float:
        return {"float": _FLOAT.pack(value).hex()}
    if type(value) is TensorDataType:
        return {"data type": int(value)}
    if isinstance(value, DmlEnum) and getattr(enums, type(value).__name__, None) is type(value):
        return {"enum": [type(value).__name__, int(value)]}
    if isinstance(value, np.dtype) and _TYPES.get(value.name) == value:
        return {"dtype": value.name}
    raise ValueError(f"a {type(value).__name__}")


# -- Reading


class Reader:
    """The descriptions of a table."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        """
        Raises:
            Exception: the table is damaged.
        """
        forms = [_read(one) for one in table["forms"]]
        counts = list(map(_count, forms))
        self._every = []
        for form, *numbers in table["every"]:
            if len(numbers) != counts[_number(form)]:
                raise ValueError(f"{len(numbers)} numbers in a form of {counts[form]}")
            self._every.append(Described(forms[form], [_polynomial(n) for n in numbers]))

    def of(self, number: Any) -> Described:
        """The description in a place."""
        return self._every[_number(number)]


def read(described: Mapping[str, Any], arrays: Sequence[NumpyArray], reader: Reader) -> BySize:
    """The program as a function of a size.

    Args:
        described: what ``written`` described.
        arrays: the constants.
        reader: the table's.

    Raises:
        Exception: it is damaged.
    """
    named = zip(arrays, described["constants"], strict=True)
    constants = [Constant(array, name, where) for array, (name, where) in named]
    titles = [(name, where) for name, where in described["titles"]]
    lists: dict[str, Any] = {name: [reader.of(one) for one in described[name]] for name in _LISTS}
    names, wanted = tuple(described["names"]), tuple(described["wanted"])
    return BySize(described["name"], titles, constants, names=names, wanted=wanted, **lists)


def require_rooms(finished: Finished) -> None:
    """Refuse a program that reads outside of something.

    Raises:
        InvalidArgument: it does.
    """
    read = [(one, tensor, call.desc.NAME) for call in finished.program.calls for _, tensor, one in call.inputs()]
    for edge, tensor, where in [*read, *((one.edge, one.desc, "an output") for one in finished.program.results)]:
        if edge.offset < 0 or edge.output < 0:
            raise InvalidArgument(f"{where} reads byte {edge.offset} of output {edge.output}")
        require_room(edge, tensor, where)


def _read(form: Any) -> Form:
    if form == 0:
        return NUMBER
    if isinstance(form, dict):
        return Other(_known(form))
    name, *parts = form
    kind = _KINDS[name] if name in _KINDS else operators.by_name(name)
    names = tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()
    if names and len(parts) != len(names):
        raise ValueError(f"{len(parts)} parts of {name}")
    return Made(kind, names, tuple(map(_read, parts)))


def _count(form: Form) -> int:
    """How many integers are in a form."""
    return sum(map(_count, form.parts)) if isinstance(form, Made) else form is NUMBER


def _known(one: Mapping[str, Any]) -> Any:
    ((what, value),) = one.items()
    if what == "is" and (value is None or type(value) in (bool, str)):
        return value
    if what == "float":
        return _FLOAT.unpack(bytes.fromhex(value))[0]
    if what == "enum":
        kind = getattr(enums, value[0])
        if isinstance(kind, type) and issubclass(kind, DmlEnum):
            return kind(value[1])
    if what == "data type":
        return TensorDataType(value)
    if what == "dtype":
        return _TYPES[value]
    raise ValueError(f"a value {what}")


def _number(n: Any) -> int:
    if type(n) is not int or n < 0:
        raise ValueError(f"the number {n}")
    return n


def _polynomial(n: Any) -> int | Number:
    if type(n) is int:
        return n
    found = Number(*n)
    if any(type(one) is not int for one in found) or not found.divisor:
        raise ValueError(f"the polynomial {n}")
    return found

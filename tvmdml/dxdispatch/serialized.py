"""Graphs that ONNX Runtime's DirectML provider serializes: FlatBuffers of operators, constants, and the names of edges.

The schema has no file of its own here; the numbers below are the places of its fields. A graph's nodes stand in an order in which
they can run, and are connected by names. An operator becomes an object as in a JSON model, so the reader of these checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tvmdml import operators
from tvmdml.dxdispatch import flat
from tvmdml.dxdispatch.flat import Damaged, FlatTable
from tvmdml.enums import DmlEnum
from tvmdml.errors import InvalidArgument, safe_repr
from tvmdml.operators import Operator
from tvmdml.operators._contract import Field, Role
from tvmdml.tensors import TensorDataType

_OPERATOR, _CONSTANT = 1, 2
"""Of a node's description."""
_NAMED, _CONTAINED = 1, 2
"""Of a constant: in a file of that name, or in this one."""


class SerializedConstant(NamedTuple):
    """A constant's bytes, or the name of the file that has them."""

    name: str
    """The node's, for messages."""
    content: bytes | None
    file: str


class SerializedCall(NamedTuple):
    """An operator of the graph."""

    name: str
    """The node's, for messages."""
    kind: str
    """The operator: ``DML_OPERATOR_…``."""
    fields: dict[str, Any]
    """The descriptor, as in a JSON model."""


class SerializedNode(NamedTuple):
    """A node, and the names of what it reads and writes; an empty name is a tensor that is absent."""

    what: SerializedCall | SerializedConstant
    inputs: list[str]
    outputs: list[str]


class File(NamedTuple):
    """A serialized graph."""

    nodes: list[SerializedNode]
    inputs: list[str]
    outputs: list[str]


def read(content: bytes) -> File:
    """The graph in a file.

    Raises:
        Damaged: it is none.
        Unsupported: the package ``flatbuffers`` is not installed, or there is no such operator.
    """
    root = flat.root(content)
    return File([_node(one) for one in root.tables(0)], root.texts(1), root.texts(2))


def _node(table: FlatTable) -> SerializedNode:
    kind, desc, name = table.number(0, "B"), table.table(1), table.text(2) or ""
    inputs, outputs = table.texts(3), table.texts(4)
    if desc is None or kind not in (_OPERATOR, _CONSTANT):
        raise Damaged(f"node {safe_repr(name)} of kind {kind}")
    what = _call(name, desc, inputs, outputs) if kind == _OPERATOR else _constant(name, desc)
    return SerializedNode(what, inputs, outputs)


def _constant(name: str, desc: FlatTable) -> SerializedConstant:
    kind, data = desc.number(0, "B"), desc.table(1)
    if data is not None and kind == _NAMED:
        return SerializedConstant(name, None, data.text(0) or "")
    content = data.array(0, "u1") if data is not None and kind == _CONTAINED else None
    if content is None:
        raise Damaged(f"constant {safe_repr(name)} without data")
    return SerializedConstant(name, content.tobytes(), "")


def _call(name: str, desc: FlatTable, inputs: list[str], outputs: list[str]) -> SerializedCall:
    kind = desc.text(0) or ""
    cls = operators.by_name(kind)
    attributes: dict[str, Any] = {}
    for one in desc.tables(3):
        if (field := one.text(0)) and (value := _value(one)) is not None:
            attributes[field] = value
    fields = _attributes(cls, attributes)
    for role, names, place in ((Role.INPUT, inputs, 1), (Role.OUTPUT, outputs, 2)):
        _put_tensors(fields, cls, role, names, [_tensor(one) for one in desc.tables(place)])
    return SerializedCall(name, kind, fields)


def _tensor(table: FlatTable) -> dict[str, Any]:
    sizes, strides = table.array(1, "<u4"), table.array(2, "<u4")
    found = {"DataType": table.text(0) or "", "Sizes": [] if sizes is None else sizes.tolist()}
    if strides is not None and len(strides):
        found["Strides"] = strides.tolist()
    if size := table.number(3, "Q"):
        found["TotalTensorSizeInBytes"] = size
    return found


def _put_tensors(fields: dict[str, Any], cls: type[Operator], role: Role, names: list[str], tensors: list[Any]) -> None:
    """The tensors that are present, in the order of the fields; an array of tensors takes all that are left."""
    left = iter(tensors)
    at = 0
    for field in cls.fields():
        if field.role is not role:
            continue
        if field.many:
            fields[field.dml_name] = list(left)
            continue
        if at < len(names) and names[at] and (found := next(left, None)) is not None:
            fields[field.dml_name] = found
        at += 1
    if next(left, None) is not None:
        raise Damaged(f"{cls.NAME} with {len(tensors)} {role.value}s, of which {sum(map(bool, names))} have names")


# -- Attributes


def _activation(table: FlatTable) -> dict[str, Any]:
    kind = table.text(0) or ""
    values = {name: value for one in table.tables(1) if (name := one.text(0)) and (value := _value(one)) is not None}
    return {"Type": kind, **_attributes(operators.by_name(kind), values)}


def _struct(form: str) -> Callable[[FlatTable, int], Any]:
    def read(table: FlatTable, field: int) -> Any:
        found = table.numbers(field, form)
        return found if found is None or len(found) > 1 else found[0]

    return read


def _inner(read: Callable[[FlatTable], Any]) -> Callable[[FlatTable, int], Any]:
    def inside(table: FlatTable, field: int) -> Any:
        found = table.table(field)
        return None if found is None else read(found)

    return inside


def _array(dtype: str) -> Callable[[FlatTable, int], Any]:
    def read(table: FlatTable) -> Any:
        found = table.array(0, dtype)
        return [] if found is None else found.tolist()

    return _inner(read)


def _scalar(table: FlatTable) -> bytes:
    """The eight bytes of a ``DML_SCALAR_UNION``, whose type another field says."""
    form = _SCALARS.get(table.number(0, "B"))
    found = None if form is None else table.numbers(1, form)
    if found is None or form is None:
        raise Damaged("a scalar without a value")
    return bytes(found) if form == "8B" else np.array(found, form).tobytes().ljust(8, b"\0")


_SCALARS = {1: "8B", **dict(enumerate("bBhHiIqQfd", 2))}
"""The forms of a scalar, by the numbers of the union."""
_VALUES: Mapping[int, Callable[[FlatTable, int], Any]] = {
    1: _inner(_activation),
    2: _inner(lambda table: [_activation(one) for one in table.tables(0)]),
    3: _struct("I"),
    4: _struct("Q"),
    5: _struct("i"),
    6: _struct("f"),
    7: _array("<u4"),
    8: _array("<i4"),
    9: _array("<f4"),
    10: _struct("ff"),
    11: _struct("II"),
    12: _inner(_scalar),
    13: _struct("?"),
}
"""The readers of an attribute's value, by the numbers of the union."""


def _value(attribute: FlatTable) -> Any:
    kind = attribute.number(1, "B")
    if kind not in _VALUES:
        raise Damaged(f"an attribute of kind {kind}")
    return _VALUES[kind](attribute, 2)


def _attributes(cls: type[Operator], given: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as in JSON: members of enumerations by name, truth values, structures as objects."""
    fields = {field.dml_name: field for field in cls.fields()}
    scalar = next((given.get(field.dml_name) for field in cls.fields() if field.enum is TensorDataType), None)
    return {name: _as_json(fields[name], value, scalar) if name in fields else value for name, value in given.items()}


def _as_json(field: Field, value: Any, scalar: Any) -> Any:
    where = f"{field.dml_name}"
    try:
        if field.enum is not None:
            return _member(field.enum, value, where)
        if field.role is Role.BOOL:
            return bool(value)
        if field.role is Role.SCALE_BIAS:
            return dict(zip(("Scale", "Bias"), value, strict=True))
        if field.role is Role.SIZE_2D:
            return dict(zip(("Width", "Height"), value, strict=True))
        if field.role is Role.SCALAR and isinstance(value, bytes):
            kind = TensorDataType.parse(scalar, where)
            return np.frombuffer(value, kind.stored.numpy, 1)[0].item()
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise Damaged(f"{where} of {safe_repr(value)}") from None
    return value


def _member(kind: type[DmlEnum], value: Any, where: str) -> str:
    return kind.parse(value, where).name

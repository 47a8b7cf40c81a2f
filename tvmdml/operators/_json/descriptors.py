"""Reads an operator's descriptor from JSON, guided by the descriptor's fields: one reader for all operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tvmdml import operators
from tvmdml.enums import TensorFlags
from tvmdml.errors import InvalidArgument, Unsupported
from tvmdml.operators import Operator
from tvmdml.operators._contract import Field, Role
from tvmdml.operators._json.nodes import JsonNode, shown
from tvmdml.operators._roles import STRUCTS, TENSORS
from tvmdml.tensors import TensorDataType, TensorDesc

_FLAGS = {flag.name: flag for flag in TensorFlags}


def read(cls: type[Operator], node: JsonNode, fused: bool = False) -> Operator:
    """Read an object's fields into a descriptor of a class.

    Args:
        cls: the operator.
        node: the object, with DirectML's names for the fields.
        fused: the operator is part of another operator, and therefore has no tensors.

    Raises:
        ModelError: a field is unknown, missing or invalid; the message says where.
    """
    fields = {field.dml_name: field for field in cls.fields()}
    node = node.renamed(cls.SYNONYMS)
    members = node.members()
    counts = [name for name in members if name.endswith("Count") and name not in fields][:1]
    node.only([*fields, *counts])
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if field.optional or (fused and field.role in TENSORS):
            found = node.get(name)
        else:
            found = node.need(name, ", ".join(field.enum.__members__) if field.enum else field.role.value)
        values[field.name] = None if found is None else _value(found, field, node, cls)
    for name in counts:
        _check_count(members[name], cls, values)
    try:
        return cls(**values)
    except InvalidArgument as error:
        raise node.blame(error, cls.NAME, fields) from None


def find(node: JsonNode) -> type[Operator]:
    """The operator class with the name in a node.

    Raises:
        Unsupported: there is no such operator.
    """
    return operators.by_name(node.text())


def nested(desc: JsonNode) -> Iterator[JsonNode]:
    """The names of fused activations inside an operator's object. The outer operator may be unknown."""
    for field in desc.members().values():
        for item in field.items() if isinstance(field.value, list) else [field]:
            # An object with a type but no sizes is not a tensor.
            if isinstance(item.value, dict) and isinstance(item.value.get("Type"), str):
                inner = item.value.get("Desc")
                names = {*item.value, *(inner if isinstance(inner, dict) else ())}
                kind = item.members()["Type"]
                if not {"DataType", "Sizes"} & names and "BUFFER" not in kind.text().upper():
                    yield kind


def _value(node: JsonNode, field: Field, desc: JsonNode, cls: type[Operator]) -> Any:
    if field.enum is not None:
        return _member(node, field.enum)
    if field.role is Role.SCALAR:
        return _scalar(node, _scalar_type(desc, cls))
    one = _READERS.get(field.role)
    if one is None:  # the descriptor's own check is enough
        return node.value
    return tuple(one(item) for item in node.items()) if field.many or field.role is Role.FLOATS else one(node)


def _struct(role: Role) -> Callable[[JsonNode], Any]:
    """The reader of a structure: an object of its members' names, each of which has to be there."""
    kind, member = STRUCTS[role]
    names = STRUCTS[role].names

    def read(node: JsonNode) -> Any:
        node.only(names)
        found = [node.need(name, member.value) for name in names]
        return kind(*(_READERS[member](one) if member in _READERS else one.value for one in found))

    return read


def _member(node: JsonNode, enum: Any) -> Any:
    try:
        return enum.parse(node.text(), "")
    except InvalidArgument:
        raise node.wrong(", ".join(enum.__members__), "DirectML's prefix is allowed.") from None


def _tensor(node: JsonNode) -> TensorDesc:
    if kind := node.get("Type"):
        kind.choice({"BUFFER": None}, "DML_TENSOR_TYPE_")
    inner = node.get("Desc")
    if inner is not None:
        node.only(("Type", "Desc"))
    desc = inner or node
    desc.only([*_TENSOR_FIELDS, "DimensionCount", *(() if inner else ("Type",))])
    sizes = desc.need("Sizes", "a list of sizes").items()
    if count := desc.get("DimensionCount"):
        count.integer(len(sizes), len(sizes))
    desc.need("DataType", ", ".join(TensorDataType.__members__))
    values = {name: read(found) for key, (name, read) in _TENSOR_FIELDS.items() if (found := desc.get(key))}
    try:
        return TensorDesc(**values)
    except InvalidArgument as error:
        raise desc.blame(error, "TensorDesc", _TENSOR_FIELDS) from None


def _output(node: JsonNode) -> TensorDesc:
    desc = _tensor(node)
    if desc.flags is TensorFlags.OWNED_BY_DML:
        raise node.error("an output that is OWNED_BY_DML", "OWNED_BY_DML only for inputs")
    return desc


def _flags(node: JsonNode) -> TensorFlags:
    names = node.items() if isinstance(node.value, list) else [node]
    return max((name.choice(_FLAGS, "DML_TENSOR_FLAG_") for name in names), default=TensorFlags.NONE)


def _integers(node: JsonNode) -> list[Any] | None:
    return [item.value for item in node.items()] or None  # an empty list means null in C


# The fields of DML_BUFFER_TENSOR_DESC, by their names in JSON: TensorDesc's name, and the function that reads the field.
_TENSOR_FIELDS: Mapping[str, tuple[str, Callable[[JsonNode], Any]]] = {
    "DataType": ("data_type", lambda node: _member(node, TensorDataType)),
    "Sizes": ("sizes", lambda node: node.value),
    "Strides": ("strides", _integers),
    "TotalTensorSizeInBytes": ("total_tensor_size_in_bytes", lambda node: node.integer() or None),  # 0 asks to compute it
    "GuaranteedBaseOffsetAlignment": ("guaranteed_base_offset_alignment", JsonNode.integer),
    "Flags": ("flags", _flags),
}


def _operator(node: JsonNode) -> Operator:
    kind = node.need("Type", "the name of an operator")
    try:
        cls = find(kind)
    except Unsupported as error:
        raise kind.blame(error, "operator") from None
    inner = node.get("Desc")
    if inner is not None:
        node.only(("Type", "Desc"))
        return read(cls, inner, fused=True)
    return read(cls, JsonNode({k: v for k, v in node.value.items() if k != "Type"}, node.file, node.path), fused=True)


# The functions that read a value of each role. Values of other roles are passed on unchanged.
_READERS: Mapping[Role, Callable[[JsonNode], Any]] = {
    Role.INPUT: _tensor,
    Role.OUTPUT: _output,
    Role.OPERATOR: _operator,
    Role.FLOAT: JsonNode.number,
    Role.FLOATS: JsonNode.number,
    **{role: _struct(role) for role in STRUCTS},
}


# -- Scalar unions ------------------------------------------------------------------------------------------------


def _scalar_type(desc: JsonNode, cls: type[Operator]) -> TensorDataType | None:
    """The type of a descriptor's scalars; one field gives it for all of them."""
    for field in cls.fields():
        if field.enum is TensorDataType:
            named = desc.need(field.dml_name, ", ".join(TensorDataType.__members__))
            return TensorDataType(_member(named, TensorDataType))
    return None


def _scalar(node: JsonNode, data_type: TensorDataType | None) -> int | float:
    """A number, or the member of ``DML_SCALAR_UNION`` for the type, such as ``{"Float32": 0.5}``."""
    if not isinstance(node.value, dict) or data_type is None:
        return node.number()
    # The union has no member for float16: its bits are given as an integer.
    as_bits = data_type is TensorDataType.FLOAT16
    name = "UInt16" if as_bits else data_type.name.title().replace("Uint", "UInt")
    node.only((name,))
    member = node.need(name, f"a number for {data_type.name}")
    return float(np.uint16(member.integer(0, 0xFFFF)).view(np.float16)) if as_bits else member.number()


# -- Counts -------------------------------------------------------------------------------------------------------


def _check_count(node: JsonNode, cls: type[Operator], values: Mapping[str, Any]) -> None:
    """Check the count that C needs. Each of DirectML's structures has at most one, which applies to all its arrays."""
    arrays = {f.dml_name: values[f.name] for f in cls.fields() if f.is_array and isinstance(values[f.name], (list, tuple))}
    if not arrays:
        raise node.error("an unknown field", ", ".join(f.dml_name for f in cls.fields()), "Remove it.")
    for name, array in arrays.items():
        if type(node.value) is not int or node.value != len(array):
            raise node.error(shown(node.value), f"{len(array)}, the length of {name}", "It may be omitted.")

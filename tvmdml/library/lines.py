"""A descriptor as a line of a spec: ``{ operator = "TOP_K1", InputTensor = "float32[2, 3]", …, Axis = 1 }``.

Names are DirectML's. A tensor is a string: data type, sizes, ``strides`` if it is not packed, and ``owned`` if it is OWNED_BY_DML.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tvmdml import operators
from tvmdml.enums import NEWEST_FEATURE_LEVEL, DmlEnum, TensorFlags
from tvmdml.errors import InvalidArgument, message
from tvmdml.library.tensor_text import parse_tensor
from tvmdml.operators import Operator
from tvmdml.operators._contract import Field
from tvmdml.operators._json import descriptors
from tvmdml.operators._json.nodes import JsonNode
from tvmdml.operators._roles import STRUCTS, TENSORS, Role, dml_name
from tvmdml.operators._shared import InPlace
from tvmdml.tensors import TensorDesc

Line = dict[str, Any]
"""JSON values by name: ``operator``, then the fields."""

_STRUCTS = tuple(struct.kind for struct in STRUCTS.values())
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def of(desc: Operator) -> Line:
    """The line of a descriptor. Fields without a value are omitted."""
    line: Line = {"operator": desc.NAME}
    for field in desc.fields():
        value = getattr(desc, field.name)
        if value is not None:
            line[field.dml_name] = _json(value)
    return line


def read(line: Mapping[str, Any], where: str) -> Operator:
    """The descriptor of a line, checked against the operator's contract with all extensions.

    Raises:
        InvalidArgument, ModelError, Unsupported: there is no such operator or field, or a value breaks the contract.
    """
    name = line.get("operator")
    if not isinstance(name, str):
        raise InvalidArgument(message(f"{where}: operator", repr(name), "a name, such as TOP_K1"))
    cls = operators.by_name(name)
    fields = {field.dml_name: field for field in cls.fields()}
    values = {key: _field(fields.get(key), value, f"{where}: {key}") for key, value in line.items() if key != "operator"}
    desc = descriptors.read(cls, JsonNode(values, where))
    desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    return desc


def toml(line: Mapping[str, Any], in_place: InPlace = False) -> str:
    """The line in TOML, without a separator."""
    members = [f"{key} = {_toml(value)}" for key, value in ({**line, "in_place": in_place} if in_place else line).items()]
    return f"{{ {', '.join(members)} }}"


def _field(field: Field | None, value: Any, where: str) -> Any:
    """A value in the form of DirectML's JSON."""
    if field is not None and field.role in TENSORS:
        return [_tensor(one, where) for one in value] if isinstance(value, list) else _tensor(value, where)
    if field is not None and field.role is Role.OPERATOR:
        return [_part(one, where) for one in value] if isinstance(value, list) else _part(value, where)
    if isinstance(value, str) and value in _FLOATS and (field is None or field.enum is None):
        return _FLOATS[value]
    return value


def _part(value: Any, where: str) -> Any:
    """An operator in another one. In a group it has tensors of its own."""
    if not isinstance(value, dict) or not isinstance(value.get("Type"), str) or "Desc" in value:
        return value
    fields = {field.dml_name: field for field in operators.by_name(value["Type"]).fields()}
    return {key: _field(fields.get(key), one, f"{where}.{key}") if key != "Type" else one for key, one in value.items()}


def _tensor(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    desc = parse_tensor(value, where)
    strides = {} if desc.strides is None else {"Strides": list(desc.strides)}
    flags = {"Flags": desc.flags.name} if desc.flags is not TensorFlags.NONE else {}
    return {"DataType": desc.data_type.name, "Sizes": list(desc.sizes), **strides, **flags}


def _json(value: Any) -> Any:
    if isinstance(value, TensorDesc):
        return f"{value} owned" if value.flags is TensorFlags.OWNED_BY_DML else str(value)
    if isinstance(value, DmlEnum):
        return value.name
    if isinstance(value, Operator):
        return {"Type": value.NAME, **{key: one for key, one in of(value).items() if key != "operator"}}
    if isinstance(value, _STRUCTS):
        return {dml_name(name): _json(one) for name, one in value._asdict().items()}
    if isinstance(value, tuple):
        return [_json(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return next(name for name, number in _FLOATS.items() if repr(number) == repr(value))
    return value


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(one)}' for key, one in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)  # strings, numbers, true and false are the same in TOML and JSON

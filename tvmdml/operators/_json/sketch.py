"""Makes a descriptor from a sketch: the input's type and sizes and a few fields.

Fields that the sketch leaves out are zero, as in a zeroed C structure. Outputs follow from the inputs (``Operator.of``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tvmdml.enums import FeatureLevel
from tvmdml.errors import InvalidArgument, ModelError, Unsupported, message
from tvmdml.operators import Operator
from tvmdml.operators._contract import Field, Role
from tvmdml.operators._json import descriptors
from tvmdml.operators._json.nodes import JsonNode
from tvmdml.operators._roles import SEQUENCES, STRUCTS, TENSORS
from tvmdml.tensors import TensorDataType, TensorDesc

Sizes = tuple[int, ...]

_ZEROS: Mapping[Role, Any] = {
    Role.BOOL: False,
    Role.OPERATOR: [],
    **{role: [] for role in SEQUENCES},
    **{role: dict.fromkeys(struct.names, 0) for role, struct in STRUCTS.items()},
}
"""The values of fields that are left out, in JSON; 0 for the other roles."""


def describe(
    cls: type[Operator],
    data_type: TensorDataType,
    sizes: Sizes,
    fields: Mapping[str, Any],
    tensors: Mapping[str, tuple[TensorDataType | None, Sizes | None]],
    level: FeatureLevel,
    *,
    strides: Sizes | None = None,
    extensions: bool = False,
) -> Operator:
    """The descriptor for a sketch.

    Args:
        cls: the operator.
        data_type: the first tensor's type, and that of the other inputs if they support it.
        sizes: the inputs' sizes; those of the first output if there is no input.
        fields: JSON values by the fields' names; case and underscores do not matter.
        tensors: types and sizes of tensors that differ, or of present optional tensors; ``None`` means the usual type or sizes.
        level: the feature level to check against.
        strides: the first tensor's; packed by default.
        extensions: allow tvmdml's extensions.

    Raises:
        InvalidArgument, Unsupported, ModelError: a field does not exist, or the descriptor is not valid.
    """
    fields = {_field(cls, name).dml_name: value for name, value in fields.items()}
    tensors = {_field(cls, name).dml_name: given for name, given in tensors.items()}
    values: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    layout = {} if strides is None else {"Strides": list(strides)}
    assumed: list[Field] = []
    for field in cls.fields():
        name = field.dml_name
        if name in fields:
            values[name] = fields[name]
        elif field.role in TENSORS and (name in tensors or not field.optional):
            kind, own = tensors.get(name, (None, None))
            is_first = not any(one.dml_name in values for one in cls.fields() if one.role in TENSORS)
            if field.role is Role.OUTPUT and own is None and not is_first:
                outputs[field.name] = kind or (data_type if field.optional else None)
                continue
            # The sketch describes the first tensor.
            kind = kind or (data_type if is_first else _usual_type(cls, field, data_type, level, extensions))
            tensor = {"DataType": kind.name, "Sizes": list(own or sizes), **layout}
            values[name] = [tensor] if field.many else tensor
            layout = {}
        elif field.enum is not None:
            members = field.enum.__members__
            values[name] = data_type.name if data_type.name in members else next(iter(members))
        elif not field.optional:
            values[name] = _ZEROS.get(field.role, 0)
            assumed.append(field)
    try:
        desc = _inferred(descriptors.read(cls, JsonNode(values, cls.NAME), fused=True), outputs, level, extensions)
        desc.validate(level, extensions)
    except (InvalidArgument, ModelError, Unsupported) as error:
        for field in assumed:
            if str(error).startswith(f"{cls.where(field.name)}:"):
                raise type(error)(f"{error} {field.dml_name} was not specified, and 0 was assumed: specify it.") from None
        raise
    return desc


def _inferred(draft: Operator, outputs: Mapping[str, Any], level: FeatureLevel, extensions: bool) -> Operator:
    """The descriptor with the outputs that the sketch does not describe, of types that the level has."""
    cls = type(draft)
    given = {field.name: getattr(draft, field.name) for field in cls.fields()}
    inputs = [given.pop(field.name) for field in cls.fields() if field.role is Role.INPUT]
    found = cls.of(*inputs, **{**given, **outputs})
    usual: dict[str, TensorDesc] = {}
    for field in cls.fields():
        tensor = getattr(found, field.name)
        if field.name in outputs and outputs[field.name] is None and isinstance(tensor, TensorDesc):
            usual[field.name] = dataclasses.replace(tensor, data_type=_usual_type(cls, field, tensor.data_type, level, extensions))
    return dataclasses.replace(found, **usual)  # type: ignore[type-var] # a dataclass, as all descriptors are


def _field(cls: type[Operator], name: str) -> Field:
    for field in cls.fields():
        if field.dml_name.lower() == name.replace("_", "").lower():
            return field
    raise InvalidArgument(message(f"{cls.NAME} field", repr(name), ", ".join(field.dml_name for field in cls.fields())))


def _usual_type(cls: type[Operator], field: Field, wanted: TensorDataType, level: FeatureLevel, extensions: bool) -> TensorDataType:
    """The wanted type if the operator supports it for this tensor, otherwise the first that it does support."""
    rows = [row for row in cls.SUPPORT if (extensions if row.level is None else row.level <= level)]
    types = [data_type for row in rows for data_type in row.tensors[field.name].types]
    return wanted if wanted in types or not types else types[0]

"""Shape inference: ``Operator.of`` makes a descriptor of inputs and attributes. See there; this is how."""

from __future__ import annotations

import dataclasses
import operator as python_operator
from collections.abc import Iterator, Mapping
from typing import Any

from tvmdml.errors import InvalidArgument, counted, message, safe_repr
from tvmdml.operators._roles import MISSING, TENSORS, Field, Role
from tvmdml.tensors import TensorDataType, TensorDesc


def fields_of(cls: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs, the attributes and the outputs that are given in full, by name; other outputs are absent.

    Args:
        cls: the operator.
        given: the inputs.
        named: attributes and outputs.

    Raises:
        InvalidArgument: a field is missing or unknown.
    """
    fields: Mapping[str, Field] = {field.name: field for field in cls.fields()}
    for name in named:
        if name not in fields or fields[name].role is Role.INPUT:
            known = ", ".join(field.name for field in fields.values() if field.role is not Role.INPUT)
            raise InvalidArgument(message(cls.where("attribute"), safe_repr(name), known))
    values = _inputs(cls, [field for field in fields.values() if field.role is Role.INPUT], given)
    outputs = {field.name: named.get(field.name) for field in fields.values() if field.role is Role.OUTPUT}
    values |= {name: value if is_description(value) else None for name, value in outputs.items()}
    first = next((tensor for tensor in _flat(values) if isinstance(tensor, TensorDesc)), None)
    for field in fields.values():
        if field.role not in TENSORS:
            # Functions have a usual value where the field itself may not be absent: a descriptor needs one.
            default = MISSING if field.default is None and not field.optional else field.default
            values[field.name] = _attribute(cls, field, named.get(field.name, default), first)
    return values


def is_description(value: Any) -> bool:
    """Whether an output is given in full, not only its data type."""
    return isinstance(value, (TensorDesc, tuple, list))


def outputs_of(draft: Any, inferred: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The inferred fields, with the types that were asked for, and without optional outputs that were not.

    Raises:
        InvalidArgument: an output does not follow from the inputs, and is not given.
    """
    found = dict(inferred)
    for field in draft.fields():
        name, wanted = field.name, named.get(field.name)
        if field.role is not Role.OUTPUT:
            continue
        if is_description(wanted):
            found[name] = wanted
        elif wanted is None and (field.optional or name not in found):
            draft.require(field.optional, name, "nothing", "a TensorDesc: it does not follow from the inputs")
            found[name] = None
        elif wanted is not None:
            data_type = TensorDataType.of(wanted, draft.where(name))
            draft.require(name in found, name, data_type.tvm, "a TensorDesc: it does not follow from the inputs")
            found[name] = dataclasses.replace(found[name], data_type=data_type)
    return found


def _inputs(cls: Any, fields: list[Field], given: tuple[Any, ...]) -> dict[str, Any]:
    if len(given) > len(fields):
        names = ", ".join(field.name for field in fields) or "none"
        raise InvalidArgument(message(cls.where("inputs"), counted(len(given), "tensor"), f"{len(fields)}: {names}"))
    values = {field.name: given[i] if i < len(given) else None for i, field in enumerate(fields)}
    for field in fields:
        if values[field.name] is None and not field.optional:
            raise InvalidArgument(message(cls.where(field.name), "nothing", f"{field.role.value}: a TensorDesc"))
    return values


def _flat(values: Mapping[str, Any]) -> Iterator[Any]:
    for value in values.values():
        yield from value if issubclass(type(value), (tuple, list)) else (value,)


def _attribute(cls: Any, field: Field, value: Any, first: TensorDesc | None) -> Any:
    """An attribute's value, or its default. A data type is the first tensor's; a negative axis counts from its last dimension."""
    where = cls.where(field.name)
    if value is MISSING:
        if field.optional:
            return None
        if field.enum is TensorDataType and first is not None:
            return first.data_type
        allowed = ", ".join(repr(member.name.lower()) for member in field.enum) if field.enum else field.role.value
        raise InvalidArgument(message(where, "nothing", allowed))
    if not field.is_axis or first is None or value is None:
        return value
    if field.role is Role.UINT:
        return dimension(value, first.rank, where)
    return (
        [dimension(one, first.rank, f"{where}[{i}]") for i, one in enumerate(value)] if isinstance(value, (tuple, list)) else value
    )


def dimension(value: Any, rank: int, where: str) -> int:
    """A dimension as a number from 0 up; a negative number counts from the last.

    Raises:
        InvalidArgument: there is no such dimension.
    """
    try:
        position = python_operator.index(value)
    except (TypeError, RuntimeError):  # PyTorch raises RuntimeError for a tensor that is too large
        position = rank
    if not -rank <= position < rank or isinstance(value, bool):
        raise InvalidArgument(message(where, safe_repr(value), f"an integer from {-rank} to {rank - 1}"))
    return position % rank

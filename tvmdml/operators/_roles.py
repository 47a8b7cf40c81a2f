"""The kinds of fields that DirectML's structures have: their types in Python, and how a given value becomes a field's value.

Each kind is a ``Role``. Two modules have another table by role: ``dxdispatch.descriptors`` reads JSON, ``dxdispatch.sketch`` has
the values of fields that a sketch omits.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, NamedTuple

import numpy as np

from tvmdml.enums import DmlEnum
from tvmdml.errors import InvalidArgument, counted, message, safe_repr
from tvmdml.tensors import MOST_VALUES, TensorDesc
from tvmdml.tensors.sizes import symbols


class ScaleBias(NamedTuple):
    """``DML_SCALE_BIAS``: an operator computes ``x * scale + bias`` first, and its own function of that."""

    scale: float
    """Kept in single precision."""
    bias: float
    """Kept in single precision."""


class Size2D(NamedTuple):
    """``DML_SIZE_2D``."""

    width: int
    height: int


class Role(Enum):
    """The kind of a descriptor's field."""

    INPUT = "input tensor"
    OUTPUT = "output tensor"
    UINT = "an integer from 0 to 4294967295"
    INT = "an integer from -2147483648 to 2147483647"
    FLOAT = "a number, stored in single precision"
    SCALAR = "a number"
    BOOL = "true or false"
    UINTS = "a sequence of integers from 0 to 4294967295"
    INTS = "a sequence of integers from -2147483648 to 2147483647"
    FLOATS = "a sequence of numbers"
    SCALE_BIAS = "a scale and a bias: two numbers, stored in single precision"
    SIZE_2D = "a width and a height: two integers from 0 to 4294967295"
    ENUM = "a member of an enumeration"
    OPERATOR = "operator descriptor"

    __hash__ = object.__hash__  # that of enumerations takes longer


# The types of a descriptor's fields. A trailing s marks an array: a count and a pointer in C.
Input = Annotated[TensorDesc, Role.INPUT]
OptionalInput = Annotated[TensorDesc | None, Role.INPUT]
Inputs = Annotated[tuple[TensorDesc, ...], Role.INPUT]
Output = Annotated[TensorDesc, Role.OUTPUT]
OptionalOutput = Annotated[TensorDesc | None, Role.OUTPUT]
Outputs = Annotated[tuple[TensorDesc, ...], Role.OUTPUT]
Uint = Annotated[int, Role.UINT]
Int = Annotated[int, Role.INT]
Float = Annotated[float, Role.FLOAT]
OptionalFloat = Annotated[float | None, Role.FLOAT]
Bool = Annotated[bool, Role.BOOL]
OptionalBool = Annotated[bool | None, Role.BOOL]
Scalar = Annotated[int | float, Role.SCALAR]
Uints = Annotated[tuple[int, ...], Role.UINTS]
Ints = Annotated[tuple[int, ...], Role.INTS]
Floats = Annotated[tuple[float, ...], Role.FLOATS]
OptionalScaleBias = Annotated[ScaleBias | None, Role.SCALE_BIAS]
Size = Annotated[Size2D, Role.SIZE_2D]

_AXIS = "counts the dimensions of the first input"
Axis = Annotated[int, Role.UINT, _AXIS]
Axes = Annotated[tuple[int, ...], Role.UINTS, _AXIS]

MISSING: Any = dataclasses.MISSING
"""In place of the default of a field that has none."""
TENSORS = (Role.INPUT, Role.OUTPUT)
_MOST_MEMBERS = 1 << 16
"""The most tensors or operators in a sequence, which may say that it has more than memory can hold."""
SEQUENCES: Mapping[Role, Role] = {Role.UINTS: Role.UINT, Role.INTS: Role.INT, Role.FLOATS: Role.FLOAT}
"""The roles of sequences, and the role of their items."""


_CAPITALS = {"roi": "ROI"}
"""Words that are in capitals in DirectML's names."""


class Struct(NamedTuple):
    """A structure of DirectML whose members all have one role."""

    kind: type[Any]
    member: Role

    @property
    def names(self) -> dict[str, str]:
        """The members' names, by DirectML's: ``{"Scale": "scale", "Bias": "bias"}``."""
        return {dml_name(name): name for name in self.kind._fields}


STRUCTS: Mapping[Role, Struct] = {
    Role.SCALE_BIAS: Struct(ScaleBias, Role.FLOAT),
    Role.SIZE_2D: Struct(Size2D, Role.UINT),
}


class Field(NamedTuple):
    """One field of a descriptor."""

    name: str
    role: Role
    optional: bool
    many: bool
    """An array of tensors or of operators."""
    kind: type[Any]
    """The class of a value: of each one, in an array."""
    is_axis: bool = False
    """Whether it counts the dimensions of the first input: functions and ``Operator.of`` accept negative numbers."""
    default: Any = MISSING
    """The value for callers of functions and of ``Operator.of`` that leave the field out; ``MISSING`` if they may not."""

    @property
    def dml_name(self) -> str:
        """The name in DirectML's structure: ``DiagonalFillBegin`` for ``diagonal_fill_begin``."""
        return dml_name(self.name)

    @property
    def enum(self) -> type[DmlEnum] | None:
        """The enumeration, if the field's value is a member of one."""
        return self.kind if self.role is Role.ENUM else None

    @property
    def is_array(self) -> bool:
        """An array, whose length is a count of its own in C."""
        return self.many or self.role in SEQUENCES


def dml_name(name: str) -> str:
    """DirectML's form of a name in snake case."""
    return "".join(_CAPITALS.get(word) or word[:1].upper() + word[1:] for word in name.split("_"))


def field_of(name: str, hint: Any, default: Any = MISSING) -> Field:
    """The field for a type annotation.

    Raises:
        TypeError: the type has no role.
    """
    role = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Role)), None)
    if role is not None:
        inner = typing.get_args(hint)[0]
        kinds = typing.get_args(inner)
        many = typing.get_origin(inner) is tuple and role not in SEQUENCES
        return Field(name, role, type(None) in kinds, many, kinds[0] if kinds else inner, _AXIS in hint.__metadata__, default)
    if inspect.isclass(hint) and issubclass(hint, DmlEnum):
        return Field(name, Role.ENUM, False, False, hint, default=default)
    raise TypeError(f"field {name}: no role for {hint!r}")


_LIMITS: Mapping[Role, tuple[int, int]] = dict.fromkeys((Role.UINT, Role.UINTS), (0, 2**32 - 1)) | dict.fromkeys(
    (Role.INT, Role.INTS), (-(2**31), 2**31 - 1)
)
"""The least and the greatest integer of a role."""


def is_coerced(field: Field, value: Any) -> bool:
    """Whether a value is one that ``coerce`` returns as it is: most fields are those of another descriptor. It may say no."""
    kind, role = type(value), field.role
    if role in TENSORS:
        return not field.many and (value is None or issubclass(kind, field.kind))
    if role is Role.ENUM:
        return kind is field.kind
    if (limits := _LIMITS.get(role)) is None:
        return role is Role.BOOL and kind is bool
    if role in SEQUENCES:
        plain = kind is tuple and len(value) < MOST_VALUES and all(type(n) is int for n in value)
        return plain and (not value or (limits[0] <= min(value) and max(value) <= limits[1]))
    return kind is int and limits[0] <= value <= limits[1]


def coerce(where: str, field: Field, value: Any) -> Any:
    """The value, converted to its field's type. ``where`` names the field in errors.

    Raises:
        InvalidArgument: it is not a value of that type.
    """
    if value is None and (field.optional or field.role in TENSORS):
        return None  # a fused operator has no tensors; `Operator.validate` checks for required tensors
    if not field.is_array:
        return _ONE[field.role](where, field, value)
    if field.many and type(value) is tuple and all(issubclass(type(item), field.kind) for item in value):
        return value
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        allowed = field.role.value if field.role in SEQUENCES else f"a sequence; each an {field.role.value}"
        raise InvalidArgument(message(where, safe_repr(value), allowed))
    one = field._replace(role=SEQUENCES.get(field.role, field.role))
    most = _MOST_MEMBERS if one.role in (*TENSORS, Role.OPERATOR) else MOST_VALUES - 1
    found = tuple(_ONE[one.role](f"{where}[{i}]", one, item) for i, item in enumerate(itertools.islice(value, most + 1)))
    if len(found) > most:
        raise InvalidArgument(message(where, f"more than {most} values", f"at most {most}"))
    return found


def _instance(where: str, field: Field, value: Any) -> Any:
    if not issubclass(type(value), field.kind):  # an object may say that it is of another class
        raise InvalidArgument(message(where, safe_repr(value), f"{field.role.value}: a {field.kind.__name__}"))
    return value


def _member(where: str, field: Field, value: Any) -> DmlEnum:
    return field.kind.parse(value, where)


_FROM_ZERO = "A descriptor counts axes from the first, which is 0; only tvmdml's functions accept negative axes."


def _integer(low: int, high: int) -> Callable[[str, Field, Any], int]:
    def check(where: str, field: Field, value: Any) -> int:
        try:
            number: int = symbols.index(value)
        except (TypeError, RuntimeError):  # PyTorch raises RuntimeError for a tensor that is too large
            raise InvalidArgument(message(where, safe_repr(value), field.role.value)) from None
        if symbols.is_symbol(number):
            return number
        if isinstance(value, bool) or not low <= number <= high:
            advice = _FROM_ZERO if number < low == 0 and field.name in ("axis", "axes") else ""
            raise InvalidArgument(message(where, safe_repr(value), field.role.value, advice))
        return number

    return check


def _number(where: str, field: Field, value: Any) -> int | float:
    kind = type(value)  # an object may say that it is of another class
    if issubclass(kind, (int, np.integer)) and not issubclass(kind, (bool, np.timedelta64)):  # timedelta64 is an np.integer
        return int(value)
    if issubclass(kind, (float, np.floating)):
        return float(value)
    raise InvalidArgument(message(where, safe_repr(value), field.role.value))


def _float(where: str, field: Field, value: Any) -> float:
    try:
        with np.errstate(all="ignore"):
            return float(np.float32(_number(where, field, value)))  # the precision of a C float
    except OverflowError:
        raise InvalidArgument(message(where, "a number outside the range of a float", field.role.value)) from None


def _bool(where: str, field: Field, value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise InvalidArgument(message(where, safe_repr(value), field.role.value))


def _struct(where: str, field: Field, value: Any) -> Any:
    """A structure, or a sequence of its members in DirectML's order."""
    kind, member = STRUCTS[field.role]
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        advice = f"Write tvmdml.{kind.__name__}({', '.join(kind._fields)}) or a tuple."
        raise InvalidArgument(message(where, safe_repr(value), field.role.value, advice))
    if len(value) != len(kind._fields):
        raise InvalidArgument(message(where, counted(len(value), "value"), field.role.value))
    one = field._replace(role=member)
    return kind(*(_ONE[member](f"{where}.{name}", one, item) for name, item in zip(kind._fields, value, strict=True)))


def _operator(where: str, field: Field, value: Any) -> Any:
    if not issubclass(type(value), field.kind):  # an object may say that it is of another class
        raise InvalidArgument(message(where, safe_repr(value), f"{field.role.value}, such as tvmdml.ActivationRelu.fused()"))
    return value


# The check of a value of each role; that of a sequence is the check of its items' role.
_ONE: Mapping[Role, Callable[[str, Field, Any], Any]] = {
    Role.INPUT: _instance,
    Role.OUTPUT: _instance,
    Role.OPERATOR: _operator,
    Role.UINT: _integer(*_LIMITS[Role.UINT]),
    Role.INT: _integer(*_LIMITS[Role.INT]),
    Role.FLOAT: _float,
    Role.SCALAR: _number,
    Role.BOOL: _bool,
    Role.ENUM: _member,
    **dict.fromkeys(STRUCTS, _struct),
}

"""The parts of every operator: a typed descriptor, a support table, shape rules, a computation and a reference.

A new operator is a module beside this one with a class such as::

    class ElementWiseRound(Operator):
        NAME = "ELEMENT_WISE_ROUND"
        SUPPORT = support("2.1 F r4 · 3.0 r8")

        input_tensor: Input
        output_tensor: Output
        rounding_mode: RoundingMode

It is found by its file; there is no list to add it to. Fields are DirectML's, in DirectML's order, in snake case. The counts that
C needs (``DimensionCount``, ``InputCount``) are not fields, because a Python sequence knows its length.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator as python_operator
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from typing_extensions import dataclass_transform

from tvmdml import exact
from tvmdml.enums import DmlEnum, FeatureLevel
from tvmdml.errors import InvalidArgument, Unsupported, message, safe_repr
from tvmdml.operators._accuracy import Array as Array
from tvmdml.operators._accuracy import Expected, difference
from tvmdml.operators._support import Support
from tvmdml.tensors import TensorDataType, TensorDesc

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.tensorir import Each

O = TypeVar("O", bound="Operator")  # noqa: E741 - O for operator


class Role(Enum):
    """The kind of a descriptor's field."""

    INPUT = "input tensor"
    OUTPUT = "output tensor"
    UINT = "an integer from 0 to 4294967295"
    INT = "an integer from -2147483648 to 2147483647"
    FLOAT = "a number, kept in single precision"
    SCALAR = "a number"
    BOOL = "true or false"
    UINTS = "a sequence of integers from 0 to 4294967295"
    INTS = "a sequence of integers from -2147483648 to 2147483647"
    FLOATS = "a sequence of numbers"
    ENUM = "a member of an enumeration"
    OPERATOR = "operator descriptor"


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
Bool = Annotated[bool, Role.BOOL]
Scalar = Annotated[int | float, Role.SCALAR]
Uints = Annotated[tuple[int, ...], Role.UINTS]
Ints = Annotated[tuple[int, ...], Role.INTS]
Floats = Annotated[tuple[float, ...], Role.FLOATS]


_FUNCTION: ContextVar[str] = ContextVar("tvmdml_function", default="")


@contextmanager
def called_by(function: str) -> Iterator[None]:
    """A context manager: errors about descriptors name this function, which the user called, instead of its operator."""
    token = _FUNCTION.set(function)
    try:
        yield
    finally:
        _FUNCTION.reset(token)


class Field(NamedTuple):
    """One field of a descriptor."""

    name: str
    role: Role
    optional: bool
    many: bool
    enum: type[DmlEnum] | None

    @property
    def dml_name(self) -> str:
        """The name in DirectML's structure: ``DiagonalFillBegin`` for ``diagonal_fill_begin``."""
        return "".join(word[:1].upper() + word[1:] for word in self.name.split("_"))


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Operator:
    """Base class of all operator descriptors. A subclass becomes a frozen, keyword-only dataclass."""

    NAME: ClassVar[str] = ""
    """DirectML's name without ``DML_OPERATOR_``."""
    SUPPORT: ClassVar[tuple[Support, ...]] = ()
    """``support("…")``. The lowest level of the table is the one that introduced the operator."""
    IN_PLACE: ClassVar[bool] = False
    """Whether DirectML allows the output to use the input's buffer."""
    ANY_NAN: ClassVar[bool] = False
    """Whether any NaN is accepted where the reference has a NaN."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the subclass a dataclass."""
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        if any(row.others is not None for row in cls.SUPPORT):
            names = [field.name for field in cls.fields() if field.role in (Role.INPUT, Role.OUTPUT)]
            cls.SUPPORT = tuple(row.of(names) for row in cls.SUPPORT)

    def __post_init__(self) -> None:
        """Convert every field to its type."""
        for field in self.fields():
            object.__setattr__(self, field.name, _coerce(self, field, getattr(self, field.name)))

    # -- The contract ---------------------------------------------------------------------------------------------

    @classmethod
    @functools.cache
    def fields(cls) -> tuple[Field, ...]:
        """The descriptor's fields, in DirectML's order."""
        hints = typing.get_type_hints(cls, include_extras=True)
        return tuple(_field(f.name, hints[f.name]) for f in dataclasses.fields(cls))  # type: ignore[arg-type]

    def rows(self) -> tuple[Support, ...]:
        """The rows of the support table that apply to this descriptor: all rows, unless they depend on an attribute."""
        return self.SUPPORT

    @classmethod
    def feature_level(cls) -> FeatureLevel:
        """The feature level that introduced the operator."""
        return min(row.level for row in cls.SUPPORT if row.level is not None)

    def tensors(self, *roles: Role) -> Iterator[tuple[str, TensorDesc | None]]:
        """The name and description of every tensor of these roles (of all roles, if none is given), in DirectML's order."""
        for field in self.fields():
            if field.role in (roles or (Role.INPUT, Role.OUTPUT)):
                value = getattr(self, field.name)
                if field.many:
                    yield from ((f"{field.name}[{i}]", desc) for i, desc in enumerate(value))
                else:
                    yield field.name, value

    @classmethod
    def fused(cls: type[O], **attributes: Any) -> O:
        """The operator as part of another operator (a fused activation): its attributes, without tensors."""
        absent = {field.name: None for field in cls.fields() if field.role in (Role.INPUT, Role.OUTPUT)}
        return cls(**absent, **attributes)

    def outputs(self) -> tuple[TensorDesc, ...]:
        """The output tensors that are present, in DirectML's order."""
        return tuple(desc for _, desc in self.tensors(Role.OUTPUT) if desc is not None)

    def validate(self, level: FeatureLevel, extensions: bool = False) -> None:
        """Check the whole contract: the support table at ``level``, writable outputs, and the operator's own rules.

        Raises:
            Unsupported: this level does not have the operator, or does not support these types and ranks.
            InvalidArgument: a rule of every level is broken.
        """
        for field in self.fields():
            present = field.optional or getattr(self, field.name) is not None
            self.require(present, field.name, "None", f"{field.role.value}: a TensorDesc")
        self._check_support(level, extensions)
        for name, desc in self.tensors(Role.OUTPUT):
            if desc is not None:
                desc.check_writable(self.where(name))
        self.check_level(level)
        self.check()

    def check_level(self, level: FeatureLevel) -> None:
        """The operator's own rules that apply only to some feature levels."""

    def check(self) -> None:
        """The operator's own rules, in addition to the support table; written with ``require`` and ``require_same``."""

    def canonical(self) -> Operator:
        """The newer operator that replaces this one, or else this operator."""
        return self

    def exactly(self) -> str:
        """The descriptor as text, followed by the bits of all its floats, because every NaN has the same text."""
        return f"{self!r} {b''.join(_float_bits(exact.key(self))).hex()}"

    # -- Speed ----------------------------------------------------------------------------------------------------

    def shape_class(self) -> dict[str, int | str]:
        """The properties of the shapes that determine the best knobs.

        Sizes are integers, 0 included, and are compared by their nearest power of two. Strings are equal or not. An operator and
        its ``canonical`` have the same shape class.
        """
        first = next(desc for _, desc in self.tensors() if desc is not None)
        return {"elements": self.outputs()[0].element_count, "length": first.sizes[-1], "layout": self.layout()}

    def layout(self) -> str:
        """The memory layout: ``packed`` if all tensors are packed, else ``strided``."""
        return "packed" if all(desc.is_packed for _, desc in self.tensors() if desc is not None) else "strided"

    def samples(self) -> tuple[str, ...]:
        """The kinds of inputs to measure with: names of ``tvmdml.bench.inputs.FILLS``. Empty if there is no input."""
        return ("normal",) if any(desc is not None for _, desc in self.tensors(Role.INPUT)) else ()

    # -- The computation ------------------------------------------------------------------------------------------

    def computation(self, each: Each, in_place: bool = False) -> PrimFunc:
        """The operator as a plain TensorIR function over its tensors in field order, correct for any layout.

        A target without a hand-written schedule for the operator compiles this. ``each`` is the target's way to run independent
        items. With ``in_place``, which only some operators support, the input and the output are the same tensor.
        """
        raise NotImplementedError(self.NAME)

    def reference(self, *inputs: Array | None) -> tuple[Expected, ...]:
        """The operator in NumPy: the inputs in field order, the outputs in field order.

        Every kernel must agree with it: bit for bit if the expected output is an array, within the bound if it is a ``Near``.
        """
        raise NotImplementedError(self.NAME)

    def defined(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The defined part of the outputs: all, unless an earlier output, such as a count, determines how much is defined."""
        return outputs

    def mismatch(self, actual: tuple[Array, ...], expected: tuple[Expected, ...]) -> str:
        """Compare outputs with the reference's: their types, their shapes, and the values of the defined part.

        Returns:
            A description of the first difference; empty if they agree.
        """
        names = [name for name, desc in self.tensors(Role.OUTPUT) if desc is not None]
        for name, one, other in zip(names, actual, expected, strict=True):
            if (one.dtype, one.shape) != (other.dtype, other.shape):
                return f"{name} is {one.dtype} of shape {one.shape}, should be {other.dtype} of shape {other.shape}"
        for name, one, other in zip(names, self.defined(actual), self.defined(expected), strict=True):
            if problem := difference(one, other, self.ANY_NAN):
                return f"{name}: {problem}"
        return ""

    # -- Stating rules --------------------------------------------------------------------------------------------

    @classmethod
    def where(cls, field: str) -> str:
        """The name of a field in errors: ``TOP_K1 k``, or ``tvmdml.top_k: k`` if the user called a function."""
        function = _FUNCTION.get()
        return f"{function}: {field.replace('_tensor', '')}" if function else f"{cls.NAME} {field}"

    def require(self, holds: bool, field: str, given: object, allowed: str, advice: str = "") -> None:
        """Raise ``InvalidArgument`` unless the rule holds."""
        if not holds:
            raise InvalidArgument(message(self.where(field), given, allowed, advice))

    def require_same(self, what: str, tensor: str, other: str) -> None:
        """Raise ``InvalidArgument`` unless two tensors have the same ``data_type``, ``rank`` or ``sizes`` (``what``)."""
        mine, theirs = getattr(getattr(self, tensor), what), getattr(getattr(self, other), what)
        show = (lambda v: v.tvm) if what == "data_type" else str
        self.require(mine == theirs, f"{tensor}.{what}", show(mine), f"{show(theirs)}, as in {other}")

    def _check_support(self, level: FeatureLevel, extensions: bool) -> None:
        introduced = self.feature_level()
        if level < introduced:
            raise Unsupported(
                message(self.where("feature_level"), str(level), f"{introduced} and above", "The operator came with that level.")
            )
        rows = [r for r in self.rows() if (extensions if r.level is None else r.level <= level)]
        if any(not self._misfit(row) for row in rows):
            return
        # Report the closest row: the one with the fewest tensors that do not fit.
        row = min(rows, key=lambda r: len(self._misfit(r)))
        name, desc = self._misfit(row)[0]
        allows = [r.tensors[name.partition("[")[0]] for r in rows]
        if any(a.takes(desc) for a in allows):  # but not together with the other tensors
            allows = [row.tensors[name.partition("[")[0]]]
        types = [t.tvm for t in TensorDataType if any(t in a.types for a in allows)]
        low, high = min(a.min_rank for a in allows), max(a.max_rank for a in allows)
        ranks = f"rank {low}" if low == high else f"rank {low} to {high}"
        at = "" if extensions else f", at feature level {level}"
        raise Unsupported(
            message(
                self.where(name),
                f"{desc.data_type.tvm} of rank {desc.rank}",
                f"{', '.join(types)}; {ranks}{at}",
                self._where_supported(level),
            )
        )

    def _misfit(self, row: Support) -> list[tuple[str, TensorDesc]]:
        return [
            (name, desc)
            for name, desc in self.tensors()
            if desc is not None and not row.tensors[name.partition("[")[0]].takes(desc)
        ]

    def _where_supported(self, level: FeatureLevel) -> str:
        for row in self.rows():
            if not self._misfit(row):
                if row.level is None:
                    return "The function door of tvmdml takes it as an extension."
                return f"Feature level {row.level} has it."
        return "Convert or reshape the tensor."


# Fields that hold operators: a fused activation, a list of them.
OptionalOperator = Annotated[Operator | None, Role.OPERATOR]
Operators = Annotated[tuple[Operator, ...], Role.OPERATOR]


def _float_bits(key: Any) -> Iterator[bytes]:
    """The bits of the floats in an ``exact.key``."""
    for part in key:
        if isinstance(part, tuple):
            yield from _float_bits(part)
        elif isinstance(part, bytes):
            yield part


# -- Reading field types and values -------------------------------------------------------------------------------

T = TypeVar("T")


def _field(name: str, hint: Any) -> Field:
    role = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Role)), None)
    inner = typing.get_args(hint)[0] if role else hint
    arguments = typing.get_args(inner)
    many = typing.get_origin(inner) is tuple and role in (Role.INPUT, Role.OUTPUT, Role.OPERATOR)
    if role is not None:
        return Field(name, role, type(None) in arguments, many, None)
    if inspect.isclass(hint) and issubclass(hint, DmlEnum):
        return Field(name, Role.ENUM, False, False, hint)
    raise TypeError(f"field {name}: no role for {hint!r}")


def _coerce(desc: Operator, field: Field, value: Any) -> Any:
    """The value, converted to its field's type."""
    where = desc.where(field.name)
    if value is None and (field.optional or field.role in (Role.INPUT, Role.OUTPUT)):
        return None  # a fused operator has no tensors; `validate` checks for required tensors
    if field.enum is not None:
        return field.enum.parse(value, where)
    if field.role in _SEQUENCES or field.many:
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            allowed = field.role.value if field.role in _SEQUENCES else f"a sequence; each an {field.role.value}"
            raise InvalidArgument(message(where, safe_repr(value), allowed))
        one = _SEQUENCES.get(field.role, field.role)
        return tuple(_ONE[one](f"{where}[{i}]", one, item) for i, item in enumerate(value))
    return _ONE[field.role](where, field.role, value)


def _instance(kind: Callable[[], type[T]]) -> Callable[[str, Role, Any], T]:
    def check(where: str, role: Role, value: Any) -> T:
        if not isinstance(value, kind()):
            raise InvalidArgument(message(where, safe_repr(value), f"{role.value}: a {kind().__name__}"))
        return value

    return check


def _integer(low: int, high: int) -> Callable[[str, Role, Any], int]:
    def check(where: str, role: Role, value: Any) -> int:
        try:
            number = python_operator.index(value)
        except (TypeError, RuntimeError):  # PyTorch raises RuntimeError for a tensor that is too large
            raise InvalidArgument(message(where, safe_repr(value), role.value)) from None
        if isinstance(value, bool) or not low <= number <= high:
            raise InvalidArgument(message(where, safe_repr(value), role.value))
        return number

    return check


def _number(where: str, role: Role, value: Any) -> int | float:
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64)):  # timedelta64 is an np.integer
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    raise InvalidArgument(message(where, safe_repr(value), role.value))


def _float(where: str, role: Role, value: Any) -> float:
    try:
        with np.errstate(all="ignore"):
            return float(np.float32(_number(where, role, value)))  # a C float holds no more
    except OverflowError:
        raise InvalidArgument(message(where, "a number past the range of a float", role.value)) from None


def _bool(where: str, role: Role, value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise InvalidArgument(message(where, safe_repr(value), role.value))


# The check of a value of each role, and the role of the items of a sequence.
_ONE: dict[Role, Callable[[str, Role, Any], Any]] = {
    Role.INPUT: _instance(lambda: TensorDesc),
    Role.OUTPUT: _instance(lambda: TensorDesc),
    Role.OPERATOR: _instance(lambda: Operator),
    Role.UINT: _integer(0, 2**32 - 1),
    Role.INT: _integer(-(2**31), 2**31 - 1),
    Role.FLOAT: _float,
    Role.SCALAR: _number,
    Role.BOOL: _bool,
}
_SEQUENCES = {Role.UINTS: Role.UINT, Role.INTS: Role.INT, Role.FLOATS: Role.FLOAT}

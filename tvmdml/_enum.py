"""``DmlEnum``, and the one enumeration that every tensor needs: the others take a millisecond to make."""

from __future__ import annotations

import enum
import functools
from typing import TypeVar

from tvmdml.errors import InvalidArgument, message, safe_repr

E = TypeVar("E", bound="DmlEnum")


class DmlEnum(enum.IntEnum):
    """An enumeration of DirectML. Members are also found by name, in upper or lower case, with or without DirectML's prefix."""

    @classmethod
    def parse(cls: type[E], value: object, where: str) -> E:
        """Return the member for ``value``: a member, its number or its name.

        Raises:
            InvalidArgument: there is no such member; the message lists all members.
        """
        if isinstance(value, cls):
            return value
        given = value
        if isinstance(value, enum.Enum):
            value = None  # a member of another enumeration does not count as a number
        if isinstance(value, str) and issubclass(type(value), str):  # an object may say that it is of another class
            name = str.upper(value).removeprefix(cls._prefix())
            if name in cls.__members__:
                return cls[name]
        elif isinstance(value, int) and not isinstance(value, bool):
            try:
                return cls(value)
            except ValueError:
                pass
        choices = ", ".join(repr(member.name.lower()) for member in cls)
        near = ""
        if isinstance(given, str) and issubclass(type(given), str):
            from tvmdml.system.names import meant

            near = meant(str.lower(given).replace("-", "_"), [member.name.lower() for member in cls])
        said = f"Did you mean {near!r}? " * bool(near)
        raise InvalidArgument(message(where, safe_repr(given), choices, f"{said}Or a member of tvmdml.{cls.__name__}."))

    @classmethod
    def _prefix(cls) -> str:
        """``DML_ROUNDING_MODE_`` for ``RoundingMode``: the C name of the type and an underscore."""
        return _prefixed(cls.__name__)


@functools.cache
def _prefixed(name: str) -> str:
    words = "".join(f"_{c}" if c.isupper() else c.upper() for c in name)
    return f"DML{words}_"


class TensorFlags(DmlEnum):
    """``DML_TENSOR_FLAGS``."""

    NONE = 0
    OWNED_BY_DML = 1

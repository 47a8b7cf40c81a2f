"""A line of a log: a ``Record`` as JSON. A log may come from anywhere, so everything in it is checked."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import re
import reprlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from tvmdml.errors import InvalidArgument, message
from tvmdml.library.log_terms import Machine, Record, ShapeClass

LONGEST_LINE = 1 << 16
"""In bytes."""
# Logs come from other machines, and may hold anything: what no tuner writes is refused.
_LONGEST_STRING = 512
_MOST_MEMBERS = 64
_DEEPEST = 8
_MOST = 1 << 63
_MOST_SECONDS = 1e6
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?\+00:00", re.ASCII)
_MODULE = re.compile(r"[a-z][a-z0-9_]{0,63}")

Key = tuple[str, Machine, tuple[tuple[str, str], ...], tuple[tuple[str, int | str], ...]]
"""A log has one line for each key: operator, machine, types, shape class."""


def key(record: Record) -> Key:
    """The key that the record is the winner for."""
    types, shape_class = (tuple(sorted(one.items())) for one in (record.types, record.shape_class))
    return record.operator, record.machine, types, shape_class  # type: ignore[return-value]


def class_order(shape_class: ShapeClass) -> tuple[tuple[str, bool, int, str], ...]:
    """The sort key of shape classes: by name, with sizes as numbers."""
    members = sorted(shape_class.items())
    return tuple((name, True, 0, one) if isinstance(one, str) else (name, False, one, "") for name, one in members)


def order(record: Record) -> tuple[Any, ...]:
    """The sort key of lines: types and shape class first, so that a new winner changes a file in one place."""
    return sorted(record.types.items()), class_order(record.shape_class), record.operator, record.machine, age(record)


def age(record: Record) -> tuple[str, str]:
    """The age that decides which of two records of a key is newer. It is unique, so the order of merging does not matter."""
    return record.date, encode(record)


def encode(record: Record) -> str:
    """The line of a record, without the newline."""
    fields: dict[str, Any] = record._asdict()
    fields["machine"] = record.machine._asdict()
    for name in ("types", "shape_class", "knobs", "versions"):
        fields[name] = dict(sorted(fields[name].items()))
    fields["measured"] = dict(record.measured)
    return json.dumps(fields, ensure_ascii=False, allow_nan=False)


def checked(record: Record) -> Record:
    """The record as it would be read back.

    Raises:
        InvalidArgument: it cannot be written, or would be rejected when it is read.
    """
    try:
        line = encode(record).encode()
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidArgument(f"a record of a tuning log cannot be written: {error}.") from None
    return parse(line)


def parse(line: bytes) -> Record:
    """The record of a line. ``log_checks`` checks whether a schedule accepts its knobs.

    Raises:
        InvalidArgument: the line is invalid.
    """
    if len(line) > LONGEST_LINE:
        raise InvalidArgument(message("line", f"{len(line)} bytes", f"at most {LONGEST_LINE}"))
    try:
        found = json.loads(line.decode(), object_pairs_hook=_object, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"not JSON, as logs have it: {error}") from None
    return Record(**_members("line", found, _FIELDS))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


# -- Checks of fields: functions of a field's name and value, which return the value ------------------------------

_Check = Callable[[str, Any], Any]


def _refuse(where: str, value: object, allowed: str) -> NoReturn:
    raise InvalidArgument(message(where, reprlib.repr(value), allowed))  # truncated: it may be anything


def _members(where: str, value: Any, checks: Mapping[str, _Check]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != checks.keys():
        _refuse(where, list(value) if isinstance(value, dict) else value, f"an object with {', '.join(checks)}")
    return {name: check(name if where == "line" else f"{where} {name}", value[name]) for name, check in checks.items()}


def _string(where: str, value: Any) -> str:
    # Unprintable characters do not belong in a file for people, and might control the terminal that shows it.
    if not isinstance(value, str) or not value.isprintable() or len(value) > _LONGEST_STRING:
        _refuse(where, value, f"a string of at most {_LONGEST_STRING} printable characters")
    return value


def _word(where: str, value: Any) -> str:
    return _string(where, value) or _refuse(where, value, "a word")


def _integer(low: int, high: int = _MOST) -> _Check:
    def check(where: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            _refuse(where, value, f"an integer from {low} to {high}")
        return value

    return check


def _number(where: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= _MOST_SECONDS:  # also rejects NaN
        _refuse(where, value, f"a number from 0 to {_MOST_SECONDS:.0f}")
    return float(value)


def _seconds(where: str, value: Any) -> float:
    return _number(where, value) or _refuse(where, value, "more than 0")


def _size_or_word(where: str, value: Any) -> int | str:
    if isinstance(value, str):
        return _string(where, value)
    size: int = _integer(0)(where, value)
    return size if size & (size - 1) == 0 else _refuse(where, size, "0, a power of two, or a word")


def _integer_or_word(where: str, value: Any) -> int | str:
    return _string(where, value) if isinstance(value, str) else _integer(-_MOST)(where, value)


def _each(one: _Check) -> _Check:
    def check(where: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > _MOST_MEMBERS:
            _refuse(where, value, f"an object of at most {_MOST_MEMBERS} members")
        return {_word(f"{where}, a name", name): one(f"{where} {name}", member) for name, member in value.items()}

    return check


def _data_type(where: str, value: Any) -> str:
    return value if isinstance(value, str) and value in _data_types() else _refuse(where, value, ", ".join(_data_types()))


@functools.cache
def _data_types() -> tuple[str, ...]:
    from tvmdml.tensors import TensorDataType

    return tuple(data_type.tvm for data_type in TensorDataType)


def _operator(where: str, value: Any) -> str:
    if not isinstance(value, str) or not _MODULE.fullmatch(value) or not _is_operator(value):
        _refuse(where, value, "an operator's module or a family, such as top_k")
    return value


@functools.lru_cache(maxsize=1024)
def _is_operator(module: str) -> bool:
    """Whether it is an operator's module or a family, whose file begins with an underscore."""
    return any(importlib.util.find_spec(f"tvmdml.operators.{name}") is not None for name in (module, f"_{module}"))


def _date(where: str, value: Any) -> str:
    try:
        if isinstance(value, str) and _DATE.fullmatch(value) and datetime.fromisoformat(value):
            return value
    except ValueError:
        pass  # the 30th of February
    _refuse(where, value, "a time in UTC, such as 2026-11-22T03:14:15+00:00")


def _operation(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not _is_plain(value, _DEEPEST):
        _refuse(where, value, "an operation, as in a pack's spec")
    _word(f"{where} operator", value.get("operator"))
    return value


def _is_plain(value: Any, depth: int) -> bool:
    """Whether it can be written back unchanged, and be displayed."""
    if isinstance(value, dict):
        return depth > 0 and all(name.isprintable() and _is_plain(one, depth - 1) for name, one in value.items())
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(one, depth - 1) for one in value)
    if isinstance(value, str):
        return value.isprintable()
    if isinstance(value, int):  # or a bool, which is an int
        return -_MOST <= value <= _MOST
    return value is None or math.isfinite(value)


def _machine(where: str, value: Any) -> Machine:
    return Machine(**_members(where, value, {"target": _word, "processor": _string, "threads": _integer(0, 1 << 20)}))


_FIELDS: Mapping[str, _Check] = {
    "operator": _operator,
    "machine": _machine,
    "types": _each(_data_type),
    "shape_class": _each(_size_or_word),
    "knobs": _each(_integer_or_word),
    "seconds": _seconds,
    "spread": _number,
    "default_seconds": _seconds,
    "trials": _integer(0),
    "versions": _each(_string),
    "date": _date,
    "measured": _operation,
}

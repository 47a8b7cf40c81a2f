"""The JSON in a pack's index: its head, and a record for each kernel and each operation.

The reader trusts nothing: every value must be one that the writer could have written.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tvmdml.kernels.kernel import NAME

MAX_JSON_BYTES = 1 << 20
"""The limit of the head, and of each record."""
NO_PART = 0xFFFFFFFF
"""In place of a part number, for an operation, which has no code."""
NOT_WRITTEN = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, struct.error)
"""The exceptions that parsing may raise for JSON that the writer would not have written."""
KEY_BYTES = 16  # 128 bits of a hash: no two operations of a pack have the same by chance
_JSON_DEPTH = 16
_LONGEST_NAME = 200
_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False).encode

Parameters = tuple[tuple[str, Any], ...]


def kernel_key(target: str, operator: str, kernel: str, parameters: Parameters) -> bytes:
    """The key of a kernel: everything its code was generated from, except the source of the schedules, which the head has."""
    return _key(["kernel", target, operator, kernel, parameters])


def operation_key(target: str, line: Mapping[str, Any], in_place: bool | str) -> bytes:
    """The key of an operation."""
    return _key(["operation", target, line, in_place])


def _key(what: object) -> bytes:
    return hashlib.blake2b(_encode(what).encode(), digest_size=KEY_BYTES).digest()


def symbol_of(key: bytes) -> str:
    """The name of a kernel's function in a library."""
    return f"tvmdml_{key.hex()}"


class KernelRecord(NamedTuple):
    """A compiled kernel in a pack."""

    operator: str
    """The operator's module."""
    kernel: str
    """Its name among the schedule's kernels."""
    parameters: Parameters
    target: str
    """The target of the code, as ``Target.code``."""
    part: int
    """The number of the part that has the code."""

    @property
    def key(self) -> bytes:
        """The key that it is found by."""
        return kernel_key(self.target, self.operator, self.kernel, self.parameters)

    @property
    def symbol(self) -> str:
        """The name of its function in a library."""
        return symbol_of(self.key)


class PackedRecord(NamedTuple):
    """An input that a kernel takes in a packed form, and the launch that packs it."""

    name: str
    dtype: str
    elements: int
    layout: str
    """Identifies the form."""
    inputs: tuple[str, ...]
    """What the packer reads."""
    kernel: bytes
    """The packer's key."""
    scalars: tuple[int, ...]
    temporaries: tuple[tuple[str, int], ...]


class LaunchRecord(NamedTuple):
    """How to launch an operation."""

    threads: int
    """The least number of threads that this launch is for; 0 for devices."""
    kernel: bytes
    """The kernel's key."""
    scalars: tuple[int, ...]
    temporaries: tuple[tuple[str, int], ...]
    owned: tuple[PackedRecord, ...] = ()
    """The inputs that are packed."""

    @property
    def layouts(self) -> tuple[tuple[str, str], ...]:
        """The inputs that are packed, and how."""
        return tuple((one.name, one.layout) for one in self.owned)

    @property
    def kernels(self) -> tuple[bytes, ...]:
        """The keys of all its kernels."""
        return (self.kernel, *(one.kernel for one in self.owned))


def launch_of(target: str, threads: int, kernel: Any) -> LaunchRecord:
    """The launch of a schedule's kernel on a target, by its ``Target.code``."""

    def key(one: Any) -> bytes:
        return kernel_key(target, one.module, one.name, one.parameters)

    owned = tuple(
        PackedRecord(
            *(one.name, one.dtype, one.elements, one.layout, one.inputs, key(one.packer)),
            *(tuple(one.packer.scalars), tuple(one.packer.temporaries)),
        )
        for one in kernel.owned
    )
    return LaunchRecord(threads, key(kernel), tuple(kernel.scalars), tuple(kernel.temporaries), owned)


class GraphRecord(NamedTuple):
    """A compiled graph, in a pack's head."""

    name: str
    kind: str
    """The kind of target that it is for."""
    part: int
    """The part with its description, JSON."""
    data: tuple[int, ...]
    """The parts of its constants, raw and packed, which the description refers to by their places here."""

    @property
    def parts(self) -> tuple[int, ...]:
        """All its parts."""
        return (self.part, *self.data)


class OperationRecord(NamedTuple):
    """A descriptor that the pack has kernels for, on one target."""

    line: dict[str, Any]
    """The descriptor, in the form of a spec's line."""
    in_place: bool | str
    """The pairs of tensors in the same memory, in the form of ``operators._shared``."""
    target: str
    launches: tuple[LaunchRecord, ...]

    @property
    def key(self) -> bytes:
        """The key that it is found by."""
        return operation_key(self.target, self.line, self.in_place)


# -- Writing ------------------------------------------------------------------------------------------------------


def write_head(head: Mapping[str, Any]) -> bytes:
    """The head as JSON."""
    return _encode(head).encode()


def write(record: KernelRecord | OperationRecord) -> bytes:
    """A record as JSON. The key and a kernel's part are not in it: the index's table has them."""
    if isinstance(record, KernelRecord):
        members = {name: value for name, value in record._asdict().items() if name != "part"}
        return _encode({"is": "kernel", **members}).encode()
    launches = [launch_members(launch) for launch in record.launches]
    return _encode({"is": "operation", **record._asdict(), "launches": launches}).encode()


def launch_members(launch: LaunchRecord) -> dict[str, Any]:
    """A launch as JSON. One that packs nothing is written as ever."""
    found = {**launch._asdict(), "kernel": launch.kernel.hex()}
    owned = [{**one._asdict(), "kernel": one.kernel.hex()} for one in found.pop("owned")]
    return {**found, "owned": owned} if owned else found


# -- Reading ------------------------------------------------------------------------------------------------------


def read_head(content: bytes | memoryview) -> dict[str, Any]:
    """Parse a head.

    Raises:
        ``NOT_WRITTEN``: ``write_head`` would not have written it.
    """
    given = _loaded(content)
    found: dict[str, Any] = {
        name: {key: read(value) for key, value in _object(given[name]).items()} for name, read in _HEAD.items()
    }
    found["logs"] = [_tuned(value) for value in _list(given.get("logs", []))]  # older packs have none
    if "graphs" in given:
        found["graphs"] = [_graph(value) for value in _list(given["graphs"])]
    if "files" in given:
        found["files"] = {_text(name): _whole(part, 0) for name, part in _object(given["files"]).items()}
    return found


def _graph(value: Any) -> dict[str, Any]:
    given = _object(value)
    parts = tuple(_whole(one, 0) for one in _list(given["data"]))
    if not given["name"] or len(given["name"]) > _LONGEST_NAME:
        raise ValueError("a graph without a name, or with a longer one")
    return GraphRecord(_text(given["name"]), _name(given["kind"]), _whole(given["part"], 0), parts)._asdict()


def read(content: bytes | memoryview, part: int, parts: int) -> KernelRecord | OperationRecord:
    """Parse a record. ``part`` is the number of a kernel's part, and ``parts`` the number of parts that the pack has.

    Raises:
        ``NOT_WRITTEN``: ``write`` would not have written it.
    """
    given = _loaded(content)
    return _RECORDS[_text(given["is"])](given, part, parts)


def _kernel(given: Mapping[str, Any], part: int, parts: int) -> KernelRecord:
    if part >= parts:
        raise ValueError(f"a kernel in part {part}, of {parts}")
    parameters = tuple((_text(name), _parameter(value)) for name, value in given["parameters"])
    return KernelRecord(_name(given["operator"]), _name(given["kernel"]), parameters, _text(given["target"]), part)


def _operation(given: Mapping[str, Any], part: int, parts: int) -> OperationRecord:
    if part != NO_PART:
        raise ValueError("an operation with a part")
    in_place = given["in_place"] if type(given["in_place"]) is bool else _text(given["in_place"])
    launches = tuple(map(read_launch, given["launches"]))
    return OperationRecord(_object(given["line"]), in_place, _text(given["target"]), launches)


def read_launch(given: Mapping[str, Any]) -> LaunchRecord:
    """A launch that ``launch_members`` wrote.

    Raises:
        ``NOT_WRITTEN``: it would not have written it.
    """
    return LaunchRecord(
        _whole(given["threads"], 0),
        _key_of(given["kernel"]),
        tuple(map(_whole, given["scalars"])),
        _temporaries(given["temporaries"]),
        tuple(map(_packed, given.get("owned", ()))),
    )


def _packed(given: Mapping[str, Any]) -> PackedRecord:
    return PackedRecord(
        *(_text(given["name"]), _name(given["dtype"]), _whole(given["elements"], 0), _text(given["layout"])),
        *(tuple(map(_text, _list(given["inputs"]))), _key_of(given["kernel"])),
        *(tuple(map(_whole, given["scalars"])), _temporaries(given["temporaries"])),
    )


def _temporaries(given: Any) -> tuple[tuple[str, int], ...]:
    return tuple((_name(dtype), _whole(count, 0)) for dtype, count in given)


def _not_json(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _number(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _not_json(text)


_decode = json.JSONDecoder(parse_constant=_not_json, parse_float=_number).decode


def _loaded(content: bytes | memoryview) -> dict[str, Any]:
    """Parse a JSON object. Its size and depth are limited, and its strings must be printable."""
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"{len(content)} bytes of JSON; at most {MAX_JSON_BYTES} are read")
    value = _object(_decode(str(content, "utf-8")))
    _check(value, _JSON_DEPTH)
    return value


def _check(value: dict[str, Any] | list[Any], depth: int) -> None:
    """Of numbers, which most values are, nothing is asked."""
    if not depth:
        raise ValueError("its JSON is nested too deeply")
    if isinstance(value, dict):
        _text("".join(value))
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, str):
            _text(one)
        elif isinstance(one, dict | list):
            _check(one, depth - 1)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} instead of an object")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} instead of a list")
    return value


def _tuned(value: Any) -> dict[str, Any]:
    """A tuning record. Only the fields that say what it is for are checked here; ``tuned`` checks the rest when it is used."""
    _name(_object(value)["operator"])
    _text(_object(value["machine"])["target"])
    return _object(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(f"{type(value).__name__} instead of text, or text that is not printable")
    return value


def _name(value: Any) -> str:
    if not NAME.fullmatch(_text(value)):
        raise ValueError(f"{value[:100]!r} is not a name")
    return str(value)


def _whole(value: Any, least: int = -(1 << 63)) -> int:
    if type(value) is not int or not least <= value < 1 << 63:
        raise TypeError(f"{type(value).__name__} instead of an integer, or an integer out of range")
    return value


def _key_of(text: Any) -> bytes:
    key = bytes.fromhex(text)
    if key.hex() != text or len(key) != KEY_BYTES:
        raise ValueError("a kernel's key that is not 32 hexadecimal digits")
    return key


def _parameter(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_parameter, value))
    return value if isinstance(value, bool) else _text(value) if isinstance(value, str) else _whole(value)


_RECORDS: dict[str, Callable[[Mapping[str, Any], int, int], KernelRecord | OperationRecord]] = {
    "kernel": _kernel,
    "operation": _operation,
}
_HEAD: dict[str, Callable[[Any], Any]] = {"producer": _text, "targets": _text, "sources": _text, "knobs": _object}

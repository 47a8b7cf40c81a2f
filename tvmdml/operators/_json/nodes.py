"""The JSON of a model: every value with its position, so that errors can name it."""

from __future__ import annotations

import difflib
import json
import math
import re
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tvmdml.errors import ModelError, TvmdmlError, message, reason, safe_repr
from tvmdml.system.console import printable

T = TypeVar("T")

MAX_MODEL_BYTES = 1 << 28
"""The most bytes of a model file. Larger data belongs in separate files."""
_UINT64 = 2**64 - 1
_SPECIAL_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_DECODER_TERM = re.compile(r"b'(\w+)'|U\+([0-9a-fA-F]{4,6})")


class JsonNode:
    """A JSON value, its file, and its path in the file, such as ``dispatchables.topk.desc.Axis``."""

    __slots__ = ("file", "path", "value")

    def __init__(self, value: Any, file: str, path: str = "") -> None:
        self.value, self.file, self.path = value, file, path

    # -- Errors ---------------------------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        """The file and path, at the beginning of messages."""
        return f"{self.file}: {self.path}" if self.path else self.file

    def error(self, given: object, allowed: str, advice: str = "") -> ModelError:
        """An error about this value."""
        return ModelError(printable(message(self.where, given, allowed, advice)))

    def wrong(self, allowed: str, advice: str = "") -> ModelError:
        """The error for a value that is not allowed."""
        return self.error(shown(self.value), allowed, advice)

    def blame(self, error: TvmdmlError, name: str, fields: Iterable[str] = ()) -> ModelError:
        """Convert another module's error about this value, which that module calls ``name``.

        ``TOP_K1 output_value_tensor.sizes: given …`` becomes ``<file>: <path>.OutputValueTensor.Sizes: given …``.
        """
        where, _, rest = str(error).partition(": ")
        inside = re.sub(r"(^|_|\.)([a-z])", lambda m: m[1].strip("_") + m[2].upper(), where.removeprefix(name).lstrip(" ."))
        if where.startswith(name) and re.split(r"\W", inside)[0] in fields:
            return ModelError(printable(f"{self._within(f'.{inside}').where}: {rest}"))
        return ModelError(printable(f"{self.where}: {error}"))

    # -- Contents -------------------------------------------------------------------------------------------------

    def members(self) -> dict[str, JsonNode]:
        """The fields of an object."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object, {…}")
        return {name: self._within(_step(name), value) for name, value in self.value.items()}

    def items(self) -> list[JsonNode]:
        """The items of a list."""
        if not isinstance(self.value, list):
            raise self.wrong("a list, […]")
        return [self._within(f"[{i}]", value) for i, value in enumerate(self.value)]

    def get(self, *names: str) -> JsonNode | None:
        """The first field with one of these names that is present and not null."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object, {…}")
        given = ((name, self.value.get(name)) for name in names)
        return next((self._within(_step(name), value) for name, value in given if value is not None), None)

    def need(self, name: str, allowed: str) -> JsonNode:
        """The field with this name, which is required."""
        found = self.get(name)
        if found is None:
            raise self._within(_step(name)).error("nothing", allowed, "The field is required.")
        return found

    def only(self, known: Iterable[str], ignored: Iterable[str] = ()) -> None:
        """Refuse fields that are neither known nor ignored."""
        known = list(known)
        for name, node in self.members().items():
            if name not in known and name not in ignored:
                close = {k.lower(): k for k in known}
                likely = difflib.get_close_matches(name.lower(), close, n=1)
                advice = f"Did you mean {close[likely[0]]}?" if likely else "Remove it."
                raise node.error("an unknown field", ", ".join(known) or "no fields", advice)

    def renamed(self, names: Mapping[str, str]) -> JsonNode:
        """An object with other names for some of its fields, where it has none with the new name."""
        if not isinstance(self.value, dict) or not names.keys() & self.value.keys():
            return self
        taken = {name: new for name, new in names.items() if new not in self.value}
        return JsonNode({taken.get(name, name): value for name, value in self.value.items()}, self.file, self.path)

    # -- Values ---------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            raise self.wrong("a string")
        return self.value

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def integer(self, low: int = 0, high: int = _UINT64) -> int:
        """An integer within bounds."""
        if type(self.value) is not int or not low <= self.value <= high:
            raise self.wrong(f"an integer from {low} to {high}")
        return self.value

    def number(self) -> int | float:
        """A number, or the name of one that JSON cannot express."""
        found = as_number(self.value)
        if found is None:
            raise self.wrong('a number, "nan", "inf" or "-inf"')
        return found

    def choice(self, choices: Mapping[str, T], prefix: str = "") -> T:
        """The meaning of a name, in upper or lower case, with or without the prefix."""
        name = self.text().lower().removeprefix(prefix.lower())
        for choice, meaning in choices.items():
            if choice.lower() == name:
                return meaning
        raise self.wrong(", ".join(choices), f"The prefix {prefix} is allowed." if prefix else "")

    def _within(self, step: str, value: Any = None) -> JsonNode:
        return JsonNode(value, self.file, (self.path + step).removeprefix("."))


def as_number(value: object) -> int | float | None:
    """The number for a JSON value, if there is one."""
    if isinstance(value, str):
        return _SPECIAL_NUMBERS.get(value.lower())
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def shown(value: Any) -> str:
    """A short text of a JSON value, for messages."""
    if isinstance(value, dict):
        return f"an object of {', '.join(value)}"[:80] if value else "an empty object"
    if isinstance(value, list) and len(value) > 8:
        return f"a list of {len(value)} items"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):  # hexadecimal numbers may have any number of digits
        text = safe_repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def read(path: Path) -> JsonNode:
    """The root of a model file; ``-`` is standard input.

    Raises:
        ModelError: it cannot be read, or is not JSON.
    """
    file, wanted = str(path), f"a JSON file of at most {MAX_MODEL_BYTES >> 20} MiB"
    content = _from_stdin if file == "-" else _from_file
    try:
        text = content(path).decode("utf-8-sig")
    except _NoModel as problem:
        raise ModelError(message(file, str(problem), wanted, "Put large data in .npy files.")) from None
    except (OSError, ValueError) as error:
        raise ModelError(message(file, f"a file that cannot be read ({reason(error)})", wanted)) from None
    return JsonNode(_decode(text, file), file)


class _NoModel(Exception):
    """There is no model; the text says what was given instead."""


def _from_file(path: Path) -> bytes:
    # Other kinds of files may have no end.
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_MODEL_BYTES:
        raise _NoModel("a folder, a device or a larger file")
    return path.read_bytes()


def _from_stdin(_: Path) -> bytes:
    if sys.stdin is None:
        raise _NoModel("no standard input")
    content = sys.stdin.buffer.read(MAX_MODEL_BYTES + 1)
    if len(content) > MAX_MODEL_BYTES:
        raise _NoModel("more than that on standard input")
    return content


def _decode(text: str, file: str) -> Any:
    import pyjson5

    try:
        return pyjson5.decode(text)
    except pyjson5.Json5Exception as error:
        said = _DECODER_TERM.sub(lambda m: m[1] or repr(chr(int(m[2], 16))), str(error.args[0]))
        problem, _, rest = said.replace(" starting near ", " near ").partition(" near ")
        position = re.match(r"\d+", rest)
        before = text[: int(position[0]) - 1 if position else 0]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        given = f"text that is not JSON ({problem}{rest[position.end() :] if position else ''})"
        raise ModelError(
            message(f"{file}: line {line}, column {column}", given, "JSON; comments and trailing commas are allowed")
        ) from None


def _step(name: str) -> str:
    """A field's part of a path: ``.Axis``, or ``["my input"]`` for a name that is not a single word."""
    return f".{name}" if re.fullmatch(r"[\w$-]+", name) else f"[{json.dumps(name, ensure_ascii=False)}]"

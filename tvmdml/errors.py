"""The exception classes, in one short hierarchy, and the form of their messages.

Every message names the operator and the tensor or field, says what was given and what is allowed, and ends with what to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TvmdmlError(Exception):
    """Base class of every error that tvmdml raises deliberately.

    Its text has what files and callers say, but no characters that control a terminal, and no more than fits on a screen.
    """

    MOST_BYTES = 2000
    """Of the text."""

    def __init__(self, *args: object) -> None:
        text, *rest = args or ("",)
        super().__init__(*((bounded(text, self.MOST_BYTES, lines=True), *rest) if isinstance(text, str) else args))


class InvalidArgument(TvmdmlError, ValueError):
    """An argument breaks the operator's contract, at every feature level."""


class IndexOutOfRange(TvmdmlError, IndexError):
    """An element of an index tensor is out of range, where the caller asked for a check (``check_indices=True``)."""


class Unsupported(TvmdmlError, NotImplementedError):
    """A valid request for something that this feature level, target or version does not support."""


class CompileError(TvmdmlError, RuntimeError):
    """A kernel could not be built, or building is disabled (``TVMDML_DISABLE_JIT=1``)."""

    MOST_BYTES = 1 << 16  # it may have what a compiler says


class Lacking(CompileError):
    """A device lacks an optional feature that a kernel needs."""

    def __init__(self, where: str, feature: str) -> None:
        super().__init__(f"{where}: the device lacks {feature}")
        self.feature = feature
        """The driver's name for it, such as ``shaderInt64``."""

    def __reduce__(self) -> tuple[type[Lacking], tuple[str, str]]:
        return type(self), (str(self).partition(": ")[0], self.feature)


class DeviceError(TvmdmlError, RuntimeError):
    """A device is missing, lost or out of memory."""


class NoDevice(DeviceError):
    """There is no driver or no device of a kind. Nothing is broken, but something could be installed."""


class PackError(TvmdmlError, ValueError):
    """A pack cannot be read, is damaged, is not trusted, or was built for something else."""


class ModelError(TvmdmlError, ValueError):
    """A DxDispatch model file cannot be read, or its content cannot be run."""


def reason(error: BaseException) -> str:
    """The text of an exception; for system errors without the error number and the path."""
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def counted(count: int, noun: str) -> str:
    """``1 array``, ``2 arrays``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def message(where: str, given: object, allowed: str, advice: str = "") -> str:
    """One line in the usual form: ``where: given …; allowed: …. advice``."""
    text = _printable(f"{where}: given {_shown(str, given)}; allowed: {allowed}.")
    return f"{text} {advice}" if advice else text


def safe_repr(value: object) -> str:
    """``repr`` of any object: shortened if it is long, and only the type if ``repr`` fails."""
    return clean(_shown(repr, value))


_LONGEST = 400


def clean(text: object, longest: int = _LONGEST) -> str:
    """A text that others wrote, for a message: without its middle if it is long, and with unprintable characters shown.

    Unprintable are those that control a terminal, or reverse the direction of text. They are shown as ``repr`` shows them.
    """
    found = _shown(str, text)
    if len(found) > longest:
        found = f"{found[: longest - longest // 4 - 1]}…{found[len(found) - longest // 4 :]}"
    return _printable(found)


def bounded(text: str, most: int = TvmdmlError.MOST_BYTES, *, lines: bool = False) -> str:
    """A whole message, or a ``repr``: the same, by bytes, with several lines if it may have them."""
    text = "\n".join(map(_printable, text.split("\n"))) if lines else _printable(text)
    whole = text.encode()
    if len(whole) <= most:
        return text
    end = most // 4
    return f"{whole[: most - end - 3].decode(errors='ignore')}…{whole[-end:].decode(errors='ignore')}"


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shown(show: Callable[[object], str], value: object) -> str:
    try:
        return str.__str__(show(value))  # the result may be of a subclass of str
    except Exception:  # an integer with too many digits, or an object whose repr fails
        return f"a {type(value).__name__} that cannot be shown"


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the file's name to an ``OSError`` that lacks it; the system leaves it out, for example, when a disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise

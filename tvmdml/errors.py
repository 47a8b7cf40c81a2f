"""What can go wrong, as one short tree.

Every message names the operator and the tensor or field, says what was given and what is allowed, and ends with what to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TvmdmlError(Exception):
    """Base class of every error that tvmdml raises on purpose."""


class InvalidArgument(TvmdmlError, ValueError):
    """An argument breaks the operator's contract, and would at every feature level."""


class Unsupported(TvmdmlError, NotImplementedError):
    """A correct request for something that this feature level, target or version does not have."""


class CompileError(TvmdmlError, RuntimeError):
    """A kernel could not be built, or may not be built here (``TVMDML_DISABLE_JIT=1``)."""


class DeviceError(TvmdmlError, RuntimeError):
    """A device is missing, lost or out of memory."""


class NoDevice(DeviceError):
    """There is no driver, or no device, of a kind: nothing is broken, and something could be installed."""


class PackError(TvmdmlError, ValueError):
    """A pack cannot be read, is damaged, is not trusted, or was built for something else."""


class ModelError(TvmdmlError, ValueError):
    """A DxDispatch model file cannot be read or does not describe something that can run."""


def reason(error: BaseException) -> str:
    """What an exception says, without the number and the path that the system's own begin and end with."""
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def counted(count: int, noun: str) -> str:
    """``1 array``, ``2 arrays``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def message(where: str, given: object, allowed: str, advice: str = "") -> str:
    """One line in the house form: ``where: given …; allowed: …. advice``."""
    text = f"{where}: given {_shown(str, given)}; allowed: {allowed}."
    return f"{text} {advice}" if advice else text


def safe_repr(value: object) -> str:
    """``repr`` for whatever a caller gave: cut short where it is long, and only its type where it cannot be shown."""
    text = _shown(repr, value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


_LONGEST = 400


def _shown(show: Callable[[object], str], value: object) -> str:
    try:
        return str.__str__(show(value))  # which may be of a class of its own
    except Exception:  # an integer of too many digits, or an object with a fault of its own
        return f"a {type(value).__name__} that cannot be shown"


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Have an ``OSError`` say which file it is about: where a disk is full, say, the system does not."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise

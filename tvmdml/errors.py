"""What can go wrong, as one short tree.

Every message names the operator and the tensor or field, says what was given and what is allowed, and ends with what to do.
"""

from __future__ import annotations


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


class PackError(TvmdmlError, ValueError):
    """A pack cannot be read, is damaged, is not trusted, or was built for something else."""


class ModelError(TvmdmlError, ValueError):
    """A DxDispatch model file cannot be read or does not describe something that can run."""


def message(where: str, given: object, allowed: str, advice: str = "") -> str:
    """One line in the house form: ``where: given …; allowed: …. advice``."""
    text = f"{where}: given {given}; allowed: {allowed}."
    return f"{text} {advice}" if advice else text

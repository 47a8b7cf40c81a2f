"""ONNX Runtime's calls about its log, which is that of the package here (``tvmdml.system.logger``)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.system import logger

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""Those of Python, by ONNX Runtime's severities."""
WARNING = 2
"""The severity of warnings, which is the usual one."""
_terminal = logger.Terminal()
_callback: logging.Handler | None = None


def checked(severity: Any, where: str) -> int:
    """A severity as an integer.

    Raises:
        InvalidArgument: it is none.
    """
    if isinstance(severity, bool) or not isinstance(severity, int) or not 0 <= severity < len(_LEVELS):
        raise InvalidArgument(message(where, safe_repr(severity), "0 (verbose), 1 (info), 2 (warning), 3 (error) or 4 (fatal)"))
    return severity


def set_default_logger_severity(severity: int) -> None:
    """Print the log from a severity on: 0 (verbose) or 1 (info). With a higher one Python's warnings are all that is printed.

    Raises:
        InvalidArgument: it is no severity.
    """
    level = _LEVELS[checked(severity, "set_default_logger_severity")]
    logger.LOGGER.removeHandler(_terminal)
    if level < logging.WARNING:
        _terminal.setLevel(level)
        logger.LOGGER.addHandler(_terminal)
    _log_from(level)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accept a verbosity: what is logged for a severity of 0 is the same for each."""


def set_default_logger_callback(callback: Callable[[int, str, str, str, str], object] | None, severity: int = WARNING) -> None:
    """Call ``callback(severity, category, logid, code_location, message)`` for each record of the log; ``None`` ends that.

    What it raises is printed, as of every handler of ``logging``.

    Raises:
        InvalidArgument: it cannot be called, or there is no such severity.
    """
    global _callback
    level = _LEVELS[checked(severity, "set_default_logger_callback severity")]
    if callback is not None and not callable(callback):
        raise InvalidArgument(message("set_default_logger_callback", safe_repr(callback), "a callable, or None"))
    if _callback is not None:
        logger.LOGGER.removeHandler(_callback)
    _callback = None if callback is None else _Callback(callback, level)
    if _callback is not None:
        logger.LOGGER.addHandler(_callback)
        _log_from(level)


def _log_from(level: int) -> None:
    """Let records of a level be made, unless they are already."""
    if not logger.LOGGER.isEnabledFor(level):
        logger.LOGGER.setLevel(level)


class _Callback(logging.Handler):
    """Gives records to a program's function."""

    def __init__(self, function: Callable[[int, str, str, str, str], object], level: int) -> None:
        super().__init__(level)
        self._function = function

    def emit(self, record: logging.LogRecord) -> None:
        """Call the function."""
        severity = max(i for i, level in enumerate(_LEVELS) if level <= max(record.levelno, _LEVELS[0]))
        try:
            self._function(
                severity, "tvmdml", record.name, f"{record.filename}:{record.lineno} {record.funcName}", record.getMessage()
            )
        except Exception:  # of the program
            self.handleError(record)

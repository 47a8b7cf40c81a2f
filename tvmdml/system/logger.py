"""The package's log, ``logging.getLogger("tvmdml")``: what was compiled, found in a cache, slow, or done in another way than asked.

It is quiet unless the program configures it, or ``TVMDML_LOG`` is ``debug``, ``info``, ``warning`` or ``error``.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings

from tvmdml.errors import InvalidArgument, message, safe_repr

LOGGER = logging.getLogger("tvmdml")
LOGGER.addHandler(logging.NullHandler())  # without one, Python prints warnings that no program asked for
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
SLOW = 2.0
"""Seconds of a step after which a person is told that it goes on."""


def level() -> int | None:
    """The level of ``TVMDML_LOG``; ``None`` if it is not set.

    Raises:
        InvalidArgument: it is none.
    """
    text = os.environ.get("TVMDML_LOG", "").strip()
    if not text:
        return None
    if text.lower() not in LEVELS:
        raise InvalidArgument(message("TVMDML_LOG", safe_repr(text), ", ".join(LEVELS)))
    return LEVELS[text.lower()]


def timed(seconds: float, text: str, *arguments: object) -> None:
    """Log a step that is done, and how long it took: as a warning if it was slow enough for a person to notice."""
    LOGGER.log(logging.WARNING if seconds > 5 * SLOW else logging.INFO, f"{text} in %.2f s", *arguments, seconds)


def warn(text: str, category: type[Warning] = UserWarning, stacklevel: int = 1) -> None:
    """Issue a warning, and log it. ``stacklevel`` counts from the caller, as if it had called ``warnings.warn``."""
    LOGGER.warning("%s", text.removeprefix("tvmdml: "), extra={"warned": True})
    warnings.warn(text, category, stacklevel=stacklevel + 1)


class Terminal(logging.Handler):
    """Prints records to what is standard error at the time, but no warnings, which Python prints."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        if not hasattr(record, "warned") and sys.stderr is not None:
            sys.stderr.write(f"tvmdml: {record.getMessage()}\n")


def _begin() -> None:
    try:
        chosen = level()
    except InvalidArgument as error:
        warnings.warn(f"tvmdml: {error}", stacklevel=2)
        return
    if chosen is not None:
        LOGGER.setLevel(chosen)
        LOGGER.addHandler(Terminal())


_begin()

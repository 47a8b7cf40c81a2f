"""Faults that were put here to be found: whoever looks for them is tested by it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from fuzz.choices import Choices


def one(choices: Choices) -> None:
    """Mostly nothing; now and then a wrong error, the end of the process, a loop without end, or all of the memory."""
    if (kind := choices.integer(0, 15)) < len(_FAULTS):
        _FAULTS[kind]()


def _loop() -> None:
    while True:
        pass


def _wrong() -> None:
    raise KeyError("nobody expects this")


def _grow() -> Any:
    return bytearray(1 << 45)


_FAULTS: tuple[Callable[[], Any], ...] = (_wrong, os.abort, _loop, _grow)

"""Harmful things that a candidate may do to its process. Workers import this module, so it imports little."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

_calls = 0


def count() -> int:
    """How many times this was called here."""
    global _calls
    _calls += 1
    return _calls


def variable(name: str) -> str | None:
    """What the environment has."""
    return os.environ.get(name)


def same(value: Any) -> Any:
    """The value."""
    return value


def who(seconds: float) -> int:
    """This process, after a while."""
    time.sleep(seconds)
    return os.getpid()


def crash(text: str = "", number: int = signal.SIGSEGV) -> None:
    """Die of a signal, with some last words."""
    os.write(2, text.encode())
    os.kill(os.getpid(), number)


def leave(status: int) -> None:
    """End the process."""
    os._exit(status)


def ask_to_leave() -> None:
    """End the program as Python does."""
    sys.exit("enough")


def fail() -> None:
    """Raise an error."""
    raise ValueError("no such thing")


def hang() -> None:
    """Never give the interpreter back, so that no thread of this process can do anything about it."""
    ctypes.PyDLL(None).sleep(600)


def unspeakable() -> Callable[[], None]:
    """An answer that cannot be sent."""
    return lambda: None


def shout() -> None:
    """Write to where the terminal is."""
    os.write(1, b"heard\n")
    os.write(2, b"heard\n")


def wrong_mode(job: Any, values: Any) -> Any:
    """A measurement, when the schedule rounds in another way if any knob is turned."""
    import pytest

    from tvmdml.tuning import trials

    with pytest.MonkeyPatch.context() as patch:
        round_otherwise(patch)
        return trials.measure(job, values)


def round_otherwise(patch: Any) -> None:
    """Have the schedule round in another way if any knob is turned."""
    from tvmdml import RoundingMode, knobs
    from tvmdml.schedules.cpu import pointwise

    kernel = pointwise.kernel

    def other(desc: Any, *others: Any) -> Any:
        turned = knobs.in_force().get("pointwise")
        return kernel(dataclasses.replace(desc, rounding_mode=RoundingMode.TOWARD_INFINITY) if turned else desc, *others)

    patch.setattr(pointwise, "kernel", other)


def compiled_here() -> int:
    """How many kernels this process has compiled."""
    from tvmdml.library import finding

    return finding.compiled_count


def act(name: str, *arguments: Any) -> Any:
    """One of the above."""
    return globals()[name](*arguments)

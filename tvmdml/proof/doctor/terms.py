"""What a check is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

OK, LIMITED, BROKEN, ABSENT = "ok", "limited", "broken", "absent"
"""It works; it works, but something is missing or slow; it fails; it is not installed, and is not required."""


class CheckFinding(NamedTuple):
    """One result of a check."""

    state: str
    """``ok``, ``limited``, ``broken`` or ``absent``."""
    words: str
    advice: str = ""
    """What to do; empty if there is nothing to do."""
    runs: bool = False
    """Whether it shows that kernels can run here."""


class MachineCheck(NamedTuple):
    """One check."""

    group: str
    name: str
    look: Callable[[], Iterable[CheckFinding]]
    apart: bool = False
    """Whether it runs code that may crash or hang, and therefore runs in a separate process."""

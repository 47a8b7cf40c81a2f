"""NVIDIA's architectures: their names, which devices run code for them, and the figures that schedules use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tvmdml.errors import InvalidArgument, message

OLDEST = 75
"""The oldest architecture that CUDA 13's compilers support."""


class Architecture(NamedTuple):
    """The figures of an architecture's largest device."""

    processors: int
    threads: int
    """The maximum number of resident threads of a multiprocessor."""


_KNOWN = {
    75: Architecture(72, 1024),  # Turing: T4, RTX 20
    80: Architecture(108, 2048),  # Ampere: A100
    86: Architecture(84, 1536),  # Ampere: A10, RTX 30
    87: Architecture(16, 1536),  # Orin
    89: Architecture(142, 1536),  # Ada: L4, L40, RTX 40
    90: Architecture(132, 2048),  # Hopper: H100, H200
    100: Architecture(148, 2048),  # Blackwell: B200
    103: Architecture(160, 2048),  # Blackwell: B300
    110: Architecture(20, 1536),  # Thor
    120: Architecture(188, 1536),  # Blackwell: RTX 50
    121: Architecture(48, 1536),  # Spark
}
_LATER = 1 << 16  # above every architecture: the end of a feature that later ones have too
FEATURES = {
    "async_copies": (80, _LATER),  # cp.async
    "large_tiles": (80, _LATER),  # mma of 16 x 8 x 32 bytes; those before have half of them, or a quarter
    "packed_halves": (80, _LATER),  # cvt.rn.f16x2.f32
    "packed_floats": (100, 110),  # fma.rn.f32x2, which assemblers split in two from sm_110 on
}
"""What not every architecture has, and which have it: from one to before another. Variants such as sm_90a have no more of it."""
_EMBEDDED = {87, 88}
"""Members of a generation that cannot run the machine code of its other members."""


def number(architecture: str) -> int:
    """90 for ``sm_90`` and ``compute_90``."""
    return int(architecture.rpartition("_")[2])


def is_one(name: str) -> bool:
    """Whether it is the name of an architecture, such as ``sm_90``, that compilers support."""
    return re.fullmatch(r"sm_[1-9][0-9]{1,2}", name, re.ASCII) is not None and number(name) >= OLDEST


def has(name: str, feature: str) -> bool:
    """Whether an architecture has a feature. Those that are in no table came with the oldest."""
    begin, end = FEATURES.get(feature, (OLDEST, _LATER))
    return begin <= number(name) < end


def condition(feature: str) -> str:
    """The same for CUDA's preprocessor."""
    begin, end = FEATURES[feature]
    return f"__CUDA_ARCH__ >= {10 * begin}" + (f" && __CUDA_ARCH__ < {10 * end}" if end < _LATER else "")


def parse(text: str) -> tuple[str, ...]:
    """The architectures of a list such as ``sm_80,sm_90``, the oldest first.

    Raises:
        InvalidArgument: an entry is not an architecture, or no compiler supports it.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not is_one(name):
            allowed = f"sm_{OLDEST} and newer, such as {', '.join(f'sm_{n}' for n in _KNOWN)}"
            raise InvalidArgument(message("target architecture", repr(name), allowed, "`cuda:sm_80,sm_90` is a list of two."))
    return tuple(sorted(set(names), key=number))


def of(names: Iterable[str]) -> Architecture:
    """The figures of the newest of them; an architecture newer than this package is treated as the newest one known."""
    newest = max(map(number, names))
    return _KNOWN[max((known for known in _KNOWN if known <= newest), default=OLDEST)]


def best(forms: Iterable[str], device: str) -> str | None:
    """The form that runs best on a device, among those that a kernel was compiled to; ``None`` if no form runs there.

    Machine code runs on later members of its own generation, except that embedded ones are separate. PTX runs on every device that
    is not older.
    """
    own = number(device)
    known = [form for form in forms if number(form) <= own]
    machine = [form for form in known if form.startswith("sm_") and _share(number(form), own)]
    portable = [form for form in known if form.startswith("compute_")]
    return max(machine or portable, key=number, default=None)


def _share(one: int, other: int) -> bool:
    return one == other or (one // 10 == other // 10 and not {one, other} & _EMBEDDED)

"""What a processor says of its cores and caches, for schedules to derive defaults from.

Linux describes each processor in ``/sys``. What is missing there, or cannot be true (some virtual machines make it up), is replaced
by the figures of ``GENERIC``.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tvmdml.targets.cpu import cgroups

_ROOT = Path("/")
_KIB, _MIB = 1 << 10, 1 << 20
_MOST_L3_PER_CORE = 16 * _MIB
"""A virtual machine with two cores may be told the size of a whole socket's cache, most of which serves its neighbours."""
_CREDIBLE = {1: (8 * _KIB, _MIB), 2: (64 * _KIB, 64 * _MIB), 3: (512 * _KIB, 4096 * _MIB)}
"""The least and the largest size, in bytes, that is believed of each level."""
_UNITS = {"": 1, "K": _KIB, "M": _MIB, "G": 1024 * _MIB}
_SAMPLE = 4
"""Processors to look at: each file takes some ten microseconds to read, and a server has hundreds of processors."""
_MOST_CACHES = 8
_Processors = frozenset[int]


class Caches(NamedTuple):
    """The cores and caches that the process may use. Sizes are in bytes."""

    l1: int
    """A core's first-level data cache."""
    l2: int
    """A core's second-level cache, or its share of one that several cores use."""
    l3: int
    """The last-level cache that cores of the process share."""
    cores: int
    """Physical cores of the process: two hardware threads of one core count once."""


GENERIC = Caches(32 * _KIB, _MIB, 32 * _MIB, 2)
"""What is assumed where nothing is known. Packs are built for this, so their bytes do not depend on where they are built."""


class _Cache(NamedTuple):
    level: int
    size: int
    shared: _Processors
    """The process's processors that use it."""


class _Processor(NamedTuple):
    siblings: _Processors
    """The process's hardware threads of its core."""
    caches: tuple[_Cache, ...]

    @classmethod
    def read(cls, folder: Path, number: int, own: _Processors) -> _Processor:
        """What its folder says."""
        text = _text(folder / "topology/core_cpus_list") or _text(folder / "topology/thread_siblings_list")
        return cls((_numbers(text) & own) | {number}, tuple(_caches(folder, own)))

    def cores_at(self, cache: _Cache) -> int:
        """How many of the process's cores use a cache."""
        return max(1, len(cache.shared) // len(self.siblings))


@functools.cache
def here() -> Caches:
    """Of this machine and process."""
    if hasattr(os, "sched_getaffinity"):
        return read(os.sched_getaffinity(0), granted=cgroups.processors())
    return read(range(os.cpu_count() or 1))


def read(processors: Iterable[int], root: Path = _ROOT, granted: int | None = None) -> Caches:
    """Read the description of a machine.

    Args:
        processors: the numbers of those that the process may run on.
        root: where the file system begins.
        granted: how many processors' time the process may use; ``None`` for no limit.
    """
    own = frozenset(processors) or frozenset({0})
    seen = [_Processor.read(root / f"sys/devices/system/cpu/cpu{number}", number, own) for number in _some_of(own)]
    cores = max(1, round(len(own) * sum(1 / len(one.siblings) for one in seen) / len(seen)))
    cores = min(cores, granted or cores)

    def smallest(level: int, shares: bool) -> int:
        """The smallest cache of a level that serves any of them: work is divided into equal parts, whatever the cores."""
        least, most = _CREDIBLE[level]
        found = [(one, cache) for one in seen for cache in one.caches if cache.level == level]
        sizes = [cache.size // (one.cores_at(cache) if shares else 1) for one, cache in found]
        return min((size for size in sizes if least <= size <= most), default=GENERIC[level - 1])

    l1, l2 = smallest(1, shares=True), smallest(2, shares=True)
    return Caches(l1, l2, max(l2, min(smallest(3, shares=False), _MOST_L3_PER_CORE * cores)), cores)


def _some_of(processors: _Processors) -> list[int]:
    """A few of them, evenly spaced: cores of several kinds are numbered kind by kind."""
    every = sorted(processors)
    return every if len(every) <= _SAMPLE else [every[i * len(every) // _SAMPLE] for i in range(_SAMPLE)]


def _caches(folder: Path, own: _Processors) -> Iterator[_Cache]:
    """The caches of a processor that hold data, as far as their descriptions can be read."""
    for number in range(_MOST_CACHES):
        index = folder / f"cache/index{number}"
        if not (level := _text(index / "level")):
            return
        size = re.fullmatch(r"(\d{1,9})([KMG]?)", _text(index / "size"))
        if level in ("1", "2", "3") and size and _text(index / "type") in ("Data", "Unified"):
            yield _Cache(int(level), int(size[1]) * _UNITS[size[2]], _numbers(_text(index / "shared_cpu_list")) & own)


def _numbers(text: str) -> _Processors:
    """The numbers of a list such as ``0-3,8``; none of one that is not well formed."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip())
        if match is None:
            return frozenset()
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def _text(path: Path) -> str:
    try:
        with open(path) as stream:
            return stream.read().strip()
    except (OSError, ValueError):
        return ""

"""A processor's cores and caches as the system describes them, from which schedules derive defaults.

Linux describes each processor in ``/sys``. Values that are missing or impossible (some virtual machines invent them) are replaced
by those of ``GENERIC``.
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
"""A virtual machine with two cores may see the size of a whole socket's cache, most of which other machines use."""
_CREDIBLE = {1: (8 * _KIB, _MIB), 2: (64 * _KIB, 64 * _MIB), 3: (512 * _KIB, 4096 * _MIB)}
"""The smallest and the largest plausible size of each level, in bytes."""
_UNITS = {"": 1, "K": _KIB, "M": _MIB, "G": 1024 * _MIB}
_SAMPLE = 4
"""The most processors to read: each file takes about ten microseconds, and a server has hundreds of processors."""
_MOST_CACHES = 8
_Processors = frozenset[int]


class Caches(NamedTuple):
    """The cores and caches that the process may use. Sizes are in bytes."""

    l1: int
    """A core's first-level data cache."""
    l2: int
    """A core's second-level cache, or its share if several cores share one."""
    l3: int
    """The last-level cache that the cores of the process share."""
    cores: int
    """The number of physical cores of the process: two hardware threads of one core count once."""


GENERIC = Caches(32 * _KIB, _MIB, 32 * _MIB, 2)
"""The assumed values if nothing is known. Packs are built for these, so that a pack does not depend on where it is built."""


class _Cache(NamedTuple):
    level: int
    size: int
    shared: _Processors
    """The processors of the process that use the cache."""


class _Processor(NamedTuple):
    siblings: _Processors
    """The hardware threads of its core that the process may use."""
    caches: tuple[_Cache, ...]

    @classmethod
    def read(cls, folder: Path, number: int, own: _Processors) -> _Processor:
        """Read a processor's folder."""
        text = _text(folder / "topology/core_cpus_list") or _text(folder / "topology/thread_siblings_list")
        return cls((_numbers(text) & own) | {number}, tuple(_caches(folder, own)))

    def cores_at(self, cache: _Cache) -> int:
        """How many of the process's cores share a cache."""
        return max(1, len(cache.shared) // len(self.siblings))


def here() -> Caches:
    """The caches of this machine and process; ``GENERIC`` if ``TVMDML_CPU`` names a processor, so that machines decide alike."""
    return GENERIC if os.environ.get("TVMDML_CPU", "").strip() else _present()


@functools.cache
def _present() -> Caches:
    if hasattr(os, "sched_getaffinity"):
        return read(os.sched_getaffinity(0), granted=cgroups.processors())
    return read(range(os.cpu_count() or 1))


def read(processors: Iterable[int], root: Path = _ROOT, granted: int | None = None) -> Caches:
    """Read the description of a machine.

    Args:
        processors: the numbers of the processors that the process may run on.
        root: the root of the file system.
        granted: the CPU quota of the process, in processors; ``None`` for no limit.
    """
    own = frozenset(processors) or frozenset({0})
    seen = [_Processor.read(root / f"sys/devices/system/cpu/cpu{number}", number, own) for number in _some_of(own)]
    cores = max(1, round(len(own) * sum(1 / len(one.siblings) for one in seen) / len(seen)))
    cores = min(cores, granted or cores)

    def smallest(level: int, shares: bool) -> int:
        """The smallest cache of a level that any of them uses: work is divided into equal parts, even if cores differ."""
        least, most = _CREDIBLE[level]
        found = [(one, cache) for one in seen for cache in one.caches if cache.level == level]
        sizes = [cache.size // (one.cores_at(cache) if shares else 1) for one, cache in found]
        return min((size for size in sizes if least <= size <= most), default=GENERIC[level - 1])

    l1, l2 = smallest(1, shares=True), smallest(2, shares=True)
    return Caches(l1, l2, max(l2, min(smallest(3, shares=False), _MOST_L3_PER_CORE * cores)), cores)


def _some_of(processors: _Processors) -> list[int]:
    """A few of the processors, evenly spaced: systems number cores of different kinds one kind after the other."""
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
    """The numbers in a list such as ``0-3,8``; none if the list is malformed."""
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

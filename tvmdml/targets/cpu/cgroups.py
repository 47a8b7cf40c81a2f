"""How much processor time Linux allows this process's control group, for example in a container."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


@functools.cache
def processors(root: Path = _ROOT) -> int | None:
    """How many processors' time the group may use, rounded up; ``None`` without a limit. A limit also covers the groups below it.

    Args:
        root: the root of the file system.
    """
    limits = [limit for path, version in _folders(root) if (limit := _limit(path, version))]
    return max(1, math.ceil(min(limits))) if limits else None


def _folders(root: Path) -> Iterator[tuple[Path, int]]:
    """The folders of the group and of the groups above it, for both versions of control groups."""
    base = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts, version = [base, base / "unified"], 2
        elif "cpu" in controllers.split(","):
            mounts, version = [base / controllers, base / "cpu"], 1
        else:
            continue
        # Inside a container the path may be the host's, and not exist here. The mounted folder is then the container's own.
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for mount in mounts:
            for depth in range(len(parts) + 1):
                yield mount.joinpath(*parts[:depth]), version


def _limit(folder: Path, version: int) -> float | None:
    if version == 2:
        words = _read(folder / "cpu.max").split()
    else:
        words = [_read(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    try:
        quota, period = map(int, words)
    except ValueError:  # "max", or no file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""

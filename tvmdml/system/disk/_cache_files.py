"""The names of all files that tvmdml writes in its cache. Files with other names are never removed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tvmdml.system.disk._trust import Folder, replace

TAG = "CACHEDIR.TAG"
"""The file that marks a cache for backup programs and others (https://bford.info/cachedir/)."""
_TAG_TEXT = b"""Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache of tvmdml. What is in it is made again when it is needed.
# About this file: https://bford.info/cachedir/
"""

ENTRY = r"([0-9a-f]{40})(?:\.json|\.lock|-[0-9a-f]+(\.\w+))"
"""A kernel's manifest, lock or artifact. Groups: the digest; an artifact's suffix."""
BUILDING = r"\.building-\w+"
"""A folder in which a kernel is built."""
PLACE = r"[0-9a-f]{2}"
"""A folder of kernels, named after the first two characters of their digests."""
BESIDE = r"\.\w+\.(bin|json|plan|data)\.\d+-\d+"
"""A temporary file that ``_trust.replace`` is writing."""

Tree = Mapping[str, "Tree | None"]
"""The contents of a folder: patterns of names, each with the contents of that subfolder, or ``None`` for a file. (The patterns are
not compiled here: a process that finds all its kernels in the cache needs only one of them.)"""

_PLACE: Tree = {ENTRY: None, BUILDING: {"(?s).+": None}}
_KERNELS: Tree = {PLACE: _PLACE}
_SESSION: Tree = {r"about\.json|trials\.jsonl|done\.json(\.new)?|lock": None, BESIDE: None}

PLAN = r"[0-9a-f]{40}\.(?:plan|data)"
"""A compiled model, or its weights."""

TREES: Mapping[str, Tree] = {
    "kernels": _KERNELS,
    "tuning": {"sessions": {"[0-9a-f]{24}": _SESSION}, "kernels": _KERNELS},
    "plans": {PLACE: {PLAN: None, BESIDE: None}},
    "vulkan": {r"[0-9a-f]{40}\.bin": None, BESIDE: None},
}
"""The folders of a cache, and their contents."""


def named(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that match a pattern."""
    return [name for name in names if re.fullmatch(pattern, name)]


def only(name: str) -> Tree:
    """The part of a folder of kernels that a single name stands for."""
    return {re.escape(name): inner for pattern, inner in _PLACE.items() if re.fullmatch(pattern, name)}


def mark(cache: Folder) -> None:
    """Write the tag of a cache, unless its folder contains other files, so that it is not used by tvmdml alone.

    The folder in which the tuner keeps candidates is a cache inside the cache and needs no tag.
    """
    with suppress(OSError):  # the folder is read-only, or the disk is full
        if os.path.basename(cache.path) not in TREES and not set(cache.names()) - set(TREES):
            replace(Path(cache.path, TAG), _TAG_TEXT)


def size(folder: Folder, tree: Tree) -> int:
    """The total size in bytes of tvmdml's files in a folder."""
    total = 0
    for place, name, inner in _own(folder, tree):
        with suppress(OSError):  # it was just removed
            total += place.about(name).st_size if inner is None else 0
    return total


def remove(folder: Folder, tree: Tree) -> int:
    """Remove tvmdml's files from a folder, and those of its subfolders that are then empty.

    Returns:
        The number of entries left in the folder.
    """
    for place, name, inner in _own(folder, tree):
        with suppress(OSError):  # it was removed meanwhile, or contains other files
            if inner is None:
                place.remove(name)
            else:
                os.rmdir(name, dir_fd=place.handle)
    return len(folder.names())


def _own(folder: Folder, tree: Tree) -> Iterator[tuple[Folder, str, Tree | None]]:
    """The files and folders that are tvmdml's by their names. The contents of a folder come before the folder itself."""
    for name in folder.names():
        for pattern, inner in tree.items():
            if re.fullmatch(pattern, name):
                if inner is not None:
                    with suppress(OSError), folder.enter(name) as within:
                        yield from _own(within, inner)
                yield folder, name, inner
                break

"""The names of all files that tvmdml writes in its cache. Nothing else in there is ever removed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tvmdml._trust import Folder, replace

TAG = "CACHEDIR.TAG"
"""The file that marks a cache for backup programs and others (https://bford.info/cachedir/)."""
_TAG_TEXT = b"""Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache of tvmdml. What is in it is made again when it is needed.
# About this file: https://bford.info/cachedir/
"""

ENTRY = r"([0-9a-f]{40})(?:\.json|\.lock|-[0-9a-f]+(\.\w+))"
"""A kernel's manifest, lock or artifact. Groups: the digest; an artifact's suffix."""
BUILDING = r"\.building-\w+"
"""A folder that a kernel is built in."""
PLACE = r"[0-9a-f]{2}"
"""A folder of kernels: their digests begin so."""
BESIDE = r"\.\w+\.(bin|json)\.\d+-\d+"
"""A file that is being written, as ``_trust.replace`` calls it."""

Tree = Mapping[str, "Tree | None"]
"""What is in a folder: patterns of names, each with what is in that folder in turn, or ``None`` for a file. (Nothing is compiled
here: a process that finds its kernels needs one of the patterns.)"""

_PLACE: Tree = {ENTRY: None, BUILDING: {"(?s).+": None}}
_KERNELS: Tree = {PLACE: _PLACE}
_SESSION: Tree = {r"about\.json|trials\.jsonl|done\.json(\.new)?|lock": None, BESIDE: None}

TREES: Mapping[str, Tree] = {
    "kernels": _KERNELS,
    "tuning": {"sessions": {"[0-9a-f]{24}": _SESSION}, "kernels": _KERNELS},
    "vulkan": {r"[0-9a-f]{40}\.bin": None, BESIDE: None},
}
"""The folders of a cache, and what is in them."""


def named(pattern: str, names: Iterable[str]) -> list[str]:
    """Those that a pattern is of."""
    return [name for name in names if re.fullmatch(pattern, name)]


def only(name: str) -> Tree:
    """What there is of one name in a folder of kernels."""
    return {re.escape(name): inner for pattern, inner in _PLACE.items() if re.fullmatch(pattern, name)}


def mark(cache: Folder) -> None:
    """Write the tag of a cache, unless its folder has other things in it, and so is not tvmdml's alone.

    The folder that the tuner keeps candidates in is a cache within a cache, and needs none.
    """
    with suppress(OSError):  # it is to be read only, or there is no room
        if os.path.basename(cache.path) not in TREES and not set(cache.names()) - set(TREES):
            replace(Path(cache.path, TAG), _TAG_TEXT)


def size(folder: Folder, tree: Tree) -> int:
    """Bytes of tvmdml's files in a folder."""
    total = 0
    for place, name, inner in _own(folder, tree):
        with suppress(OSError):  # it was removed a moment ago
            total += place.about(name).st_size if inner is None else 0
    return total


def remove(folder: Folder, tree: Tree) -> int:
    """Remove tvmdml's files from a folder, and its folders that are empty then.

    Returns:
        How many other things there are in the folder and those below.
    """
    for place, name, inner in _own(folder, tree):
        with suppress(OSError):  # it has gone, or has other things in it
            if inner is None:
                place.remove(name)
            else:
                os.rmdir(name, dir_fd=place.handle)
    return len(folder.names())


def _own(folder: Folder, tree: Tree) -> Iterator[tuple[Folder, str, Tree | None]]:
    """What is tvmdml's, by its name: what is in a folder comes before the folder."""
    for name in folder.names():
        for pattern, inner in tree.items():
            if re.fullmatch(pattern, name):
                if inner is not None:
                    with suppress(OSError), folder.enter(name) as within:
                        yield from _own(within, inner)
                yield folder, name, inner
                break

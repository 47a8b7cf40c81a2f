"""The names of all files that tvmdml writes in its cache. Nothing else in there is ever removed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tvmdml._trust import Folder, replace

TAG = "CACHEDIR.TAG"
"""The file that marks a cache for backup programs and others (https://bford.info/cachedir/)."""
_TAG_TEXT = b"""Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache of tvmdml. What is in it is made again when it is needed.
# About this file: https://bford.info/cachedir/
"""

ENTRY = re.compile(r"([0-9a-f]{40})(?:\.json|\.lock|-[0-9a-f]+(\.\w+))")
"""A kernel's manifest, lock or artifact. Groups: the digest; an artifact's suffix."""
BUILDING = re.compile(r"\.building-\w+")
"""A folder that a kernel is built in."""
PLACE = re.compile(r"[0-9a-f]{2}")
"""A folder of kernels: their digests begin so."""
BESIDE = re.compile(r"\.\w+\.(bin|json)\.\d+-\d+")
"""A file that is being written, as ``_trust.replace`` calls it."""

Tree = Mapping[re.Pattern[str], "Tree | None"]
"""What is in a folder: patterns of names, each with what is in that folder in turn, or ``None`` for a file, or for a folder that is
tvmdml's with all that is in it."""


def _tree(names: Mapping[str, Tree | None]) -> Tree:
    return {re.compile(pattern): inner for pattern, inner in names.items()}


_KERNELS: Tree = {PLACE: {ENTRY: None, BUILDING: None}}
_SESSION = _tree({r"about\.json|trials\.jsonl|done\.json(\.new)?|lock": None, BESIDE.pattern: None})

TREES: Mapping[str, Tree] = {
    "kernels": _KERNELS,
    "tuning": _tree({"sessions": _tree({"[0-9a-f]{24}": _SESSION}), "kernels": _KERNELS}),
    "vulkan": _tree({r"[0-9a-f]{40}\.bin": None, BESIDE.pattern: None}),
}
"""The folders of a cache, and what is in them."""


def mark(cache: Folder) -> None:
    """Write the tag of a cache, unless its folder has other things in it, and so is not tvmdml's alone.

    The folder that the tuner keeps candidates in is a cache within a cache, and needs none.
    """
    if os.path.basename(cache.path) not in TREES and not set(cache.names()) - set(TREES):
        with suppress(OSError):  # another process was quicker, or there is no room
            replace(Path(cache.path, TAG), _TAG_TEXT)


def size(folder: Folder, tree: Tree) -> int:
    """Bytes of tvmdml's files in a folder."""
    return sum(place.about(name).st_size for place, name, inner in _own(folder, tree) if inner is None)


def remove(folder: Folder, tree: Tree) -> int:
    """Remove tvmdml's files from a folder, and its folders that are empty then.

    Returns:
        How many other things there are in the folder and those below.
    """
    for place, name, inner in _own(folder, tree):
        with suppress(OSError, RecursionError):  # it has gone, or has other things in it
            if inner is None:
                place.remove(name)
            else:
                os.rmdir(name, dir_fd=place.handle)
    return len(folder.names())


def _own(folder: Folder, tree: Tree) -> Iterator[tuple[Folder, str, Tree | None]]:
    """What is tvmdml's, by its name: what is in a folder comes before the folder."""
    for name in folder.names():
        for pattern, inner in tree.items():
            if pattern.fullmatch(name):
                if inner is not None:
                    with suppress(OSError), folder.enter(name) as within:
                        yield from _own(within, inner)
                yield folder, name, inner
                break

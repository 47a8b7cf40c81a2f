"""Files that are gone once they were read: nobody can change them, cut them short, or meet them again under their name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tvmdml._trust import check_above

T = TypeVar("T")


@contextmanager
def in_memory() -> Iterator[str]:
    """The path of a new file that needs no disk, where the system has such files."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("tvmdml", os.MFD_CLOEXEC)
        try:
            yield f"/proc/self/fd/{file}"
        finally:
            os.close(file)
    else:
        with tempfile.TemporaryDirectory(prefix="tvmdml-") as folder:
            yield os.path.join(folder, "file")


def load_library(content: bytes, load: Callable[[str], T]) -> T:
    """Hand ``load`` the path of a file with this content, which is removed as soon as it returns.

    The content was read from a file that was checked, and nobody can change it between the check and the load: the cache's file is
    not looked at again, and the folders of this one are checked as those above a cache are. Where another user can write to them,
    the file is one in memory.

    The path is never used again: the loader takes a path it has seen for the library it has loaded, and debuggers open the paths
    of loaded libraries later on. A file in memory has only its number for a path, so it is kept open for good; it serves where
    temporary files cannot be written, or not be executed.
    """
    try:
        with tempfile.NamedTemporaryFile(prefix="tvmdml-", suffix=".so") as stream:
            stream.write(content)
            stream.flush()
            check_above(os.path.realpath(stream.name))
            return load(stream.name)
    except Exception:
        if not hasattr(os, "memfd_create"):
            raise
    file = os.memfd_create("tvmdml", os.MFD_CLOEXEC)
    with open(file, "wb", closefd=False) as memory:
        memory.write(content)
    try:
        return load(f"/proc/self/fd/{file}")
    except BaseException:
        os.close(file)
        raise

"""Files that are removed after they were read: nobody can change or truncate them, or find them again under their name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tvmdml.disk._trust import check_above

T = TypeVar("T")


@contextmanager
def in_memory() -> Iterator[str]:
    """The path of a new file: in memory where the system supports that, otherwise on disk."""
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
    """Call ``load`` with the path of a file with this content, and remove the file when it returns.

    The content was read from a file that was checked. Nobody can change it between the check and the load: the file of the cache is
    not opened again, and the folders of this file are checked like those above a cache. If another user can write there, a file in
    memory is used.

    The path is never used again: for a path that it has seen, the loader returns the library it already loaded, and debuggers open
    the paths of loaded libraries later. The path of a file in memory is only its descriptor's number, so that descriptor stays open
    forever. A file in memory is also used where temporary files cannot be written or executed.
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

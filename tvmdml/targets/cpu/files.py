"""Files that are removed after they were read: nobody can change or truncate them, or find them again under their name."""

from __future__ import annotations

import itertools
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tvmdml.system.disk._trust import check_above

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
        import tempfile  # slow

        with tempfile.TemporaryDirectory(prefix="tvmdml-") as folder:
            yield os.path.join(folder, "file")


def load_from_memory(content: bytes, load: Callable[[str, int], T]) -> T:
    """Call ``load`` with the path of a file in memory with this content, and its descriptor, which becomes the library's.

    It takes a tenth of the time of ``load_library``. Whoever looks for a library later, such as the runtime when it describes an
    error, opens its path: so the descriptor stays open as long as the library is loaded. Half of all are left to others.

    Raises:
        OSError: the system has no such files or descriptors, or cannot load this one.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError("there are no files in memory")
    file = os.memfd_create("tvmdml", os.MFD_CLOEXEC)
    try:
        if file >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
            raise OSError("there are too few descriptors")
        with open(file, "wb", closefd=False) as memory:
            memory.write(content)
        return load(_path(file), file)
    except BaseException:
        os.close(file)
        raise


_numbers = itertools.count()


def _path(file: int) -> str:
    """A path of an open file that no file had before: its slashes, which may be doubled or followed by a dot, spell a number.

    For a path that it knows, the loader would return the library that was there.
    """
    return "/proc/self/fd/" + f"{next(_numbers):b}".replace("0", "/").replace("1", "./") + str(file)


def load_library(content: bytes, load: Callable[[str], T]) -> T:
    """Call ``load`` with the path of a file with this content, and remove the file when it returns.

    The content was read from a file that was checked. Nobody can change it between the check and the load: the file of the cache is
    not opened again, and the folders of this file are checked like those above a cache. If another user can write there, a file in
    memory is used.

    The path is never used again: for a path that it has seen, the loader returns the library it already loaded, and debuggers open
    the paths of loaded libraries later. The path of a file in memory is only its descriptor's number, so that descriptor stays open
    forever. A file in memory is also used where temporary files cannot be written or executed.
    """
    import tempfile

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

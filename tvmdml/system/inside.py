"""Access to files inside a folder, by names that come from an untrusted file.

A name is a relative path without ``..``. When reading, the path may contain symbolic links that end inside the folder. When
writing, it may contain none. Folders are opened one by one, each relative to the one before, so that nobody can replace one by a
link meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from tvmdml.errors import reason

StrPath = str | os.PathLike[str]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe would otherwise wait for a writer
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST = 255
"""The most bytes in a file name, in most file systems."""


class NotOpened(Exception):
    """A file that is not opened. The text continues a message after the file's name: ``which does not exist``."""


class FileMissing(NotOpened):
    """The file does not exist."""

    def __init__(self) -> None:
        super().__init__("which does not exist")


def steps(name: str) -> tuple[str, ...]:
    """The parts of a path: its folders, and last the file.

    Raises:
        NotOpened: it is not a relative path that stays inside the folder.
    """
    if re.match(r"[/\\]|[A-Za-z]:", name):
        raise NotOpened("which is an absolute path")
    found = tuple(step for step in re.split(r"[/\\]", name) if step not in ("", "."))  # models may use Windows paths
    if ".." in found:
        raise NotOpened("which is outside the folder")
    if not found:
        raise NotOpened("which does not name a file")
    try:
        if "\0" in name or max(len(os.fsencode(step)) for step in found) > _LONGEST:
            raise NotOpened("which is not a valid file name")
    except UnicodeEncodeError:
        raise NotOpened("which is not a valid file name") from None
    return found


def open_to_read(folder: StrPath, name: str, home: StrPath | None = None) -> BinaryIO:
    """Open a regular file inside a folder.

    Args:
        folder: the folder.
        name: the file's name in it.
        home: another folder that a link may lead to: where the file really is that names this one, if that is a link, too. Hugging
            Face's cache has such links.

    Raises:
        NotOpened: there is no such file, or it is outside the folder.
    """
    given = os.path.join(folder, *steps(name))
    try:
        root, target = os.path.realpath(folder), os.path.realpath(given, strict=True)
        inside = os.path.relpath(target, root).split(os.sep)
        if inside[0] == ".." and home is not None:
            root = os.path.realpath(home)
            inside = os.path.relpath(target, root).split(os.sep)
        if inside[0] in ("..", "."):
            raise NotOpened(
                "which is a symbolic link to a file outside the folder" if inside[0] == ".." else "which is not a regular file"
            )
        with _opened(root, inside[:-1]) as parent:
            return _regular(os.open(inside[-1], _READ, dir_fd=parent))
    except (FileNotFoundError, NotADirectoryError):
        raise FileMissing from None
    except (OSError, ValueError) as error:
        raise NotOpened(f"which cannot be read ({reason(error)})") from None


def existing(folder: StrPath, name: str) -> os.stat_result | None:
    """The file that would be replaced by writing to a name; ``None`` if there is none.

    Raises:
        NotOpened: the name cannot be written to.
    """
    *parents, last = steps(name)
    try:
        with _opened(folder, parents) as parent:
            return _replaceable(os.stat(last, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unwritable(error) from None


def create(folder: StrPath, name: str, may_replace: Callable[[os.stat_result], bool]) -> BinaryIO:
    """Create a file inside a folder. The folder is created too if it does not exist.

    Args:
        folder: the folder.
        name: the file's name in the folder.
        may_replace: decides whether an existing file may be replaced.

    Raises:
        NotOpened: it cannot be written, or it exists and may not be replaced.
    """
    *parents, last = steps(name)
    try:
        os.makedirs(folder, exist_ok=True)
        with _opened(folder, parents, make=True) as parent:
            with contextlib.suppress(FileNotFoundError):
                if not may_replace(_replaceable(os.stat(last, dir_fd=parent, follow_symlinks=False))):
                    raise NotOpened("which already exists")
                os.unlink(last, dir_fd=parent)  # not overwritten in place: it may have other hard links
            return os.fdopen(os.open(last, _CREATE, 0o666, dir_fd=parent), "wb")
    except FileExistsError:
        raise NotOpened("which already exists") from None
    except (OSError, ValueError) as error:
        raise _unwritable(error) from None


@contextlib.contextmanager
def _opened(folder: StrPath, parents: Sequence[str], make: bool = False) -> Iterator[int]:
    """The descriptor of a folder inside ``folder``. The user chose the path of ``folder``, so that path may contain links."""
    found = os.open(folder, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for step in parents:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(step, dir_fd=found)
            inner = os.open(step, _FOLDER, dir_fd=found)
            os.close(found)
            found = inner
        yield found
    finally:
        os.close(found)


def _regular(descriptor: int) -> BinaryIO:
    file = os.fdopen(descriptor, "rb") if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    if file is None:
        os.close(descriptor)
        raise NotOpened("which is not a regular file")
    return file


def _replaceable(about: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(about.st_mode):
        raise NotOpened("which already exists and is not a regular file")
    return about


def _unwritable(error: Exception) -> NotOpened:
    if isinstance(error, NotADirectoryError):
        return NotOpened("whose path contains a symbolic link, or a file in place of a folder")
    return NotOpened(f"which cannot be written ({reason(error)})")

"""Files that nobody but this user or root can have written: code is loaded from no others, and drivers are given no others.

The rules, which are those of OpenSSH's ``StrictModes``:

- A folder above the cache belongs to this user or to root. Group and others cannot write to it, unless it is sticky, as ``/tmp``
  is: there nobody can rename what belongs to another user. (A user namespace shows all owners that it does not map as one user,
  65534, who owns ``/`` in many sandboxes. Above the cache that user is trusted, in the cache not. Where 65534 is a user of its own,
  ``nobody``, it is not trusted: daemons run as ``nobody``.)
- The cache folder itself belongs to this user or to root, and the rule for writing is the same. Symbolic links on the way to it are
  resolved first.
- Every folder and file in the cache belongs to this user or to root, and neither group nor others can write to it. It is no
  symbolic link, and a file is a regular file.

The user is the effective one. Access control lists are covered: whom they let write is in the mode bits of the group.

Each folder in the cache is opened through the handle of the one above it, and the opened handle is what is checked. So nothing can
be put in the place of a file or a folder between its check and its use. Where a path must be used, as for a linker, the folders on
the way have been checked first, and nobody else can change what the path names.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_UNMAPPED = 65534
"""The owner that a user namespace shows for users it does not map."""
_USERS = Path("/proc/self/uid_map")
"""The users that this process's namespace maps: in each line the first of a range, what it is outside, and how many there are."""


class Untrusted(OSError):
    """A file or a folder that another user may have written."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(errno.EPERM, f"{problem}. {advice}")
        self.problem = problem
        """Which one, and why."""
        self.advice = advice
        """What to do about it."""


class Folder:
    """A folder of a cache, opened. Links in it are never followed.

    Args:
        path: where it is, for messages.
        handle: an open handle, which this takes over.
        checked: refuse what another user may have written. Without that, what is read is only to be shown, counted or removed.
    """

    def __init__(self, path: str, handle: int, checked: bool) -> None:
        self.path, self.handle, self._checked = path, handle, checked

    def __enter__(self) -> Folder:
        """The folder, open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        os.close(self.handle)

    def enter(self, name: str, *, create: bool = False) -> Folder:
        """A folder in this one.

        Args:
            name: its name.
            create: make it, for this user alone, if it is not there.

        Raises:
            Untrusted: another user may write to it.
            OSError: it cannot be opened or made.
        """
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.handle)
        handle = self._open(name, os.O_DIRECTORY)
        return _folder(f"{self.path}/{name}", handle, self._checked)

    def read(self, name: str, most: int) -> bytes:
        """The content of a file.

        Args:
            name: its name.
            most: how many bytes it may have. What else may stand in a file's place need not have an end.

        Raises:
            Untrusted: another user may have written it.
            OSError: it cannot be read, is too large, or is no regular file.
        """
        handle = self._open(name, os.O_NONBLOCK)  # a pipe is not waited for
        try:
            about = os.fstat(handle)
            if self._checked:
                _check(about, f"{self.path}/{name}")
            if not stat.S_ISREG(about.st_mode) or about.st_size > most:
                raise OSError(f"{self.path}/{name} is no file of at most {most} bytes")
            with open(handle, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(handle)

    def names(self) -> list[str]:
        """What is in it, in order."""
        return sorted(os.listdir(self.handle))

    def about(self, name: str) -> os.stat_result:
        """What the system knows of a file, a folder, or a link itself."""
        return os.stat(name, dir_fd=self.handle, follow_symlinks=False)

    def touch(self, name: str) -> None:
        """Note that a file was used now."""
        os.utime(name, dir_fd=self.handle, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file, or a link (and not what it names)."""
        os.unlink(name, dir_fd=self.handle)

    def _open(self, name: str, flags: int) -> int:
        try:
            return os.open(name, flags | os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.handle)
        except OSError as error:
            path = f"{self.path}/{name}"
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and stat.S_ISLNK(self.about(name).st_mode):
                raise Untrusted(f"{path} is a symbolic link", _advice("Remove it, or ")) from None
            raise OSError(error.errno, error.strerror, path) from None


@contextmanager
def opened(cache: Path, *names: str, create: bool = False, checked: bool = True) -> Iterator[Folder]:
    """A cache, or a folder in it.

    Args:
        cache: the cache's folder.
        names: of the folders from there on down.
        create: make those that are not there, for this user alone.
        checked: as ``Folder`` has it.

    Raises:
        Untrusted: another user may write to one of them, or to a folder above.
        OSError: one cannot be opened or made.
    """
    path = os.path.realpath(cache)
    if checked:
        check_above(path)
    if create:
        _make(os.path.abspath(cache))
        path = os.path.realpath(cache)
        if checked:  # again: a folder that was missing may be another user's by now
            check_above(path)
    with ExitStack() as stack:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        folder = stack.enter_context(_folder(path, handle, checked, inside=False))
        for name in names:
            folder = stack.enter_context(folder.enter(name, create=create))
        yield folder


def replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, in a folder that was checked. Others may read it if they can reach it; nobody can write it.

    Raises:
        OSError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with open(beside, "xb", opener=create) as stream:  # and not what somebody else has put there
            stream.write(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def create(path: str, flags: int) -> int:
    """An opener of files, for ``open``: what it creates group and others cannot write to, whatever the umask."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def check_above(path: str) -> None:
    """See that only this user and root can change what a resolved path names, as far as its folders are there.

    Raises:
        Untrusted: another user can.
        OSError: a folder cannot be looked at.
    """
    for folder in map(str, Path(path).parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            about = os.stat(f"{folder}/")
            owners = (_UNMAPPED,) if about.st_uid == _UNMAPPED and not _is_mapped(_UNMAPPED) else ()
            _check(about, folder, inside=False, owners=owners)


def _is_mapped(user: int) -> bool:
    """Whether a number stands for one user in this process's user namespace. Where the system does not say, it does."""
    try:
        ranges = [[int(number) for number in line.split()] for line in _USERS.read_text().splitlines()]
        return any(first <= user < first + count for first, _, count in ranges)
    except (OSError, ValueError):
        return True


def _folder(path: str, handle: int, checked: bool, inside: bool = True) -> Folder:
    try:
        if checked:
            _check(os.fstat(handle), path, inside)
    except BaseException:
        os.close(handle)
        raise
    return Folder(path, handle, checked)


def _check(about: os.stat_result, path: str, inside: bool = True, owners: tuple[int, ...] = ()) -> None:
    """See whose a file is, and who can write to it.

    Args:
        about: what the system says of it.
        path: where it is, for the message.
        inside: it is in the cache; if not, it is the cache's folder, or one above, which may be sticky and is not to be removed.
        owners: who is trusted beside this user and root.
    """
    remove = "Remove it, or " if inside else ""
    if about.st_uid not in (0, os.geteuid(), *owners):
        raise Untrusted(f"{path} belongs to user {about.st_uid}", _advice(remove))
    if about.st_mode & _OTHERS and (inside or not about.st_mode & stat.S_ISVTX):
        who = "everybody" if about.st_mode & stat.S_IWOTH else f"group {about.st_gid}"
        advice = _advice(f"If nobody else has changed it or what is in it, `chmod go-w {path}`. If not sure, {remove.lower()}")
        raise Untrusted(f"{who} can write to {path} (mode {stat.S_IMODE(about.st_mode):04o})", advice)


def _advice(first: str) -> str:
    text = f"{first}have TVMDML_CACHE_DIR name a folder of your own."
    return text[0].upper() + text[1:]


def _make(path: str) -> None:
    """Make a folder, and those above that are not there, for this user alone."""
    if not os.path.isdir(path):
        _make(os.path.dirname(path))
        with suppress(FileExistsError):  # of another process; what is no folder cannot be opened as one
            os.mkdir(path, 0o700)

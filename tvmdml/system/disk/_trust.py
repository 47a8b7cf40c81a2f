"""Files that only this user or root can have written. Code is loaded, and data is passed to drivers, only from such files.

The rules are those of OpenSSH's ``StrictModes``:

- Each folder above the cache belongs to this user or to root. Group and others cannot write to it, unless it has the sticky bit,
  like ``/tmp``: there nobody can rename files of another user. (A user namespace shows all owners that it does not map as one user,
  65534, who owns ``/`` in many sandboxes. That user is trusted above the cache, but not inside it. Where the namespace maps
  65534, it is the user ``nobody``, and not trusted, because daemons run as ``nobody``.)
- The cache folder itself belongs to this user or to root, and the same rule for writing applies. Symbolic links in its path are
  resolved first.
- Every folder and file in the cache belongs to this user or to root, and neither group nor others can write to it. None is a
  symbolic link, and every file is a regular file.

The user is the effective user. Access control lists are covered: the group's mode bits show whether they grant write permission.

Each folder in the cache is opened relative to the handle of the one above it, and the check uses the opened handle. Therefore no
file or folder can be replaced between its check and its use. Where a path must be used, for example for a linker, its folders have
been checked first, and nobody else can change what is at that path.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from tvmdml.system.disk.mapping import NumpyArray

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_UNMAPPED = 65534
"""The owner that a user namespace shows for users that it does not map."""
_USERS = Path("/proc/self/uid_map")
"""The users that this process's namespace maps. Each line has a range's first user, that user's number outside, and the length."""


class Untrusted(OSError):
    """A file or a folder that another user may have written."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(errno.EPERM, f"{problem}. {advice}")
        self.problem = problem
        """The file or folder, and the reason."""
        self.advice = advice
        """What to do about it."""


class Folder:
    """An open folder of a cache. Links in it are never followed.

    Args:
        path: its path, for messages.
        handle: an open handle; this object closes it.
        checked: refuse files that another user may have written. If false, contents may only be shown, counted or removed.
    """

    def __init__(self, path: str, handle: int, checked: bool) -> None:
        self.path, self.handle, self._checked = path, handle, checked

    def __enter__(self) -> Folder:
        """Return the folder itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        os.close(self.handle)

    def enter(self, name: str, *, create: bool = False) -> Folder:
        """A folder in this one.

        Args:
            name: its name.
            create: create it if it does not exist, with access for this user only.

        Raises:
            Untrusted: another user may write to it.
            OSError: it cannot be opened or created.
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
            most: the most bytes it may have. (A device in place of the file could be read without end.)

        Raises:
            Untrusted: another user may have written it.
            OSError: it cannot be read, is too large, or is not a regular file.
        """
        with self._opened(name, most) as file:
            return file.read()

    def content(self, name: str, *, map_it: bool) -> NumpyArray:
        """The content of a file, mapped or copied: it stays readable when the file is removed.

        Raises:
            Untrusted: another user may have written it.
            OSError: it cannot be read, or is not a regular file.
        """
        from tvmdml.system.disk import mapping  # it imports NumPy, which most readers of the cache do without

        with self._opened(name) as file:
            size = os.fstat(file.fileno()).st_size
            return mapping.mapped(file.fileno(), size) if map_it else mapping.copied(file, size)

    @contextmanager
    def _opened(self, name: str, most: int | None = None) -> Iterator[BinaryIO]:
        """A regular file."""
        handle = self._open(name, os.O_NONBLOCK)  # do not wait for a pipe
        try:
            about = os.fstat(handle)
            if self._checked:
                _check(about, f"{self.path}/{name}")
            if not stat.S_ISREG(about.st_mode) or (most is not None and about.st_size > most):
                raise OSError(f"{self.path}/{name} is not a regular file of at most {most} bytes")
            with open(handle, "rb", closefd=False) as file:
                yield file
        finally:
            os.close(handle)

    def names(self) -> list[str]:
        """The names of its entries, sorted."""
        return sorted(os.listdir(self.handle))

    def about(self, name: str) -> os.stat_result:
        """The system's record of a file, a folder, or a link itself."""
        return os.stat(name, dir_fd=self.handle, follow_symlinks=False)

    def touch(self, name: str) -> None:
        """Set the time of a file's last use to now."""
        os.utime(name, dir_fd=self.handle, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file, or a link (but not its target)."""
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
        names: the names of the nested folders below it.
        create: create missing folders, with access for this user only.
        checked: as for ``Folder``.

    Raises:
        Untrusted: another user may write to one of them, or to a folder above.
        OSError: one cannot be opened or created.
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
    """Write a file completely or not at all, in a folder that was checked. Others may read it if they can reach it, but not write.

    Raises:
        OSError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with open(beside, "xb", opener=create) as stream:  # "x": never a file that somebody else has put there
            stream.write(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def create(path: str, flags: int) -> int:
    """An opener for ``open``: group and others cannot write to the files it creates, whatever the umask is."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def check_above(path: str) -> None:
    """Check that only this user and root can change what is at a resolved path, as far as its parent folders exist.

    Raises:
        Untrusted: another user can.
        OSError: a folder cannot be examined.
    """
    for folder in map(str, Path(path).parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            about = os.stat(f"{folder}/")
            owners = (_UNMAPPED,) if about.st_uid == _UNMAPPED and not _is_mapped(_UNMAPPED) else ()
            _check(about, folder, inside=False, owners=owners)


def is_own(about: os.stat_result) -> bool:
    """Whether nobody but this user and root can change an open file. (Who can replace it does not reach one that is open.)"""
    try:
        _check(about, "")
    except Untrusted:
        return False
    return True


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
    """Check who owns a file or folder, and who can write to it.

    Args:
        about: the system's record of it.
        path: its path, for the message.
        inside: it is inside the cache. If not, it is the cache's folder or one above, which may be sticky and must not be removed.
        owners: users that are trusted in addition to this user and root.
    """
    remove = "Remove it, or " if inside else ""
    if about.st_uid not in (0, os.geteuid(), *owners):
        raise Untrusted(f"{path} belongs to user {about.st_uid}", _advice(remove))
    if about.st_mode & _OTHERS and (inside or not about.st_mode & stat.S_ISVTX):
        who = "everybody" if about.st_mode & stat.S_IWOTH else f"group {about.st_gid}"
        advice = _advice(
            f"If you are sure that no other user changed it or its contents, run `chmod go-w {path}`. Otherwise {remove.lower()}"
        )
        raise Untrusted(f"{who} can write to {path} (mode {stat.S_IMODE(about.st_mode):04o})", advice)


def _advice(first: str) -> str:
    text = f"{first}set TVMDML_CACHE_DIR to a folder of your own."
    return text[0].upper() + text[1:]


def _make(path: str) -> None:
    """Create a folder and its missing parents, with access for this user only."""
    if not os.path.isdir(path):
        _make(os.path.dirname(path))
        with suppress(FileExistsError):  # another process created it; if it is not a folder, opening it fails later
            os.mkdir(path, 0o700)

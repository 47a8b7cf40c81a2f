"""Files that are written atomically: packs, specs, and what is made of packs."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tvmdml.errors import InvalidArgument, message, naming, safe_repr

MAGIC = b"\x89TVMDML\n"
"""How a pack begins."""
GRAPH = b"TVMDMLG\n"
"""How a saved graph begins."""


def require_place(path: str | os.PathLike[str]) -> Path:
    """The path that a file will be written to, with links resolved. Called before the work, so that no work is lost.

    Raises:
        InvalidArgument: its folder does not exist or is not writable, or something that is not a regular file is there.
    """
    try:
        place = Path(os.path.realpath(path))
        if os.path.lexists(place) and not place.is_file():
            raise InvalidArgument(message("output", f"{path}, which exists and is not a file", "the path of a file"))
        folder = place.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise InvalidArgument(message("output", str(path), "a file in a folder that exists and is writable"))
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(message("output", safe_repr(path), f"the path of a file ({error})")) from None
    return place


def replace(path: str | os.PathLike[str], pieces: Iterable[bytes]) -> None:
    """Write a file atomically: to a temporary file beside it, which is then renamed. The permissions of an older file are kept.

    Raises:
        InvalidArgument: as ``require_place``.
        OSError: it cannot be written.
    """
    with replacing(path) as stream:
        stream.writelines(pieces)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """The temporary file of ``replace``, renamed when the block ends without an exception."""
    path = require_place(path)
    staged = path.parent / f".tvmdml-{os.urandom(8).hex()}"
    handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with naming(path), os.fdopen(handle, "wb") as stream:
            with contextlib.suppress(OSError):
                os.fchmod(handle, stat.S_IMODE(os.stat(path).st_mode))
            yield stream
        os.replace(staged, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(staged)
        raise


def is_pack(path: Any) -> bool:
    """Whether a file begins as packs do."""
    return _begins(path, MAGIC)


def is_graph(path: Any) -> bool:
    """Whether a file begins as saved graphs do."""
    return _begins(path, GRAPH)


def _begins(path: Any, magic: bytes) -> bool:
    with contextlib.suppress(OSError, TypeError, ValueError):
        if stat.S_ISREG(os.stat(path).st_mode):  # a pipe would wait for a writer
            with open(path, "rb") as stream:
                return stream.read(len(magic)) == magic
    return False

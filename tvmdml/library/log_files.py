"""The files of logs: ``<folder>/<machine>/<operator>.jsonl``, one line per winner. Every line read is checked; files are replaced
as a whole.

The file in which a line is stored is only for people: the machine and operator in the line itself count.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tvmdml.errors import InvalidArgument, naming
from tvmdml.library import log_lines
from tvmdml.library.log_lines import Key
from tvmdml.library.log_terms import Machine, Record

LARGEST_FILE = 64 << 20
"""In bytes."""
_LONGEST_SLUG = 200  # Linux allows a file's name 255 bytes: a hash and a suffix follow


class LogLine(NamedTuple):
    """A line of a file with its record, or with the reason why it is invalid."""

    path: Path
    number: int
    """The line number from 1 on; 0 for a file that cannot be read."""
    raw: bytes
    record: Record | None
    problem: str = ""

    @property
    def where(self) -> str:
        """The file and line number."""
        return f"{self.path}:{self.number}" if self.number else str(self.path)


class Merged(NamedTuple):
    """The result of merging records into a folder."""

    paths: list[Path]
    """The files that contain the records."""
    added: int
    """The number of records with a new key."""
    replaced: int
    """The number that are newer than the existing record."""
    kept: int
    """The number that are older: the existing record stays."""


# -- Names --------------------------------------------------------------------------------------------------------


def slug(machine: Machine) -> str:
    """A folder's name for a machine, such as ``cpu-x86-64-v3-AuthenticAMD-25.17-2-threads``."""
    threads = f"{machine.threads}-threads" if machine.threads else ""
    name = re.sub(r"[^A-Za-z0-9._+]+", "-", f"{machine.target}-{machine.processor}-{threads}").strip("-.")
    if len(name) > _LONGEST_SLUG:
        name = f"{name[:_LONGEST_SLUG]}-{hashlib.sha256(repr(tuple(machine)).encode()).hexdigest()[:8]}"
    return name or "machine"


def file_of(folder: Path, record: Record) -> Path:
    """The file that a record is written to."""
    return folder / slug(record.machine) / f"{record.operator}.jsonl"


# -- Reading ------------------------------------------------------------------------------------------------------


def read(path: Path, most_bad: int | None = None) -> list[LogLine]:
    """The lines of a file, valid and invalid; empty lines are skipped.

    Args:
        path: the file.
        most_bad: the number of bad lines after which the rest is skipped; the last line then says so. No limit by default.

    Raises:
        OSError: it cannot be read, is not a regular file, or is too large.
    """
    if not path.is_file():
        path.stat()
        raise OSError(f"{path}: it is not a regular file")  # reading from a pipe, for example, might never return
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise OSError(f"{path}: the file is larger than {LARGEST_FILE >> 20} MiB")
    found: list[LogLine] = []
    bad = 0
    for number, raw in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if raw.strip():
            found.append(_line(path, number, raw))
            bad += found[-1].record is None
            if bad == most_bad:
                found.append(LogLine(path, number + 1, b"", None, f"the rest is not read: {bad} lines before it are bad"))
                break
    return found


def read_all(paths: Iterable[Path], most_bad: int | None = None) -> Iterator[LogLine]:
    """The lines of several files, as from ``read``; a file that cannot be read gives one bad line with number 0."""
    for path in paths:
        try:
            yield from read(path, most_bad)
        except OSError as error:
            yield LogLine(path, 0, b"", None, f"cannot be read: {error.strerror or error}")


def _line(path: Path, number: int, raw: bytes) -> LogLine:
    try:
        return LogLine(path, number, raw, log_lines.parse(raw))
    except InvalidArgument as error:
        return LogLine(path, number, raw, None, str(error))


def newest(records: Iterable[Record]) -> dict[Key, Record]:
    """The newest record of each key."""
    found: dict[Key, Record] = {}
    for record in records:
        key = log_lines.key(record)
        if (other := found.get(key)) is None or log_lines.age(other) < log_lines.age(record):
            found[key] = record
    return found


# -- Writing ------------------------------------------------------------------------------------------------------


def merge(folder: Path, records: Iterable[Record]) -> Merged:
    """Merge records into their files, and replace each file as a whole; for each key the newest record stays.

    Other processes may do the same concurrently. Lines that cannot be read stay at the end of their file.

    Raises:
        InvalidArgument: a record would be rejected when it is read; then nothing was written.
        OSError: a file cannot be read or written.
    """
    groups: dict[Path, list[Record]] = defaultdict(list)
    for record in newest(map(log_lines.checked, records)).values():
        groups[file_of(folder, record)].append(record)
    counts: Counter[str] = Counter()
    for path, group in sorted(groups.items()):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            lines = read(path) if path.exists() else []
            old = newest(line.record for line in lines if line.record is not None)
            new = newest([*old.values(), *group])
            for key in map(log_lines.key, group):
                counts["added" if key not in old else "kept" if new[key] == old[key] else "replaced"] += 1
            _write(path, new.values(), (line.raw for line in lines if line.record is None))
    return Merged(sorted(groups), counts["added"], counts["replaced"], counts["kept"])


def remove(path: Path, gone: Iterable[bytes]) -> None:
    """Remove lines from a file, each as often as it is given. A file without lines is removed too.

    Raises:
        OSError: the file cannot be read or written.
    """
    left = Counter(gone)
    with _locked(path):
        kept = []
        for line in read(path):
            if left[line.raw]:
                left[line.raw] -= 1
            else:
                kept.append(line)
        if kept:
            _write(path, (line.record for line in kept if line.record), (line.raw for line in kept if line.record is None))
            return
        path.unlink()
    with contextlib.suppress(OSError):  # the folder contains other files
        path.parent.rmdir()


def _write(path: Path, records: Iterable[Record], others: Iterable[bytes]) -> None:
    """Replace a file atomically: readers see either the old or the new one."""
    lines = [log_lines.encode(record).encode() for record in sorted(records, key=log_lines.order)]
    content = b"".join(line + b"\n" for line in [*lines, *others])
    path = path.resolve()  # a symbolic link stays a link
    if path.exists() and path.read_bytes() == content:
        return
    import tempfile  # slow

    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with naming(path), open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file's lock. The lock file is in the cache, because a folder of logs may be under version control."""
    from tvmdml.system.disk.stores import DiskStore

    with DiskStore().lock(hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:40]):
        yield

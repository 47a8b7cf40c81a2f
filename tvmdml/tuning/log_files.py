"""The files of logs: ``<folder>/<machine>/<operator>.jsonl``, a line a winner, read with suspicion and written as a whole.

Which file of a folder a line stands in is for people: what it says of machine and operator is what counts.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tvmdml.errors import InvalidArgument, naming
from tvmdml.tuning import log_lines
from tvmdml.tuning.log_lines import Key
from tvmdml.tuning.terms import Machine, Record

LARGEST_FILE = 64 << 20
"""Bytes."""
_LONGEST_SLUG = 200


class Line(NamedTuple):
    """A line of a file, and the record that it is; or what is wrong with it."""

    path: Path
    number: int
    """From 1 on; 0 for a file that cannot be read."""
    raw: bytes
    record: Record | None
    problem: str = ""

    @property
    def where(self) -> str:
        """Where it stands."""
        return f"{self.path}:{self.number}" if self.number else str(self.path)


class Merged(NamedTuple):
    """What became of records that were merged into a folder."""

    paths: list[Path]
    """The files that they belong in."""
    added: int
    """Whose key was new."""
    replaced: int
    """That are newer than what was there."""
    kept: int
    """That are not: what was there stays."""


# -- Names --------------------------------------------------------------------------------------------------------


def slug(machine: Machine) -> str:
    """A folder's name for a machine, such as ``cpu-x86-64-v3-AuthenticAMD-25.17-2-threads``."""
    threads = f"{machine.threads}-threads" if machine.threads else ""
    name = re.sub(r"[^A-Za-z0-9._+]+", "-", f"{machine.target}-{machine.processor}-{threads}").strip("-.")
    if len(name) > _LONGEST_SLUG:
        name = f"{name[:_LONGEST_SLUG]}-{hashlib.sha256(repr(tuple(machine)).encode()).hexdigest()[:8]}"
    return name or "machine"


def file_of(folder: Path, record: Record) -> Path:
    """Where a record is written."""
    return folder / slug(record.machine) / f"{record.operator}.jsonl"


def files(folder: Path) -> list[Path]:
    """The logs of a folder: of every machine, or of one, if the folder is a machine's own."""
    return sorted(folder.glob("*.jsonl")) + sorted(folder.glob("*/*.jsonl"))


# -- Reading ------------------------------------------------------------------------------------------------------


def read(path: Path, most_bad: int | None = None) -> list[Line]:
    """The lines of a file, good and bad; empty ones are left out.

    Args:
        path: the file.
        most_bad: how many bad lines to look at: what comes after those is left out, and the last line says so. All, by default.

    Raises:
        OSError: it cannot be read, or is no file, or is too large.
    """
    if not path.is_file():
        path.stat()
        raise OSError(f"{path}: it is no file")  # but a pipe, say, on which reading might wait for ever
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise OSError(f"{path}: it is larger than {LARGEST_FILE >> 20} MiB")
    found: list[Line] = []
    bad = 0
    for number, raw in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if raw.strip():
            found.append(_line(path, number, raw))
            bad += found[-1].record is None
            if bad == most_bad:
                found.append(Line(path, number + 1, b"", None, f"the rest is not read: {bad} lines are bad before it"))
                break
    return found


def read_all(paths: Iterable[Path], most_bad: int | None = None) -> Iterator[Line]:
    """The lines of files, as ``read`` has them; a file that cannot be read gives one bad line, of number 0."""
    for path in paths:
        try:
            yield from read(path, most_bad)
        except OSError as error:
            yield Line(path, 0, b"", None, f"cannot be read: {error.strerror or error}")


def _line(path: Path, number: int, raw: bytes) -> Line:
    try:
        return Line(path, number, raw, log_lines.parse(raw))
    except InvalidArgument as error:
        return Line(path, number, raw, None, str(error))


def newest(records: Iterable[Record]) -> dict[Key, Record]:
    """One record a key."""
    found: dict[Key, Record] = {}
    for record in records:
        key = log_lines.key(record)
        if (other := found.get(key)) is None or log_lines.age(other) < log_lines.age(record):
            found[key] = record
    return found


# -- Writing ------------------------------------------------------------------------------------------------------


def merge(folder: Path, records: Iterable[Record]) -> Merged:
    """Put records into the files that they belong in, each as a whole or not at all; of one key, the newest stays.

    Other processes may do the same at once. Lines that cannot be read stay, at the end of their file.

    Raises:
        InvalidArgument: a record would not be taken when it is read; then nothing was written.
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
    """Take lines out of a file; one that is there twice goes as often as it is named. A file without lines goes, too.

    Raises:
        OSError: it cannot be read or written.
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
    with contextlib.suppress(OSError):  # others are in it
        path.parent.rmdir()


def _write(path: Path, records: Iterable[Record], others: Iterable[bytes]) -> None:
    """Replace a file, which is the old or the new at every moment."""
    lines = [log_lines.encode(record).encode() for record in sorted(records, key=log_lines.order)]
    content = b"".join(line + b"\n" for line in [*lines, *others])
    path = path.resolve()  # a link stays one
    if path.exists() and path.read_bytes() == content:
        return
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
    """Hold a file's lock. It lies in the cache, for a folder of logs may be one that git looks at."""
    from tvmdml.stores import DiskStore

    with DiskStore().lock(hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:40]):
        yield

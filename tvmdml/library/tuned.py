"""The tuning records that a pack carries. They choose its kernels when it is built, and again wherever it runs.

The tuning logs of the building machine and of the running machine are ignored. The processor that a record was measured on is
ignored too: the choice for a target and a number of threads must be the same everywhere.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmdml.errors import InvalidArgument, message, reason
from tvmdml.kernels import knobs
from tvmdml.library import log_files, log_folders, log_lines
from tvmdml.library.log_terms import Record
from tvmdml.library.logs import Logs
from tvmdml.targets import Target

TunedLine = dict[str, Any]
"""A record in the form of a pack's head."""


def read(path: Path) -> list[Record]:
    """The records of a log file, or of all log files in a folder.

    Raises:
        InvalidArgument: there is no log, it cannot be read, or a line is not valid.
    """
    try:
        files = log_folders.files(path) if path.is_dir() else [path] if path.is_file() else []
    except (OSError, ValueError) as error:
        raise InvalidArgument(message("tuning log", f"{str(path)!r}, which cannot be read ({reason(error)})", _ALLOWED)) from None
    if not files:
        raise InvalidArgument(message("tuning log", f"{str(path)!r}, where there is no log", _ALLOWED))
    found = []
    for line in log_files.read_all(files):
        if line.record is None:
            raise InvalidArgument(f"{line.where}: {line.problem}")
        try:
            knobs.check(line.record.operator, line.record.knobs)
        except InvalidArgument as error:
            raise InvalidArgument(f"{line.where}: {error}") from None
        found.append(line.record)
    return found


_ALLOWED = "a tuning log (.jsonl), or a folder of tuning logs"


def carried(paths: Iterable[str], targets: Sequence[Target]) -> list[TunedLine]:
    """The tuning records for a pack of these targets: the newest for each key, in an order that does not depend on the files.

    Raises:
        InvalidArgument: as ``read``.
    """
    names = {target.machine().target for target in targets}
    found: dict[log_lines.Key, Record] = {}
    for record in (record for path in paths for record in read(Path(path)) if record.machine.target in names):
        key = log_lines.key(_of_any_processor(record))
        found[key] = max(record, found.get(key, record), key=log_lines.age)
    return sorted((json.loads(log_lines.encode(record)) for record in found.values()), key=_text)


def logs_of(lines: Sequence[Mapping[str, Any]]) -> Logs:
    """The tuning records of a pack's head, ready for use.

    Raises:
        InvalidArgument: one is not a record.
    """
    records = (log_lines.parse(json.dumps(line, ensure_ascii=False).encode()) for line in lines)
    return Logs(map(_of_any_processor, records), any_processor=True)


def deciding(target: Target, turned: Mapping[str, Mapping[str, knobs.Value]], logs: Logs) -> Target:
    """A copy of the target that uses a pack's knobs and tuning records."""
    found = copy.copy(target)
    found.knobs, found.logs = turned, logs
    return found


def serving(lines: Sequence[TunedLine], names: Iterable[str]) -> list[TunedLine]:
    """The records that are for some targets of a pack, given by name."""
    reached = _reached(names)
    return [line for line in lines if line["machine"]["target"] in reached]


def together(one: Sequence[TunedLine], other: Sequence[TunedLine]) -> list[TunedLine]:
    """The records of two packs that do not ``differ``, in the order of a single pack."""
    return sorted({_text(line): line for line in (*one, *other)}.values(), key=_text)


def differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two heads have different records for the targets that they share."""
    common = _reached(one["targets"].values()) & _reached(other["targets"].values())
    mine, theirs = ([line for line in head["logs"] if line["machine"]["target"] in common] for head in (one, other))
    return mine != theirs


def _reached(names: Iterable[str]) -> set[str]:
    """The names that records use for targets: the name in packs, or the kind alone for devices identified by their features."""
    return {called for name in names for called in (name, name.partition(":")[0])}


def _text(line: TunedLine) -> str:
    return json.dumps(line, sort_keys=True)


def _of_any_processor(record: Record) -> Record:
    return record._replace(machine=record.machine._replace(processor=""))

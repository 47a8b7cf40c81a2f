"""The logs of winners: the knobs that suit an operation on a machine, measured on a machine of the same kind.

A record applies to its operator, machine and types, and to a class of shapes: sizes rounded to the nearest power of two, and words.
If an operation's own class has no record, the nearest class's record is used, if its distance is at most ``NEAREST``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tvmdml.errors import InvalidArgument
from tvmdml.kernels import knobs
from tvmdml.library import log_files, log_folders, log_lines
from tvmdml.library.log_terms import Knobs, Machine, Record, ShapeClass
from tvmdml.system.disk import stores

if TYPE_CHECKING:
    from tvmdml.operators import Operator
    from tvmdml.operators._contract import Shared

NEAREST = 2
"""The maximum distance of a class whose record is used: the number of powers of two by which sizes differ, in total."""
_MOST_BAD = 1000
"""After so many bad lines a file is not a log, and the rest is not read."""
_MOST_WARNINGS = 3
"""Per file."""


class AppliedRecord(NamedTuple):
    """A record that applies to an operation."""

    record: Record
    exact: bool
    """Whether it is of the operation's own class, rather than of the nearest one."""
    hash: str
    """A hash of the record's knobs: see ``stamp``."""


# -- Shape classes ------------------------------------------------------------------------------------------------


def class_of(desc: Operator, shared: Shared = ()) -> ShapeClass:
    """The class of an operation's shapes."""
    found = {name: value if isinstance(value, str) else _rounded(value) for name, value in desc.shape_class().items()}
    if not shared:
        return found
    from tvmdml.operators import _shared  # only here: it imports NumPy

    in_place = _shared.write(desc, shared)
    return {**found, "in_place": "yes" if in_place is True else in_place}


def _rounded(size: int) -> int:
    """The nearest power of two, by ratio; 0 for 0."""
    if size < 1:
        return 0
    below = 1 << (size.bit_length() - 1)
    return below << (size * size > 2 * below * below)


def types_of(desc: Operator) -> Mapping[str, str]:
    """The data types of an operation's tensors, by DirectML's field names, without absent tensors."""
    names = {field.name: field.dml_name for field in desc.fields()}
    found = {}
    for name, tensor in desc.tensors():
        if tensor is not None:
            field, bracket, number = name.partition("[")
            found[names[field] + bracket + number] = tensor.data_type.tvm
    return found


def distance(one: ShapeClass, other: ShapeClass) -> int | None:
    """The distance of two classes: the number of powers of two by which sizes differ, in total; 0 counts as a half.

    Returns:
        ``None`` if they cannot be compared: words or names differ.
    """
    if one.keys() != other.keys():
        return None
    total = 0
    for name, mine in one.items():
        theirs = other[name]
        if isinstance(mine, str) or isinstance(theirs, str):
            if mine != theirs:
                return None
        else:
            total += abs(mine.bit_length() - theirs.bit_length())
    return total


def stamp(values: Knobs) -> str:
    """A hash of knob values, with twelve digits."""
    return hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode()).hexdigest()[:12]


# -- Lookup -------------------------------------------------------------------------------------------------------


class Logs:
    """Records for lookups. They do not change.

    Args:
        records: of those with the same key, the first one counts.
        any_processor: the records apply to every processor with the same target and number of threads, as in packs; records of
            this processor are still preferred.
        nearest: whether the nearest class may be used if there is no exact one.
    """

    def __init__(self, records: Iterable[Record], *, any_processor: bool = False, nearest: bool = True) -> None:
        self.any_processor = any_processor
        self.nearest = nearest
        first: dict[log_lines.Key, Record] = {}
        self._of_machine: dict[tuple[str, Machine], list[Record]] = {}
        for record in records:
            first.setdefault(log_lines.key(record), record)
            # All of them: if no schedule accepts the first one's knobs any more, the next one counts.
            self._of_machine.setdefault((record.operator, self._kind(record.machine)), []).append(record)
        self.records = tuple(first.values())
        """One record per key."""
        self._found: dict[object, AppliedRecord | None] = {}

    def find(self, operator: str, desc: Operator, shared: Shared, machine: Machine) -> AppliedRecord | None:
        """The record to use, or ``None``.

        Args:
            operator: the operator's module, such as ``top_k``.
            desc: the operation.
            shared: the pairs (input, output) in the same memory.
            machine: the machine that it is to run on.
        """
        if (records := self._of_machine.get((operator, self._kind(machine)))) is None:
            return None
        types, wanted = types_of(desc), class_of(desc, shared)
        key = (operator, machine, *types.items(), *wanted.items())
        try:
            return self._found[key]
        except KeyError:
            found = self._found[key] = self._look(records, types, wanted, machine)
            return found

    def _kind(self, machine: Machine) -> Machine:
        return machine._replace(processor="") if self.any_processor else machine

    def _look(self, records: list[Record], types: Mapping[str, str], wanted: ShapeClass, machine: Machine) -> AppliedRecord | None:
        near, limit = [], NEAREST if self.nearest else 0
        for record in records:
            far = distance(wanted, record.shape_class) if record.types == types else None
            if far is not None and far <= limit:
                near.append((far, record.machine != machine, log_lines.class_order(record.shape_class), record))
        near.sort(key=lambda one: one[:3])
        return next((AppliedRecord(record, far == 0, stamp(record.knobs)) for far, _, _, record in near if _is_legal(record)), None)

    def __len__(self) -> int:
        """The number of records."""
        return len(self.records)


def _is_legal(record: Record) -> bool:
    """Whether the current schedules accept the knobs. Checked only now, because it imports them."""
    try:
        if record.knobs:
            knobs.check(record.operator, record.knobs)
    except InvalidArgument as error:
        stores.warn_once(
            repr(log_lines.key(record)),
            f"tvmdml: a record of a tuning log is left out: {error} `tvmdml tuning validate` shows where it is.",
        )
        return False
    return True


# -- Installed logs -----------------------------------------------------------------------------------------------

_installed: dict[tuple[str | None, ...], Logs] = {}


def installed() -> Logs:
    """The records of all folders (``log_folders``). They are read once, and again if the environment variables change.

    ``TVMDML_TUNING=0`` disables all of them, and ``TVMDML_TUNING_NEAREST=0`` all but exact matches.
    """
    now = log_folders.variables()
    if (found := _installed.get(now)) is None:
        nearest = not _is_zero("TVMDML_TUNING_NEAREST")
        found = _installed[now] = Logs(() if are_off() else read(log_folders.folders()), nearest=nearest)
    return found


def are_off() -> bool:
    """Whether ``TVMDML_TUNING=0`` disables all logs."""
    return _is_zero("TVMDML_TUNING")


def _is_zero(name: str) -> bool:
    return os.environ.get(name, "").strip() == "0"


def forget() -> None:
    """Make ``installed`` read the logs again."""
    _installed.clear()
    log_folders.forget()


def add(folder: Path, records: Iterable[Record]) -> list[Path]:
    """Add records to a folder of logs; for each operator, machine, types and shape class, the newest stays.

    Returns:
        The files that contain them.

    Raises:
        InvalidArgument: a record would be rejected when it is read; then nothing was written.
        OSError: a file cannot be read or written.
    """
    paths = log_files.merge(folder, records).paths
    forget()
    return paths


def read(places: Iterable[Path]) -> Iterator[Record]:
    """The records of folders: for each key, the newest of the first folder that has one. Bad lines are skipped with a warning."""
    for folder in places:
        try:
            paths = log_folders.files(folder)
        except OSError as error:  # another user's folder, if a service runs with a foreign HOME
            what = f"the tuning logs in {folder} cannot be read ({error.strerror}); they are left out."
            stores.warn_once(str(folder), f"tvmdml: {what}")
            continue
        yield from log_files.newest(_warned_of(log_files.read_all(paths, _MOST_BAD))).values()


def _warned_of(lines: Iterable[log_files.LogLine]) -> Iterator[Record]:
    bad: Counter[Path] = Counter()
    for line in lines:
        if line.record is not None:
            yield line.record
            continue
        bad[line.path] += 1
        if bad[line.path] <= _MOST_WARNINGS or not line.raw:  # a line without content stands for the file itself
            stores.warn_once(line.where, f"tvmdml: {line.where}: left out of the tuning logs: {line.problem}")
    for path, count in bad.items():
        if count > _MOST_WARNINGS:
            more = f"{path}: {count - _MOST_WARNINGS} more lines are left out of the tuning logs"
            stores.warn_once(more, f"tvmdml: {more}: `tvmdml tuning validate` lists them.")

"""The logs of winners: which knobs suit an operation on a machine, by what was measured on one like it.

A record holds for its operator, machine and types, and for a class of shapes: sizes rounded to the nearest power of two, and words.
Where the very class has no record, the nearest one's holds, if it is no further away than ``NEAREST``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tvmdml import knobs, stores
from tvmdml.errors import InvalidArgument
from tvmdml.tuning import log_files, log_lines
from tvmdml.tuning.terms import Knobs, Machine, Record, ShapeClass

if TYPE_CHECKING:
    from tvmdml.operators import Operator

NEAREST = 2
"""How far away a class may be whose record is used: sizes differ by so many powers of two, all of them together."""
_MOST_BAD = 1000
"""Lines of a file that are bad; it is something else than a log, and the rest is not worth the time."""
_MOST_WARNINGS = 3
"""Of one file."""
_VARIABLES = ("TVMDML_TUNING", "TVMDML_TUNING_NEAREST", "TVMDML_TUNING_LOGS", "XDG_DATA_HOME", "HOME")
"""What decides which logs there are."""


class Found(NamedTuple):
    """A record that holds for an operation."""

    record: Record
    exact: bool
    """Whether it is of the operation's own class, or of the nearest one."""
    hash: str
    """Stands for the record's knobs: ``stamp``."""


# -- What is compared ---------------------------------------------------------------------------------------------


def class_of(desc: Operator, in_place: bool = False) -> ShapeClass:
    """The class that an operation's shapes are of."""
    found = {name: value if isinstance(value, str) else _rounded(value) for name, value in desc.shape_class().items()}
    return {**found, "in_place": "yes"} if in_place else found


def _rounded(size: int) -> int:
    """The power of two that is nearest by ratio; 0 for 0."""
    if size < 1:
        return 0
    below = 1 << (size.bit_length() - 1)
    return below << (size * size > 2 * below * below)


def types_of(desc: Operator) -> Mapping[str, str]:
    """The data types of an operation's tensors, by DirectML's names of the fields; those that are absent are left out."""
    names = {field.name: field.dml_name for field in desc.fields()}
    found = {}
    for name, tensor in desc.tensors():
        if tensor is not None:
            field, bracket, number = name.partition("[")
            found[names[field] + bracket + number] = tensor.data_type.tvm
    return found


def distance(one: ShapeClass, other: ShapeClass) -> int | None:
    """How far apart two classes are: by how many powers of two their sizes differ, all together; 0 counts as a half.

    Returns:
        ``None`` where they are not alike: words differ, or they are about different things.
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
    """Twelve digits that stand for values of knobs."""
    return hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode()).hexdigest()[:12]


# -- Looking up ---------------------------------------------------------------------------------------------------


class Logs:
    """Records to look in. They do not change.

    Args:
        records: of those with one key, the first counts.
        any_processor: they hold on every processor with the target and the number of threads, as those of a pack do; one's own
            are still preferred.
        nearest: whether the nearest class will do where there is no exact one.
    """

    def __init__(self, records: Iterable[Record], *, any_processor: bool = False, nearest: bool = True) -> None:
        self.any_processor = any_processor
        self.nearest = nearest
        first: dict[log_lines.Key, Record] = {}
        self._of_machine: dict[tuple[str, Machine], list[Record]] = {}
        for record in records:
            first.setdefault(log_lines.key(record), record)
            # All of them: where the first has knobs that no schedule takes any more, the next one counts.
            self._of_machine.setdefault((record.operator, self._kind(record.machine)), []).append(record)
        self.records = tuple(first.values())
        """One a key."""
        self._found: dict[object, Found | None] = {}

    def find(self, operator: str, desc: Operator, in_place: bool, machine: Machine) -> Found | None:
        """The record to use, if there is one.

        Args:
            operator: the operator's module, such as ``top_k``.
            desc: the operation.
            in_place: whether it writes to its input's memory.
            machine: where it is to run.
        """
        if (records := self._of_machine.get((operator, self._kind(machine)))) is None:
            return None
        types, wanted = types_of(desc), class_of(desc, in_place)
        key = (operator, machine, *types.items(), *wanted.items())
        try:
            return self._found[key]
        except KeyError:
            found = self._found[key] = self._look(records, types, wanted, machine)
            return found

    def _kind(self, machine: Machine) -> Machine:
        return machine._replace(processor="") if self.any_processor else machine

    def _look(self, records: list[Record], types: Mapping[str, str], wanted: ShapeClass, machine: Machine) -> Found | None:
        near, limit = [], NEAREST if self.nearest else 0
        for record in records:
            far = distance(wanted, record.shape_class) if record.types == types else None
            if far is not None and far <= limit:
                near.append((far, record.machine != machine, log_lines.class_order(record.shape_class), record))
        near.sort(key=lambda one: one[:3])
        return next((Found(record, far == 0, stamp(record.knobs)) for far, _, _, record in near if _is_legal(record)), None)

    def __len__(self) -> int:
        """How many records."""
        return len(self.records)


def _is_legal(record: Record) -> bool:
    """Whether the schedules of today still take the knobs. Looked at so late because it imports them."""
    try:
        if record.knobs:
            knobs.check(record.operator, record.knobs)
    except InvalidArgument as error:
        stores.warn_once(
            repr(log_lines.key(record)),
            f"tvmdml: a record of a tuning log is left out: {error} `tvmdml tuning validate` says where it is.",
        )
        return False
    return True


# -- What is installed --------------------------------------------------------------------------------------------

_installed: dict[tuple[str | None, ...], Logs] = {}


def installed() -> Logs:
    """The records of all folders (``folders``). They are read once, unless the environment says something new.

    ``TVMDML_TUNING=0`` leaves out all of them, and ``TVMDML_TUNING_NEAREST=0`` all but exact ones.
    """
    now = tuple(map(os.environ.get, _VARIABLES))
    if (found := _installed.get(now)) is None:
        nearest = not _is_zero("TVMDML_TUNING_NEAREST")
        found = _installed[now] = Logs(() if are_off() else read(folders()), nearest=nearest)
    return found


def are_off() -> bool:
    """Whether ``TVMDML_TUNING=0`` leaves out all logs."""
    return _is_zero("TVMDML_TUNING")


def _is_zero(name: str) -> bool:
    return os.environ.get(name, "").strip() == "0"


def forget() -> None:
    """Have ``installed`` read the logs anew."""
    _installed.clear()


def add(folder: Path, records: Iterable[Record]) -> list[Path]:
    """Put records into a folder of logs; of one operator, machine, types and shape class, the newest stays.

    Returns:
        The files that they are in.

    Raises:
        InvalidArgument: a record would not be taken when it is read; then nothing was written.
        OSError: a file cannot be read or written.
    """
    paths = log_files.merge(folder, records).paths
    forget()
    return paths


def folders() -> tuple[Path, ...]:
    """Where logs are: ``TVMDML_TUNING_LOGS``, the user's own folder, the shipped ones. Of one key, the first folder's counts."""
    return (*_given(), user_folder(), *_shipped())


def user_folder() -> Path:
    """Where ``tvmdml tune`` keeps what it finds, unless told otherwise."""
    import platformdirs

    try:
        return Path(platformdirs.user_data_path("tvmdml", appauthor=False)) / "tuning_logs"
    except (OSError, RuntimeError, KeyError):  # no home
        return Path(sys.prefix) / "var" / "lib" / "tvmdml" / "tuning_logs"


def read(places: Iterable[Path]) -> Iterator[Record]:
    """The records of folders: of one key, the newest of the first folder that has one. Bad lines are warned of, and left out."""
    for folder in places:
        try:
            paths = log_files.files(folder)
        except OSError as error:  # another user's, for a service that has kept its HOME
            what = f"the tuning logs in {folder} cannot be read ({error.strerror}); they are left out."
            stores.warn_once(str(folder), f"tvmdml: {what}")
            continue
        yield from log_files.newest(_warned_of(log_files.read_all(paths, _MOST_BAD))).values()


def _warned_of(lines: Iterable[log_files.Line]) -> Iterator[Record]:
    bad: Counter[Path] = Counter()
    for line in lines:
        if line.record is not None:
            yield line.record
            continue
        bad[line.path] += 1
        if bad[line.path] <= _MOST_WARNINGS or not line.raw:  # it is about the file
            stores.warn_once(line.where, f"tvmdml: {line.where}: left out of the tuning logs: {line.problem}")
    for path, count in bad.items():
        if count > _MOST_WARNINGS:
            more = f"{path}: {count - _MOST_WARNINGS} more lines are left out of the tuning logs"
            stores.warn_once(more, f"tvmdml: {more}: `tvmdml tuning validate` lists them.")


def _given() -> Iterator[Path]:
    for text in os.environ.get("TVMDML_TUNING_LOGS", "").split(os.pathsep):
        if not text.strip():
            continue
        folder = Path(text)
        with contextlib.suppress(RuntimeError):  # a ~ for nobody's home is a name like any other
            folder = folder.expanduser()
        try:
            found = folder.is_dir()
        except (OSError, ValueError):  # nobody may look there, or nothing can be called so
            found = False
        if found:
            yield folder
        else:
            what = f"{text!r} is no folder; it is left out."
            stores.warn_once(f"TVMDML_TUNING_LOGS {text}", f"tvmdml: TVMDML_TUNING_LOGS: {what}")


@functools.cache
def _shipped() -> tuple[Path, ...]:
    # Not by importlib.resources, whose import takes longer than reading the logs.
    spec = importlib.util.find_spec("tvmdml.tuning_logs")
    return tuple(map(Path, spec.submodule_search_locations or ())) if spec else ()

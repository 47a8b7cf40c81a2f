"""Records, and the results of lookups, as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.errors import counted
from tvmdml.library import log_files, logs
from tvmdml.library.log_terms import Machine, Record, ShapeClass
from tvmdml.library.logs import AppliedRecord, Logs
from tvmdml.operators import tuned_as
from tvmdml.system.console import Row, shown_seconds

if TYPE_CHECKING:
    from tvmdml.operators import Operator
    from tvmdml.operators._contract import Shared

COLUMNS = ("shape class", "types", "knobs", "median", "default", "ratio", "trials", "date")


def tables(found: Iterable[tuple[Record, Path]]) -> Iterator[tuple[str, list[Row]]]:
    """A heading and rows for each operator on each machine, by folder: names of machines are too long for a column."""
    grouped: dict[tuple[Path, Machine, str], list[Row]] = defaultdict(list)
    for record, folder in found:
        grouped[folder, record.machine, record.operator].append(row(record))
    for (folder, machine, operator), rows in grouped.items():
        yield f"{operator} on {log_files.slug(machine)}, in {folder}", rows


def row(record: Record) -> Row:
    """A record as a row of a table."""
    return {
        "shape class": shown_members(record.shape_class),
        "types": " ".join(record.types.values()),
        "knobs": shown_knobs(record),
        "median": shown_seconds(record.seconds),
        "default": shown_seconds(record.default_seconds),
        "ratio": f"{record.ratio:.2f}",
        "trials": record.trials,
        "date": record.date[:10],
    }


def as_json(record: Record) -> dict[str, Any]:
    """A record as JSON, for programs."""
    return {**record._asdict(), "machine": record.machine._asdict()}


def shown_members(members: Mapping[str, int | str]) -> str:
    """``k=64 length=32768``."""
    return " ".join(f"{name}={value}" for name, value in sorted(members.items()))


def shown_knobs(record: Record) -> str:
    """The winning knobs that differ from the defaults."""
    return shown_members(record.knobs) or "the defaults"


class LogAnswer(NamedTuple):
    """The logs' answer for an operation."""

    operator: str
    machine: Machine
    types: Mapping[str, str]
    shape_class: ShapeClass
    found: AppliedRecord | None
    distance: int | None
    """The distance from the class of the record that was found."""
    why: str
    """Why no record was found."""

    @classmethod
    def of(cls, known: Logs, desc: Operator, shared: Shared, machine: Machine) -> LogAnswer:
        """Look up an operation."""
        operator, types, shape_class = tuned_as(type(desc)), logs.types_of(desc), logs.class_of(desc, shared)
        if (found := known.find(operator, desc, shared, machine)) is not None:
            return cls(operator, machine, types, shape_class, found, logs.distance(shape_class, found.record.shape_class), "")
        return cls(operator, machine, types, shape_class, None, None, _why(known, operator, machine, types, shape_class))

    def json(self) -> dict[str, Any]:
        """As JSON, for programs."""
        found = None if self.found is None else {**self.found._asdict(), "record": as_json(self.found.record)}
        return {**self._asdict(), "machine": self.machine._asdict(), "found": found}

    def text(self) -> str:
        """As text, for people."""
        types = shown_members(self.types)
        head = f"{self.operator} on {log_files.slug(self.machine)}: {shown_members(self.shape_class)}; {types}"
        if self.found is None:
            return f"{head}\nno record, so the defaults are used: {self.why}"
        record = self.found.record
        which = "exact" if self.found.exact else f"nearest, {self.distance} away: {shown_members(record.shape_class)}"
        times = f"{shown_seconds(record.seconds)}, the defaults {shown_seconds(record.default_seconds)}: ratio {record.ratio:.2f}"
        knobs, trials = shown_knobs(record), counted(record.trials, "trial")
        return f"{head}\n{which}\nknobs: {knobs} ({self.found.hash})\n{times} ({trials}, {record.date})"


def _why(known: Logs, operator: str, machine: Machine, types: Mapping[str, str], shape_class: ShapeClass) -> str:
    """The first property in which all records differ from the operation."""
    left = [record for record in known.records if record.operator == operator]
    if logs.are_off() and not known.records:
        return "TVMDML_TUNING=0 disables all logs."
    if not left:
        return f"the logs have no records of {operator}."
    others = left
    if not (left := [record for record in left if record.machine == machine]):
        return f"the logs have records for other machines: {_some(log_files.slug(record.machine) for record in others)}."
    others = left
    if not (left := [record for record in left if record.types == types]):
        return f"the logs have records for other types: {_some(shown_members(record.types) for record in others)}."
    near = {shown_members(record.shape_class): logs.distance(shape_class, record.shape_class) for record in left}
    limit = logs.NEAREST if known.nearest else 0
    if all(far is None or far > limit for far in near.values()):
        return f"the logs have records for other shape classes, but none within distance {limit}: {_some(near)}."
    return "the logs' knobs for it are no longer accepted by any schedule."


def _some(texts: Iterable[str]) -> str:
    found = list(dict.fromkeys(texts))
    return "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")

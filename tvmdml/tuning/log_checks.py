"""Whether a record is still valid for what is installed now; its syntax is checked elsewhere."""

from __future__ import annotations

import contextlib

from tvmdml import targets
from tvmdml.errors import TvmdmlError, message
from tvmdml.kernels import knobs
from tvmdml.library import lines, logs
from tvmdml.library.log_terms import Record
from tvmdml.library.stamps import source_stamp
from tvmdml.operators import _shared, tuned_as
from tvmdml.targets import Target


def outdated(record: Record) -> str:
    """Why a record cannot be used any more; empty if it can be used.

    A schedule must accept its knobs, and its operator, types and shape class must be those of the operation that was measured.
    """
    measured = dict(record.measured)
    in_place = measured.pop("in_place", False)
    try:
        knobs.check(record.operator, record.knobs)
        desc = lines.read(measured, "measured")
        shared = _shared.read(desc, in_place, "measured")
    except (TvmdmlError, RecursionError) as error:
        return str(error)
    found = {
        "operator": (record.operator, tuned_as(type(desc))),
        "types": (record.types, logs.types_of(desc)),
        "shape_class": (record.shape_class, logs.class_of(desc, shared)),
    }
    differs = (message(name, given, f"{own}, as measured") for name, (given, own) in found.items() if given != own)
    return next(differs, "") or _constraint(record)


def _constraint(record: Record) -> str:
    """The constraint that the knobs violate on the machine where they were measured."""
    target = _target(record)
    turned = None if target is None else knobs.of(record.operator, target)
    broken = "" if turned is None else turned.allowed(record.knobs, target)
    return message(f"{record.operator} knobs", dict(record.knobs), broken) if broken else ""


def has_other_schedules(record: Record) -> bool:
    """Whether the operator's schedules have changed since the record: it is valid, but other knobs might win now."""
    stamp, target = record.versions.get("schedules"), _target(record)
    return stamp is not None and target is not None and source_stamp(record.operator, target) != stamp


def _target(record: Record) -> Target | None:
    """The record's target, if it can be determined here."""
    with contextlib.suppress(TvmdmlError):
        return targets.elsewhere(record.machine.target)[0]
    return None

"""The cases of all files of rows, for each kind of target: each may have its own goals."""

from __future__ import annotations

import functools

from tvmdml.proof.bench import rows
from tvmdml.proof.bench.cases import Case


@functools.cache
def of(kind: str) -> tuple[Case, ...]:
    """The table for a kind of target; kinds without their own table use the processor's. Cases of the same row are together."""
    files = [rows.load(name) for name in rows.modules()]
    own = [case for file in files for case in getattr(file, "CASES_ON", {}).get(kind, ())]
    found = own or [case for file in files for case in getattr(file, "CASES", ())]
    places = {row: place for place, row in enumerate(dict.fromkeys(case.row for case in found))}
    return tuple(sorted(found, key=lambda case: places[case.row]))


def select(full: bool = False, operators: tuple[str, ...] = (), text: str = "", kind: str = "cpu") -> list[Case]:
    """The cases of a set, for these operators (empty for all), with this text in their names."""
    return [
        case
        for case in of(kind)
        if (full or case.quick) and (not operators or case.work.operator in operators) and text.lower() in case.name.lower()
    ]

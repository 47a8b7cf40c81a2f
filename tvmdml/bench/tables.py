"""Which table of cases applies to which kind of target: each has its own goals."""

from __future__ import annotations

from tvmdml.bench import cases, cuda_cases
from tvmdml.bench.cases import Case

_TABLES = {"cuda": cuda_cases}
_OTHERS = cases


def of(kind: str) -> tuple[Case, ...]:
    """The table for a kind of target; kinds without their own table use the processor's."""
    table: tuple[Case, ...] = getattr(_TABLES.get(kind, _OTHERS), "CASES")  # noqa: B009 - modules of one form
    return table


def select(full: bool = False, operators: tuple[str, ...] = (), text: str = "", kind: str = "cpu") -> list[Case]:
    """The cases of a set, for these operators (empty for all), with this text in their names."""
    return [
        case
        for case in of(kind)
        if (full or case.quick) and (not operators or case.work.operator in operators) and text.lower() in case.name.lower()
    ]

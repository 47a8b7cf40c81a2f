"""Geometric means of a run's ratios to its best peers: of all, of an operator, of a family."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tvmdml import operators
from tvmdml.proof.bench.results import CaseResult


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """The geometric mean; ``None`` if there are no ratios."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.fmean(logarithms)) if logarithms else None


class Compared(NamedTuple):
    """Results that have a ratio to a peer, of an operator or of a family."""

    name: str
    results: list[CaseResult]

    @property
    def mean(self) -> float:
        """The geometric mean of the ratios."""
        return geometric_mean(result.ratio or 0.0 for result in self.results) or 0.0

    @property
    def lowest(self) -> CaseResult:
        """The one with the lowest ratio."""
        return min(self.results, key=lambda result: result.ratio or 0.0)


def families(results: Iterable[CaseResult]) -> list[Compared]:
    """The results that were compared with peers, by the family of their operator, in the order of names."""
    return _grouped(results, lambda result: family(result.work["operator"]))


def each_operator(results: Iterable[CaseResult]) -> list[Compared]:
    """The same by operator."""
    return _grouped(results, lambda result: result.work["operator"])


def family(operator: str) -> str:
    """``top k``: an operator's family, or its own name if it has none, or if a file of another version has the operator."""
    known = operators.all_operators().get(operator)
    return (operators.tuned_as(known) if known else operator.lower()).replace("_", " ")


def _grouped(results: Iterable[CaseResult], key: Callable[[CaseResult], str]) -> list[Compared]:
    found: dict[str, list[CaseResult]] = {}
    for result in results:
        if result.ratio is not None and not result.against_base and not result.failures:
            found.setdefault(key(result), []).append(result)
    return [Compared(name, found[name]) for name in sorted(found)]

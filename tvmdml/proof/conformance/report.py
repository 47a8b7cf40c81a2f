"""``Report``: the outcomes of all checks, as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tvmdml import operators, targets
from tvmdml.enums import FeatureLevel
from tvmdml.proof.bench import results
from tvmdml.proof.bench.results import now, versions
from tvmdml.proof.conformance.checks import FAILED, NOT_RUN, PASSED, VERDICTS, CheckOutcome
from tvmdml.proof.conformance.terms import CASES, RULES
from tvmdml.system.console import Row

FORMAT = 1
"""Incremented when the meaning of the JSON changes."""
COLUMNS = ("operator", "target", "rules", "cases", "models", "onnx")
FAMILIES = ("family", "operators", *COLUMNS[1:])
_FEW = 12
"""From more operators on, the table has a row for each family."""
_SHOWN = 50
"""The most failures that are printed; the JSON contains all."""


def machine() -> dict[str, Any]:
    """This machine: the processor and the system, every device with its driver, and the versions of the packages involved."""
    import tvmdml

    devices = [row for kind in targets.kinds() for row in targets.target_class(kind).devices()]
    return {"tvmdml": tvmdml.__version__, "versions": versions(), **results.machine(), "devices": devices}


@dataclasses.dataclass
class Report:
    """The outcomes of a run."""

    targets: tuple[str, ...]
    seed: int
    level: FeatureLevel
    outcomes: list[CheckOutcome]
    left: int = 0
    """The number of checks that did not run because of an interrupt."""
    cases: int = 0
    """The reference cases that there are, of which some may be drawn."""
    machine: dict[str, Any] = dataclasses.field(default_factory=machine)
    made: str = dataclasses.field(default_factory=now)

    @property
    def failed(self) -> list[CheckOutcome]:
        """The failed checks."""
        return [outcome for outcome in self.outcomes if outcome.verdict == FAILED]

    @property
    def idle(self) -> list[str]:
        """Targets that ran none of their kernels. (That rules are checked correctly says nothing about a device.)"""
        kernels = [outcome for outcome in self.outcomes if outcome.part != RULES and not self.left]
        ran = {outcome.target for outcome in kernels if outcome.verdict != NOT_RUN}
        return list(dict.fromkeys(outcome.target for outcome in kernels if outcome.target not in ran))

    @property
    def ok(self) -> bool:
        """Whether no check failed, and kernels ran on every target."""
        return not (self.failed or self.idle) and any(outcome.verdict == PASSED for outcome in self.outcomes)

    def counts(self) -> dict[tuple[str, str, str], Counter[str]]:
        """The number of each verdict, by operator, target and part."""
        found: dict[tuple[str, str, str], Counter[str]] = {}
        for outcome in self.outcomes:
            found.setdefault((outcome.operator, outcome.target, outcome.part), Counter())[outcome.verdict] += 1
        return found

    def rows(self) -> Iterator[Row]:
        """A row for each operator on each target, by ``COLUMNS``."""
        counts = self.counts()
        for target in self.targets:
            for operator in operators.all_operators():
                cells = {part: _cell(counts.get((operator, target, part), Counter())) for part in COLUMNS[2:]}
                if any(cells.values()):
                    yield {"operator": operator, "target": target, **{part: cell or "-" for part, cell in cells.items()}}

    def families(self) -> Iterator[Row]:
        """A row for each family of operators on each target, by ``FAMILIES``."""
        counts = self.counts()
        for target in self.targets:
            members: dict[str, list[str]] = {}
            for name, cls in operators.all_operators().items():
                if any((name, target, part) in counts for part in COLUMNS[2:]):
                    members.setdefault(operators.tuned_as(cls), []).append(name)
            for family, names in members.items():
                cells = {
                    part: _cell(sum((counts.get((name, target, part), Counter()) for name in names), Counter()))
                    for part in COLUMNS[2:]
                }
                said = {part: cell or "-" for part, cell in cells.items()}
                yield {"family": family, "operators": len(names), "target": target, **said}

    def summary(self, parts: Sequence[str]) -> tuple[tuple[str, ...], Iterator[Row]]:
        """The table for people: its columns, and a row for each operator, or of many operators for each family."""
        few = len({outcome.operator for outcome in self.outcomes}) <= _FEW
        return (*(COLUMNS[:2] if few else FAMILIES[:3]), *parts), self.rows() if few else self.families()

    def json(self) -> dict[str, Any]:
        """The report as JSON."""
        keys = ("operator", "target", "part")
        return {
            "format": FORMAT,
            "made": self.made,
            "machine": self.machine,
            "targets": list(self.targets),
            "seed": self.seed,
            "feature_level": str(self.level),
            "left": self.left,
            "cases": self.cases,
            "counts": [
                {**dict(zip(keys, where, strict=True)), **{verdict: count[verdict] for verdict in VERDICTS}}
                for where, count in sorted(self.counts().items())
            ],
            **{verdict: [_told(outcome) for outcome in sorted(self._of(verdict))] for verdict in (FAILED, NOT_RUN)},
        }

    def lines(self) -> Iterator[str]:
        """The lines after the table: the machine, the reasons for checks that were not run, the failures, and the totals."""
        about = self.machine
        tvm = about["versions"].get("apache-tvm", "none")
        yield f"tvmdml {about['tvmdml']}, TVM {tvm}, Python {about['versions']['python']}, {about['system']}, {about['cpu']}"
        kinds = {target.partition(":")[0] for target in self.targets}
        shown = [row for row in about["devices"] if row["target"] in self.targets or str(row["target"]).partition(":")[0] in kinds]
        yield from (f"{row['target']}: {row['device']}; {row['state']}" for row in shown)
        for why, count in Counter(f"{one.part} on {one.target}: {one.said}" for one in self._of(NOT_RUN)).items():
            yield f"not run: {count} {why}"
        yield from (f"FAILED: {target} ran no kernels" for target in self.idle)
        failed = sorted(self.failed)
        for one in failed[:_SHOWN]:
            yield f"FAILED: {one.operator} on {one.target}, {one.part}: {one.what}, seed {self.seed}: {one.said}"
        if len(failed) > _SHOWN:
            yield f"and {len(failed) - _SHOWN} more; --json writes all"
        drawn = len({(one.operator, one.what) for one in self.outcomes if one.part == CASES})
        if drawn < self.cases and not self.left:
            yield f"drawn: {drawn} of {self.cases} cases, of every operator, with seed {self.seed}; --every-case runs all"
        all_of_it = Counter(outcome.verdict for outcome in self.outcomes)
        said = ", ".join(f"{all_of_it[verdict]} {verdict}" for verdict in VERDICTS)
        yield said + (f"; interrupted: {self.left} checks were not run" if self.left else "")

    def _of(self, verdict: str) -> list[CheckOutcome]:
        return [outcome for outcome in self.outcomes if outcome.verdict == verdict]


def _cell(count: Counter[str]) -> str:
    """``27 passed``, ``1 failed, 26 passed``; empty if there is nothing."""
    return ", ".join(f"{count[verdict]} {verdict}" for verdict in (FAILED, PASSED, NOT_RUN) if count[verdict])


def _told(outcome: CheckOutcome) -> dict[str, str]:
    return {
        "operator": outcome.operator,
        "target": outcome.target,
        "part": outcome.part,
        "what": outcome.what,
        "said": outcome.said,
    }

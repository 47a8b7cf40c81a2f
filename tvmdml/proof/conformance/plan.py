"""``CheckPlan``: the checks to run, and their targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tvmdml import operators, targets
from tvmdml.enums import FeatureLevel
from tvmdml.errors import DeviceError, InvalidArgument, Unsupported, message
from tvmdml.operators import Operator
from tvmdml.proof.conformance import drawing, models, references, rules, running
from tvmdml.proof.conformance.checks import Check, CheckOutcome
from tvmdml.proof.conformance.terms import PARTS, SEED
from tvmdml.system import imports, installing

_SEEDS = 1 << 64


class CheckPlan(NamedTuple):
    """The checks to run."""

    targets: tuple[str, ...]
    checks: tuple[Check, ...]
    """The checks, which run on each of the targets."""
    seed: int
    level: FeatureLevel
    isolated: bool
    cases: int = 0
    """The reference cases that there are; ``checks`` may have some of them."""

    @property
    def total(self) -> int:
        """The total number of outcomes."""
        return len(self.targets) * len(self.checks)

    def outcomes(self) -> Iterator[CheckOutcome]:
        """Run the checks, one target after the other."""
        for target in self.targets:
            yield from running.outcomes(self.checks, target, self.seed, self.isolated)


def here() -> tuple[str, ...]:
    """The targets of this machine: its processor, and every working device."""
    found = []
    for kind in targets.kinds():
        rows = targets.target_class(kind).devices()
        for name in [kind] if kind == "cpu" else [row["target"] for row in rows if row["device"] != "none"]:
            try:
                targets.resolve(name).home.wait()
            except DeviceError:
                continue
            found.append(name)
    return tuple(found)


def plan(
    devices: Sequence[str] = (),
    names: Iterable[str] = (),
    *,
    parts: Iterable[str] = PARTS[:3],
    seed: int = SEED,
    feature_level: str | FeatureLevel | None = None,
    isolated: bool = True,
    every_case: bool = False,
) -> CheckPlan:
    """The plan for ``conformance.run``, with the same arguments."""
    parts, level = tuple(parts), FeatureLevel.of(feature_level)
    for part in parts:
        if part not in PARTS:
            raise InvalidArgument(message("conformance part", repr(part), ", ".join(PARTS)))
    if not 0 <= seed < _SEEDS:
        raise InvalidArgument(message("conformance seed", seed, f"0 to {_SEEDS - 1}"))
    if not imports.version("apache-tvm"):
        raise Unsupported(
            f"conformance compiles every kernel, and the compiler is not installed: {installing.command('compiler')}."
        )
    where = tuple(dict.fromkeys(_answering(device) for device in devices)) or here()
    named = list(dict.fromkeys(_there(operators.by_name(name), level) for name in names))
    wanted = named or list(operators.all_operators())
    found: list[Check] = list(rules.checks(wanted, level)) if "rules" in parts else []
    cases = list(references.checks(wanted, level)) if "cases" in parts else []
    found += cases if named or every_case else drawing.drawn(cases, seed)
    found += models.checks(wanted, level) if "models" in parts else []
    if "onnx" in parts:
        from tvmdml.proof.conformance import onnx_cases

        found += onnx_cases.checks(wanted, level)
    return CheckPlan(where, tuple(found), seed, level, isolated, len(cases))


def _answering(device: str) -> str:
    """A target's own name, after a check that the device works."""
    found = targets.resolve(device, "conformance device")
    found.home.wait()
    return found.name if found.moves else device


def _there(operator: type[Operator], level: FeatureLevel) -> str:
    if level < operator.feature_level():
        allowed = f"{operator.feature_level()} and above: that level introduced the operator"
        raise InvalidArgument(message(f"conformance feature_level for {operator.NAME}", level, allowed))
    return operator.NAME

"""Some of the cases that `tvmdml conformance --device vulkan` draws, one of each operator before a second: for `drivers.sh`."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator, Sequence

from tvmdml import targets
from tvmdml.proof.conformance import plan, terms
from tvmdml.proof.conformance.checks import Check
from tvmdml.proof.conformance.references import ReferenceCase
from tvmdml.proof.conformance.report import Report
from tvmdml.schedules.gpu import _NEEDS as NEEDS
from tvmdml.targets import Target


def main(count: int) -> int:
    """Run so many cases of those whose types the device has, or all for 0; the exit code is 1 if any failed."""
    wanted = plan.plan(["vulkan"], parts=[terms.CASES])
    if count:
        target = targets.resolve("vulkan")
        some = [one for one in wanted.checks if _has_types(target, one)]
        wanted = wanted._replace(checks=tuple(itertools.islice(in_turn(some, wanted.seed), count)))
    report = Report(wanted.targets, wanted.seed, wanted.level, list(wanted.outcomes()), cases=wanted.cases)
    sys.stdout.write("".join(f"{line}\n" for line in report.lines() if not count or not line.startswith("not run")))
    return not report.ok


def _has_types(target: Target, check: Check) -> bool:
    assert isinstance(check, ReferenceCase)
    types = {tensor.data_type.tvm for _, tensor in check.case.desc.tensors() if tensor is not None}
    return all(target.has(feature) for one in types for feature, _ in [NEEDS.get(one.removeprefix("u"), ("", ""))] if feature)


def in_turn(checks: Sequence[Check], seed: int) -> Iterator[Check]:
    mixed = random.Random(seed).sample(checks, len(checks))
    mixed.sort(key=lambda check: check.operator)
    rows = [list(own) for _, own in itertools.groupby(mixed, lambda check: check.operator)]
    random.Random(seed).shuffle(rows)
    return (check for turn in itertools.zip_longest(*rows) for check in turn if check is not None)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

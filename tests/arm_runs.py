"""A pack for 64-bit Arm and this machine, what its kernels give on Arm, and whether they give it here: for ``arm.sh``.

``build PACK CASES`` draws operations from the conformance cases. ``run PACK RESULTS``, on Arm, verifies the pack by the reference
and keeps digests of what each launch gave. ``compare PACK RESULTS`` verifies it here, with the same input.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tvmdml import packs
from tvmdml.library.spec import Spec, Wanted, once
from tvmdml.operators._trial import OperatorTrial
from tvmdml.packs.verify import PackReport, verify
from tvmdml.proof.conformance.references import ReferenceCase, line
from tvmdml.targets.cpu import host, threads

Digests = dict[str, list[list[str]]]
"""By operation, of each launch: of its outputs, and of the same with one kind of NaN."""
HERE = ("x86-64-v3", "x86-64")
"""The levels that are compared with, the best first."""
SAME, NANS, OTHER = "this machine's bits", "other bits of NaN", "other bits"


def build(path: Path, count: int) -> bool:
    """A pack of so many drawn cases, or all for 0."""
    from drawn_conformance import in_turn

    from tvmdml.proof.conformance import plan, terms

    wanted = plan.plan(["cpu"], parts=[terms.CASES])
    some = itertools.islice(in_turn(wanted.checks, wanted.seed), count or None)
    operations = once(Wanted(check.case.desc, check.case.shared) for check in some if isinstance(check, ReferenceCase))
    level = next(level for level in HERE if host.host().runs(host.parse(level, here=False)))
    built = packs.build(Spec(targets=("cpu:aarch64", f"cpu:{level}"), wanted=operations), path)
    operators = {wanted.desc.NAME for wanted in operations}
    _say(f"{len(operations)} operations of {len(operators)} operators, for aarch64 and {level}: {built.kernels} kernels")
    return True


def run(pack: Path, results: Path) -> bool:
    """Verify the pack where this runs, and write what each launch gave."""
    report, digests = _verified(pack)
    results.write_text(json.dumps(digests))
    _say(f"Python {sys.version.split()[0]} on {host.host().level}, {threads.state()}: {report.text()}")
    return report.ok and threads.native() is not None


def compare(pack: Path, results: Path) -> bool:
    """Verify the pack here, and say which launches gave the same bits on Arm."""
    there: Digests = json.loads(results.read_text())
    report, here = _verified(pack)
    _say(f"here: {report.text()}")
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for title, launches in there.items():
        whole, plain = zip(*here.get(title, [["", ""]]), strict=True)
        operator = title.split('"')[1]
        kinds[operator].update(SAME if a in whole else NANS if b in plain else OTHER for a, b in launches)
    total: Counter[str] = sum(kinds.values(), Counter())
    _say(f"{len(there)} operations of {len(kinds)} operators in {total.total()} launches on Arm: {_counted(total)}")
    for operator, own in sorted(kinds.items()):
        if own[OTHER]:
            _say(f"  {operator}: {_counted(own)}")
    return report.ok and here.keys() == there.keys()


def _verified(pack: Path) -> tuple[PackReport, Digests]:
    """What ``pack verify`` reports, and digests of each launch's outputs."""
    digests: Digests = defaultdict(list)
    problem = OperatorTrial.problem

    def noted(trial: OperatorTrial, places: Any) -> str:
        outputs = [places[name].array for name in places if name not in trial._inputs]
        digests[line(trial._desc, tuple(trial._same.items()))].append([_digest(outputs), _digest(map(_plain, outputs))])
        return problem(trial, places)

    OperatorTrial.problem = noted  # type: ignore[method-assign]
    return verify(pack, seed=0), digests


def _digest(arrays: Any) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def _plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """With one kind of NaN."""
    return np.where(np.isnan(array), np.array(np.nan, array.dtype), array) if array.dtype.kind == "f" else array


def _counted(kinds: Counter[str]) -> str:
    return ", ".join(f"{kinds[kind]} {kind}" for kind in (SAME, NANS, OTHER) if kinds[kind])


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    command, pack, last = sys.argv[1:]
    done = build(Path(pack), int(last)) if command == "build" else {"run": run, "compare": compare}[command](Path(pack), Path(last))
    sys.exit(not done)

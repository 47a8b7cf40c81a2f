"""Runs checks in separate processes, because a wrong kernel may crash or damage its process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from tvmdml.proof.conformance.checks import FAILED, NOT_RUN, Check, CheckOutcome, perform
from tvmdml.system.workers import Failure, Workers

TIMEOUT = 300.0
"""The most seconds for a check, including the compilation of its kernel."""
MOST_LOST = 20
"""The number of processes that may die, hang or lose their device before the remaining checks are given up."""
_MOST_WORKERS = 4
# The default knobs are used, so that reports of machines with different tuning can be compared.
_ENVIRONMENT = {"TVMDML_TUNING": "0"}


def outcomes(checks: Sequence[Check], target: str, seed: int, isolated: bool) -> Iterator[CheckOutcome]:
    """The outcome of each check on a target, in the order in which they finish."""
    if not isolated:
        yield from (perform(check, target, seed) for check in checks)
        return
    left, lost = dict(enumerate(checks)), 0
    count = max(1, min(_MOST_WORKERS, len(os.sched_getaffinity(0)), len(checks)))
    with Workers(count, _ENVIRONMENT, TIMEOUT) as workers:
        calls = [(check, target, seed) for check in checks]
        for number, answer in workers.map(perform, calls, spoils=lambda outcome: outcome.spoiled):
            check = left.pop(number)
            if isinstance(answer, Failure):
                answer = check.outcome(target, FAILED, answer.problem, spoiled=True)
            lost += answer.spoiled
            yield answer
            if lost >= MOST_LOST:
                break
    for check in left.values():
        yield check.outcome(target, NOT_RUN, f"stopped after {lost} processes that crashed, hung or lost their device")

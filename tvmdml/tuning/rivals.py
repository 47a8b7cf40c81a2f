"""Winners compared with other libraries: each runs once more, here and now, beside the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tvmdml import targets
from tvmdml.library import knobs, lines
from tvmdml.library.log_terms import Tuned
from tvmdml.operators import _shared
from tvmdml.proof.bench import measure, peers, runner, work
from tvmdml.proof.bench.cases import Case
from tvmdml.proof.bench.results import ContenderResult
from tvmdml.proof.bench.work import Work
from tvmdml.targets import Target
from tvmdml.tuning.display import title


class Rival(NamedTuple):
    """The best library for the same work as a winner."""

    name: str
    """``torch topk, 2 threads``."""
    seconds: float
    """Its median time of a call."""
    ours: float
    """The winner's, measured in turns with it."""

    @property
    def ratio(self) -> float:
        """How many times as fast as the library the winner is."""
        return self.seconds / self.ours


def peers_of(tuned: Sequence[Tuned], note: Callable[[str], None]) -> dict[int, Rival]:
    """Compare each winner for this processor with the installed libraries that do the same work.

    Args:
        tuned: finished jobs.
        note: receives those that have no peer, and why.

    Returns:
        The best peers, by the jobs' indices in ``tuned``.
    """
    if missing := peers.absent("cpu"):
        note(f"not installed, so not compared with: {', '.join(missing)}")
    found = {}
    for place, one in enumerate(tuned):
        outcome = _best(one)
        if isinstance(outcome, Rival):
            found[place] = outcome
        else:
            note(f"{title(one.job)}: no peer: {outcome}")
    return found


def _best(tuned: Tuned) -> Rival | str:
    """The best peer, or the reason why there is none."""
    job = tuned.job
    if job.target.partition(":")[0] != "cpu":
        return "libraries are compared only on the CPU"
    target = targets.resolve(job.target)
    if target.machine() != tuned.machine:
        return "it was tuned for another machine than this one"
    desc = lines.read(job.line, "job")
    wanted = work.of(desc, _shared.read(desc, job.in_place, "job"))
    if wanted is None:
        return "the bench does not support this operation"
    return _raced(wanted, tuned, target)


def _raced(wanted: Work, tuned: Tuned, target: Target) -> Rival | str:
    options = runner.Options(measure.QUICK, target=target)
    with knobs.untuned(), knobs.using(**{tuned.record.operator: tuned.record.knobs}):
        result = runner.measured(Case("tuning", title(tuned.job), wanted), options)
    if result.failures:
        return result.failures[0]
    if result.ours is None or result.best is None:
        return "no installed library does this"
    return Rival(_who(result.best), result.best.seconds, result.ours.seconds)


def _who(entry: ContenderResult) -> str:
    return f"{entry.library} {entry.name}" + (f", {entry.threads} threads" if entry.threads > 1 else "")

"""``tune``: from operations to records in a log."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import tvmdml
from tvmdml import functions, operators, targets
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.errors import CompileError, InvalidArgument, Unsupported, counted, message, safe_repr
from tvmdml.library import lines, log_folders, logs
from tvmdml.library.log_terms import Job, Knobs, Machine, Outcome, Record, Trial, Tuned
from tvmdml.library.scheduling import kernel_for
from tvmdml.library.spec import Wanted
from tvmdml.library.stamps import source_stamp
from tvmdml.operators import Operator, _shared
from tvmdml.system import imports
from tvmdml.targets import Target
from tvmdml.tuning.display import Display, Silent
from tvmdml.tuning.lab import Lab, LocalLab
from tvmdml.tuning.search import Search
from tvmdml.tuning.session import Session
from tvmdml.tuning.session import folder as sessions
from tvmdml.tuning.space import Space

TRIALS = 64
"""The default number of candidates to try."""
PROMISING = 12
"""The best candidates of short trials, which are timed again: the first of many is also the luckiest."""
FINALISTS = 4
"""The best of those, which are timed thoroughly and together."""
GAIN = 1.02
"""The minimum speed-up of a winner: a smaller one may be chance, and the defaults are tested best."""
WORST = 0.98
"""The minimum speed-up of a winner on its worst input."""
MAY_BE = 0.9
"""The minimum speed-up in a short trial that may become ``WORST`` in a longer one."""
AS_GOOD = 0.99
"""Candidates with this fraction of the best ratio count as equally good: the simplest of them is taken."""
MOST_SEED = 1 << 30
_LONG = 16
"""Before so many trials, the display is told what they may gain."""
_DISPLAY = ("begin", "trial", "note", "end")
_IDLE_ROUNDS = 16
"""The number of consecutive times that the search may propose nothing new."""


def tune(
    operations: Operator | Wanted | Iterable[Operator | Wanted],
    *,
    target: str | Target = "cpu",
    trials: int = TRIALS,
    folder: str | os.PathLike[str] | None = None,
    tracker: str | None = None,
    key: str | None = None,
    display: Display | None = None,
    fresh: bool = False,
    seed: int = 0,
) -> list[Tuned]:
    """Search for the knobs that make operations fastest on a target, and log the winners, which are then used here.

    Each candidate is compiled, checked bit for bit against the reference, and timed in turns with the defaults, in separate
    processes: a candidate that crashes, hangs or is wrong only costs its trial. The best are then timed again, together. Every
    finished trial is stored: the same call continues an interrupted run.

    Args:
        operations: descriptors; a ``packs.spec.Wanted`` states that one runs in place.
        target: the target, as for ``tvmdml.compile``. It must be present, or with a tracker, be a processor.
        trials: the maximum number of candidates for each; those of earlier runs count.
        folder: the folder for winners; by default the user's own logs, which are used automatically.
        tracker: ``host:port`` of a TVM RPC tracker: candidates run on its machines.
        key: the name of those machines at the tracker.
        display: receives the progress.
        fresh: discard earlier trials.
        seed: the random seed of the search.

    Returns:
        A ``Tuned`` for each operation, in order; its ``record`` has no knobs if the defaults were best. Of several operations,
        those that the target does not support, or whose defaults fail, are left out, and the display is told.

    Raises:
        InvalidArgument, Unsupported: an operation violates its contract, the target has no such kernel, or a number is invalid.
        CompileError: the defaults do not compile, or tuning needs packages that are not installed (the extra ``tune``).
        DeviceError: the device, or the tracker and its machines, cannot be used.
    """
    wanted = list(map(_wanted, [operations] if isinstance(operations, (Operator, Wanted)) else _several(operations)))
    if type(trials) is not int or trials < 1:
        raise InvalidArgument(message("tune trials", safe_repr(trials), "1 or more"))
    if type(seed) is not int or not 0 <= seed < MOST_SEED:
        raise InvalidArgument(message("tune seed", safe_repr(seed), f"0 to {MOST_SEED - 1}"))
    if display is not None and not all(callable(getattr(display, name, None)) for name in _DISPLAY):
        raise InvalidArgument(message("tune display", safe_repr(display), f"an object with the methods {', '.join(_DISPLAY)}"))
    if (tracker is None) != (key is None):
        raise InvalidArgument(message("tune", "a tracker or a key alone", "both", "A tracker knows machines by their key."))
    where, shown = here(target), display or Silent()
    kept = _writable(log_folders.user_folder() if folder is None else folder)
    place: Lab = LocalLab() if tracker is None or key is None else _fleet(where, tracker, key, shown)
    with place as lab:
        tuner = _Tuner(lab, where, trials, kept, shown, fresh, seed)
        return list(tuner.all(wanted))


def here(target: str | Target) -> Target:
    """A target on which candidates can be timed.

    Raises:
        InvalidArgument: it is not a target, or not present.
        DeviceError: this machine has no such device.
    """
    found = targets.resolve(target)
    if found.moves and not found.machine().processor:
        advice = "`tvmdml devices` lists the devices."
        raise InvalidArgument(message("tune target", str(target), f"a device of this machine, such as {found.kind}:0", advice))
    return found


def expected(operator: str, machine: Machine) -> str:
    """What a search may gain, as the logs' records of an operator say: those of the same target, if there are any."""
    known = [record for record in logs.installed().records if record.operator == operator]
    of_target = [record for record in known if record.machine.target == machine.target]
    ratios = sorted(record.ratio for record in of_target or known)
    if not ratios:
        return f"{operator}: no log has a record of it, so what a search gains is not known"
    gained = sum(ratio >= GAIN for ratio in ratios)
    where = "of this target" if of_target else "of other targets"
    return (
        f"{operator}: {counted(len(ratios), 'record')} {where}, {gained} of them with a gain: "
        f"times as fast as the defaults {statistics.median(ratios):.2f} in the middle, {ratios[-1]:.2f} at most"
    )


def _several(operations: object) -> Iterable[Any]:
    try:
        return iter(operations)  # type: ignore[call-overload]
    except TypeError:
        return [operations]  # this will be rejected


def _wanted(one: Operator | Wanted) -> Wanted:
    found = Wanted(one) if isinstance(one, Operator) else one
    if not isinstance(found, Wanted) or not isinstance(found.desc, Operator):
        raise InvalidArgument(message("tune operations", type(one).__name__, "operator descriptors, such as tvmdml.TopK1(…)"))
    found.desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    found = found._replace(desc=found.desc.unowned())  # knobs are of the operation, however its inputs are given
    return found._replace(shared=_shared.check(found.desc, found.shared, "tune operations"))


def _writable(folder: str | os.PathLike[str]) -> Path:
    """A folder for logs, created if necessary: it is better to fail now than after all measurements."""
    try:
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        if not os.access(place, os.W_OK):
            raise PermissionError(0, "it is not writable")
    except (OSError, TypeError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise InvalidArgument(message("tune folder", f"{folder!r} ({said})", "a writable folder")) from None
    return place


def _fleet(target: Target, tracker: str, key: str, display: Display) -> Lab:
    from tvmdml.tuning.fleet import Fleet

    return Fleet(tracker, key, target, cache=sessions(), note=display.note)


class _Tuner:
    def __init__(self, lab: Lab, target: Target, trials: int, folder: Path, display: Display, fresh: bool, seed: int) -> None:
        self._lab, self._target, self._trials, self._folder = lab, lab.target(target), trials, folder
        self._display, self._fresh, self._seed = display, fresh, seed
        self._machine = lab.machine(target)

    def all(self, wanted: Sequence[Wanted]) -> Iterator[Tuned]:
        """Tune operations one after the other."""
        for number, one in enumerate(wanted, 1):
            try:
                yield self.tuned(one, number, len(wanted))
            except (Unsupported, CompileError) as error:
                if len(wanted) == 1:
                    raise
                self._display.note(f"{one.desc.NAME} on {self._target}: left out: {error}")

    def tuned(self, wanted: Wanted, number: int, of: int) -> Tuned:
        """Tune an operation, and log the winner."""
        module = operators.tuned_as(type(wanted.desc))
        job = Job(lines.of(wanted.desc), _shared.write(wanted.desc, wanted.shared), self._target.name)
        session = Session(job, self._machine, source_stamp(module, self._target), fresh=self._fresh)
        with session.held():
            self._display.begin(job, number, of, self._trials, len(session.trials))
            found = self._earlier(job, session) or self._anew(wanted, job, session)
            self._display.end(found)
        return found

    def _earlier(self, job: Job, session: Session) -> Tuned | None:
        """The job's result, if it is already finished."""
        if (record := session.finished(self._trials)) is None:
            return None
        self._log(record)
        return Tuned(job, self._machine, record, tuple(session.trials))

    def _anew(self, wanted: Wanted, job: Job, session: Session) -> Tuned:
        space = Space(wanted.desc, wanted.shared, self._target)
        if space.default is None:  # the call raises the reason
            kernel_for(wanted.desc.canonical(), self._target, wanted.shared)
        try:
            self._search(job, space, session)
        except KeyboardInterrupt:
            self._display.note("interrupted: the best so far are timed once more and stored; Ctrl-C again stops that too")
            self._log(self._record(wanted, job, space, session))
            raise
        record = self._record(wanted, job, space, session)
        self._log(record)
        session.finish(self._trials, record)
        return Tuned(job, self._machine, record, tuple(session.trials))

    def _search(self, job: Job, space: Space, session: Session) -> None:
        """Try candidates until there are enough, or no more are left."""
        if not space.choices or len(session.trials) >= self._trials:
            return
        if self._trials - len(session.trials) >= _LONG:
            self._display.note(expected(space.operator, self._machine))
        search = Search(space, session.trials, batch=self._lab.batch, seed=self._seed + len(session.trials))
        best = max(session.trials, key=_ratio, default=None)
        idle = 0
        while (left := self._trials - len(session.trials)) > 0 and idle < _IDLE_ROUNDS:
            asked = search.ask()
            if not asked:
                return
            unknown = [one for one in asked if session.find(one.knobs) is None][:left]
            idle = 0 if unknown else idle + 1
            for place, outcome in self._lab.measure(job, [one.knobs for one in unknown]):
                trial = Trial(unknown[place].knobs, outcome)
                session.add(trial)
                best = max(filter(None, (best, trial)), key=_ratio)
                self._display.trial(trial, best)
            told = [(one, known.outcome) for one in asked if (known := session.find(one.knobs)) is not None]
            search.tell([one for one, _ in told], [outcome for _, outcome in told])

    def _record(self, wanted: Wanted, job: Job, space: Space, session: Session) -> Record:
        used = logs.installed().find(space.operator, wanted.desc, wanted.shared, self._machine)
        in_use = {} if used is None else used.record.knobs
        knobs, outcome = self._winner(wanted.desc.NAME, job, space, session.trials, in_use)
        return Record(
            operator=space.operator,
            machine=self._machine,
            types=logs.types_of(wanted.desc),
            shape_class=logs.class_of(wanted.desc, wanted.shared),
            knobs=knobs,
            seconds=_figure(outcome.seconds if knobs else outcome.default),
            spread=_figure(outcome.spread),
            default_seconds=_figure(outcome.default),
            trials=len(session.trials),
            versions={
                "tvmdml": tvmdml.__version__,
                "apache-tvm": imports.version("apache-tvm"),
                "schedules": source_stamp(space.operator, self._target),
            },
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            measured={**job.line, **({"in_place": job.in_place} if job.in_place else {})},
        )

    def _winner(self, name: str, job: Job, space: Space, trials: Sequence[Trial], in_use: Knobs) -> tuple[Knobs, Outcome]:
        """The best candidate after thorough timing, and again without those that it beats; the knobs in use take part.

        Knobs without a gain are reset to their defaults, those that matter least first, because the record must also suit similar
        shapes.
        """
        known = [trial for trial in trials if space.places(trial.knobs) is not None]
        promising = [trial for trial in sorted(known, key=_ratio, reverse=True) if _may_win(trial.outcome)][:PROMISING]
        again = dict(self._lab.measure(job, [trial.knobs for trial in promising])) if promising else {}
        ratios = {place: min(trial.outcome.ratio, again[place].ratio) for place, trial in enumerate(promising)}
        finalists = sorted(ratios, key=lambda place: ratios[place], reverse=True)[:FINALISTS]
        final = self._timed(name, job, space, [in_use, *(promising[place].knobs for place in finalists)])
        won = _best(final)
        if len(won) > 1:
            without = [(knob, _without(won, [knob])) for knob in won]
            timed = self._timed(name, job, space, [won, *(knobs for _, knobs in without)])
            costs = {knob: outcome.ratio for (knob, _), (_, outcome) in zip(without, timed[2:], strict=True)}
            least_first = sorted(won, key=lambda knob: costs[knob], reverse=True)
            final = self._timed(name, job, space, [_without(won, least_first[:count]) for count in range(len(won))])
            best = max(outcome.ratio for _, outcome in final)
            won = next((knobs for knobs, outcome in reversed(final) if _wins(outcome) and outcome.ratio >= AS_GOOD * best), {})
        elif won:
            final = self._timed(name, job, space, [won])
            won = _best(final)
        return won, next(outcome for knobs, outcome in final if knobs == won)

    def _timed(self, name: str, job: Job, space: Space, candidates: Sequence[Knobs]) -> list[tuple[Knobs, Outcome]]:
        """Thorough times of the defaults and then of candidates, beside each other: a shared kernel only once."""
        everybody: list[Knobs] = [{}, *candidates]
        decisions = [space.decide(knobs) for knobs in everybody]
        entered = {decision: knobs for decision, knobs in zip(decisions, everybody, strict=True) if decision is not None}
        outcomes = dict(self._lab.measure(job, list(entered.values()), thorough=True))
        found = {decision: outcomes[place] for place, decision in enumerate(entered)}
        if problem := outcomes[0].problem:
            raise CompileError(f"{name}: the defaults cannot be measured: {problem}.")
        none = Outcome(problem="breaks a constraint")
        return [(knobs, none if what is None else found[what]) for knobs, what in zip(everybody, decisions, strict=True)]

    def _log(self, record: Record) -> None:
        logs.add(self._folder, [record])
        functions.forget_plans()


def _ratio(trial: Trial) -> float:
    return trial.outcome.ratio


def _may_win(outcome: Outcome) -> bool:
    """Whether a short trial leaves a chance to win."""
    return outcome.ratio > 1 and outcome.worst >= MAY_BE


def _wins(outcome: Outcome) -> bool:
    """Whether it gains, by more than the measurement repeats."""
    return outcome.ratio >= max(GAIN, 1 + outcome.noise) and outcome.worst >= WORST


def _best(timed: Sequence[tuple[Knobs, Outcome]]) -> Knobs:
    """The winning knobs; empty if no candidate wins."""
    winners = [(knobs, outcome) for knobs, outcome in timed if knobs and _wins(outcome)]
    return max(winners, key=lambda one: one[1].ratio)[0] if winners else {}


def _figure(number: float) -> float:
    """Round to significant digits."""
    return float(f"{number:.4g}")


def _without(knobs: Knobs, names: Sequence[str]) -> Knobs:
    return {name: value for name, value in knobs.items() if name not in names}

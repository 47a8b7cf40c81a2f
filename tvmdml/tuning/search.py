"""The search: TVM's meta_schedule, over the knobs of a hand-written schedule.

meta_schedule samples the decisions of a schedule function, and keeps them as a trace, which it mutates, ranks by its cost model,
and stores with the times in its database. It assumes that each sampled decision transforms a loop nest at once. Our decisions are
made when the kernel is written, and one of them may be the algorithm, which is not a loop transformation. So the schedule function
here samples each knob, and records it as an annotation on a block that stands for the kernel; every replay of the trace keeps the
annotation. To build the candidate, the schedule writes the kernel for the annotated knobs. A postprocessor rejects a candidate that
violates a constraint, or has the same kernel as another candidate. A mutator changes one knob, more often to a neighbouring value
than to a distant one. The cost model sees the knobs in place of loops.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.errors import CompileError
from tvmdml.library.log_terms import Knobs, Outcome, Trial
from tvmdml.system import imports, installing
from tvmdml.tuning.space import Space

_BLOCK = "knobs"
_NEIGHBOUR = 0.6
"""The probability that a mutated number moves to a neighbouring value."""
_POPULATION = 48
_GENERATIONS = 3
_WARM_UP = 16
"""The number of trials before the cost model is used."""
_FAILED = 1e10
"""The seconds that meta_schedule records for a failed trial."""


class Candidate(NamedTuple):
    """A candidate to try."""

    knobs: Knobs
    measured_as: Any
    """meta_schedule's object."""


class Search:
    """Proposes candidates, and learns from their outcomes.

    Args:
        space: the choices.
        history: trials of earlier runs; they are not tried again, and the search continues from them.
        batch: the number of candidates in a batch.
        seed: the random seed: another one tries other candidates first.
    """

    def __init__(self, space: Space, history: Sequence[Trial] = (), *, batch: int = 8, seed: int = 0) -> None:
        tvm, schedules = imports.tvm(), _meta_schedule()
        self._space, self._schedules = space, schedules
        self._stands_for = {space.default: tuple(0 for _ in space.choices)}
        target = tvm.target.Target({"kind": "llvm", "num-cores": 1})  # only for the records; nothing is compiled for it
        module = _stand_in(tvm)
        kinds = _kinds(tvm, schedules)
        generator = schedules.space_generator.ScheduleFn(
            self._schedule,
            sch_rules=[],
            postprocs=[kinds.check(self._is_new)],
            mutator_probs={kinds.mutator(space, random.Random(seed)): 1.0},  # noqa: S311 - for a search, not for cryptography
        )
        strategy = schedules.search_strategy.EvolutionarySearch(
            population_size=_POPULATION,
            init_min_unmeasured=1,  # a space may be small
            genetic_num_iters=_GENERATIONS,
            eps_greedy=0.2,
        )
        with _without_intrinsics():
            self._context = schedules.TuneContext(
                mod=module,
                target=target,
                space_generator=generator,
                search_strategy=strategy,
                task_name=_BLOCK,
                rand_state=seed + 1,
                num_threads=1,
                logger=_Quiet(),
            )
        self._database = schedules.database.MemoryDatabase()
        self._workload = self._database.commit_workload(module)
        self._target = target
        self._model = schedules.cost_model.XGBModel(
            extractor=kinds.features(self._features), num_warmup_samples=_WARM_UP, num_tuning_cores=1, verbose_eval=0
        )
        self._spaces = self._context.generate_design_space()
        self._reference = math.nan
        self._earlier: dict[tuple[int, ...], Any] = {}
        """The results of earlier runs, in meta_schedule's form."""
        self._recall(history)
        self._context.pre_tuning(2**31 - 1, batch, self._spaces, self._database, self._model)

    def ask(self) -> list[Candidate]:
        """The next candidates; empty if nothing is left to try."""
        while self._space.choices and (proposed := self._context.generate_measure_candidates()):
            found = [(_places(one.sch), one) for one in proposed]
            # meta_schedule starts from the best of its database, and proposes them too: it does not know that they were measured.
            known = [(one, self._earlier[places]) for places, one in found if places in self._earlier]
            if known:
                self._context.notify_runner_results(*map(list, zip(*known, strict=True)))
            if len(known) < len(found):
                return [Candidate(self._space.values(places), one) for places, one in found if places not in self._earlier]
        return []

    def tell(self, candidates: Sequence[Candidate], outcomes: Sequence[Outcome]) -> None:
        """Report the outcomes of all candidates from ``ask``."""
        result = self._schedules.runner.RunnerResult
        measured = [candidate.measured_as for candidate in candidates]
        results = []
        for one, outcome in zip(measured, outcomes, strict=True):
            seconds = self._seconds(outcome)
            results.append(result(None, outcome.problem) if seconds == _FAILED else result([seconds], None))
            self._remember(one.sch.trace, seconds)
        self._model.update(self._context, measured, results)
        self._context.notify_runner_results(measured, results)

    def _recall(self, history: Sequence[Trial]) -> None:
        """Enter earlier trials into the database and the cost model."""
        measured, results = [], []
        for trial in history:
            places = self._space.places(trial.knobs)
            if places is None or not self._is_new(places):
                continue
            trace = self._spaces[0].trace
            for instruction, place in zip(_samples(trace), places, strict=True):
                trace = trace.with_decision(instruction, place, True)
            schedule = imports.tvm().s_tir.Schedule(self._context.mod)
            trace.apply_to_schedule(schedule, remove_postproc=False)
            seconds = self._seconds(trial.outcome)
            self._remember(schedule.trace, seconds)
            measured.append(self._schedules.MeasureCandidate(schedule, []))
            failed = seconds == _FAILED
            results.append(self._schedules.runner.RunnerResult(None if failed else [seconds], trial.outcome.problem or None))
            self._earlier[places] = results[-1]
        if measured:
            self._model.update(self._context, measured, results)

    def _seconds(self, outcome: Outcome) -> float:
        """A candidate's time on the scale of the first defaults: a later slowdown of the machine affects both, and cancels out."""
        if not outcome.ratio:
            return _FAILED
        if math.isnan(self._reference):
            self._reference = outcome.default
        return self._reference / outcome.ratio

    def _remember(self, trace: Any, seconds: float) -> None:
        self._database.commit_tuning_record(
            self._schedules.database.TuningRecord(trace, self._workload, [seconds], self._target, [])
        )

    # -- Callbacks of meta_schedule -------------------------------------------------------------------------------

    def _schedule(self, schedule: Any) -> None:
        """Sample each knob, and annotate it."""
        block = schedule.get_sblock(_BLOCK)
        for name, choices in self._space.choices.items():
            place = schedule.sample_categorical(list(range(len(choices))), [1 / len(choices)] * len(choices))
            schedule.annotate(block, name, place)

    def _is_new(self, places: tuple[int, ...]) -> bool:
        """Whether a candidate may be tried: it has a kernel, and no other candidate has the same one."""
        decision = self._space.decide(self._space.values(places))
        return decision is not None and self._stands_for.setdefault(decision, places) == places and any(places)

    def _features(self, places: tuple[int, ...]) -> list[float]:
        """The cost model's features: for each number its position, for each word a one-hot encoding."""
        found: list[float] = []
        for (_, choices), place in zip(self._space.choices.items(), places, strict=True):
            value = choices[place]
            if isinstance(value, str):
                found += [float(place == other) for other in range(len(choices))]
            else:
                found.append(math.log2(value + 1) if value >= 0 else float(value))
        return found


# -- Classes for meta_schedule ------------------------------------------------------------------------------------


def _meta_schedule() -> Any:
    try:
        import xgboost  # noqa: F401 # needed by the cost model, which would report its absence only later
        from tvm.s_tir import meta_schedule
    except ImportError as error:
        raise CompileError(f"tuning needs packages that are not installed ({error}): {installing.command('tune')}.") from None
    return meta_schedule


@contextlib.contextmanager
def _without_intrinsics() -> Iterator[None]:
    """Do not import hardware intrinsics: a context imports all of them, which takes ten seconds, and none is used here."""
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = types.ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]


class _Quiet:
    """A logger without output: the display shows everything."""

    level, handlers = 100, ()

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def _stand_in(tvm: Any) -> Any:
    """A function with one block, for the annotations."""
    from tvm import te

    kernel = te.compute((1,), lambda i: tvm.tirx.const(0, "int32"), name=_BLOCK)
    return tvm.IRModule({"main": te.create_prim_func([kernel]).with_attr("global_symbol", "main")})


def _places(schedule: Any) -> tuple[int, ...]:
    """The annotations of a scheduled stand-in, in the order of the knobs."""
    decisions = schedule.trace.decisions
    return tuple(int(decisions[instruction]) for instruction in _samples(schedule.trace))


def _samples(trace: Any) -> list[Any]:
    return [instruction for instruction in trace.insts if instruction.kind.name == "SampleCategorical"]


class _Kinds(NamedTuple):
    check: Any
    mutator: Any
    features: Any


def _kinds(tvm: Any, schedules: Any) -> _Kinds:
    """Classes for meta_schedule: they derive from its own, so they can be defined only after it is loaded."""
    from tvm.ir.utils import derived_object

    @derived_object
    class Check(schedules.postproc.PyPostproc):  # type: ignore[misc]
        """Rejects candidates that must not be tried."""

        def __init__(self, is_new: Any) -> None:
            super().__init__()
            self._is_new = is_new

        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, schedule: Any) -> bool:
            return bool(self._is_new(_places(schedule)))

        def clone(self) -> Any:
            return Check(self._is_new)

    @derived_object
    class Mutator(schedules.mutator.PyMutator):  # type: ignore[misc]
        """Changes one knob."""

        def __init__(self, space: Space, rng: random.Random) -> None:
            super().__init__()
            self._space, self._rng = space, rng

        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, trace: Any, state: int = -1) -> Any:
            samples = _samples(trace)
            which = self._rng.randrange(len(samples))
            choices = list(self._space.choices.values())[which]
            place = _moved(choices, int(trace.decisions[samples[which]]), self._rng)
            return trace.with_decision(samples[which], place, True)

        def clone(self) -> Any:
            return Mutator(self._space, self._rng)

    @derived_object
    class Features(schedules.feature_extractor.PyFeatureExtractor):  # type: ignore[misc]
        """The features that the cost model learns from."""

        def __init__(self, features: Any) -> None:
            super().__init__()
            self._features = features

        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def extract_from(self, context: Any, candidates: Any) -> list[Any]:
            rows = (np.array([self._features(_places(one.sch))], np.float32) for one in candidates)
            return [tvm.runtime.tensor(row) for row in rows]

    return _Kinds(Check, Mutator, Features)


def _moved(choices: Sequence[Any], place: int, rng: random.Random) -> int:
    """Another position: for a number usually a neighbouring one, for a word any."""
    others = [other for other in range(len(choices)) if other != place]
    value = choices[place]
    if not isinstance(value, str) and rng.random() < _NEIGHBOUR:
        ranked = sorted(choices)
        at = ranked.index(value)
        beside = [choices.index(ranked[near]) for near in (at - 1, at + 1) if 0 <= near < len(ranked)]
        return rng.choice(beside)
    return rng.choice(others)

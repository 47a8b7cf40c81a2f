"""The search: TVM's meta_schedule, over the knobs of a schedule that is written by hand.

meta_schedule samples the decisions of a schedule function, and keeps them as a trace, which it mutates, ranks by what its cost
model has learnt, and remembers with the times in its database. It takes for granted that what is sampled is done to a loop nest
then and there. Ours are done when the kernel is written, and one of them may be which algorithm that is: nothing that turns one
loop nest into another. So the schedule function here samples each knob, and notes it on a block that stands for the kernel: an
annotation, which every replay of the trace carries along. Whoever is to build the candidate has the schedule write the kernel that
the notes mean. A postprocessor turns down what breaks a constraint, or comes to a kernel that another candidate stands for; a
mutator moves one knob, more often to a neighbouring value than far away; and the cost model sees the knobs in place of loops.
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

from tvmdml import _imports, installing
from tvmdml.errors import CompileError
from tvmdml.tuning.space import Space
from tvmdml.tuning.terms import Knobs, Outcome, Trial

_BLOCK = "knobs"
_NEIGHBOUR = 0.6
"""How often a number moves to the value beside it when it is mutated."""
_POPULATION = 48
_GENERATIONS = 3
_WARM_UP = 16
"""Trials before the cost model has a say."""
_FAILED = 1e10
"""Seconds that meta_schedule has for what gave none."""


class Candidate(NamedTuple):
    """What is to be tried."""

    knobs: Knobs
    measured_as: Any
    """meta_schedule's own."""


class Search:
    """Asks for candidates, and is told what came of them.

    Args:
        space: what to choose from.
        history: trials of earlier runs; they are not tried again, and the search goes on from what they taught.
        batch: candidates at a time.
        seed: where to begin: another one tries other things first.
    """

    def __init__(self, space: Space, history: Sequence[Trial] = (), *, batch: int = 8, seed: int = 0) -> None:
        tvm, schedules = _imports.tvm(), _meta_schedule()
        self._space, self._schedules = space, schedules
        self._stands_for = {space.default: tuple(0 for _ in space.choices)}
        target = tvm.target.Target({"kind": "llvm", "num-cores": 1})  # a name for the records; nothing is compiled for it here
        module = _stand_in(tvm)
        kinds = _kinds(tvm, schedules)
        generator = schedules.space_generator.ScheduleFn(
            self._schedule,
            sch_rules=[],
            postprocs=[kinds.check(self._is_new)],
            mutator_probs={kinds.mutator(space, random.Random(seed)): 1.0},  # noqa: S311 - a search, not a secret
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
        self._recall(history)
        self._context.pre_tuning(2**31 - 1, batch, self._spaces, self._database, self._model)

    def ask(self) -> list[Candidate]:
        """The next candidates; none where nothing is left to try."""
        if not self._space.choices:
            return []
        found = self._context.generate_measure_candidates()
        return [Candidate(self._space.values(_places(one.sch)), one) for one in found or ()]

    def tell(self, candidates: Sequence[Candidate], outcomes: Sequence[Outcome]) -> None:
        """What came of all that ``ask`` gave."""
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
        """Have the database and the cost model know earlier trials."""
        measured, results = [], []
        for trial in history:
            places = self._space.places(trial.knobs)
            if places is None or not self._is_new(places):
                continue
            trace = self._spaces[0].trace
            for instruction, place in zip(_samples(trace), places, strict=True):
                trace = trace.with_decision(instruction, place, True)
            schedule = _imports.tvm().s_tir.Schedule(self._context.mod)
            trace.apply_to_schedule(schedule, remove_postproc=False)
            seconds = self._seconds(trial.outcome)
            self._remember(schedule.trace, seconds)
            measured.append(self._schedules.MeasureCandidate(schedule, []))
            failed = seconds == _FAILED
            results.append(self._schedules.runner.RunnerResult(None if failed else [seconds], trial.outcome.problem or None))
        if measured:
            self._model.update(self._context, measured, results)

    def _seconds(self, outcome: Outcome) -> float:
        """What a candidate took, as the defaults were at first: what slows the machine meanwhile slows both, and does not count."""
        if not outcome.ratio:
            return _FAILED
        if math.isnan(self._reference):
            self._reference = outcome.default
        return self._reference / outcome.ratio

    def _remember(self, trace: Any, seconds: float) -> None:
        self._database.commit_tuning_record(
            self._schedules.database.TuningRecord(trace, self._workload, [seconds], self._target, [])
        )

    # -- What meta_schedule calls ---------------------------------------------------------------------------------

    def _schedule(self, schedule: Any) -> None:
        """Sample each knob, and note it."""
        block = schedule.get_sblock(_BLOCK)
        for name, choices in self._space.choices.items():
            place = schedule.sample_categorical(list(range(len(choices))), [1 / len(choices)] * len(choices))
            schedule.annotate(block, name, place)

    def _is_new(self, places: tuple[int, ...]) -> bool:
        """Whether a candidate may be tried: it has a kernel, which no other candidate stands for."""
        decision = self._space.decide(self._space.values(places))
        return decision is not None and self._stands_for.setdefault(decision, places) == places and any(places)

    def _features(self, places: tuple[int, ...]) -> list[float]:
        """Of each knob where it stands, and of a word which it is."""
        found: list[float] = []
        for (_, choices), place in zip(self._space.choices.items(), places, strict=True):
            value = choices[place]
            if isinstance(value, str):
                found += [float(place == other) for other in range(len(choices))]
            else:
                found.append(math.log2(value + 1) if value >= 0 else float(value))
        return found


# -- meta_schedule's own kinds of things --------------------------------------------------------------------------


def _meta_schedule() -> Any:
    try:
        import xgboost  # noqa: F401 # the cost model's; it would say so only when there is enough to learn from
        from tvm.s_tir import meta_schedule
    except ImportError as error:
        raise CompileError(f"tuning takes more than is installed ({error}): {installing.command('tune')}.") from None
    return meta_schedule


@contextlib.contextmanager
def _without_intrinsics() -> Iterator[None]:
    """A context imports all hardware intrinsics there are, which takes ten seconds, and none is used here."""
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
    """A logger that says nothing: what there is to say, the display says."""

    level, handlers = 100, ()

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def _stand_in(tvm: Any) -> Any:
    """A function of one block, for the notes."""
    from tvm import te

    kernel = te.compute((1,), lambda i: tvm.tirx.const(0, "int32"), name=_BLOCK)
    return tvm.IRModule({"main": te.create_prim_func([kernel]).with_attr("global_symbol", "main")})


def _places(schedule: Any) -> tuple[int, ...]:
    """What the notes of a scheduled stand-in say, in the order of the knobs."""
    decisions = schedule.trace.decisions
    return tuple(int(decisions[instruction]) for instruction in _samples(schedule.trace))


def _samples(trace: Any) -> list[Any]:
    return [instruction for instruction in trace.insts if instruction.kind.name == "SampleCategorical"]


class _Kinds(NamedTuple):
    check: Any
    mutator: Any
    features: Any


def _kinds(tvm: Any, schedules: Any) -> _Kinds:
    """Classes that meta_schedule takes: they derive from its own, so they can only be made when it is there."""
    from tvm.ir.utils import derived_object

    @derived_object
    class Check(schedules.postproc.PyPostproc):  # type: ignore[misc]
        """Turns down what is not to be tried."""

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
        """Moves one knob."""

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
        """What the cost model learns from."""

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
    """Another place: of a number often one beside it, of a word any."""
    others = [other for other in range(len(choices)) if other != place]
    value = choices[place]
    if not isinstance(value, str) and rng.random() < _NEIGHBOUR:
        ranked = sorted(choices)
        at = ranked.index(value)
        beside = [choices.index(ranked[near]) for near in (at - 1, at + 1) if 0 <= near < len(ranked)]
        return rng.choice(beside)
    return rng.choice(others)

"""Trials: what is checked before timing, how candidates are timed, and what an outcome contains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import misdeeds
import numpy as np
import pytest
from support import Array, diagonal_desc, nonzero_desc, round_desc, tensor, top_k_desc

from tvmdml import Operator, TensorDesc, compiler, knobs
from tvmdml.errors import DeviceError
from tvmdml.library import lines
from tvmdml.library.log_terms import Job, Outcome
from tvmdml.operators.element_wise_round import ElementWiseRound
from tvmdml.proof.bench.measure import Contender
from tvmdml.proof.bench.measure import Sample as Taken
from tvmdml.schedules.cpu import pointwise
from tvmdml.system.workers import Workers
from tvmdml.targets import Target
from tvmdml.targets.cpu import CpuTarget
from tvmdml.tensors.arrays.guarded import GuardedTensor
from tvmdml.tuning import clocks, trials
from tvmdml.tuning.stand import JobSample, Stand
from tvmdml.tuning.trials import TrialPace

ROUND = round_desc(tensor("float32", (1000,)))
ANOTHER = {"aligned_elements": 64}
"""Makes another kernel of it than the defaults do, as right as theirs."""
QUICK = TrialPace(rounds=3, least_rounds=1, seconds=0.00002, budget=0.01)


@pytest.fixture(autouse=True)
def no_job_of_before() -> Iterator[None]:
    trials._forget()
    yield
    trials._forget()


def job(desc: Operator = ROUND, in_place: bool = False, target: str = "cpu") -> Job:
    return Job(lines.of(desc), in_place, target)


# -- Good candidates ----------------------------------------------------------------------------------------------


@pytest.mark.full(first=1)
@pytest.mark.parametrize(
    ("desc", "in_place"),
    [
        (ROUND, False),
        (ROUND, True),
        (round_desc(tensor("float16", (5, 70), "transposed"), layout="padded"), False),
        (top_k_desc(tensor("float32", (4, 60)), 1, 3, "decreasing"), False),
        (top_k_desc(tensor("int32", (4, 60)), 0, 2, "increasing"), False),
        (nonzero_desc(tensor("float32", (10, 20))), False),
        (diagonal_desc(tensor("float32", (30, 20)), 1.5, -2, 3), False),
        (diagonal_desc(tensor("float32", (1, 1, 30, 20)), 1.5, 0, 1, has_input=False), False),
    ],
    ids=["round", "in place", "strided", "top_k", "top_k of int32", "nonzero", "diagonal", "no input"],
)
def test_a_right_kernel_has_its_time(desc: Operator, in_place: bool, target: Target) -> None:
    asked = job(desc, in_place, target.name)
    assert trials.compile_candidate(asked, {}) == ""
    outcome = trials.measure(asked, {}, QUICK)
    assert outcome.problem == ""
    assert 0 < outcome.seconds < 1
    assert outcome.seconds == outcome.default, "the very kernel of the defaults is as fast as they are"
    assert outcome.ratio == outcome.worst == 1


def test_another_kernel_has_a_time_of_its_own() -> None:
    outcomes = [trials.measure(job(), ANOTHER, QUICK) for _ in range(4)]
    assert any(one.seconds != one.default for one in outcomes), "two clocks may show the same once"
    outcome = outcomes[0]
    assert outcome.problem == ""
    assert outcome.worst == pytest.approx(outcome.ratio), "there is only one input"


def test_several_are_timed_beside_each_other() -> None:
    found = trials.confirm(job(), [ANOTHER, {"aligned_elements": 3}, {}, {"aligned_elements": 128}], QUICK)
    assert [outcome.problem[:16] for outcome in found] == ["", "does not compile", "", ""]
    assert len({outcome.default for outcome in found if not outcome.problem}) == 1


@pytest.mark.full
def test_what_one_process_compiles_another_measures(tmp_path: Path) -> None:
    environment = {"TVMDML_CACHE_DIR": str(tmp_path)}
    with Workers(1, environment, 100) as compiling, Workers(1, environment, 100) as other:
        assert dict(compiling.map(trials.compile_candidate, [(job(), {}), (job(), ANOTHER)])) == {0: "", 1: ""}
        assert compiling.everywhere(misdeeds.compiled_here) == [2]
        assert other.everywhere(trials.prepare, job()) == [""]
        ((_, outcome),) = other.map(trials.measure, [(job(), ANOTHER, QUICK)])
        assert isinstance(outcome, Outcome)
        assert outcome.ratio > 0
        assert other.everywhere(misdeeds.compiled_here) == [0]


def test_inputs_and_references_are_made_once_for_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    reference = ElementWiseRound.reference

    def counted(desc: ElementWiseRound, *inputs: Array) -> tuple[Array, ...]:
        made.append(desc)
        return reference(desc, *inputs)

    monkeypatch.setattr(ElementWiseRound, "reference", counted)
    assert trials.prepare(job()) == ""
    trials.measure(job(), ANOTHER, QUICK)
    trials.measure(job(), {}, QUICK)
    assert len(made) == 1
    trials.measure(job(in_place=True), {}, QUICK)
    assert len(made) == 2


def test_neither_logs_nor_packs_have_a_say_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    kernel = pointwise.kernel

    def noted(*given: Any) -> Any:
        said.append((knobs.logs_count(), dict(knobs.in_force())))
        return kernel(*given)

    monkeypatch.setattr(pointwise, "kernel", noted)
    trials.measure(job(), ANOTHER, QUICK)
    assert said == [(False, {"pointwise": {}}), (False, {"pointwise": ANOTHER})]


# -- Bad ones -----------------------------------------------------------------------------------------------------


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    misdeeds.round_otherwise(monkeypatch)
    outcome = trials.measure(job(), ANOTHER, QUICK)
    assert outcome.problem.startswith("wrong result on input that is normal: output_tensor: ")
    assert "elements differ" in outcome.problem
    assert outcome.ratio == 0
    assert trials.is_spoiled(outcome)
    monkeypatch.undo()
    assert trials.measure(job(), ANOTHER, QUICK).ratio > 0


@pytest.mark.full
def test_a_process_with_a_wrong_result_is_replaced() -> None:
    with Workers(1, {}, 100) as workers:
        before = workers.everywhere(misdeeds.who, 0.0)
        ((_, outcome),) = workers.map(misdeeds.wrong_mode, [(job(), ANOTHER)], spoils=trials.is_spoiled)
        assert isinstance(outcome, Outcome)
        assert outcome.problem.startswith("wrong result")
        assert workers.everywhere(misdeeds.who, 0.0) != before


def test_a_result_in_one_place_too_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pointwise.kernel

    def longer(*given: Any) -> Any:
        found = kernel(*given)
        tasks, elements, *steps = found.scalars
        turned = knobs.in_force()["pointwise"]
        return found._replace(scalars=(tasks, elements + 1, *steps)) if turned else found

    monkeypatch.setattr(pointwise, "kernel", longer)
    outcome = trials.measure(job(), ANOTHER, QUICK)
    assert outcome.problem == "wrong result on input that is normal: memory outside of output_tensor was written to"


def test_an_input_that_is_written_to_is_found(target: Target) -> None:
    (sample,) = Stand(job(target=target.name)).samples
    source, result = sample.arrays

    def call() -> None:
        operator = compiler.compile(ROUND, target)
        operator(source, result)
        if target.moves:
            source.write(result)
        else:
            source[...] = result

    assert sample.problem(call)[0] == "the input input_tensor, or memory beside it, was written to"


def test_a_kernel_that_does_nothing_is_found(target: Target) -> None:
    for in_place in (False, True):
        (sample,) = Stand(job(in_place=in_place, target=target.name)).samples
        run = trials._Entrant(Stand(job(in_place=in_place, target=target.name)), {}).calls[0]
        run()
        assert "elements differ" in sample.problem(lambda: None)[0]


@pytest.mark.parametrize(
    ("values", "said"),
    [({"aligned_elements": 3}, "aligned_elements: given 3"), ({"colour": 1}, "pointwise knob: given 'colour'")],
)
def test_values_that_are_refused_are_a_problem(values: dict[str, Any], said: str) -> None:
    for problem in (trials.compile_candidate(job(), values), trials.measure(job(), values).problem):
        assert problem.startswith("does not compile: InvalidArgument: ")
        assert said in problem


def test_a_kernel_that_does_not_run_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DeviceError("the device is lost")

    trials.prepare(job())
    monkeypatch.setattr(CpuTarget, "launch", refuse)
    outcome = trials.measure(job(), ANOTHER, QUICK)
    assert outcome.problem == "does not run: DeviceError: the device is lost"
    assert trials.is_spoiled(outcome)


def test_defaults_that_are_wrong_are_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = ElementWiseRound.reference
    monkeypatch.setattr(ElementWiseRound, "reference", lambda self, x: (reference(self, x)[0] + 1,))
    said = "the defaults' own kernel: wrong result"
    assert trials.prepare(job()).startswith(said)
    assert all(outcome.problem.startswith(said) for outcome in trials.confirm(job(), [{}, ANOTHER], QUICK))


# -- Time ---------------------------------------------------------------------------------------------------------


class Told:
    """A clock that is told what calls take: by the order in which it first sees them, on each of the inputs."""

    def __init__(self, *seconds: float | list[float]) -> None:
        self.seconds, self.seen, self.said = seconds, [], []  # type: ignore[var-annotated]

    def calls(self, contender: Contender) -> int:
        return 1

    def sample(self, contender: Contender, calls: int) -> Taken:
        if contender.call not in self.seen:
            self.seen.append(contender.call)
        number = self.seen.index(contender.call)
        self.said.append(number)
        told = self.seconds[number]
        return Taken(told.pop(0) if isinstance(told, list) else told)


def timed(monkeypatch: pytest.MonkeyPatch, clock: Told, desc: Operator, candidates: list[Any], rounds: int = 4) -> list[Outcome]:
    monkeypatch.setattr(clocks, "of", lambda target, traffic: clock)
    return trials.confirm(job(desc), candidates, TrialPace(rounds, 1, 1, budget=100.0))


def test_turns_go_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Told(2.0, 1.0, 4.0)
    found = timed(monkeypatch, clock, ROUND, [ANOTHER, {"aligned_elements": 128}])
    assert clock.said == [0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0]
    assert [(one.seconds, one.default, one.ratio, one.spread) for one in found] == [(1, 2, 2, 0), (4, 2, 0.5, 0)]


def test_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    (outcome,) = timed(monkeypatch, Told([4.0, 4.0, 5.0, 90.0, 3.0], [1.0, 3.0, 2.0, 2.0, 70.0]), ROUND, [ANOTHER], rounds=5)
    assert (outcome.seconds, outcome.default) == (2, 4)
    low, high = np.quantile([1.0, 3.0, 2.0, 2.0, 70.0], (0.1, 0.9))
    assert outcome.spread == pytest.approx((high - low) / 2 / 2)


def test_an_outcome_is_the_mean_of_all_inputs_and_knows_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Told(4.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 4.0)  # for each input, the defaults, then the candidate
    (outcome,) = timed(monkeypatch, clock, nonzero_desc(tensor("float32", (10, 20))), [{"few_bits": 5}])
    assert len(clock.seen) == 8, "two of each of four inputs"
    assert outcome.default == pytest.approx((4 * 2 * 2 * 2) ** 0.25)
    assert outcome.seconds == pytest.approx((1 * 2 * 2 * 4) ** 0.25)
    assert outcome.worst == 0.5


def test_what_is_far_behind_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Told(1.0, 4.0)
    (outcome,) = timed(monkeypatch, clock, ROUND, [ANOTHER])
    assert clock.said == [0, 1, 1, 1], "it was looked at again"
    assert outcome.ratio == 0.25


def test_a_hiccup_cuts_nobody_off(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Told(1.0, [50.0, 2.0, 2.0, 2.0, 2.0])
    (outcome,) = timed(monkeypatch, clock, ROUND, [ANOTHER])
    assert clock.said == [0, 1, 1, 1, 0, 0, 1, 1, 0]
    assert outcome.ratio == 0.5


def test_rounds_end_with_the_time_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Told(1.0, 2.0)
    monkeypatch.setattr(clocks, "of", lambda target, traffic: clock)
    trials.measure(job(), ANOTHER, TrialPace(rounds=1000, least_rounds=3, seconds=1, budget=0.0))
    assert len(clock.said) == 2 * 3


def test_what_is_far_too_slow_is_not_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = JobSample.problem
    seconds: Iterator[float] = iter([0.1, 0.1, 0.9, 0.8])
    monkeypatch.setattr(JobSample, "problem", lambda sample, call: (problem(sample, call)[0], next(seconds)))
    clock = Told(0.0001)
    (outcome,) = timed(monkeypatch, clock, ROUND, [ANOTHER])
    assert clock.said == [0]
    assert outcome.seconds == 0.8


def test_a_slow_call_is_not_called_to_see_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "SLOW_CALL", 0.0)
    monkeypatch.setattr(Told, "calls", lambda *given: pytest.fail("it is known how long it takes"))
    monkeypatch.setattr(clocks, "of", lambda target, traffic: Told(1.0, 1.0))
    assert trials.measure(job(), ANOTHER, TrialPace(rounds=2, least_rounds=1, seconds=0.0, budget=1.0)).ratio == 1


# -- Guards -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("desc", [TensorDesc("float32", (3, 4)), TensorDesc("float16", (3, 4), (8, 1)), TensorDesc("uint8", (1,))])
def test_guards_notice_what_is_written_beside_a_tensor(desc: TensorDesc) -> None:
    place = GuardedTensor(desc)
    assert place.array.shape == desc.sizes
    assert place.array.ctypes.data % 256 == 0
    assert place.holding(np.ones(desc.sizes)).is_guarded()
    inside = np.zeros_like(place.memory)
    place_of: Array = np.ndarray(desc.sizes, desc.data_type.numpy, inside.data, 256, place.array.strides)
    place_of[...] = np.frombuffer(b"\1" * place_of.itemsize, place_of.dtype)[0]
    for outside in np.flatnonzero(inside == 0):
        place.memory[outside] ^= 1
        assert not place.is_guarded(), outside
        place.memory[outside] ^= 1
    assert place.clear().is_guarded()


def test_what_is_hopelessly_slow_is_not_tried_on_every_input() -> None:
    """Ranking takes the square of a row's length."""
    job = Job(lines.of(top_k_desc(tensor("float32", (8, 16384)), 1, 3, "decreasing").canonical()), False, "cpu")
    outcome = trials.measure(job, {"algorithm": "rank"})
    assert outcome.problem.startswith("too slow: ")
    assert outcome.ratio == 0
    assert not trials.is_spoiled(outcome)


def test_elements_that_share_a_place_are_what_memory_holds() -> None:
    """A broadcast input."""
    desc = ElementWiseRound(
        input_tensor=TensorDesc("float32", (4, 4), (0, 1)), output_tensor=TensorDesc("float32", (4, 4)), rounding_mode="toward_zero"
    )
    assert trials.measure(job(desc), ANOTHER, QUICK).problem == ""

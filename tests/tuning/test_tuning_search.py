"""The search: its space, its use of meta_schedule, and continuing from known results. Nothing is measured: times are invented."""

from __future__ import annotations

import math

import pytest
from support import round_desc, tensor, top_k_desc

from tvmdml import knobs, targets
from tvmdml.library.log_terms import Knobs, Outcome, Trial
from tvmdml.tuning.search import Search
from tvmdml.tuning.space import Space


@pytest.fixture(scope="module")
def rows() -> Space:
    """Of a top-k that has many kernels to choose from."""
    return Space(top_k_desc(tensor("float32", (64, 4096)), 1, 20, "decreasing"), (), targets.resolve("cpu"))


def made_up(values: Knobs) -> Outcome:
    """As if sorting by small digits were best, and everything else a detail."""
    seconds = 1e-5 * (1 + (values.get("algorithm") != "sort") + abs(int(values.get("digit_bits", 11)) - 6) / 10)
    return Outcome(seconds=seconds, default=2.5e-5, worst=2.5e-5 / seconds)


def run(search: Search, most: int) -> list[Trial]:
    found: list[Trial] = []
    while len(found) < most and (asked := search.ask()):
        outcomes = [made_up(one.knobs) for one in asked]
        found += [Trial(one.knobs, outcome) for one, outcome in zip(asked, outcomes, strict=True)]
        search.tell(asked, outcomes)
    return found


# -- The space ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_space_has_the_knobs_that_matter_and_no_others(rows: Space) -> None:
    assert {"algorithm", "chunk_vectors", "digit_bits"} <= rows.choices.keys()
    assert "columns_k" not in rows.choices, "rows are never taken for columns"
    declared = knobs.of("top_k", targets.resolve("cpu"))
    assert declared is not None
    for name, choices in rows.choices.items():
        assert choices[0] == declared.knobs[name].default, "the default comes first"
        assert set(choices) <= set(declared.knobs[name].choices)
        assert len(choices) == len(set(choices)) > 1


def test_a_knob_left_out_changes_nothing(rows: Space) -> None:
    declared = knobs.of("top_k", targets.resolve("cpu"))
    assert declared is not None
    left_out = [(name, value) for name, knob in declared.knobs.items() if name not in rows.choices for value in knob.choices]
    assert left_out
    for name, value in left_out:
        assert rows.decide({name: value}) == rows.default, (name, value)


def test_places_and_values_are_each_others_opposite(rows: Space) -> None:
    last = tuple(len(choices) - 1 for choices in rows.choices.values())
    assert rows.places(rows.values(last)) == last
    assert rows.values([0] * len(rows.choices)) == {}
    assert rows.places({"algorithm": "nonsense"}) is None
    assert rows.places({"no_such_knob": 1}) is None


def test_a_broken_constraint_is_no_kernel() -> None:
    vulkan = _device()
    space = Space(round_desc(tensor("float32", (4096,))), (), vulkan)
    assert space.decide({"threads": 64}) is not None
    constrained = knobs.of("nonzero_coordinates", vulkan)
    assert constrained is not None
    assert constrained.allowed({"threads": 32, "least_threads": 64}, vulkan)


def _device() -> targets.Target:
    try:
        return targets.resolve("vulkan")
    except Exception as error:
        pytest.skip(f"no Vulkan device: {error}")


# -- The search ---------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_each_candidate_is_another_kernel(rows: Space) -> None:
    trials = run(Search(rows), 40)
    decisions = [rows.decide(trial.knobs) for trial in trials]
    assert None not in decisions
    assert len(set(decisions)) == len(decisions) >= 40
    assert rows.default not in decisions, "the defaults are measured beside each"


@pytest.mark.full
def test_it_finds_what_is_best(rows: Space) -> None:
    best = min(run(Search(rows), 96), key=lambda trial: trial.outcome.seconds)
    assert best.knobs["algorithm"] == "sort"
    assert best.knobs["digit_bits"] == 6


@pytest.mark.full
def test_a_small_space_comes_to_its_end() -> None:
    space = Space(round_desc(tensor("float32", (1 << 16,))), (), targets.resolve("cpu"))
    total = math.prod(len(choices) for choices in space.choices.values())
    trials = run(Search(space), 10 * total)
    assert 0 < len(trials) < total
    kernels = {trial.knobs and rows_of(trial.knobs) for trial in trials}
    assert len(kernels) == len(trials)


def rows_of(values: Knobs) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(values.items()))


@pytest.mark.full
def test_failures_are_lived_with(rows: Space) -> None:
    search = Search(rows)
    for _ in range(3):
        asked = search.ask()
        assert asked
        search.tell(asked, [Outcome(problem="crashed") for _ in asked])
    asked = search.ask()
    search.tell(asked, [Outcome(seconds=math.inf, default=1.0) for _ in asked])
    assert search.ask()


@pytest.mark.full
def test_it_goes_on_from_earlier_trials(rows: Space) -> None:
    earlier = run(Search(rows), 48)
    strange = [Trial({"gone_knob": 3}, Outcome(1.0, 1.0)), Trial({"algorithm": "gone"}, Outcome(problem="x"))]
    search = Search(rows, [*earlier, *strange], seed=9)
    found = run(search, 48)
    known = {rows_of(trial.knobs) for trial in earlier}
    assert len(found) >= 48
    assert not known & {rows_of(trial.knobs) for trial in found}
    # The cost model has learnt: most new candidates sort, with small digits.
    assert sum(trial.knobs.get("algorithm") == "sort" for trial in found) > len(found) // 2

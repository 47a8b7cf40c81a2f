"""``tune``: what happens with the results of trials, wherever they run. The lab here invents its times."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import IN_PLACE, round_desc, tensor, top_k_desc

from tvmdml import errors, targets, tuning
from tvmdml.library import logs
from tvmdml.library.log_terms import Job, Knobs, Machine, Outcome, Tuned
from tvmdml.library.spec import Wanted
from tvmdml.targets import Target
from tvmdml.tuning import session, tuner
from tvmdml.tuning.display import Silent
from tvmdml.tuning.noise import noise_of

DESC = top_k_desc(tensor("float32", (64, 4096)), 1, 20, "decreasing")
SMALL = round_desc(tensor("float32", (64,)), "toward_zero")
Time = Callable[[Knobs, bool], Outcome]


def sorting_is_best(knobs: Knobs, thorough: bool) -> Outcome:
    if not knobs:
        return Outcome(1e-5, 1e-5, 0.01, 1.0)
    seconds = 0.8e-5 if knobs.get("algorithm") == "sort" else 1.2e-5
    return Outcome(seconds, 1e-5, 0.01, 1e-5 / seconds)


class Lab:
    """Where a trial takes as long as a function says, and what was tried is written down."""

    batch = 8

    def __init__(self, time: Time) -> None:
        self.time = time
        self.tried: list[Knobs] = []
        self.finals: list[list[Knobs]] = []

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def target(self, target: Target) -> Target:
        return target

    def machine(self, target: Target) -> Machine:
        return Machine(target.name, "a test's", 2)

    def measure(self, job: Job, candidates: Sequence[Knobs], thorough: bool = False) -> Iterator[tuple[int, Outcome]]:
        if thorough:
            self.finals.append(list(candidates))
        for place, knobs in enumerate(candidates):
            outcome = self.time(knobs, thorough)
            if not thorough:
                self.tried.append(knobs)
            yield place, outcome


_that_matter, _known = tuner.Space._that_matter, dict[Any, Any]()


def _matter(desc: Any, space: tuner.Space) -> Any:
    """What matters of an operation: found out once for all tests."""
    return _known[desc] if desc in _known else _known.setdefault(desc, _that_matter(space))


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[list[Tuned], Lab]]:
    """Tune in a lab of this test's, with sessions of its own."""
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuner.Space, "_that_matter", lambda space: _matter(space._desc, space))

    def tuned(time: Time = sorting_is_best, operations: Any = DESC, **options: Any) -> tuple[list[Tuned], Lab]:
        lab = Lab(time)
        monkeypatch.setattr(tuner, "LocalLab", lambda: lab)
        return tuning.tune(operations, **{"trials": 24, "folder": tmp_path / "logs", **options}), lab

    return tuned


def logged(folder: Path) -> list[Any]:
    return list(logs.read([folder / "logs"]))


@pytest.mark.full
def test_the_winner_is_logged_and_found(tune: Any, tmp_path: Path) -> None:
    (found,), _ = tune()
    assert found.record.knobs["algorithm"] == "sort"
    assert found.record.ratio == pytest.approx(1.25)
    assert (found.record.trials, len(found.trials)) == (24, 24)
    assert logged(tmp_path) == [found.record]
    machine = Machine(targets.resolve("cpu").name, "a test's", 2)
    applies = logs.Logs(logged(tmp_path)).find("top_k", DESC, False, machine)
    assert applies is not None
    assert applies.exact


@pytest.mark.full
def test_finalists_are_timed_once_more_beside_the_defaults(tune: Any) -> None:
    _, lab = tune()
    finals = lab.finals[0]
    assert finals[0] == {}
    assert 1 < len(finals) <= 1 + tuner.FINALISTS
    assert all(knobs["algorithm"] == "sort" for knobs in finals[1:])
    assert all(knobs[0] == {} for knobs in lab.finals), "always beside the defaults"


@pytest.mark.full
def test_knobs_that_gain_nothing_are_left_at_their_defaults(tune: Any) -> None:
    def time(knobs: Knobs, thorough: bool) -> Outcome:
        seconds = 1e-5 * (0.8 if knobs.get("algorithm") == "sort" else 1.0) * (0.9 if knobs.get("digit_bits") == 8 else 1.0)
        return Outcome(seconds, 1e-5, 0.01, 1e-5 / seconds)

    (found,), _ = tune(time, trials=64)
    assert found.record.knobs == {"algorithm": "sort", "digit_bits": 8}
    assert found.record.ratio == pytest.approx(1 / 0.72)


@pytest.mark.full
@pytest.mark.parametrize(
    "final",
    [
        Outcome(0.99e-5, 1e-5, 0, 0.99),
        Outcome(0.5e-5, 1e-5, 0, 0.9),
        Outcome(problem="crashed"),
        Outcome(0.9e-5, 1e-5, 0.51, 1.1, noise=0.2),
    ],
)
def test_luck_does_not_win(tune: Any, final: Outcome) -> None:
    """Too small a gain; slower on one of its inputs; gone when it is timed for longer; less than the noise."""

    def time(knobs: Knobs, thorough: bool) -> Outcome:
        return final if thorough and knobs else sorting_is_best(knobs, thorough)

    (found,), _ = tune(time)
    assert found.record.knobs == {}
    assert found.record.ratio == 1


@pytest.mark.parametrize(
    ("spread", "rounds", "gain", "wins"),
    [(0.01, 400, 1.05, True), (0.01, 400, 1.0, False), (0.5, 24, 1.1, False), (0.5, 24, 4.0, True)],
)
def test_a_gain_counts_if_it_is_more_than_the_noise(spread: float, rounds: int, gain: float, wins: bool) -> None:
    rng = np.random.default_rng(5)
    default, own = (median * np.exp(spread * rng.standard_normal(rounds)) for median in (1e-5, 1e-5 / gain))
    noise = noise_of([(list(default), list(own))])
    ratio = float(np.median(default) / np.median(own))
    assert tuner._wins(Outcome(1e-5 / ratio, 1e-5, spread, ratio, noise=noise)) == wins


def test_noise_is_seen_in_bursts_and_needs_pairs() -> None:
    """A machine that is slow for a while makes pairs that agree, and parts that do not."""
    steady = [1.0] * 80
    assert noise_of([(steady, steady)]) == 0
    assert noise_of([(steady, [0.9] * 40 + [1.1] * 40)]) > 0.2
    assert noise_of([]) == noise_of([([1.0], [2.0])]) == 0


def test_what_a_search_may_gain_is_said_before_it(tune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(targets.resolve("cpu").name, "a test's", 2)
    empty = SimpleNamespace(records=())
    monkeypatch.setattr(logs, "installed", lambda: empty)
    assert tuner.expected("top_k", machine) == "top_k: no log has a record of it, so what a search gains is not known"

    def record(ratio: float, target: str) -> Any:
        return SimpleNamespace(operator="top_k", ratio=ratio, machine=machine._replace(target=target))

    empty.records = (record(1.0, machine.target), record(1.25, machine.target), record(1.5, machine.target), record(9, "cuda"))
    said = "top_k: 3 records of this target, 2 of them with a gain: times as fast as the defaults 1.25 in the middle, 1.50 at most"
    assert tuner.expected("top_k", machine) == said
    empty.records = (record(2.0, "cuda"),)
    assert "1 record of other targets" in tuner.expected("top_k", machine)


@pytest.mark.full
def test_what_is_in_use_is_not_replaced_by_worse(tune: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run finds less than a long one did."""

    def time(knobs: Knobs, thorough: bool) -> Outcome:
        seconds = 1e-5 * (
            0.5 if knobs == {"algorithm": "sort", "digit_bits": 8} else 0.9 if knobs.get("algorithm") == "sort" else 1.1
        )
        return Outcome(seconds, 1e-5, 0.01, 1e-5 / seconds) if knobs else Outcome(1e-5, 1e-5, 0.01, 1.0)

    (found,), _ = tune(time, trials=1)
    logs.add(tmp_path / "long", [found.record._replace(knobs={"algorithm": "sort", "digit_bits": 8})])
    monkeypatch.setenv("TVMDML_TUNING", "1")
    monkeypatch.setenv("TVMDML_TUNING_LOGS", str(tmp_path / "long"))
    (found,), _ = tune(time, trials=1, fresh=True)
    assert found.record.knobs == {"algorithm": "sort", "digit_bits": 8}


@pytest.mark.full
def test_trials_that_fail_are_counted_and_cost_no_more(tune: Any) -> None:
    def time(knobs: Knobs, thorough: bool) -> Outcome:
        return (
            sorting_is_best(knobs, thorough)
            if not knobs or knobs.get("algorithm") == "sort"
            else Outcome(problem="crashed: signal 11")
        )

    (found,), _ = tune(time)
    assert found.record.knobs["algorithm"] == "sort"
    assert sum(bool(trial.outcome.problem) for trial in found.trials) > 0
    assert len(found.trials) == 24


@pytest.mark.full
def test_defaults_that_cannot_be_measured_are_an_error(tune: Any) -> None:
    with pytest.raises(errors.CompileError, match=r"TOP_K1: the defaults cannot be measured: wrong result"):
        tune(lambda knobs, thorough: Outcome(problem="wrong result"))


@pytest.mark.full
def test_of_several_operations_those_that_fail_are_left_out(tune: Any, tmp_path: Path) -> None:
    told: list[str] = []

    class Listening(Silent):
        def note(self, text: str) -> None:
            told.append(text)

    calls = 0

    def time(knobs: Knobs, thorough: bool) -> Outcome:
        """The first operation's defaults are wrong."""
        nonlocal calls
        calls += not knobs
        return Outcome(problem="wrong result") if calls == 1 else sorting_is_best(knobs, thorough)

    found, _ = tune(time, [SMALL, DESC], display=Listening())
    assert [one.record.operator for one in found] == ["top_k"]
    assert len(logged(tmp_path)) == 1
    (text,) = [one for one in told if "left out" in one]
    assert text.startswith("ELEMENT_WISE_ROUND on cpu:")
    assert "left out: ELEMENT_WISE_ROUND: the defaults cannot be measured: wrong result" in text


# -- Interrupted, and gone on with --------------------------------------------------------------------------------


@pytest.mark.full
def test_an_interrupted_run_keeps_what_it_found_and_goes_on(tune: Any, tmp_path: Path) -> None:
    count = 0

    def time(knobs: Knobs, thorough: bool) -> Outcome:
        nonlocal count
        count += not thorough
        if count == 14 and not thorough:
            raise KeyboardInterrupt
        return sorting_is_best(knobs, thorough)

    with pytest.raises(KeyboardInterrupt):
        tune(time)
    (record,) = logged(tmp_path)
    assert record.trials == 13
    assert record.knobs["algorithm"] == "sort"
    kept = (tmp_path / "cache").rglob("trials.jsonl")
    earlier = [json.loads(line)["knobs"] for line in next(kept).read_text().splitlines()]
    (found,), _ = tune()
    assert [trial.knobs for trial in found.trials[:13]] == earlier, "no finished trial is lost"
    assert len(found.trials) == 24
    assert len({json.dumps(trial.knobs, sort_keys=True) for trial in found.trials}) == 24, "none is made again"
    assert logged(tmp_path) == [found.record]


@pytest.mark.full
def test_what_is_done_is_not_done_again(tune: Any, tmp_path: Path) -> None:
    (first,), _ = tune()
    (again,), lab = tune()
    assert (lab.tried, lab.finals) == ([], [])
    assert again.record == first.record
    (more,), _ = tune(trials=30)
    assert (len(more.trials), more.trials[:24]) == (30, first.trials)
    (fresh,), _ = tune(fresh=True)
    assert len(fresh.trials) == 24
    assert len(logged(tmp_path)) == 1


@pytest.mark.full
def test_a_run_goes_on_at_the_operation_where_it_was(tune: Any) -> None:
    def time(knobs: Knobs, thorough: bool) -> Outcome:
        if "aligned_elements" in knobs:
            raise KeyboardInterrupt
        return sorting_is_best(knobs, thorough)

    with pytest.raises(KeyboardInterrupt):
        tune(time, [DESC, SMALL])
    found, lab = tune(operations=[DESC, SMALL])
    assert all("algorithm" not in knobs for knobs in lab.tried), "only the second is left"
    assert len(found) == 2


_WHOLE = {"knobs": {"algorithm": "sort"}, "seconds": 1.0, "default": 1.0, "spread": 0.1, "worst": 1.0, "problem": ""}
_NONSENSE = b"".join(
    json.dumps({**_WHOLE, **wrong}).encode() + b"\n"
    for wrong in (
        {"knobs": {"algorithm": [1]}},
        {"knobs": {"algorithm": True}},
        {"seconds": 0.0},
        {"seconds": 0},
        {"seconds": math.nan},
        {"default": -1.0},
        {"default": 10**400},
        {"default": math.inf},
        {"problem": 3},
        {"more": 1},
    )
)


@pytest.mark.full
def test_trials_of_knobs_that_are_gone_are_passed_over(tune: Any, tmp_path: Path) -> None:
    tune()
    (path,) = (tmp_path / "cache").rglob("trials.jsonl")
    gone = json.dumps({**_WHOLE, "knobs": {"gone_knob": 3}, "default": 9.0}).encode() + b"\n"
    path.write_bytes(gone + path.read_bytes())
    (found,), _ = tune(trials=30)
    assert found.record.knobs["algorithm"] == "sort"


@pytest.mark.full
def test_half_a_line_of_a_killed_process_is_no_trial(tune: Any, tmp_path: Path) -> None:
    (found,), _ = tune()
    (path,) = (tmp_path / "cache").rglob("trials.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:10]) + b"\xff not json\n[1]\n" + _NONSENSE + lines[10][: len(lines[10]) // 2])
    path.with_name("done.json").write_text("{")
    (again,), _ = tune()
    assert len(again.trials) == 24
    assert [trial.knobs for trial in again.trials[:10]] == [trial.knobs for trial in found.trials[:10]]


def test_one_process_a_job(tune: Any) -> None:
    def time(knobs: Knobs, thorough: bool) -> Outcome:
        with pytest.raises(errors.InvalidArgument, match="another process is tuning"):
            _another()
        return sorting_is_best(knobs, thorough)

    def _another() -> None:
        job = Job(tuner.lines.of(DESC), False, targets.resolve("cpu").name)
        stamp = tuner.source_stamp("top_k", targets.resolve("cpu"))
        with session.Session(job, Machine(targets.resolve("cpu").name, "a test's", 2), stamp).held():
            raise AssertionError

    tune(time, trials=1)


# -- What it is asked for -----------------------------------------------------------------------------------------


def test_where_nothing_can_be_chosen_the_defaults_are_logged(tune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner.Space, "_that_matter", lambda self: {})
    (found,), lab = tune()
    assert (lab.tried, found.record.knobs, found.record.trials) == ([], {}, 0)


@pytest.mark.full
def test_in_place_is_another_job(tune: Any, tmp_path: Path) -> None:
    found, _ = tune(operations=[Wanted(SMALL), Wanted(SMALL, IN_PLACE)])
    assert [one.record.shape_class.get("in_place") for one in found] == [None, "yes"]
    assert len(logged(tmp_path)) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trials": 0}, "tune trials: given 0; allowed: 1 or more"),
        ({"trials": True}, "tune trials: given True"),
        ({"tracker": "127.0.0.1:9190"}, "a tracker or a key alone"),
        ({"operations": "TOP_K"}, "operator descriptors"),
        ({"operations": [3]}, "given int"),
        ({"target": "gpu"}, "target: given 'gpu'"),
        ({"operations": None}, "given NoneType"),
        ({"operations": Wanted(DESC, (("input_tensor", "output_value_tensor"),))}, "for TOP_K1; allowed: "),
        ({"seed": -1}, "tune seed: given -1; allowed: 0 to "),
        ({"seed": "x"}, "tune seed"),
        ({"folder": "/dev/null/logs"}, "tune folder: given '/dev/null/logs'"),
        ({"folder": 5}, "tune folder: given 5"),
        ({"tracker": "127.0.0.1:9", "key": ""}, "key: given ''"),
        ({"tracker": "", "key": "bench"}, "tracker: given ''"),
    ],
)
def test_what_makes_no_sense_is_refused(tune: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=said):
        tune(**options)

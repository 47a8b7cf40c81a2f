"""``tvmdml bench --tuned``: tuned knobs against the defaults. No test depends on timings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import tuning_records

from tvmdml import knobs, targets
from tvmdml.library import logs
from tvmdml.library.log_terms import Record
from tvmdml.library.logs import Logs
from tvmdml.library.scheduling import kernel_for
from tvmdml.proof.bench import checks, measure, runner, tables, tuned
from tvmdml.proof.bench.cases import Case
from tvmdml.proof.bench.measure import CallTiming, Contender
from tvmdml.proof.bench.rows.diagonal_matrix import diagonal
from tvmdml.proof.bench.rows.element_wise_round import rounding
from tvmdml.proof.bench.rows.top_k import top_k
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.tuned import TunedRow
from tvmdml.proof.bench.work import Work
from tvmdml.system import console
from tvmdml.targets import Target

SORTED = top_k(8, 200, k=5)
FLAT = rounding(64)
OPTIONS = runner.Options(measure.QUICK)


def call(*arguments: object) -> Any:
    return commands.call("bench", "--tuned", *arguments)


def record(work: Work, target: Target | None = None, **values: int | str) -> Record:
    """What a log has for work on this machine."""
    machine = (target or targets.resolve("cpu")).machine()
    return tuning_records.record(work.describe(), machine=machine, knobs=values, in_place=bool(work.shared()))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has these records installed, and no others."""

    def install(*records: Record) -> None:
        found = Logs(records)
        monkeypatch.setattr(logs, "installed", lambda: found)

    install()
    return install


@pytest.fixture(autouse=True)
def races(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The defaults take 3 microseconds, and the tuned 2. Gives the roles of those in each race."""
    found: list[list[str]] = []

    def race(contenders: list[Contender], pace: measure.RacePace, clock: measure.Clock) -> list[CallTiming]:
        for contender in contenders:
            contender.prepare()
            contender.run(2)
        found.append([contender.role for contender in contenders])
        return [CallTiming(3e-6, 2.9e-6, 3.1e-6, 9, 2), CallTiming(2e-6, 1.8e-6, 2.2e-6, 9, 2)]

    monkeypatch.setattr(measure, "race", race)
    return found


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has one case whose kernel a log can change, and one that it cannot."""
    found = (Case("top-k", "small", SORTED, quick=True), Case("round", "small", FLAT, quick=True))
    monkeypatch.setattr(tables, "of", lambda kind: found)


@pytest.mark.full
def test_another_algorithm_is_another_kernel_and_is_raced(log: Callable[..., None], races: list[list[str]]) -> None:
    log(record(SORTED, algorithm="sort", columns_k=16))
    row = tuned.measured(Case("top-k", "small", SORTED), OPTIONS)
    assert (row.log, row.knobs, row.same, row.problem) == ("exact", {"algorithm": "sort"}, False, ""), "columns_k is its default"
    assert row.ratio == pytest.approx(1.5)
    assert row.spread == pytest.approx(0.1), "the larger one of the two"
    assert races == [["base", "ours"]]


def test_knobs_that_change_nothing_are_not_raced(log: Callable[..., None], races: list[list[str]]) -> None:
    log(record(FLAT, stream_bytes=1 << 30))
    row = tuned.measured(Case("round", "small", FLAT), OPTIONS)
    assert (row.log, row.knobs, row.same, row.ratio) == ("exact", {"stream_bytes": 1 << 30}, True, 1.0)
    assert races == []


@pytest.mark.full
def test_other_scalars_are_another_launch_and_are_raced(
    log: Callable[..., None], races: list[list[str]], in_parallel: None
) -> None:
    log(record(SORTED, tasks_per_thread=1))
    row = tuned.measured(Case("top-k", "small", SORTED), OPTIONS)
    assert (row.same, row.problem) == (False, "")
    assert races == [["base", "ours"]]


@pytest.mark.full
def test_what_is_forced_is_forced_on_both(log: Callable[..., None], races: list[list[str]]) -> None:
    log(record(SORTED, algorithm="sort"))
    with knobs.using(top_k={"algorithm": "select"}):
        assert tuned.measured(Case("top-k", "small", SORTED), OPTIONS).same


@pytest.mark.full
def test_a_log_of_the_nearest_class_is_told_from_an_exact_one(log: Callable[..., None]) -> None:
    log(record(top_k(8, 400, k=5), algorithm="sort"))
    assert tuned.measured(Case("top-k", "small", SORTED), OPTIONS).log == "nearest"
    assert tuned.measured(Case("top-k", "small", top_k(8, 200, k=5, dtype="int32")), OPTIONS).log == "none"


@pytest.mark.parametrize("door", ["bound", "operator", "function"])
def test_both_kernels_run_by_every_door(door: str, log: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    log(record(SORTED, algorithm="sort"))
    made: list[tuple[str, dict[str, Any]]] = []
    right = runner.ours

    def ours(task: Task, target: Target | None = None, where: runner.Room | None = None) -> Any:
        desc, here = task.desc, targets.resolve("cpu")
        made.append((task.work.door, dict(kernel_for(desc, here).parameters)))
        return right(task, target, where)

    monkeypatch.setattr(runner, "ours", ours)
    row = tuned.measured(Case("top-k", "small", Work(**{**vars(SORTED), "door": door})), OPTIONS)
    assert row.problem == ""
    assert len(made) == 2
    assert made[0][1] != made[1][1], "one is the default"
    assert {found for found, _ in made} == {"operator" if door == "function" else door}


def test_in_place_and_without_an_input(log: Callable[..., None]) -> None:
    inside, made = rounding(1 << 12, in_place=True), diagonal(64, 64)
    log(record(inside, aligned_elements=64), record(made, task_bytes=1))
    for work in (inside, made):
        row = tuned.measured(Case("row", "a", work), OPTIONS)
        assert (row.log, row.problem) == ("exact", "")


@pytest.mark.full
def test_a_device_has_logs_of_its_own(log: Callable[..., None], vulkan: Target) -> None:
    log(record(SORTED, algorithm="sort"))
    assert tuned.measured(Case("top-k", "small", SORTED), OPTIONS._replace(target=vulkan)).log == "none"
    log(record(SORTED, vulkan, algorithm="sort"))
    row = tuned.measured(Case("top-k", "small", SORTED), OPTIONS._replace(target=vulkan))
    assert (row.log, row.problem) == ("exact", "")


@pytest.mark.parametrize(("lazy", "who"), [(0, "default"), (1, "tuned")])
def test_what_one_kernel_wrote_does_not_make_the_other_right(
    lazy: int, who: str, log: Callable[..., None], monkeypatch: pytest.MonkeyPatch, races: list[list[str]]
) -> None:
    log(record(SORTED, algorithm="sort"))
    right, made = runner.ours, iter(range(2))

    def ours(task: Task, target: Target | None = None, where: runner.Room | None = None) -> Any:
        attempt = right(task, target, where)
        assert where is not None
        outputs = tuple(where.outputs)
        return attempt if next(made) != lazy else attempt._replace(results=lambda: outputs)  # which does nothing

    monkeypatch.setattr(runner, "ours", ours)
    row = tuned.measured(Case("top-k", "small", SORTED), OPTIONS)
    assert row.problem.startswith(f"{who}: output_value_tensor: ")
    assert row.ratio is None
    assert races == []


def test_in_place_the_second_kernel_starts_from_the_input() -> None:
    task = Task(rounding(8, in_place=True))
    room = runner.room(task, targets.resolve("cpu"))
    room.inputs[0][...] = 0
    tuned._wipe(task, room)
    np.testing.assert_array_equal(room.inputs[0], task.x)


# -- The command --------------------------------------------------------------------------------------------------


def test_rows_and_their_mean(table: None, log: Callable[..., None], tmp_path: Path) -> None:
    log(record(SORTED, algorithm="sort"))
    outcome = call("--json", tmp_path / "a.json")
    assert outcome.exit_code == 0, outcome.output
    rows = outcome.stdout.splitlines()
    assert rows[1].split() == ["top-k:", "small", "algorithm=sort", "exact", "3", "µs", "2", "µs", "1.500", "±10.0", "%"]
    assert rows[2].split() == ["round:", "small", "none", "same", "kernel", "1.000"]
    assert "geometric mean of default/tuned: 1.225, over 2 rows" in outcome.stdout
    assert "least: 1.000, round: small" in outcome.stdout
    assert "rows tuned: 1 of 2 have another kernel than by default; the logs have 1 exact and 0 nearest records" in outcome.stdout
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["geometric_mean"] == pytest.approx(1.5**0.5)
    assert content["least"] == 1
    assert [(row["name"], row["ratio"], row["knobs"]) for row in content["rows"]] == [
        ("top-k: small", pytest.approx(1.5), {"algorithm": "sort"}),
        ("round: small", 1.0, {}),
    ]
    assert content["rows"][0]["tuned"]["median"] == 2e-6
    assert content["machine"]["target"] == targets.resolve("cpu").name
    assert call("--json", tmp_path / "a.json").exit_code == 0, "it may be written over"


def test_without_a_log_it_says_so(table: None, log: Callable[..., None]) -> None:
    assert "there is no log for this machine" in call().stdout


def test_cases_are_chosen_as_ever(table: None, log: Callable[..., None]) -> None:
    outcome = call("--operator", "TOP_K1", "--filter", "small")
    assert "top-k: small" in outcome.stdout
    assert "round: small" not in outcome.stdout


def test_a_wrong_kernel_fails_its_row_and_the_command(
    table: None, log: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    log(record(SORTED, algorithm="sort"))
    monkeypatch.setattr(checks, "ours", lambda task, actual: "not what it should be")
    outcome = call()
    assert outcome.exit_code == 1
    assert "failed: top-k: small: default: not what it should be" in outcome.stdout
    assert "over 1 rows" in outcome.stdout


def test_a_defect_is_a_failure_of_its_row(table: None, log: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise AssertionError("a defect")

    log(record(SORTED, algorithm="sort"))
    monkeypatch.setattr(runner, "ours", broken)
    assert "failed: top-k: small: AssertionError: a defect" in call().stdout


def test_ctrl_c_shows_and_keeps_what_was_measured(table: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measured(case: Case, options: runner.Options) -> TunedRow:
        if case.row == "round":
            raise KeyboardInterrupt
        return TunedRow(case.name, "none", {}, same=True)

    monkeypatch.setattr(tuned, "measured", measured)
    outcome = call("--json", tmp_path / "a.json")
    assert outcome.exit_code == console.INTERRUPTED
    assert "top-k: small" in outcome.stdout
    assert "interrupted, with 1 cases left" in outcome.stdout
    assert len(json.loads((tmp_path / "a.json").read_text())["rows"]) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--plot", "a.png"], "given --plot"),
        (["--page", "a.md"], "given --page"),
        (["--resume"], "given --resume"),
        (["--filter", "no such case"], "'no such case'"),
        (["--json", "no/such/folder/a.json"], "a file that can be written"),
    ],
    ids=str,
)
def test_misuse(arguments: list[str], says: str) -> None:
    outcome = call(*arguments)
    assert outcome.exit_code == 2
    assert says in " ".join(outcome.stderr.split())


def test_another_file_is_not_written_over(table: None, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"schema": "tvmdml-bench"}')
    outcome = call("--json", path)
    assert outcome.exit_code == 2
    assert "has no schema 'tvmdml-bench-tuned'" in " ".join(outcome.stderr.split())
    assert path.read_text() == '{"schema": "tvmdml-bench"}'

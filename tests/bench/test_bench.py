"""``tvmdml bench``: its measurements are well formed and correct, and are stored. No test depends on timings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest

from tvmdml import targets
from tvmdml.errors import InvalidArgument
from tvmdml.proof.bench import checks, command, inputs, measure, page, peers, plot, plot_operators, report, results, runner, tables
from tvmdml.proof.bench.cases import Case
from tvmdml.proof.bench.measure import CallTiming, Contender, RacePace
from tvmdml.proof.bench.results import BenchRun, CaseResult, ContenderResult
from tvmdml.proof.bench.rows.element_wise_round import rounding
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Traffic
from tvmdml.system import console, installing
from tvmdml.targets import Target

SMALL = 9
TIMING = CallTiming(2e-6, 1e-6, 3e-6, 5, 100)


def call(*arguments: object) -> Any:
    return commands.call("bench", *arguments)


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever enters a race takes as long as its place in it."""

    def race(contenders: list[Contender], pace: RacePace, clock: measure.Clock) -> list[CallTiming]:
        for contender in contenders:
            contender.prepare()
            contender.run(2)
        return [CallTiming(1e-6 * n, 0.9e-6 * n, 1.1e-6 * n, 3, 2) for n in range(1, len(contenders) + 1)]

    monkeypatch.setattr(measure, "race", race)


@pytest.fixture
def one_case(monkeypatch: pytest.MonkeyPatch, no_clock: None) -> Case:
    """The table is a single small case."""
    case = Case("round half-even f32", "8", rounding(8), 0.5, quick=True)
    monkeypatch.setattr(tables, "of", lambda kind: (case,))
    return case


def made_up(name: str, seconds: float, peer: float = 4e-6, **changes: Any) -> CaseResult:
    timing = CallTiming(seconds, seconds, seconds, 3, 1)
    entries = [
        ContenderResult("ours", "tvmdml", "bound", 2, timing),
        ContenderResult("peer", "numpy", "f", 1, CallTiming(peer, peer, peer, 3, 1)),
    ]
    fields: dict[str, Any] = {
        "name": name, "row": "row", "point": name, "work": rounding(8).as_json(), "goal": 1.5, "against_base": False,
        "threads": 2, "entries": entries, "failures": [], "traffic": Traffic(copied=1 << 20)._asdict(), "limit": 1e-6,
    }  # fmt: skip
    return CaseResult(**{**fields, **changes})


def made_up_run(*found: CaseResult) -> BenchRun:
    return BenchRun(threads=2, chosen="quick", results=list(found))


# -- The race -----------------------------------------------------------------------------------------------------


def test_a_race_takes_turns_and_every_other_one_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(measure, "settle", lambda: order.append("|"))
    monkeypatch.setattr(measure, "_slow", lambda contenders, *_: [False] * len(contenders))

    def contender(name: str) -> Contender:
        return Contender("peer", "lib", name, 1, lambda: None, prepare=lambda: order.append(name), sample=1e-6)

    timings = measure.race([contender("a"), contender("b")], RacePace(rounds=4, budget=100))
    assert [timing.samples for timing in timings] == [4, 4]
    assert "".join(order).replace("|", "") == "ab" + "abba" * 2
    assert all(timing.low <= timing.median <= timing.high for timing in timings)


def test_a_race_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "settle", lambda: None)
    contender = Contender("ours", "lib", "x", 1, lambda: None, sample=1e-6)
    (timing,) = measure.race([contender], RacePace(rounds=50, budget=0, least_rounds=3))
    assert timing.samples == 3


# -- The file -----------------------------------------------------------------------------------------------------


def test_a_run_comes_back_from_its_file(tmp_path: Path) -> None:
    run = made_up_run(made_up("a", 2e-6), made_up("b", 1e-6, failures=["tvmdml bound: 3 elements differ"], limit=None))
    path = tmp_path / "run.json"
    results.write(run, path)
    assert results.read(path) == run
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"], "nothing is left beside it"
    written = json.loads(path.read_text())
    assert written["machine"]["cores"] >= 1
    assert "numpy" in written["versions"]
    assert written["versions"]["tuning logs"] == "none (TVMDML_TUNING=0)"
    assert written["results"][0]["ratio"] == 2
    assert written["results"][1]["verdict"] == "failed"


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"bench file: given .*run\.json; allowed: a file that can be written"):
        results.write(made_up_run(), tmp_path / "none" / "run.json")


def _damaged(change: Callable[[dict[str, Any]], object]) -> str:
    content = {"schema": results.SCHEMA, "version": results.VERSION, **results._as_json(made_up_run(made_up("a", 1e-6)))}
    change(content)
    return json.dumps(content)


ALIENS = {
    "is not JSON": "{",
    "is not JSON ": "\x00",
    "has no schema": "[1, 2]",
    "has no schema ": '{"schema": "other"}',
    "has version 99": _damaged(lambda c: c.update(version=99)),
    "does not hold a run": _damaged(lambda c: c.pop("results")),
    "does not hold a run ": _damaged(lambda c: c["results"][0].pop("entries")),
    "does not hold a run  ": _damaged(lambda c: c["results"][0]["entries"][0]["timing"].update(median="fast")),
    "does not hold a run   ": _damaged(lambda c: c.update(results=[3])),
}


@pytest.mark.parametrize("option", ["--compare", "--resume", "--json"])
@pytest.mark.parametrize("reason", ALIENS)
def test_an_alien_file_is_refused_by_name_and_reason(reason: str, option: str, tmp_path: Path, one_case: Case) -> None:
    path = tmp_path / "alien.json"
    path.write_text(ALIENS[reason])
    arguments = {"--compare": ["--compare", path], "--resume": ["--json", path, "--resume"], "--json": ["--json", path]}
    outcome = call(*arguments[option])
    assert outcome.exit_code == 2
    assert "alien.json" in outcome.stderr
    assert reason.strip() in " ".join(outcome.stderr.split())
    assert path.read_text() == ALIENS[reason], "it is left alone"


# -- The command --------------------------------------------------------------------------------------------------


def test_a_case_from_the_command_line_to_the_file(tmp_path: Path, one_case: Case, forget: None) -> None:
    path = tmp_path / "run.json"
    outcome = call("--json", path)
    assert outcome.exit_code == 0, outcome.output
    assert "reached" in outcome.stdout
    assert "geometric mean: " in outcome.stdout
    assert "goals reached: 1 of 1" in outcome.stdout
    assert "compile: median" in outcome.stdout
    (result,) = results.read(path).results
    assert result.name == one_case.name
    assert result.compiled == 1
    assert result.verdict == "reached"


def test_a_real_race_from_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure, "QUICK", RacePace(rounds=2, budget=0, least_rounds=2))
    outcome = call("--operator", "element_wise_round", "--filter", "f32: 64K", "--threads", 1, "--json", tmp_path / "run.json")
    assert outcome.exit_code == 0, outcome.output
    (result,) = results.read(tmp_path / "run.json").results
    assert result.ours is not None
    assert result.best is not None
    assert result.limit
    assert {entry.threads for entry in result.entries} == {1}


def test_ctrl_c_keeps_what_was_measured_and_resume_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tuple(Case("row", point, rounding(8), 1.0, quick=True) for point in "abc")
    monkeypatch.setattr(tables, "of", lambda kind: table)
    measured: list[str] = []

    def measure_case(case: Case, options: runner.Options) -> CaseResult:
        if case.point == "b" and "b" not in measured:
            measured.append("b")
            raise KeyboardInterrupt
        measured.append(case.point)
        return made_up(case.name, 1e-6)

    monkeypatch.setattr(runner, "measured", measure_case)
    path = tmp_path / "run.json"
    outcome = call("--json", path)
    assert outcome.exit_code == command.INTERRUPTED
    assert "interrupted, with 2 cases left" in outcome.stdout
    assert results.read(path).done() == {"row: a"}
    assert call("--json", path, "--resume").exit_code == 0
    assert measured == ["a", "b", "b", "c"]
    assert [result.name for result in results.read(path).results] == ["row: a", "row: b", "row: c"]


def test_a_device_is_measured_beside_its_own_copy(vulkan: Target) -> None:
    case = Case("row", "a", rounding(1 << 16), goal=1.0)
    result = runner.measured(case, runner.Options(RacePace(rounds=1, budget=0.0, least_rounds=1), target=vulkan))
    assert result.failures == []
    assert result.goal is None, "goals speak of processors"
    assert result.ours is not None
    assert result.limit is not None
    assert [entry.name for entry in result.entries if entry.role == "limit"] == ["copied on the device"]
    assert vulkan.name == results.machine(vulkan)["target"]
    assert results.machine(vulkan)["device"] == targets.shown(vulkan)


def test_a_run_of_another_machine_is_not_resumed(tmp_path: Path, one_case: Case) -> None:
    run = made_up_run()
    run.machine["cpu"] = "another"
    results.write(run, tmp_path / "run.json")
    outcome = call("--json", tmp_path / "run.json", "--resume")
    assert outcome.exit_code == 2
    assert "machine" in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--operator", "NO_SUCH_OPERATOR"], "given 'NO_SUCH_OPERATOR'"),
        (["--filter", "no such case"], "'no such case'"),
        (["--filter", "one thread"], "allowed: a case of the set. --full has 4 of them: add --full"),
        (["--threads", "0"], "--threads"),
        (["--resume"], "Name it with --json"),
        (["--plot", "picture.svg"], "allowed: the path of a .png file"),
        (["--plot", "no/such/folder/p.png"], "a folder that exists"),
        (["--page", "page.html"], "allowed: the path of a .md file"),
        (["--compare", "no/such/file.json"], "cannot be read"),
    ],
    ids=str,
)
def test_misuse(arguments: list[str], says: str) -> None:
    outcome = call(*arguments)
    assert outcome.exit_code == 2
    assert says in " ".join(outcome.stderr.split())


def test_a_wrong_output_fails_its_row_and_the_command(monkeypatch: pytest.MonkeyPatch, one_case: Case) -> None:
    right = runner.ours

    def wrong(task: Task, target: Target | None) -> peers.Attempt:
        attempt = right(task, target)

        def results_() -> tuple[inputs.NumpyArray, ...]:
            (output,) = attempt.results()
            output[3] += 1
            return (output,)

        return attempt._replace(results=results_)

    monkeypatch.setattr(runner, "ours", wrong)
    outcome = call()
    assert outcome.exit_code == 1
    assert f"failed: {one_case.name}: tvmdml bound: output_tensor: 1 of 8 elements differ, first at (3,)" in outcome.stdout


def test_a_wrong_peer_fails_the_row_too(monkeypatch: pytest.MonkeyPatch, one_case: Case) -> None:
    monkeypatch.setattr(checks, "peer", lambda task, actual: "not what it promises")
    outcome = call()
    assert outcome.exit_code == 1
    assert "not what it promises" in outcome.stdout


def test_a_defect_is_a_failure_of_its_row(monkeypatch: pytest.MonkeyPatch, one_case: Case) -> None:
    def broken(task: Task, target: Target | None) -> peers.Attempt:
        raise AssertionError("a defect")

    monkeypatch.setattr(runner, "ours", broken)
    outcome = call()
    assert outcome.exit_code == 1
    assert "AssertionError: a defect" in outcome.stdout


def test_peers_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch, one_case: Case) -> None:
    monkeypatch.setattr(peers, "missing", lambda library, where: [] if library == "numpy" else [library])
    outcome = call()
    assert outcome.exit_code == 0
    assert "not installed, so not compared with: torch, onnxruntime, tvm topi" in outcome.stdout
    monkeypatch.setattr(peers, "missing", lambda library, where: [library])
    outcome = call()
    assert outcome.exit_code == 0
    assert "no peer" in outcome.stdout


def test_a_peer_that_cannot_is_left_out(monkeypatch: pytest.MonkeyPatch, no_clock: None) -> None:
    def unable(task: Task, threads: int) -> peers.Attempt:
        raise RuntimeError("no such type")

    monkeypatch.setattr(peers, "of", lambda *arguments: [peers.Peer("numpy", "f", unable)])
    result = runner.measured(Case("row", "a", rounding(8)), runner.Options(measure.QUICK))
    assert result.failures == []
    assert [entry.problem for entry in result.entries if entry.role == "peer"] == ["cannot: no such type"]


def test_the_number_of_threads_holds_for_a_case_and_no_longer(monkeypatch: pytest.MonkeyPatch, no_clock: None) -> None:
    monkeypatch.setenv("TVMDML_NUM_THREADS", "5")
    seen = []
    right = runner.ours
    monkeypatch.setattr(runner, "ours", lambda *task: seen.append(targets.resolve("cpu").tasks()) or right(*task))  # type: ignore[func-returns-value]
    for own, asked in ((None, None), (None, 3), (1, 3)):
        case = Case("row", "a", rounding(8), threads=own)
        runner.measured(case, runner.Options(measure.QUICK, threads=asked))
    assert seen == [5, 3, 1]
    assert os.environ["TVMDML_NUM_THREADS"] == "5"


def test_a_baseline_is_compared_with(no_clock: None) -> None:
    case = next(case for case in tables.of("cpu") if "ascending" in case.point).at_most(SMALL)
    result = runner.measured(case, runner.Options(measure.QUICK))
    assert result.against_base
    assert [entry.role for entry in result.entries] == ["ours", "base"]
    assert result.ratio == pytest.approx(2)


# -- Reports ------------------------------------------------------------------------------------------------------


def test_a_slowdown_is_flagged(tmp_path: Path, one_case: Case) -> None:
    old = made_up_run(made_up(one_case.name, 0.8e-6))
    results.write(old, tmp_path / "old.json")
    outcome = call("--compare", tmp_path / "old.json")
    assert outcome.exit_code == 0
    assert f"more than 10 % slower: {one_case.name}" in outcome.stdout
    assert "0.80" in outcome.stdout


@pytest.mark.parametrize(("before", "word"), [(1.2, "faster"), (1.05, ""), (0.95, ""), (0.85, "slower")])
def test_only_a_tenth_is_news(before: float, word: str) -> None:
    changed = report.change(made_up("a", before), made_up("a", 1.0))
    assert changed is not None
    assert changed[1] == word


def test_two_machines_are_told_apart() -> None:
    old, new = made_up_run(made_up("a", 1.0)), made_up_run(made_up("a", 1.0))
    assert len(report.comparison(old, new)[1]) == 2
    old.machine = {"cpu": "another"}
    assert "different machines" in report.comparison(old, new)[1][-1]


def test_a_time_that_says_nothing_is_said() -> None:
    wide = [ContenderResult("ours", "tvmdml", "bound", 2, CallTiming(1e-6, 0.1e-6, 3e-6, 3, 1))]
    lines = list(report.summary(made_up_run(made_up("a", 1e-6), made_up("b", 1e-6, entries=wide))))
    assert [line.partition(":")[2].split(":")[0] for line in lines if line.startswith("useless")] == [" b"]


def test_the_best_peer_counts_at_its_best_number_of_threads() -> None:
    times = {("torch", 1): 3e-6, ("torch", 2): 2e-6, ("numpy", 1): 5e-6}
    entries = [ContenderResult("ours", "tvmdml", "bound", 2, TIMING)]
    entries += [ContenderResult("peer", name, "f", n, TIMING._replace(median=t)) for (name, n), t in times.items()]
    entries += [ContenderResult("limit", "tvmdml", "copied", 2, TIMING._replace(median=1e-9))]
    entries += [ContenderResult("aside", "tvm topi", "f", 1, TIMING._replace(median=1e-6))]
    result = made_up("a", 1.0, entries=entries, limit=1e-6)
    assert (result.best.library, result.best.threads) == ("torch", 2)  # type: ignore[union-attr]
    assert result.ratio == 1
    assert result.aside_ratio == 0.5
    assert result.fraction == 0.5
    assert result.verdict == "missed"


def test_each_group_has_a_mean_and_may_have_a_goal() -> None:
    narrow: dict[str, Any] = {"goal": None, "group": "narrow", "group_goal": 3.0}
    found = [made_up("a", 1e-6, 2e-6, **narrow), made_up("b", 1e-6, 8e-6, **narrow), made_up("c", 1e-6, 1e-6, group="wide")]
    lines = list(report.summary(made_up_run(*found)))
    assert lines[0] == "geometric mean: 2.52 x the best peer, over 3 cases with a goal"
    assert lines[1:3] == ["  narrow: 4.00 x, over 2 cases; goal 3: reached", "  wide: 1.00 x, over 1 case"]
    assert lines[3] == "goals reached: 0 of 1 against peers, 1 of 1 against peers in the mean of a group"
    assert report._shown_goal(found[0]) == "mean 3"


def test_the_ten_slowest_operators_are_named_beside_their_peers() -> None:
    def case(name: str, peer: float) -> CaseResult:
        return made_up(f"{name}, {peer}", 1e-6, peer, work={"operator": name})

    found = [case(f"OPERATOR_{number}", (number + 1) * 1e-6) for number in range(10)]
    assert not any("slowest" in line for line in report.summary(made_up_run(*found)))
    found += [case("OPERATOR_9", 1e-7), case("OPERATOR_10", 1e-3)]
    lines = list(report.summary(made_up_run(*found)))
    start = next(place for place, line in enumerate(lines) if "slowest" in line)
    assert lines[start] == "the 10 slowest of 11 operators beside their peers, by the lowest ratio of each:"
    named = [line.split()[2].rstrip(":") for line in lines[start + 1 : start + 11]]
    assert named == ["OPERATOR_9", *(f"OPERATOR_{number}" for number in range(9))]
    assert lines[start + 1].endswith("1 µs, numpy f 100 ns")


def test_files_of_earlier_versions_are_read_and_compared(tmp_path: Path) -> None:
    """From before there were groups, shares, and logs."""
    run, path = made_up_run(made_up("a", 2e-6)), tmp_path / "run.json"
    results.write(run, path)
    content = json.loads(path.read_text())
    del content["logs"]
    for row in content["results"]:
        del row["group"], row["group_goal"], row["work"]["inputs"], row["share"], row["limit_of"], row["log"]
        for entry in row["entries"]:
            del entry["timing"]["host"]
    path.write_text(json.dumps(content))
    old = results.read(path)
    (found,) = old.results
    assert (found.group, found.group_goal, found.share, found.limit_of, found.log) == ("", None, None, "memory", None)
    assert (old.logs, report.logs_line(old)) == ([], "tuning logs in force: none (TVMDML_TUNING=0)")
    assert report.comparison(old, made_up_run(made_up("a", 1e-6, group="narrow")))[1][0].startswith("geometric mean of old/new: 2")


def test_the_mean_is_over_cases_with_a_goal_and_a_peer() -> None:
    found = [made_up("a", 1e-6, 2e-6), made_up("b", 1e-6, 8e-6), made_up("c", 1.0, goal=None), made_up("d", 1.0, against_base=True)]
    lines = list(report.summary(made_up_run(*found)))
    assert lines[0].startswith("geometric mean: 4.00 x the best peer, over 2 cases")
    assert lines[1] == "goals reached: 2 of 2 against peers, 0 of 1 against tvmdml's own baselines"
    assert "tuning logs in force: none (TVMDML_TUNING=0)" in lines


def test_the_means_of_families_and_operators_are_said_and_written(tmp_path: Path) -> None:
    sums = {"operator": "REDUCE"}
    found = [made_up("a", 1e-6, 2e-6), made_up("b", 1e-6, 8e-6), made_up("c", 1e-6, 3e-6, work=sums)]
    odd = [made_up("d", 1e-6, failures=["wrong"]), made_up("e", 1e-6, against_base=True)]
    run = made_up_run(*found, *odd)
    lines = list(report.summary(run))
    assert "  pointwise: 4.00 x, over 2 cases; lowest 2.00: a" in lines
    assert "  reduction: 3.00 x, over 1 case; lowest 3.00: c" in lines
    page.write(run, tmp_path / "page.md")
    written = (tmp_path / "page.md").read_text().splitlines()
    assert "| pointwise | 2 | 4.00 | 2.00 | a |" in written
    assert written[written.index("### Reduction") + 4] == "| `REDUCE` | 1 | 3.00 | 3.00 | c | 1 µs | 3 µs numpy |"


@pytest.mark.parametrize(("seconds", "shown"), [(1.5e-9, "1.5 ns"), (8.72e-5, "87.2 µs"), (0.9996, "1 s"), (0.0123, "12.3 ms")])
def test_times_are_shown_in_their_unit(seconds: float, shown: str) -> None:
    assert console.shown_seconds(seconds) == shown


@pytest.mark.full
def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    run = made_up_run(made_up("a", 2e-6), made_up("b", 1e-6, goal=None, limit=None), made_up("c", 1e-6, failures=["wrong"]))
    run.results.append(made_up("d", 1e-6, goal=None, share=0.9, limit_of="launch"))
    plot.draw(run, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    plot.draw(made_up_run(), tmp_path / "empty.png")
    plot_operators.draw(run, tmp_path / "operators.png")
    assert (tmp_path / "operators.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_picture_is_misuse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "_installed", lambda module: False)
    outcome = call("--plot", tmp_path / "p.png")
    assert outcome.exit_code == 2
    assert installing.command("bench") in outcome.stderr

"""``tvmdml bench --device cuda`` from the command line to the file, on the emulator if there is no GPU, and its goals."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest

from tvmdml import errors, targets
from tvmdml.proof.bench import (
    checks,
    cuda_limits,
    measure,
    peers,
    report,
    results,
    rows,
    runner,
    tables,
    venues,
)
from tvmdml.proof.bench.cases import Case
from tvmdml.proof.bench.measure import CallTiming, RacePace
from tvmdml.proof.bench.results import BenchRun, CaseResult, ContenderResult
from tvmdml.proof.bench.rows.diagonal_matrix import diagonal
from tvmdml.proof.bench.rows.element_wise_round import rounding
from tvmdml.proof.bench.rows.nonzero_coordinates import nonzero
from tvmdml.proof.bench.rows.top_k import top_k
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Traffic
from tvmdml.targets import Target

SMALL = 9

BOUNDS = {
    "round half-even f32": ["copied, by a kernel", "copied, by the driver"],
    "round in place f32": ["rewritten, by a kernel"],
    "nonzero f32 1M": ["read, by a kernel"],
    "diagonal, no input, 64M": ["written, by a kernel", "zeroed, by a kernel"],
}
"""Rows, and what of the device they are compared with first."""


def call(*arguments: object) -> Any:
    return commands.call("bench", "--device", "cuda", *arguments)


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few samples, of kernels that may have been compiled before."""
    monkeypatch.setattr(measure, "QUICK", RacePace(rounds=2, budget=0, least_rounds=2))
    monkeypatch.setattr(runner, "fresh_kernels", contextlib.nullcontext)


@pytest.fixture
def no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no library works on the device: a GPU's owner may have some."""
    monkeypatch.setattr(peers, "missing", lambda library, where="cpu": [library])


@pytest.fixture
def small_table(monkeypatch: pytest.MonkeyPatch) -> tuple[Case, ...]:
    """The first case of each operator, and of rows with bounds of their own, cut down."""
    found: dict[str, Case] = {}
    for case in tables.of("cuda"):
        found.setdefault(case.row if case.row in BOUNDS else case.work.operator, case.at_most(SMALL))
    table = tuple(found.values())
    monkeypatch.setattr(tables, "of", lambda kind: table)
    monkeypatch.setattr(tables, "select", lambda *arguments: [case for case in table if arguments[2] in case.name])
    return table


@pytest.fixture
def always_cold(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Even the smallest work is bound by memory, of a device with little cache."""
    monkeypatch.setattr(cuda_limits, "COLD_BYTES", 1)
    monkeypatch.setattr(cuda_limits, "flush_bytes", lambda device: 1 << 12)
    venues._flush.cache_clear()
    yield
    venues._flush.cache_clear()


# -- Right, on the device -----------------------------------------------------------------------------------------


def test_a_function_is_given_what_lies_on_the_device(cuda: Target) -> None:
    task = Task(rounding(8, door="function"))
    attempt = runner.ours(task, cuda)
    assert type(attempt.call()).__name__ == "DeviceArray"
    assert checks.ours(task, attempt.results()) == ""


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_quick_reference_is_the_reference(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:

    for data in ("normal", "constant", "ascending", "dense block", "10 %", "all NaN"):
        for sizes, k in (((3, 50), 7), ((2, 2, 64), 1), ((4, 10), 5)):
            work = top_k(*sizes, k=k, axis=len(sizes) - 1, dtype=dtype, data=data)
            monkeypatch.setattr(rows.load("top_k"), "LARGE", 1 << 24)
            expected = Task(work).expected
            monkeypatch.setattr(rows.load("top_k"), "LARGE", 1)
            assert checks.ours(Task(work), expected) == "", work


# -- The command --------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_from_the_command_line_to_the_file(
    cuda: Target, hurry: None, no_peers: None, small_table: tuple[Case, ...], tmp_path: Path
) -> None:
    path, device = tmp_path / "run.json", targets.shown(cuda)
    outcome = call("--json", path)
    assert outcome.exit_code == 0, outcome.output
    assert f"on {device}\n" in outcome.stdout, "the device's name says what the figures are worth"
    assert "not installed, so not compared with: torch, cupy, raft" in outcome.stdout
    assert "times are the device's own, between two events" in outcome.stdout
    for text in ("host", "of limit", "1.2 x launch", "no peer", "x launch"):
        assert text in outcome.stdout
    run = results.read(path)
    assert [result.name for result in run.results] == [case.name for case in small_table]
    assert run.machine["device"] == device
    for result in run.results:
        assert result.failures == []
        assert result.ours is not None
        assert result.ours.timing is not None
        assert result.ours.timing.host > 0
        assert result.limit_of == "launch"
        assert result.limit is not None
        assert [entry.name for entry in result.entries if entry.role == "limit"] == ["launch of an empty kernel"]
        assert {entry.role for entry in result.entries} <= {"ours", "base", "limit"}
    written = json.loads(path.read_text())["results"][0]
    assert written["share"] == pytest.approx(1 / 1.2)
    assert written["verdict"] in ("reached", "missed")

    again = call("--json", path, "--resume", "--compare", path)
    assert again.exit_code == 0, again.output
    assert "geometric mean of old/new: 1.00" in again.stdout
    assert results.read(path) == run, "nothing was measured again"


@pytest.mark.full
def test_memory_bound_work_is_measured_cold(
    cuda: Target, hurry: None, no_peers: None, always_cold: None, small_table: tuple[Case, ...], tmp_path: Path
) -> None:
    outcome = call("--json", tmp_path / "run.json")
    assert outcome.exit_code == 0, outcome.output
    found = {result.row: result for result in results.read(tmp_path / "run.json").results}
    assert {result.limit_of for result in found.values()} == {"memory"}
    for row, bounds in BOUNDS.items():
        met = [entry.name for entry in found[row].entries if entry.role == "limit"]
        assert met[: len(bounds)] == bounds


def test_a_real_peer_takes_part(cuda: Target, hurry: None) -> None:
    found = [name for name in peers.LIBRARIES["cuda"] if not peers.missing(name, "cuda")]
    if not found:
        pytest.skip(f"no library works on a CUDA device here: {', '.join(peers.absent('cuda'))}")
    for case in (rounding(1 << 16), top_k(4, 1000, k=5), nonzero(100, 100, data="10 %"), diagonal(64, 64)):
        result = runner.measured(Case("row", "a", case), runner.Options(RacePace(2, 0.0, 2), thorough=True, target=cuda))
        assert result.failures == []
        assert result.ratio is not None


def test_a_wrong_peer_on_the_device_fails_the_row(cuda: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(task: Task, threads: int) -> peers.Attempt:
        return peers.Attempt(lambda: None, lambda: (task.x,))

    wrong = peers.Peer("cupy", "f", make, where="cuda")
    monkeypatch.setattr(peers, "of", lambda *arguments: [wrong] if arguments[-1] == "cuda" else [])
    result = runner.measured(Case("row", "a", rounding(8), goal=1.0), runner.Options(RacePace(1, 0.0, 1), target=cuda))
    assert result.verdict == "failed"
    assert "cupy f: 8 of 8 elements differ" in result.failures[0]


def test_a_peer_is_timed_on_its_stream(cuda: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(task: Task, threads: int) -> peers.Attempt:
        return peers.Attempt(lambda: None, lambda: task.expected, stream=5)

    seen = []

    def race(contenders: list[measure.Contender], pace: RacePace, clock: measure.Clock) -> list[CallTiming]:
        seen.extend((contender.name, contender.stream) for contender in contenders)
        return [CallTiming(1e-6, 1e-6, 1e-6, 1, 1)] * len(contenders)

    monkeypatch.setattr(peers, "of", lambda *_: [peers.Peer("torch", "f", make, where="cuda", note="writes int64")])
    monkeypatch.setattr(measure, "race", race)
    result = runner.measured(Case("row", "a", rounding(8)), runner.Options(measure.QUICK, target=cuda))
    assert seen == [("bound", 0), ("f", 5), ("launch of an empty kernel", 0)]
    assert result.best is not None
    assert result.best.note == "writes int64"


def test_a_device_that_fails_ends_the_run_and_keeps_what_was_measured(
    cuda: Target, hurry: None, no_peers: None, small_table: tuple[Case, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right, opened = venues.Cuda.open, []

    def breaks(venue: venues.Cuda) -> None:
        opened.append(venue)
        if len(opened) == 3:  # once for the request, and once for the first case
            raise errors.DeviceError("an illegal address. Restart the process")
        right(venue)

    monkeypatch.setattr(venues.Cuda, "open", breaks)
    outcome = call("--json", tmp_path / "run.json")
    assert outcome.exit_code == 1
    left = len(small_table) - 1
    assert f"an illegal address. Restart the process, with {left} cases left; run the same command with --resume" in outcome.stdout
    assert len(results.read(tmp_path / "run.json").results) == 1


def test_without_a_gpu_the_command_says_so() -> None:
    environment = {**os.environ, "TVMDML_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}
    program = [sys.executable, "-c", "from tvmdml.cli import main; main()", "bench", "--device", "cuda"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "no NVIDIA driver was found" in done.stderr
    assert done.stdout == ""


def test_an_architecture_that_no_device_has_is_refused_before_anything_runs(cuda: Target) -> None:
    outcome = commands.call("bench", "--device", "cuda:sm_121")
    if outcome.exit_code == 0:
        pytest.skip("there is such a device here")
    assert outcome.exit_code == 1
    assert "no device here runs code for it" in " ".join(outcome.stderr.split())


def test_rows_of_the_devices_own_table_are_offered(cuda: Target) -> None:
    outcome = call("--filter", "no such case")
    assert outcome.exit_code == 2
    assert "nonzero f32 64M" in " ".join(outcome.stderr.split())


def test_the_processor_and_vulkan_keep_their_ways() -> None:
    venue = venues.of(targets.resolve("cpu"))
    assert type(venue) is type(venues.of(None)) is venues.Venue
    assert isinstance(venue.clock(Traffic(copied=1 << 30)), measure.WallClock)
    waiting = venues.Waiting(targets.resolve("cpu"))  # type: ignore[arg-type] # it is asked nothing
    assert (waiting.peers, waiting.goals) == ("cpu", False)
    assert isinstance(waiting.clock(Traffic()), measure.WallClock)


# -- Goals and reports --------------------------------------------------------------------------------------------


def made_up(ours: float = 1e-6, peer: float | None = 2e-6, limit: float | None = 0.8e-6, **fields: Any) -> CaseResult:
    entries = [ContenderResult("ours", "tvmdml", "bound", 1, CallTiming(ours, ours, ours, 3, 1, host=5e-6))]
    if peer is not None:
        entries.append(
            ContenderResult("peer", "torch", "topk", 1, CallTiming(peer, peer, peer, 3, 1, host=9e-6), note="writes int64")
        )
    work = rounding(8).as_json()
    traffic = Traffic(copied=1 << 26)._asdict()
    return CaseResult("row: a", "row", "a", work, fields.pop("goal", None), False, 1, entries, [], traffic, limit, **fields)


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, ""),
        ({"share": 0.7}, "reached"),
        ({"share": 0.9}, "missed"),
        ({"goal": 1.5}, "reached"),
        ({"goal": 1.5, "share": 0.7}, "reached"),
        ({"goal": 1.5, "share": 0.9}, "missed"),
        ({"goal": 2.5, "share": 0.7}, "missed"),
        ({"goal": 1.5, "share": 0.7, "peer": None}, "no peer"),
        ({"goal": 1.5, "share": 0.9, "peer": None}, "missed"),
        ({"share": 0.7, "peer": None}, "reached"),
    ],
    ids=str,
)
def test_a_case_reaches_all_its_goals_or_misses(fields: dict[str, Any], verdict: str) -> None:
    result = made_up(**fields)
    assert result.verdict == verdict
    result.failures.append("wrong")
    assert result.verdict == "failed"


def shown(show: Callable[[Any], Any], value: Any) -> str:
    from rich.console import Console

    console = Console(width=300, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - gone with the test
    console.print(show(value))
    return console.export_text()


def test_the_reports_columns_are_those_that_say_something() -> None:
    of_memory = made_up(goal=2.0, share=0.7)
    of_launch = made_up(ours=1e-6, limit=0.9e-6, share=1 / 1.2, limit_of="launch")
    of_memory.entries.append(ContenderResult("limit", "tvmdml", "copied, by a kernel", 1, CallTiming(1e-3, 1e-3, 1e-3, 3, 1)))
    of_launch.entries.append(
        ContenderResult("limit", "tvmdml", "launch of an empty kernel", 1, CallTiming(0.9e-6, 0.8e-6, 1e-6, 3, 1))
    )
    aside = made_up()
    aside.entries.append(ContenderResult("aside", "raft", "select_k", 1, CallTiming(0.5e-6, 0.5e-6, 0.5e-6, 3, 1)))
    run = BenchRun(1, "quick", machine={"device": "A GPU, sm_90"}, results=[of_memory, of_launch, aside])
    text = shown(report.table, run)
    for part in ("host", "5 µs", "2, 70 %", "80 %", "1.2 x launch", "1.11 x launch", "to raft", "0.5", "writes int64"):
        assert part in text
    lines = list(report.summary(run, ["cupy"]))
    assert lines[0] == "on A GPU, sm_90"
    assert "goals reached: 1 of 1 against peers, 2 of 2 against limits" in lines
    assert any(line.startswith("limits: copied at up to 134 GB/s, an empty launch in 900 ns") for line in lines)
    assert "to raft: 0.50 x as fast, not part of the goals; faster in 0 of 1 cases" in lines
    assert "not installed, so not compared with: cupy" in lines
    on_processor = made_up()
    on_processor.entries = [ContenderResult("ours", "tvmdml", "bound", 1, CallTiming(1e-6, 1e-6, 1e-6, 3, 1))]
    text = shown(report.table, BenchRun(1, "quick", results=[on_processor]))
    assert "host" not in text
    assert "to " not in text

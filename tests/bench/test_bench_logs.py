"""``tvmdml bench`` reports which tuning logs were in force: on the screen, in its files, in its picture, between two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import succeed
from test_bench import made_up, made_up_run
from tuning_records import record

from tvmdml import targets
from tvmdml.errors import InvalidArgument
from tvmdml.library import logs
from tvmdml.library.log_terms import Record
from tvmdml.proof.bench import logs_in_force, measure, plot, report, results, tables
from tvmdml.proof.bench.cases import Case
from tvmdml.proof.bench.measure import CallTiming
from tvmdml.proof.bench.results import LogFolder, LogUsed
from tvmdml.proof.bench.rows.element_wise_round import rounding
from tvmdml.proof.bench.rows.top_k import top_k
from tvmdml.proof.bench.work import Work

TUNED, NEAR, UNKNOWN = top_k(8, 200, k=5), top_k(8, 400, k=5), rounding(64)


def won(work: Work, **values: int | str) -> Record:
    """A record of work on this machine."""
    return record(work.describe(), machine=targets.resolve("cpu").machine(), knobs=values)


@pytest.fixture
def folders(own_place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders of logs: one that a variable names, and the user's. Of what both have, the first one's counts."""
    given = tmp_path / "given"
    given.mkdir()
    monkeypatch.setenv("TVMDML_TUNING_LOGS", str(given))
    logs.add(given, [won(TUNED, algorithm="sort")])
    logs.add(own_place, [won(TUNED, algorithm="rank"), won(rounding(64, dtype="float16"), aligned_elements=64)])
    return given, own_place


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is three small cases, and nobody is timed."""
    found = [Case("row", name, work, 1.0, quick=True) for name, work in (("a", TUNED), ("b", NEAR), ("c", UNKNOWN))]
    monkeypatch.setattr(tables, "of", lambda kind: tuple(found))
    monkeypatch.setattr(measure, "race", lambda contenders, *_: [CallTiming(1e-6, 1e-6, 1e-6, 3, 1) for _ in contenders])


def used(work: Work) -> LogUsed:
    return logs_in_force.used(work.describe().canonical(), False, targets.resolve("cpu"))


def test_each_case_says_whose_record_it_used(folders: tuple[Path, Path]) -> None:
    assert logs_in_force.folders() == [LogFolder(str(folders[0]), 1), LogFolder(str(folders[1]), 1)]
    assert used(TUNED) == LogUsed("exact", str(folders[0]), {"algorithm": "sort"})
    assert used(NEAR) == LogUsed("nearest", str(folders[0]), {"algorithm": "sort"})
    assert used(UNKNOWN) == LogUsed("none", "", {})


def test_logs_that_are_off_are_not_in_force(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_TUNING", "0")
    assert logs_in_force.folders() == []
    assert used(TUNED) == LogUsed()


@pytest.mark.usefixtures("table")
def test_a_run_says_it_on_the_screen_and_in_its_file(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    path = tmp_path / "run.json"
    outcome = succeed("bench", "--json", path, catch_exceptions=False)
    where = f"1 of {folders[0]}, 1 of {folders[1]}; used by 2 of 3 cases (1 exact, 1 nearest)"
    assert where in outcome.stdout.replace("\n", "")
    assert "exact: algorithm=sort" in outcome.stdout
    written = json.loads(path.read_text())
    assert written["logs"] == [{"folder": str(folder), "records": 1} for folder in folders]
    assert [row["log"]["kind"] for row in written["results"]] == ["exact", "nearest", "none"]
    assert written["results"][0]["log"] == {"kind": "exact", "folder": str(folders[0]), "knobs": {"algorithm": "sort"}}
    assert results.read(path).results[1].log == LogUsed("nearest", str(folders[0]), {"algorithm": "sort"})


@pytest.mark.full
@pytest.mark.usefixtures("table")
def test_tuned_beside_default_says_it_in_its_file(folders: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    succeed("bench", "--tuned", "--json", path)
    written = json.loads(path.read_text())
    assert written["logs"] == [{"folder": str(folder), "records": 1} for folder in folders]
    assert [(row["log"], row["folder"]) for row in written["rows"]] == [
        ("exact", str(folders[0])),
        ("nearest", str(folders[0])),
        ("none", ""),
    ]


def test_two_runs_with_other_logs_are_told_apart() -> None:
    one, other = LogUsed("exact", "here", {"algorithm": "sort"}), LogUsed("exact", "there")
    old = made_up_run(made_up("a", 1.0, log=one), made_up("b", 1.0, log=one), made_up("c", 1.0))
    new = made_up_run(made_up("a", 1.0, log=one), made_up("b", 1.0, log=other), made_up("c", 1.0, log=one))
    assert not any("tuning logs" in line for line in report.comparison(old, new)[1])
    old.versions = {**new.versions, "tuning logs": "40 records (aaaaaaaa)"}
    line = report.comparison(old, new)[1][-1]
    assert line.startswith("tuning logs differ: 40 records (aaaaaaaa) in the old run, none (TVMDML_TUNING=0) in the new one")
    assert line.endswith("; 1 cases used other records")
    old.versions = {}
    assert report.comparison(old, new)[1][-1].startswith("tuning logs differ: unknown in the old run")


@pytest.mark.parametrize(
    "change", [{"logs": [{"folder": "x"}]}, {"logs": ["x"]}, {"logs": [{"folder": "x", "records": "many"}]}, {"logs": 1}]
)
def test_a_file_whose_logs_make_no_sense_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    results.write(made_up_run(made_up("a", 1.0)), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InvalidArgument, match="does not hold a run"):
        results.read(path)


@pytest.mark.full
def test_the_picture_says_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed").Figure
    titles: list[str] = []
    monkeypatch.setattr(figure, "suptitle", lambda self, text: titles.append(text))
    run = made_up_run(made_up("a", 1.0, log=LogUsed("exact", "here")))
    run.logs = [LogFolder("here", 7)]
    plot.draw(run, tmp_path / "run.png")
    assert titles[0].endswith(": 7 of here; used by 1 of 1 cases (1 exact, 0 nearest)")

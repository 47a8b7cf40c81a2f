"""A short run of the long run works, and its verdicts distinguish growth from fluctuation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soak_curves
from folders import TESTS
from soak_curves import CURVES, Sample, judge, libraries

import tvmdml
from tvmdml.library import finding

LIMIT = 4 << 20


def made_up(count: int = 720, **added: np.ndarray) -> list[Sample]:
    """An hour of a healthy process: memories fill up and start afresh, others only waver; ``added`` goes on top of curves."""
    rng = np.random.default_rng(3)
    saw = np.arange(count) % 97 / 97
    columns = {
        "seconds": np.arange(count) * 3600 / count,
        **{name: 300 + 40 * saw + rng.normal(0, 2, count) for name in ("resident", "proportional", "private")},
        **{name: np.full(count, 7.0) for name in ("files", "threads")},
        "mappings": 600 + 1000 * saw,
        "libraries": 256 * saw,
        "kernels": 256 * saw,
        "plans": 500 * saw,
        "cache_kib": 4000 + 200 * saw,
        "cache_files": 600 + 20 * saw,
        "rate": 20 * rng.lognormal(0, 0.8, count),
        "probe": 1 + 0.5 * (rng.random(count) < 0.1),
    }
    for name, values in added.items():
        columns[name] = columns[name] + values
    return [Sample(*(float(columns[name][i]) for name in Sample._fields)) for i in range(count)]


def bad(samples: list[Sample]) -> dict[str, str]:
    """The curves that are found fault with, and why."""
    verdicts = judge(samples, LIMIT)
    assert len(verdicts) == len(CURVES)
    return {curve.name: verdict.why for curve, verdict in zip(CURVES, verdicts, strict=True) if not verdict.good}


def test_what_goes_up_and_down_or_grew_only_while_it_warmed_up_is_good() -> None:
    assert bad(made_up()) == {}
    assert bad(made_up(private=np.minimum(np.arange(720) * 2, 400))) == {}


@pytest.mark.parametrize(
    ("name", "an_hour"), [("private", 60), ("files", 20), ("threads", 9), ("mappings", 900), ("cache_files", 300)]
)
def test_a_leak_is_found(name: str, an_hour: float) -> None:
    leak = np.arange(720) / 720 * an_hour
    found = bad(made_up(**{name: leak}))
    assert set(found) == {name}
    assert "rose by" in found[name]
    slopes = judge(made_up(**{name: leak}), LIMIT)[[curve.name for curve in CURVES].index(name)][3:5]
    assert min(slopes) > 0


def test_slowing_down_and_a_cache_past_its_bound_are_found() -> None:
    assert set(bad(made_up(probe=np.arange(720) / 360))) == {"probe"}
    once = np.where(np.arange(720) == 30, 5000, 0)
    assert "its bound is" in bad(made_up(cache_kib=once))["cache_kib"]


def test_of_a_short_run_nothing_is_said() -> None:
    assert judge(made_up(59), LIMIT) == []
    assert "too short" in soak_curves.table([])


def test_the_table_names_what_is_wrong() -> None:
    text = soak_curves.table(judge(made_up(files=np.arange(720) / 36), LIMIT))
    rows = text.splitlines()
    assert len(rows) == len(CURVES) + 1
    assert [row for row in rows[1:] if not row.endswith("good")] == [row for row in rows if row.startswith("open files")]


@pytest.mark.full
@pytest.mark.usefixtures("in_parallel")
def test_kernels_that_nobody_uses_are_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MAX_KERNELS", 2)
    monkeypatch.setattr(finding, "_memory", {})
    before, most = libraries(), 0
    for dtype in ("float16", "float32", "float64"):
        for mode in ("halves_to_nearest_even", "toward_zero", "toward_infinity"):
            tvmdml.round(np.ones(3000, dtype), rounding_mode=mode)
            most = max(most, len(libraries() - before))
    assert 0 < most <= 3, "those of two calls, and the new one"


@pytest.mark.full
def test_a_run_works(tmp_path: Path) -> None:
    script, csv = TESTS / "soak.py", tmp_path / "soak.csv"
    command = [sys.executable, str(script), "--minutes", "0.06", "--every", "0.2", "--csv", str(csv)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "too short for a verdict" in done.stdout
    head, *rows = csv.read_text().splitlines()
    assert head == ",".join(Sample._fields)
    assert rows
    sample = Sample(*map(float, rows[-1].split(",")))
    assert min(sample.resident, sample.files, sample.mappings, sample.probe) > 0

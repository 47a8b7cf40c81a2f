"""All of ``tvmdml tune``. The winning candidate depends on chance here, but it must be logged and used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import call, succeed

from tvmdml.library import log_files, log_folders
from tvmdml.targets import Target
from tvmdml.tuning import tuner

COMMAND = [sys.executable, "-c", "from tvmdml.cli import main; main(prog_name='tvmdml')"]
ROUND = ("ELEMENT_WISE_ROUND", "--shape", "3000")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to tune in, with sessions of its own."""
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tune(*arguments: str | Path, code: int = 0, trials: int = 4) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "tune", *map(str, arguments), "--trials", str(trials)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, done.stderr
    return done


def lines(folder: Path) -> Sequence[log_files.LogLine]:
    return list(log_files.read_all(log_folders.files(folder)))


@pytest.mark.full
def test_a_winner_is_logged_and_used_from_then_on(place: Path) -> None:
    done = tune(*ROUND)
    assert "4 trials" in done.stderr
    (line,) = lines(place / "data" / "tvmdml" / "tuning_logs")
    assert line.record is not None
    assert (line.record.operator, line.record.trials) == ("pointwise", 4)
    assert line.record.default_seconds >= line.record.seconds > 0
    environment = {name: value for name, value in os.environ.items() if name != "TVMDML_TUNING"}
    shown = subprocess.run(
        [*COMMAND, "tuning", "show", "--operator", *ROUND], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert "exact" in shown


@pytest.mark.full(first=1)
@pytest.mark.parametrize("device", ["vulkan", pytest.param("cuda", marks=pytest.mark.exhaustive)], indirect=True)
def test_every_operation_of_a_spec_on_a_device(place: Path, device: Target) -> None:
    """Timed by the device's own clock. (The emulator's kernels take a C++ compiler a while.)"""
    (place / "spec.toml").write_text(
        f"""
targets = ["{device.name}"]
[[operators]]
operator = "ELEMENT_WISE_ROUND"
types = "float32"
sizes = [64]
[[operators]]
operator = "NONZERO_COORDINATES"
types = "int32"
sizes = [512]
"""
    )
    tune("--spec", "spec.toml", "--logs", "logs", "--report", "out.html", trials=1)
    found = [line.record for line in lines(place / "logs")]
    assert sorted(record.operator for record in found if record) == ["nonzero_coordinates", "pointwise"]
    assert {record.machine for record in found if record} == {device.machine()}
    assert "NONZERO_COORDINATES" in (place / "out.html").read_text()


@pytest.mark.full
def test_ctrl_c_keeps_what_was_found(place: Path) -> None:
    command = [*COMMAND, "tune", *ROUND, "--trials", "400", "--logs", "logs"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while not (found := list((place / "cache").rglob("trials.jsonl"))) or len(found[0].read_text().splitlines()) < 3:
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "the same command continues from there" in said
    (line,) = lines(place / "logs")
    assert line.record is not None
    tried = [json.loads(text)["knobs"] for text in found[0].read_text().splitlines()]
    assert line.record.trials == len(tried) >= 3
    tune(*ROUND, "--logs", "logs", trials=len(tried) + 2)
    after = [json.loads(text)["knobs"] for text in found[0].read_text().splitlines()]
    assert after[: len(tried)] == tried, "nothing that was finished is lost"
    assert len(after) == len(tried) + 2


def test_targets_of_a_spec_that_are_not_here_are_left_out(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(tuner, "tune", lambda wanted, target, **_: asked.append(target) or [])
    spec = '[[operators]]\noperator = "ELEMENT_WISE_ROUND"\ntypes = "float32"\nsizes = [64]\n'
    (place / "spec.toml").write_text(f'targets = ["vulkan:desktop", "cpu:x86-64"]\n{spec}')
    result = succeed("tune", "--spec", "spec.toml")
    assert "vulkan:desktop: left out: " in result.stderr
    assert asked == ["cpu:x86-64"]
    (place / "spec.toml").write_text(f'targets = ["vulkan:desktop"]\n{spec}')
    result = call("tune", "--spec", "spec.toml")
    assert result.exit_code == 1
    assert "a target of this machine" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Give exactly one of OPERATOR, --spec and --bench"),
        (("ELEMENT_WISE_ROUND", "--bench"), "exactly one of"),
        (("ELEMENT_WISE_ROUND",), "--sizes"),
        ((*ROUND, "--tracker", "127.0.0.1:9190"), "must be given together"),
        ((*ROUND, "--tracker", "nowhere", "--key", "x"), "tracker: given 'nowhere'"),
        ((*ROUND, "--tracker", "127.0.0.1:9", "--key", "x", "--target", "vulkan"), "A fleet tunes processors"),
        ((*ROUND, "--target", "gpu"), "target: given 'gpu'"),
        ((*ROUND, "--target", "cuda:sm_80,sm_90"), "tune target: given cuda:sm_80,sm_90; allowed: a device"),
        ((*ROUND, "--report", "out.pdf"), "out.pdf"),
        ((*ROUND, "--logs", "/dev/null/x"), "/dev/null"),
        (("NO_SUCH_OPERATOR", "--shape", "3"), "NO_SUCH_OPERATOR"),
        (("--spec", "gone.toml"), "gone.toml"),
    ],
)
def test_what_makes_no_sense_is_refused(place: Path, arguments: tuple[str, ...], said: str) -> None:
    result = call("tune", *arguments, "--trials", "1")
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code in (1, 2)
    assert said in result.stderr

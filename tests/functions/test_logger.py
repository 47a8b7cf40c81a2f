"""What the package says in ``logging.getLogger("tvmdml")``, and on a terminal."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tvmdml
from tvmdml.graph import kernels
from tvmdml.system import logger
from tvmdml.system.disk import stores

CALL = "import numpy as np, tvmdml; tvmdml.round(np.array([1.5], np.float32))"


def said(code: str, **environment: str) -> str:
    command = ["env", *(f"{name}={value}" for name, value in environment.items()), sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_it_is_quiet_by_default_and_tells_compiles_and_cache_hits(tmp_path: Path) -> None:
    for level, first, second in (
        ("info", r": compiled in ", None),
        ("debug", r": compiled in ", "element_wise_round"),
        ("", None, None),
    ):
        where = {"TVMDML_CACHE_DIR": str(tmp_path / level), "TVMDML_LOG": level}
        for expected in (first, second):
            text = said(CALL, **where)
            assert (expected in text and text.startswith("tvmdml: element_wise_round/")) if expected else text == ""
    assert ": from the cache\n" in said(CALL, TVMDML_CACHE_DIR=str(tmp_path / "debug"), TVMDML_LOG="DEBUG")


def test_a_level_that_is_none_is_told() -> None:
    assert "TVMDML_LOG: given 'loud'; allowed: debug, info, warning, error." in said(CALL, TVMDML_LOG="loud")


def test_a_warning_is_logged_and_printed_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(stores, "_warned", set[str]())
    with caplog.at_level(logging.INFO, "tvmdml"), pytest.warns(RuntimeWarning, match="tvmdml: no linker") as told:
        [stores.warn_once("cause", "tvmdml: no linker") for _ in range(2)]
    assert [record.getMessage() for record in caplog.records] == ["no linker"]
    assert [Path(one.filename).name for one in told] == [Path(__file__).name]
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    logger.Terminal().handle(caplog.records[0])
    assert terminal.getvalue() == ""  # Python has printed the warning


@pytest.mark.parametrize(("seconds", "level"), [(0.1, logging.INFO), (11.0, logging.WARNING)])
def test_slow_steps_are_warnings(seconds: float, level: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tvmdml"):
        logger.timed(seconds, "%s: compiled", "kernel")
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(level, f"kernel: compiled in {seconds:.2f} s")]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_terminal_gets_a_bar_of_what_takes_long(is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(kernels, "SLOW", -1.0 if is_slow else 1e9)
    with kernels.shown(None) as report:
        for done in range(3):
            report(done, 2)
    assert ("compiling kernels" in terminal.getvalue()) == is_slow


def test_a_graph_tells_how_many_kernels_it_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, forget: None
) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    graph = tvmdml.Graph()
    x = graph.input((3, 5))
    with caplog.at_level(logging.INFO, "tvmdml"):
        compiled = graph.compile([tvmdml.top_k(tvmdml.sqrt(x), 2).values])
    assert any(record.getMessage().startswith("2 kernels for cpu: compiled in ") for record in caplog.records)
    assert compiled([np.ones((3, 5), np.float32)])[0].shape == (3, 2)

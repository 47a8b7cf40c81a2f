"""Python processes that the package starts: none of them imports files from the current folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import packs as small
import pytest

from tvmdml.errors import CompileError, TvmdmlError
from tvmdml.library import spec
from tvmdml.packs.processes import Processes
from tvmdml.system import children
from tvmdml.system.workers import Workers

SHADOWS = ("numpy", "json", "pickle", "socket", "tvm", "multiprocessing", "ziglang", "onnx", "sitecustomize")
"""Modules that children import, or would like to: a file of each name stands in the current folder."""
_TRAP = "import os, pathlib; pathlib.Path(os.environ['TRAPPED'], __name__).touch(); raise SystemExit(f'{__name__} was imported')"


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder is full of traps; the folder that this gives holds the names of those that were stepped into."""
    for folder in ("here", "trapped"):
        (tmp_path / folder).mkdir()
    for name in SHADOWS:
        (tmp_path / "here" / f"{name}.py").write_text(_TRAP)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TRAPPED", str(tmp_path / "trapped"))
    return tmp_path / "trapped"


def tvmdml(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in the current folder."""
    command = [str(Path(sys.executable).with_name("tvmdml")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_pack_build_imports_nothing_from_the_current_folder(trapped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    wanted = small.few_for("cpu:x86-64-v2")
    spec.write(tmp_path / "pack.toml", wanted.wanted, wanted.targets)
    done = tvmdml("pack", "build", str(tmp_path / "pack.toml"), "-j", "2", "-o", str(tmp_path / "pack.tvmdml"))
    assert (done.returncode, os.listdir(trapped)) == (0, []), done.stderr
    assert (tmp_path / "pack.tvmdml").exists()


@pytest.mark.full
def test_doctor_imports_nothing_from_the_current_folder(trapped: Path) -> None:
    done = tvmdml("doctor", "--json")
    assert os.listdir(trapped) == []
    assert "was imported" not in done.stdout + done.stderr


@pytest.mark.full
def test_workers_import_nothing_from_the_current_folder(trapped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of tuning and of conformance, of a program whose own path begins with the current folder."""
    monkeypatch.syspath_prepend("")
    with Workers(1, {}, timeout=60) as workers:
        (loaded,) = workers.everywhere(_loads)
    assert os.listdir(trapped) == []
    assert loaded == [True] * 3


def _loads() -> list[bool]:
    import json
    import socket

    import numpy

    return [Path(str(module.__file__)).parent != Path.cwd() for module in (json, socket, numpy)]


@pytest.mark.parametrize("named", [False, True])
def test_pythonpath_counts_and_the_current_folder_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "/elsewhere", *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / ".") if named else "/elsewhere")
    path = children.module_path()
    assert path[0] == (str(tmp_path) if named else "/elsewhere")
    assert "" not in path
    assert (str(tmp_path) in path) == named
    (tmp_path / "own.py").write_text("print('mine')")
    done = subprocess.run(children.command("import own"), capture_output=True, text=True, check=False)
    assert (done.stdout == "mine\n") == named


def test_a_child_finds_this_package_where_the_current_folder_is_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(Path(children.__file__).parents[2])
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", home)] + [""])
    assert children.module_path()[-1] == home
    code = "import json, tvmdml; print(json.dumps(tvmdml.__file__))"
    done = subprocess.run(children.command(code), capture_output=True, text=True, check=True)
    assert Path(json.loads(done.stdout)) == Path(home, "tvmdml", "__init__.py")


def test_a_child_starts_where_the_current_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert subprocess.run(children.command("print('up')"), capture_output=True, text=True, check=True).stdout == "up\n"


def test_every_python_process_is_started_so() -> None:
    """``sys.executable`` stands in one file alone, but for a compiler that runs in a folder of its own."""
    package = Path(children.__file__).parents[1]
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(word in path.read_text() for word in ("sys.executable", "ProcessPoolExecutor(", "get_context("))
    }
    assert found == {"system/children.py", "targets/cpu/bundle.py"}


def test_a_process_that_is_killed_while_it_compiles_is_an_error() -> None:
    with Processes(1) as processes:
        future = processes.submit(os.abort)
        with pytest.raises(CompileError, match="a process that compiled kernels crashed: signal 6"):
            future.result()
        assert processes.submit(os.getpid).result() != os.getpid(), "another one takes its place"


def test_processes_end_with_their_executor_whatever_they_do() -> None:
    with Processes(2) as processes:
        pids = [processes.submit(os.getpid).result()]
        running = [
            processes.submit(time.sleep, 600) for _ in range(3)
        ]  # one worker that is ready, one that is starting, one that is waiting
        while not running[1].running():
            time.sleep(0.01)
    assert [isinstance(future.exception(), TvmdmlError) for future in running[:2]] == [True, True]
    assert running[2].cancelled()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]

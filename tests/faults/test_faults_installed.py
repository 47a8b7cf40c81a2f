"""Damaged installations: TVM, its runtime, the linker. An error says what is wrong and what to do; unaffected parts still work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import faults
import pytest

from tvmdml.system import installing
from tvmdml.targets.cpu import link

PROGRAM = """
import numpy as np, tvmdml
for _ in range(2):
    try:
        tvmdml.round(np.array([1.5], "float32"))
    except tvmdml.CompileError as error:
        print(error)
"""
REINSTALL = "pip install --force-reinstall"
DAMAGES = {
    "the compiler's library": (
        "tvm",
        "raise OSError('libtvm.so: cannot open shared object file')",
        ("installed but cannot be imported (OSError: libtvm.so", installing.command("compiler", "--force-reinstall")),
    ),
    "the compiler's own check": (
        "tvm",
        "raise RuntimeError('Cannot find libraries')",
        ("installed but cannot be imported (RuntimeError: Cannot find libraries)", REINSTALL),
    ),
    "versions that do not fit": (
        "tvm",
        "from tvm_ffi import nothing_of_this_name",
        ("installed but cannot be imported (ImportError: cannot import name 'nothing_of_this_name'", REINSTALL),
    ),
    "the runtime": (
        "tvm_ffi",
        "raise OSError('libtvm_ffi.so: cannot open shared object file')",
        ("the runtime cannot be imported (OSError: libtvm_ffi.so", f"`{REINSTALL} apache-tvm-ffi`"),
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_installation_is_named(tmp_path: Path, damage: str) -> None:
    package, code, words = DAMAGES[damage]
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TVMDML_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 2, "the second try says the same"
    assert all(word in line for word in words for line in lines)


NO_PROGRAM = "not a program of any kind\n"
FAILS = "#!/bin/sh\necho 'ld: it is broken' >&2\nexit 3\n"


@pytest.mark.parametrize(("text", "words"), [(NO_PROGRAM, "Exec format error"), (FAILS, "it is broken")])
def test_another_linker_is_tried_where_one_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None, text: str, words: str
) -> None:
    faults.prepare(monkeypatch)
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(link, "object_loader", lambda: False)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ld").write_text(text)
    (tools / "ld").chmod(0o755)
    whole = shutil.which("ld")
    if whole is None:
        pytest.skip("there is no linker here")
    monkeypatch.setenv("PATH", str(tools))
    compiled, (said,) = faults.call("round")
    assert compiled == 1
    assert words in said
    (tools / "ld.lld").symlink_to(whole)
    assert faults.call("round") == (1, [])
    assert faults.call("round") == (0, [])

"""``tvmdml doctor``: its report on an installation that works, and on each kind of fault."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call, succeed
from folders import TOP as ROOT

import tvmdml
from tvmdml import compiler, packs
from tvmdml.library.spec import Spec, Wanted
from tvmdml.proof import doctor
from tvmdml.proof.doctor import checks as doctor_checks
from tvmdml.proof.doctor import settings as doctor_settings
from tvmdml.proof.doctor.terms import CheckFinding, MachineCheck
from tvmdml.system import imports, installing
from tvmdml.system.disk import stores
from tvmdml.targets.cpu import link

Diagnose = Callable[..., tuple[int, str]]


@pytest.fixture
def diagnose(monkeypatch: pytest.MonkeyPatch, forget: None) -> Diagnose:
    """The exit code and the words of the command, of some of its checks, made in this process."""

    def run(*names: str) -> tuple[int, str]:
        checks = [check._replace(apart=False) for check in doctor_checks.CHECKS if check.name in names]
        assert len(checks) == len(names)
        monkeypatch.setattr(doctor_checks, "CHECKS", checks)
        done = call("doctor")
        assert isinstance(done.exception, SystemExit | None), done.exception
        return done.exit_code, done.output

    monkeypatch.setattr(stores, "_warned", set())
    return run


def tiny() -> tvmdml.TopK1:
    return tvmdml.TopK1(
        input_tensor=tvmdml.TensorDesc("float32", (3, 4)),
        output_value_tensor=tvmdml.TensorDesc("float32", (3, 2)),
        output_index_tensor=tvmdml.TensorDesc("uint32", (3, 2)),
        axis=1,
        k=2,
        axis_direction=tvmdml.AxisDirection.DECREASING,
    )


# -- All is well --------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_it_finds_this_installation_well(monkeypatch: pytest.MonkeyPatch) -> None:
    done = call("doctor", "--json")
    said = json.loads(done.stdout)
    assert [row for row in said["checks"] if row["state"] == "broken"] == []
    assert (done.exit_code, said["works"]) == (0, True)
    assert {row["check"] for row in said["checks"]} == {check.name for check in doctor_checks.CHECKS}
    assert all(row["words"] and row["state"] in ("ok", "limited", "broken", "absent") for row in said["checks"])
    assert next(row["words"] for row in said["checks"] if row["check"] == "kernel").endswith(" s, result correct")

    monkeypatch.setattr(doctor, "examine", lambda: [doctor.FindingRow(**row) for row in said["checks"]])
    shown = succeed("doctor")
    lines = shown.output.splitlines()
    assert lines[0] == "Installation"
    assert lines[-1].startswith("tvmdml works here")
    assert lines[-1].endswith(".")
    assert "\x1b" not in shown.output  # the output is a pipe
    assert len(lines) > len(said["checks"])


def test_it_knows_every_variable_that_is_read() -> None:
    read = {name for path in (ROOT / "tvmdml").rglob("*.py") for name in re.findall(r"\bTVMDML_[A-Z_]+\b", path.read_text())}
    assert read == set(doctor_settings.SETTINGS)
    documented = set(
        re.findall(r"^\| `(TVMDML_[A-Z_]+)", (ROOT / "tvmdml" / "system" / "disk" / "README.md").read_text(), re.MULTILINE)
    )
    assert documented <= set(doctor_settings.SETTINGS)


def test_it_asks_for_what_the_package_asks_for() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    least, below = map(doctor_checks._dotted, doctor_checks.FFI)
    assert re.search(rf'"apache-tvm-ffi>={re.escape(least)}(\.post\d+)?,<{re.escape(below)}"', text)
    assert f'"apache-tvm=={doctor_checks._dotted(doctor_checks.TVM[0])}.*"' in text
    extras = text.partition("[project.optional-dependencies]")[2].partition("[project.scripts]")[0]
    assert {*re.findall(r"^(\w+) = \[", extras, re.MULTILINE)} == {*doctor_checks._EXTRAS, "test"}


# -- Faults of the installation -----------------------------------------------------------------------------------


def test_without_a_linker(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "linker", lambda: None)
    monkeypatch.setattr(link, "object_loader", lambda: False)
    code, said = diagnose("linker")
    assert code == 0
    assert "limited linker: there is no linker (ld, ld.lld, cc, gcc, clang): every process compiles its kernels again" in said
    assert "apt-get install binutils" in said
    assert said.splitlines()[-1] == "tvmdml works here, with 1 limitation (see above)."
    monkeypatch.setattr(imports, "version", lambda name: None)
    assert "absent  linker: there is no linker, and without a compiler none is needed" in diagnose("linker")[1]


@pytest.mark.parametrize(
    ("version", "code", "words"),
    [
        ("0.1.15", 1, "apache-tvm-ffi 0.1.15 does not work with this package. TVM 0.27 can crash with 0.1.15."),
        ("", 1, "apache-tvm-ffi is not installed"),
        ("0.1.14.post1", 0, "apache-tvm-ffi 0.1.14.post1"),
    ],
)
def test_a_runtime_of_another_version(
    diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, version: str, code: int, words: str
) -> None:
    monkeypatch.setattr(imports, "version", lambda name: version)
    found, said = diagnose("runtime")
    assert found == code
    assert words in said
    assert ("-> `pip install 'apache-tvm-ffi>=0.1.14,<0.1.15'`" in said) == bool(code)


def _without_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def tvm() -> Any:
        raise imports.NoCompiler("the compiler is not installed")

    version = imports.version
    monkeypatch.setattr(imports, "tvm", tvm)
    monkeypatch.setattr(imports, "version", lambda name: "" if name == "apache-tvm" else version(name))
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "empty"))


def test_without_a_compiler_and_a_pack(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _without_compiler(monkeypatch, tmp_path)
    code, said = diagnose("compiler", "kernel")
    assert code == 1
    assert "absent  compiler: apache-tvm is not installed: only kernels from a pack or the cache can run" in said
    assert "limited kernel: no kernel can run: there is no compiler, no pack, and nothing in the cache" in said
    advice = f"{installing.command('compiler')}, or set TVMDML_PACKS to a pack."
    assert said.splitlines()[-1] == f"tvmdml is limited here: no kernel can run. {advice}"


def test_without_a_compiler_the_cache_may_have_kernels(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    tvmdml.compile(tiny())
    _without_compiler(monkeypatch, tmp_path)
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    code, said = diagnose("compiler", "kernel")
    assert code == 0
    assert "limited kernel: nothing was run: there is no compiler and no pack; only the 1 kernel in the cache can run" in said
    assert said.splitlines()[-1] == "tvmdml works here, with 1 limitation (see above)."


@pytest.mark.full
def test_one_wrong_variable_is_one_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, where in (
        ("TVMDML_NUM_THREADS", "many", "settings"),
        ("TVMDML_CACHE_SIZE", "huge", "settings"),
        ("TVMDML_TRUSTED_KEYS", "/nonexistent/key.pem", "settings"),
        ("TVMDML_CUDA_COMPILER", "clang", "settings"),
        ("TVMDML_PACKS", "/nonexistent.tvmdml", "packs"),
    ):
        with monkeypatch.context() as wrong:
            wrong.setenv(name, value)
            names = ["settings", "processor", "kernel", "contents", "packs", "trust", "CUDA"]
            rows = doctor.examine(names, apart=False)
            assert [row.check for row in rows if row.state == "broken"] == [where], (name, rows)
            assert f"not checked, because of {name}: see {where}" in [row.words for row in rows]
            assert doctor.verdict(rows) == f"Something is broken: {where}; see the details above."


def test_a_compiler_for_cuda_is_tried(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    monkeypatch.setenv("TVMDML_NVCC", str(nvcc))
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "nvcc")
    monkeypatch.setenv("TVMDML_CUDA_LIBRARY", "libnosuchdriver.so")
    for script, says in (
        (
            "echo 'Cuda compilation tools, release 12.4, V12.4.99'",
            f"ok      CUDA: kernels are compiled by nvcc ({nvcc}), version 12.4",
        ),
        (
            "echo I am a stub; exit 3",
            f"limited CUDA: nvcc ({nvcc}) was selected to compile kernels, but it does not work: nvcc failed: I am",
        ),
        ("echo hello", "but it does not work: "),
    ):
        nvcc.write_text(f"#!/bin/sh\n{script}\n")
        nvcc.chmod(0o755)
        assert says in diagnose("CUDA")[1]


def test_without_a_compiler_a_pack_will_do(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "ops.tvmdml"
    packs.build(Spec(("cpu:x86-64-v2" if "x86" in tvmdml.compile(tiny()).target.name else "cpu",), (Wanted(tiny()),)), path)
    _without_compiler(monkeypatch, tmp_path)
    monkeypatch.setenv("TVMDML_PACKS", str(path))
    code, said = diagnose("compiler", "kernel", "packs")
    assert code == 0, said
    assert re.search(r"ok      kernel: cpu: TOP_K1 taken from a pack or the cache in [\d.]+ s, result correct", said)
    assert f"ok      packs: {path}: " in said

    monkeypatch.setattr(doctor_checks, "_of_other_schedules", lambda pack: ["cpu top_k"])
    monkeypatch.setattr(doctor_checks, "_packed", lambda: iter(()))  # as of a pack of models with open sizes
    code, said = diagnose("kernel", "packs")
    assert code == 0
    assert "its kernels for cpu top_k were built from other schedules" in said
    assert "limited kernel: nothing was run: the packs have no small operation of certain sizes" in said
    assert "`tvmdml pack verify PACK`" in said


@pytest.mark.parametrize("check", ["kernel", "Vulkan"])
def test_a_wrong_result(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    if check == "Vulkan":
        from tvmdml.targets.vulkan import driver, loader
        from tvmdml.targets.vulkan.capabilities import PROFILES

        info = driver.DeviceInfo(0, "some GPU", "discrete GPU", "its driver", "1.3.0", "", PROFILES["core"])
        old = driver.DeviceInfo(1, "an old GPU", "discrete GPU", "a driver", "1.1.0", "it supports Vulkan 1.1.0", PROFILES["core"])
        monkeypatch.setattr(driver, "devices", lambda: (info, old))
        monkeypatch.setattr(loader, "has_validation_layer", lambda: False)
        monkeypatch.setattr(tvmdml.targets, "resolve", lambda name: name)
    monkeypatch.setattr(compiler, "compile", lambda desc, target: lambda x, out: out.fill(7))
    code, said = diagnose(check)
    assert code == 1
    assert "but the result is WRONG: " in said
    assert said.splitlines()[-1].startswith(f"Something is broken: {check}")
    if check == "Vulkan":
        assert (
            "limited Vulkan: vulkan:1, an old GPU (discrete GPU, Vulkan 1.1.0, a driver) cannot be used: it supports Vulkan 1.1.0"
            in said
        )
        assert "without float64 and int64 and float16" in said


def test_a_kernel_that_writes_where_it_should_not(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    def wild(x: Any, out: Any) -> None:
        np.rint(x, out=out)
        ctypes.memset(out.ctypes.data - 4, 0, 4)

    monkeypatch.setattr(compiler, "compile", lambda desc, target: wild)
    code, said = diagnose("kernel")
    assert code == 1
    assert "it wrote to memory outside its tensors" in said


def test_a_clone_that_was_never_installed_runs(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", nothing)
    code, said = diagnose("extras")
    assert code == 0
    assert f"limited extras: tvmdml runs from {ROOT / 'tvmdml'} and was not installed by pip" in said
    assert f"-> {installing.command('compiler')}." in said


def test_a_second_copy_of_the_package_is_named(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As where a clone was installed without ``-e``, and Python is started in it."""
    (tmp_path / "tvmdml").mkdir()
    (tmp_path / "tvmdml-0.1.0.dist-info").mkdir()
    (tmp_path / "tvmdml-0.1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: tvmdml\nVersion: 0.1.0\n")
    assert "limited" not in diagnose("versions")[1]
    monkeypatch.syspath_prepend(tmp_path)
    code, said = diagnose("versions")
    assert code == 0
    assert f"limited versions: tvmdml is also installed in {tmp_path / 'tvmdml'}; Python used" in said
    assert "Start Python in another folder" in said


# -- Settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "code", "words"),
    [
        ("TVMDML_NUM_THREADS", "many", 1, "TVMDML_NUM_THREADS: given 'many'; allowed: a number from 1 to 1024"),
        ("TVMDML_NUM_THREADS", "2", 0, "ok      settings: TVMDML_NUM_THREADS=2: valid"),
        ("TVMDML_CACHE_SIZE", "huge", 1, "TVMDML_CACHE_SIZE: given 'huge'; allowed: a size such as"),
        ("TVMDML_CUDA_COMPILER", "clang", 1, "allowed: nvcc or nvrtc"),
        ("TVMDML_NVCC", "/nonexistent/nvcc", 1, "there is no such program"),
        ("TVMDML_CUDA_LIBRARY", "/nonexistent/libcuda.so", 1, "there is no such file"),
        ("TVMDML_TRUSTED_KEYS", "/nonexistent/key.pem", 1, "TVMDML_TRUSTED_KEYS"),
        ("TVMDML_CACHE_DIR", "here/cache", 0, "limited settings: TVMDML_CACHE_DIR=here/cache: it is relative: programs that are"),
        ("TVMDML_CACHE_DIR", "~/cache", 0, "ok      settings: TVMDML_CACHE_DIR=~/cache: set"),
        ("TVMDML_TRUSTED_KEYS", " ", 1, "names no key, so that no pack is trusted"),
        ("TVMDML_TUNING", "off", 0, "limited settings: TVMDML_TUNING=off: on: every value except 0 means on"),
        ("TVMDML_DISABLE_JIT", "0", 0, "ok      settings: TVMDML_DISABLE_JIT=0: off"),
        ("TVMDML_TUNING_LOGS", "/nonexistent", 0, "limited settings: TVMDML_TUNING_LOGS=/nonexistent: /nonexistent: there is no"),
        ("TVMDML_CACH_DIR", "/tmp", 0, "TVMDML_CACH_DIR is set, but tvmdml does not read such a variable"),
    ],
)
def test_variables(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, name: str, value: str, code: int, words: str) -> None:
    monkeypatch.delenv("TVMDML_CUDA_LIBRARY", raising=False)
    monkeypatch.setenv(name, value)
    found, said = diagnose("settings")
    assert words in said
    assert found == code
    if name == "TVMDML_CACH_DIR":
        assert "-> Did you mean TVMDML_CACHE_DIR?" in said


def test_packs_that_are_not_there_or_damaged(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.tvmdml"
    damaged.write_bytes(b"no pack")
    monkeypatch.setenv("TVMDML_PACKS", f"{tmp_path}/none.tvmdml:{damaged}")
    code, said = diagnose("packs")
    assert code == 1
    assert said.count("broken  packs: ") == 2
    assert f"{tmp_path}/none.tvmdml" in said
    assert "correct TVMDML_PACKS, or build the pack again" in said


def test_trusted_keys_that_are_blank(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_TRUSTED_KEYS", "")
    code, said = diagnose("trust")
    assert code == 1
    assert "names no key, so that no pack is trusted" in said
    monkeypatch.delenv("TVMDML_TRUSTED_KEYS")
    assert "any pack may be loaded: TVMDML_TRUSTED_KEYS is not set" in diagnose("trust")[1]


def test_trusted_keys_without_cryptography(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_TRUSTED_KEYS", "A" * 43 + "=")
    monkeypatch.setattr(imports, "version", lambda name: "")
    code, said = diagnose("trust")
    assert code == 1
    assert "only packs signed with one of 1 trusted keys may be loaded" in said
    assert f"-> {installing.command('sign')}." in said


def test_bad_lines_in_logs_of_tuning(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVMDML_TUNING", "1")
    monkeypatch.setenv("TVMDML_TUNING_LOGS", str(tmp_path))
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "top_k.jsonl").write_text("{}\nnonsense\n")
    code, said = diagnose("logs")
    assert code == 0
    assert f"2 lines are ignored, such as {tmp_path}/machine/top_k.jsonl:1: " in said
    monkeypatch.setenv("TVMDML_TUNING", "0")
    assert "TVMDML_TUNING=0: no log is used" in diagnose("logs")[1]


# -- The cache ----------------------------------------------------------------------------------------------------


def test_a_cache_that_cannot_be_written(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "file"))
    code, said = diagnose("cache")
    assert code == 0
    assert f"limited cache: {tmp_path}/file/kernels cannot be written: Not a directory" in said
    assert "Set TVMDML_CACHE_DIR to another folder" in said


def test_a_cache_that_others_can_write_to(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels").chmod(0o777)
    code, said = diagnose("cache")
    assert code == 0
    assert f"limited cache: everybody can write to {tmp_path}/kernels (mode 0777), so the cache is not used" in said
    assert f"`chmod go-w {tmp_path}/kernels`" in said
    assert list((tmp_path / "kernels").iterdir()) == []  # no files remain


def test_damaged_entries(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    tvmdml.compile(tiny())
    assert "ok      contents: 1 kernels" in diagnose("contents")[1]
    (entry,) = stores.DiskStore().entries()
    artifact = entry.path.with_name(str(entry.manifest["artifact"]))
    artifact.write_bytes(artifact.read_bytes()[:-1] + b"?")
    code, said = diagnose("contents")
    assert code == 0
    assert f"limited contents: 1 damaged kernel, such as {entry.path.name}; ignored, and compiled again when needed" in said
    artifact.unlink()
    assert f"1 damaged kernel, such as {entry.path.name}" in diagnose("contents")[1]


# -- Devices, and processes of their own --------------------------------------------------------------------------


@pytest.mark.full
def test_without_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_CUDA_LIBRARY", "libnosuchdriver.so")
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.setenv(name, "/nonexistent")
    rows = doctor.examine(["CUDA", "Vulkan"])
    assert doctor.is_well(rows)
    absent = {row.check: row.words for row in rows if row.state == "absent"}
    assert "no NVIDIA driver was found (libnosuchdriver.so" in absent["CUDA"]
    assert re.search("Install (it|your GPU vendor's driver)", absent["Vulkan"])


@pytest.mark.parametrize(
    ("child", "words"),
    [
        ("import os; os.abort()", "the process that ran this check crashed (signal 6): no error message"),
        ("raise SystemExit('no such thing')", "the process that ran this check crashed (exit code 1): no such thing"),
        ("import time; time.sleep(60)", "no answer within 0.5 s"),
    ],
)
def test_what_crashes_or_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch, child: str, words: str) -> None:
    monkeypatch.setattr(doctor, "_CHILD", child)
    monkeypatch.setattr(doctor, "PATIENCE", 0.5 if "sleep" in child else 30)
    (row,) = doctor.examine(["kernel"])
    assert (row.state, row.words) == ("broken", words)
    assert doctor.verdict([row]) == "Something is broken: kernel; see the details above."


def test_a_check_that_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> Any:
        yield CheckFinding("ok", "so far")
        raise KeyError("surprise")

    monkeypatch.setattr(doctor_checks, "CHECKS", (MachineCheck("Group", "name", look),))
    assert [row.words for row in doctor.examine()] == ["so far", "this could not be checked: KeyError: 'surprise'"]
    assert call("doctor").exit_code == 1


def test_a_package_that_is_missing_is_named(diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    code, said = diagnose("versions")
    assert code == 1
    assert "broken  versions: the Python package numpy cannot be imported" in said
    assert "-> Reinstall tvmdml with pip" in said

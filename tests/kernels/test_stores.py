"""Kernels on disk: compiled once, found again, and never the reason for a failed call."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import tvmdml
from tvmdml import targets
from tvmdml.library import finding, stamps
from tvmdml.library.scheduling import kernel_for
from tvmdml.system import installing
from tvmdml.system.disk import stores
from tvmdml.targets import _quick
from tvmdml.targets.cpu import link

X = np.array([-2.5, -0.4, 0.5, 1.5, np.nan, np.inf], np.float32)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> stores.DiskStore:
    """An empty store, and nothing in memory."""
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stores, "_warned", set())
    return stores.DiskStore()


def compiled_by(call: object) -> int:
    """How many kernels a call compiles, given that it gets the right answer."""
    before = finding.compiled_count
    np.testing.assert_array_equal(tvmdml.round(X), np.rint(X))
    return finding.compiled_count - before


def start_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a new process would have in memory: nothing."""
    from tvmdml import functions

    monkeypatch.setattr(functions, "_plans", {})
    monkeypatch.setattr(functions, "_quick_plans", _quick.plans())
    monkeypatch.setattr(finding, "_memory", {})


def run(code: str, *, path: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **env}
    if path is not None:
        environment["PATH"] = path
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False)


def flip_a_bit(artifact: Path, manifest: Path) -> None:
    content = bytearray(artifact.read_bytes())
    content[len(content) // 2] ^= 1
    artifact.write_bytes(content)


def half_a_manifest(artifact: Path, manifest: Path) -> None:
    manifest.write_text(manifest.read_text()[:50])


@pytest.mark.parametrize("damage", [flip_a_bit, half_a_manifest])
def test_a_damaged_entry_is_built_again(store: stores.DiskStore, monkeypatch: pytest.MonkeyPatch, damage: object) -> None:
    assert compiled_by(tvmdml.round) == 1
    start_anew(monkeypatch)
    assert compiled_by(tvmdml.round) == 0
    (entry,) = store.entries()
    damage(entry.path.with_name(str(entry.manifest["artifact"])), entry.path)
    start_anew(monkeypatch)
    assert compiled_by(tvmdml.round) == 1
    start_anew(monkeypatch)
    assert compiled_by(tvmdml.round) == 0


def test_a_folder_that_cannot_be_written_costs_a_warning_once(monkeypatch: pytest.MonkeyPatch, forget: None) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", "/dev/null/cache")
    monkeypatch.setattr(stores, "_warned", set())
    with pytest.warns(RuntimeWarning, match="Set TVMDML_CACHE_DIR to another folder"):
        assert compiled_by(tvmdml.round) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tvmdml.round(X, rounding_mode="toward_zero")


@pytest.mark.full
def test_a_store_that_can_only_be_read_is_read(store: stores.DiskStore, tmp_path: Path) -> None:
    compiled_by(tvmdml.round)
    code = """
import os, sys, numpy as np, tvmdml
from tvmdml.library import finding
from tvmdml.system.disk import stores
def refuse(*a, **k): raise OSError(30, "Read-only file system")
stores.os.utime = stores.os.replace = refuse
stores.Path.mkdir = refuse
assert tvmdml.round(np.array([1.5], "float32")) == 2
assert finding.compiled_count == 0 and "tvm" not in sys.modules
tvmdml.round(np.array([1.5], "float64"))
assert finding.compiled_count == 1
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == 1


@pytest.mark.full
def test_a_full_disk_costs_a_warning(store: stores.DiskStore) -> None:
    code = """
import resource, numpy as np, tvmdml
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))  # enough for the object, not for the library
assert tvmdml.round(np.array([1.5], "float32")) == 2
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert "kernels cannot be stored" in done.stderr
    assert store.entries() == []


def test_without_a_linker_kernels_stay_in_memory(store: stores.DiskStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(link, "object_loader", lambda: False)
    with pytest.warns(RuntimeWarning, match=r"no linker was found.*" + re.escape(installing.command("orcjit"))):
        assert compiled_by(tvmdml.round) == 1
    assert store.entries() == []
    big = np.arange(9, dtype=np.float32)
    big[::2] = 0
    np.testing.assert_array_equal(tvmdml.nonzero_coordinates(big), np.argwhere(big))


def test_without_a_linker_the_object_loader_keeps_them(
    store: stores.DiskStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_parallel: None
) -> None:
    if not link.object_loader():
        pytest.skip("the orcjit extra is not installed")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert compiled_by(tvmdml.round) == 1
    (entry,) = store.entries()
    assert str(entry.manifest["artifact"]).endswith(".o")
    start_anew(monkeypatch)
    assert compiled_by(tvmdml.round) == 0


def test_a_forbidden_compilation_says_which_kernel(store: stores.DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_DISABLE_JIT", "1")
    with pytest.raises(
        tvmdml.CompileError, match=r"ELEMENT_WISE_ROUND on cpu:.*no pack is loaded.*TVMDML_DISABLE_JIT.*TOWARD_ZERO"
    ):
        tvmdml.round(X, rounding_mode="toward_zero")
    monkeypatch.delenv("TVMDML_DISABLE_JIT")
    assert compiled_by(tvmdml.round) == 1
    monkeypatch.setenv("TVMDML_DISABLE_JIT", "1")
    start_anew(monkeypatch)
    assert compiled_by(tvmdml.round) == 0


def fill(store: stores.DiskStore, count: int) -> list[str]:
    """Entries of 1000 bytes, each used a minute after the one before."""
    names = []
    for i in range(count):
        name = f"{i:02d}" + "0" * 38
        with store.staging(name) as folder:
            built = folder / "kernel.so"
            built.write_bytes(bytes([i]) * 1000)
            store.add(name, {"operator": f"op{i}"}, built)
        used = time.time() - 60 * (count - i)
        os.utime(store.root / name[:2] / f"{name}.json", (used, used))
        names.append(name)
    return names


def test_oldest_use_goes_first(tmp_path: Path) -> None:
    store = stores.DiskStore(tmp_path, limit=1 << 30)
    names = fill(store, 6)
    assert store.find(names[0], (".so",)) is not None  # used now, so it is the newest
    assert [e.manifest["operator"] for e in store.entries()] == ["op1", "op2", "op3", "op4", "op5", "op0"]
    each = store.entries()[0].size
    assert store.prune(3 * each) == 3
    assert [e.manifest["operator"] for e in store.entries()] == ["op4", "op5", "op0"]
    assert store.clear() == 3
    assert store.entries() == []


def test_a_store_stays_in_its_bounds(tmp_path: Path) -> None:
    store = stores.DiskStore(tmp_path, limit=5000)
    fill(store, 12)
    assert sum(entry.size for entry in store.entries()) <= 5000
    assert len(store.entries()) >= 3


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("512M", 512 << 20), ("1.5 GiB", 3 << 29), ("2kb", 2048)])
def test_sizes_are_read(text: str, size: int) -> None:
    assert stores.parse_size(text, "x") == size


def test_a_size_that_is_none_is_refused(store: stores.DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("lots", "9" * 400, "1e999", "-1", "nan"):
        monkeypatch.setenv("TVMDML_CACHE_SIZE", size)
        with pytest.raises(tvmdml.InvalidArgument, match=r"TVMDML_CACHE_SIZE: given .*; allowed: a size such as"):
            tvmdml.round(X)


def test_another_version_finds_nothing_of_ours_and_harms_nothing(store: stores.DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled_by(tvmdml.round) == 1
    monkeypatch.setattr(stamps, "FORMAT", stamps.FORMAT + 1)
    start_anew(monkeypatch)
    assert compiled_by(tvmdml.round) == 1
    assert len(store.entries()) == 2
    monkeypatch.undo()
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(store.root.parent))
    start_anew(monkeypatch)
    assert compiled_by(tvmdml.round) == 0


def test_the_key_names_all_that_the_code_depends_on() -> None:
    here = targets.resolve("cpu")
    desc = tvmdml.TensorDesc("float32", (4, 4))
    decided = kernel_for(tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode=0), here)
    manifest = stamps.manifest(decided, here)
    assert set(manifest) == {"format", "operator", "kernel", "parameters", "target", "source", "tvm", "tvm_ffi"}
    assert "x86-64" in here.name or "aarch64" in here.name
    assert "native" not in here.name
    for field in manifest:
        assert stamps.digest({**manifest, field: "another"}) != stamps.digest(manifest)
    twice = (stamps.manifest(decided._replace(parameters=(("same", one), ("same", 3))), here) for one in (1, 2))
    assert len({stamps.digest(one) for one in twice}) == 2, "of two parameters with one name, one was lost"


def test_the_key_covers_every_module_that_makes_code() -> None:
    for kind in targets.kinds():
        target = targets.target_class(kind)
        for source in target.sources:
            assert importlib.util.find_spec(f"tvmdml.targets.{kind}" + (f".{source}" if source else "")) is not None, source
    folder = Path(targets.__file__).parent / "vulkan"
    assert {path.stem for path in folder.glob("spirv*.py")} <= set(targets.target_class("vulkan").sources)


def test_a_length_of_its_own_needs_no_kernel_of_its_own(forget: None) -> None:
    tvmdml.round(np.zeros(5, np.float32))
    before = finding.compiled_count
    for shape in ((7,), (1, 9), (3, 4), (2, 3, 5), ()):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(tvmdml.round(x), np.rint(x))
    assert finding.compiled_count == before

"""A process killed at every step of a write: the old or the new content remains, and the next process continues."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import faults
import pytest
from faults import deaths
from support import tensor, top_k_desc

from tvmdml import packs, targets
from tvmdml.library import lines, log_files, log_folders, logs, signing
from tvmdml.library.format import Pack
from tvmdml.library.log_terms import Job, Machine, Outcome, Record, Trial
from tvmdml.packs import change
from tvmdml.proof.bench import results
from tvmdml.system.disk import stores
from tvmdml.targets.vulkan import pipeline_cache
from tvmdml.targets.vulkan.physical import Identity
from tvmdml.tuning import session


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> stores.DiskStore:
    """An empty store."""
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    faults.prepare(monkeypatch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "elsewhere"))
        faults.call("round")  # so that children only do work with files
    return stores.DiskStore()


def rounded() -> int:
    """How many kernels are compiled by a call in a new process."""
    compiled, said = faults.call("round")
    assert said == []
    return compiled


@pytest.mark.full
def test_a_kernel_is_kept_whole_or_not_at_all(store: stores.DiskStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled = []
    for step in deaths(rounded, tmp_path / "cache"):
        whole = len(store.entries())
        left = {path.name for path in store.root.glob("??/*")}
        assert rounded() == 1 - whole, step
        compiled.append(1 - whole)
        assert len(store.entries()) == 1
        assert rounded() == 0
        assert left <= {path.name for path in store.root.glob("??/*")}, "it may be of a process that is at work"
        store.clear()
    assert set(compiled) == {0, 1}, "there are steps before the entry is there, and after"
    rounded()
    assert any(path.name.startswith(".building-") for path in store.root.glob("??/.*")), "nothing was left behind"
    monkeypatch.setattr(stores, "STALE", -1.0)
    store.prune()
    (entry,) = store.entries()
    assert {path.name for path in store.root.glob("??/*")} == {entry.path.name, entry.manifest["artifact"]}
    assert rounded() == 0


def test_a_pruned_entry_is_whole_or_gone(store: stores.DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rounded()
    for step in deaths(store.clear, store.root):
        gone = not store.entries()
        assert rounded() == gone, step
        assert len(store.entries()) == 1
    monkeypatch.setattr(stores, "STALE", -1.0)
    assert store.clear() == 0
    assert not list(store.root.glob("??/*"))


def test_a_drivers_pipelines_are_kept_whole_and_nothing_is_left_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = Identity(1, 2, 3, bytes(range(16)))
    file = tmp_path / "vulkan" / "pipelines.bin"
    header = struct.pack("<IIII16s", 32, 1, identity.vendor, identity.device, identity.cache_uuid)
    for _ in deaths(lambda: pipeline_cache.write(file, header + b"new"), tmp_path):
        assert pipeline_cache.read(file, identity) in (b"", header + b"new")
    assert len(list(file.parent.iterdir())) > 1, "nothing was left behind"
    monkeypatch.setattr(stores, "STALE", -1.0)
    pipeline_cache.write(file, header + b"newer")
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert pipeline_cache.read(file, identity) == header + b"newer"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of one kernel."""
    return faults.pack(tmp_path_factory.mktemp("one"))


def build(one: Path, output: Path, key: Path) -> None:
    packs.build(faults.spec(), output, jobs=1)


def merge(one: Path, output: Path, key: Path) -> None:
    change.merge([one], output)


def sign(one: Path, output: Path, key: Path) -> None:
    signing.sign(output, key)


@pytest.mark.parametrize("make", [build, merge, sign])
def test_a_pack_is_what_it_was_or_what_it_is_to_be(one: Path, tmp_path: Path, make: Callable[[Path, Path, Path], None]) -> None:
    if make is sign:
        pytest.importorskip("cryptography", reason="the sign extra is not installed")
        signing.generate(tmp_path / "private.pem", tmp_path / "public.pem")
    folder = tmp_path / "packs"
    folder.mkdir()
    output = folder / "output.tvmdml"
    before = {build: b"", merge: b"something that is to be replaced", sign: one.read_bytes()}[make]
    if before:
        output.write_bytes(before)
    for _ in deaths(lambda: make(one, output, tmp_path / "private.pem"), folder):
        assert (output.read_bytes() if output.exists() else b"") == before
    assert output.read_bytes() != before
    with contextlib.closing(Pack(output)) as made:
        assert [made.content(number) for number in range(made.part_count)]


def record(seconds: float) -> Record:
    desc = top_k_desc(tensor("float32", (64, 4096)), 1, 20, "decreasing")
    return Record(
        operator="top_k",
        machine=Machine(targets.resolve("cpu").name, "a test's", 2),
        types=logs.types_of(desc),
        shape_class=logs.class_of(desc, ()),
        knobs={"algorithm": "sort"},
        seconds=seconds,
        spread=0.01,
        default_seconds=1e-5,
        trials=1,
        versions={"tvmdml": "0"},
        date="2026-01-01T00:00:00+00:00" if seconds > 5e-6 else "2026-02-01T00:00:00+00:00",
        measured=lines.of(desc),
    )


def test_a_log_is_the_old_one_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    old, new = record(8e-6), record(4e-6)
    folder = tmp_path / "logs"
    log_files.merge(folder, [old])
    (path,) = log_folders.files(folder)
    before = path.read_bytes()
    for _ in deaths(lambda: log_files.merge(folder, [new]), tmp_path):
        assert list(logs.read([folder])) in ([old], [new])
        path.write_bytes(before)
    assert list(logs.read([folder])) == [new]


@pytest.mark.full
def test_a_session_keeps_every_trial_that_was_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    job, machine = Job({"Operator": "TOP_K1"}, False, "cpu"), Machine("cpu", "a test's", 2)
    trials = [Trial({"number": number}, Outcome(1e-5, 1e-5, 0.01, 1.0)) for number in range(3)]

    def work() -> None:
        kept = session.Session(job, machine, "schedules")
        with kept.held():
            for trial in trials[len(kept.trials) :]:
                kept.add(trial)
            kept.finish(3, record(8e-6))

    counts = [len(session.Session(job, machine, "schedules").trials) for _ in deaths(work, tmp_path)]
    assert counts == sorted(counts)
    assert set(counts) >= {0, 3}, "each begins where the one before it ended"
    found = session.Session(job, machine, "schedules")
    assert found.trials == trials
    assert found.finished(3) == record(8e-6)


def test_a_run_of_the_benchmark_is_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    results.save({"cases": 1}, path)
    seen = set()
    for _ in deaths(lambda: results.save({"cases": 2}, path), tmp_path):
        seen.add(json.loads(path.read_text())["cases"])
    assert seen == {1}
    assert json.loads(path.read_text()) == {"cases": 2}

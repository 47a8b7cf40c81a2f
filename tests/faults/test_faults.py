"""Full disks, folders that are not writable or writable by everybody, clocks that go backwards, caches that disappear."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import commands
import faults
import numpy as np
import pytest
from faults import CALLS, call
from support import round_desc, tensor

from tvmdml import packs, targets
from tvmdml.errors import InvalidArgument, PackError
from tvmdml.library import log_files, recording, signing
from tvmdml.library.log_terms import Job, Machine, Outcome, Trial
from tvmdml.packs import change
from tvmdml.proof.bench import results
from tvmdml.system.disk import stores
from tvmdml.targets.cpu import bundle
from tvmdml.tuning import session


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch, forget: None) -> None:
    """Nothing in memory."""
    faults.prepare(monkeypatch)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: None) -> Path:
    """An empty cache."""
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


# -- A disk of its own --------------------------------------------------------------------------------------------


class Disk:
    """A file system of so many KiB."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _mount(self, *options: str) -> None:
        subprocess.run(["mount", *options, str(self.path)], check=True, capture_output=True, timeout=20)

    def resize(self, kib: int) -> None:
        self._mount("-o", f"remount,size={kib}k")

    def protect(self) -> None:
        self._mount("-o", "remount,ro")

    def fill(self) -> None:
        with contextlib.suppress(OSError), open(self.path / "filling", "wb", buffering=0) as file:
            while file.write(bytes(512)):
                pass


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk of 40 KiB."""
    found = Disk(tmp_path / "disk")
    found.path.mkdir()
    try:
        found._mount("-t", "tmpfs", "-o", "size=40k", "tmpfs")
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield found
    finally:
        subprocess.run(["umount", "-l", str(found.path)], check=True, timeout=20)


# -- Full ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("kib", [4, 20, 36])
def test_a_full_disk_keeps_whole_kernels_or_none(disk: Disk, monkeypatch: pytest.MonkeyPatch, anew: None, kib: int) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(disk.path))
    monkeypatch.setattr(tempfile, "tempdir", str(disk.path))
    disk.resize(kib)
    compiled, said = call()
    assert compiled == len(CALLS)
    assert len(said) == 1
    assert f"kernels cannot be stored in {disk.path}" in said[0]
    whole = len(stores.DiskStore().entries())
    assert whole < len(CALLS)
    assert not list(disk.path.glob("kernels/??/.building-*"))
    disk.resize(1024)
    assert call() == (len(CALLS) - whole, [])
    assert call() == (0, [])


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of one kernel."""
    return faults.pack(tmp_path_factory.mktemp("one"))


def _build(path: Path, one: Path) -> None:
    packs.build(faults.spec(), path, jobs=1)


def _merge(path: Path, one: Path) -> None:
    change.merge([one], path)


def _sign(path: Path, one: Path) -> None:
    if not one.with_name("private.pem").exists():
        signing.generate(one.with_name("private.pem"), one.with_name("public.pem"))
    signing.sign(path, one.with_name("private.pem"))


def _bench(path: Path, one: Path) -> None:
    results.save({"cases": 2}, path)


def _log(path: Path, one: Path) -> None:
    log_files._write(path, [], [b"another line"])


@pytest.mark.full(first=1)
@pytest.mark.parametrize("write", [_build, _merge, _sign, _bench, _log])
def test_what_no_room_is_left_for_is_named_and_what_was_there_stays(
    disk: Disk, one: Path, cache: Path, write: Callable[[Path, Path], None]
) -> None:
    if write is _sign:
        pytest.importorskip("cryptography", reason="the sign extra is not installed")
    path = disk.path / "it"
    shutil.copyfile(one, path)
    disk.fill()
    with pytest.raises(
        (OSError, InvalidArgument, PackError), match=f"{path}.*(No space left|cannot be written)|No space left.*{path}"
    ):
        write(path, one)
    assert path.read_bytes() == one.read_bytes()
    assert {found.name for found in disk.path.iterdir()} == {"it", "filling"}
    (disk.path / "filling").unlink()
    write(path, one)
    assert write in (_build, _merge) or path.read_bytes() != one.read_bytes()


def test_a_key_that_no_room_is_left_for_is_not_in_the_way_later(disk: Disk) -> None:
    pytest.importorskip("cryptography", reason="the sign extra is not installed")
    private, public = disk.path / "private.pem", disk.path / "public.pem"
    disk.fill()
    with pytest.raises(InvalidArgument, match=rf"{private}: given a file that cannot be written \(No space left"):
        signing.generate(private, public)
    (disk.path / "filling").unlink()
    signing.generate(private, public)
    assert (private.stat().st_mode & 0o777, public.stat().st_mode & 0o777) == (0o600, 0o644)


def _add(kept: session.Session, numbers: Iterable[int]) -> None:
    for number in numbers:
        kept.add(Trial({"number": number}, Outcome(1e-5, 1e-5, 0.01, 1.0)))


def test_a_session_on_a_full_disk_says_so_and_goes_on_later(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(disk.path))

    def begin() -> session.Session:
        return session.Session(Job({"Operator": "TOP_K1"}, False, "cpu"), Machine("cpu", "a test's", 2), "schedules")

    kept = begin()
    _add(kept, [0])
    disk.fill()
    with pytest.raises(OSError, match=r"No space left on device: '.*trials\.jsonl'"):
        _add(kept, range(1, 1000))
    (disk.path / "filling").unlink()
    whole = begin().trials
    assert whole == kept.trials
    _add(begin(), [1000])
    assert [trial.knobs["number"] for trial in begin().trials] == [*range(len(whole)), 1000]


def test_a_model_whose_file_has_no_room_says_which(disk: Disk, tmp_path: Path) -> None:
    values = {"initialValuesDataType": "FLOAT32", "initialValues": {"valueCount": 4096, "value": 1}}
    command = {"type": "writeFile", "resource": "x", "targetPath": "x.npy"}
    (tmp_path / "model.json").write_text(json.dumps({"resources": {"x": values}, "dispatchables": {}, "commands": [command]}))
    disk.fill()
    done = commands.call("run", tmp_path / "model.json", "--output_path", disk.path)
    assert done.exit_code == 1
    assert f"'{disk.path / 'x.npy'}', which cannot be written" in done.output
    assert "Traceback" not in done.output


def test_a_full_folder_for_temporary_files_is_named(
    disk: Disk, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundle._tools(bundle._here())  # only once in a process
    monkeypatch.setattr(tempfile, "tempdir", str(disk.path))
    disk.fill()
    with pytest.raises(OSError, match=rf"No space left on device: '{disk.path}"):
        packs.build(faults.spec("toward_infinity"), tmp_path / "it", jobs=1)
    assert not (tmp_path / "it").exists()
    (disk.path / "filling").unlink()
    disk.resize(4096)
    packs.build(faults.spec("toward_infinity"), tmp_path / "it", jobs=1)


def _record(folder: Path, sizes: Iterable[int]) -> None:
    for size in sizes:
        recording.append(str(folder), round_desc(tensor("float32", (4, size)), "toward_zero"), targets.resolve("cpu"), ())


def test_a_recording_that_no_room_is_left_for_says_that_it_is_not_whole(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_warned", set())
    _record(disk.path, range(1, 3))
    disk.fill()
    with pytest.warns(RuntimeWarning, match=f"the recording in {disk.path} is not complete: it cannot be written .*No space left"):
        _record(disk.path, range(3, 200))
    assert len(recording.gather(disk.path).wanted) >= 2


# -- Folders that cannot be written to ----------------------------------------------------------------------------


def test_a_cache_that_may_only_be_read_is_read(disk: Disk, monkeypatch: pytest.MonkeyPatch, anew: None) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(disk.path))
    disk.resize(1024)
    assert call("round") == (1, [])
    disk.protect()
    assert call("round") == (0, [])
    compiled, said = call()
    assert compiled == len(CALLS) - 1
    assert len(said) == 1
    assert "Read-only file system" in said[0]
    with pytest.raises(InvalidArgument, match="output: given"):
        packs.build(faults.spec(), disk.path / "it", jobs=1)
    monkeypatch.setattr(tempfile, "tempdir", str(disk.path))
    assert call("round") == (0, []), "it is loaded from memory where there are no temporary files"


@pytest.mark.parametrize("home", ["/proc/nobody", "", None])
def test_a_home_that_is_none_costs_a_warning_at_most(monkeypatch: pytest.MonkeyPatch, anew: None, home: str | None) -> None:
    for name in ("TVMDML_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "mkdir", _refuse)  # but a test must not make a folder in a home directory
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    _, said = call("round")
    assert len(said) <= 1
    assert all("Set TVMDML_CACHE_DIR to another folder" in text for text in said)


def _refuse(path: str, *arguments: object, **keywords: object) -> None:
    raise PermissionError(13, "Permission denied", path)


def test_a_cache_with_a_relative_name_is_not_found_from_a_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: None
) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", "cache")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert call("round") == (1, [])
    shutil.rmtree(here)
    compiled, said = call("round")
    assert compiled == 1
    assert len(said) == 1
    os.chdir(tmp_path)


# -- Clocks -------------------------------------------------------------------------------------------------------


def _ages(cache: Path) -> list[Path]:
    return [entry.path for entry in stores.DiskStore().entries()]


def test_a_use_that_is_still_to_come_does_not_keep_a_kernel_for_ever(cache: Path) -> None:
    call("round", "top_k", "nonzero")
    century = time.time() + 100 * 365 * 86400
    paths = _ages(cache)
    for path in paths[:2]:
        os.utime(path, (century, century))
    os.utime(paths[2], (1, 1))
    assert set(_ages(cache)[:2]) == set(paths[:2])
    call("diagonal")
    assert len(_ages(cache)) == 4
    stores.DiskStore().prune(max(entry.size for entry in stores.DiskStore().entries()))
    assert call("diagonal") == (0, []), "what was just made is what stays"


@pytest.mark.parametrize("moment", [1.0, 1e10, -1e9])
def test_what_was_left_behind_at_any_time_is_swept(cache: Path, moment: float) -> None:
    call("round")
    (path,) = _ages(cache)
    left = [path.parent / ".building-x", path.with_name(f"{'f' * 40}.lock"), path.with_name(f"{'f' * 40}-abc.so")]
    left[0].mkdir()
    for one in left[1:]:
        one.touch()
    for one in [*left, path]:
        os.utime(one, (moment, moment))
    stores.DiskStore().prune()
    assert not any(one.exists() for one in left)
    assert call("round") == (0, [])
    os.utime(path, (moment, moment))
    commands.succeed("cache", "info")


def test_a_clock_that_goes_back_stops_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(2_000_000_000, 0, -10_000_000))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    for _ in range(2):
        compiled, said = call()
        assert compiled in (0, len(CALLS))
        assert said == []
    assert compiled == 0
    assert stores.DiskStore().prune(0) == len(CALLS)


# -- A cache that vanishes ----------------------------------------------------------------------------------------


def _remove(cache: Path) -> None:
    shutil.rmtree(cache)


def _replace_by_file(cache: Path) -> None:
    shutil.rmtree(cache)
    cache.write_bytes(b"")


def _replace_by_dangling_link(cache: Path) -> None:
    shutil.rmtree(cache)
    cache.symlink_to(cache.parent / "nowhere")


@pytest.mark.full
@pytest.mark.parametrize("vanish", [_remove, _replace_by_file, _replace_by_dangling_link])
def test_a_cache_may_vanish_between_calls(cache: Path, vanish: Callable[[Path], None]) -> None:
    assert call() == (len(CALLS), [])
    vanish(cache)
    for work, expected in CALLS.values():  # what is loaded
        np.testing.assert_array_equal(work(), expected)
    for _ in range(2):
        compiled, said = call()
        assert compiled in (0, len(CALLS))
        assert len(said) == (vanish is not _remove)
    assert compiled == (0 if vanish is _remove else len(CALLS))


@pytest.mark.full(first=1)
@pytest.mark.parametrize("moment", ["find", "lock", "staging", "add"])
@pytest.mark.parametrize("after", [False, True])
def test_a_cache_may_vanish_at_any_moment(cache: Path, monkeypatch: pytest.MonkeyPatch, moment: str, after: bool) -> None:
    real = getattr(stores.DiskStore, moment)

    def vanishing(store: stores.DiskStore, *arguments: Any) -> Any:
        if after and moment in ("find", "add"):
            found = real(store, *arguments)
            shutil.rmtree(cache, ignore_errors=True)
            return found
        if after:
            return _then(real(store, *arguments))
        shutil.rmtree(cache, ignore_errors=True)
        return real(store, *arguments)

    @contextlib.contextmanager
    def _then(held: Any) -> Iterator[Any]:
        with held as found:
            shutil.rmtree(cache, ignore_errors=True)
            yield found

    call("round")
    monkeypatch.setattr(stores.DiskStore, moment, vanishing)
    compiled, said = call("round", "top_k")
    assert compiled in (1, 2)
    assert len(said) <= 1
    monkeypatch.undo()

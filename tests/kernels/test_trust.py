"""Files that another user may have put into the cache are not used, and files that are not tvmdml's stay there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import shutil
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import commands
import faults
import pytest
from faults import call

from tvmdml.library.log_terms import Job, Machine, Outcome, Trial
from tvmdml.system.disk import _trust, stores
from tvmdml.targets.cpu.files import load_from_memory, load_library
from tvmdml.targets.vulkan import pipeline_cache
from tvmdml.targets.vulkan.physical import Identity
from tvmdml.tuning.session import Session

STRANGER = 4242
IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can give a file to another user")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users can reach."""
    with tempfile.TemporaryDirectory(prefix="tvmdml-test-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def cache(place: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> Path:
    """An empty cache, which has not been warned of."""
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(place / "cache"))
    faults.prepare(monkeypatch)
    return place / "cache"


@contextlib.contextmanager
def acting_as(user: int) -> Iterator[None]:
    """What is done to files is done by another user."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def stranger() -> contextlib.AbstractContextManager[None]:
    """Another user; this one, where only modes can tell."""
    return acting_as(STRANGER) if IS_ROOT else contextlib.nullcontext()


def open_to_readers(cache: Path) -> None:
    for folder, _, _ in os.walk(cache):
        os.chmod(folder, 0o755)


def entry() -> tuple[Path, Path]:
    """The only manifest, and its artifact."""
    (found,) = stores.DiskStore().entries()
    return found.path, found.path.with_name(str(found.manifest["artifact"]))


# -- A library of another user's ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    """A library that makes a file as soon as it is loaded, and that file."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("library")
    marker = folder / "it ran"
    code = f'#include <stdio.h>\n__attribute__((constructor)) static void run(void) {{ fclose(fopen("{marker}", "w")); }}\n'
    (folder / "code.c").write_text(code)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "code.so", folder / "code.c"], check=True)
    return (folder / "code.so").read_bytes(), marker


def plant(manifest: Path, content: bytes) -> None:
    """Put a library in the place of a kernel, with a checksum that is right."""
    sha256 = hashlib.sha256(content).hexdigest()
    stored = {"artifact": f"{manifest.stem}-{sha256[:12]}.so", "sha256": sha256}
    for name, data in ((stored["artifact"], content), (manifest.name, json.dumps(stored).encode())):
        new = manifest.with_name(".new")
        new.write_bytes(data)
        new.replace(manifest.with_name(name))


def everybodys_place(place: Path) -> Path:
    """One of the folders that kernels are in."""
    place.chmod(0o777)
    return place


def everybodys_kernels(place: Path) -> Path:
    place.parent.chmod(0o777)
    with stranger():
        place.rename(place.with_name("moved"))
        shutil.copytree(place.with_name("moved"), place, ignore=shutil.ignore_patterns("*.lock"))  # nobody else reads those
    return place.parent


def a_groups_tree(place: Path) -> Path:
    cache = place.parents[1]
    for folder, _, _ in os.walk(cache):
        if IS_ROOT:
            os.chown(folder, -1, STRANGER)
        os.chmod(folder, 0o2775)
    return cache


def the_strangers_tree(place: Path) -> Path:
    cache = place.parents[1]
    for folder, _, files in os.walk(cache):
        for path in (folder, *(os.path.join(folder, file) for file in files)):
            os.chown(path, STRANGER, STRANGER)
    return cache


def the_strangers_place(place: Path) -> Path:
    os.chown(place, STRANGER, STRANGER)
    return place


WAYS = [
    everybodys_place,
    everybodys_kernels,
    a_groups_tree,
    pytest.param(the_strangers_tree, marks=needs_root),
    pytest.param(the_strangers_place, marks=needs_root),
]


@pytest.mark.full(first=1)
@pytest.mark.parametrize("way", WAYS)
def test_a_library_that_another_user_planted_does_not_run(
    cache: Path, library: tuple[bytes, Path], way: Callable[[Path], Path]
) -> None:
    content, marker = library
    assert call("round") == (1, [])
    open_to_readers(cache)
    manifest, _ = entry()
    problem = way(manifest.parent)
    with stranger():
        plant(manifest, content)
    compiled, said = call("round", "round")
    assert not marker.exists()
    assert compiled == 1
    (text,) = said
    assert str(problem) in text
    assert "is not used: another user may have put code there" in text
    assert "set TVMDML_CACHE_DIR to a folder of your own" in text.replace("Set", "set")
    assert (f"chmod go-w {problem}`" in text) != (f"belongs to user {STRANGER}" in text)


def test_the_planted_library_runs_where_its_user_is_trusted(cache: Path, library: tuple[bytes, Path]) -> None:
    """So it is the checks that keep it from running."""
    content, marker = library
    assert call("round") == (1, [])
    plant(entry()[0], content)
    try:
        compiled, (said,) = call("round")
        assert marker.exists()
        assert compiled == 1
        assert "a stored kernel cannot be loaded" in said
    finally:
        marker.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("which", "mode"),
    [*(pytest.param(one, None, marks=needs_root) for one in (0, 1)), (1, 0o664), (1, 0o646), (1, 0o666)],
    ids=["manifest of another's", "artifact of another's", "0o664", "0o646", "0o666"],
)
def test_a_file_that_others_may_have_written_is_compiled_again_and_replaced(cache: Path, which: int, mode: int | None) -> None:
    assert call("round") == (1, [])
    path = entry()[which]
    if mode is None:
        os.chown(path, STRANGER, -1)
    else:
        path.chmod(mode)
    compiled, (said,) = call("round")
    assert compiled == 1
    assert (f"{path} belongs to user {STRANGER}" if mode is None else f"can write to {path} (mode {mode:04o})") in said
    assert call("round") == (0, [])
    assert path.stat().st_uid == os.geteuid()
    assert not path.stat().st_mode & 0o022


# -- Links --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["manifest", "artifact", "a folder of kernels", "kernels"])
def test_links_in_the_cache_are_not_followed(cache: Path, place: Path, which: str) -> None:
    assert call("round") == (1, [])
    manifest, artifact = entry()
    names = {"manifest": manifest, "artifact": artifact, "a folder of kernels": manifest.parent, "kernels": cache / "kernels"}
    path = names[which]
    path.rename(place / "moved")
    path.symlink_to(place / "moved")
    before = sorted(place.joinpath("moved").rglob("*"))
    compiled, (said,) = call("round")
    assert compiled == 1
    assert f"{path} is a symbolic link" in said
    assert sorted(place.joinpath("moved").rglob("*")) == before, "nothing was written there"
    assert call("round")[0] == (which in ("a folder of kernels", "kernels"))  # a file is replaced


def test_the_cache_itself_may_be_named_by_a_link(cache: Path, place: Path) -> None:
    (place / "real").mkdir(mode=0o700)
    cache.symlink_to(place / "real")
    assert call("round") == (1, [])
    assert call("round") == (0, [])


def test_what_was_checked_is_what_is_read(cache: Path, place: Path) -> None:
    """A folder that takes the place of the one that was checked is not looked at."""
    assert call("round") == (1, [])
    manifest, _ = entry()
    content = manifest.read_bytes()
    with stores.opened(cache, "kernels") as kernels, kernels.enter(manifest.parent.name) as folder:
        (cache / "kernels").rename(place / "moved")
        shutil.copytree(place / "moved", cache / "kernels")
        manifest.write_text("{}")
        assert folder.read(manifest.name, len(content)) == content
        with pytest.raises(OSError, match=f"is not a regular file of at most {len(content) - 1} bytes"):
            folder.read(manifest.name, len(content) - 1)
    assert stores.read(cache, "kernels", manifest.parent.name, manifest.name) == b"{}"


# -- Who is trusted -----------------------------------------------------------------------------------------------


@needs_root
def test_a_cache_that_root_made_serves_other_users(cache: Path) -> None:
    assert call("round") == (1, [])
    open_to_readers(cache)
    manifest, _ = entry()
    with acting_as(STRANGER):
        assert stores.DiskStore().find(manifest.stem, (".so",)) is not None
        with pytest.raises(PermissionError):
            stores.room(cache, "kernels", "cd" if manifest.stem.startswith("ab") else "ab")  # a new folder
    os.chown(manifest, STRANGER + 1, -1)
    with acting_as(STRANGER), pytest.warns(RuntimeWarning, match=f"belongs to user {STRANGER + 1}"):
        assert stores.DiskStore().find(manifest.stem, (".so",)) is None
    os.chown(manifest, STRANGER, -1)
    with acting_as(STRANGER):
        assert stores.DiskStore().find(manifest.stem, (".so",)) is not None


@pytest.mark.parametrize("above", [False, True])
def test_a_folder_that_holds_the_cache_may_be_everybodys_if_it_is_sticky(cache: Path, place: Path, above: bool) -> None:
    assert call("round") == (1, [])
    folder = place if above else cache
    folder.chmod(0o1777)  # as /tmp
    assert call("round") == (0, [])
    for mode in (0o777, 0o775):
        folder.chmod(mode)
        compiled, (said,) = call("round")
        assert compiled == 1
        assert f"can write to {folder} (mode {mode:04o})" in said
        assert f"`chmod go-w {folder}`" in said
        assert "remove it" not in said.lower(), "there are other things in it"


@needs_root
def test_the_owner_of_a_folder_above_is_trusted_if_it_is_root_or_nobody_at_all(
    cache: Path, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    users = tmp_path / "uid_map"
    monkeypatch.setattr(_trust, "_USERS", users)
    users.write_text("         0       1000          1\n")
    assert call("round") == (1, [])
    os.chown(place, 65534, -1)  # the user id that a namespace shows for unmapped users
    assert call("round") == (0, [])
    os.chown(place, STRANGER, -1)
    compiled, (said,) = call("round")
    assert compiled == 1
    assert f"{place} belongs to user {STRANGER}" in said
    os.chown(place, 0, -1)
    os.chown(cache, 65534, -1)
    assert call("round")[0] == 1


@needs_root
@pytest.mark.parametrize("users", ["0 0 4294967295\n", "0 1000 1\n1 100000 65536\n", "?", None])
def test_a_user_called_nobody_is_a_stranger(
    users: str | None, cache: Path, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Daemons run as that user. It could rename the cache's folder while a kernel is linked in it."""
    monkeypatch.setattr(_trust, "_USERS", tmp_path / "uid_map")
    if users is not None:
        (tmp_path / "uid_map").write_text(users)
    os.chown(place, 65534, -1)
    compiled, (said,) = call("round")
    assert compiled == 1
    assert f"{place} belongs to user 65534" in said
    assert not cache.exists()


@needs_root
@pytest.mark.parametrize("is_link", [False, True])
def test_a_folder_that_appears_while_the_cache_is_made_is_checked(
    is_link: bool, place: Path, monkeypatch: pytest.MonkeyPatch, forget: None
) -> None:
    """In a sticky folder, anybody can make what was not there a moment ago."""
    place.chmod(0o1777)
    strange = place / ("elsewhere" if is_link else "missing")
    make = _trust._make

    def late(path: str) -> None:
        strange.mkdir(exist_ok=True)
        os.chown(strange, STRANGER, -1)
        if is_link and not (place / "missing").is_symlink():
            (place / "missing").symlink_to(strange)
        make(path)

    monkeypatch.setattr(_trust, "_make", late)
    with pytest.raises(_trust.Untrusted, match=f"{strange} belongs to user {STRANGER}"):
        _trust.opened(place / "missing" / "cache", create=True).__enter__()


@pytest.mark.full
def test_a_refused_cache_makes_no_command_fail(cache: Path) -> None:
    assert call("round") == (1, [])
    (cache / "kernels").chmod(0o777)
    for command in (["cache", "info"], ["cache", "prune"], ["cache", "clear"], ["doctor"]):
        with pytest.warns(RuntimeWarning) if command[1:] == ["info"] else contextlib.nullcontext():
            done = commands.call(*command)
        if command[0] == "cache":
            assert done.exit_code == 0, done.output
        else:
            assert f"everybody can write to {cache}/kernels" in " ".join(done.output.split())
    assert not list(cache.glob("kernels/??/*.so")), "what is refused can be removed"


def test_no_handle_stays_open(cache: Path, place: Path) -> None:
    call("round")
    manifest, _ = entry()
    content = manifest.read_bytes()

    def everything() -> None:
        stores.DiskStore().find(manifest.stem, (".so",))
        stores.DiskStore().prune()
        stores.DiskStore().beside()
        stores.DiskStore().clear_beside()
        with contextlib.suppress(OSError), stores.DiskStore().staging(manifest.stem):
            pass

    def a_folder() -> None:
        manifest.unlink()
        manifest.mkdir()

    def a_link() -> None:
        manifest.rmdir()
        manifest.symlink_to(place)

    def a_file() -> None:
        manifest.unlink()
        manifest.write_bytes(content)
        manifest.chmod(0o666)

    spoil = (lambda: None, a_folder, a_link, a_file, lambda: manifest.parent.chmod(0o777), lambda: cache.chmod(0o777))
    before = os.listdir("/proc/self/fd")
    for change in spoil:
        change()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            everything()
        assert os.listdir("/proc/self/fd") == before, change


# -- Modes of what is written -------------------------------------------------------------------------------------


IDENTITY = Identity(1, 2, 3, bytes(range(16)))
PIPELINES = (
    b"\x20\0\0\0\x01\0\0\0"
    + IDENTITY.vendor.to_bytes(4, "little")
    + IDENTITY.device.to_bytes(4, "little")
    + IDENTITY.cache_uuid
    + b"data"
)


def session() -> Session:
    return Session(Job({"Operator": "TOP_K1"}, False, "cpu"), Machine("cpu", "a test's", 2), "schedules")


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077], ids=oct)
def test_what_is_new_is_this_users_alone_whatever_the_umask(cache: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert call("round") == (1, [])
        session().add(Trial({"number": 1}, Outcome(1e-5, 1e-5, 0.01, 1.0)))
        pipeline_cache.write(pipeline_cache.path(IDENTITY), PIPELINES)
        commands.succeed("cache", "info")
    finally:
        os.umask(before)
    found = {path: path.stat().st_mode for path in (cache, *cache.rglob("*"))}
    assert {path.suffix for path in found} >= {".so", ".json", ".jsonl", ".bin", ".TAG"}
    for path, mode in found.items():
        if stat.S_ISDIR(mode):
            assert stat.S_IMODE(mode) == 0o700, path
        elif path.suffix != ".lock":  # which is empty
            assert stat.S_IMODE(mode) & ~0o644 == 0, path
    assert call("round") == (0, [])


# -- Data of other kinds ------------------------------------------------------------------------------------------


def others_may_write(path: Path) -> None:
    path.chmod(0o666)


def link_elsewhere(path: Path) -> None:
    moved = path.with_name("moved")
    path.rename(moved)
    path.symlink_to(moved)


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, -1)


SPOILT = [others_may_write, link_elsewhere, pytest.param(give_away, marks=needs_root)]


@pytest.mark.parametrize("spoil", SPOILT)
def test_pipelines_that_another_user_may_have_written_are_not_given_to_a_driver(cache: Path, spoil: Callable[[Path], None]) -> None:
    file = pipeline_cache.path(IDENTITY)
    pipeline_cache.write(file, PIPELINES)
    assert pipeline_cache.read(file, IDENTITY) == PIPELINES
    spoil(file)
    with pytest.warns(RuntimeWarning, match=str(file)):
        assert pipeline_cache.read(file, IDENTITY) == b""
    pipeline_cache.write(file, PIPELINES)
    assert pipeline_cache.read(file, IDENTITY) == PIPELINES


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_session_that_another_user_may_have_written_begins_anew(cache: Path, spoil: Callable[[Path], None]) -> None:
    trials = [Trial({"number": number}, Outcome(1e-5, 1e-5, 0.01, 1.0)) for number in range(2)]
    session().add(trials[0])
    assert session().trials == trials[:1]
    (file,) = cache.glob("tuning/sessions/*/trials.jsonl")
    spoil(file)
    with pytest.warns(RuntimeWarning, match=str(file)):
        begun = session()
    assert begun.trials == []
    begun.add(trials[1])
    assert session().trials == trials[1:]


def test_a_session_in_a_folder_that_others_may_write_to_is_refused(cache: Path) -> None:
    session()
    (cache / "tuning").chmod(0o777)
    with pytest.warns(RuntimeWarning), pytest.raises(OSError, match=f"everybody can write to {cache}/tuning"):
        session()


def test_a_library_is_loaded_from_no_folder_that_others_may_write_to(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: str) -> tuple[str, bytes]:
        return path, Path(path).read_bytes()

    monkeypatch.setattr(tempfile, "tempdir", str(place))
    path, content = load_library(b"content", load)
    assert (Path(path).parent, content) == (place, b"content")
    place.chmod(0o777)
    path, content = load_library(b"content", load)
    assert (Path(path).parent, content) == (Path("/proc/self/fd"), b"content")
    os.close(int(Path(path).name))


def test_a_library_in_memory_has_a_path_of_its_own_as_long_as_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [load_from_memory(b"content", lambda path, file: (path, file, Path(path).read_bytes())) for _ in range(9)]
    for path, file, content in seen:
        assert (os.path.normpath(path), content) == (f"/proc/self/fd/{file}", b"content")
        assert Path(path).read_bytes() == b"content", "whoever opens the path later finds the library"
        os.close(file)
    again = load_from_memory(b"content", lambda path, file: (path, file))
    assert again[1] == seen[0][1], "the descriptor is used again"
    assert again[0] not in {path for path, *_ in seen}, "the loader would return the first library"
    os.close(again[1])
    free = os.dup(0)
    os.close(free)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2 * free, 2 * free))
    with pytest.raises(OSError, match="too few descriptors"):
        load_from_memory(b"content", lambda path, file: (path, file))
    assert os.dup(0) == free, "its descriptor is closed"
    os.close(free)


# -- What is not tvmdml's stays -----------------------------------------------------------------------------------


def old(path: Path) -> Path:
    """A file, or a folder, that nobody has touched for long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, (1, 1))
    return path


def test_no_link_leads_out_of_the_cache_when_it_is_pruned(cache: Path, place: Path) -> None:
    assert call("round") == (1, [])
    building = entry()[0].with_name(".building-y")
    outside = [
        old(place / "outside" / name) for name in (f"{'a' * 40}-abc.so", f"{'a' * 40}.lock", "letter.txt", ".building-x/kernel.o")
    ]
    outside += [old(place / "another" / f"{'b' * 40}.bin"), old(place / "third" / "sessions" / ("c" * 24) / "trials.jsonl")]
    free = next(name for name in ("aa", "ab") if not (cache / "kernels" / name).exists())
    (cache / "kernels" / free).symlink_to(place / "outside")
    (cache / "vulkan").symlink_to(place / "another")
    (cache / "tuning").symlink_to(place / "third")
    building.mkdir()
    (building / "linked").symlink_to(place / "outside")
    for folder in (building, place / "outside" / ".building-x"):
        os.utime(folder, (1, 1))
    with pytest.warns(RuntimeWarning, match="kernels/a[ab] is a symbolic link"):
        commands.succeed("cache", "prune")
    for command in (["clear"], ["clear", "--all"]):
        commands.succeed("cache", *command)
    assert not building.exists()
    assert all(path.exists() for path in outside)


def test_clearing_a_folder_that_is_no_cache_leaves_all_that_is_not_tvmdmls(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(place))
    monkeypatch.setattr(stores, "_warned", set())
    names = (
        "letter.txt", "kernels/linux.c", "kernels/ab/notes.txt", "kernels/ab/short.json", "kernels/docs/.building-a/x",
        f"kernels/ab/{'a' * 40}.txt", f"kernels/ab/{'a' * 40}", "tuning/piano.wav", "tuning/sessions/one/trials.jsonl",
        "tuning/sessions/notes",
        f"tuning/sessions/{'a' * 24}/thesis.tex", "vulkan/sdk.tar", "vulkan/firmware.bin", "vulkan/.hidden",
    )  # fmt: skip
    foreign = [old(place / name) for name in names]
    own = [
        old(place / name)
        for name in (f"kernels/ab/{'a' * 40}.lock", f"tuning/sessions/{'a' * 24}/done.json", f"vulkan/{'b' * 40}.bin")
    ]
    done = commands.succeed("cache", "clear", "--all")
    assert [path for path in foreign if not path.exists()] == []
    assert [path for path in own if path.exists()] == []
    assert done.output.splitlines()[1:] == [
        "Removed 2 B of other files.",
        f"{place}/tuning is kept: it contains files that tvmdml did not write.",
        f"{place}/vulkan is kept: it contains files that tvmdml did not write.",
    ]


def test_a_cache_is_marked_as_one(cache: Path) -> None:
    assert call("round") == (1, [])
    session()
    assert (cache / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    assert {path.name for path in cache.iterdir()} == {"CACHEDIR.TAG", "kernels", "tuning"}


def test_a_folder_with_other_things_in_it_is_not_marked(cache: Path) -> None:
    old(cache / "letter.txt")
    assert call("round") == (1, [])
    assert not (cache / "CACHEDIR.TAG").exists(), "a backup would leave out the letter"


@pytest.mark.full
def test_everything_that_was_written_is_removed(cache: Path) -> None:
    """No file is written under a name that is in no table."""
    assert call() == (len(faults.CALLS), [])
    tuned = session()
    with tuned.held():
        tuned.add(Trial({"number": 1}, Outcome(1e-5, 1e-5, 0.01, 1.0)))
    pipeline_cache.write(pipeline_cache.path(IDENTITY), PIPELINES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMDML_CACHE_DIR", str(cache / "tuning"))
        assert call("round")[0] == 1  # as the tuner does for candidates
        patch.setattr(stores, "STALE", -1.0)
        patch.setenv("TVMDML_CACHE_DIR", str(cache))
        commands.succeed("cache", "clear", "--all")
    assert [path.name for path in cache.rglob("*") if path.is_file()] == ["CACHEDIR.TAG"]
    assert [path.name for path in cache.iterdir() if path.is_dir()] == ["kernels"]


def test_an_artifact_that_a_manifest_names_outside_of_its_folder_is_none(cache: Path, place: Path) -> None:
    assert call("round") == (1, [])
    manifest, artifact = entry()
    stored = json.loads(manifest.read_text())
    shutil.copy(artifact, cache / artifact.name)
    other = f"{'f' * 40}-{hashlib.sha256(artifact.read_bytes()).hexdigest()[:12]}.so"
    shutil.copy(artifact, artifact.with_name(other))
    for name in (f"../{artifact.name}", str(artifact), other, f"./{artifact.name}", 7, None):
        manifest.write_text(json.dumps({**stored, "artifact": name}))
        assert stores.DiskStore().find(manifest.stem, (".so",)) is None
    manifest.write_text(json.dumps(stored))
    assert stores.DiskStore().find(manifest.stem, (".so",)) is not None

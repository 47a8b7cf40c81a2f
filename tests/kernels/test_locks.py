"""File locks: whom they exclude, and what happens when a holder exits or forks."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from programs import program, start

from tvmdml.system.disk import locks, stores

_HOLDS = """
from pathlib import Path
from tvmdml.system.disk import locks
path = Path(sys.argv[1])
with locks.locked(path, 0):
    print("held", flush=True)
    sys.stdin.readline()
print("free", flush=True)
"""


def busy(path: Path) -> bool:
    """Whether another thread than this one is kept out."""
    found: list[bool] = []

    def look() -> None:
        try:
            with locks.locked(path, 0):
                found.append(False)
        except locks.Busy:
            found.append(True)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def test_other_threads_are_kept_out_and_the_same_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locks.locked(path, 0):
        assert busy(path)
        assert not busy(tmp_path / "other")
        with locks.locked(path, 0, again=True):
            assert busy(path)
        with pytest.raises(locks.Busy), locks.locked(path, 0):
            pass
        assert busy(path), "it is the outer one's"
    assert not busy(path)
    assert locks._held == {}
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_goes_wrong_inside_frees_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locks.locked(tmp_path / "lock", 0):
        raise ZeroDivisionError
    assert not busy(tmp_path / "lock")


def test_whoever_waits_has_it_when_it_is_free(tmp_path: Path) -> None:
    path, got = tmp_path / "lock", threading.Event()

    def wait() -> None:
        with locks.locked(path, 300):
            got.set()

    thread = threading.Thread(target=wait)
    with locks.locked(path, 0):
        thread.start()
        assert not got.wait(0.1)
    thread.join()
    assert got.is_set()


def test_a_file_that_is_removed_keeps_nobody_out(tmp_path: Path) -> None:
    """A store is pruned at any time. Whoever comes next makes a new file, and no two hold that one."""
    path = tmp_path / "lock"
    with locks.locked(path, 0):
        path.unlink()
        assert not busy(path)
    with locks.locked(path, 0):
        assert busy(path)


def test_a_file_that_is_removed_while_it_is_being_locked_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flock, removed = tmp_path / "lock", locks.fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(path.unlink())
        flock(descriptor, operation)

    monkeypatch.setattr(locks.fcntl, "flock", late)
    with locks.locked(path, 10):
        assert path.exists()
        assert busy(path)


def test_links_and_folders_that_are_not_there_are_errors(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "link", tmp_path / "none" / "lock", tmp_path):
        with pytest.raises(OSError, match="Errno"), locks.locked(path, 0):
            pass
    assert list(tmp_path.iterdir()) == [tmp_path / "link"]
    assert locks._held == {}


def test_a_pipe_in_its_place_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with locks.locked(tmp_path / "lock", 0):
        assert busy(tmp_path / "lock")


def test_a_store_goes_on_where_there_are_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with stores.DiskStore(tmp_path).lock("ab" * 20):
        assert locks._held == {}


def test_another_process_is_kept_out_until_the_holder_ends_however_that_comes(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = start(_HOLDS, tmp_path, path)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert busy(path)
    finally:
        holder.kill()
    holder.communicate()
    assert not busy(path)


def test_a_fork_leaves_the_lock_with_the_parent(tmp_path: Path) -> None:
    program(
        """
from pathlib import Path
from tvmdml.system.disk import locks
path = Path(sys.argv[1])
def busy():
    try:
        with locks.locked(path, 0):
            return False
    except locks.Busy:
        return True
def holds(begun, go):
    with locks.locked(path, 0):
        begun.set()
        go.wait()
begun, go = threading.Event(), threading.Event()
other = threading.Thread(target=holds, args=(begun, go))
other.start()
begun.wait()
assert child(lambda: not locks._held and busy() and not locks._held) == 0, "held by another thread of the parent"
go.set()
other.join()
with locks.locked(path, 0):
    assert child(lambda: not locks._held and busy()) == 0, "held by the thread that forks"
process = 0
with locks.locked(path, 0):
    process = os.fork()
# The parent has given it back by now, and the child, in which it was the parent's, gives nothing back:
if process == 0:
    with locks.locked(path, 300):
        os._exit(0 if len(locks._held) == 1 else 1)
assert code_of(process) == 0
assert not busy()
""",
        tmp_path,
        tmp_path / "lock",
    )


def test_a_child_keeps_nobody_out_when_its_parent_is_killed(tmp_path: Path) -> None:
    """A descriptor that it had inherited would hold the lock for as long as it lives."""
    code = """
from pathlib import Path
from tvmdml.system.disk import locks
with locks.locked(Path(sys.argv[1]), 0):
    process = os.fork()
    if process == 0:
        print("held", flush=True)
        sys.stdin.readline()
        os._exit(0)
    signal.pause()
"""
    parent = start(code, tmp_path, tmp_path / "lock")
    assert parent.stdout is not None
    assert parent.stdout.readline() == "held\n"
    assert busy(tmp_path / "lock")
    parent.kill()
    parent.wait()
    assert not busy(tmp_path / "lock")
    parent.communicate("\n")

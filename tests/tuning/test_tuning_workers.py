"""Workers: a candidate's damage is limited to its own call, and no process remains, however the candidate ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import misdeeds
import pytest
from folders import TESTS

from tvmdml.errors import InvalidArgument, TvmdmlError
from tvmdml.system.workers import Failure, Workers


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    """Two of them, for tests that do not mind what happened before."""
    with Workers(2, {"MISDEEDS": "allowed"}, timeout=60) as workers:
        yield workers


def results(workers: Workers, *calls: tuple[Any, ...], timeout: float | None = None) -> list[Any]:
    """What came of calls, in their order."""
    found = dict(workers.map(misdeeds.act, calls, timeout))
    return [found[i] for i in range(len(calls))]


def test_every_call_has_its_result(pool: Workers) -> None:
    assert results(pool, *(("same", i) for i in range(50))) == list(range(50))
    assert results(pool) == []


@pytest.mark.full(first=1)
@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (("crash",), "crashed: signal 11 (SIGSEGV)"),
        (
            ("crash", "\nterminate called: so long\nand more\n", signal.SIGABRT),
            "crashed: signal 6 (SIGABRT): terminate called: so long",
        ),
        (("leave", 3), "crashed: exit status 3"),
        (("ask_to_leave",), "raised SystemExit: enough"),
        (("fail",), "raised ValueError: no such thing"),
    ],
    ids=["crash", "last words", "exit", "SystemExit", "error"],
)
def test_what_a_call_does_is_its_own_affair(pool: Workers, call: tuple[Any, ...], problem: str) -> None:
    first, bad, *rest = results(pool, ("same", 1), call, ("same", 2), ("same", 3), ("same", 4))
    assert bad == Failure(problem)
    assert (first, *rest) == (1, 2, 3, 4)


def test_what_hangs_is_ended_even_if_the_interpreter_hangs_with_it(pool: Workers) -> None:
    results(pool, ("same", 0))  # all processes are ready
    start = time.monotonic()
    assert results(pool, ("hang",), ("same", 1), ("same", 2), timeout=3) == [Failure("hung: no answer in 3 s"), 1, 2]
    assert time.monotonic() - start < 50


def test_an_answer_that_cannot_be_sent_is_a_failure(pool: Workers) -> None:
    (found,) = results(pool, ("unspeakable",))
    assert found.problem.startswith("raised ")


def test_what_cannot_be_found_there_is_a_failure(pool: Workers) -> None:
    ((_, found),) = pool.map(misdeeds.act, [("no such function",)])
    assert found == Failure("raised KeyError: 'no such function'")


def test_a_process_stays_with_what_it_remembers(pool: Workers) -> None:
    with Workers(1, {}, timeout=60) as one:
        assert results(one, *[("count",)] * 3) == [1, 2, 3]
        assert results(one, ("crash",), ("count",))[1] == 1


def test_variables_of_the_environment_are_theirs_alone(pool: Workers) -> None:
    assert results(pool, *[("variable", "MISDEEDS")] * 2) == ["allowed"] * 2
    assert "MISDEEDS" not in os.environ


def test_what_they_print_goes_nowhere(pool: Workers, capfd: pytest.CaptureFixture[str]) -> None:
    results(pool, ("shout",), ("crash", "heard\n"), ("shout",))
    assert capfd.readouterr() == ("", "")


def test_a_call_for_all_is_made_in_those_that_come_later_too() -> None:
    with Workers(2, {}, timeout=60) as workers:
        assert workers.everywhere(misdeeds.count) == [1, 1]
        found = results(workers, ("crash",), ("crash",), *[("count",)] * 6)
        assert min(found[2:]) == 2, "the new ones have made it as well"


def test_a_call_for_all_that_fails_is_not_made_again() -> None:
    with Workers(1, {}, timeout=60) as workers:
        (found,) = workers.everywhere(misdeeds.crash)
        assert isinstance(found, Failure)
        assert found.problem.startswith("crashed: signal 11 (SIGSEGV)")
        assert results(workers, ("same", 1)) == [1]
        (found,) = workers.everywhere(misdeeds.hang, timeout=0.2)
        assert found == Failure("hung: no answer in 0.2 s")
        assert results(workers, ("same", 1)) == [1]


def test_who_is_spoiled_by_an_answer_gives_no_other() -> None:
    with Workers(1, {}, timeout=60) as workers:
        found = [pid for _, pid in workers.map(misdeeds.who, [(0.0,)] * 3, spoils=lambda pid: True)]
        assert len(set(found)) == 3
        (last,) = workers.everywhere(os.getpid)
        assert last not in found


def test_whoever_stops_asking_has_what_runs_killed(pool: Workers) -> None:
    pids = pool.everywhere(os.getpid)
    for _ in pool.map(misdeeds.act, [("hang",), ("same", 1), ("same", 2)]):
        break
    assert gone(pids, but=1)
    assert results(pool, ("same", 3), ("same", 4)) == [3, 4], "and no answer of before comes in between"


@pytest.mark.full(first=1)
@pytest.mark.parametrize("moment", ["poll", "recv"])
def test_an_interrupt_leaves_no_answer_to_the_next_call(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with Workers(1, {}, timeout=60) as workers:
        assert results(workers, ("same", 1)) == [1]
        monkeypatch.setattr(Connection, moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            results(workers, ("same", 2))
        assert results(workers, ("same", 3), ("same", 4)) == [3, 4]


def test_processes_that_do_not_start_are_no_endless_loop() -> None:
    with (
        Workers(1, {"PYTHONHOME": "/nowhere"}, timeout=60) as workers,
        pytest.raises(TvmdmlError, match="the last one crashed: exit status"),
    ):
        results(workers, ("same", 1))
    with pytest.raises(InvalidArgument, match="1 or more"):
        Workers(0, {}, 1)


@pytest.mark.full
def test_closing_ends_what_runs() -> None:
    with Workers(2, {}, timeout=60) as workers:
        pids = workers.everywhere(os.getpid)
        calls = workers.map(misdeeds.act, [("same", 1), ("hang",), ("hang",)])
        next(calls)
    assert gone(pids)


# -- How the process that asks may end ----------------------------------------------------------------------------


_ASKS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import misdeeds
from tvmdml.system.workers import Workers

with Workers(2, {}, timeout=600) as workers:
    print(*workers.everywhere(os.getpid), flush=True)
    list(workers.map(misdeeds.hang, [(), ()]))
"""


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_no_process_is_left_when_the_one_that_asks_ends(number: signal.Signals) -> None:
    command = [sys.executable, "-c", _ASKS, str(TESTS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as asking:
        assert asking.stdout is not None
        assert asking.stderr is not None
        pids = [int(word) for word in asking.stdout.readline().split()]
        assert len(pids) == 2
        time.sleep(0.3)  # by now they hang, and a Ctrl-C that is not for them has no effect
        os.killpg(asking.pid, number)
        try:
            asking.wait(100)
            assert gone(pids)
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        said = asking.stderr.read()
        assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT), said


def gone(pids: list[Any], but: int = 0) -> bool:
    """Whether processes end, all but some of them."""
    end = time.monotonic() + 100
    while time.monotonic() < end:
        if sum(map(_is_alive, pids)) <= but:
            return True
        time.sleep(0.02)
    return False


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"

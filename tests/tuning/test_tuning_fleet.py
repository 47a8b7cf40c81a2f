"""A fleet on this machine: TVM's own tracker and servers, and the effects of their failures on a run."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml import targets
from tvmdml.errors import CompileError, DeviceError, InvalidArgument, Unsupported
from tvmdml.library import lines
from tvmdml.library.log_terms import Job, Knobs, Outcome
from tvmdml.operators import Operator
from tvmdml.targets.cpu import bundle
from tvmdml.tuning import lanes, parcels, remote
from tvmdml.tuning.fleet import Fleet
from tvmdml.tuning.parcels import CandidateLibrary

pytest.importorskip("tornado", reason="TVM's tracker takes it")
base = pytest.importorskip("tvm.rpc.base")
pytestmark = pytest.mark.full

_KEY = "workbench"


class Servers:
    """A tracker and servers, as their own commands start them."""

    def __init__(self, count: int, folder: Path) -> None:
        self._folder = folder
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.port = _free_port()
        self.start_tracker()
        self.ports = []
        for _ in range(count):
            self.ports.append(_free_port())
            self.start(self.ports[-1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start_tracker(self) -> None:
        self._start("rpc_tracker", self.port)
        _until(self._tracker_answers, "the tracker answers")

    def start(self, port: int) -> None:
        self._start("rpc_server", port, f"--tracker={self.address}", f"--key={_KEY}")

    def kill(self, port: int) -> None:
        """End a server, and wait for the process that it had started to listen: it ends when it notices."""
        process = self._running.pop(port)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _until(lambda: not _listens(port), f"nobody listens at {port}")

    def signal(self, port: int, number: int) -> None:
        os.killpg(self._running[port].pid, number)

    def wait(self, count: int) -> None:
        """Wait until so many servers are free."""
        _until(lambda: self._free() >= count, f"{count} servers are there")

    def close(self) -> None:
        for port in list(self._running):
            self.kill(port)

    def _start(self, module: str, port: int, *options: str) -> None:
        command = [sys.executable, "-m", f"tvm.exec.{module}", "--host=127.0.0.1", f"--port={port}", f"--port-end={port + 1}"]
        with open(self._folder / f"{module}-{port}.log", "ab") as log:
            self._running[port] = subprocess.Popen([*command, *options], stdout=log, stderr=log, start_new_session=True)

    def _tracker_answers(self) -> bool:
        try:
            _tracker(self.port).close()
        except OSError:
            return False
        return True

    def _free(self) -> int:
        with _tracker(self.port) as tracker:
            base.sendjson(tracker, [base.TrackerCode.SUMMARY])
            queues = base.recvjson(tracker)[1]["queue_info"]
            return int(queues.get(_KEY, {}).get("free", 0))


def _tracker(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 10)
    connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
    base.recvall(connection, 4)
    return connection


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 10).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < end, f"not within 90 s: {what}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    found = Servers(3, tmp_path_factory.mktemp("servers"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def _shared(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, list[str]]]:
    notes: list[str] = []
    with Fleet(servers.address, _KEY, cache=tmp_path_factory.mktemp("cache"), timeout=10, note=notes.append) as found:
        yield found, notes


@pytest.fixture
def fleet(_shared: tuple[Fleet, list[str]]) -> tuple[Fleet, list[str]]:
    """A fleet of all three, and what it says."""
    found, notes = _shared
    _gather(found, 3)
    notes.clear()
    return found, notes


def _gather(fleet: Fleet, count: int) -> None:
    def gathered() -> bool:
        if fleet.servers != count:
            fleet._step()
        return fleet.servers == count

    _until(gathered, f"{count} servers take part")


def _round(*sizes: int, strides: tuple[int, ...] | None = None) -> Operator:
    x = tvmdml.TensorDesc("float32", sizes, strides=strides)
    return tvmdml.ElementWiseRound(input_tensor=x, output_tensor=x, rounding_mode="halves_to_nearest_even")


def _top_k(rows: int, length: int, k: int) -> Operator:
    return tvmdml.TopK1(
        input_tensor=tvmdml.TensorDesc("float16", (rows, length)),
        output_value_tensor=tvmdml.TensorDesc("float16", (rows, k)),
        output_index_tensor=tvmdml.TensorDesc("uint32", (rows, k)),
        axis=1,
        k=k,
        axis_direction=tvmdml.AxisDirection.DECREASING,
    )


def _job(fleet: Fleet, desc: Operator, in_place: bool = False) -> Job:
    return Job(lines.of(desc), in_place, fleet.target(targets.resolve("cpu")).name)


def _check(outcomes: list[tuple[int, Outcome]], count: int) -> None:
    assert sorted(place for place, _ in outcomes) == list(range(count))
    for _, outcome in outcomes:
        assert not outcome.problem
        assert 0 < outcome.seconds < 10
        assert 0 < outcome.default < 10
        assert outcome.worst > 0


# -- Servers that do as they should -------------------------------------------------------------------------------


def test_servers_are_what_this_machine_is(fleet: tuple[Fleet, list[str]]) -> None:
    here = targets.resolve("cpu")
    machine = fleet[0].machine(here)
    assert (machine.target, machine.processor) == (here.name, here.machine().processor)
    assert fleet[0].target(here).tasks() == machine.threads >= 1


def test_candidates_agree_with_the_reference_and_are_timed(fleet: tuple[Fleet, list[str]]) -> None:
    found, notes = fleet
    packed, gaps = _round(64, 100), _round(8, 10, strides=(16, 1))
    candidates: list[Knobs] = [{"algorithm": "sort"}, {}, {"algorithm": "rank"}]
    _check(list(found.measure(_job(found, _top_k(2, 60, 4)), candidates)), 3)
    _check(list(found.measure(_job(found, packed), [{}])), 1)
    _check(list(found.measure(_job(found, packed, in_place=True), [{}], thorough=True)), 1)
    _check(list(found.measure(_job(found, gaps), [{}])), 1)
    output = tvmdml.TensorDesc("float32", (1, 1, 6, 7))
    no_input = tvmdml.DiagonalMatrix1(
        output_tensor=output, value=2.5, value_data_type="float32", diagonal_fill_begin=-1, diagonal_fill_end=2
    )
    _check(list(found.measure(_job(found, no_input), [{}])), 1)
    assert notes == []


def test_what_does_not_compile_costs_its_trial(fleet: tuple[Fleet, list[str]]) -> None:
    found, _ = fleet
    outcomes = dict(found.measure(_job(found, _top_k(2, 60, 4)), [{"algorithm": "magic"}, {}]))
    assert "algorithm" in outcomes[0].problem
    assert not outcomes[1].problem


# -- Candidates that do not ---------------------------------------------------------------------------------------

_ODD = {
    "crash": "*(volatile int *)8 = 1;",
    "stack": "int nest(volatile int *p) { volatile int a[4096]; a[0] = p ? *p : 0; return nest(a) + a[0]; }",
    "hang": 'for (;;) { __asm__ volatile(""); }',
    "nothing": "",
}


def _build_odd(job: Job, knobs: Knobs, threads: int) -> CandidateLibrary:
    """Runs where candidates are compiled."""
    if "odd" not in knobs:
        return parcels.build_library(job, {}, threads)
    body = _ODD[str(knobs["odd"])]
    source = f"int __tvm_ffi_odd(void *self, void *args, int n, void *result) {{ {body} return 0; }}\n"
    return CandidateLibrary(_compiled(source, job), "odd")


def _compiled(source: str, job: Job) -> bytes:
    folder = Path(os.environ["TVMDML_CACHE_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    name = folder / f"{threading.get_ident()}-{os.getpid()}"
    name.with_suffix(".c").write_text(source)
    machine = "aarch64" if "aarch64" in job.target else "x86_64"
    command = [*bundle._tools(machine).command, "-shared", "-fPIC", "-O0", "-o", f"{name}.so", f"{name}.c"]
    subprocess.run(command, check=True)
    return name.with_suffix(".so").read_bytes()


def test_a_candidate_that_crashes_hangs_or_is_wrong_costs_its_trial_and_no_server(
    fleet: tuple[Fleet, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parcels, "build_library", _build_odd)
    found, notes = fleet
    candidates: list[Knobs] = [{"odd": "crash"}, {}, {"odd": "hang"}, {"odd": "nothing"}, {}]
    outcomes = dict(found.measure(_job(found, _round(100)), candidates))
    assert "crashed" in outcomes[0].problem
    assert "hung" in outcomes[2].problem
    assert "wrong result" in outcomes[3].problem
    _check([(0, outcomes[1]), (1, outcomes[4])], 2)
    _gather(found, 3)  # all of them continue to serve
    assert notes == []


# -- Servers that do not ------------------------------------------------------------------------------------------


def test_a_server_that_is_killed_loses_no_trial(servers: Servers, fleet: tuple[Fleet, list[str]]) -> None:
    found, _ = fleet
    trials = found.measure(_job(found, _round(64, 100)), [{}] * 6, thorough=True)
    outcomes = [next(trials)]
    servers.kill(servers.ports[1])
    try:
        outcomes += trials
        _check(outcomes, 6)
        _gather(found, 2)
    finally:
        servers.start(servers.ports[1])
    _gather(found, 3)  # one that comes later takes part
    _check(list(found.measure(_job(found, _round(64, 100)), [{}] * 3)), 3)


def test_what_a_server_that_stands_still_had_is_given_to_another(servers: Servers, fleet: tuple[Fleet, list[str]]) -> None:
    found, _ = fleet
    trials = found.measure(_job(found, _round(64, 100)), [{}] * 6, thorough=True)
    outcomes = [next(trials)]
    servers.signal(servers.ports[0], signal.SIGSTOP)
    try:
        start = time.monotonic()
        outcomes += trials
        assert time.monotonic() - start < 40  # before the limit of 48 s ends, after which a server is asked no more
    finally:
        servers.signal(servers.ports[0], signal.SIGCONT)
    _check(outcomes, 6)


def test_a_run_goes_on_through_the_end_of_its_tracker_and_finds_the_next(servers: Servers, fleet: tuple[Fleet, list[str]]) -> None:
    found, notes = fleet
    trials = found.measure(_job(found, _round(64, 100)), [{}] * 6, thorough=True)
    outcomes = [next(trials)]
    servers.kill(servers.port)
    outcomes += [next(trials), next(trials)]
    servers.start_tracker()
    found._lost(next(lane for lane in found._lanes if lane.open), "", False)  # only the new tracker knows its server
    outcomes += trials
    _check(outcomes, 6)
    _gather(found, 3)
    assert any("no tracker responds" in note for note in notes)


def test_a_server_that_talks_nonsense_is_left_out(servers: Servers, fleet: tuple[Fleet, list[str]]) -> None:
    found, notes = fleet
    with _Nonsense(servers.port) as nonsense:
        _until(lambda: found._step() or bool(found._avoided), "it is left out")
        assert found._avoided == {("127.0.0.1", nonsense.port)}
        _check(list(found.measure(_job(found, _round(100)), [{}] * 3)), 3)
    assert any(f"server 127.0.0.1:{nonsense.port} is left out" in note for note in notes)


class _Nonsense:
    """A server that lets everybody in, and then says what means nothing."""

    def __init__(self, tracker: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._tracker = _tracker(tracker)

    def __enter__(self) -> _Nonsense:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._tracker.close()

    def _ask(self, *command: object) -> None:
        base.sendjson(self._tracker, command)
        base.recvjson(self._tracker)

    def _serve(self) -> None:
        self._ask(base.TrackerCode.UPDATE_INFO, {"key": f"server:{_KEY}", "addr": (None, self.port)})
        for number in range(100):
            try:
                self._ask(base.TrackerCode.PUT, _KEY, (self.port, f"{_KEY}:{number}"), None)
                with self._listener.accept()[0] as client:
                    client.recv(1 << 10)
                    key = f"server:{_KEY}".encode()
                    client.sendall(struct.pack("<ii", base.RPC_MAGIC, len(key)) + key)
                    client.sendall(np.random.default_rng(number).bytes(1 << 12))
            except OSError:
                return


def test_times_that_cannot_be_are_a_lie() -> None:
    def contender(*times: float) -> Any:
        answer = SimpleNamespace(time_evaluator=lambda *_, **__: lambda *_: SimpleNamespace(results=times))
        session = SimpleNamespace(load=lambda _: answer, _empty=None, _device=None)
        return remote._Contender(session, CandidateLibrary(symbol="f"))  # type: ignore[arg-type]

    assert contender(1e-6, 2e-6).timer(10, 2)([]) == (1e-6, 2e-6)
    for times in [(1e-6,), (1e-6, 0.0), (1e-6, -1e-6), (1e-6, float("nan")), (1e-6, float("inf")), (1e-6, 10.0)]:
        with pytest.raises(remote.Lie):
            contender(*times).timer(10, 2)([])


# -- Fleets of their own ------------------------------------------------------------------------------------------


@pytest.fixture
def given_back(_shared: tuple[Fleet, list[str]]) -> None:
    """The servers that the others share are nobody's any more."""
    _shared[0].__exit__()


@pytest.mark.usefixtures("given_back")
def test_another_kind_of_machine_is_left_out_and_an_early_end_is_quick(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.wait(3)
    notes: list[str] = []
    hear = Fleet._hear
    others: list[lanes.Address] = []

    def heard(self: Fleet, lane: Any, said: Any) -> None:
        if isinstance(said, lanes.Opened) and (lane.place in others or (self.servers == 1 and not others)):
            others.append(lane.place)
            said = lanes.Opened(said.machine._replace(threads=1000))
        hear(self, lane, said)

    monkeypatch.setattr(Fleet, "_hear", heard)
    with Fleet(servers.address, _KEY, cache=tmp_path, jobs=1, note=notes.append) as fleet:
        _gather(fleet, 2)
        assert len(notes) == 1
        assert "is left out: another kind of machine" in notes[0]
        assert "1000 threads" in notes[0]
        next(fleet.measure(_job(fleet, _round(100)), [{}] * 9, thorough=True))
        assert fleet.servers == 2
        start = time.monotonic()
    assert time.monotonic() - start < 20  # a trial has 60 s, and nobody waits for those that are left
    servers.wait(3)  # they serve others


def test_without_servers_there_is_an_error_that_says_so(servers: Servers, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"under nobody for 0\.5 s .*--key=nobody starts one"):
        Fleet(servers.address, "nobody", cache=tmp_path, patience=0.5, jobs=1).__enter__()


def test_a_fleet_tunes_processors_that_have_an_address(tmp_path: Path) -> None:
    for name in ("cuda:sm_80", "vulkan:desktop"):
        (device,) = targets.elsewhere(name)
        with pytest.raises(Unsupported, match="A fleet tunes processors; tune a device on the machine it is in"):
            Fleet("127.0.0.1:9190", _KEY, device, cache=tmp_path)
    for tracker in ("127.0.0.1", "127.0.0.1:", ":9190", "127.0.0.1:x", "127.0.0.1:99999"):
        with pytest.raises(InvalidArgument, match="host:port"):
            Fleet(tracker, _KEY, cache=tmp_path)


def test_the_guard_is_compiled_for_known_machines_alone() -> None:
    assert bundle.guard("x86_64" if "x86" in targets.resolve("cpu").name else "aarch64").startswith(b"\x7fELF")
    with pytest.raises(CompileError, match=r"C compiler|not be compiled"):
        bundle.guard("pdp11")

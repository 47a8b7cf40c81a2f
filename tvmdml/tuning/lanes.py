"""Processes that each hold a session on a server, so that no failure of a server stops the run.

A call through TVM's RPC cannot be cancelled: it waits for its answer. Therefore each session has its own process, which the system
ends when its time is over. All are forked from one process that has imported TVM, which takes seconds and is done once.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tvmdml.errors import CompileError
from tvmdml.library.log_terms import Machine, Outcome
from tvmdml.system import children
from tvmdml.tuning.parcels import CandidateLibrary

Address: TypeAlias = tuple[str, int]
"""A server's host and port."""
_MOST = 1 << 16
"""The maximum bytes of the message that starts a lane."""
_MOST_SAID = 1 << 24
"""The maximum bytes of a tracker's answer; a server takes about a hundred of them."""
_RETRY = 1.0
"""The seconds between attempts to reach an absent tracker."""
_PATIENCE = 5.0
"""The seconds that a tracker may take for an answer that it can give at once."""
_GRACE = 5.0
"""The seconds after a trial's time limit until the lane ends: by then the server should have ended the trial."""


# -- Messages of lanes --------------------------------------------------------------------------------------------


class ServerWait(NamedTuple):
    """The tracker was asked for a server."""

    free: int
    """The number of its unused servers, including this one."""


class Trouble(NamedTuple):
    """There is no tracker, or it does not give a proper answer."""

    problem: str


class Granted(NamedTuple):
    """The tracker assigned a server, which is contacted now."""

    place: Address


class Opened(NamedTuple):
    """The server answered: the session is open."""

    machine: Machine


class Trying(NamedTuple):
    """The session has everything it needs for the job; from now on, the candidate is responsible for what happens."""


class Done(NamedTuple):
    """The outcome of a trial."""

    outcome: Outcome


class Lost(NamedTuple):
    """The session is over, or cannot be trusted: nothing more will come from this lane."""

    problem: str
    to_blame: bool
    """The server is permanently at fault: its answer cannot be right."""


class Cannot(NamedTuple):
    """No server can be used: a package that is needed is not installed here."""

    problem: str


class LaneRequest(NamedTuple):
    """A request to a lane: try a candidate."""

    work: Path
    """A file with the job's ``Work``."""
    threads: int
    library: CandidateLibrary
    thorough: bool


class _Start(NamedTuple):
    tracker: Address
    key: str
    avoid: frozenset[Address]
    timeout: float


# -- In the requesting process ------------------------------------------------------------------------------------


class LaneStarter:
    """Starts lanes. Everything it started ends with it, and with this process, however this process ends.

    Args:
        environment: variables that the lanes get in addition to this process's own.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - it is open as long as the process
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                children.command(f"from tvmdml.tuning.lanes import serve; serve({theirs.fileno()})"),
                env={**os.environ, **environment},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # not affected by Ctrl-C, and all lanes can be killed with it
            )

    def start(self, tracker: Address, key: str, avoid: Collection[Address], timeout: float) -> Connection[Any, Any]:
        """Start a lane, which asks the tracker for a server. It ends when the connection is closed.

        Args:
            tracker: its address.
            key: the servers' name there.
            avoid: servers that must not be used.
            timeout: the time limit of a trial in seconds.

        Raises:
            CompileError: a package that is needed is not installed.
        """
        ours, theirs = Pipe()
        with theirs:
            try:
                content = pickle.dumps(_Start(tracker, key, frozenset(avoid), timeout))
                socket.send_fds(self._socket, [content], [theirs.fileno()])
            except OSError:
                ours.close()
                raise CompileError(f"the processes that talk to servers have ended: {self.said()}") from None
        return ours

    def said(self) -> str:
        """The last line that was printed."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self._process.poll()}"

    def close(self) -> None:
        """Kill all lanes."""
        if self._process.returncode is not None:  # its number may already belong to another process
            return
        self._socket.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


# -- In the lanes' process ----------------------------------------------------------------------------------------


def serve(descriptor: int) -> None:
    """Fork a lane for each new connection, until the requesting process is gone; then all end."""
    from tvmdml.targets.cpu import bundle, host
    from tvmdml.tuning import remote

    remote.rpc()
    with contextlib.suppress(CompileError):  # each lane reports it
        bundle.guard(host.host().machine)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    orders = socket.socket(fileno=descriptor)
    while True:
        content, descriptors, _, _ = socket.recv_fds(orders, _MOST, 1)
        if not content:
            os.killpg(0, signal.SIGKILL)
        if os.fork() == 0:
            orders.close()
            with contextlib.suppress(BaseException):
                _lane(Connection(descriptors[0]), *pickle.loads(content))  # noqa: S301 - written by the parent process
            os._exit(0)  # skips TVM's farewell to a server, which may not respond
        os.close(descriptors[0])


def _lane(parent: Connection[Any, Any], tracker: Address, key: str, avoid: frozenset[Address], timeout: float) -> None:
    """Get a server from the tracker, and try the requested candidates on it."""
    from tvmdml.tuning import remote

    place, match = _request(parent, tracker, key, avoid)
    parent.send(Granted(place))
    signal.alarm(round(2 * timeout + _GRACE))  # SIGALRM has no handler, so it ends the process
    try:
        session = remote.ServerSession(place, match, timeout)
        machine = session.machine()
        session.rest()
        parent.send(Opened(machine))
    except CompileError as error:
        parent.send(Cannot(str(error)))
        return
    except Exception as error:
        parent.send(Lost(_first_line(error), False))
        return
    while True:
        signal.alarm(0)
        order: LaneRequest = parent.recv()
        try:
            answer = _try(parent, session, order, timeout)
            session.rest()
        except remote.Lie as error:
            answer = Lost(str(error), True)
        except Exception as error:
            answer = Lost(_first_line(error), False)
        parent.send(answer)
        if isinstance(answer, Lost):
            return


def _try(parent: Connection[Any, Any], session: Any, order: LaneRequest, timeout: float) -> Done | Lost:
    from tvmdml.tuning import remote

    signal.alarm(round((6 if order.thorough else 4) * timeout + _GRACE))
    if session.old():
        return Lost("", False)
    if problem := session.prepare(order.work, order.threads):
        return Lost(f"the defaults are wrong there: {problem}", True)
    parent.send(Trying())
    signal.alarm(round((3 if order.thorough else 1) * timeout + _GRACE))
    try:
        return Done(session.measure(order.library, remote.THOROUGH if order.thorough else remote.QUICK))
    except remote.Lie:
        raise
    except Exception as error:
        if not session.alive():
            raise
        return Done(Outcome(problem=f"failed: {_first_line(error)}"))


def _request(parent: Connection[Any, Any], tracker: Address, key: str, avoid: Collection[Address]) -> tuple[Address, str]:
    """Ask a tracker for a server until it assigns one, even if the tracker is temporarily gone."""
    said = ""
    while True:
        try:
            with socket.create_connection(tracker, _PATIENCE) as connection:
                return _requested(parent, connection, key, avoid)
        except Exception as error:  # the tracker may answer anything
            if said != (said := str(error) or type(error).__name__):
                parent.send(Trouble(said))
        if parent.poll(_RETRY):  # the requesting process is gone, or sent an unexpected message
            sys.exit()


def _requested(
    parent: Connection[Any, Any], connection: socket.socket, key: str, avoid: Collection[Address]
) -> tuple[Address, str]:
    from tvm.rpc import base

    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
    if struct.unpack("<i", base.recvall(connection, 4))[0] != base.RPC_TRACKER_MAGIC:
        raise ValueError("it is not a TVM RPC tracker")
    base.sendjson(connection, [base.TrackerCode.SUMMARY])
    _, summary = _answer(connection)
    parent.send(ServerWait(int(summary["queue_info"].get(key, {}).get("free", 0))))
    while True:
        base.sendjson(connection, [base.TrackerCode.REQUEST, key, "", 1])
        if parent in wait([connection, parent]):
            sys.exit()
        code, (host, port, match) = _answer(connection)
        if code != base.TrackerCode.SUCCESS:
            raise ValueError(f"it answered {code}")
        if (str(host), int(port)) not in avoid:  # otherwise the server registers again after a while
            return (str(host), int(port)), str(match)
        time.sleep(0.1)


def _answer(connection: socket.socket) -> Any:
    """A tracker's answer, if it is not too long."""
    from tvm.rpc import base

    (size,) = struct.unpack("<i", base.recvall(connection, 4))
    if not 0 < size <= _MOST_SAID:
        raise ValueError(f"it answered {size} bytes")
    return json.loads(base.recvall(connection, size))


def _first_line(error: BaseException) -> str:
    if "kShutdown" in str(error):
        return "its session ended"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "Error caught" not in line), type(error).__name__)[:500]

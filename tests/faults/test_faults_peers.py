"""TVM RPC trackers and servers that send invalid data: an error message and a retry, no hang, and no unlimited memory."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Pipe
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tvmdml.tuning import lanes, remote

pytest.importorskip("tvm", reason="the compiler is not installed")
from tvm.rpc import base

KEY = "a test's"
MAGIC = struct.pack("<i", base.RPC_TRACKER_MAGIC)


def said(value: object) -> bytes:
    """As a tracker says it."""
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<i", len(content)) + content


GOOD = said([0, {"queue_info": {KEY: {"free": 1}}, "server_info": []}])
LIES = {
    "nothing": (b"", "connection reset"),
    "half a number": (MAGIC[:2], "connection reset"),
    "another protocol": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it is not a TVM RPC tracker"),
    "an answer without an end": (MAGIC + struct.pack("<i", 2**31 - 1) + b"[" * 5000, "it answered 2147483647 bytes"),
    "less than nothing": (MAGIC + struct.pack("<i", -5), "it answered -5 bytes"),
    "no JSON": (MAGIC + said(b"\xff\xfe nonsense"), "codec can't decode byte"),
    "JSON without an end": (MAGIC + said(b"[" * 100_000), "while decoding a JSON array"),
    "a list": (MAGIC + said([1, 2, 3]), "too many values to unpack"),
    "no summary": (MAGIC + said([0, {"queue_info": [KEY]}]), "'list' object has no attribute 'get'"),
    "endless servers": (MAGIC + said(b'[0, {"queue_info": {"a test\'s": {"free": 1e999}}}]'), "cannot convert float infinity"),
    "a refusal": (MAGIC + GOOD + said([-1, ["localhost", 1, ""]]), "it answered -1"),
    "no place": (MAGIC + GOOD + said([0, None]), "cannot unpack non-iterable NoneType"),
    "a port that is none": (MAGIC + GOOD + said([0, ["localhost", "x", ""]]), "invalid literal for int"),
}


@contextlib.contextmanager
def tracker(*answers: bytes) -> Iterator[lanes.Address]:
    """A tracker that gives each who asks the next of these answers, and then says no more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                with contextlib.suppress(OSError), listener.accept()[0] as client:
                    client.settimeout(20)
                    client.sendall(answer)
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(1 << 12):
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[:2]
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("lie", LIES)
def test_a_tracker_that_lies_is_told_of_and_asked_again(monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    monkeypatch.setattr(lanes, "_RETRY", 0.01)
    answer, expected = LIES[lie]
    ours, theirs = Pipe()
    with ours, theirs, tracker(answer, MAGIC + GOOD + said([0, ["localhost", 77, "a match"]])) as place:
        assert lanes._request(theirs, place, KEY, ()) == (("localhost", 77), "a match")
        heard = [ours.recv() for _ in iter(lambda: ours.poll(0), False)]
    (trouble,) = (one.problem for one in heard if isinstance(one, lanes.Trouble))
    assert expected in trouble


# -- Servers ------------------------------------------------------------------------------------------------------


def machine_that_says(text: bytes, size: int | None = None) -> Callable[[], Any]:
    """What a session takes for its machine that describes itself in these words."""

    class Room:
        def numpy(self) -> Any:
            return np.frombuffer(text.ljust(remote._ROOM, b"\0"), np.uint8)

    guard = {"describe": lambda room, most: len(text) if size is None else size}
    session = SimpleNamespace(_empty=lambda *_: Room(), _device=None, _guard=guard, _kind="x86_64")
    return lambda: remote.ServerSession.machine(session)  # type: ignore[arg-type]


def test_a_machine_is_what_it_says() -> None:
    found = machine_that_says(b"3\nmax 100000\nvendor_id : A\nflags : cx16\n")()
    assert (found.target, found.threads) == ("cpu:x86-64", 3)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (b"1000000000\n\n", None),
        (b"9" * 5000 + b"\n\n", None),
        (b"many\n\n", None),
        (b"2", None),
        (b"2\n\n", -(1 << 40)),
        (b"\xff" * (1 << 18), 1 << 62),
    ],
)
def test_a_machine_that_cannot_be_is_refused(text: bytes, size: int | None) -> None:
    with pytest.raises((remote.Lie, ValueError)) as caught:
        machine_that_says(text, size)()
    assert len(str(caught.value)) < 300

"""What a peer is, and what the files of peers share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tvmdml.proof.bench.inputs import NumpyArray
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work


class Attempt(NamedTuple):
    """A peer prepared for a task."""

    call: Callable[[], object]
    results: Callable[[], tuple[NumpyArray, ...]]
    """Calls it, and returns its results in the form of the operator's reference."""
    prepare: Callable[[], object] = lambda: None
    """Runs before each sample, untimed."""
    repeat: Callable[[int], object] | None = None
    """Runs this many calls, if the peer has its own way to repeat them."""
    stream: int = 0
    """The device stream that it works on; 0 is the default stream."""


class Peer(NamedTuple):
    """One way to do an operator's work."""

    library: str
    """One of the ``LIBRARIES`` of the place where it runs."""
    name: str
    make: Callable[[Task, int], Attempt]
    """``make(task, threads)``."""
    when: Callable[[Work], bool] = lambda work: True
    """Whether it can do this work."""
    note: str = ""
    """How it differs from the operator."""
    where: str = "cpu"
    """Where it runs: ``cpu``, or ``cuda`` for the device that was selected with ``use``."""


class PeerLibrary(NamedTuple):
    """A library of peers."""

    modules: tuple[str, ...]
    """The modules that must be installed."""
    threaded: bool = False
    """Whether it is measured with one thread and with all threads."""
    aside: bool = False
    """Whether it is not part of the goals: only the full set compares with it."""
    lacks: Callable[[], str] = lambda: ""
    """Why the installed library cannot take part; empty if it can."""


def torch() -> Any:
    """PyTorch."""
    return importlib.import_module("torch")


def tensor(array: NumpyArray) -> Any:
    """PyTorch's view of an array."""
    return torch().from_numpy(array)


def on_torch(call: Callable[[], object], results: Callable[[], tuple[NumpyArray, ...]], threads: int) -> Attempt:
    """An attempt of PyTorch with this many threads."""
    return Attempt(call, results, partial(torch().set_num_threads, threads))


def writes(call: Callable[[], object], *outputs: NumpyArray) -> Callable[[], tuple[NumpyArray, ...]]:
    """The results that a call writes to arrays."""

    def results() -> tuple[NumpyArray, ...]:
        call()
        return outputs

    return results

"""What a peer is, and what its makers share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tvmdml.bench.inputs import Array
from tvmdml.bench.work import Task, Work


class Attempt(NamedTuple):
    """A peer made ready for a task."""

    call: Callable[[], object]
    results: Callable[[], tuple[Array, ...]]
    """Calls it, and returns its results in the form of the operator's reference."""
    prepare: Callable[[], object] = lambda: None
    """Runs before each sample, untimed."""
    repeat: Callable[[int], object] | None = None
    """Does what so many calls do, where that is not just to call so many times."""
    stream: int = 0
    """The stream of a device that it works on; 0 is the one that everybody uses unless told otherwise."""


class Peer(NamedTuple):
    """One way to do an operator's work."""

    library: str
    """One of ``LIBRARIES``, of those where it runs."""
    name: str
    make: Callable[[Task, int], Attempt]
    """``make(task, threads)``."""
    when: Callable[[Work], bool] = lambda work: True
    """Whether it does this work."""
    note: str = ""
    """How what it does differs."""
    where: str = "cpu"
    """Where it runs: ``cpu``, or ``cuda`` for the device that libraries were told to ``use``."""


class Library(NamedTuple):
    """Where peers come from."""

    modules: tuple[str, ...]
    """What has to be installed."""
    threaded: bool = False
    """Whether it is asked to use one thread and all threads."""
    aside: bool = False
    """Whether it stands beside the goals: they do not speak of it, and only the full set compares with it."""
    lacks: Callable[[], str] = lambda: ""
    """What keeps an installed one from taking part; empty if nothing does."""


def torch() -> Any:
    """PyTorch."""
    return importlib.import_module("torch")


def tensor(array: Array) -> Any:
    """PyTorch's view of an array."""
    return torch().from_numpy(array)


def on_torch(call: Callable[[], object], results: Callable[[], tuple[Array, ...]], threads: int) -> Attempt:
    """An attempt of PyTorch's, with so many threads."""
    return Attempt(call, results, partial(torch().set_num_threads, threads))


def writes(call: Callable[[], object], *outputs: Array) -> Callable[[], tuple[Array, ...]]:
    """Results that a call leaves in arrays."""

    def results() -> tuple[Array, ...]:
        call()
        return outputs

    return results

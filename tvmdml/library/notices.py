"""What the modules that prepare operators, load packs and record tell each other; it depends on none of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from tvmdml.kernels import plans

if TYPE_CHECKING:
    from tvmdml.operators import Operator
    from tvmdml.operators._contract import Shared
    from tvmdml.targets import Target

_listeners: tuple[Callable[[Operator, Target, Shared], None], ...] = ()
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # the thread that held the lock does not exist in the child


_listed: ContextVar[list[tuple[Operator, Shared]] | None] = ContextVar("listed", default=None)


class ListedGraph(BaseException):
    """In place of a compiled graph, where operations are listed. As an interrupt it passes whoever handles errors."""


@contextmanager
def listing() -> Iterator[list[tuple[Operator, Shared]]]:
    """List the operations of a graph that is compiled in this context, which ends with ``ListedGraph``: only constants run."""
    found: list[tuple[Operator, Shared]] = []
    token = _listed.set(found)
    try:
        yield found
    finally:
        _listed.reset(token)


def list_all(operations: Callable[[], Iterable[tuple[Operator, Shared]]]) -> None:
    """Called with what makes the operations of a graph, before they are compiled.

    Raises:
        Listed: they are listed, and nothing is to be compiled.
    """
    found = _listed.get()
    if found is not None:
        found += operations()
        raise ListedGraph


def note(desc: Operator, target: Target, shared: Shared) -> None:
    """Tell all listeners that an operator is prepared."""
    if (found := _listed.get()) is not None:
        found.append((desc, shared))
    for listener in _listeners:
        listener(desc, target, shared)


def listen(listener: Callable[[Operator, Target, Shared], None]) -> None:
    """Call a function with every operator that is prepared from now on."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)
    plans.forget()


def stop(listener: Callable[[Operator, Target, Shared], None]) -> None:
    """Stop calling the function."""
    global _listeners
    with _lock:
        _listeners = tuple(one for one in _listeners if one != listener)

"""What the modules that prepare operators, load packs and record tell each other; it depends on none of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvmdml.operators import Operator
    from tvmdml.operators._contract import Shared
    from tvmdml.targets import Target

_listeners: tuple[Callable[[Operator, Target, Shared], None], ...] = ()
_planners: list[Callable[[], None]] = []
_lock = threading.RLock()
generation = 0
"""Changes whenever kernels may come from another place than before. A plan of an older generation is made again."""


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # the thread that held the lock does not exist in the child


_listed: ContextVar[list[tuple[Operator, Shared]] | None] = ContextVar("listed", default=None)


class Listed(BaseException):
    """In place of a compiled graph, where operations are listed. As an interrupt it passes whoever handles errors."""


@contextmanager
def listing() -> Iterator[list[tuple[Operator, Shared]]]:
    """List the operations of a graph that is compiled in this context, which ends with ``Listed``: only constants are computed."""
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
        raise Listed


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
    forget_plans()


def stop(listener: Callable[[Operator, Target, Shared], None]) -> None:
    """Stop calling the function."""
    global _listeners
    with _lock:
        _listeners = tuple(one for one in _listeners if one != listener)


def plan_anew(forget: Callable[[], None]) -> None:
    """Call a function whenever plans of calls must be dropped."""
    _planners.append(forget)


def forget_plans() -> None:
    """Make all functions plan their calls again."""
    global generation
    generation += 1
    for forget in _planners:
        forget()

"""What the modules that prepare operators, load packs and record tell each other; it depends on none of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
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


def note(desc: Operator, target: Target, shared: Shared) -> None:
    """Tell all listeners that an operator is prepared."""
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

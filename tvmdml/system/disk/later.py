"""Work that nobody waits for: what is made of a model is written to the cache while the program goes on with its results.

It is done in order, on one thread at a time. Forks and the end of the process wait for it (``system.behind``); a process that is
killed leaves a file without a place, which counts as absent. Whoever reads what may be being written calls ``finish`` before.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable

from tvmdml import system
from tvmdml.system.logger import LOGGER

Work = Callable[[], object]

_waiting: deque[Work] = deque()
_state = threading.Condition()
_worker: int | None = None
"""The thread that does it: 0 before it begins, ``None`` if there is none."""


def _renew() -> None:
    """In a forked child there is no such thread: the parent does the work."""
    global _state, _worker
    _state, _worker = threading.Condition(), None
    _waiting.clear()


os.register_at_fork(after_in_child=_renew)


def later(work: Work) -> None:
    """Do work, in the caller's context, after all that was given before."""
    import contextvars

    begun = functools.partial(contextvars.copy_context().run, work)
    system.apart(lambda: _add(begun))  # an interrupt would leave a thread to wait for that never begins


def _add(work: Work) -> None:
    global _worker
    with _state:
        _waiting.append(work)
        if _worker is not None:
            return
        _worker = 0
    if not system.behind(_work):
        _renew()


def finish() -> None:
    """Wait until all work is done. Work itself does not wait."""
    if _worker is not None and _worker != threading.get_ident():
        with _state:
            _state.wait_for(lambda: _worker is None)


def _work() -> None:
    global _worker
    _worker = threading.get_ident()
    while True:
        with _state:
            if not _waiting:
                _worker = None
                _state.notify_all()
                return
            work = _waiting.popleft()
        try:
            work()
        except Exception:  # nobody waits for it
            LOGGER.exception("something was not written to the cache")

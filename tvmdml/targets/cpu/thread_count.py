"""How many threads a kernel may use on this machine."""

from __future__ import annotations

import os

from tvmdml.errors import InvalidArgument, message
from tvmdml.targets.cpu import cgroups


def thread_count() -> int:
    """How many threads a kernel may use.

    It is ``TVMDML_NUM_THREADS`` if set. Otherwise it is the number of processors that this process may run on, or less if its
    control group limits processor time.

    Raises:
        InvalidArgument: the variable is not a number from 1 to 1024.
    """
    text = os.environ.get("TVMDML_NUM_THREADS", "").strip()
    if not text:
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(processors, cgroups.processors() or processors)
    if not (text.isdecimal() and 1 <= int(text) <= 1024):
        raise InvalidArgument(message("TVMDML_NUM_THREADS", repr(text), "a number from 1 to 1024"))
    return int(text)

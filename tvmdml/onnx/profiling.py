"""``Profile``: the times of all runs of a session and of their kernels, in the file that ONNX Runtime's programs expect."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.graph.compiled import CompiledGraph

_MOST_EVENTS = 1_000_000


def in_folder(path: str, where: str) -> None:
    """Check that a file can be written to its folder, before long work.

    Raises:
        InvalidArgument: there is no such folder.
    """
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise InvalidArgument(message(where, safe_repr(path), "a file in a folder that exists"))


class Profile:
    """Events in Chrome's trace format, as a list: a ``model_run`` for each run, and one for each kernel of it.

    Kernels follow one another from the start of their run: only how long each takes is measured.
    """

    def __init__(self, prefix: str) -> None:
        """A file whose name begins with a prefix, and ends with the present time.

        Raises:
            InvalidArgument: its folder does not exist.
        """
        in_folder(prefix, "profile_file_prefix")
        now = datetime.now()
        self.path = f"{prefix}_{now:%Y-%m-%d_%H-%M-%S}_{now.microsecond // 1000:03}.json"
        self.start = time.perf_counter_ns()
        self._events: list[dict[str, Any]] = []
        self._is_written = False

    def run(self, graph: CompiledGraph, inputs: Mapping[str, Any], provider: str) -> list[Any]:
        """The results of a run that is measured."""
        before = time.perf_counter_ns()
        results, kernels = graph.timed(inputs)
        self._add("Session", "model_run", before, time.perf_counter_ns() - before, {})
        at = before
        for one in kernels:
            operator = one.name.partition(" ")[0]
            if one.skipped:
                continue  # nothing ran
            arguments = {"op_name": operator, "provider": provider, "kernel": one.kernel}
            self._add("Node", f"{one.name}_kernel_time", at, one.nanoseconds, arguments)
            at += one.nanoseconds
        return results

    def _add(self, category: str, name: str, begin: int, nanoseconds: int, arguments: Mapping[str, str]) -> None:
        if len(self._events) < _MOST_EVENTS:
            times = {"dur": nanoseconds / 1000, "ts": (begin - self.start) / 1000}
            place = {"pid": os.getpid(), "tid": threading.get_native_id()}
            self._events.append({"cat": category, **place, **times, "ph": "X", "name": name, "args": arguments})

    def end(self) -> str:
        """Write the file, unless it is written; its name.

        Raises:
            OSError: it cannot be written.
        """
        if not self._is_written:
            self._is_written = True
            Path(self.path).write_text(json.dumps(self._events))
        return self.path

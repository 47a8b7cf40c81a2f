"""ONNX models read in a process of their own, with bounds on memory and time: what exhausts them ends that process alone.

ONNX's shape inference follows what the model says. A few nodes can ask for tensors of thousands of millions of dimensions, and
its code in C++ hears no Ctrl-C.
"""

from __future__ import annotations

import importlib.util
import math
import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path

from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported, message
from tvmdml.packs import onnx_models
from tvmdml.packs.onnx_models import Nodes
from tvmdml.tuning.workers import Failure, Workers

MEMORY = 1 << 30
"""Bytes that reading a model may take, beside ``TIMES`` the file's own."""
TIMES = 4
SECONDS = 120
"""Processor time that it may take."""
_PATIENCE = 10.0 * SECONDS
"""The same by the clock, for a machine that has other things to do."""


def read(path: Path, sizes: Mapping[str, int]) -> Nodes:
    """As ``onnx_models.read``, in a process of its own.

    Raises:
        InvalidArgument: the model cannot be read, or takes too much.
        Unsupported: ONNX is not installed.
    """
    if importlib.util.find_spec("onnx") is None:
        raise Unsupported(message(str(path), "an ONNX model", "other files, as ONNX is missing", "`pip install onnx`."))
    with Workers(1, {}, _PATIENCE) as workers:
        ((_, answer),) = workers.map(_read, [(str(path), dict(sizes), MEMORY, SECONDS)])
    if isinstance(answer, TvmdmlError):
        raise answer
    if isinstance(answer, Failure):
        raise _exhausted(path, MEMORY, SECONDS, "reading it", f", or fails ({answer.problem})")
    return answer


def _exhausted(path: Path, memory: int, seconds: int, step: str, more: str = "") -> InvalidArgument:
    bounds = f"{memory >> 20} MiB of memory and {TIMES} times the file's size, or {seconds} s of a processor"
    given = f"a model for which {step} takes more than {bounds}{more}"
    advice = "Either somebody made it to do so, or it needs simplifying first (onnxsim, onnxruntime's optimizer)."
    return InvalidArgument(message(str(path), given, "a model that is read within these bounds", advice))


# -- In the process -------------------------------------------------------------------------------------------------


def _read(name: str, sizes: dict[str, int], memory: int, seconds: int) -> Nodes | TvmdmlError:
    """Read a model within bounds. Errors are answers: whatever is raised here counts as a process that failed."""
    path, doing = Path(name), "reading it"

    def progress(step: str) -> None:
        nonlocal doing
        doing = step
        os.ftruncate(2, 0)  # if this ends the process, it is the first line that it leaves
        os.write(2, f"while {step}\n".encode())

    try:
        _limit(path, memory, seconds)
        return onnx_models.read(path, sizes, progress)
    except MemoryError:
        pass
    except TvmdmlError as error:
        return error
    return _exhausted(path, memory, seconds, doing)


def _limit(path: Path, memory: int, seconds: int) -> None:
    """Have the system refuse memory, and end the process, past the bounds."""
    try:
        size = path.stat().st_size
    except OSError:  # which is said when it is read
        size = 0
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    for kind, most in (
        (resource.RLIMIT_AS, used + memory + TIMES * size),
        (resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))

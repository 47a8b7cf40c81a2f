"""ONNX models are read in a separate process with limits on memory and time. If a model exceeds them, only that process ends.

ONNX's shape inference does what the model says. A few nodes can request tensors with billions of dimensions, and its C++ code
does not react to Ctrl-C.
"""

from __future__ import annotations

import importlib.util
import math
import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path

from tvmdml._workers import Failure, Workers
from tvmdml.errors import InvalidArgument, TvmdmlError, Unsupported, message
from tvmdml.packs import onnx_models
from tvmdml.packs.onnx_models import Nodes

MEMORY = 1 << 30
"""The limit of memory for reading a model, in bytes, in addition to ``TIMES`` the file's size."""
TIMES = 4
SECONDS = 120
"""The limit of processor time, in seconds."""
_PATIENCE = 10.0 * SECONDS
"""The limit of elapsed time, in seconds, for a machine that is busy with other work."""


def read(path: Path, sizes: Mapping[str, int]) -> Nodes:
    """Like ``onnx_models.read``, in a separate process.

    Raises:
        InvalidArgument: the model cannot be read, or exceeds a limit.
        Unsupported: ONNX is not installed.
    """
    if importlib.util.find_spec("onnx") is None:
        raise Unsupported(message(str(path), "an ONNX model", "other files, since ONNX is not installed", "`pip install onnx`."))
    with Workers(1, {}, _PATIENCE) as workers:
        ((_, answer),) = workers.map(_read, [(str(path), dict(sizes), MEMORY, SECONDS)])
    if isinstance(answer, TvmdmlError):
        raise answer
    if isinstance(answer, Failure):
        raise _exhausted(path, MEMORY, SECONDS, "reading it", f", or fails ({answer.problem})")
    return answer


def _exhausted(path: Path, memory: int, seconds: int, step: str, more: str = "") -> InvalidArgument:
    bounds = f"{memory >> 20} MiB of memory and {TIMES} times the file's size, or {seconds} s of processor time"
    given = f"a model for which {step} takes more than {bounds}{more}"
    advice = "It may be malicious; otherwise, simplify it first (with onnxsim or ONNX Runtime's optimizer)."
    return InvalidArgument(message(str(path), given, "a model that can be read within these limits", advice))


# -- In the process -------------------------------------------------------------------------------------------------


def _read(name: str, sizes: dict[str, int], memory: int, seconds: int) -> Nodes | TvmdmlError:
    """Read a model within limits. Errors are returned: an exception raised here would count as a failure of the process."""
    path, doing = Path(name), "reading it"

    def progress(step: str) -> None:
        nonlocal doing
        doing = step
        os.ftruncate(2, 0)  # if this step ends the process, its name is the first line of the process's output
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
    """Make the system refuse memory above the limit, and end the process after the time limit."""
    try:
        size = path.stat().st_size
    except OSError:  # reported when the file is read
        size = 0
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    for kind, most in (
        (resource.RLIMIT_AS, used + memory + TIMES * size),
        (resource.RLIMIT_CPU, math.ceil(time.process_time()) + seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))

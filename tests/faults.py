"""Shared by the fault tests: cheap new processes, and child processes that are killed in the middle of an operation."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import round_desc, tensor

import tvmdml
from tvmdml import functions, packs
from tvmdml.library import finding
from tvmdml.library.spec import Spec, Wanted
from tvmdml.system.disk import stores
from tvmdml.targets import _quick
from tvmdml.targets.cpu import CpuTarget

X = np.array([[2.5, -1.5], [0.0, 3.5]], np.float32)
CALLS: dict[str, tuple[Callable[[], Any], Any]] = {
    "round": (lambda: tvmdml.round(X), np.rint(X)),
    "top_k": (lambda: tvmdml.top_k(X, 1).indices, [[0], [1]]),
    "nonzero": (lambda: tvmdml.nonzero_coordinates(X), np.argwhere(X)),
    "diagonal": (lambda: tvmdml.diagonal_matrix(sizes=(3, 3)), np.eye(3)),
}
_FILES = ("open", "os", "shutil", "subprocess", "tempfile")
"""What Python's audit events begin with that are about files."""
_BY_HANDLE = ("os.mkdir", "os.remove", "os.rmdir", "os.utime")
"""Those whose last argument is the handle of the folder that the name is in, or -1."""
_MOST = 200
_builds: dict[tuple[str, str], Any] = {}


def start_anew() -> None:
    """What a new process has in memory: nothing, and no warnings given."""
    functions._plans, functions._quick_plans, finding._memory = {}, _quick.plans(), {}
    stores._warned.clear()


def call(*names: str) -> tuple[int, list[str]]:
    """How many kernels a new process compiles for calls, all by default, and the warnings, given that it gets the right answers."""
    start_anew()
    before = finding.compiled_count
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for work, expected in (CALLS[name] for name in names or CALLS):
            np.testing.assert_array_equal(work(), expected)
    return finding.compiled_count - before, [str(one.message) for one in caught]


def prepare(patch: pytest.MonkeyPatch) -> None:
    """Have new processes look through a store when they first write to it, and the compiler's work done once for all of them."""
    patch.setattr(stores, "_warned", set())
    patch.setattr(stores, "_added_since_prune", {})
    build = CpuTarget.build

    def built(target: CpuTarget, function: Any) -> Any:
        key = target.name, str(function)
        if key not in _builds:
            _builds[key] = build(target, function)
        return _builds[key]

    patch.setattr(CpuTarget, "build", built)


def spec(mode: str = "toward_zero") -> Spec:
    """Of one kernel."""
    return Spec(("cpu:x86-64-v2",), (Wanted(round_desc(tensor("float32", (4, 5)), mode)),), {})


def pack(folder: Path) -> Path:
    """A pack of one kernel."""
    path = folder / "one.tvmdml"
    packs.build(spec(), path, jobs=1)
    return path


def deaths(work: Callable[[], object], folder: Path) -> Iterator[int]:
    """Children that do some work, each killed one step later: a step is whatever is done to files below a folder.

    The last one lives to the end. Yields the number of the step that was not done, when the child is dead.
    """
    for step in range(1, _MOST):
        child = os.fork()
        if child == 0:
            _work_until(work, str(folder), step)
        status = os.waitpid(child, 0)[1]
        if status == 0:
            assert step > 1, f"nothing was done in {folder}"
            return
        assert os.WIFSIGNALED(status), f"step {step}: the work itself failed"
        assert os.WTERMSIG(status) == signal.SIGKILL
        yield step
    raise AssertionError(f"more than {_MOST} steps")


def _opened(handle: int) -> str:
    """What an open handle is of."""
    return os.readlink(f"/proc/self/fd/{handle}") if handle >= 0 else ""


def _work_until(work: Callable[[], object], folder: str, step: int) -> None:
    steps = itertools.count(1)

    def killing(event: str, arguments: tuple[Any, ...]) -> None:
        here = folder in repr(arguments) or (event in _BY_HANDLE and _opened(arguments[-1]).startswith(folder))
        if here and event.partition(".")[0] in _FILES and next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        signal.alarm(60)
        sys.addaudithook(killing)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)

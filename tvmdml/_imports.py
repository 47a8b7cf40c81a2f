"""Slow imports, done only when they are first needed.

tvm_ffi imports PyTorch and NVIDIA's cuda.bindings, if they are installed, before anything else. That takes almost a second, and no
kernel here needs them. These imports are blocked, only on the importing thread and only while tvm_ffi loads.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

from tvmdml import _registry, installing
from tvmdml._garbage import not_collected
from tvmdml._whole import apart, whole
from tvmdml.errors import CompileError

_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # the thread that held the lock does not exist in the child


class NoCompiler(CompileError):
    """TVM's compiler is not installed, but a kernel must be compiled."""


class _TurnAway:  # not a MetaPathFinder of importlib.abc, whose import takes 2 ms
    """Makes modules look as if they were not installed, for imports on this thread."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.thread = threading.get_ident()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname in self.names and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"{fullname} is not needed here", name=fullname)


@contextmanager
def _without_others() -> Iterator[None]:
    finder = _TurnAway("torch", "cuda.bindings")
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@functools.cache
def tvm_ffi() -> ModuleType:
    """The runtime, which loads and calls compiled kernels.

    Raises:
        CompileError: it cannot be imported.
    """
    try:
        return _imported("tvm_ffi")
    except MemoryError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise CompileError(f"the runtime cannot be imported ({why}): `pip install --force-reinstall apache-tvm-ffi`") from error


@functools.cache
def tvm() -> ModuleType:
    """The compiler, needed to build kernels but not to run them.

    Raises:
        NoCompiler: it is not installed, or damaged.
    """
    tvm_ffi()
    found = _part_of_compiler("tvm")
    if getattr(found, "__file__", None) is None:
        raise NoCompiler(f"the compiler is not installed (only a folder: {list(found.__path__)}): {installing.command('compiler')}")
    _part_of_compiler("tvm.tirx.script")  # schedules need it, and TVM itself imports it later
    return found


def _part_of_compiler(name: str) -> ModuleType:
    try:
        return _imported(name)
    except ModuleNotFoundError as error:
        raise NoCompiler(f"the compiler is not installed ({error}): {installing.command('compiler')}") from error
    except MemoryError:
        raise
    except Exception as error:  # for example a missing library
        why = f"{type(error).__name__}: {error}"
        advice = f"start the program again; if that does not help, {installing.command('compiler', '--force-reinstall')}"
        raise NoCompiler(f"the compiler is installed but cannot be imported ({why}): {advice}") from error


def _imported(name: str) -> ModuleType:
    def load() -> ModuleType:
        with whole(), _lock, _without_others(), not_collected(), _registry.at_hand() if name != "tvm_ffi" else nullcontext():
            return importlib.import_module(name)

    return apart(load)


@functools.cache
def version(distribution: str) -> str:
    """The installed version of a distribution, without importing it; empty if it is not installed."""
    versions, is_whole = _distributions()
    if (found := versions.get(_plain(distribution), "")) or is_whole:
        return found
    import importlib.metadata

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def _distributions() -> tuple[dict[str, str], bool]:
    """The versions of all distributions, by the names of their folders, and whether there can be no others.

    ``importlib.metadata``, which reads what is in these folders, takes 10 ms until it has the first version.
    """
    found: dict[str, str] = {}
    is_whole = True
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except FileNotFoundError:
            continue
        except OSError:  # an archive, which may have distributions in it
            is_whole = False
            continue
        for name in names:
            if name.endswith(".dist-info"):
                own, _, number = name.removesuffix(".dist-info").partition("-")
                found.setdefault(_plain(own), number)
            elif name.endswith((".egg-info", ".egg")):
                is_whole = False
    return found, is_whole


def _plain(distribution: str) -> str:
    return re.sub(r"[-_.]+", "_", distribution).lower()

"""Imports that cost time, made when they are first needed and not before.

tvm_ffi imports PyTorch, where it is installed, before anything else: close to a second that no kernel here needs. That one
import is turned away, for the importing thread alone and only while tvm_ffi loads.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.metadata
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tvmdml.errors import CompileError

_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # the thread that held it is not in the child


class NoCompiler(CompileError):
    """TVM's compiler is not installed, and a kernel has to be compiled."""


class _TurnAway(importlib.abc.MetaPathFinder):
    """Answers this thread's import of one module as if it were not installed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.thread = threading.get_ident()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == self.name and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"{fullname} is not needed here", name=fullname)


@contextmanager
def _without_torch() -> Iterator[None]:
    finder = _TurnAway("torch")
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@functools.cache
def tvm_ffi() -> ModuleType:
    """The runtime: loads and calls compiled kernels."""
    with _lock, _without_torch():
        return importlib.import_module("tvm_ffi")


@functools.cache
def tvm() -> ModuleType:
    """The compiler: needed to build a kernel, never to run one.

    Raises:
        NoCompiler: it is not installed.
    """
    tvm_ffi()
    with _lock, _without_torch():
        try:
            return importlib.import_module("tvm")
        except ModuleNotFoundError as error:
            raise NoCompiler(f"the compiler is not installed ({error}): `pip install 'tvmdml[compiler]'`") from error


@functools.cache
def version(distribution: str) -> str:
    """The installed version of a distribution, without importing it; empty when it is absent."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""

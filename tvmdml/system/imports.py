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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from types import ModuleType
from typing import Any

from tvmdml.errors import CompileError
from tvmdml.system import apart, installing, not_collected, whole

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
        with whole(), _lock, _without_others(), not_collected(), _listed_once() if name != "tvm_ffi" else nullcontext():
            return importlib.import_module(name)

    return apart(load)


@contextmanager
def _listed_once() -> Iterator[None]:
    """Inside, TVM's registries list their names once, and know without an error of C++ what they do not have; all else is the same.

    TVM's modules list the names of all functions fifty times, and ask a hundred times for something that does not exist. An error
    of C++ that says so carries a trace of the stack, and for the first one the symbols of every library in the process are read:
    0.3 s, or 1 s beside PyTorch. A version of TVM that has other functions is left as it is.
    """
    import tvm_ffi
    from tvm_ffi import core, registry

    with ExitStack() as stack:
        with suppress(AttributeError, TypeError, ValueError):
            function = registry.get_global_func
            types = _Known(function("ffi.GetRegisteredTypeKeys"))
            names = functools.partial(_function_names, function("ffi.FunctionListGlobalNamesFunctor"), [])
            _replace(stack, registry, "list_global_func_names", lambda ask: names)
            _replace(stack, core, "_object_type_key_to_index", lambda ask: lambda key: ask(key) if key in types else None)
            _replace(stack, tvm_ffi, "init_ffi_api", lambda fill: functools.partial(_fill, stack, fill))
        yield


def _replace(stack: ExitStack, place: Any, name: str, by: Callable[[Any], Any]) -> None:
    """Replace a function, until the stack is left, by what ``by`` makes of it."""
    old = getattr(place, name)
    setattr(place, name, by(old))
    stack.callback(setattr, place, name, old)


class _Known:
    """The names of a registry, which are listed again when one is not among them and there are more."""

    def __init__(self, listed: Callable[[], Any]) -> None:
        self._listed = listed
        self._found: set[str] = set()

    def __contains__(self, name: str) -> bool:
        if name not in self._found and len(now := self._listed()) != len(self._found):
            self._found = set(map(str, now))
        return name in self._found


def _function_names(listed: Callable[[], Any], found: list[str]) -> list[str]:
    """The names of all functions. New ones come last, so only those are added to what was ``found`` before."""
    name = listed()
    count = name(-1)
    if found and (count < len(found) or name(len(found) - 1) != found[-1]):
        found.clear()  # some were removed
    found.extend(name(i) for i in range(len(found), count))
    return list(found)


def _fill(stack: ExitStack, fill: Callable[..., None], namespace: str, module: str | None = None) -> None:
    """Fill a module with functions; two of those for operators get quicker answers."""
    fill(namespace, module)
    api = sys.modules[module or namespace]
    if namespace != "ir" or not {"ListOpNames", "GetOp", "OpGetAttr", "RegisterOpAttr"} <= vars(api).keys():
        return
    operators, find, attribute = _Known(api.ListOpNames), api.GetOp, api.OpGetAttr

    def get(name: str) -> Any:
        if name not in operators:
            raise AttributeError(f"Operator {name} is not registered")
        return find(name)

    def register(ask: Callable[..., None], name: str, key: str, value: Any, level: int) -> None:
        # A name for printing that is given again is an error, which TVM expects and forgets.
        if key != "TScriptPrinterName" or attribute(find(name), key) != value:
            ask(name, key, value, level)

    _replace(stack, api, "GetOp", lambda ask: get)
    _replace(stack, api, "RegisterOpAttr", lambda ask: functools.partial(register, ask))


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

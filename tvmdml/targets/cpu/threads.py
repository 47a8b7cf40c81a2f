"""The threads that parallel kernels run on: one pool for the process, instead of TVM's.

A compiled kernel starts its parallel loop through a pointer to a C function. The pointer is set here: to the C extension's pool,
which hands work over in less than a microsecond, or to the pool in Python if the extension was not built.
"""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from tvmdml.system import imports
from tvmdml.targets.cpu.thread_count import thread_count

_SYMBOL = b"__TVMBackendParallelLaunch"
_OWN_POOL = b"tvmdml_pool_set_limit"
_INTERFACE = 2
"""The number of what `_native.pyi` declares, as in the extension."""
_FFI = (
    "TVMFFIFunctionCall",
    "TVMFFIErrorMoveFromRaised",
    "TVMFFIErrorSetRaised",
    "TVMFFIErrorSetRaisedFromCStr",
    "TVMFFIObjectDecRef",
)


# -- The pool in C ------------------------------------------------------------------------------------------------


@functools.cache
def _extension() -> tuple[ModuleType | None, str]:
    if os.environ.get("TVMDML_DISABLE_NATIVE", "0") not in ("", "0"):
        return None, "Python thread pool: TVMDML_DISABLE_NATIVE is set"
    try:
        native = importlib.import_module("tvmdml.targets.cpu._native")
    except ImportError:
        return None, "Python thread pool: the C extension was not built; install a C compiler and reinstall tvmdml"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():  # Python turns it on for this import, unless PYTHON_GIL forbids that
        return None, "Python thread pool: the C extension needs Python's global lock (GIL), which is off; unset PYTHON_GIL"
    if getattr(native, "INTERFACE", 0) != _INTERFACE:  # a clone that was updated, and not installed again
        return None, "Python thread pool: the C extension is of another version of tvmdml; install tvmdml again"
    if not _sees_arrays(native):
        return None, f"Python thread pool: the C extension does not know the array layout of NumPy {np.__version__}"
    return native, "native thread pool"


def native() -> ModuleType | None:
    """The C extension, or ``None`` if it was not built."""
    return _extension()[0]


def state() -> str:
    """Which pool is used, and why, for display."""
    return _extension()[1]


def _sees_arrays(native: ModuleType) -> bool:
    """Whether the extension, which reads the fields of arrays directly in memory, sees the values that NumPy reports."""
    read_only = np.zeros((2, 3, 5), np.float16)[:, ::2]
    read_only.flags.writeable = False
    unaligned = np.zeros(9, np.uint8)[1:].view(">u8")
    for array in (np.zeros(()), np.zeros((3, 4), np.int32).T, read_only, unaligned):
        address, dtype, flags = array.__array_interface__["data"][0], array.dtype, array.flags
        said = (address, array.shape, array.strides, dtype.num, dtype.kind.encode(), dtype.byteorder.encode())
        if native.inspect(array) != (*said, flags.aligned, flags.writeable):
            return False
    return True


def _new_array() -> int:
    """The address of NumPy's C function ``PyArray_NewFromDescr``; 0 if this NumPy has another C interface."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        table = (ctypes.c_void_p * 95).from_address(get(np._core._multiarray_umath._ARRAY_API, None))  # type: ignore[attr-defined]
    except AttributeError:
        return 0
    version = ctypes.CFUNCTYPE(ctypes.c_uint)(table[0] or 0)  # PyArray_GetNDArrayCVersion
    return table[94] or 0 if version() >> 24 == 2 else 0


@functools.cache
def connected() -> ModuleType | None:
    """The C extension, ready to launch kernels."""
    extension = native()
    if extension is not None:
        extension.connect(np.ndarray, np.dtype, np.empty, _error, _new_array())
        extension.set_limit(thread_count())
    return extension


@functools.cache
def joined() -> ModuleType | None:
    """The C extension, ready to launch functions of TVM's runtime, too."""
    extension = connected()
    if extension is not None:
        library = imports.tvm_ffi().LIB
        extension.join(*(ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _FFI))
    return extension


def _error(kind: str, text: str, backtrace: str) -> BaseException:
    """The exception that the runtime would raise for an error of its own."""
    if "tvm_ffi" not in sys.modules:
        return RuntimeError(text)
    return imports.tvm_ffi().core.Error(kind, text, backtrace).py_error()


# -- Giving kernels the pool --------------------------------------------------------------------------------------


def address() -> int:
    """The pool's ``TVMBackendParallelLaunch``."""
    extension = connected()
    if extension is not None:
        return int(extension.LAUNCH)
    from tvmdml.targets.cpu import python_pool  # it starts threads, so only if it is needed

    return python_pool.ADDRESS


@contextmanager
def limited(count: int) -> Iterator[None]:
    """Inside, launches of this thread use at most so many threads; 0 is as many as all launches."""
    extension = connected()
    if extension is not None:
        limit = extension.limit_thread
    else:
        from tvmdml.targets.cpu import python_pool

        limit = python_pool.limit_thread
    before = limit(count)
    try:
        yield
    finally:
        limit(before)


def is_parallel(content: bytes) -> bool:
    """Whether an object or library contains a parallel loop."""
    return _SYMBOL in content


def has_pool(content: bytes) -> bool:
    """Whether a library contains its own copy of the pool in C, as the libraries of packs do."""
    return _OWN_POOL in content


def limit(library: ctypes.CDLL) -> None:
    """Tell a library's own pool how many threads it may use."""
    library.tvmdml_pool_set_limit(thread_count())


def attach(path: str) -> None:
    """Connect a loaded kernel library to the pool. Python's own handle is closed: the library lives as long as its kernels."""
    library = ctypes.CDLL(path)
    ctypes.c_void_p.in_dll(library, _SYMBOL.decode()).value = address()
    _ctypes.dlclose(library._handle)


@contextmanager
def everywhere() -> Iterator[None]:
    """Connect the libraries that the runtime loads in this context to the pool: for libraries without a file to attach to."""
    _register(ctypes.c_void_p(address()))
    try:
        yield
    finally:  # restore TVM's own pool, which other users of TVM expect
        theirs = getattr(ctypes.CDLL(None), "TVMBackendParallelLaunch", None)
        if theirs is not None:
            _register(ctypes.cast(theirs, ctypes.c_void_p))


def _register(function: Any) -> None:
    imports.tvm_ffi().LIB.TVMFFIEnvModRegisterContextSymbol(ctypes.c_char_p(_SYMBOL), function)

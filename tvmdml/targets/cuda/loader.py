"""NVIDIA's driver library: load it at first use, report its errors, and refuse it after a fork."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

from tvmdml.errors import DeviceError, NoDevice
from tvmdml.targets.cuda import header as c

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_CHOSEN = "TVMDML_CUDA_LIBRARY"
"""The environment variable that names another library file."""
OLDEST_DRIVER = 12000
_INSTALL = "Install the NVIDIA driver (https://www.nvidia.com/drivers); a container is given its host's with --gpus all."
_UPDATE = "Update the NVIDIA driver."

FORKED = "this process was forked after CUDA was started, which no driver survives; start such processes with spawn"

BROKEN = frozenset(
    {
        c.CUDA_ERROR_ECC_UNCORRECTABLE,
        c.CUDA_ERROR_NVLINK_UNCORRECTABLE,
        c.CUDA_ERROR_CONTAINED,
        c.CUDA_ERROR_ILLEGAL_ADDRESS,
        c.CUDA_ERROR_LAUNCH_TIMEOUT,
        c.CUDA_ERROR_CONTEXT_IS_DESTROYED,
        c.CUDA_ERROR_ASSERT,
        c.CUDA_ERROR_HARDWARE_STACK_ERROR,
        c.CUDA_ERROR_ILLEGAL_INSTRUCTION,
        c.CUDA_ERROR_MISALIGNED_ADDRESS,
        c.CUDA_ERROR_INVALID_ADDRESS_SPACE,
        c.CUDA_ERROR_INVALID_PC,
        c.CUDA_ERROR_LAUNCH_FAILED,
        c.CUDA_ERROR_TENSOR_MEMORY_LEAK,
        c.CUDA_ERROR_MPS_CLIENT_TERMINATED,
        c.CUDA_ERROR_EXTERNAL_DEVICE,
    }
)
"""Errors after which no CUDA call of the process works."""
CAPTURE = range(c.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, c.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD + 1)
"""Errors caused by a stream that is being captured."""

_RESTART = "No CUDA call of this process works any more: restart the process."
_ADVICE = {
    c.CUDA_ERROR_OUT_OF_MEMORY: "Drop arrays, or work in smaller parts.",
    c.CUDA_ERROR_NOT_INITIALIZED: "Was this process forked from one that uses CUDA? Start such processes with spawn.",
    c.CUDA_ERROR_DEINITIALIZED: "The process is ending.",
    c.CUDA_ERROR_STUB_LIBRARY: f"This is the stub that programs are linked with, not a driver. {_INSTALL}",
    c.CUDA_ERROR_DEVICE_UNAVAILABLE: "Another process uses it exclusively (`nvidia-smi` shows which).",
    c.CUDA_ERROR_NO_DEVICE: "`nvidia-smi -L` lists what the driver sees.",
    c.CUDA_ERROR_INVALID_HANDLE: "Does the stream belong to another device, or was it destroyed?",
    c.CUDA_ERROR_INVALID_CONTEXT: "Does the stream belong to another device, or was it destroyed?",
    c.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: "A group has too few registers for so many threads: launch fewer threads per group.",
    c.CUDA_ERROR_SYSTEM_NOT_READY: "Are NVIDIA's services (fabric manager, persistence daemon) running?",
    c.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: "The driver library and the kernel module have different versions: restart the computer.",
    c.CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: f"The compatibility package does not work on this GPU. {_UPDATE}",
}

_lock = threading.RLock()
_loaded: Any = None
_started = False
_forked = False


class OutOfMemory(DeviceError):
    """The device does not have enough memory."""


def cuda() -> Any:
    """The driver's functions, as attributes; ``version`` is the CUDA version it supports, such as 13000.

    Raises:
        DeviceError: there is no driver, no device, or the process was forked from one that uses CUDA.
    """
    global _loaded, _started
    refuse_after_fork()
    with _lock:
        if _loaded is None:
            found = _load()
            code = found.cuInit(0)
            if code:
                raise _not_started(found, code)
            _loaded, _started = found, True
        return _loaded


def refuse_after_fork() -> None:
    """Raise ``DeviceError`` if the process was forked after CUDA was started."""
    if _forked:
        raise DeviceError(f"cuda: {FORKED}")


def check(code: int, doing: str) -> None:
    """Raise ``DeviceError`` for an error code.

    Args:
        code: what a driver function returned.
        doing: the operation, for the message.
    """
    if code:
        raise failure(code, doing)


def failure(code: int, doing: str, device: str = "cuda", advice: str = "") -> DeviceError:
    """The exception for an error code."""
    text = f"{device}: {doing} failed: {_words(_loaded, code)}."
    if code in BROKEN:
        advice = _RESTART
    elif not advice:
        advice = "A stream is being captured: do this before, or after." if code in CAPTURE else _ADVICE.get(code, "")
    kind = OutOfMemory if code == c.CUDA_ERROR_OUT_OF_MEMORY else DeviceError
    return kind(f"{text} {advice}" if advice else text)


def version_text(version: int) -> str:
    """A CUDA version number as text."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _load() -> Any:
    chosen = os.environ.get(_CHOSEN)
    name = chosen or _LIBRARY
    where = f" {_CHOSEN} is set to {chosen!r}." if chosen else ""
    try:
        libraries = ctypes.CDLL(name), ctypes.PyDLL(name)
    except OSError as error:
        why = str(error) if name in str(error) else f"{name}: {error}"
        raise NoDevice(f"cuda: no NVIDIA driver was found ({why}). {_INSTALL}{where}") from None
    found = SimpleNamespace()
    for table, library in ((c.FUNCTIONS, libraries[0]), (c.QUICK, libraries[1])):
        for symbol, arguments in table.items():
            setattr(found, symbol, _function(library, symbol, arguments))
    for symbol, quick in c.HOT.items():
        setattr(found, symbol, _function(libraries[quick], symbol))
    missing = [symbol for symbol, function in vars(found).items() if function is None]
    version = ctypes.c_int()
    if found.cuDriverGetVersion is not None:
        found.cuDriverGetVersion(ctypes.byref(version))
    found.version = version.value
    if missing and version.value:
        old = f"it supports CUDA {version_text(version.value)}, but {version_text(OLDEST_DRIVER)} is needed"
        raise DeviceError(f"cuda: the NVIDIA driver ({name}) has no {missing[0]}: {old}. {_UPDATE}{where}")
    if missing:
        raise DeviceError(f"cuda: {name} is not an NVIDIA driver, or is damaged: it has no {missing[0]}. {_INSTALL}{where}")
    return found


def _function(library: Any, symbol: str, arguments: tuple[type, ...] | None = None) -> Any:
    """A function of the library, or ``None`` if it has none of that name."""
    try:
        found = library[symbol]
    except AttributeError:
        return None
    found.restype = ctypes.c_int
    if arguments is not None:
        found.argtypes = arguments
    return found


def _not_started(found: Any, code: int) -> DeviceError:
    """The exception for a driver that is installed but does not start."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = f" CUDA_VISIBLE_DEVICES is set to {visible!r}." if visible is not None else ""
    advice = _ADVICE.get(code, "`nvidia-smi` shows whether the driver works at all.")
    kind = NoDevice if code == c.CUDA_ERROR_NO_DEVICE else DeviceError
    return kind(f"cuda: the NVIDIA driver is installed but does not start: {_words(found, code)}. {advice}{chosen}")


def _words(library: Any, code: int) -> str:
    """An error code's name and meaning, from the driver."""
    if library is None:
        return f"CUDA error {code}"
    said = []
    for function in (library.cuGetErrorName, library.cuGetErrorString):
        text = ctypes.c_char_p()
        if function(code, ctypes.byref(text)) == c.CUDA_SUCCESS and text.value:
            said.append(text.value.decode(errors="replace"))
    if not said:
        return f"CUDA error {code}"
    return f"{said[0]} ({', '.join(said[1:])})" if said[1:] else said[0]


def _after_fork() -> None:
    global _forked, _lock
    _lock = threading.RLock()  # another thread may have held it
    _forked = _started


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""``Context``: a device's primary context, which is current during our driver calls, and the fault that ended it, if any."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from tvmdml.errors import DeviceError
from tvmdml.targets.cuda import header as c
from tvmdml.targets.cuda.loader import BROKEN, failure


class _Thread(threading.local):
    """Buffers for what the driver reports about a thread: made once, because every one of our calls needs them."""

    def __init__(self) -> None:
        self.current = ctypes.c_void_p()
        self.current_reference = ctypes.byref(self.current)
        self.popped = ctypes.byref(ctypes.c_void_p())
        self.mode = ctypes.c_int()
        self.mode_reference = ctypes.byref(self.mode)
        self.status = ctypes.c_int()
        self.status_reference = ctypes.byref(self.status)


thread = _Thread()


class Context:
    """A device's primary context, which all libraries of the process share. It is kept until the process ends.

    Attributes:
        cuda: the driver's functions.
        name: the device's name, for messages.
        handle: the context.
        exchange: the driver's function that changes a thread's capture mode.
        fault: why the context is unusable; empty if it is usable.
    """

    def __init__(self, cuda: Any, device: int, name: str) -> None:
        self.cuda, self.name, self.fault = cuda, name, ""
        self._get, self._push, self._pop = cuda.cuCtxGetCurrent, cuda.cuCtxPushCurrent_v2, cuda.cuCtxPopCurrent_v2
        self.exchange = cuda.cuThreadExchangeStreamCaptureMode
        made = ctypes.c_void_p()
        self.check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(made), device), "cuDevicePrimaryCtxRetain")
        self.handle, self._argument = made.value, made

    def usable(self) -> None:
        """Raise ``DeviceError`` if the context is unusable."""
        if self.fault:
            raise DeviceError(f"{self.name}: {self.fault}")

    def enter(self) -> bool:
        """Make it the thread's current context. Returns whether another was current; then ``leave`` must be called."""
        here = thread
        self._get(here.current_reference)
        if here.current.value == self.handle:
            return False
        try:
            self.check(self._push(self._argument), "cuCtxPushCurrent")
            return True
        except BaseException:  # an interrupt can arrive after the push
            self._get(here.current_reference)
            if here.current.value == self.handle:
                self.leave()
            raise

    def leave(self) -> None:
        """Make the previous context current again."""
        self._pop(thread.popped)

    def entered(self) -> Entered:
        """A context manager: inside, the context is current, and calls are allowed that other libraries' captures would forbid.

        Raises:
            DeviceError: the context is unusable.
        """
        self.usable()
        return Entered(self)

    def check(self, code: int, doing: str, advice: str = "") -> None:
        """Raise ``DeviceError`` for an error code. An error that makes the context unusable is remembered."""
        if code:
            raise self.failure(code, doing, advice)

    def failure(self, code: int, doing: str, advice: str = "") -> DeviceError:
        """The exception for an error code."""
        error = failure(code, doing, self.name, advice)
        if code in BROKEN:
            self.fault = self.fault or str(error).removeprefix(f"{self.name}: ")
        return error


class Entered:
    """The result of ``Context.entered``.

    Other code may be capturing a stream at the same time. In the driver's relaxed capture mode, the thread may still allocate
    memory, query other streams and wait for them. We do exactly this, and none of it belongs in a capture. In any other mode such a
    call would fail, and also invalidate the capture.
    """

    __slots__ = ("_context", "_exchange", "_mode", "_pushed")

    def __init__(self, context: Context) -> None:
        self._context, self._exchange = context, context.exchange
        self._pushed, self._mode = False, c.CU_STREAM_CAPTURE_MODE_RELAXED

    def __enter__(self) -> None:
        here = thread
        self._pushed = self._context.enter()
        self._mode = here.mode.value = c.CU_STREAM_CAPTURE_MODE_RELAXED
        try:
            self._exchange(here.mode_reference)
            self._mode = here.mode.value  # the driver wrote the previous mode there
        except BaseException:  # an interrupt
            self._mode = here.mode.value
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._mode != c.CU_STREAM_CAPTURE_MODE_RELAXED:
            here = thread
            here.mode.value = self._mode
            self._exchange(here.mode_reference)
        if self._pushed:
            self._context.leave()

"""``Context``: a device's primary context, current while one of our calls needs it, and what is known to be wrong with it."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from tvmdml.errors import DeviceError
from tvmdml.targets.cuda import header as c
from tvmdml.targets.cuda.loader import BROKEN, failure


class _Thread(threading.local):
    """Where the driver writes what it says about a thread: made once, since every call of ours asks."""

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
    """A device's primary context, which all libraries of the process share; it is kept until the process ends.

    Attributes:
        cuda: the driver's functions.
        name: the device's, for messages.
        handle: the context.
        exchange: the driver's function that changes what a thread may do beside captures.
        fault: why nothing can be done with it any more; empty while all is well.
    """

    def __init__(self, cuda: Any, device: int, name: str) -> None:
        self.cuda, self.name, self.fault = cuda, name, ""
        self._get, self._push, self._pop = cuda.cuCtxGetCurrent, cuda.cuCtxPushCurrent_v2, cuda.cuCtxPopCurrent_v2
        self.exchange = cuda.cuThreadExchangeStreamCaptureMode
        made = ctypes.c_void_p()
        self.check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(made), device), "cuDevicePrimaryCtxRetain")
        self.handle, self._argument = made.value, made

    def usable(self) -> None:
        """Raise ``DeviceError`` if nothing can be done with it any more."""
        if self.fault:
            raise DeviceError(f"{self.name}: {self.fault}")

    def enter(self) -> bool:
        """Make it the thread's current context; says whether it was another, and ``leave`` has to be called."""
        here = thread
        self._get(here.current_reference)
        if here.current.value == self.handle:
            return False
        try:
            self.check(self._push(self._argument), "cuCtxPushCurrent")
            return True
        except BaseException:  # an interrupt may come after the push
            self._get(here.current_reference)
            if here.current.value == self.handle:
                self.leave()
            raise

    def leave(self) -> None:
        """Make the context current that was before."""
        self._pop(thread.popped)

    def entered(self) -> Entered:
        """A context manager within which it is current, and calls may be made that others' captures would forbid.

        Raises:
            DeviceError: nothing can be done with it any more.
        """
        self.usable()
        return Entered(self)

    def check(self, code: int, doing: str, advice: str = "") -> None:
        """Raise ``DeviceError`` for a code that is no success. One that ends all work is remembered."""
        if code:
            raise self.failure(code, doing, advice)

    def failure(self, code: int, doing: str, advice: str = "") -> DeviceError:
        """What to raise for a code that is no success."""
        error = failure(code, doing, self.name, advice)
        if code in BROKEN:
            self.fault = self.fault or str(error).removeprefix(f"{self.name}: ")
        return error


class Entered:
    """What ``Context.entered`` gives.

    Others may be capturing a stream meanwhile. In the mode that the driver calls relaxed, the thread may all the same allocate
    memory, look at other streams and wait for them, which is what we do: nothing of it belongs in a capture. In any other mode
    such a call would not only be refused, but spoil the capture.
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
            self._mode = here.mode.value  # the driver wrote there what it was
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

"""Streams: which one is current, and how work on one waits for work on another.

A piece of memory remembers the stream that it was last used on. Within one stream all is in order; where the next use is on
another, that stream is made to wait. Streams belong to whoever made them, and may be destroyed when ``using_stream`` ends: what was
last used on one then remembers an event instead.
"""

from __future__ import annotations

import ctypes
import operator
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from tvmdml.errors import DeviceError, InvalidArgument, message
from tvmdml.targets.cuda import header as c
from tvmdml.targets.cuda.context import Context, thread

if TYPE_CHECKING:
    from tvmdml.targets.cuda.memory import Loan

LEFT = -1
"""The stream of memory whose last stream may be gone; its loan has an event in ``after``."""

current: ContextVar[int] = ContextVar("tvmdml_cuda_stream", default=0)
leavers: list[Callable[[int], None]] = []
"""What is called with a stream that nobody uses through ``using_stream`` any more."""

_lock = threading.RLock()
_inside: dict[int, int] = {}
"""How often each stream is being used through ``using_stream``."""


class _Using:
    """What ``using_stream`` gives. No generator: every call on another library's arrays comes by."""

    __slots__ = ("_stream", "_token")
    _token: Token[int]

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        stream = self._stream
        if stream:  # the legacy stream is never gone
            with _lock:
                _inside[stream] = _inside.get(stream, 0) + 1
        self._token = current.set(stream)

    def __exit__(self, kind: object, *_: object) -> None:
        current.reset(self._token)
        if not self._stream:
            return
        if kind is None:
            self._leave()
            return
        with suppress(DeviceError):
            self._leave()

    def _leave(self) -> None:
        with _lock:  # to the end: nobody begins to use it while it is being left
            _inside[self._stream] -= 1
            if _inside[self._stream]:
                return
            del _inside[self._stream]
            for leave in leavers:
                leave(self._stream)


def using_stream(handle: int) -> AbstractContextManager[None]:
    """Work within is asked for on a stream of the caller's: in this thread, or this task of asyncio's. It may be destroyed after.

    Args:
        handle: a ``CUstream`` or ``cudaStream_t`` as an integer (``torch.cuda.current_stream().cuda_stream``); 0 is the legacy
            default stream, on which everything else runs.

    Raises:
        InvalidArgument: it is no handle, or that of the per-thread default stream, which is another one in each thread.
        DeviceError: at the end, when earlier work on the device failed.
    """
    try:
        stream = operator.index(handle)
    except TypeError:
        stream = LEFT
    if stream < 0 or stream == c.CU_STREAM_PER_THREAD:
        given = "the per-thread default stream" if stream == c.CU_STREAM_PER_THREAD else repr(handle)
        raise InvalidArgument(message("using_stream handle", given, "a CUDA stream's handle, as an integer"))
    return _Using(0 if stream == c.CU_STREAM_LEGACY else stream)


class Mark:
    """An event that was recorded once; it is used again when nobody needs this any more."""

    __slots__ = ("_spare", "event")

    def __init__(self, event: int, spare: list[int]) -> None:
        self.event, self._spare = event, spare

    def __del__(self) -> None:
        self._spare.append(self.event)


class Streams:
    """The order of work on a device's streams."""

    def __init__(self, context: Context) -> None:
        self._context, self._cuda = context, context.cuda
        self._spare: list[int] = []
        self._own = 0
        # What was last used on a stream that is being used through ``using_stream``.
        self._visiting: dict[int, dict[Loan, None]] = {}

    def capturing(self, stream: int) -> bool:
        """Whether a stream is being captured, or is the legacy one while a capture forbids its use. The context is current."""
        here = thread
        # Asking spoils no capture, whatever the answer.
        code = self._cuda.cuStreamIsCapturing(stream, here.status_reference)
        if code == c.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
            return True
        self._context.check(code, "cuStreamIsCapturing")
        capturing: bool = here.status.value != c.CU_STREAM_CAPTURE_STATUS_NONE
        return capturing

    def refuse_capture(self, stream: int, doing: str) -> None:
        """Raise ``DeviceError`` if a stream is being captured. The context is current."""
        if self.capturing(stream):
            why = "its stream is being captured, or stands still because another is"
            raise DeviceError(f"{self._context.name}: {doing}: {why}. Do this before the capture, or after it.")

    def follow(self, stream: int, before: int) -> None:
        """Have a stream wait for what was asked for on another."""
        if stream != before:
            with self._context.entered():
                self._follow(stream, before)

    def move(self, memory: Any, stream: int) -> None:
        """Have a stream wait for what was asked for on the one that memory was last used on; it is its last stream from now on.

        A stream that is being captured cannot wait for what is not captured with it: there the host waits, so that the work is done
        whenever the graph runs. Memory's last stream stays what it was, since a capture runs nothing.
        """
        if callable(memory.stream):  # another library's memory, which knows its stream itself
            self.follow(stream, memory.stream())
            return
        last, loan = memory.stream, memory.loan
        with self._context.entered():
            if self.capturing(stream):
                self._settle(loan, last, stream)
                return
            if loan.after is not None:
                self._wait_event(stream, loan.after.event)
            else:
                self.refuse_capture(last, "waiting for the stream that memory was last used on")
                self._follow(stream, last)
        self.forget(loan)
        memory.stream = loan.stream = stream
        loan.after = None
        self.note(loan)

    def note(self, loan: Loan) -> None:
        """Remember what was used on a stream that may be gone when ``using_stream`` ends."""
        if loan.stream and loan.stream == current.get():
            self._visiting.setdefault(loan.stream, {})[loan] = None

    def forget(self, loan: Loan) -> None:
        """Forget what is used on its stream no more."""
        visiting = self._visiting.get(loan.stream)
        if visiting is not None:
            visiting.pop(loan, None)

    def visited(self, stream: int) -> bool:
        """Whether something was last used on a stream that is being left."""
        if self._visiting.get(stream):
            return True
        self._visiting.pop(stream, None)
        return False

    def left(self, stream: int) -> None:
        """Remember an event for what was last used on a stream: it may be gone from now on. The context is current."""
        loans = list(self._visiting.pop(stream, ()))
        if not loans or self.capturing(stream):
            return
        mark = Mark(self._event(), self._spare)
        self._record(mark.event, stream)
        for loan in loans:
            loan.after, loan.stream = mark, LEFT
            memory = loan()
            if memory is not None:
                memory.stream = LEFT

    def wait_done(self, loan: Loan) -> None:
        """Wait, on the host, for the last use of memory. The context is current."""
        if loan.after is not None:
            self._context.check(self._cuda.cuEventSynchronize(loan.after.event), "cuEventSynchronize")
        else:
            self._context.check(self._cuda.cuStreamSynchronize(loan.stream), "cuStreamSynchronize")

    def last(self, loan: Loan) -> int:
        """A stream whose work from now on comes after the last use of memory. The context is current."""
        if loan.after is None:
            return loan.stream
        if not self._own:
            made = ctypes.c_void_p()
            self._context.check(self._cuda.cuStreamCreate(ctypes.byref(made), c.CU_STREAM_NON_BLOCKING), "cuStreamCreate")
            self._own = made.value or 0
        self._wait_event(self._own, loan.after.event)
        return self._own

    def _settle(self, loan: Loan, last: int, stream: int) -> None:
        """See to it that work on memory is done before a stream's capture runs."""
        if loan.after is not None or not self.capturing(last):
            self.wait_done(loan)
        elif last:
            self._follow(stream, last)  # both belong to one capture; if not, the driver says so
        # Else a stream is captured that waits for the legacy stream by itself.

    def _follow(self, stream: int, before: int) -> None:
        event = self._event()
        self._record(event, before)
        self._wait_event(stream, event)
        self._spare.append(event)  # who waits goes by what it was when he was told to

    def _event(self) -> int:
        try:
            return self._spare.pop()
        except IndexError:
            made = ctypes.c_void_p()
            self._context.check(self._cuda.cuEventCreate(ctypes.byref(made), c.CU_EVENT_DISABLE_TIMING), "cuEventCreate")
            return made.value or 0

    def _record(self, event: int, stream: int) -> None:
        self._context.check(self._cuda.cuEventRecord(event, stream), "cuEventRecord")

    def _wait_event(self, stream: int, event: int) -> None:
        self._context.check(self._cuda.cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent")


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

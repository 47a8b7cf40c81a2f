"""Streams: which one is current, and how work on one waits for work on another.

Memory remembers the stream that used it last. Work within one stream is ordered; if the next use is on another stream, that stream
is made to wait. A stream belongs to whoever made it, and may be destroyed when ``using_stream`` ends: memory last used on it then
remembers an event instead.
"""

from __future__ import annotations

import ctypes
import operator
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar, Token
from typing import Any, Protocol

from tvmdml.errors import DeviceError, InvalidArgument, message
from tvmdml.targets.cuda import header as c
from tvmdml.targets.cuda.context import Context, thread

LEFT = -1
"""The stream of memory whose last stream may be destroyed; its loan then has an event in ``after``."""

current: ContextVar[int] = ContextVar("tvmdml_cuda_stream", default=0)
leavers: list[Callable[[int], None]] = []
"""The functions to call with a stream when no ``using_stream`` uses it any more."""

_lock = threading.RLock()
_inside: dict[int, int] = {}
"""How many times each stream is currently in use through ``using_stream``."""


class _Using:
    """The context manager of ``using_stream``. Not a generator, for speed: every call on another library's arrays uses it."""

    __slots__ = ("_stream", "_token")
    _token: Token[int]

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        stream = self._stream
        if stream:  # the legacy stream is never destroyed
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
        with _lock:  # until the end: nobody may begin to use it meanwhile
            _inside[self._stream] -= 1
            if _inside[self._stream]:
                return
            del _inside[self._stream]
            for leave in leavers:
                leave(self._stream)


def using_stream(handle: int) -> AbstractContextManager[None]:
    """Submit the work inside to the caller's stream, for this thread or asyncio task. The stream may be destroyed afterwards.

    Args:
        handle: a ``CUstream`` or ``cudaStream_t`` as an integer (``torch.cuda.current_stream().cuda_stream``); 0 is the legacy
            default stream, which is used everywhere else.

    Raises:
        InvalidArgument: it is not a handle, or it is the per-thread default stream's, which is a different stream in each thread.
        DeviceError: at the end, if earlier work on the device failed.
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
    """An event that was recorded once. It is reused when the object is dropped."""

    __slots__ = ("_spare", "event")

    def __init__(self, event: int, spare: list[int]) -> None:
        self.event, self._spare = event, spare

    def __del__(self) -> None:
        self._spare.append(self.event)


class LastUse(Protocol):
    """The record of memory's last use."""

    stream: int
    """The stream that used it last, or ``LEFT``."""
    after: Mark | None
    """For ``LEFT``: the event after that use."""

    def __call__(self) -> Any:
        """The memory, or ``None`` if it was dropped."""


class Streams:
    """Orders work between a device's streams."""

    def __init__(self, context: Context) -> None:
        self._context, self._cuda = context, context.cuda
        self._spare: list[int] = []
        self._own = 0
        # The memory last used on each stream that is in use through ``using_stream``.
        self._visiting: dict[int, dict[LastUse, None]] = {}

    def capturing(self, stream: int) -> bool:
        """Whether a stream is being captured, or is the legacy one while a capture forbids its use. The context must be current."""
        here = thread
        # This query never invalidates a capture.
        code = self._cuda.cuStreamIsCapturing(stream, here.status_reference)
        if code == c.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
            return True
        self._context.check(code, "cuStreamIsCapturing")
        return here.status.value != c.CU_STREAM_CAPTURE_STATUS_NONE

    def refuse_capture(self, stream: int, doing: str) -> None:
        """Raise ``DeviceError`` if a stream is being captured. The context must be current."""
        if self.capturing(stream):
            why = "its stream is being captured, or is blocked by another stream's capture"
            raise DeviceError(f"{self._context.name}: {doing}: {why}. Do this before the capture, or after it.")

    def follow(self, stream: int, before: int) -> None:
        """Make a stream wait for the work submitted on another."""
        if stream != before:
            with self._context.entered():
                self._follow(stream, before)

    def move(self, memory: Any, stream: int) -> None:
        """Make a stream wait for the work on the stream that used memory last. It is then the memory's last stream.

        A stream that is being captured cannot wait for uncaptured work. In this case the host waits, so that the work is done
        whenever the graph runs. The memory's last stream stays the same, because a capture runs nothing.
        """
        if callable(memory.stream):  # another library's memory, which knows its own stream
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

    def note(self, loan: LastUse) -> None:
        """Remember memory used on a stream that may be destroyed when ``using_stream`` ends."""
        if loan.stream and loan.stream == current.get():
            self._visiting.setdefault(loan.stream, {})[loan] = None

    def forget(self, loan: LastUse) -> None:
        """Forget memory that is no longer used on its stream."""
        visiting = self._visiting.get(loan.stream)
        if visiting is not None:
            visiting.pop(loan, None)

    def visited(self, stream: int) -> bool:
        """Whether memory was last used on a stream whose use has just ended."""
        if self._visiting.get(stream):
            return True
        self._visiting.pop(stream, None)
        return False

    def left(self, stream: int) -> None:
        """Record an event for the memory last used on a stream, which may be destroyed from now on. The context must be current."""
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

    def wait_done(self, loan: LastUse) -> None:
        """Wait on the host for the last use of memory. The context must be current."""
        if loan.after is not None:
            self._context.check(self._cuda.cuEventSynchronize(loan.after.event), "cuEventSynchronize")
        else:
            self._context.check(self._cuda.cuStreamSynchronize(loan.stream), "cuStreamSynchronize")

    def last(self, loan: LastUse) -> int:
        """A stream on which new work runs after the last use of memory. The context must be current."""
        if loan.after is None:
            return loan.stream
        if not self._own:
            made = ctypes.c_void_p()
            self._context.check(self._cuda.cuStreamCreate(ctypes.byref(made), c.CU_STREAM_NON_BLOCKING), "cuStreamCreate")
            self._own = made.value or 0
        self._wait_event(self._own, loan.after.event)
        return self._own

    def _settle(self, loan: LastUse, last: int, stream: int) -> None:
        """Ensure that work on memory is done before a stream's capture runs."""
        if loan.after is not None or not self.capturing(last):
            self.wait_done(loan)
        elif last:
            self._follow(stream, last)  # both belong to one capture; otherwise the driver reports an error
        # Otherwise the captured stream waits for the legacy stream by itself.

    def _follow(self, stream: int, before: int) -> None:
        event = self._event()
        self._record(event, before)
        self._wait_event(stream, event)
        self._spare.append(event)  # a stream waits for the event's state at the time of the wait call

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

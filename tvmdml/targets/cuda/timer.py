"""``Event``: a point in a stream, for measurements with the device's clock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

from tvmdml.errors import DeviceError
from tvmdml.targets.cuda import header as c
from tvmdml.targets.cuda.context import Context
from tvmdml.targets.cuda.streams import Streams
from tvmdml.targets.cuda.survey import DeviceInfo


class Clocked(Protocol):
    """An opened device, as its events see it; ``Device`` documents the members."""

    info: DeviceInfo
    cuda: Any
    context: Context
    streams: Streams
    spare_events: list[int]


class Event:
    """A point in a stream: it is reached when all work submitted before ``record`` is done."""

    def __init__(self, device: Clocked) -> None:
        self._device, self._spare, self._handle, self._recorded = device, device.spare_events, 0, False
        try:
            self._handle = self._spare.pop()
        except IndexError:
            made = ctypes.c_void_p()
            with device.context.entered():
                device.context.check(device.cuda.cuEventCreate(ctypes.byref(made), c.CU_EVENT_DEFAULT), "cuEventCreate")
            self._handle = made.value or 0

    def record(self, stream: int) -> None:
        """Record the current end of a stream's work.

        Raises:
            DeviceError: the stream is being captured.
        """
        device = self._device
        with device.context.entered():
            device.streams.refuse_capture(stream, "recording an event")
            device.context.check(device.cuda.cuEventRecord(self._handle, stream), "cuEventRecord")
        self._recorded = True

    def seconds_since(self, other: Event) -> float:
        """The time in seconds since another event; waits for both."""
        device, milliseconds = self._device, ctypes.c_float()
        if not (self._recorded and other._recorded):
            raise DeviceError(f"{device.info.name}: an event was not recorded")
        with device.context.entered():
            for event in (other, self):
                device.context.check(device.cuda.cuEventSynchronize(event._handle), "waiting for an event")
            code = device.cuda.cuEventElapsedTime(ctypes.byref(milliseconds), other._handle, self._handle)
            device.context.check(code, "cuEventElapsedTime")
        return milliseconds.value * 1e-3

    def __del__(self) -> None:
        if self._handle:
            self._spare.append(self._handle)


def timed(device: Clocked, run: Callable[[], object], stream: int) -> float:
    """The seconds between an event before and an event after the work that ``run`` submits to a stream."""
    before, after = Event(device), Event(device)
    before.record(stream)
    run()
    after.record(stream)
    return after.seconds_since(before)

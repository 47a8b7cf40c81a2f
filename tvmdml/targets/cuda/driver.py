"""The entry to the driver layer: list and open CUDA devices. It needs only NVIDIA's driver library."""

from __future__ import annotations

import os
import threading

from tvmdml.errors import DeviceError, message
from tvmdml.targets.cuda import loader, streams
from tvmdml.targets.cuda.device import Device
from tvmdml.targets.cuda.launching import LaunchArguments, Prepared
from tvmdml.targets.cuda.memory import Memory, MemoryUse
from tvmdml.targets.cuda.modules import Module, Resources
from tvmdml.targets.cuda.streams import using_stream
from tvmdml.targets.cuda.survey import DeviceInfo, survey
from tvmdml.targets.cuda.timer import Event

__all__ = [
    "Device",
    "DeviceInfo",
    "Event",
    "LaunchArguments",
    "Memory",
    "MemoryUse",
    "Module",
    "Prepared",
    "Resources",
    "devices",
    "open_device",
    "using_stream",
]

_lock = threading.RLock()
_found: tuple[DeviceInfo, ...] = ()
_open: dict[int, Device] = {}


def devices() -> tuple[DeviceInfo, ...]:
    """All devices, in the driver's order. They are listed once per process; nothing is started on any of them.

    Raises:
        DeviceError: there is no driver, or no device; the message says what to do.
    """
    global _found
    loader.refuse_after_fork()
    with _lock:
        if not _found:
            _found = survey(loader.cuda())
        return _found


def open_device(index: int) -> Device:
    """Open a device, once per process.

    Args:
        index: its number in ``devices()``.

    Raises:
        DeviceError: there is no such device, or it cannot be used.
    """
    loader.refuse_after_fork()
    with _lock:
        found = _open.get(index)
        if found is None:
            everything = devices()
            if not 0 <= index < len(everything):
                allowed = f"0 to {len(everything) - 1}"
                raise DeviceError(message("CUDA device", index, allowed, "`tvmdml devices` shows them."))
            info = everything[index]
            if info.problem:
                raise DeviceError(f"{info.name} cannot be used: {info.problem}")
            _open[index] = found = Device(loader.cuda(), info)
        return found


def _leave(stream: int) -> None:
    """Make every device remember an event instead of a stream that may be destroyed from now on."""
    for device in list(_open.values()):
        device.leave(stream)


streams.leavers.append(_leave)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for device in list(_open.values()):
        device.context.fault = loader.FORKED


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

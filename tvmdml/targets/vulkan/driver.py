"""The entry to the driver layer: list and open Vulkan devices. It needs only Vulkan's loader library."""

from __future__ import annotations

import atexit
import os
import threading

from tvmdml.errors import DeviceError, message
from tvmdml.targets.vulkan import loader
from tvmdml.targets.vulkan.capabilities import Capabilities
from tvmdml.targets.vulkan.device import Device, MemoryUse
from tvmdml.targets.vulkan.loader import validation_messages
from tvmdml.targets.vulkan.memory import Memory
from tvmdml.targets.vulkan.physical import DeviceInfo, Physical, survey
from tvmdml.targets.vulkan.pipelines import Pipeline
from tvmdml.targets.vulkan.prepared import Prepared
from tvmdml.targets.vulkan.timer import Timer
from tvmdml.targets.vulkan.timestamps import Event, has_timestamps

__all__ = [
    "Capabilities",
    "Device",
    "DeviceInfo",
    "Event",
    "Memory",
    "MemoryUse",
    "Pipeline",
    "Prepared",
    "Timer",
    "devices",
    "has_timestamps",
    "open_device",
    "validation_messages",
]

_lock = threading.RLock()
_found: tuple[Physical, ...] = ()
_open: dict[tuple[int, bool], Device] = {}


def devices() -> tuple[DeviceInfo, ...]:
    """All devices: discrete GPUs first, then integrated ones, virtual ones, CPUs. They are listed once per process.

    Raises:
        DeviceError: there is no loader, or no driver; the message says what to install.
    """
    return tuple(physical.info for physical in _physical())


def open_device(index: int, staging: bool | None = None) -> Device:
    """Open a device, once per process; a device that was lost is opened again.

    Args:
        index: its number in ``devices()``.
        staging: treat its memory as not accessible to the host, even if it is. This is a separate device, for tests.
            ``None`` reads ``TVMDML_VULKAN_STAGING``.

    Raises:
        DeviceError: there is no such device, or it cannot be used.
    """
    if staging is None:
        staging = os.environ.get("TVMDML_VULKAN_STAGING", "") not in ("", "0")
    loader.refuse_after_fork()
    with _lock:
        key = index, staging
        found = _open.get(key)
        if found is not None:
            if not found.connection.lost:
                return found
            del _open[key]
            found.close()
        everything = _physical()
        if not 0 <= index < len(everything):
            raise DeviceError(message("Vulkan device", index, f"0 to {len(everything) - 1}", "`tvmdml devices` shows them."))
        physical = everything[index]
        if physical.info.problem:
            raise DeviceError(f"{physical.info.name} cannot be used: {physical.info.problem}")
        _open[key] = found = Device(loader.instance(), physical, staging)
        return found


def _physical() -> tuple[Physical, ...]:
    global _found
    loader.refuse_after_fork()
    with _lock:
        if not _found:
            _found = survey(loader.instance())
        if not _found:
            raise loader.no_driver("it lists no devices")
        return _found


@atexit.register
def _at_exit() -> None:
    """Finish pending work and free everything in order: a driver that is unloaded during work may crash."""
    if loader.is_forked():
        return
    closed = [device.close() for device in _open.values()]
    if all(closed):
        loader.close()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for device in list(_open.values()):
        device.connection.fault = loader.FORKED


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

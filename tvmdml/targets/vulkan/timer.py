"""``Timer``: how long a device took for something, by its own clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmdml.errors import DeviceError
from tvmdml.targets.vulkan.timestamps import Event, has_timestamps

if TYPE_CHECKING:
    from tvmdml.targets.vulkan.device import Device


class Timer:
    """How long the device took: ``Device.timed`` makes it. What other threads give it meanwhile counts as well."""

    seconds: float
    """Known after the context; that waits for the work within."""

    def __init__(self, device: Device) -> None:
        if not has_timestamps(device):
            raise DeviceError(f"{device.info.name}: this device has no timestamps")
        self._device = device

    def __enter__(self) -> Timer:
        device = self._device
        self._begin, self._end = Event(device), Event(device)
        device.queue.hold(1)  # so that the device is not kept waiting for the host in between
        try:
            self._begin.record()
        except BaseException:
            device.queue.hold(-1)
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._device.queue.hold(-1)
        if kind is None:
            self._end.record()
            self.seconds = self._end.seconds_since(self._begin)

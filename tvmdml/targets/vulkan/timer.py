"""``Timer``: measures how long a device takes, with the device's clock."""

from __future__ import annotations

from tvmdml.errors import DeviceError
from tvmdml.targets.vulkan.timestamps import Clocked, Event, has_timestamps


class Timer:
    """How long the device took, made by ``Device.timed``. Work that other threads submit meanwhile is included."""

    seconds: float
    """Available after the context, which waits for the work inside."""

    def __init__(self, device: Clocked) -> None:
        if not has_timestamps(device):
            raise DeviceError(f"{device.info.name}: this device has no timestamps")
        self._device = device

    def __enter__(self) -> Timer:
        device = self._device
        self._begin, self._end = Event(device), Event(device)
        device.queue.hold(1)  # so that the device does not wait for the host between commands
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

"""``Timer``: how long a device took for something, by its own clock."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tvmdml.errors import DeviceError
from tvmdml.targets.vulkan import structures as c

if TYPE_CHECKING:
    from tvmdml.targets.vulkan.device import Device


class Timer:
    """How long the device took: ``Device.timed`` makes it. What other threads give it meanwhile counts as well."""

    seconds: float
    """Known after the context; that waits for the work within."""

    def __init__(self, device: Device) -> None:
        if not device.timestamp_period:
            raise DeviceError(f"{device.info.name}: this device has no timestamps")
        self._device = device
        self._queries = 0

    def __enter__(self) -> Timer:
        device = self._device
        device.connection.usable()
        with device.queue.lock:
            device.connection.usable()
            info = c.VkQueryPoolCreateInfo(queryType=c.VK_QUERY_TYPE_TIMESTAMP, queryCount=2)
            spare = device.spare_queries
            self._queries = spare.pop() if spare else device.connection.create("QueryPool", info)
        device.queue.hold(1)  # so that the device is not kept waiting for the host in between
        try:
            self._stamp(0)
        except BaseException:
            device.queue.hold(-1)
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        device = self._device
        device.queue.hold(-1)
        if kind is not None:
            return
        device.queue.wait(self._stamp(1))
        ticks = (ctypes.c_uint64 * 2)()
        device.connection.call(
            "vkGetQueryPoolResults", self._queries, 0, 2, ctypes.sizeof(ticks), ticks, 8, c.VK_QUERY_RESULT_64_BIT
        )
        self.seconds = (ticks[1] - ticks[0] & (1 << device.timestamp_bits) - 1) * device.timestamp_period * 1e-9
        device.spare_queries.append(self._queries)

    def _stamp(self, number: int) -> int:
        vk = self._device.vk

        def command(commands: int, _serial: int) -> None:
            if not number:
                vk.vkCmdResetQueryPool(commands, self._queries, 0, 2)
            vk.vkCmdWriteTimestamp(commands, c.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, self._queries, number)

        return self._device.queue.record(command)

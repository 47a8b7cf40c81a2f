"""``Event``: a point in a device's work, for measurements with the device's clock.

A Vulkan query, in a pool of its own, holds the time. Recording first resets the query, in order with all work that uses it.
Therefore a dropped query can be reused by another event at once, even before the device has written it.
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any, Protocol

from tvmdml.errors import DeviceError, message
from tvmdml.targets.vulkan import structures as c
from tvmdml.targets.vulkan.commands import Queue
from tvmdml.targets.vulkan.connection import Connection
from tvmdml.targets.vulkan.physical import DeviceInfo


class Clocked(Protocol):
    """An opened device, as its events see it; ``Device`` documents the members."""

    info: DeviceInfo
    connection: Connection
    vk: Any
    queue: Queue
    queries: Queries
    timestamp_bits: int
    timestamp_period: float


class Queries:
    """A device's queries for timestamps.

    Attributes:
        dropped: queries that nobody holds, each with the last batch that uses it. Dropping one only records it here, because that
            can happen on any thread at any time.
    """

    def __init__(self, connection: Connection, queue: Queue) -> None:
        self.dropped: deque[tuple[int, int]] = deque()
        self._connection, self._queue = connection, queue

    def take(self) -> tuple[int, int]:
        """A query, and the last batch that uses it."""
        with self._queue.lock:
            self._connection.usable()
            if self.dropped:
                return self.dropped.pop()
            info = c.VkQueryPoolCreateInfo(queryType=c.VK_QUERY_TYPE_TIMESTAMP, queryCount=1)
            return self._connection.create("QueryPool", info), 0

    def sweep(self, most: int) -> None:
        """Destroy dropped queries that are no longer used, and check at most ``most`` of them; the queue's lock is held."""
        for _ in range(min(most, len(self.dropped))):
            dropped = query, last_use = self.dropped.popleft()
            if self._queue.done(last_use):
                self._connection.destroy("QueryPool", query)
            else:
                self.dropped.append(dropped)


class Event:
    """A point in a device's work, reached when all work submitted before ``record`` is finished. Any thread may use it.

    Raises:
        DeviceError: the device has no timestamps (see ``has_timestamps``), or is lost.
    """

    def __init__(self, device: Clocked) -> None:
        self._query = 0
        if not has_timestamps(device):
            raise DeviceError(f"{device.info.name}: this device has no timestamps: wait for its work, and use the host's clock")
        self._device, self._dropped, self._recorded = device, device.queries.dropped, False
        self._query, self._last_use = device.queries.take()

    def record(self, stream: int = 0) -> None:
        """Record the current end of the device's work. Returns before the device has reached it.

        Args:
            stream: ignored, because a device has only one queue. Events of other targets have streams.

        Raises:
            DeviceError: the device is lost.
        """
        self._device.queue.record(self._record)

    def seconds_since(self, other: Event) -> float:
        """The time in seconds since another event; negative if this one came first. Waits for both.

        Raises:
            DeviceError: one of them was not recorded, they belong to two devices, or the device is lost.
        """
        device = self._device
        if other._device is not device:
            other._device.connection.usable()
            raise DeviceError(f"{device.info.name}: {message('event', 'one of another device', 'one of this device')}")
        begin, end = other._ticks(), self._ticks()
        return seconds_between(begin, end, device.timestamp_bits, device.timestamp_period)

    def _record(self, commands: int, serial: int) -> None:
        vk = self._device.vk
        self._last_use = serial
        self._recorded = False  # in case an interrupt arrives during the recording
        vk.vkCmdResetQueryPool(commands, self._query, 0, 1)
        vk.vkCmdWriteTimestamp(commands, c.VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, self._query, 0)
        self._recorded = True

    def _ticks(self) -> int:
        device = self._device
        device.connection.usable()
        if not self._recorded:
            raise DeviceError(f"{device.info.name}: an event was not recorded")
        device.queue.wait(self._last_use)  # Vulkan's own wait for a query could not be interrupted
        ticks = ctypes.c_uint64()
        with device.queue.users.join():
            device.connection.usable()
            result = device.connection.call(
                "vkGetQueryPoolResults", self._query, 0, 1, 8, ctypes.byref(ticks), 8, c.VK_QUERY_RESULT_64_BIT
            )
        if result == c.VK_NOT_READY:
            raise DeviceError(f"{device.info.name}: an event was recorded again while another thread waited for it")
        return ticks.value

    def __del__(self) -> None:
        if self._query:
            self._dropped.append((self._query, self._last_use))


def has_timestamps(device: Clocked) -> bool:
    """Whether a device supports timestamps."""
    return device.timestamp_bits > 0 and device.timestamp_period > 0


def seconds_between(begin: int, end: int, bits: int, period: float) -> float:
    """The seconds between two timestamps of a clock that wraps around after so many bits.

    Args:
        begin: ticks.
        end: ticks; a value more than half a period of the clock behind ``begin`` counts as earlier.
        bits: the number of valid bits of a timestamp.
        period: nanoseconds per tick.
    """
    half = 1 << bits - 1
    return ((end - begin + half) % (1 << bits) - half) * period * 1e-9

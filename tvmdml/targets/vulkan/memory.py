"""Device memory: a few large buffers are cut into slices, and dropped slices are reused.

Small slices of one size share a buffer; each large slice has its own. A slice remembers the last batch that uses it. The device may
reuse it at once, because its work is in order; the host may reuse it when that batch is finished.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmdml.targets.vulkan import structures as c
from tvmdml.targets.vulkan.commands import Queue
from tvmdml.targets.vulkan.connection import Connection, Owner
from tvmdml.targets.vulkan.loader import OutOfMemory

SMALL = 1 << 20
"""Slices up to this size share buffers."""
_LEAST = 256
_ROUND_LARGE = 1 << 20
_SHARED = (1 << 20, 16 << 20)
"""The minimum and maximum bytes of a buffer that slices share."""
_USAGE = c.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | c.VK_BUFFER_USAGE_TRANSFER_SRC_BIT | c.VK_BUFFER_USAGE_TRANSFER_DST_BIT

LOCAL = c.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
# Coherent memory needs no flushes, and every driver has some that the host can access.
MAPPED = c.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | c.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
CACHED = c.VK_MEMORY_PROPERTY_HOST_CACHED_BIT


class MemoryBlock:
    """A buffer with its memory.

    Attributes:
        content: its bytes, if the host can access them.
        slices: the number of slices; ``taken``: how many of them are in use.
    """

    def __init__(self, buffer: int, memory: int, size: int, content: Any, slices: int) -> None:
        self.buffer, self.memory, self.size, self.content = buffer, memory, size, content
        self.slices, self.taken = slices, 0


class MemorySlice:
    """A part of a block."""

    __slots__ = ("block", "buffer", "last_use", "offset", "size")

    def __init__(self, block: MemoryBlock, offset: int, size: int) -> None:
        self.block, self.buffer, self.offset, self.size = block, block.buffer, offset, size
        self.last_use = 0


class Memory:
    """Bytes on a device, until the object is dropped.

    Attributes:
        device: the device.
        nbytes: the size in bytes; ``reach`` is the size in whole words, which is what shaders access.
        slice: the slice that contains them.
    """

    __slots__ = ("__weakref__", "device", "nbytes", "reach", "slice")

    def __init__(self, device: Owner, nbytes: int, part: MemorySlice) -> None:
        self.device, self.nbytes, self.slice = device, nbytes, part
        self.reach = nbytes + 3 & ~3


class _Loan(weakref.ref[Memory]):
    """The pool's record of a memory object, with its slice, which outlives the object."""

    __slots__ = ("slice",)
    slice: MemorySlice


class Pool:
    """Slices of one kind of memory. The caller holds the queue's lock.

    Args:
        connection: the device.
        queue: knows which work is finished.
        memory: ``VkPhysicalDeviceMemoryProperties``.
        preferences: sets of properties, the best first; the first set that a memory type has is used.
        mapped: whether the host must be able to access it.
        alignment: the alignment of storage buffers.
        largest: the maximum bytes of one allocation.
        forget: called before a buffer is destroyed.
    """

    def __init__(
        self,
        connection: Connection,
        queue: Queue,
        memory: Any,
        preferences: tuple[int, ...],
        mapped: bool,
        alignment: int,
        largest: int,
        forget: Callable[[int], None],
    ) -> None:
        self.in_use = 0
        self.idle = 0
        self._connection, self._queue = connection, queue
        types = memory.memoryTypes[: memory.memoryTypeCount]
        self._types = [i for wanted in preferences for i, kind in enumerate(types) if kind.propertyFlags & wanted == wanted]
        best = types[self._types[0]]
        self.capacity = memory.memoryHeaps[best.heapIndex].size
        self.cached = bool(best.propertyFlags & CACHED)
        self._mapped, self._alignment, self._largest = mapped, max(alignment, _LEAST), largest
        self._forget = forget
        self._free: dict[int, list[MemorySlice]] = {}
        self._loans: set[_Loan] = set()
        # Memory can be dropped on any thread at any time, even while the pool is in use or during an interrupt. Therefore it is
        # only recorded, by a function that runs no Python code.
        self._dropped: deque[_Loan] = deque()
        self._empty: dict[MemoryBlock, None] = {}
        self._blocks = 0

    @property
    def blocks(self) -> int:
        """The number of buffers."""
        return self._blocks

    def take(self, device: Owner, nbytes: int, idle: bool = False) -> Memory:
        """Allocate memory.

        Args:
            device: its device.
            nbytes: the size in bytes.
            idle: whether no pending work may use it, because the host will write to it.

        Raises:
            OutOfMemory: there is not enough memory.
        """
        self.collect()
        size = self._round(nbytes)
        found = self._reuse(size, idle) or self._cut(size)
        self.in_use += found.size
        found.block.taken += 1
        self._empty.pop(found.block, None)
        memory = Memory(device, nbytes, found)
        loan = _Loan(memory, self._dropped.append)
        loan.slice = found
        self._loans.add(loan)
        return memory

    def collect(self) -> None:
        """Reclaim the slices of dropped memory."""
        while self._dropped:
            loan = self._dropped.popleft()
            self._loans.discard(loan)
            part = loan.slice
            self.in_use -= part.size
            self.idle += part.size
            self._free.setdefault(part.size, []).append(part)
            part.block.taken -= 1
            if not part.block.taken:
                self._empty[part.block] = None
        if self.idle > self.capacity // 4:
            self.trim(self.capacity // 8)

    def trim(self, keep: int = 0) -> None:
        """Free unused buffers, the least recently used first, until at most ``keep`` bytes are idle."""
        for block in list(self._empty):
            if self.idle <= keep:
                break
            parts = self._parts(block)
            if all(self._queue.done(part.last_use) for part in parts):
                self._destroy(block, parts)

    def _round(self, nbytes: int) -> int:
        """Round up to quarters of a power of two, so that there are few sizes and little waste; large sizes to whole MiB."""
        if nbytes > SMALL:
            return -(-nbytes // _ROUND_LARGE) * _ROUND_LARGE
        step = max(self._alignment, 1 << max(nbytes - 1, 1).bit_length() >> 3)
        return max(-(-nbytes // step) * step, self._alignment)

    def _reuse(self, size: int, idle: bool) -> MemorySlice | None:
        if size <= SMALL:
            sizes = [size]
        else:
            sizes = sorted(free for free in self._free if size <= free <= size + size // 8)
        for free in sizes:
            parts = self._free.get(free, [])
            # The last slice dropped is most likely in a cache; the first is most likely no longer in use.
            for position in (-1, 0) if parts else ():
                # Do not wait for a small slice: another one costs little.
                if self._queue.done(parts[position].last_use) or not (idle or size <= SMALL):
                    self.idle -= free
                    found = parts.pop(position)
                    if not parts:
                        del self._free[free]
                    return found
        return None

    def _cut(self, size: int) -> MemorySlice:
        """A slice of a new block; the block's other slices are free."""
        least, most = _SHARED
        count = max(1, min(max(least, 16 * size), most) // size) if size <= SMALL else 1
        block = self._new_block(size, count)
        parts = [MemorySlice(block, number * size, size) for number in range(count)]
        if rest := parts[1:]:
            self._free.setdefault(size, []).extend(reversed(rest))
            self.idle += size * len(rest)
        return parts[0]

    def _new_block(self, size: int, count: int) -> MemoryBlock:
        total = size * count
        if total > self._largest:
            raise OutOfMemory(f"at most {self._largest} at once")
        connection = self._connection
        buffer = connection.create("Buffer", c.VkBufferCreateInfo(size=total, usage=_USAGE))
        memory = 0
        try:
            needs = c.VkMemoryRequirements()
            connection.vk.vkGetBufferMemoryRequirements(connection.handle, buffer, ctypes.byref(needs))
            kind = next(kind for kind in self._types if needs.memoryTypeBits >> kind & 1)
            memory = connection.allocate(c.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=kind))
            connection.call("vkBindBufferMemory", buffer, memory, 0)
            content = None
            if self._mapped:
                address = ctypes.c_void_p()
                connection.call("vkMapMemory", memory, 0, c.VK_WHOLE_SIZE, 0, ctypes.byref(address))
                assert address.value
                content = np.frombuffer(memoryview((ctypes.c_uint8 * total).from_address(address.value)), np.uint8)
        except BaseException:
            connection.destroy("Buffer", buffer)
            if memory:
                connection.free(memory)
            raise
        self._blocks += 1
        return MemoryBlock(buffer, memory, total, content, count)

    def _parts(self, block: MemoryBlock) -> list[MemorySlice]:
        size = block.size // block.slices
        return [part for part in self._free[size] if part.block is block]

    def _destroy(self, block: MemoryBlock, parts: list[MemorySlice]) -> None:
        del self._empty[block]
        size = block.size // block.slices
        self._free[size] = [part for part in self._free[size] if part.block is not block]
        if not self._free[size]:
            del self._free[size]
        self.idle -= block.size
        self._blocks -= 1
        self._forget(block.buffer)
        self._connection.destroy("Buffer", block.buffer)
        self._connection.free(block.memory)

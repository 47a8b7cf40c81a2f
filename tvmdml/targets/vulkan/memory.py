"""Device memory: buffers are made seldom, cut into slices, and what is dropped is used again.

Small slices of one size share a buffer; large ones have one each. A slice remembers the last batch that uses it: the device may
use it again at once, since its work is in order, and the host when that batch is done.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml.targets.vulkan import structures as c
from tvmdml.targets.vulkan.commands import Queue
from tvmdml.targets.vulkan.connection import Connection
from tvmdml.targets.vulkan.loader import OutOfMemory

if TYPE_CHECKING:
    from tvmdml.targets.vulkan.driver import Device

SMALL = 1 << 20
"""Slices up to this size share buffers."""
_LEAST = 256
_ROUND_LARGE = 1 << 20
_SHARED = (1 << 20, 16 << 20)
"""The least and the most bytes of a buffer that slices share."""
_USAGE = c.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | c.VK_BUFFER_USAGE_TRANSFER_SRC_BIT | c.VK_BUFFER_USAGE_TRANSFER_DST_BIT

LOCAL = c.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
# Coherent memory needs no flushes, and every driver has some that the host can reach.
MAPPED = c.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | c.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
CACHED = c.VK_MEMORY_PROPERTY_HOST_CACHED_BIT


class Block:
    """A buffer with its memory.

    Attributes:
        content: its bytes, where the host can reach them.
        slices: how many it is cut into; ``taken``: how many of them are in use.
    """

    def __init__(self, buffer: int, memory: int, size: int, content: Any, slices: int) -> None:
        self.buffer, self.memory, self.size, self.content = buffer, memory, size, content
        self.slices, self.taken = slices, 0


class Slice:
    """A part of a block."""

    __slots__ = ("block", "buffer", "last_use", "offset", "size")

    def __init__(self, block: Block, offset: int, size: int) -> None:
        self.block, self.buffer, self.offset, self.size = block, block.buffer, offset, size
        self.last_use = 0


class Memory:
    """Bytes on a device, until this is dropped.

    Attributes:
        device: whose they are.
        nbytes: how many; ``reach`` is the same in whole words, which is what shaders access.
        slice: where they lie.
    """

    __slots__ = ("__weakref__", "device", "nbytes", "reach", "slice")

    def __init__(self, device: Device, nbytes: int, part: Slice) -> None:
        self.device, self.nbytes, self.slice = device, nbytes, part
        self.reach = nbytes + 3 & ~3


class _Loan(weakref.ref[Memory]):
    """What the pool knows a memory by, and its slice when that is dropped."""

    __slots__ = ("slice",)
    slice: Slice


class Pool:
    """Slices of one kind of memory. Whoever calls holds the queue's lock.

    Args:
        connection: the device.
        queue: knows what work is done.
        memory: ``VkPhysicalDeviceMemoryProperties``.
        preferences: sets of properties, the best first; the first that some type of memory has is taken.
        mapped: whether the host shall reach it.
        alignment: of storage buffers.
        largest: the most bytes that may be allocated at once.
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
        self._free: dict[int, list[Slice]] = {}
        self._loans: set[_Loan] = set()
        # Memory is dropped in any thread at any time, even while the pool is at work or an interrupt comes: so that is only
        # noted, and by a function that is no Python.
        self._dropped: deque[_Loan] = deque()
        self._empty: dict[Block, None] = {}
        self._blocks = 0

    @property
    def blocks(self) -> int:
        """How many buffers there are."""
        return self._blocks

    def take(self, device: Device, nbytes: int, idle: bool = False) -> Memory:
        """Memory of so many bytes.

        Args:
            device: whose it is.
            nbytes: how many.
            idle: whether it must be one that no pending work uses, because the host will write to it.

        Raises:
            OutOfMemory: there are not so many.
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
        """Take back what was dropped."""
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
        """Give buffers back that nothing uses, the one unused for longest first, until at most ``keep`` bytes are idle."""
        for block in list(self._empty):
            if self.idle <= keep:
                break
            parts = self._parts(block)
            if all(self._queue.done(part.last_use) for part in parts):
                self._destroy(block, parts)

    def _round(self, nbytes: int) -> int:
        """Sizes in steps of a quarter of a power of two, so that few differ and little is lost; large ones in whole MiB."""
        if nbytes > SMALL:
            return -(-nbytes // _ROUND_LARGE) * _ROUND_LARGE
        step = max(self._alignment, 1 << max(nbytes - 1, 1).bit_length() >> 3)
        return max(-(-nbytes // step) * step, self._alignment)

    def _reuse(self, size: int, idle: bool) -> Slice | None:
        if size <= SMALL:
            sizes = [size]
        else:
            sizes = sorted(free for free in self._free if size <= free <= size + size // 8)
        for free in sizes:
            parts = self._free.get(free, [])
            # The last one dropped is the one most likely in a cache, the first the one most likely done with.
            for position in (-1, 0) if parts else ():
                # Waiting for a small one is not worth it, when another costs little.
                if self._queue.done(parts[position].last_use) or not (idle or size <= SMALL):
                    self.idle -= free
                    found = parts.pop(position)
                    if not parts:
                        del self._free[free]
                    return found
        return None

    def _cut(self, size: int) -> Slice:
        """A slice of a new block; the other slices are free."""
        least, most = _SHARED
        count = max(1, min(max(least, 16 * size), most) // size) if size <= SMALL else 1
        block = self._new_block(size, count)
        parts = [Slice(block, number * size, size) for number in range(count)]
        if rest := parts[1:]:
            self._free.setdefault(size, []).extend(reversed(rest))
            self.idle += size * len(rest)
        return parts[0]

    def _new_block(self, size: int, count: int) -> Block:
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
        return Block(buffer, memory, total, content, count)

    def _parts(self, block: Block) -> list[Slice]:
        size = block.size // block.slices
        return [part for part in self._free[size] if part.block is block]

    def _destroy(self, block: Block, parts: list[Slice]) -> None:
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

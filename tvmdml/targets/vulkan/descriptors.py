"""Descriptor sets, which bind memory to a shader's buffers, and layouts, which state the number of buffers."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tvmdml.targets.vulkan import structures as c
from tvmdml.targets.vulkan.connection import Connection

_SETS_A_POOL = 64  # which one call allocates


class Layouts:
    """Layouts by number of buffers and bytes. There are few, and they live as long as the device."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sets: dict[int, int] = {}
        self._pipelines: dict[tuple[int, int], int] = {}

    def of_set(self, buffers: int) -> int:
        """The layout of a set with this number of buffers."""
        if buffers not in self._sets:
            bindings = (c.VkDescriptorSetLayoutBinding * buffers)()
            for number, binding in enumerate(bindings):
                binding.binding, binding.descriptorCount = number, 1
                binding.descriptorType, binding.stageFlags = c.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, c.VK_SHADER_STAGE_COMPUTE_BIT
            info = c.VkDescriptorSetLayoutCreateInfo(bindingCount=buffers, pBindings=bindings)
            self._sets[buffers] = self._connection.create("DescriptorSetLayout", info)
        return self._sets[buffers]

    def of_pipeline(self, buffers: int, push_bytes: int) -> int:
        """The layout of a pipeline."""
        key = buffers, push_bytes
        if key not in self._pipelines:
            info = c.VkPipelineLayoutCreateInfo(
                setLayoutCount=1,
                pSetLayouts=ctypes.c_uint64(self.of_set(buffers)),
                pushConstantRangeCount=1 if push_bytes else 0,
                pPushConstantRanges=c.VkPushConstantRange(stageFlags=c.VK_SHADER_STAGE_COMPUTE_BIT, size=push_bytes),
            )
            self._pipelines[key] = self._connection.create("PipelineLayout", info)
        return self._pipelines[key]


class DescriptorSet:
    """A binding of memory for each buffer of a pipeline."""

    __slots__ = ("_cell", "address", "bindings", "handle", "last_use")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._cell = ctypes.c_uint64(handle)
        self.address = ctypes.addressof(self._cell)
        self.bindings: tuple[int, ...] = ()
        self.last_use = 0


class DescriptorSets:
    """A cache of descriptor sets, so that repeated calls on the same arrays need no new ones. The caller holds the queue's lock.

    Args:
        connection: the device.
        layouts: the layouts of its sets.
        done: whether a batch is finished: sets that pending work uses must not change.
        limit: how many sets are kept for each number of buffers, besides those that pending work uses.
    """

    def __init__(self, connection: Connection, layouts: Layouts, done: Callable[[int], bool], limit: int = 1024) -> None:
        self.limit = limit
        self._connection, self._layouts, self._done = connection, layouts, done
        self._known: dict[int, OrderedDict[tuple[int, ...], DescriptorSet]] = {}
        self._spare: dict[int, list[DescriptorSet]] = {}
        self._writes: dict[int, tuple[Any, Any]] = {}

    def __len__(self) -> int:
        """The number of sets that are kept."""
        return sum(len(known) for known in self._known.values())

    def find(self, bindings: tuple[int, ...]) -> DescriptorSet:
        """The set for these bindings, given as one flat tuple: buffer, offset and size of each."""
        known = self._known.setdefault(len(bindings), OrderedDict())
        found = known.get(bindings)
        if found is not None:
            known.move_to_end(bindings)
            return found
        if len(known) >= self.limit:
            oldest = next(iter(known.values()))
            if self._done(oldest.last_use):
                self.give_back(known.pop(oldest.bindings))
        known[bindings] = found = self.take(bindings)
        return found

    def take(self, bindings: tuple[int, ...]) -> DescriptorSet:
        """A set that the caller owns."""
        buffers = len(bindings) // 3
        spare = self._spare.setdefault(buffers, [])
        if not spare:
            self._grow(buffers, spare)
        found = spare.pop()
        infos, writes = self._writes.get(buffers) or self._new_writes(buffers)
        for number in range(buffers):
            info = infos[number]
            info.buffer, info.offset, info.range = bindings[3 * number : 3 * number + 3]
            writes[number].dstSet = found.handle
        self._connection.vk.vkUpdateDescriptorSets(self._connection.handle, buffers, writes, 0, None)
        found.bindings = bindings
        return found

    def give_back(self, found: DescriptorSet) -> None:
        """Return a set that no pending work uses."""
        self._spare[len(found.bindings) // 3].append(found)

    def forget_buffer(self, buffer: int) -> None:
        """Drop the sets that contain a buffer which is about to be destroyed; no pending work uses it."""
        for known in self._known.values():
            for bindings in [bindings for bindings in known if buffer in bindings[::3]]:
                self.give_back(known.pop(bindings))

    def _grow(self, buffers: int, spare: list[DescriptorSet]) -> None:
        layout = self._layouts.of_set(buffers)
        size = c.VkDescriptorPoolSize(type=c.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, descriptorCount=max(buffers, 1) * _SETS_A_POOL)
        info = c.VkDescriptorPoolCreateInfo(maxSets=_SETS_A_POOL, poolSizeCount=1, pPoolSizes=size)
        pool = self._connection.create("DescriptorPool", info)
        made = (ctypes.c_uint64 * _SETS_A_POOL)()
        allocate = c.VkDescriptorSetAllocateInfo(
            descriptorPool=pool,
            descriptorSetCount=_SETS_A_POOL,
            pSetLayouts=(ctypes.c_uint64 * _SETS_A_POOL)(*[layout] * _SETS_A_POOL),
        )
        self._connection.call("vkAllocateDescriptorSets", ctypes.byref(allocate), made)
        spare.extend(map(DescriptorSet, made))

    def _new_writes(self, buffers: int) -> tuple[Any, Any]:
        """The structures that update a set, without the set's handle and the bindings."""
        infos = (c.VkDescriptorBufferInfo * buffers)()
        writes = (c.VkWriteDescriptorSet * buffers)()
        for number, write in enumerate(writes):
            write.sType, write.dstBinding, write.descriptorCount = c.VkWriteDescriptorSet._type, number, 1
            write.descriptorType = c.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
            write.pBufferInfo = ctypes.addressof(infos[number])
        self._writes[buffers] = infos, writes
        return infos, writes

"""``Prepared``: dispatches that are recorded once and run repeatedly."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from tvmdml.targets.vulkan import structures as c
from tvmdml.targets.vulkan.commands import Queue
from tvmdml.targets.vulkan.connection import Connection
from tvmdml.targets.vulkan.descriptors import DescriptorSet, DescriptorSets
from tvmdml.targets.vulkan.memory import Memory
from tvmdml.targets.vulkan.pipelines import Pipeline

BufferBinding: TypeAlias = tuple[Memory, int, int]
"""The binding of one buffer of a shader: memory, an offset in it, and the size in bytes."""
Groups: TypeAlias = tuple[int, int, int]
DispatchArguments: TypeAlias = tuple[Pipeline, Sequence[BufferBinding], bytes, Groups]
"""The arguments of ``Device.dispatch``."""


class Recorder(Protocol):
    """An opened device, as prepared dispatches see it; ``Device`` documents the members."""

    connection: Connection
    vk: Any
    queue: Queue
    descriptor_sets: DescriptorSets
    dropped_prepared: deque[tuple[int, list[DescriptorSet], int]]

    def check_step(self, pipeline: Pipeline, bindings: Sequence[BufferBinding], push: bytes, groups: Groups) -> tuple[int, ...]:
        """Check the arguments of a dispatch."""

    def record(self, commands: int, pipeline: Pipeline, bound: DescriptorSet, push: bytes, groups: Groups) -> None:
        """Record one dispatch."""


class Prepared:
    """Dispatches that were recorded once, by ``Device.prepare``.

    Args:
        device: where they run.
        steps: the dispatches.
        waits: for each, whether it waits for all before it and sees what they wrote; if empty, each does.
        keep: whether they keep their memory alive. If not, they may run only while memory that uses the same slices is.
    """

    def __init__(self, device: Recorder, steps: Sequence[DispatchArguments], waits: Sequence[bool] = (), keep: bool = True) -> None:
        self._device, self._dropped = device, device.dropped_prepared
        self._commands, self._last_use = 0, 0
        self._sets: list[DescriptorSet] = []
        bound: dict[tuple[int, ...], DescriptorSet] = {}
        queue = device.queue
        device.connection.usable()
        waits = _without_empty(steps, waits or [True] * len(steps))
        steps = [step for step in steps if all(step[3])]
        keys = [device.check_step(*step) for step in steps]
        self._pipelines = list(dict.fromkeys(pipeline for pipeline, _, _, _ in steps))
        memories = dict.fromkeys(memory for _, bindings, _, _ in steps for memory, _, _ in bindings)
        self._memories = memories if keep else None
        self._slices = list(dict.fromkeys(memory.slice for memory in memories))
        begin = c.VkCommandBufferBeginInfo(
            flags=c.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT, pInheritanceInfo=c.VkCommandBufferInheritanceInfo()
        )
        with queue.lock:
            device.connection.usable()
            self._commands = queue.new_buffer(c.VK_COMMAND_BUFFER_LEVEL_SECONDARY)
            vk, check = device.vk, device.connection.check
            check(vk.vkBeginCommandBuffer(self._commands, ctypes.byref(begin)), "vkBeginCommandBuffer")
            for (pipeline, _, push, groups), key, wait in zip(steps, keys, waits, strict=True):
                if wait and self._sets:
                    queue.barrier(self._commands)
                if key not in bound:
                    bound[key] = device.descriptor_sets.take(key)
                    self._sets.append(bound[key])
                device.record(self._commands, pipeline, bound[key], push, groups)
            check(vk.vkEndCommandBuffer(self._commands), "vkEndCommandBuffer")
        self._cell = ctypes.c_void_p(self._commands)
        self._address = ctypes.addressof(self._cell)

    def run(self) -> None:
        """Run them after all earlier work. Returns before they have run.

        Raises:
            DeviceError: the device is lost.
        """
        self._device.queue.record(self._run)

    def _run(self, commands: int, serial: int) -> None:
        self._last_use = serial
        for part in self._slices:
            part.last_use = serial
        for pipeline in self._pipelines:
            pipeline.last_use = serial
        self._device.vk.vkCmdExecuteCommands(commands, 1, self._address)

    def __del__(self) -> None:
        if self._commands:
            self._dropped.append((self._commands, self._sets, self._last_use))


def _without_empty(steps: Sequence[DispatchArguments], waits: Sequence[bool]) -> list[bool]:
    """What the dispatches that do anything wait for: also for what those that do nothing would have."""
    found, wait = [], False
    for (_, _, _, groups), each in zip(steps, waits, strict=True):
        wait |= each
        if all(groups):
            found.append(wait)
            wait = False
    return found

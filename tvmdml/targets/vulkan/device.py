"""``Device``: an opened device, its memory, and dispatches of shaders on it."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tvmdml.errors import DeviceError, bounded, message
from tvmdml.targets._device import bytes_of
from tvmdml.targets.vulkan import structures as c
from tvmdml.targets.vulkan.commands import Queue
from tvmdml.targets.vulkan.connection import Connection
from tvmdml.targets.vulkan.descriptors import DescriptorSet, DescriptorSets, Layouts
from tvmdml.targets.vulkan.loader import Instance, OutOfMemory
from tvmdml.targets.vulkan.memory import CACHED, LOCAL, MAPPED, SMALL, Memory, MemorySlice, Pool
from tvmdml.targets.vulkan.physical import Physical
from tvmdml.targets.vulkan.pipelines import Pipeline, Pipelines
from tvmdml.targets.vulkan.prepared import BufferBinding, DispatchArguments, Groups, Prepared
from tvmdml.targets.vulkan.timer import Timer
from tvmdml.targets.vulkan.timestamps import Queries

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

_PIECE = 8 << 20
"""The number of bytes copied at a time through staging memory."""
_EXIT_SECONDS = 10.0  # a device that hangs must not keep the process from ending
_PIECES = 2
"""Staging pieces in flight: the host copies one while the device copies the other."""
_SWEPT = 16
"""The maximum number of dropped dispatches checked when one is added; pending work may still use many."""


class MemoryUse(NamedTuple):
    """How a device's own memory is used, in bytes."""

    in_use: int
    idle: int
    """Available for reuse without a driver call."""
    capacity: int
    buffers: int
    """The number of buffers that the driver created for it."""


class Device:
    """An opened device. Any thread may use it; work runs in the order of submission.

    Attributes:
        unified: whether the host can access the device's own memory.
        storage_alignment: the alignment of a binding's offset.
        max_storage_range: the maximum size of a binding in bytes.
        max_groups: the maximum number of groups in one driver dispatch; larger dispatches are split.
        timestamp_period: nanoseconds per clock tick; 0 without a clock.
        timestamp_bits: the number of valid bits of a timestamp; 0 without a clock.
    """

    def __init__(self, instance: Instance, physical: Physical, staging: bool) -> None:
        limits = physical.limits
        self.info, self.capabilities = physical.info, physical.info.capabilities
        self.storage_alignment, self.max_storage_range = limits.storage_alignment, limits.max_storage_range
        self.max_groups: Groups = limits.max_groups
        self.timestamp_period, self.timestamp_bits = limits.timestamp_period, limits.timestamp_bits
        self.connection = Connection(instance, physical)
        self.vk = self.connection.vk
        try:
            self._equip(physical, staging)
        except BaseException:
            self.connection.close()
            raise

    def _equip(self, physical: Physical, staging: bool) -> None:
        """Create what every device has: a queue, pools, caches."""
        self.queue = Queue(self.connection, physical.queue_family)
        layouts = Layouts(self.connection)
        self.descriptor_sets = DescriptorSets(self.connection, layouts, self.queue.done)
        self._pipelines = Pipelines(self.connection, self.queue, layouts, physical.identity)
        self.dropped_prepared: deque[tuple[int, list[DescriptorSet], int]] = deque()
        self.queries = Queries(self.connection, self.queue)

        types = physical.memory.memoryTypes[: physical.memory.memoryTypeCount]
        reached = any(kind.propertyFlags & (LOCAL | MAPPED) == LOCAL | MAPPED for kind in types)
        # The host may be able to access a discrete GPU's memory as well, but only slowly.
        self.unified = reached and self.info.type != "discrete GPU" and not staging
        own = (LOCAL | MAPPED | CACHED, LOCAL | MAPPED) if self.unified else (LOCAL, 0)
        self._pool = self._make_pool(physical, own, mapped=self.unified)
        self._outbound = self._make_pool(physical, (MAPPED,), mapped=True)
        self._inbound = self._make_pool(physical, (MAPPED | CACHED, MAPPED), mapped=True)

    def __repr__(self) -> str:
        """Return its number and name."""
        return bounded(f"<Vulkan device {self.info.index}: {self.info.name}>")

    @property
    def lost(self) -> bool:
        """Whether it is unusable: work on it failed, it was closed, or the process was forked."""
        return bool(self.connection.fault)

    # Memory

    def allocate(self, nbytes: int) -> Memory:
        """Allocate memory; its content is undefined. It is freed when no reference to the object is left.

        Raises:
            DeviceError: there is not enough memory.
        """
        if nbytes < 0:
            raise self._refusal("bytes to allocate", nbytes, "0 or more")
        return self._take(self._pool, nbytes)

    def upload(self, memory: Memory, offset: int, data: Any) -> None:
        """Copy a C-contiguous buffer's bytes into memory, after all earlier work that uses it.

        Raises:
            DeviceError: the bytes do not fit, or the device is lost.
        """
        source = bytes_of(data)
        self._check_range(memory, offset, source.size)
        part = memory.slice
        if part.block.content is not None:
            if source.size > SMALL:  # for less, a copy in the queue is faster than a wait
                self.queue.wait(part.last_use)
            with self.queue.users.join():
                self.connection.usable()
                if self.queue.done(part.last_use):
                    _content(part, offset, source.size)[:] = source
                    return
        under_way: deque[int] = deque()
        for start in range(0, source.size, _PIECE):
            piece = source[start : start + _PIECE]
            if len(under_way) == _PIECES:
                self.queue.wait(under_way.popleft())
            held = self._take(self._outbound, piece.size, idle=True)
            with self.queue.users.join():
                self.connection.usable()
                _content(held.slice, 0, piece.size)[:] = piece
            under_way.append(self._copy(held.slice, 0, part, offset + start, piece.size))
            if source.size > _PIECE:
                self.queue.submit()

    def download(self, memory: Memory, offset: int, into: Any) -> None:
        """Copy bytes from memory into a writable C-contiguous buffer, after the work that uses the memory.

        Raises:
            DeviceError: the memory has fewer bytes, or the device is lost.
        """
        target = bytes_of(into)
        if not target.flags.writeable:
            raise self._refusal("buffer to download into", "a read-only one", "one that can be written")
        self._check_range(memory, offset, target.size)
        part = memory.slice
        if part.block.content is not None and self._pool.cached:
            self.queue.wait(part.last_use)
            with self.queue.users.join():
                self.connection.usable()
                target[:] = _content(part, offset, target.size)
            return
        under_way: deque[tuple[int, Memory]] = deque()
        for start in range(0, target.size + _PIECE, _PIECE):
            if start < target.size:
                held = self._take(self._inbound, min(_PIECE, target.size - start))
                self._copy(part, offset + start, held.slice, 0, held.nbytes)
                self.queue.submit()
                under_way.append((start, held))
            while under_way and (len(under_way) == _PIECES or start >= target.size):
                begin, held = under_way.popleft()
                self.queue.wait(held.slice.last_use)
                with self.queue.users.join():
                    self.connection.usable()
                    target[begin : begin + held.nbytes] = _content(held.slice, 0, held.nbytes)

    def copy(self, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int) -> None:
        """Copy on the device, in order with all other work. The two ranges may overlap."""
        self._check_range(source, source_offset, nbytes)
        self._check_range(target, target_offset, nbytes)
        if not nbytes:
            return
        if source.slice is target.slice and abs(source_offset - target_offset) < nbytes:
            between = self.allocate(nbytes)
            self._copy(source.slice, source_offset, between.slice, 0, nbytes)
            source, source_offset = between, 0
        self._copy(source.slice, source_offset, target.slice, target_offset, nbytes)

    def fill(self, memory: Memory, offset: int, nbytes: int, word: int = 0) -> None:
        """Fill with a 32-bit word, in order with all other work.

        Offset and size are multiples of 4; the last word may start inside the memory and extend beyond its end.
        """
        if offset % 4 or nbytes % 4:
            raise self._refusal("fill", f"{nbytes} bytes from {offset}", "multiples of 4")
        self._check_range(memory, offset, nbytes, words=True)
        if not nbytes:
            return
        part = memory.slice

        def command(commands: int, serial: int) -> None:
            part.last_use = serial
            self.vk.vkCmdFillBuffer(commands, part.buffer, part.offset + offset, nbytes, word & 0xFFFFFFFF)

        self.queue.record(command)

    @property
    def memory_in_use(self) -> int:
        """The bytes of memory in use, including the rounding of sizes."""
        return self.memory_use().in_use

    def memory_use(self) -> MemoryUse:
        """How the device's own memory is used."""
        self.connection.usable()
        with self.queue.lock:
            self.connection.usable()
            self._pool.collect()
            return MemoryUse(self._pool.in_use, self._pool.idle, self._pool.capacity, self._pool.blocks)

    def trim(self) -> None:
        """Return unused memory to the driver, after all pending work."""
        self.queue.wait()
        with self.queue.lock:
            self.connection.usable()
            for pool in (self._pool, self._outbound, self._inbound):
                pool.collect()
                pool.trim()

    # Shaders

    def pipeline(self, code: bytes, buffers: int, push_bytes: int) -> Pipeline:
        """Create a pipeline from a shader; equal arguments give the same pipeline.

        Args:
            code: SPIR-V in little-endian words, with the entry point ``main``.
            buffers: the number of storage buffers: bindings 0, 1, … of set 0.
            push_bytes: the bytes of push constants.

        Raises:
            DeviceError: the device does not allow so many, or the driver rejects the shader.
        """
        self.connection.usable()
        most_buffers, most_bytes = self.capabilities.max_buffers, self.capabilities.max_push_bytes
        if buffers > most_buffers:
            raise self._refusal("buffers of a shader", buffers, f"up to {most_buffers}")
        if push_bytes > most_bytes or push_bytes % 4:
            raise self._refusal("bytes of push constants", push_bytes, f"multiples of 4 up to {most_bytes}")
        return self._pipelines.find(self, code, buffers, push_bytes)

    def dispatch(self, pipeline: Pipeline, bindings: Sequence[BufferBinding], push: bytes, groups: Groups) -> None:
        """Run a shader after all earlier work; it sees what that wrote. Returns before it has run.

        Args:
            pipeline: the shader.
            bindings: its buffers.
            push: its push constants.
            groups: the number of groups in each dimension; if one is 0, nothing runs.

        Raises:
            DeviceError: a binding is outside its memory, is misaligned, or is too large; the shader or memory belongs to another
                device; or the device is lost.
        """
        key = self.check_step(pipeline, bindings, push, groups)
        if not all(groups):
            return

        def command(commands: int, serial: int) -> None:
            found = self.descriptor_sets.find(key)
            found.last_use = pipeline.last_use = serial
            for memory, _, _ in bindings:
                memory.slice.last_use = serial
            self.record(commands, pipeline, found, push, groups)

        self.queue.record(command)

    def prepare(self, steps: Sequence[DispatchArguments], waits: Sequence[bool] = (), keep: bool = True) -> Prepared:
        """Record dispatches that run together repeatedly; see ``Prepared``."""
        self.connection.usable()
        with self.queue.lock:
            self.connection.usable()
            self._sweep(_SWEPT)
        return Prepared(self, steps, waits, keep)

    # Pending work

    def flush(self) -> None:
        """Submit everything to the device; it starts at once, or after its current work."""
        self.queue.submit()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, work is submitted in full batches, or when somebody waits, so that the device does not idle between commands."""
        self.queue.hold(1)
        try:
            yield
        finally:
            self.queue.hold(-1)

    def wait(self) -> None:
        """Wait until all earlier work is finished.

        Raises:
            DeviceError: the device is lost.
        """
        self.queue.wait()
        with self.queue.lock:
            self.connection.usable()
            self._sweep()

    def timed(self) -> Timer:
        """A context manager that measures how long the device takes for the work submitted inside.

        >>> with device.timed() as timer:  # doctest: +SKIP
        ...     device.dispatch(...)
        >>> timer.seconds  # doctest: +SKIP
        0.00012

        Raises:
            DeviceError: the device has no clock.
        """
        return Timer(self)

    def close(self) -> bool:
        """Wait a limited time for pending work, store compiled pipelines, and free everything: at process end, or when it is lost.

        Returns:
            Whether it could be closed, because nothing used it any more.
        """
        if self.connection.closed:
            return True
        idle = self.queue.drain(_EXIT_SECONDS)
        if idle:
            self._pipelines.save()
        self.connection.fault = self.connection.fault or "the process is ending"
        if idle and self.queue.drain(_EXIT_SECONDS):  # other threads may have started work before they saw the fault
            self.connection.close()
        return self.connection.closed

    # For the other modules of this package

    def check_step(self, pipeline: Pipeline, bindings: Sequence[BufferBinding], push: bytes, groups: Groups) -> tuple[int, ...]:
        """Check the arguments of ``dispatch``; returns the key of the descriptor set."""
        if pipeline.device is not self:
            self._refuse_pipeline(pipeline)
        if len(bindings) != pipeline.buffers or len(push) != pipeline.push_bytes:
            given = f"{len(bindings)} buffers and {len(push)} bytes of push constants"
            raise self._refusal("dispatch", given, f"{pipeline.buffers} and {pipeline.push_bytes}")
        if min(groups) < 0:
            raise self._refusal("groups", groups, "0 or more")
        alignment, largest = self.storage_alignment, self.max_storage_range
        key: list[int] = []
        for memory, offset, nbytes in bindings:
            part = memory.slice
            inside = offset >= 0 and offset + nbytes <= memory.reach
            if memory.device is not self or not inside or offset % alignment or not 0 < nbytes <= largest:
                self._refuse_binding(memory, offset, nbytes)
            key += (part.buffer, part.offset + offset, nbytes)
        if not self._fits(groups):
            self._pipelines.need_based(pipeline)
        return tuple(key)

    def record(self, commands: int, pipeline: Pipeline, bound: DescriptorSet, push: bytes, groups: Groups) -> None:
        """Record one dispatch, split into several if necessary."""
        vk, fits = self.vk, self._fits(groups)
        vk.vkCmdBindPipeline(commands, c.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.handle if fits else pipeline.based)
        vk.vkCmdBindDescriptorSets(commands, c.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.layout, 0, 1, bound.address, 0, None)
        if push:
            vk.vkCmdPushConstants(commands, pipeline.layout, c.VK_SHADER_STAGE_COMPUTE_BIT, 0, len(push), push)
        if fits:
            vk.vkCmdDispatch(commands, *groups)
            return
        (x, y, z), (most_x, most_y, most_z) = groups, self.max_groups
        for base_z in range(0, z, most_z):
            for base_y in range(0, y, most_y):
                for base_x in range(0, x, most_x):
                    count = min(x - base_x, most_x), min(y - base_y, most_y), min(z - base_z, most_z)
                    vk.vkCmdDispatchBase(commands, base_x, base_y, base_z, *count)

    def _fits(self, groups: Groups) -> bool:
        most = self.max_groups
        return groups[0] <= most[0] and groups[1] <= most[1] and groups[2] <= most[2]

    def _make_pool(self, physical: Physical, preferences: tuple[int, ...], mapped: bool) -> Pool:
        return Pool(
            self.connection,
            self.queue,
            physical.memory,
            preferences,
            mapped=mapped,
            alignment=self.storage_alignment,
            largest=physical.limits.max_allocation,
            forget=self.descriptor_sets.forget_buffer,
        )

    def _take(self, pool: Pool, nbytes: int, idle: bool = False) -> Memory:
        self.connection.usable()

        def take() -> Memory:
            with self.queue.lock:
                self.connection.usable()
                self._sweep(_SWEPT)
                return pool.take(self, nbytes, idle)

        try:
            return take()
        except OutOfMemory:
            gc.collect()  # arrays may be in reference cycles
            self.trim()
        try:
            return take()
        except OutOfMemory as error:
            given = f"{nbytes} bytes with {pool.in_use} of {pool.capacity} in use"
            raise self._refusal(
                "memory", given, f"what the driver has ({error.why})", "Drop arrays, or work in smaller parts."
            ) from error

    def _copy(self, source: MemorySlice, source_offset: int, target: MemorySlice, target_offset: int, nbytes: int) -> int:
        """Record a copy; returns its batch."""
        region = c.VkBufferCopy(srcOffset=source.offset + source_offset, dstOffset=target.offset + target_offset, size=nbytes)

        def command(commands: int, serial: int) -> None:
            source.last_use = target.last_use = serial
            self.vk.vkCmdCopyBuffer(commands, source.buffer, target.buffer, 1, ctypes.byref(region))

        return self.queue.record(command)

    def _sweep(self, most: int = sys.maxsize) -> None:
        """Destroy dropped objects that are no longer used, and check at most ``most`` of them; the lock is held."""
        self._pipelines.sweep()
        self.queries.sweep(most)
        for _ in range(min(most, len(self.dropped_prepared))):
            dropped = commands, sets, last_use = self.dropped_prepared.popleft()
            if not self.queue.done(last_use):
                self.dropped_prepared.append(dropped)
                continue
            self.queue.free_buffer(commands)
            for bound in sets:
                self.descriptor_sets.give_back(bound)

    def _check_range(self, memory: Memory, offset: int, nbytes: int, words: bool = False) -> None:
        self.connection.usable()
        if memory.device is not self:
            memory.device.connection.usable()
            raise self._refusal("memory", "another device's", "this device's own")
        if offset < 0 or nbytes < 0 or offset + nbytes > (memory.reach if words else memory.nbytes):
            raise self._refusal("part of memory", f"{nbytes} bytes from {offset}", f"a range within its {memory.nbytes} bytes")

    def _refuse_binding(self, memory: Memory, offset: int, nbytes: int) -> None:
        self._check_range(memory, offset, nbytes, words=True)
        if offset % self.storage_alignment:
            raise self._refusal("offset of a binding", offset, f"multiples of {self.storage_alignment}")
        if nbytes <= 0:
            raise self._refusal("bytes of a binding", nbytes, "1 or more")
        allowed = f"up to {self.max_storage_range} (the device's maxStorageBufferRange)"
        raise self._refusal("buffer of a shader", f"an array of {nbytes} bytes", allowed, "Work in smaller parts.")

    def _refuse_pipeline(self, pipeline: Pipeline) -> None:
        self.connection.usable()
        if pipeline.device.lost:
            why = "the pipeline belongs to a device that was lost or closed; create it again on this one"
            raise DeviceError(f"{self.info.name}: {why}")
        raise self._refusal("pipeline", "another device's", "this device's own")

    def _refusal(self, where: str, given: object, allowed: str, advice: str = "") -> DeviceError:
        return DeviceError(f"{self.info.name}: {message(where, given, allowed, advice)}")


def _content(part: MemorySlice, offset: int, nbytes: int) -> Bytes:
    """The bytes of a slice that the host can access."""
    begin = part.offset + offset
    return part.block.content[begin : begin + nbytes]

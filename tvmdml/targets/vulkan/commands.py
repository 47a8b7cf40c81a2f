"""The queue of a device: commands are collected into batches, submitted, and waited for.

Every batch has a serial number, and one timeline semaphore counts up to the serial of the last batch that is done. Whatever a
command uses remembers the serial of its batch, so that the host waits for no more than it must. Commands run as if one after
the other: before each stands a barrier for all memory.
"""

from __future__ import annotations

import ctypes
import enum
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from tvmdml.errors import DeviceError
from tvmdml.targets.vulkan import structures as c
from tvmdml.targets.vulkan.connection import Connection

BATCH = 64
"""Commands after which a batch is submitted although the device is still busy."""
RING = 8
"""Batches that may be under way; who wants to begin another waits for the oldest."""
_SLICE_NS = 100_000_000
"""How long one wait in the driver may last: between two, Python sees to its signals."""
_ON_DEVICE = c.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | c.VK_PIPELINE_STAGE_TRANSFER_BIT
_WRITES = c.VK_ACCESS_SHADER_WRITE_BIT | c.VK_ACCESS_TRANSFER_WRITE_BIT
_READS = c.VK_ACCESS_SHADER_READ_BIT | c.VK_ACCESS_TRANSFER_READ_BIT


class _Stage(enum.IntEnum):
    RECORDING = 0
    ENDED = 1
    SUBMITTED = 2


class _Batch:
    """A command buffer, how it is submitted, and how far that has come."""

    def __init__(self, commands: int, semaphore: int) -> None:
        self.commands = commands
        self.stage = _Stage.RECORDING
        self.serial = ctypes.c_uint64()
        self.submit_info = c.VkSubmitInfo(
            pNext=c.VkTimelineSemaphoreSubmitInfo(signalSemaphoreValueCount=1, pSignalSemaphoreValues=self.serial),
            commandBufferCount=1,
            pCommandBuffers=ctypes.c_void_p(commands),
            signalSemaphoreCount=1,
            pSignalSemaphores=ctypes.c_uint64(semaphore),
        )
        self.submitted = ctypes.byref(self.submit_info)


class _Waiter:
    """What a wait takes: the semaphore, and the value to wait for."""

    def __init__(self, semaphore: int) -> None:
        self.value = ctypes.c_uint64()
        self.info = c.VkSemaphoreWaitInfo(semaphoreCount=1, pSemaphores=ctypes.c_uint64(semaphore), pValues=self.value)
        self.address = ctypes.addressof(self.info)


class Users:
    """Who uses a device without holding its lock: they wait, copy or compile.

    Each of them holds a lock of its own. An interrupt cannot leave that locked, as it could leave a number too high.
    """

    def __init__(self) -> None:
        self._locks: set[weakref.ref[threading.Lock]] = set()

    def join(self) -> threading.Lock:
        """What to hold, in a ``with`` statement. Ask within it whether the device is usable: it may just have been closed."""
        lock = threading.Lock()
        self._locks.add(weakref.ref(lock, self._locks.discard))
        return lock

    @property
    def count(self) -> int:
        """How many there are."""
        locks = [reference() for reference in self._locks.copy()]
        return sum(lock is not None and lock.locked() for lock in locks)


class Queue:
    """The one queue that is used of a device.

    Attributes:
        lock: held while something is recorded or submitted, never while something is waited for.
        users: ``with queue.users.join():`` keeps the device from being closed without holding the lock.
        serial: the serial of the batch that commands are now recorded into.
    """

    def __init__(self, connection: Connection, family: int) -> None:
        self.lock = threading.RLock()
        self.users = Users()
        self.serial = 1
        self._connection, self._vk = connection, connection.vk
        handle = ctypes.c_void_p()
        self._vk.vkGetDeviceQueue(connection.handle, family, 0, ctypes.byref(handle))
        self._handle = handle.value
        self._semaphore = connection.create(
            "Semaphore", c.VkSemaphoreCreateInfo(pNext=c.VkSemaphoreTypeCreateInfo(semaphoreType=c.VK_SEMAPHORE_TYPE_TIMELINE))
        )
        self._pool = connection.create(
            "CommandPool",
            c.VkCommandPoolCreateInfo(flags=c.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, queueFamilyIndex=family),
        )
        self._spare: list[_Batch] = []
        self._under_way: deque[_Batch] = deque()
        self._open: _Batch | None = None
        self._recorded = 0
        # A lock and no flag, because an interrupt cannot leave it locked. Only who holds the other lock takes it.
        self._busy = threading.Lock()
        self._holding = 0
        self._counter = ctypes.c_uint64()
        self._counter_address = ctypes.addressof(self._counter)
        self._done = 0
        self._waiters: list[_Waiter] = []
        self._begin_info = c.VkCommandBufferBeginInfo(flags=c.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT)
        self._begin_address = ctypes.addressof(self._begin_info)
        self._between = c.VkMemoryBarrier(srcAccessMask=_WRITES, dstAccessMask=_READS | _WRITES)
        self._between_address = ctypes.addressof(self._between)
        self._to_host = c.VkMemoryBarrier(srcAccessMask=_WRITES, dstAccessMask=c.VK_ACCESS_HOST_READ_BIT)
        self._to_host_address = ctypes.addressof(self._to_host)

    def record(self, command: Callable[[int, int], None]) -> int:
        """Record one command. Any thread may, and waits first if too much is under way.

        Args:
            command: takes the command buffer, and the serial of its batch.

        Returns:
            The serial.

        Raises:
            DeviceError: the device is lost.
        """
        self._connection.usable()
        if self._open is None and len(self._under_way) >= RING:
            self._make_room()
        with self.lock:
            self._connection.usable()
            self._not_within()
            if self._open is not None and self._open.stage:  # its submission was interrupted
                self._submit()
            with self._busy:
                serial = self.serial
                commands = self._begun().commands
                self.barrier(commands)
                command(commands, serial)
            self._recorded += 1
            if self._recorded >= BATCH or (not self._holding and self.done(serial - 1)):
                self._submit()
        return serial

    def hold(self, change: int) -> None:
        """Keep commands back until their batch is full, while the sum of all changes is positive."""
        with self.lock:
            self._holding += change

    def submit(self) -> None:
        """Hand over what is recorded."""
        self._connection.usable()
        with self.lock:
            if self._recorded:
                self._submit()

    def done(self, serial: int) -> bool:
        """Whether all work up to a batch is done."""
        if serial > self._done:
            result = self._vk.vkGetSemaphoreCounterValue(self._connection.handle, self._semaphore, self._counter_address)
            self._connection.check(result, "vkGetSemaphoreCounterValue")
            self._done = max(self._done, self._counter.value)
        return serial <= self._done

    def wait(self, serial: int | None = None) -> None:
        """Wait until all work up to a batch is done; ``None`` is all that was recorded so far.

        Raises:
            DeviceError: the device is lost.
        """
        self._connection.usable()
        with self.lock:
            self._connection.usable()
            serial = self.serial - (not self._recorded) if serial is None else serial
            if serial >= self.serial:
                self._submit()
            if self.done(serial):
                return
            waiter = self._waiters.pop() if self._waiters else _Waiter(self._semaphore)
        with self.users.join():
            self._connection.usable()
            waiter.value.value = serial
            while self._connection.call("vkWaitSemaphores", waiter.address, _SLICE_NS) == c.VK_TIMEOUT:
                self._connection.usable()
        self._waiters.append(waiter)

    def drain(self, seconds: float) -> bool:
        """Submit everything and wait a while for it, before the device is closed. Whether nothing uses the queue any more."""
        deadline = time.monotonic() + seconds
        if not self.lock.acquire(timeout=seconds):
            return False
        try:
            while self.users.count and self._connection.fault and time.monotonic() < deadline:
                self.lock.release()  # who waits will look at the fault
                time.sleep(_SLICE_NS * 1e-9)
                self.lock.acquire()
            if self._connection.fault:
                self._vk.vkDeviceWaitIdle(self._connection.handle)
                return not self.users.count
            if self._busy.locked():
                return False
            self.submit()
            waiter = _Waiter(self._semaphore)
            waiter.value.value = self.serial - 1
            left = max(deadline - time.monotonic(), 0.0)
            result = self._vk.vkWaitSemaphores(self._connection.handle, waiter.address, int(left * 1e9))
            return int(result) == 0 and not self.users.count
        finally:
            self.lock.release()

    def barrier(self, commands: int) -> None:
        """What follows sees what was written before, and what was read before is read no more."""
        self._vk.vkCmdPipelineBarrier(commands, _ON_DEVICE, _ON_DEVICE, 0, 1, self._between_address, 0, None, 0, None)

    def new_buffer(self, level: int = c.VK_COMMAND_BUFFER_LEVEL_PRIMARY) -> int:
        """A command buffer."""
        made = ctypes.c_void_p()
        info = c.VkCommandBufferAllocateInfo(commandPool=self._pool, level=level, commandBufferCount=1)
        self._connection.call("vkAllocateCommandBuffers", ctypes.byref(info), ctypes.byref(made))
        assert made.value
        return made.value

    def free_buffer(self, commands: int) -> None:
        """Give a command buffer back that no pending work uses."""
        self._vk.vkFreeCommandBuffers(self._connection.handle, self._pool, 1, ctypes.byref(ctypes.c_void_p(commands)))

    def _make_room(self) -> None:
        """Wait until a batch may be begun; the lock is not held."""
        with self.lock:
            self._connection.usable()
            self._retire()
            oldest = self._under_way[0].serial.value if len(self._under_way) >= RING else 0
        self.wait(oldest)

    def _not_within(self) -> None:
        """A signal's handler may come here while its thread records: one command cannot be put into the middle of another."""
        if self._busy.locked():
            raise DeviceError("the device was called from within a call to it: do that elsewhere than in a signal handler")

    def _new_batch(self) -> _Batch:
        return _Batch(self.new_buffer(), self._semaphore)

    def _begun(self) -> _Batch:
        """The batch that commands are recorded into."""
        if self._open is None:
            batch = self._spare.pop() if self._spare else self._new_batch()
            self._connection.check(self._vk.vkBeginCommandBuffer(batch.commands, self._begin_address), "vkBeginCommandBuffer")
            batch.stage = _Stage.RECORDING
            self._open = batch
        return self._open

    def _submit(self) -> None:
        """Hand over the open batch. If that fails its commands are lost, and arrays hold what nobody knows: so is the device.

        An interrupt may come out of any call, after it was made. The stage is noted right before a call, so that it is true,
        and whoever comes next goes on from there.
        """
        self._not_within()
        with self._busy:
            batch = self._begun()
            vk, check = self._vk, self._connection.check
            try:
                if batch.stage < _Stage.ENDED:
                    self._barrier_to_host(batch.commands)
                    batch.stage = _Stage.ENDED
                    check(vk.vkEndCommandBuffer(batch.commands), "vkEndCommandBuffer")
                if batch.stage < _Stage.SUBMITTED:
                    batch.serial.value = self.serial
                    batch.stage = _Stage.SUBMITTED
                    check(vk.vkQueueSubmit(self._handle, 1, batch.submitted, 0), "vkQueueSubmit")
            except DeviceError as error:
                self._connection.lose(f"work was lost: {error}")
                raise
            if not self._under_way or self._under_way[-1] is not batch:
                self._under_way.append(batch)
            self._open, self._recorded, self.serial = None, 0, batch.serial.value + 1
        self._retire()

    def _barrier_to_host(self, commands: int) -> None:
        host = c.VK_PIPELINE_STAGE_HOST_BIT
        self._vk.vkCmdPipelineBarrier(commands, _ON_DEVICE, host, 0, 1, self._to_host_address, 0, None, 0, None)

    def _retire(self) -> None:
        while self._under_way and self.done(self._under_way[0].serial.value):
            self._spare.append(self._under_way.popleft())

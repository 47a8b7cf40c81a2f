"""A device's queue: commands are collected into batches, which are submitted and waited for.

Every batch has a serial number, and a timeline semaphore counts up to the serial of the last finished batch. Each object that a
command uses remembers the serial of its batch, so that the host waits no longer than necessary. Commands run as if in sequence:
each is preceded by a full memory barrier.
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
"""The number of commands after which a batch is submitted even if the device is busy."""
RING = 8
"""The maximum number of batches in flight; to start another, a thread waits for the oldest."""
_SLICE_NS = 100_000_000
"""The time limit for one wait in the driver: between two waits Python handles its signals."""
_ON_DEVICE = c.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | c.VK_PIPELINE_STAGE_TRANSFER_BIT
_WRITES = c.VK_ACCESS_SHADER_WRITE_BIT | c.VK_ACCESS_TRANSFER_WRITE_BIT
_READS = c.VK_ACCESS_SHADER_READ_BIT | c.VK_ACCESS_TRANSFER_READ_BIT


class _Stage(enum.IntEnum):
    RECORDING = 0
    ENDED = 1
    SUBMITTED = 2


class _Batch:
    """A command buffer, its submission structures, and the stage that its submission has reached."""

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
    """The arguments of a wait: the semaphore, and the value to wait for."""

    def __init__(self, semaphore: int) -> None:
        self.value = ctypes.c_uint64()
        self.info = c.VkSemaphoreWaitInfo(semaphoreCount=1, pSemaphores=ctypes.c_uint64(semaphore), pValues=self.value)
        self.address = ctypes.addressof(self.info)


class Users:
    """The threads that use a device without holding its lock: they wait, copy or compile.

    Each of them holds a lock of its own. Unlike a counter, a lock in a ``with`` statement is always released after an interrupt.
    """

    def __init__(self) -> None:
        self._locks: set[weakref.ref[threading.Lock]] = set()

    def join(self) -> threading.Lock:
        """A lock to hold in a ``with`` statement. Check inside that the device is usable: it may just have been closed."""
        lock = threading.Lock()
        self._locks.add(weakref.ref(lock, self._locks.discard))
        return lock

    @property
    def count(self) -> int:
        """The number of users."""
        locks = [reference() for reference in self._locks.copy()]
        return sum(lock is not None and lock.locked() for lock in locks)


class Queue:
    """The single queue of a device that is used.

    Attributes:
        lock: held while commands are recorded or submitted, never during a wait.
        users: ``with queue.users.join():`` prevents the device from being closed, without holding the lock.
        serial: the serial of the batch that is being recorded.
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
        # Set right before a ``try`` that resets it, by the holder of the lock: Python runs signal handlers after calls, and not
        # between these two. A second lock would be no better: from Python 3.14 on, an interrupt can leave one locked in a ``with``.
        self._within = False
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
        """Record one command. Any thread may call this; it first waits if too many batches are in flight.

        Args:
            command: called with the command buffer and the serial of its batch.

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
            if self._open is not None and self._open.stage:  # an interrupt stopped its submission
                self._submit()
            self._within = True
            try:
                serial = self.serial
                commands = self._begun().commands
                self.barrier(commands)
                command(commands, serial)
            finally:
                self._within = False
            self._recorded += 1
            if self._recorded >= BATCH or (not self._holding and self.done(serial - 1)):
                self._submit()
        return serial

    def hold(self, change: int) -> None:
        """Delay the submission of commands until their batch is full, as long as the sum of all changes is positive."""
        with self.lock:
            self._holding += change

    def submit(self) -> None:
        """Submit the recorded commands."""
        self._connection.usable()
        with self.lock:
            if self._recorded:
                self._submit()

    def done(self, serial: int) -> bool:
        """Whether all work up to a batch is finished."""
        if serial > self._done:
            result = self._vk.vkGetSemaphoreCounterValue(self._connection.handle, self._semaphore, self._counter_address)
            self._connection.check(result, "vkGetSemaphoreCounterValue")
            self._done = max(self._done, self._counter.value)
        return serial <= self._done

    def wait(self, serial: int | None = None) -> None:
        """Wait until all work up to a batch is finished; ``None`` means everything recorded so far.

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
        """Submit everything and wait a limited time for it, before the device is closed. Returns whether the queue is unused."""
        deadline = time.monotonic() + seconds
        if not self.lock.acquire(timeout=seconds):
            return False
        try:
            while self.users.count and self._connection.fault and time.monotonic() < deadline:
                self.lock.release()  # waiting threads check the fault
                time.sleep(_SLICE_NS * 1e-9)
                self.lock.acquire()
            if self._connection.fault:
                self._vk.vkDeviceWaitIdle(self._connection.handle)
                return not self.users.count
            if self._within:
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
        """Make earlier writes visible to later commands, and let earlier reads finish before later writes."""
        self._vk.vkCmdPipelineBarrier(commands, _ON_DEVICE, _ON_DEVICE, 0, 1, self._between_address, 0, None, 0, None)

    def new_buffer(self, level: int = c.VK_COMMAND_BUFFER_LEVEL_PRIMARY) -> int:
        """Allocate a command buffer."""
        made = ctypes.c_void_p()
        info = c.VkCommandBufferAllocateInfo(commandPool=self._pool, level=level, commandBufferCount=1)
        self._connection.call("vkAllocateCommandBuffers", ctypes.byref(info), ctypes.byref(made))
        assert made.value
        return made.value

    def free_buffer(self, commands: int) -> None:
        """Free a command buffer that no pending work uses."""
        self._vk.vkFreeCommandBuffers(self._connection.handle, self._pool, 1, ctypes.byref(ctypes.c_void_p(commands)))

    def _make_room(self) -> None:
        """Wait until a batch may be started; the lock must not be held."""
        with self.lock:
            self._connection.usable()
            self._retire()
            oldest = self._under_way[0].serial.value if len(self._under_way) >= RING else 0
        self.wait(oldest)

    def _not_within(self) -> None:
        """Raise if this thread is already recording: a signal handler may call in the middle of a command."""
        if self._within:
            raise DeviceError("the device was called during another call to it: do not use it in a signal handler")

    def _new_batch(self) -> _Batch:
        return _Batch(self.new_buffer(), self._semaphore)

    def _begun(self) -> _Batch:
        """The batch that is being recorded."""
        if self._open is None:
            batch = self._spare.pop() if self._spare else self._new_batch()
            self._connection.check(self._vk.vkBeginCommandBuffer(batch.commands, self._begin_address), "vkBeginCommandBuffer")
            batch.stage = _Stage.RECORDING
            self._open = batch
        return self._open

    def _submit(self) -> None:
        """Submit the open batch. If this fails, its commands are lost and arrays have unknown contents, so the device is lost.

        An interrupt can arrive after any call. The stage is recorded right before each call, so that it is always correct, and the
        next caller continues from there.
        """
        self._not_within()
        self._within = True
        try:
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
        finally:
            self._within = False
        self._retire()

    def _barrier_to_host(self, commands: int) -> None:
        host = c.VK_PIPELINE_STAGE_HOST_BIT
        self._vk.vkCmdPipelineBarrier(commands, _ON_DEVICE, host, 0, 1, self._to_host_address, 0, None, 0, None)

    def _retire(self) -> None:
        while self._under_way and self.done(self._under_way[0].serial.value):
            self._spare.append(self._under_way.popleft())

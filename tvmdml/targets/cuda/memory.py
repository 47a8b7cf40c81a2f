"""Device memory. It comes from a driver's memory pool, and returns there in order with the work that used it.

Memory can be dropped on any thread at any time: during a driver call, while a stream is being captured, or while the interpreter
ends. Therefore dropping only records it, in a function that runs no Python code, and the next driver call frees it.

An interrupt can arrive after any call. Therefore dropped memory stays recorded until it is completely freed, and the driver
writes a new address directly to where it is recorded.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from tvmdml.errors import DeviceError, message
from tvmdml.targets.cuda import header as c
from tvmdml.targets.cuda.context import Context
from tvmdml.targets.cuda.loader import CAPTURE
from tvmdml.targets.cuda.streams import Mark, Streams

_KEEP_ALL = 2**64 - 1  # as a pool's release threshold: its memory is not given back when the device is waited for


class MemoryUse(NamedTuple):
    """How a device's memory is used, in bytes."""

    in_use: int
    """Used by arrays of this process."""
    idle: int
    """Kept for future arrays."""
    free: int
    """Available to every process."""
    capacity: int


class Owner(Protocol):
    """The opened device that memory belongs to, as users of the memory see it."""

    def stream(self) -> int:
        """The current stream."""

    def order(self, memory: Any, stream: int) -> None:
        """Make a stream wait for the work on the stream that used memory last."""

    def follow(self, stream: int, before: int) -> None:
        """Make a stream wait for the work submitted on another."""


class Memory:
    """Bytes on a device, until the object is dropped.

    Attributes:
        device: the device.
        address: the device address of the first byte.
        nbytes: the size in bytes.
        stream: the stream that used it last; -1 if that may be destroyed. ``Device.order`` changes it.
        loan: the pool's record of it.
    """

    __slots__ = ("__weakref__", "address", "device", "loan", "nbytes", "stream")
    loan: Loan

    def __init__(self, device: Owner, address: int, nbytes: int, stream: int) -> None:
        self.device, self.address, self.nbytes, self.stream = device, address, nbytes, stream


class Loan(weakref.ref[Memory]):
    """The record of a memory object that outlives it. ``address`` is 0 before the allocation and after the release."""

    __slots__ = ("address", "after", "nbytes", "stream")
    address: ctypes.c_uint64
    nbytes: int
    stream: int
    after: Mark | None


class Pool:
    """A device's memory.

    Args:
        context: the device's context.
        streams: orders work between its streams.
        device: the device's number.
        pooled: whether the driver supports memory pools. If not, memory is freed when the device has finished all work.
    """

    def __init__(self, context: Context, streams: Streams, device: int, pooled: bool) -> None:
        self._context, self._cuda, self._streams = context, context.cuda, streams
        self._loans: set[Loan] = set()
        self._dropped: deque[Loan] = deque()
        self._handle = self._make(device) if pooled else 0

    def take(self, device: Owner, nbytes: int, stream: int) -> Memory:
        """Allocate bytes, for use on a stream from now on. The context must be current.

        Raises:
            DeviceError: there is not enough memory, or the stream is being captured.
        """
        if self._dropped:
            self.collect()
        self._streams.refuse_capture(stream, "allocating memory")
        memory, address = Memory(device, 0, nbytes, stream), ctypes.c_uint64()
        memory.loan = loan = Loan(memory, self._dropped.append)
        loan.address, loan.nbytes, loan.stream, loan.after = address, 0, stream, None
        self._loans.add(loan)
        code = self._ask(address, nbytes, stream)
        if code:
            possible = nbytes <= self.use().capacity
            if code == c.CUDA_ERROR_OUT_OF_MEMORY and possible:
                gc.collect()  # arrays may be in reference cycles
                self.trim()
                code = self._ask(address, nbytes, stream)
            if code == c.CUDA_ERROR_OUT_OF_MEMORY or not possible:
                raise self._exhausted(nbytes)
            self._context.check(code, "allocating memory")
        memory.address, loan.nbytes = address.value, nbytes
        self._streams.note(loan)
        return memory

    def collect(self) -> None:
        """Free what was dropped; memory that a capture blocks is left for later. The context must be current."""
        for loan in self._dropped.copy():
            if self._give_back(loan):
                self._streams.forget(loan)
                self._loans.discard(loan)
                with suppress(ValueError):  # another thread may collect at the same time
                    self._dropped.remove(loan)

    def trim(self) -> None:
        """Return memory that no array uses to the driver, after all pending work. The context must be current."""
        self.collect()
        code = self._cuda.cuCtxSynchronize()
        if code not in CAPTURE:
            self._context.check(code, "waiting for the device")
        if self._handle:
            self._context.check(self._cuda.cuMemPoolTrimTo(self._handle, 0), "cuMemPoolTrimTo")

    def use(self) -> MemoryUse:
        """How the device's memory is used. The context must be current."""
        free, capacity = ctypes.c_size_t(), ctypes.c_size_t()
        self._context.check(self._cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(capacity)), "cuMemGetInfo")
        idle = 0
        if self._handle:
            idle = self._attribute(c.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) - self._attribute(c.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        return MemoryUse(sum(loan.nbytes for loan in self._loans.copy()), idle, free.value, capacity.value)

    def _make(self, device: int) -> int:
        """Make a pool of our own: the device's default pool is shared, and others may depend on its settings."""
        place = c.CUmemLocation(type=c.CU_MEM_LOCATION_TYPE_DEVICE, id=device)
        properties = c.CUmemPoolProps(
            allocType=c.CU_MEM_ALLOCATION_TYPE_PINNED, handleTypes=c.CU_MEM_HANDLE_TYPE_NONE, location=place
        )
        made, keep = ctypes.c_void_p(), ctypes.c_uint64(_KEEP_ALL)
        code = self._cuda.cuMemPoolCreate(ctypes.byref(made), ctypes.byref(properties))
        if code == c.CUDA_ERROR_NOT_SUPPORTED:
            return 0
        self._context.check(code, "cuMemPoolCreate")
        code = self._cuda.cuMemPoolSetAttribute(made, c.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, ctypes.byref(keep))
        self._context.check(code, "cuMemPoolSetAttribute")
        return made.value or 0

    def _ask(self, address: ctypes.c_uint64, nbytes: int, stream: int) -> int:
        size = max(nbytes, 1)
        code: int
        if self._handle:
            code = self._cuda.cuMemAllocFromPoolAsync(ctypes.byref(address), size, self._handle, stream)
        else:
            code = self._cuda.cuMemAlloc_v2(ctypes.byref(address), size)
        return code

    def _give_back(self, loan: Loan) -> bool:
        """Free memory after its last use. Returns whether that could be tried."""
        if not loan.address or self._context.fault:
            return True  # it was freed, or is released with the process
        streams = self._streams
        try:
            stream = streams.last(loan)
            # A capture would record the free as a part of itself.
            if streams.capturing(stream) or (not self._handle and streams.capturing(0)):
                return False
            if not self._handle:
                streams.wait_done(loan)
            # No interrupt and no other thread can come between this and the driver's call, so nothing is freed twice.
            address, loan.address.value = loan.address.value, 0
            if not address:
                return True
            code = self._cuda.cuMemFreeAsync(address, stream) if self._handle else self._cuda.cuMemFree_v2(address)
            if code in CAPTURE:
                loan.address.value = address
                self._loans.add(loan)  # another thread may have considered it freed
                if loan not in self._dropped:
                    self._dropped.append(loan)
                return False
            self._context.check(code, "cuMemFree")
        except DeviceError:  # dropping an array must not fail: the next call reports the device's error
            pass
        return True

    def _attribute(self, attribute: int) -> int:
        value = ctypes.c_uint64()
        code = self._cuda.cuMemPoolGetAttribute(self._handle, attribute, ctypes.byref(value))
        self._context.check(code, "cuMemPoolGetAttribute")
        return value.value

    def _exhausted(self, nbytes: int) -> DeviceError:
        use = self.use()
        given = f"{nbytes} bytes, with {use.in_use} in use"
        allowed = f"up to the {use.free + use.idle} that are free of {use.capacity}"
        advice = "Drop arrays, or work in smaller parts; torch.cuda.empty_cache() releases PyTorch's cached memory."
        return DeviceError(f"{self._context.name}: {message('memory', given, allowed, advice)}")

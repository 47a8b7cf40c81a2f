"""Device memory. It comes from a pool of the driver's, and goes back there in order with the work that used it.

Memory is dropped in any thread at any time: while the driver is at work, while a stream is being captured, as the interpreter ends.
So that is only noted then, by a function that is no Python, and it is given back when the driver is next asked for something.

An interrupt may come after any call. So what was dropped stays noted until all is done with it, and the driver writes an address
where it is found again.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tvmdml.errors import DeviceError, message
from tvmdml.targets.cuda import header as c
from tvmdml.targets.cuda.context import Context
from tvmdml.targets.cuda.loader import CAPTURE

if TYPE_CHECKING:
    from tvmdml.targets.cuda.device import Device
    from tvmdml.targets.cuda.streams import Mark, Streams

_KEEP_ALL = 2**64 - 1


class MemoryUse(NamedTuple):
    """What a device's memory is used for, in bytes."""

    in_use: int
    """By arrays of this process's."""
    idle: int
    """Kept for arrays to come."""
    free: int
    """What anybody may still have."""
    capacity: int


class Memory:
    """Bytes on a device, until this is dropped.

    Attributes:
        device: whose they are.
        address: where they begin there.
        nbytes: how many.
        stream: which stream they were last used on; -1 if that may be gone. ``Device.order`` changes it.
        loan: what the pool knows them by.
    """

    __slots__ = ("__weakref__", "address", "device", "loan", "nbytes", "stream")
    loan: Loan

    def __init__(self, device: Device, address: int, nbytes: int, stream: int) -> None:
        self.device, self.address, self.nbytes, self.stream = device, address, nbytes, stream


class Loan(weakref.ref[Memory]):
    """What is left of memory when that is dropped; ``address`` is 0 before it was taken, and once it was given back."""

    __slots__ = ("address", "after", "nbytes", "stream")
    address: ctypes.c_uint64
    nbytes: int
    stream: int
    after: Mark | None


class Pool:
    """A device's memory.

    Args:
        context: the device's.
        streams: the order of work on it.
        device: its number.
        pooled: whether its driver has pools. Where it has none, memory is given back when the device is done with all work.
    """

    def __init__(self, context: Context, streams: Streams, device: int, pooled: bool) -> None:
        self._context, self._cuda, self._streams = context, context.cuda, streams
        self._loans: set[Loan] = set()
        self._dropped: deque[Loan] = deque()
        self._handle = self._make(device) if pooled else 0

    def take(self, device: Device, nbytes: int, stream: int) -> Memory:
        """Memory for so many bytes, for work on a stream from now on. The context is current.

        Raises:
            DeviceError: there is not so much, or the stream is being captured.
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
                gc.collect()  # arrays may be part of cycles
                self.trim()
                code = self._ask(address, nbytes, stream)
            if code == c.CUDA_ERROR_OUT_OF_MEMORY or not possible:
                raise self._exhausted(nbytes)
            self._context.check(code, "allocating memory")
        memory.address, loan.nbytes = address.value, nbytes
        self._streams.note(loan)
        return memory

    def collect(self) -> None:
        """Give back what was dropped; what a capture holds up is left for later. The context is current."""
        for loan in self._dropped.copy():
            if self._give_back(loan):
                self._streams.forget(loan)
                self._loans.discard(loan)
                with suppress(ValueError):  # another thread is at it as well
                    self._dropped.remove(loan)

    def trim(self) -> None:
        """Give the driver what no array uses, after all pending work. The context is current."""
        self.collect()
        code = self._cuda.cuCtxSynchronize()
        if code not in CAPTURE:
            self._context.check(code, "waiting for the device")
        if self._handle:
            self._context.check(self._cuda.cuMemPoolTrimTo(self._handle, 0), "cuMemPoolTrimTo")

    def use(self) -> MemoryUse:
        """What the device's memory is used for. The context is current."""
        free, capacity = ctypes.c_size_t(), ctypes.c_size_t()
        self._context.check(self._cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(capacity)), "cuMemGetInfo")
        idle = 0
        if self._handle:
            idle = self._attribute(c.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) - self._attribute(c.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        return MemoryUse(sum(loan.nbytes for loan in self._loans.copy()), idle, free.value, capacity.value)

    def _make(self, device: int) -> int:
        """A pool of our own: the device's default pool is everybody's, and others may rely on how it is set."""
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
        """Give memory back after its last use; says whether that could be tried."""
        if not loan.address or self._context.fault:
            return True  # it was given back, or ends with the process
        streams = self._streams
        try:
            stream = streams.last(loan)
            # A capture would take the free for a part of itself.
            if streams.capturing(stream) or (not self._handle and streams.capturing(0)):
                return False
            if not self._handle:
                streams.wait_done(loan)
            # No interrupt and no other thread comes between this and the driver's call: nothing is freed twice.
            address, loan.address.value = loan.address.value, 0
            if not address:
                return True
            code = self._cuda.cuMemFreeAsync(address, stream) if self._handle else self._cuda.cuMemFree_v2(address)
            if code in CAPTURE:
                loan.address.value = address
                self._loans.add(loan)  # another thread may have taken it for done
                if loan not in self._dropped:
                    self._dropped.append(loan)
                return False
            self._context.check(code, "cuMemFree")
        except DeviceError:  # whoever drops an array did nothing that failed: the next call that does will say so
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
        allowed = f"the {use.free + use.idle} that are free of {use.capacity}"
        advice = "Drop arrays, or work in smaller parts; torch.cuda.empty_cache() gives back what PyTorch keeps."
        return DeviceError(f"{self._context.name}: {message('memory', given, allowed, advice)}")

"""``Device``: an opened device, its memory, and launches of kernels on it."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tvmdml.errors import DeviceError, bounded, message
from tvmdml.targets._device import bytes_of
from tvmdml.targets.cuda import header as c
from tvmdml.targets.cuda import streams, survey, timer
from tvmdml.targets.cuda.context import Context
from tvmdml.targets.cuda.graphs import Graphs
from tvmdml.targets.cuda.launching import DeviceLauncher, LaunchArguments, Prepared
from tvmdml.targets.cuda.memory import Memory, MemoryUse, Pool
from tvmdml.targets.cuda.modules import Module
from tvmdml.targets.cuda.survey import DeviceInfo

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


class Device:
    """An opened device. Any thread may use it.

    Work on one stream runs in the order in which it was submitted, and ``order`` makes streams wait for each other. Other
    libraries' memory is accepted too: any object that has ``address``, ``nbytes``, ``device`` and a method ``stream()``.

    Attributes:
        info: the device's description.
        cuda: the driver's functions.
        context: its primary context; the caller's current context is always restored.
        streams: orders work between streams.
        graphs: makes graphs of prepared launches.
        launch: run a kernel; see ``DeviceLauncher.run``.
    """

    def __init__(self, cuda: Any, info: DeviceInfo) -> None:
        self.info, self.cuda = info, cuda
        self._number = survey.ordinal(cuda, info.index)
        self.context = context = Context(cuda, self._number, info.name)
        self.streams = streams.Streams(context)
        self.graphs = Graphs(context, self.streams)
        self.spare_events: list[int] = []
        self._launcher = DeviceLauncher(context)
        self.launch = self._launcher.run
        # Such a device reads the host's memory directly, so the driver may return before it has taken a copy.
        self._reads_host = bool(self.attribute(c.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS))
        self._modules: dict[bytes, Module] = {}
        self._modules_lock = threading.RLock()
        with context.entered():
            pooled = bool(self.attribute(c.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED))
            self._pool = Pool(context, self.streams, self._number, pooled)

    def __repr__(self) -> str:
        """Return its number and name."""
        return bounded(f"<CUDA device {self.info.index}: {self.info.name}>")

    def attribute(self, number: int) -> int:
        """One of its attributes: a ``CU_DEVICE_ATTRIBUTE_…`` of cuda.h."""
        self.context.usable()
        return survey.attribute(self.cuda, self._number, number)

    # Memory

    def allocate(self, nbytes: int, stream: int | None = None) -> Memory:
        """Allocate memory; its content is undefined. It is freed when no reference to the object is left.

        Args:
            nbytes: the size in bytes.
            stream: the stream that uses it first; the current stream, if not given.

        Raises:
            DeviceError: there is not enough memory, or the stream is being captured.
        """
        if nbytes < 0:
            raise self._refusal("bytes to allocate", nbytes, "0 or more")
        with self.context.entered():
            return self._pool.take(self, nbytes, self.stream() if stream is None else stream)

    def upload(self, memory: Any, offset: int, data: Any) -> None:
        """Copy a C-contiguous buffer's bytes into memory, on the current stream. The buffer may be changed after the return.

        Raises:
            DeviceError: the bytes do not fit, the stream is being captured, or earlier work failed.
        """
        source = bytes_of(data)
        self._check_range(memory, offset, source.size)
        if not source.size:
            return
        stream, address = self.stream(), _address(source)
        with self.context.entered():
            self.streams.refuse_capture(stream, "uploading")
            self.order(memory, stream)
            # The driver copies pageable memory before it returns. It reads pinned memory later, when the copy runs, and until then
            # nobody may change or free that memory, even if an interrupt arrives here.
            waits = self._reads_host or self._is_pinned(address)
            try:
                code = self.cuda.cuMemcpyHtoDAsync_v2(memory.address + offset, address, source.size, stream)
                self.context.check(code, "uploading")
            finally:
                if waits:
                    self._synchronize(stream)
            self._used(memory, stream)

    def download(self, memory: Any, offset: int, into: Any) -> None:
        """Copy bytes from memory into a writable C-contiguous buffer, after the work that uses the memory.

        Raises:
            DeviceError: the memory has fewer bytes, the stream is being captured, or earlier work failed.
        """
        target = bytes_of(into)
        if not target.flags.writeable:
            raise self._refusal("buffer to download into", "a read-only one", "one that can be written")
        self._check_range(memory, offset, target.size)
        if not target.size:
            return
        stream = self.stream()
        with self.context.entered():
            self.streams.refuse_capture(stream, "downloading")
            self.order(memory, stream)
            # For pageable memory the driver returns when the data has arrived. For pinned memory, or if the device writes to the
            # host's memory directly, we must wait. An interrupt in between must not leave the copy running.
            try:
                code = self.cuda.cuMemcpyDtoHAsync_v2(_address(target), memory.address + offset, target.size, stream)
                self.context.check(code, "downloading")
            finally:
                self._synchronize(stream)
            self._used(memory, stream)

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int) -> None:
        """Copy on the device, on the current stream. The two ranges may overlap. A capture may contain the copy, unless they do.

        Raises:
            DeviceError: a range is outside its memory, or the device is unusable.
        """
        self._check_range(source, source_offset, nbytes)
        self._check_range(target, target_offset, nbytes)
        begin, end = source.address + source_offset, target.address + target_offset
        if not nbytes or begin == end:
            return
        stream = self.stream()
        with self.context.entered():
            self.order(source, stream)
            self.order(target, stream)
            if abs(begin - end) < nbytes:
                between = self._pool.take(self, nbytes, stream)
                self._copy(between.address, begin, nbytes, stream)
                begin = between.address
            self._copy(end, begin, nbytes, stream)
            self._used(source, stream)
            self._used(target, stream)

    def memory_use(self) -> MemoryUse:
        """How its memory is used."""
        with self.context.entered():
            self._pool.collect()
            return self._pool.use()

    def trim(self) -> None:
        """Return memory that no array uses to the driver, after all pending work."""
        with self.context.entered():
            self._pool.trim()

    # Kernels

    def module(self, image: bytes) -> Module:
        """Load a cubin or PTX; equal bytes give the same module.

        Raises:
            DeviceError: the driver rejects it.
        """
        key = hashlib.sha256(image).digest()
        found = self._modules.get(key)
        if found is None:
            self.context.usable()
            with self._modules_lock:  # two threads must not have the same PTX compiled twice
                found = self._modules.get(key)
                if found is None:
                    found = self._modules[key] = Module(self.context, image, self.info.arch)
        return found

    def prepare(self, launches: Sequence[LaunchArguments], waits: Sequence[bool] = (), keep: bool = True) -> Prepared:
        """Prepare launches that run together repeatedly: ``(function, groups, threads, parameters)``, as for ``launch``.

        ``waits`` and ``keep`` have no effect: launches on one stream wait for each other, and whoever runs them keeps their memory
        alive.
        """
        self.context.usable()
        return Prepared(self._launcher, launches)

    # Order

    def stream(self) -> int:
        """The current stream: from ``using_stream`` in this thread or task, otherwise 0, the legacy default stream."""
        return streams.current.get()

    def order(self, memory: Any, stream: int) -> None:
        """Make a stream wait for the work on the stream that used memory last. It is then the memory's last stream.

        A stream that is being captured never becomes the last one: whoever replays the graph is responsible for the order.

        Raises:
            DeviceError: the memory's last stream is being captured, and this one is not.
        """
        if memory.stream != stream:
            self.streams.move(memory, stream)

    def follow(self, stream: int, before: int) -> None:
        """Make a stream wait for the work submitted on another."""
        self.streams.follow(stream, before)

    def capturing(self, stream: int) -> bool:
        """Whether a stream is being captured. Also true for the legacy stream while another stream's capture forbids its use."""
        with self.context.entered():
            return self.streams.capturing(stream)

    def wait(self) -> None:
        """Wait until all work that this process submitted to the device is done.

        Raises:
            DeviceError: work failed, or the current stream is being captured.
        """
        with self.context.entered():
            self.streams.refuse_capture(self.stream(), "waiting for the device")
            self.context.check(self.cuda.cuCtxSynchronize(), "waiting for the device")
            self._pool.collect()

    def timed(self, run: Callable[[], object], stream: int) -> float:
        """The device time in seconds of the work that ``run`` submits to a stream. Waits for that work."""
        return timer.timed(self, run, stream)

    # For the other modules of this package

    def leave(self, stream: int) -> None:
        """Stop using a stream, which may be destroyed from now on: its ``using_stream`` has ended."""
        if self.streams.visited(stream) and not self.context.fault:
            with self.context.entered():
                self._pool.collect()
                self.streams.left(stream)

    def _used(self, memory: Any, stream: int) -> None:
        """Make other libraries' streams wait for our use of their memory."""
        if callable(memory.stream):
            self.streams.follow(memory.stream(), stream)

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.context.check(self.cuda.cuMemcpyDtoDAsync_v2(target, source, nbytes, stream), "copying on the device")

    def _synchronize(self, stream: int) -> None:
        self.context.check(self.cuda.cuStreamSynchronize(stream), "waiting for a stream")

    def _is_pinned(self, address: int) -> bool:
        """Whether an address in the host's memory is pinned, that is, known to the driver."""
        kind = ctypes.c_uint()
        code = self.cuda.cuPointerGetAttribute(ctypes.byref(kind), c.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
        return code == c.CUDA_SUCCESS

    def _check_range(self, memory: Any, offset: int, nbytes: int) -> None:
        self.context.usable()
        if memory.device is not self:
            raise self._refusal("memory", "another device's", "this device's own")
        if offset < 0 or nbytes < 0 or offset + nbytes > memory.nbytes:
            raise self._refusal("part of memory", f"{nbytes} bytes from {offset}", f"a range within its {memory.nbytes} bytes")

    def _refusal(self, where: str, given: object, allowed: str) -> DeviceError:
        return DeviceError(f"{self.info.name}: {message(where, given, allowed)}")


def _address(data: Bytes) -> int:
    return data.__array_interface__["data"][0]

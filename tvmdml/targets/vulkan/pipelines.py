"""Compute pipelines: shaders compiled by the driver, identified by their content."""

from __future__ import annotations

import ctypes
from collections import deque
from weakref import WeakValueDictionary

from tvmdml.errors import DeviceError
from tvmdml.targets.vulkan import pipeline_cache
from tvmdml.targets.vulkan import structures as c
from tvmdml.targets.vulkan.commands import Queue
from tvmdml.targets.vulkan.connection import Connection, Owner
from tvmdml.targets.vulkan.descriptors import Layouts
from tvmdml.targets.vulkan.loader import text
from tvmdml.targets.vulkan.physical import Identity

_ENTRY_POINT = "main"
_MAGIC = b"\x03\x02\x23\x07"
_KEPT = 256
"""The number of unused pipelines that are kept alive."""
_SAVE_EVERY = 16
"""The cache is stored after this many new pipelines, in case the process does not end normally."""


class Pipeline:
    """A shader that is ready to run; it is destroyed some time after the object is dropped.

    Attributes:
        device: its device.
        buffers: the number of storage buffers, bound as 0, 1, ….
        push_bytes: the bytes of push constants.
        handle: the pipeline; ``based``: its variant for groups that do not start at zero, 0 until it is needed.
        last_use: the last batch that uses it.
    """

    __slots__ = ("__weakref__", "_dropped", "based", "buffers", "code", "device", "handle", "last_use", "layout", "push_bytes")

    def __init__(
        self,
        device: Owner,
        handle: int,
        layout: int,
        code: bytes,
        buffers: int,
        push_bytes: int,
        dropped: deque[tuple[int, int, int]],
    ) -> None:
        self.device = device
        self.handle, self.layout, self.code, self.buffers, self.push_bytes = handle, layout, code, buffers, push_bytes
        self.based = self.last_use = 0
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.append((self.handle, self.based, self.last_use))  # on any thread, at any time: so it is only recorded


class Pipelines:
    """A device's pipelines."""

    def __init__(self, connection: Connection, queue: Queue, layouts: Layouts, identity: Identity) -> None:
        self._connection, self._queue, self._layouts, self._identity = connection, queue, layouts, identity
        self._known: WeakValueDictionary[tuple[bytes, int, int], Pipeline] = WeakValueDictionary()
        self._kept: deque[Pipeline] = deque(maxlen=_KEPT)
        self._dropped: deque[tuple[int, int, int]] = deque()
        self._file = pipeline_cache.path(identity)
        kept = pipeline_cache.read(self._file, identity)
        data = ctypes.create_string_buffer(kept, len(kept)) if kept else None
        self._cache = connection.create("PipelineCache", c.VkPipelineCacheCreateInfo(initialDataSize=len(kept), pInitialData=data))
        self._saved_bytes = len(kept)
        self._unsaved = 0

    def find(self, device: Owner, code: bytes, buffers: int, push_bytes: int) -> Pipeline:
        """The pipeline of a shader, created if necessary; ``device`` is the owner of these pipelines.

        Raises:
            DeviceError: it is not SPIR-V, or the driver rejects it.
        """
        key = code, buffers, push_bytes
        if (found := self._known.get(key)) is not None:
            return found
        with self._queue.lock:
            self._connection.usable()
            layout = self._layouts.of_pipeline(buffers, push_bytes)
        handle = self._create(layout, code)
        created = Pipeline(device, handle, layout, code, buffers, push_bytes, self._dropped)
        with self._queue.lock:
            found = self._known.setdefault(key, created)  # another thread may have been faster
            self._kept.append(found)
        return found

    def need_based(self, pipeline: Pipeline) -> None:
        """Create a pipeline's variant for groups that do not start at zero, if it has none yet."""
        if pipeline.based:
            return
        based = self._create(pipeline.layout, pipeline.code, based=True)
        with self._queue.lock:
            pipeline.based, spare = pipeline.based or based, based if pipeline.based else 0
            if spare:
                self._connection.destroy("Pipeline", spare)

    def sweep(self) -> None:
        """Destroy dropped pipelines that are no longer used; the queue's lock is held."""
        for _ in range(len(self._dropped)):
            dropped = handle, based, last_use = self._dropped.popleft()
            if not self._queue.done(last_use):
                self._dropped.append(dropped)
                continue
            for pipeline in filter(None, (handle, based)):
                self._connection.destroy("Pipeline", pipeline)

    def save(self) -> None:
        """Store what the driver compiled on disk, if there is more than before."""
        if not self._unsaved or self._connection.fault:
            return
        self._unsaved = 0
        get, size = self._connection.vk.vkGetPipelineCacheData, ctypes.c_size_t()
        if get(self._connection.handle, self._cache, ctypes.byref(size), None) < 0:
            return
        data = ctypes.create_string_buffer(size.value)
        if get(self._connection.handle, self._cache, ctypes.byref(size), data) == 0:
            # Mesa's driver for the CPU (26.2) writes a whole header and says that it is a part.
            written = data.raw[: max(size.value, pipeline_cache.HEADER.size)]
            if len(written) != self._saved_bytes:
                self._saved_bytes = len(written)
                pipeline_cache.write(self._file, written)

    def _create(self, layout: int, code: bytes, based: bool = False) -> int:
        """Have the driver compile. This takes from 1 ms to 1 s; other threads run meanwhile."""
        if len(code) % 4 or code[:4] != _MAGIC:
            raise DeviceError("a shader must be SPIR-V in little-endian words")
        connection = self._connection
        made = ctypes.c_uint64()
        with self._queue.users.join():
            connection.usable()
            words = ctypes.create_string_buffer(code, len(code))
            module = connection.create("ShaderModule", c.VkShaderModuleCreateInfo(codeSize=len(code), pCode=words))
            stage = c.VkPipelineShaderStageCreateInfo(
                stage=c.VK_SHADER_STAGE_COMPUTE_BIT, module=module, pName=(name := text(_ENTRY_POINT))
            )
            flags = c.VK_PIPELINE_CREATE_DISPATCH_BASE_BIT if based else 0
            info = c.VkComputePipelineCreateInfo(flags=flags, stage=stage, layout=layout, basePipelineIndex=-1)
            try:
                connection.call("vkCreateComputePipelines", self._cache, 1, ctypes.byref(info), None, ctypes.byref(made))
                connection.adopt("Pipeline", made.value)
            finally:
                connection.destroy("ShaderModule", module)
                del name  # a nested structure is a copy, which does not keep the name alive
            self._unsaved += 1
            if self._unsaved >= _SAVE_EVERY:
                self.save()
        return made.value

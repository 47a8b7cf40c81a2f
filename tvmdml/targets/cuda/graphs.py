"""``CapturedGraph``: prepared launches as one graph of the driver's, which starts them all at once."""

from __future__ import annotations

import ctypes
from collections import deque
from contextlib import suppress

from tvmdml.errors import DeviceError
from tvmdml.targets.cuda import header as c
from tvmdml.targets.cuda.context import Context
from tvmdml.targets.cuda.launching import Prepared
from tvmdml.targets.cuda.streams import Streams

_FEWEST = 4
"""The fewest launches that make a graph: fewer are as quick one by one."""


class Graphs:
    """Makes a device's graphs.

    Attributes:
        dropped: graphs that nobody holds. Dropping one only records it here, because that can happen on any thread at any time.
    """

    def __init__(self, context: Context, streams: Streams) -> None:
        self.context, self.streams = context, streams
        self.dropped: deque[int] = deque()

    def of(self, prepared: Prepared) -> CapturedGraph | Prepared:
        """A graph of these launches; the launches themselves if they are few, or if the driver makes no graph of them.

        Raises:
            DeviceError: the device is unusable.
        """
        with self.context.entered():
            self._sweep()
        if len(prepared) < _FEWEST:
            return prepared
        try:
            return CapturedGraph(self, prepared)
        except DeviceError:
            self.context.usable()
            return prepared

    def _sweep(self) -> None:
        """Destroy dropped graphs. The driver keeps those that still run until they are done. The context must be current."""
        with suppress(IndexError):
            while True:
                self.context.cuda.cuGraphExecDestroy(self.dropped.popleft())


class CapturedGraph:
    """Launches that were captured once.

    Raises:
        DeviceError: the driver cannot capture them.
    """

    def __init__(self, owner: Graphs, prepared: Prepared) -> None:
        self._prepared, self._context, self._dropped = prepared, owner.context, owner.dropped
        self._streams, self._launch = owner.streams, owner.context.cuda.cuGraphLaunch
        self._made = ctypes.c_void_p()  # the driver writes to it, so that no interrupt can come in between
        graph = ctypes.c_void_p()
        with self._context.entered():
            try:
                self._capture(graph)
                code = self._context.cuda.cuGraphInstantiateWithFlags(ctypes.byref(self._made), graph, 0)
                self._context.check(code, "instantiating a graph")
            finally:
                if graph.value:
                    self._context.cuda.cuGraphDestroy(graph)

    def _capture(self, graph: ctypes.c_void_p) -> None:
        """Capture the launches on a stream that exists only for this. The context must be current."""
        cuda, check, stream = self._context.cuda, self._context.check, ctypes.c_void_p()
        try:
            check(cuda.cuStreamCreate(ctypes.byref(stream), c.CU_STREAM_NON_BLOCKING), "cuStreamCreate")
            check(cuda.cuStreamBeginCapture_v2(stream, c.CU_STREAM_CAPTURE_MODE_RELAXED), "capturing a sequence")
            try:
                self._prepared.run(stream.value or 0)
            finally:
                code = cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
            check(code, "capturing a sequence")
        finally:
            if stream.value:
                cuda.cuStreamDestroy_v2(stream)

    def run(self, stream: int) -> None:
        """Launch all of them in order on a stream. Returns before they have run. A capture gets the launches one by one.

        Raises:
            DeviceError: the driver rejects them, or the device is unusable.
        """
        with self._context.entered():
            captured = self._streams.capturing(stream)
            if not captured:
                self._context.check(self._launch(self._made, stream), "launching a graph")
        if captured:
            self._prepared.run(stream)

    def __del__(self) -> None:
        if self._made.value:
            self._dropped.append(self._made.value)

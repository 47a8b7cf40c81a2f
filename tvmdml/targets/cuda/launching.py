"""Launches: single ones, and ``Prepared``, for launches that run repeatedly."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

from tvmdml.errors import DeviceError, message
from tvmdml.targets.cuda import header as c
from tvmdml.targets.cuda.context import Context

Groups: TypeAlias = tuple[int, int, int]
LaunchArguments: TypeAlias = tuple[int, Groups, Groups, bytes]
"""A function, the number of groups, the threads of a group, and the parameters as bytes in memory."""

_MOST_PARAMETERS = 4096
_MOST_STREAMS = 64
"""The maximum number of streams that a ``Prepared`` keeps arguments for."""

_write_config = struct.Struct(c.LAUNCH_CONFIG).pack_into


def _extra(parameters: Any, size: ctypes.c_size_t) -> Any:
    """The list that tells the driver where a launch's parameters are."""
    pointer, nbytes = ctypes.addressof(parameters), ctypes.addressof(size)
    return (ctypes.c_void_p * 5)(
        c.CU_LAUNCH_PARAM_BUFFER_POINTER, pointer, c.CU_LAUNCH_PARAM_BUFFER_SIZE, nbytes, c.CU_LAUNCH_PARAM_END
    )


class _Slot:
    """The buffers for one launch, which are reused."""

    def __init__(self) -> None:
        self.config = c.CUlaunchConfig()
        self.config_reference = ctypes.byref(self.config)
        self.parameters = ctypes.create_string_buffer(_MOST_PARAMETERS)
        self.bytes = memoryview(self.parameters).cast("B")
        self.size = ctypes.c_size_t()
        self.extra = _extra(self.parameters, self.size)


class DeviceLauncher:
    """Launches kernels on a device."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.launch = context.cuda.cuLaunchKernelEx
        self._functions: dict[int, ctypes.c_void_p] = {}
        # Each launch takes a slot, so that concurrent launches, in other threads or in a signal handler, never share one.
        self._slots: list[_Slot] = []

    def run(self, function: int, groups: Groups, threads: Groups, parameters: bytes, stream: int) -> None:
        """Launch a kernel; see ``Device.launch``."""
        context = self.context
        if context.fault:
            context.usable()
        try:
            slot = self._slots.pop()
        except IndexError:
            slot = _Slot()
        nbytes = len(parameters)
        try:
            _write_config(slot.config, 0, *groups, *threads, 0, stream, 0, 0)
            slot.bytes[:nbytes] = parameters
        except (struct.error, ValueError):
            raise self._refusal(groups, threads, parameters) from None
        slot.size.value = nbytes
        try:
            handle = self._functions[function]
        except KeyError:
            handle = self._functions[function] = ctypes.c_void_p(function)
        extra = slot.extra if nbytes else None
        if context.enter():
            try:
                code = self.launch(slot.config_reference, handle, None, extra)
            finally:
                context.leave()
        else:
            code = self.launch(slot.config_reference, handle, None, extra)
        self._slots.append(slot)
        if code:
            raise self.failure(code, groups, threads)

    def failure(self, code: int, groups: Sequence[int], threads: Sequence[int]) -> DeviceError:
        """The exception for a launch that the driver rejected."""
        return self.context.failure(code, f"launching {tuple(groups)} groups of {tuple(threads)} threads")

    def _refusal(self, groups: Groups, threads: Groups, parameters: bytes) -> DeviceError:
        given = f"{groups} groups of {threads} threads with {len(parameters)} bytes of parameters"
        allowed = f"extents that fit in 32 bits, and up to {_MOST_PARAMETERS} bytes"
        return DeviceError(f"{self.context.name}: {message('launch', given, allowed)}")


class Prepared:
    """Launches whose arguments are made once, by ``Device.prepare``. The user must keep their memory alive.

    ``run`` never waits and allocates nothing on the device, so it can be captured.
    """

    def __init__(self, launcher: DeviceLauncher, launches: Sequence[LaunchArguments]) -> None:
        self._launcher, self._context, self._launch = launcher, launcher.context, launcher.launch
        self._launches: list[tuple[LaunchArguments, Any, Any]] = []
        self._held: list[Any] = []
        for launch in launches:
            function, groups, _, parameters = launch
            if not all(groups):
                continue
            held, size = ctypes.create_string_buffer(parameters, max(len(parameters), 1)), ctypes.c_size_t(len(parameters))
            self._held += [held, size]
            self._launches.append((launch, ctypes.c_void_p(function), _extra(held, size) if parameters else None))
        self._arguments: dict[int, tuple[tuple[Any, ...], ...]] = {}

    def __len__(self) -> int:
        """The number of launches."""
        return len(self._launches)

    def run(self, stream: int) -> None:
        """Launch all of them in order on a stream. Returns before they have run.

        Raises:
            DeviceError: the driver rejects a launch, or the device is unusable.
        """
        try:
            arguments = self._arguments[stream]
        except KeyError:
            arguments = self._make(stream)
        context, launch, code = self._context, self._launch, 0
        if context.fault:
            context.usable()
        if context.enter():
            try:
                for four in arguments:
                    code = launch(*four)
                    if code:
                        break
            finally:
                context.leave()
        else:
            for four in arguments:
                code = launch(*four)
                if code:
                    break
        if code:
            _, groups, threads, _ = self._launches[arguments.index(four)][0]
            raise self._launcher.failure(code, groups, threads)

    def _make(self, stream: int) -> tuple[tuple[Any, ...], ...]:
        """The arguments of the driver's function for each launch on a stream."""
        found = []
        for (_, groups, threads, _), function, extra in self._launches:
            config = c.CUlaunchConfig(*groups, *threads, 0, stream)
            found.append((ctypes.byref(config), function, None, extra))
        if len(self._arguments) >= _MOST_STREAMS:
            self._arguments.clear()
        self._arguments[stream] = arguments = tuple(found)
        return arguments

"""Kernels, streams and captures for the tests of the CUDA driver layer; programs take all names from here."""

from __future__ import annotations

import ctypes
import functools
import gc  # noqa: F401 # programs below use it
import os
import shutil
import struct
import subprocess
import tempfile
import threading  # noqa: F401
import time  # noqa: F401
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import programs
from device_work import counted, fetched, placed  # noqa: F401

from tvmdml.errors import DeviceError  # noqa: F401
from tvmdml.targets.cuda import driver, loader
from tvmdml.targets.cuda.driver import Device, Memory, using_stream  # noqa: F401

THREADS = 64

# The same two kernels twice: for the emulator's compiler, and for any GPU's driver, without a toolkit.
SOURCE = """
extern "C" __global__ void scale(const unsigned *x, unsigned *y, unsigned n, unsigned a, unsigned b) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * a + b;
}
extern "C" __global__ void churn(unsigned *x, unsigned n, unsigned rounds) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned v = x[i];
  for (; rounds; rounds--) v = v * 1664525u + 1013904223u;
  x[i] = v;
}
"""
PTX = """
.version 8.0
.target sm_75
.address_size 64
.visible .entry scale(.param .u64 px, .param .u64 py, .param .u32 pn, .param .u32 pa, .param .u32 pb) {
  .reg .pred %p;
  .reg .u32 %i, %n, %v, %a, %b, %t;
  .reg .u64 %x, %y;
  mov.u32 %i, %ctaid.x;
  mov.u32 %n, %ntid.x;
  mov.u32 %t, %tid.x;
  mad.lo.u32 %i, %i, %n, %t;
  ld.param.u32 %n, [pn];
  setp.ge.u32 %p, %i, %n;
  @%p ret;
  ld.param.u64 %x, [px];
  ld.param.u64 %y, [py];
  ld.param.u32 %a, [pa];
  ld.param.u32 %b, [pb];
  mad.wide.u32 %x, %i, 4, %x;
  mad.wide.u32 %y, %i, 4, %y;
  ld.global.u32 %v, [%x];
  mad.lo.u32 %v, %v, %a, %b;
  st.global.u32 [%y], %v;
  ret;
}
.visible .entry churn(.param .u64 px, .param .u32 pn, .param .u32 pr) {
  .reg .pred %p;
  .reg .u32 %i, %n, %v, %r, %t;
  .reg .u64 %x;
  mov.u32 %i, %ctaid.x;
  mov.u32 %n, %ntid.x;
  mov.u32 %t, %tid.x;
  mad.lo.u32 %i, %i, %n, %t;
  ld.param.u32 %n, [pn];
  setp.ge.u32 %p, %i, %n;
  @%p ret;
  ld.param.u64 %x, [px];
  ld.param.u32 %r, [pr];
  mad.wide.u32 %x, %i, 4, %x;
  ld.global.u32 %v, [%x];
round:
  setp.eq.u32 %p, %r, 0;
  @%p bra done;
  mad.lo.u32 %v, %v, 1664525, 1013904223;
  sub.u32 %r, %r, 1;
  bra round;
done:
  st.global.u32 [%x], %v;
  ret;
}
"""


def is_emulator(device: Device) -> bool:
    return "emulator" in device.info.name


@functools.cache
def emulated_image(source: str = SOURCE) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        text.write_text(source)
        nvcc = os.environ.get("TVMDML_NVCC") or shutil.which("nvcc") or "nvcc"
        subprocess.run([nvcc, "-cubin", "-arch=sm_90", "-o", made, text], check=True)
        return made.read_bytes()


def image(device: Device) -> bytes:
    return emulated_image() if is_emulator(device) else PTX.encode()


def function(device: Device, name: str = "scale") -> int:
    return device.module(image(device)).function(name)


def scale(device: Device, x: Memory, y: Memory, a: int = 1, b: int = 0, n: int | None = None) -> driver.LaunchArguments:
    n = min(x.nbytes, y.nbytes) // 4 if n is None else n
    parameters = struct.pack("<QQIII", x.address, y.address, n, a, b)
    return function(device), (-(-n // THREADS), 1, 1), (THREADS, 1, 1), parameters


def churn(device: Device, x: Memory, rounds: int) -> driver.LaunchArguments:
    """Work that takes a while: ``churned`` says what comes of it."""
    n = x.nbytes // 4
    return function(device, "churn"), (-(-n // THREADS), 1, 1), (THREADS, 1, 1), struct.pack("<QII", x.address, n, rounds)


def churned(values: np.ndarray, rounds: int) -> np.ndarray:
    values = values.copy()
    for _ in range(rounds):
        values = values * np.uint32(1664525) + np.uint32(1013904223)
    return values


def launch(device: Device, what: driver.LaunchArguments, *used: Memory) -> None:
    stream = device.stream()
    for memory in used:
        device.order(memory, stream)
    device.launch(*what, stream)


def run(device: Device, x: Memory, y: Memory, a: int = 1, b: int = 0) -> None:
    launch(device, scale(device, x, y, a, b), x, y)


def prepare(device: Device, x: Memory) -> driver.Prepared:
    """A launch that can be repeated."""
    return device.prepare([scale(device, x, x, 2)])


# The driver's functions as other users call them, to test their effects on this package.


@functools.cache
def raw() -> Any:
    return ctypes.CDLL(os.environ.get("TVMDML_CUDA_LIBRARY") or "libcuda.so.1")


def ok(code: int) -> None:
    assert code == 0, code


def current_context() -> int | None:
    found = ctypes.c_void_p()
    ok(raw().cuCtxGetCurrent(ctypes.byref(found)))
    return found.value


def capture_mode() -> int:
    """The thread's mode."""
    mode, ignored = ctypes.c_int(2), ctypes.c_int()
    ok(raw().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
    ignored.value = mode.value
    ok(raw().cuThreadExchangeStreamCaptureMode(ctypes.byref(ignored)))
    return mode.value


@contextmanager
def new_stream(device: Device, blocking: bool = False) -> Iterator[int]:
    made = ctypes.c_void_p()
    with device.context.entered():
        ok(raw().cuStreamCreate(ctypes.byref(made), 0 if blocking else 1))
    assert made.value
    yield made.value
    with device.context.entered():
        ok(raw().cuStreamDestroy_v2(made))


def synchronize(device: Device, stream: int) -> None:
    """Wait for a stream alone; the emulator leaves all other work for later, if it may."""
    with device.context.entered():
        ok(raw().cuStreamSynchronize(ctypes.c_void_p(stream)))


class Captured:
    """What was asked for on a stream within, to be replayed."""

    def __init__(self, device: Device, stream: int, mode: int = 0) -> None:
        self._device, self._stream, self._mode = device, ctypes.c_void_p(stream), mode
        self._graph, self._exec = ctypes.c_void_p(), ctypes.c_void_p()

    def __enter__(self) -> Captured:
        with self._inside():
            ok(raw().cuStreamBeginCapture_v2(self._stream, self._mode))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._inside():
            code = raw().cuStreamEndCapture(self._stream, ctypes.byref(self._graph))
            if kind is None:
                ok(code)
                ok(raw().cuGraphInstantiateWithFlags(ctypes.byref(self._exec), self._graph, ctypes.c_ulonglong(0)))

    def replay(self, stream: int) -> None:
        with self._inside():
            ok(raw().cuGraphLaunch(self._exec, ctypes.c_void_p(stream)))

    def close(self) -> None:
        with self._inside():
            ok(raw().cuGraphExecDestroy(self._exec))
            ok(raw().cuGraphDestroy(self._graph))

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """The device's context is current, and the thread's mode is its own."""
        pushed = self._device.context.enter()
        try:
            yield
        finally:
            if pushed:
                self._device.context.leave()


NAME = "CUDA"
ENDS = {
    "while a stream is in use": "using = using_stream(new_stream(device).__enter__())\nusing.__enter__()\nrun(device, x, x)\n",
    "while a stream is captured": """
stream = new_stream(device).__enter__()
Captured(device, stream).__enter__()
prepared.run(stream)
del x
""",
}
"""Ways for a process to end that only CUDA has."""


def more_attempts(device: Device, x: Memory) -> list[Callable[[], object]]:
    """What else may be asked for."""
    step, module, event = scale(device, x, x), device.module(image(device)), driver.Event(device)
    prepared = device.prepare([step])
    return [
        lambda: driver.open_device(1),
        lambda: device.launch(*step, 0),
        lambda: prepared.run(0),
        lambda: device.order(x, 5),
        lambda: device.follow(5, 6),
        lambda: device.capturing(0),
        lambda: device.module(b"abc"),
        lambda: module.function("new"),
        lambda: device.timed(print, 0),
        lambda: event.record(0),
        lambda: device.attribute(16),
        loader.cuda,
    ]


def restore(device: Device) -> None:
    """What an interrupt may have left."""
    if current_context() is not None:
        assert current_context() == device.context.handle
        ok(raw().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))
    ok(raw().cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(0))))


def program(code: str, may_complain: bool = False, **variables: str) -> str:
    """What a Python program of its own prints that has these names."""
    return programs.python("import os, sys\nfrom cuda_work import *\n" + code, may_complain=may_complain, **variables)

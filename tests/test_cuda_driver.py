"""The CUDA driver layer: memory, order, captures, threads, forks, and every failure; on a GPU, or on the emulator."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import itertools
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading  # noqa: F401 # programs below use it
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import at_once

from tvmdml.errors import DeviceError, InvalidArgument
from tvmdml.targets.cuda import context, driver, header, loader, modules, streams, survey
from tvmdml.targets.cuda.driver import Device, Memory, using_stream

TOP = Path(__file__).parents[1]
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


def scale(device: Device, x: Memory, y: Memory, a: int = 1, b: int = 0, n: int | None = None) -> driver.Launch:
    n = min(x.nbytes, y.nbytes) // 4 if n is None else n
    parameters = struct.pack("<QQIII", x.address, y.address, n, a, b)
    return function(device), (-(-n // THREADS), 1, 1), (THREADS, 1, 1), parameters


def churn(device: Device, x: Memory, rounds: int) -> driver.Launch:
    """Work that takes a while: ``churned`` says what comes of it."""
    n = x.nbytes // 4
    return function(device, "churn"), (-(-n // THREADS), 1, 1), (THREADS, 1, 1), struct.pack("<QII", x.address, n, rounds)


def churned(values: np.ndarray, rounds: int) -> np.ndarray:
    values = values.copy()
    for _ in range(rounds):
        values = values * np.uint32(1664525) + np.uint32(1013904223)
    return values


def launch(device: Device, what: driver.Launch, *used: Memory) -> None:
    stream = device.stream()
    for memory in used:
        device.order(memory, stream)
    device.launch(*what, stream)


def run(device: Device, x: Memory, y: Memory, a: int = 1, b: int = 0) -> None:
    launch(device, scale(device, x, y, a, b), x, y)


def placed(device: Device, values: np.ndarray) -> Memory:
    memory = device.allocate(values.nbytes)
    device.upload(memory, 0, values)
    return memory


def fetched(device: Device, memory: Memory) -> np.ndarray:
    values = np.empty(memory.nbytes // 4, np.uint32)
    device.download(memory, 0, values)
    return values


def counted(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.uint32)


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


@pytest.fixture(scope="session")
def present() -> None:
    """There is a device: a GPU, or the emulator."""
    try:
        driver.devices()
    except DeviceError as error:
        if os.environ.get("TVMDML_CUDA_LIBRARY") or os.environ.get("TVMDML_EXPECT_CUDA") == "1":
            raise
        pytest.skip(f"no CUDA device here: {error}")


@pytest.fixture(params=["at once", "late"])
def device(request: pytest.FixtureRequest, present: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device. The emulator's does its work when it is given, or when somebody waits for it: then what is not waited for shows."""
    found = driver.open_device(0)
    if request.param == "late":
        if not is_emulator(found):
            pytest.skip("a GPU's work is always late")
        monkeypatch.setenv("TVMDML_EMULATED_LAZY", "1")
    yield found
    assert current_context() is None
    assert capture_mode() == 0
    found.wait()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, present: None) -> Device:
    """A device of this test's own, to be broken."""
    monkeypatch.setattr(driver, "_open", {})
    return driver.open_device(0)


def program(code: str, **variables: str) -> str:
    """What a Python program of its own prints."""
    beginning = "import os, sys\nfrom test_cuda_driver import *\n"
    environment = {**os.environ, "PYTHONPATH": f"{TOP}{os.pathsep}{TOP / 'tests'}", **variables}
    done = subprocess.run(
        [sys.executable, "-c", beginning + code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


# Devices


def test_a_device_says_who_it_is(device: Device) -> None:
    info = driver.devices()[0]
    assert info is device.info
    assert info.index == 0
    assert info.name
    assert re.fullmatch(r"sm_\d{2,3}", info.arch)
    assert info.memory >= 1 << 28
    assert info.processors >= 1
    assert int(info.driver.split(".")[0]) >= 12
    assert not info.problem
    assert hash(info)
    assert repr(device) == f"<CUDA device 0: {info.name}>"
    assert driver.open_device(0) is device
    assert device.attribute(header.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) == info.processors


def test_a_device_that_is_not_there(present: None) -> None:
    for number in (99, -1):
        with pytest.raises(DeviceError, match=rf"CUDA device: given {number}; allowed: 0 to \d+"):
            driver.open_device(number)


def test_a_device_that_is_too_old_is_listed_and_refused(present: None, monkeypatch: pytest.MonkeyPatch) -> None:
    real = survey.attribute
    monkeypatch.setattr(driver, "_found", ())
    monkeypatch.setattr(driver, "_open", {})
    major, minor = header.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, header.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
    old = {major: 7, minor: 0}
    monkeypatch.setattr(survey, "attribute", lambda cuda, device, number: old.get(number, real(cuda, device, number)))
    assert driver.devices()[0].problem == "compute capability 7.0 is too old: 7.5 or newer is needed"
    assert driver.devices()[0].arch == "sm_70"
    with pytest.raises(DeviceError, match=r"cannot be used: compute capability 7.0 is too old"):
        driver.open_device(0)
    old[minor] = 5
    monkeypatch.setattr(driver, "_found", ())
    assert not driver.devices()[0].problem
    old[header.CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] = header.CU_COMPUTEMODE_PROHIBITED
    monkeypatch.setattr(driver, "_found", ())
    assert "compute mode is prohibited" in driver.devices()[0].problem


def test_a_driver_that_is_too_old(present: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_found", ())
    monkeypatch.setattr(loader.cuda(), "version", 11080)
    assert "the driver supports CUDA 11.8, not 12.0" in driver.devices()[0].problem


def test_nothing_is_loaded_before_it_is_needed(present: None) -> None:
    code = """
import tvmdml.targets.cuda.driver
print(loader._loaded, any("libcuda" in line for line in open("/proc/self/maps")))
driver.devices()
print(current_context(), driver._open)
device = driver.open_device(0)
print(current_context())
"""
    if not Path("/proc/self/maps").exists():
        pytest.skip("only Linux says what is loaded")
    assert program(code) == "None False\nNone {}\nNone\n"


def test_without_a_driver_it_says_what_to_install() -> None:
    code = """
for attempt in (driver.devices, lambda: driver.open_device(0), driver.devices):
    try:
        print(attempt())
    except DeviceError as error:
        print(error)
"""
    lines = program(code, TVMDML_CUDA_LIBRARY="/nonexistent/libcuda.so.1").splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("cuda: no NVIDIA driver was found (/nonexistent/libcuda.so.1: ")
        assert "Install the NVIDIA driver" in line
        assert line.endswith("TVMDML_CUDA_LIBRARY is set to '/nonexistent/libcuda.so.1'.")


def test_without_a_driver_of_the_usual_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_LIBRARY", "libcuda-that-is-not-here.so.1")
    monkeypatch.setattr(loader, "_loaded", None)
    monkeypatch.setattr(driver, "_found", ())
    monkeypatch.delenv("TVMDML_CUDA_LIBRARY", raising=False)
    with pytest.raises(
        DeviceError, match=r"^cuda: no NVIDIA driver was found \(libcuda-that-is-not-here.so.1: .*\)\. Install .*all\.$"
    ):
        driver.devices()


def library(folder: Path, source: str) -> str:
    """A driver's library of the test's own."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    made = folder / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", made], input=source, text=True, check=True)
    return str(made)


def every_function(*but: str) -> str:
    names = {*header.FUNCTIONS, *header.QUICK, *header.HOT} - {*but}
    return "".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(names))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], str]:
    """What is said of a driver's library, whose source is given; as in a process that has not looked for one."""
    numbers = itertools.count()

    def tell(source: str) -> str:
        monkeypatch.setattr(loader, "_started", False)
        monkeypatch.setattr(loader, "_loaded", None)
        monkeypatch.setattr(driver, "_found", ())
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        monkeypatch.setenv("TVMDML_CUDA_LIBRARY", library(folder, source))
        with pytest.raises(DeviceError) as caught:
            driver.devices()
        return str(caught.value)

    return tell


def test_a_library_that_is_no_driver_is_refused(
    told: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "is not an NVIDIA driver, or is damaged: it has no cuInit. Install the NVIDIA driver" in told("int nothing;")
    assert "it has no cuMemFreeAsync. Install the NVIDIA driver" in told(every_function("cuMemFreeAsync"))
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"this is no library")
    monkeypatch.setenv("TVMDML_CUDA_LIBRARY", str(broken))
    with pytest.raises(DeviceError, match=r"no NVIDIA driver was found \(.*broken\.so: .*\)"):
        driver.devices()


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (header.CUDA_ERROR_NO_DEVICE, r"`nvidia-smi -L` lists what the driver sees\. CUDA_VISIBLE_DEVICES is set to ''\."),
        (header.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "restart the computer"),
        (header.CUDA_ERROR_STUB_LIBRARY, "Install the NVIDIA driver"),
        (header.CUDA_ERROR_NOT_INITIALIZED, "spawn"),
        (7, "`nvidia-smi` shows whether"),
    ],
)
def test_a_driver_that_does_not_start_says_why(
    told: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    others = every_function("cuInit", "cuGetErrorName", "cuGetErrorString")
    texts = """
int cuGetErrorName(int code, const char **text) { *text = "NAME"; return 0; }
int cuGetErrorString(int code, const char **text) { *text = 0; return 1; }
"""
    said = told(others + texts + f"int cuInit(unsigned flags) {{ return {code}; }}\n")
    assert re.search(rf"cuda: the NVIDIA driver is installed but does not start: NAME\. .*{advice}", said), said


def test_an_old_driver_is_told_to_be_updated(told: Callable[[str], str]) -> None:
    version = "int cuDriverGetVersion(int *version) { *version = 11040; return 0; }\n"
    said = told(every_function("cuDriverGetVersion", "cuLaunchKernelEx") + version)
    assert "has no cuLaunchKernelEx: it supports CUDA 11.4, but 12.0 is needed. Update the NVIDIA driver." in said


# Memory


@pytest.mark.parametrize("n", [1, 63, 1000, 300_000])
def test_what_goes_up_is_worked_on_and_comes_down(device: Device, n: int) -> None:
    x = placed(device, counted(n))
    y = device.allocate(4 * n)
    run(device, x, y, 3, 7)
    np.testing.assert_array_equal(fetched(device, y), counted(n) * 3 + 7)


def test_copies_of_any_size_from_anywhere(device: Device) -> None:
    rng = np.random.default_rng(7)
    size = 10_007
    here, there = (device.allocate(size) for _ in range(2))
    expected = [np.zeros(size, np.uint8), np.zeros(size, np.uint8)]
    for memory, content in zip((here, there), expected, strict=True):
        device.upload(memory, 0, content)
    for _ in range(60):
        begin, to = (int(rng.integers(0, size)) for _ in range(2))
        length = int(rng.integers(0, size - max(begin, to) + 1))
        data = rng.integers(0, 256, length, np.uint8)
        device.upload(here, begin, data)
        expected[0][begin : begin + length] = data
        data[:] = 0  # its memory was reused
        device.copy(here, begin, there, to, length)
        expected[1][to : to + length] = expected[0][begin : begin + length]
        got = np.full(length, 9, np.uint8)
        device.download(there, to, got)
        np.testing.assert_array_equal(got, expected[1][to : to + length])
    for memory, content in zip((here, there), expected, strict=True):
        got = np.empty(size, np.uint8)
        device.download(memory, 0, got)
        np.testing.assert_array_equal(got, content)


@pytest.mark.parametrize("distance", [4, -4, 1200, -1200, 3, -1])
def test_a_copy_may_overlap_itself(device: Device, distance: int) -> None:
    content = np.random.default_rng(3).integers(0, 256, 4000, np.uint8)
    memory = device.allocate(4000)
    device.upload(memory, 0, content)
    begin, end = max(-distance, 0), max(distance, 0)
    length = 4000 - abs(distance)
    device.copy(memory, begin, memory, end, length)
    device.copy(memory, 5, memory, 5, 100)
    got = np.empty(4000, np.uint8)
    device.download(memory, 0, got)
    expected = content.copy()
    expected[end : end + length] = content[begin : begin + length]
    np.testing.assert_array_equal(got, expected)


def test_arrays_of_any_type_go_up(device: Device) -> None:
    for values in (
        np.float16([1.5, -2]),
        np.array(7, np.int64),
        np.array([True, False]),
        memoryview(b"xyz"),
        bytearray(b"12"),
        b"",
    ):
        size = memoryview(values).nbytes
        memory = device.allocate(size)
        device.upload(memory, 0, values)
        got = bytearray(size)
        device.download(memory, 0, got)
        assert bytes(got) == memoryview(values).tobytes()


def test_what_does_not_fit_is_refused(device: Device) -> None:
    memory = placed(device, counted(10))
    other = device.allocate(40)
    for attempt in (
        lambda: device.upload(memory, 1, counted(10)),
        lambda: device.upload(memory, -1, b"a"),
        lambda: device.download(memory, 41, bytearray(0)),
        lambda: device.download(memory, 0, bytearray(41)),
        lambda: device.copy(memory, 0, other, 1, 40),
        lambda: device.copy(memory, 1, other, 0, 40),
        lambda: device.copy(memory, 0, other, 0, -1),
    ):
        with pytest.raises(DeviceError, match=r"memory: given -?\d+ bytes from -?\d+; allowed: a range within its 40 bytes"):
            attempt()
    with pytest.raises(DeviceError, match="a read-only one"):
        device.download(memory, 0, b"abcd")
    with pytest.raises(DeviceError, match="an array with gaps"):
        device.upload(memory, 0, counted(10)[::2])
    with pytest.raises(DeviceError, match="bytes to allocate: given -1"):
        device.allocate(-1)
    np.testing.assert_array_equal(fetched(device, memory), counted(10))


def test_another_devices_memory_is_refused(device: Device, own: Device) -> None:
    assert own is not device
    memory = own.allocate(8)
    with pytest.raises(DeviceError, match="memory: given another device's; allowed: this device's own"):
        device.upload(memory, 0, b"abc")


def test_memory_begins_well_and_is_apart(device: Device) -> None:
    held = [device.allocate(size) for size in (0, 1, 7, 255, 256, 257, 100_000) for _ in range(3)]
    assert all(memory.address % 256 == 0 for memory in held)
    ranges = sorted((memory.address, memory.address + max(memory.nbytes, 1)) for memory in held)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))


def test_what_is_dropped_is_given_back(device: Device) -> None:
    before = device.memory_use().in_use
    for size in (100, 5000, 200_000, 3 << 20):
        for _ in range(20):
            x = placed(device, np.zeros(size // 4, np.uint32))
            run(device, x, x, 2)
            assert device.memory_use().in_use >= size
    cycle: list[object] = [x]
    cycle.append(cycle)
    del x, cycle
    gc.collect()
    assert device.memory_use().in_use == before
    device.trim()
    use = device.memory_use()
    assert use.in_use == before
    assert use.free <= use.capacity
    assert use.capacity == pytest.approx(device.info.memory, rel=0.1)


def test_a_thousand_launches_run_in_order(device: Device) -> None:
    x, y = placed(device, counted(1000)), device.allocate(4000)
    expected = counted(1000)
    for step in range(500):
        run(device, x, y, 5, step)
        run(device, y, x, 3, 1)
        expected = (expected * np.uint32(5) + np.uint32(step)) * np.uint32(3) + np.uint32(1)
    np.testing.assert_array_equal(fetched(device, x), expected)


def test_uploads_and_copies_keep_their_place_among_launches(device: Device) -> None:
    x, y, z = placed(device, counted(5000)), device.allocate(20_000), device.allocate(20_000)
    results = []
    for step in range(20):
        device.upload(x, 0, counted(5000) + np.uint32(step))  # while earlier launches may still read it
        run(device, x, y, 2)
        device.copy(y, 0, z, 0, 20_000)
        kept = device.allocate(20_000)
        device.copy(z, 0, kept, 0, 20_000)
        results.append(kept)
        device.upload(y, 0, np.full(5000, 0xDEADBEEF, np.uint32))
    for step, kept in enumerate(results):
        np.testing.assert_array_equal(fetched(device, kept), (counted(5000) + np.uint32(step)) * np.uint32(2))


def test_too_much_memory_is_refused_with_sizes(device: Device) -> None:
    capacity = device.memory_use().capacity
    held = placed(device, counted(10))
    for size in (capacity + 1, 1 << 50, 1 << 62):
        with pytest.raises(
            DeviceError,
            match=rf"given {size} bytes, with \d+ in use; allowed: up to the \d+ that are free of {capacity}\. Drop",
        ):
            device.allocate(size)
    np.testing.assert_array_equal(fetched(device, held), counted(10))


def test_memory_that_runs_out_is_looked_for_among_what_was_dropped(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = own._pool._ask

    def ask(address: ctypes.c_uint64, nbytes: int, stream: int) -> int:
        asked.append(nbytes)
        if any(loan.nbytes == 4096 for loan in own._pool._loans):
            return header.CUDA_ERROR_OUT_OF_MEMORY
        return real(address, nbytes, stream)

    cycle: list[object] = [own.allocate(4096)]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        monkeypatch.setattr(own._pool, "_ask", ask)
        assert own.allocate(100).nbytes == 100
        assert asked == [100, 100]
        held = [own.allocate(4096)]
        with pytest.raises(DeviceError, match=r"memory: given 100 bytes, with 4096 in use"):
            own.allocate(100)
        assert asked == [100, 100, 4096, 100, 100]
        held.clear()
        own.allocate(100)
    finally:
        gc.enable()


def test_a_driver_without_pools(present: None, monkeypatch: pytest.MonkeyPatch) -> None:
    real = survey.attribute
    wanted = header.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
    monkeypatch.setattr(survey, "attribute", lambda cuda, device, number: 0 if number == wanted else real(cuda, device, number))
    monkeypatch.setattr(driver, "_open", {})
    device = driver.open_device(0)
    assert device._pool._handle == 0
    if is_emulator(device):
        monkeypatch.setenv("TVMDML_EMULATED_LAZY", "1")
    for step in range(20):
        x = placed(device, counted(1000))
        y = device.allocate(4000)
        run(device, x, y, 3, step)
        del x  # while the launch may still read it
        device.allocate(4000)
        np.testing.assert_array_equal(fetched(device, y), counted(1000) * 3 + np.uint32(step))
    del y
    free = device.cuda.cuMemFree_v2

    def only_when_idle(address: int) -> int:
        ok(raw().cuStreamQuery(ctypes.c_void_p(stream)))
        return int(free(address))

    with new_stream(device) as stream:
        for left in (True, False):
            with using_stream(stream):
                x = placed(device, counted(1000))
                run(device, x, x, 2)
                if not left:
                    y = x
                del x
            if not left:
                device.order(y, stream)
                del y
            with monkeypatch.context() as patch:
                patch.setattr(device.cuda, "cuMemFree_v2", only_when_idle)
                device.allocate(4)
        with new_stream(device, blocking=True) as blocking, Captured(device, blocking) as graph, using_stream(stream):
            x = device.allocate(400)
            del x
            device.allocate(4)
            assert device.memory_use().in_use >= 400  # the driver would wait for the legacy stream, which is blocked
        graph.close()
    device.trim()
    assert device.memory_use()[:2] == (0, 0)


def test_a_pool_that_the_driver_refuses_is_done_without(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own.cuda, "cuMemPoolCreate", lambda *_: header.CUDA_ERROR_NOT_SUPPORTED)
    monkeypatch.setattr(driver, "_open", {})
    device = driver.open_device(0)
    x = placed(device, counted(10))
    np.testing.assert_array_equal(fetched(device, x), counted(10))


@pytest.mark.parametrize("pinned", [False, True])
def test_uploads_wait_where_the_device_reads_the_hosts_memory(own: Device, monkeypatch: pytest.MonkeyPatch, pinned: bool) -> None:
    waited: list[int] = []
    real = own._synchronize

    def synchronize(stream: int) -> None:
        waited.append(stream)
        real(stream)

    monkeypatch.setattr(own, "_reads_host", False)
    monkeypatch.setattr(own, "_synchronize", synchronize)
    if pinned:
        monkeypatch.setattr(own, "_is_pinned", lambda address: True)
    memory = own.allocate(40)
    own.upload(memory, 0, counted(10))
    assert waited == [0] * pinned
    monkeypatch.setattr(own, "_reads_host", True)
    own.upload(memory, 0, counted(10))
    assert waited == [0] * (pinned + 1)


# Streams


def test_streams_wait_for_each_other(device: Device) -> None:
    n, rounds = 3000, 50
    with new_stream(device) as one, new_stream(device) as other:
        x, y = placed(device, counted(n)), device.allocate(4 * n)
        expected = counted(n)
        for step in range(10):
            with using_stream(one):
                launch(device, churn(device, x, rounds), x)
                run(device, x, y, 3, step)
            with using_stream(other):
                assert device.stream() == other
                run(device, y, x, 1, 1)
            expected = churned(expected, rounds) * np.uint32(3) + np.uint32(step + 1)
        assert x.stream == streams.LEFT
        np.testing.assert_array_equal(fetched(device, x), expected)
        assert x.stream == 0


def test_streams_wait_for_each_other_without_using_stream(device: Device) -> None:
    n = 3000
    with new_stream(device) as one, new_stream(device) as other:
        x, y = placed(device, counted(n)), device.allocate(4 * n, other)
        assert y.stream == other
        for stream in (one, other, one):
            for memory in (x, y):
                device.order(memory, stream)
                assert memory.stream == stream
            device.launch(*churn(device, x, 50), stream)
            device.launch(*scale(device, x, y, 7), stream)
        np.testing.assert_array_equal(fetched(device, y), churned(counted(n), 150) * np.uint32(7))
        assert y.stream == 0
        z = device.allocate(4 * n)
        device.launch(*churn(device, y, 50), 0)
        device.follow(one, 0)
        device.follow(one, one)
        device.launch(*scale(device, y, z, 1), one)
        device.follow(0, one)
        np.testing.assert_array_equal(fetched(device, z), churned(churned(counted(n), 150) * np.uint32(7), 50))


def test_every_way_of_moving_bytes_waits_for_other_streams(device: Device) -> None:
    n = 3000
    with new_stream(device) as stream:
        for _ in range(5):
            x, y = placed(device, counted(n)), device.allocate(4 * n)
            with using_stream(stream):
                launch(device, churn(device, x, 50), x)
            device.copy(x, 0, y, 0, 4 * n)
            with using_stream(stream):
                device.upload(x, 0, np.zeros(n, np.uint32))
            np.testing.assert_array_equal(fetched(device, y), churned(counted(n), 50))
            assert not fetched(device, x).any()
            launch(device, churn(device, y, 10), y)
            with using_stream(stream):
                np.testing.assert_array_equal(fetched(device, y), churned(counted(n), 60))
                launch(device, churn(device, x, 10), x)
            device.upload(x, 0, counted(n))
            with using_stream(stream):
                launch(device, churn(device, y, 10), y)
            device.copy(x, 0, y, 0, 4 * n)
            for memory in (x, y):
                np.testing.assert_array_equal(fetched(device, memory), counted(n))


def test_a_stream_may_be_gone_after_using_it(device: Device) -> None:
    n = 3000
    kept = []
    for step in range(10):
        with new_stream(device) as stream, using_stream(stream):
            x = placed(device, counted(n) + np.uint32(step))
            with using_stream(stream):
                launch(device, churn(device, x, 50), x)
            assert x.stream == stream
            kept.append((step, x))
            kept.append((step, placed(device, counted(1))))  # dropped later, when its stream no longer exists
            placed(device, counted(n))  # dropped immediately
    del kept[1::2]
    for step, x in kept:
        assert x.stream == streams.LEFT
        np.testing.assert_array_equal(fetched(device, x), churned(counted(n) + np.uint32(step), 50))
    in_use = device.memory_use().in_use
    del kept, x
    assert device.memory_use().in_use == in_use - 10 * 4 * n
    assert not any(device.streams._visiting.values())


def test_memory_of_a_stream_that_may_be_gone_is_given_back_after_its_last_use(device: Device) -> None:
    with new_stream(device) as stream:
        with using_stream(stream):
            x = placed(device, counted(3000))
            launch(device, churn(device, x, 100), x)
        del x
        device.memory_use()
        synchronize(device, device.streams._own)  # the emulator frees it now
        synchronize(device, stream)


def test_what_was_used_on_a_stream_is_not_remembered_for_ever(device: Device) -> None:
    with new_stream(device) as stream, using_stream(stream):
        kept = [device.allocate(4) for _ in range(10)]
        for _ in range(100):
            device.allocate(4)
        device.memory_use()
        assert len(device.streams._visiting[stream]) == 10
        for memory in kept[:5]:
            device.order(memory, 0)
        assert len(device.streams._visiting[stream]) == 5
    assert [memory.stream for memory in kept] == [0] * 5 + [streams.LEFT] * 5
    assert stream not in device.streams._visiting


def test_memory_is_not_used_again_before_its_last_use(device: Device) -> None:
    """New memory may be what was just dropped: work on that, on another stream, comes first."""
    n = 5000
    with new_stream(device) as one, new_stream(device) as other:
        for left in range(20):
            with using_stream(one):
                x, y = placed(device, counted(n)), device.allocate(4 * n)
                launch(device, churn(device, x, 100), x)
                run(device, x, y, 1)
                del x
                if left % 2:
                    z = device.allocate(4 * n, other)
            if not left % 2:
                z = device.allocate(4 * n, other)
            with using_stream(other):
                device.upload(z, 0, np.full(n, 0xFFFFFFFF, np.uint32))
            np.testing.assert_array_equal(fetched(device, y), churned(counted(n), 100))


def test_the_current_stream_is_a_threads_own(device: Device) -> None:
    seen: list[int] = []

    async def task(stream: int) -> None:
        with using_stream(stream):
            await asyncio.sleep(0)
            seen.append(device.stream() - stream)

    async def tasks() -> None:
        await asyncio.gather(*(task(stream) for stream in both))

    with new_stream(device) as one, new_stream(device) as other:
        both = one, other
        with using_stream(one):
            at_once(lambda _: seen.append(device.stream()), 1)
            with using_stream(other):
                assert device.stream() == other
                with using_stream(0):
                    assert device.stream() == 0
            assert device.stream() == one
            with pytest.raises(ZeroDivisionError), using_stream(other):
                raise ZeroDivisionError
            assert device.stream() == one
        assert device.stream() == 0
        asyncio.run(tasks())
    assert seen == [0, 0, 0]
    assert not streams._inside
    with using_stream(np.int64(header.CU_STREAM_LEGACY)):
        assert device.stream() == 0


@pytest.mark.parametrize("handle", [-1, "0", None, 1.0, header.CU_STREAM_PER_THREAD])
def test_what_is_no_streams_handle_is_refused(handle: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"using_stream handle: given .*; allowed: a CUDA stream's handle, as an integer"):
        using_stream(handle)


class Foreign:
    """Another library's memory, as that may come to us."""

    def __init__(self, memory: Memory, stream: int) -> None:
        self.address, self.nbytes, self.device, self.owner = memory.address, memory.nbytes, memory.device, memory
        self._stream = stream

    def stream(self) -> int:
        return self._stream


def test_other_libraries_memory_is_worked_on_in_order(device: Device) -> None:
    n = 3000
    with new_stream(device) as stream:
        x = placed(device, counted(n))
        device.follow(stream, 0)
        device.launch(*churn(device, x, 50), stream)
        theirs, y = Foreign(x, stream), device.allocate(4 * n)
        device.copy(theirs, 0, y, 0, 4 * n)
        device.launch(*churn(device, x, 50), stream)  # they continue after our copy
        synchronize(device, stream)
        np.testing.assert_array_equal(fetched(device, y), churned(counted(n), 50))
        np.testing.assert_array_equal(fetched(device, theirs), churned(counted(n), 100))
        device.upload(theirs, 0, counted(n))
        device.launch(*churn(device, x, 50), stream)
        np.testing.assert_array_equal(fetched(device, theirs), churned(counted(n), 50))
        device.order(theirs, stream)
        device.order(theirs, 0)
        device.wait()


# Kernels


def test_a_module_is_loaded_once(device: Device) -> None:
    found = device.module(image(device))
    assert device.module(bytes(bytearray(image(device)))) is found
    assert found.function("scale") == found.function("scale") != found.function("churn")
    resources = found.resources("scale")
    assert THREADS <= resources.max_threads <= 1024
    assert resources.shared_bytes == 0
    assert resources.registers >= 0
    assert resources.local_bytes >= 0
    with pytest.raises(DeviceError, match=r"finding the function 'scala' in a module failed: CUDA_ERROR_NOT_FOUND"):
        found.function("scala")


def test_an_image_that_is_none_is_refused(device: Device) -> None:
    with pytest.raises(DeviceError, match="the image of a module is empty"):
        device.module(b"")
    with pytest.raises(DeviceError, match=rf"loading a module of 12 bytes failed: CUDA_ERROR_INVALID_\w+.*{device.info.arch}"):
        device.module(b"no such code")
    run(device, *[placed(device, counted(5))] * 2)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (header.CUDA_ERROR_INVALID_IMAGE, "neither a cubin nor PTX"),
        (header.CUDA_ERROR_NO_BINARY_FOR_GPU, "another architecture. Compile it for this device: a cubin for"),
        (header.CUDA_ERROR_INVALID_PTX, "PTX for a newer architecture, or damaged. Compile it"),
        (header.CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "Update the NVIDIA driver, or compile to a cubin"),
        (header.CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "libnvidia-ptxjitcompiler"),
        (header.CUDA_ERROR_JIT_COMPILATION_DISABLED, "CUDA_DISABLE_PTX_JIT"),
    ],
)
def test_a_module_that_the_driver_refuses_says_what_to_do(
    own: Device, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(own.cuda, "cuModuleLoadData", lambda *_: code)
        with pytest.raises(DeviceError, match=rf"loading a module of \d+ bytes failed: CUDA.*{words}"):
            own.module(image(own))
    assert own.module(image(own)).function("scale")


def test_a_launch_that_is_refused_says_what_was_launched(device: Device) -> None:
    x = placed(device, counted(10))
    which, groups, threads, parameters = scale(device, x, x)
    for wrong in (
        (which, groups, (2048, 1, 1), parameters),
        (which, groups, (32, 32, 2), parameters),
        (which, (1, 70_000, 1), threads, parameters),
        (which, (0, 1, 1), threads, parameters),
    ):
        with pytest.raises(DeviceError, match=re.escape(f"launching {wrong[1]} groups of {wrong[2]} threads failed: CUDA_ERROR_")):
            device.launch(*wrong, 0)
    for absurd in (
        (which, (1 << 33, 1, 1), threads, parameters),
        (which, (-1, 1, 1), threads, parameters),
        (which, groups, threads, bytes(5000)),
    ):
        with pytest.raises(
            DeviceError, match=r"launch: given .* bytes of parameters; allowed: extents that fit in 32 bits, and up to 4096 bytes"
        ):
            device.launch(*absurd, 0)
    device.launch(which, groups, threads, parameters, 0)
    with pytest.raises(DeviceError, match=r"launching \(1, 70000, 1\) groups"):
        device.prepare([scale(device, x, x), (which, (1, 70_000, 1), threads, parameters)]).run(0)
    np.testing.assert_array_equal(fetched(device, x), counted(10))


def test_prepared_launches_run_again_and_again(device: Device) -> None:
    x, y = placed(device, counted(1000)), device.allocate(4000)
    nothing = (function(device), (0, 1, 1), (1, 1, 1), b"")
    prepared = device.prepare([scale(device, x, y, 3, 1), nothing, scale(device, y, x, 5, 2)])
    expected = counted(1000)
    with new_stream(device) as stream:
        for step in range(100):
            where = stream if step % 3 else 0
            for memory in (x, y):
                device.order(memory, where)
            prepared.run(where)
            expected = (expected * np.uint32(3) + np.uint32(1)) * np.uint32(5) + np.uint32(2)
    np.testing.assert_array_equal(fetched(device, x), expected)
    device.prepare([]).run(0)
    device.prepare([nothing]).run(0)


def test_prepared_launches_do_not_remember_every_stream(device: Device) -> None:
    x = placed(device, counted(10))
    prepared = device.prepare([scale(device, x, x, 1, 1)])
    with ExitStack() as opened:
        for stream in [opened.enter_context(new_stream(device)) for _ in range(100)]:
            device.order(x, stream)
            prepared.run(stream)
        device.order(x, 0)
    assert len(prepared._arguments) <= 64
    np.testing.assert_array_equal(fetched(device, x), counted(10) + 100)


def test_the_device_says_how_long_it_took(device: Device) -> None:
    x = placed(device, counted(10_000))
    function(device, "churn")
    seconds = device.timed(lambda: device.launch(*churn(device, x, 3000), 0), 0)
    assert 0 <= seconds < 60
    with new_stream(device) as stream:
        assert device.timed(lambda: None, stream) >= 0
    first, second = driver.Event(device), driver.Event(device)
    with pytest.raises(DeviceError, match="an event was not recorded"):
        second.seconds_since(first)
    first.record(0)
    launch(device, churn(device, x, 3000), x)
    second.record(0)
    assert second.seconds_since(first) >= 0


# Captures


def test_prepared_launches_can_be_captured(device: Device) -> None:
    n = 2000
    x, y = placed(device, counted(n)), device.allocate(4 * n)
    prepared = device.prepare([churn(device, x, 20), scale(device, x, y, 3, 1)])
    launch(device, churn(device, x, 30), x)  # which the capture cannot wait for: the host does
    with new_stream(device) as stream:
        with Captured(device, stream) as graph, using_stream(stream):
            assert device.capturing(stream)
            for memory in (x, y):
                device.order(memory, stream)
            prepared.run(stream)
            device.launch(*scale(device, y, x, 5, 2), stream)
            device.copy(x, 0, y, 0, 4)
        assert not device.capturing(stream)
        assert x.stream == y.stream == 0
        np.testing.assert_array_equal(fetched(device, x), churned(counted(n), 30))  # none of it has run
        expected = churned(counted(n), 30)
        for _ in range(3):
            graph.replay(0)
            expected = (churned(expected, 20) * np.uint32(3) + np.uint32(1)) * np.uint32(5) + np.uint32(2)
        np.testing.assert_array_equal(fetched(device, x), expected)
        launch(device, churn(device, x, 30), x)
        with Captured(device, stream) as late:
            device.order(x, stream)
            device.launch(*scale(device, x, x, 1, 1), stream)
        late.replay(stream)  # which does not wait for the launch before the capture; that is not needed
        synchronize(device, stream)
        device.follow(0, stream)
        np.testing.assert_array_equal(fetched(device, x), churned(expected, 30) + np.uint32(1))
        device.launch(*scale(device, x, x, 1, 5), 0)
        device.launch(*scale(device, x, y), 0)
        late.close()
        np.testing.assert_array_equal(fetched(device, y), churned(expected, 30) + np.uint32(6))
        graph.close()


def test_memory_that_was_used_on_a_stream_that_is_gone_can_be_captured(device: Device) -> None:
    with new_stream(device) as stream:
        with new_stream(device) as other:
            with using_stream(other):
                x = placed(device, counted(1000))
                launch(device, churn(device, x, 50), x)
            assert x.stream == streams.LEFT
            with Captured(device, stream) as graph:
                device.order(x, stream)
                device.launch(*scale(device, x, x, 1, 1), stream)
            graph.replay(stream)
            synchronize(device, stream)
        np.testing.assert_array_equal(fetched(device, x), churned(counted(1000), 50) + np.uint32(1))
        graph.close()


def test_a_stream_that_is_left_while_it_is_captured_is_remembered(device: Device) -> None:
    with new_stream(device) as stream:
        graph = Captured(device, stream)
        with using_stream(stream):
            x = placed(device, counted(1000))
            launch(device, churn(device, x, 50), x)
            graph.__enter__()
            device.launch(*scale(device, x, x, 1, 1), stream)
        graph.__exit__(None)
        assert x.stream == stream
        np.testing.assert_array_equal(fetched(device, x), churned(counted(1000), 50))
        graph.replay(0)
        np.testing.assert_array_equal(fetched(device, x), churned(counted(1000), 50) + np.uint32(1))
        graph.close()


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_what_cannot_be_captured_is_refused_and_spoils_nothing(device: Device, mode: int) -> None:
    x = placed(device, counted(10))
    device.wait()
    with new_stream(device) as stream:
        with Captured(device, stream, mode) as graph:
            with using_stream(stream):
                for attempt in (
                    lambda: device.upload(x, 0, counted(10)),
                    lambda: fetched(device, x),
                    lambda: device.allocate(4),
                    lambda: device.copy(x, 0, x, 4, 20),
                    device.wait,
                    lambda: driver.Event(device).record(stream),
                ):
                    with pytest.raises(DeviceError, match=r"its stream is being captured, or .*Do this before the capture"):
                        attempt()
            device.launch(*scale(device, x, x, 1, 1), stream)
        graph.replay(stream)
        device.follow(0, stream)
        np.testing.assert_array_equal(fetched(device, x), counted(10) + 1)
        graph.close()


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_capture_beside_us_is_not_spoiled(device: Device, mode: int) -> None:
    """Whatever is asked for on other streams meanwhile, and by whatever thread."""
    x, dropped = placed(device, counted(1000)), placed(device, counted(1000))
    device.wait()

    def beside(_: int = 0) -> None:
        for _ in range(3):
            y, z = placed(device, counted(1000)), device.allocate(4000)
            run(device, y, z, 2)
            np.testing.assert_array_equal(fetched(device, z), counted(1000) * 2)
            with using_stream(other):
                run(device, z, y, 2)
            device.copy(y, 0, z, 0, 4000)
            np.testing.assert_array_equal(fetched(device, z), counted(1000) * 4)
            device.module(image(device))
            device.timed(lambda: None, other)
            assert device.memory_use().in_use
            assert not device.capturing(other)
            assert not device.capturing(0)

    with new_stream(device) as stream, new_stream(device) as other:
        with Captured(device, stream, mode) as graph:
            device.launch(*scale(device, x, x, 1, 1), stream)
            del dropped
            beside()
            at_once(beside, 2)
            device.launch(*scale(device, x, x, 2), stream)
        graph.replay(stream)
        device.follow(0, stream)
        np.testing.assert_array_equal(fetched(device, x), (counted(1000) + 1) * 2)
        graph.close()


def test_a_capture_that_stops_the_legacy_stream_is_not_spoiled(device: Device) -> None:
    x, dropped = placed(device, counted(100)), placed(device, counted(100))
    device.wait()
    before = device.memory_use().in_use
    with new_stream(device, blocking=True) as stream, new_stream(device) as other:
        with Captured(device, stream) as graph:
            assert device.capturing(0)
            device.order(x, stream)
            device.launch(*scale(device, x, x, 1, 1), stream)
            del dropped
            with using_stream(other):
                y = placed(device, counted(100))
            assert device.memory_use().in_use == before + 400  # what was dropped has to wait
            for attempt in (lambda: device.allocate(4), lambda: fetched(device, x), lambda: device.order(x, other)):
                with pytest.raises(DeviceError, match="its stream is being captured, or is blocked by another"):
                    attempt()
        graph.replay(stream)
        np.testing.assert_array_equal(fetched(device, x), counted(100) + 1)
        np.testing.assert_array_equal(fetched(device, y), counted(100))
        assert device.memory_use().in_use == before
        graph.close()


def test_memory_dropped_while_its_stream_is_captured_is_given_back_later(device: Device) -> None:
    with new_stream(device) as stream, using_stream(stream):
        x, y = placed(device, counted(100)), placed(device, counted(100))
        before = device.memory_use().in_use
        with Captured(device, stream) as graph:
            device.launch(*scale(device, x, x, 1, 1), stream)
            del y
            with using_stream(0):
                device.allocate(4)
            assert device.memory_use().in_use == before
        assert device.memory_use().in_use == before - 400
        graph.replay(stream)
        np.testing.assert_array_equal(fetched(device, x), counted(100) + 1)
        graph.close()


def test_streams_of_one_capture_wait_for_each_other(device: Device) -> None:
    event = ctypes.c_void_p()
    with device.context.entered():
        ok(raw().cuEventCreate(ctypes.byref(event), 2))
    with new_stream(device) as stream, new_stream(device) as other:
        x = device.allocate(4000, stream)
        with using_stream(stream):
            device.upload(x, 0, counted(1000))
        device.order(x, stream)
        with Captured(device, stream, 2) as graph:
            with device.context.entered():
                ok(raw().cuEventRecord(event, ctypes.c_void_p(stream)))
                ok(raw().cuStreamWaitEvent(ctypes.c_void_p(other), event, 0))
            device.launch(*churn(device, x, 50), stream)
            device.order(x, other)
            device.launch(*scale(device, x, x, 3), other)
            device.follow(stream, other)
        graph.replay(stream)
        np.testing.assert_array_equal(fetched(device, x), churned(counted(1000), 50) * np.uint32(3))
        graph.close()
    with device.context.entered():
        ok(raw().cuEventDestroy_v2(event))


# Contexts, threads, forks, interrupts


def test_the_callers_context_is_left_as_it_was(device: Device) -> None:
    """The fixture sees that none is current after any test; here one is."""
    own = ctypes.c_void_p(device.context.handle)
    ok(raw().cuCtxPushCurrent_v2(own))
    try:
        x = placed(device, counted(10))
        run(device, x, x, 2)
        device.prepare([scale(device, x, x, 2)]).run(0)
        with pytest.raises(DeviceError):
            device.launch(function(device), (1, 1, 1), (5000, 1, 1), b"", 0)
        np.testing.assert_array_equal(fetched(device, x), counted(10) * 4)
        device.wait()
        assert current_context() == own.value
    finally:
        popped = ctypes.c_void_p()
        ok(raw().cuCtxPopCurrent_v2(ctypes.byref(popped)))
    assert popped.value == own.value


def test_two_devices(present: None) -> None:
    if not is_emulator(driver.open_device(0)) and len(driver.devices()) < 2:
        pytest.skip("one device here")
    code = """
one, other = driver.open_device(0), driver.open_device(1)
assert one is not other and len(driver.devices()) >= 2
assert one.context.handle != other.context.handle
with other.context.entered():
    there = current_context()
    for device in (one, other, one):
        x, y = placed(device, counted(1000)), device.allocate(4000)
        run(device, x, y, 3)
        device.prepare([scale(device, y, x, 5)]).run(0)
        np.testing.assert_array_equal(fetched(device, x), counted(1000) * 15)
        with new_stream(device) as stream, using_stream(stream):
            run(device, x, x, 2)
        np.testing.assert_array_equal(fetched(device, x), counted(1000) * 30)
        del x, y
        device.trim()
        assert current_context() == there == other.context.handle
assert current_context() is None
x, y = placed(one, counted(10)), placed(other, counted(10))
for attempt in (lambda: one.copy(x, 0, y, 0, 4), lambda: other.upload(x, 0, b"abcd"), lambda: one.download(y, 0, bytearray(4))):
    try:
        attempt()
        print("worked")
    except DeviceError as error:
        assert "another device's" in str(error), error
with new_stream(other) as stream, using_stream(stream):
    try:
        run(one, x, x)
        print("worked")
    except DeviceError as error:
        assert "belong to another device" in str(error), error
print("fine")
"""
    assert program(code, TVMDML_EMULATED_DEVICES="2") == "fine\n"


def test_threads_share_a_device(device: Device) -> None:
    before = device.memory_use().in_use

    def work(number: int) -> None:
        with new_stream(device) as stream:
            mine = placed(device, counted(500))
            for step in range(15):
                with using_stream(stream if (number + step) % 2 else 0):
                    x = placed(device, counted(500) + np.uint32(number))
                    y = device.allocate(2000)
                    run(device, x, y, 3, step)
                    prepared = device.prepare([scale(device, y, x, 5), scale(device, x, y, 1, 1)])
                    prepared.run(device.stream())
                    run(device, mine, mine, 1, 1)
                    expected = ((counted(500) + np.uint32(number)) * np.uint32(3) + np.uint32(step)) * np.uint32(5) + np.uint32(1)
                    np.testing.assert_array_equal(fetched(device, y), expected)
            np.testing.assert_array_equal(fetched(device, mine), counted(500) + 15)
        assert current_context() is None

    at_once(work, 8)
    assert device.memory_use().in_use == before


def test_threads_load_a_module_once(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    real = own.cuda.cuModuleLoadData

    def load(*arguments: Any) -> int:
        loaded.append(arguments)
        time.sleep(0.02)
        return int(real(*arguments))

    monkeypatch.setattr(own.cuda, "cuModuleLoadData", load)
    at_once(lambda _: own.module(image(own)).function("scale"), 8)
    assert len(loaded) == 1


def test_one_prepared_is_run_by_threads_on_streams_of_their_own(device: Device) -> None:
    x = placed(device, counted(100))
    y = placed(device, np.zeros(100, np.uint32))
    prepared = device.prepare([scale(device, x, y, 3)])
    device.wait()

    def work(_: int) -> None:
        with new_stream(device) as stream:
            for _ in range(20):
                prepared.run(stream)
            with using_stream(stream):
                placed(device, counted(1))
            device.follow(0, stream)

    at_once(work, 8)
    np.testing.assert_array_equal(fetched(device, y), counted(100) * 3)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX signals")
def test_interrupts_leave_everything_in_order(device: Device) -> None:
    interrupts = 0
    armed = False

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    def used() -> tuple[int, int]:
        """What arrays use, and what the driver takes for used."""
        found, pool = device.memory_use().in_use, device._pool
        device.wait()  # for what was just freed
        with device.context.entered():
            return found, pool._attribute(header.CU_MEMPOOL_ATTR_USED_MEM_CURRENT) if pool._handle else 0

    x, y = placed(device, counted(10)), device.allocate(4)
    function(device)
    finished = 0
    in_use = used()
    before = signal.signal(signal.SIGALRM, interrupt)
    deadline = time.monotonic() + 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
        while time.monotonic() < deadline:
            try:
                armed = True
                run(device, x, x, 1, 1)
                finished += 1
                device.upload(y, 0, b"abcd")
                device.download(y, 0, bytearray(4))
                device.allocate(4)
                if finished % 7 == 0:
                    device.wait()
            except KeyboardInterrupt:
                interrupts += 1
            armed = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    values = fetched(device, x)
    assert interrupts
    assert (values - values[0] == counted(10)).all()
    assert finished <= values[0] <= finished + interrupts
    # An interrupt may arrive while Python is about to restore these. That is harmless, and happens about once in some hundred runs.
    if current_context() is not None:
        assert current_context() == device.context.handle
        ok(raw().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))
    ok(raw().cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(0))))
    assert used() == in_use


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_after_cuda_was_started_is_told_so(present: None) -> None:
    code = """
device = driver.open_device(0)
x = placed(device, counted(1000))
run(device, x, x, 2)
prepared = device.prepare([scale(device, x, x, 2)])
step, module, event = scale(device, x, x), device.module(image(device)), driver.Event(device)
child = os.fork()
if not child:
    attempts = [
        driver.devices, lambda: driver.open_device(0), lambda: driver.open_device(1), device.wait, lambda: device.allocate(4),
        lambda: device.launch(*step, 0), lambda: prepared.run(0), lambda: fetched(device, x), lambda: device.upload(x, 0, b"abcd"),
        lambda: device.copy(x, 0, x, 4, 4), lambda: device.order(x, 5), lambda: device.follow(5, 6), lambda: device.capturing(0),
        device.memory_use, device.trim, lambda: device.prepare([]), lambda: device.module(b"abc"), lambda: module.function("new"),
        lambda: device.timed(print, 0), lambda: event.record(0), lambda: device.attribute(16), loader.cuda,
    ]
    for attempt in attempts:
        try:
            attempt()
            print("worked")
        except DeviceError as error:
            assert "forked after CUDA was started" in str(error) and "spawn" in str(error), error
    with using_stream(77):
        pass
    del x, device, prepared, step, event
    gc.collect()
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert (fetched(device, x) == counted(1000) * 2).all()
print("fine")
"""
    assert program(code) == "fine\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_before_cuda_is_started_works(present: None) -> None:
    code = """
child = os.fork()
device = driver.open_device(0)
x = placed(device, counted(1000))
run(device, x, x, 2)
assert (fetched(device, x) == counted(1000) * 2).all()
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0
    print("fine")
"""
    assert program(code) == "fine\n"


# What fails


BAD_LAUNCH = """
device = driver.open_device(0)
x = placed(device, counted(1000))
which, groups, threads, _ = scale(device, x, x)
prepared, step = device.prepare([scale(device, x, x)]), scale(device, x, x)
def bad():
    device.launch(which, groups, threads, struct.pack("<QQIII", 8, x.address, 1000, 1, 1), 0)
"""


def test_a_kernel_that_fails_ends_all_work_and_says_so(present: None) -> None:
    code = f"""{BAD_LAUNCH}
attempts = [
    lambda: (bad(), device.wait()), device.wait, lambda: device.allocate(4), lambda: fetched(device, x),
    lambda: device.launch(*step, 0), lambda: prepared.run(0), lambda: device.upload(x, 0, b"abcd"),
    lambda: device.module(b"abc"), device.trim, device.memory_use,
    lambda: device.order(x, 5), lambda: driver.open_device(0).wait(),
]
for attempt in attempts:
    try:
        attempt()
        print("worked")
    except DeviceError as error:
        assert "CUDA_ERROR_" in str(error) and "No CUDA call of this process works any more: restart" in str(error), error
        assert str(error).startswith(device.info.name), error
with using_stream(77):
    pass
y = x
del x
gc.collect()
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", "import os, sys\nfrom test_cuda_driver import *\n" + code],
        env={**os.environ, "PYTHONPATH": f"{TOP}{os.pathsep}{TOP / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr  # the emulator's messages go to stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stdout == "fine\n"


@pytest.mark.parametrize("code", sorted(loader.BROKEN))
def test_failures_that_end_all_work_are_remembered(own: Device, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    x = placed(own, counted(10))
    with monkeypatch.context() as patch:
        patch.setattr(own.cuda, "cuStreamSynchronize", lambda _: code)
        with pytest.raises(DeviceError, match=r"failed: CUDA.*restart the process\.") as caught:
            fetched(own, x)
    for late in (own.wait, lambda: own.allocate(4), lambda: run(own, x, x)):
        with pytest.raises(DeviceError, match=re.escape(str(caught.value))):
            late()


FAILING: dict[str, Callable[[Device], object]] = {
    "cuCtxSynchronize": lambda device: device.wait(),
    "cuStreamIsCapturing": lambda device: device.allocate(4),
    "cuMemGetInfo_v2": lambda device: device.memory_use(),
    "cuMemAllocFromPoolAsync": lambda device: device.allocate(4),
    "cuMemcpyHtoDAsync_v2": lambda device: placed(device, counted(4)),
    "cuMemcpyDtoHAsync_v2": lambda device: fetched(device, device.allocate(4)),
    "cuMemcpyDtoDAsync_v2": lambda device: device.copy(device.allocate(4), 0, device.allocate(4), 0, 4),
    "cuEventCreate": lambda device: driver.Event(device),
    "cuEventRecord": lambda device: device.follow(77, 0),
    "cuCtxPushCurrent_v2": lambda device: device.wait(),
}


@pytest.mark.parametrize("call", FAILING)
def test_a_call_that_fails_says_what_was_being_done(own: Device, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    x = placed(own, counted(10))
    with monkeypatch.context() as patch:
        patch.setattr(own.cuda, call, lambda *_: 999)
        patch.setattr(own.context, "_push", own.cuda.cuCtxPushCurrent_v2)
        with pytest.raises(DeviceError, match=r"\w failed: CUDA_ERROR_UNKNOWN"):
            FAILING[call](own)
    assert current_context() is None
    assert capture_mode() == 0
    np.testing.assert_array_equal(fetched(own, x), counted(10))


def test_memory_that_cannot_be_given_back_fails_nobody(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    own.allocate(400)
    with monkeypatch.context() as patch:
        patch.setattr(own.cuda, "cuMemFreeAsync", lambda *_: header.CUDA_ERROR_DEINITIALIZED)
        patch.setattr(own.cuda, "cuMemFree_v2", lambda *_: header.CUDA_ERROR_DEINITIALIZED)
        own.wait()
    assert own.memory_use().in_use == 0


def test_codes_without_a_name() -> None:
    assert str(loader.failure(77777, "this")) in ("cuda: this failed: CUDA error 77777.", "cuda: this failed: CUDA_ERROR_UNKNOWN.")
    loader.check(0, "this")
    with pytest.raises(DeviceError, match="cuda: this failed"):
        loader.check(1, "this")


ENDS = {
    "while work is pending": "",
    "with an error": "import atexit\natexit.register(lambda: os._exit(0))\nsys.excepthook = lambda *_: None\nraise ValueError",
    "while a thread goes on": """
def forever():
    try:
        while True:
            placed(device, counted(100))
            run(device, x, x)
            device.wait()
    except DeviceError:
        pass
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.1)
""",
    "with everything held by a module": "sys.modules['held'] = (device, x, prepared, driver.Event(device))\n",
    "with arrays in a cycle": "cycle = [x, device, prepared]\ncycle.append(cycle)\ndel x, cycle\n",
    "while a stream is in use": "using = using_stream(stream)\nusing.__enter__()\nrun(device, x, x)\n",
    "while a stream is captured": "Captured(device, stream).__enter__()\nprepared.run(stream)\ndel x\n",
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("lazy", ["0", "1"])
def test_a_process_ends_well(present: None, how: str, lazy: str) -> None:
    code = f"""
device = driver.open_device(0)
x = placed(device, counted(1 << 16))
prepared = device.prepare([scale(device, x, x, 2)])
opened = new_stream(device)
stream = opened.__enter__()
for _ in range(20):
    run(device, x, x, 1, 1)
    device.allocate(100)
print("fine", flush=True)
{ENDS[how]}
"""
    assert program(code, TVMDML_EMULATED_LAZY=lazy) == "fine\n"


# What is taken from cuda.h


def cuda_include() -> Path:
    nvcc = shutil.which("nvcc")
    near = [Path(nvcc).resolve().parents[1]] if nvcc else []
    for top in (
        os.environ.get("CUDA_HOME"),
        os.environ.get("CUDA_PATH"),
        *near,
        "/usr/local/cuda",
        *Path("/usr/local").glob("cuda-*"),
    ):
        if top and "CUDAAPI" in read(Path(top, "include", "cuda.h")):
            return Path(top, "include")
    pytest.skip("NVIDIA's cuda.h is not here")


def read(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""


def test_values_structures_and_prototypes_are_those_of_cuda_h(tmp_path: Path) -> None:
    include, compiler = cuda_include(), shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    values = {name: value for name, value in vars(header).items() if re.match("CUD?A?_[A-Z]", name) and isinstance(value, int)}
    assert len(values) > 60
    expected, lines = [], []
    for name, value in values.items():
        lines.append(f'printf("{name} %lld\\n", (long long){name});')
        expected.append(f"{name} {value}")
    for structure in (header.CUmemLocation, header.CUmemPoolProps, header.CUlaunchConfig):
        kind = structure.__name__
        lines.append(f'printf("{kind} %zu\\n", sizeof({kind}));')
        expected.append(f"{kind} {ctypes.sizeof(structure)}")
        for field, *_ in structure._fields_:
            lines.append(f'printf("{kind}.{field} %zu %zu\\n", offsetof({kind}, {field}), sizeof((({kind} *)0)->{field}));')
            expected.append(f"{kind}.{field} {getattr(structure, field).offset} {getattr(structure, field).size}")
    assert struct.calcsize(header.LAUNCH_CONFIG) <= ctypes.sizeof(header.CUlaunchConfig)
    for name, arguments in (header.FUNCTIONS | header.QUICK).items():
        lines.append(f'show<decltype({name})>("{name}");')
        kinds = ["p" if kind in (ctypes.c_void_p, ctypes.c_char_p) else str(ctypes.sizeof(kind)) for kind in arguments]
        expected.append(" ".join([name, *kinds]))
    source = tmp_path / "values.cpp"
    source.write_text(
        """
#include <cuda.h>
#include <cstddef>
#include <cstdio>
#include <type_traits>
template <class T> void kind() {
  if (std::is_pointer<T>::value) printf(" p"); else printf(" %zu", sizeof(T));
}
template <class F> struct Shown;
template <class... A> struct Shown<CUresult(A...)> {
  static void show(const char *name) { printf("%s", name); int all[] = {0, (kind<A>(), 0)...}; (void)all; puts(""); }
};
template <class F> void show(const char *name) { Shown<F>::show(name); }
int main() {
"""
        + "\n".join(lines)
        + "}\n"
    )
    subprocess.run([compiler, "-std=c++11", "-w", f"-I{include}", source, "-o", tmp_path / "values"], check=True)
    said = subprocess.run([tmp_path / "values"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == expected
    text = read(include / "cuda.h")
    assert all(re.search(rf"\b{name.removesuffix('_v2')}\b", text) for name in header.HOT)
    fatal = re.findall(r"/\*\*(?:(?!\*/).)*?must be terminated(?:(?!\*/).)*?\*/\s*CUDA_ERROR_(\w+)", text, re.DOTALL)
    assert {getattr(header, f"CUDA_ERROR_{name}") for name in fatal} <= loader.BROKEN


def test_the_threads_own_values_are_its_own() -> None:
    found = []
    at_once(lambda _: found.append(id(context.thread.current)), 1)
    assert found != [id(context.thread.current)]
    assert modules._advice(0, "sm_90") == ""

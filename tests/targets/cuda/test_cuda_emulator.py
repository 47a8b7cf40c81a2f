"""The emulated GPU of the CUDA tests: it computes what a GPU computes, and detects misuse that a GPU would not tolerate."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from folders import TESTS
from numpy.typing import NDArray

Array = NDArray[Any]
pytestmark = pytest.mark.skipif(bool(cuda_emulator.missing()), reason=cuda_emulator.missing())

OUT_OF_MEMORY, NOT_READY, ILLEGAL_ADDRESS, TIMEOUT, STACK_ERROR, MISALIGNED, FAILED = 2, 600, 700, 702, 714, 716, 719
CAPTURE_UNSUPPORTED, INVALIDATED, UNJOINED, ISOLATION, IMPLICIT = 900, 901, 904, 905, 906
NON_BLOCKING, THREAD_LOCAL = 1, 1


class Fault(Exception):
    """A function of the driver's returned an error."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@contextmanager
def fails(code: int) -> Iterator[None]:
    with pytest.raises(Fault) as caught:
        yield
    assert caught.value.code == code


class Driver:
    """An emulated driver apart from the process's other one, whose two devices are as new for every test."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self("cuInit", 0)

    @contextmanager
    def used(self) -> Iterator[Driver]:
        self.contexts = [self.get(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", device) for device in range(2)]
        self("cuCtxPushCurrent_v2", ctypes.c_void_p(self.contexts[0]))
        try:
            yield self
        finally:
            self("cuCtxPopCurrent_v2", None)
            for device in range(2):
                self("cuDevicePrimaryCtxRelease_v2", device)

    def __call__(self, name: str, *arguments: Any) -> None:
        if code := self._library[name](*arguments):
            raise Fault(code)

    def get(self, kind: type[Any], name: str, *arguments: Any) -> Any:
        """What a function writes through its first argument."""
        found = kind()
        self(name, ctypes.byref(found), *arguments)
        return found.value

    def of(self, stream: Any, kind: type[Any], name: str) -> Any:
        """What a function writes through its last argument about a stream."""
        found = kind()
        self(name, stream, ctypes.byref(found))
        return found.value

    def stream(self, flags: int = NON_BLOCKING) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.get(ctypes.c_void_p, "cuStreamCreate", flags))

    def event(self, flags: int = 0) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.get(ctypes.c_void_p, "cuEventCreate", flags))

    def allocate(self, nbytes: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self.get(ctypes.c_uint64, "cuMemAlloc_v2", ctypes.c_size_t(nbytes)))

    def upload(self, data: Array, stream: Any = None) -> ctypes.c_uint64:
        found = self.allocate(data.nbytes)
        self("cuMemcpyHtoDAsync_v2", found, data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(data.nbytes), stream)
        return found

    def read(self, memory: ctypes.c_uint64, into: Array, stream: Any = None) -> None:
        self("cuMemcpyDtoHAsync_v2", into.ctypes.data_as(ctypes.c_void_p), memory, ctypes.c_size_t(into.nbytes), stream)

    def download(self, memory: ctypes.c_uint64, like: Array) -> Array:
        found = np.empty_like(like)
        self.read(memory, found)
        self.wait()
        return found

    def wait(self) -> None:
        self("cuCtxSynchronize")

    def load(self, image: bytes) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.get(ctypes.c_void_p, "cuModuleLoadData", image))

    def function(self, image: bytes, name: str = "kernel") -> ctypes.c_void_p:
        return ctypes.c_void_p(self.get(ctypes.c_void_p, "cuModuleGetFunction", self.load(image), name.encode()))

    def launch(self, function: Any, groups: Sequence[int], threads: Sequence[int], *arguments: Any, stream: Any = None) -> None:
        sizes = [*groups, *(1,) * (3 - len(groups)), *threads, *(1,) * (3 - len(threads))]
        each = (ctypes.c_void_p * (len(arguments) + 1))(*(ctypes.addressof(argument) for argument in arguments))
        self("cuLaunchKernel", function, *sizes, 0, stream, each, None)


@functools.cache
def compiled(text: str, nvcc: Path | None = None) -> bytes:
    """The kernel's image; compiled once a session."""
    with tempfile.TemporaryDirectory() as name:
        source, image = Path(name) / "kernel.cu", Path(name) / "kernel.image"
        source.write_text(text)
        command = [str(nvcc or cuda_emulator.environment()["TVMDML_NVCC"]), "-cubin", "-arch=sm_90", "-o", str(image), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return image.read_bytes()


def _driver(folder: Path) -> Driver:
    library = cuda_emulator.build()
    assert library is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMDML_EMULATED_DEVICES", "2")
        return Driver(Path(shutil.copy(library, folder / "libcuda.so.1")))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return _driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def cuda(driver: Driver) -> Iterator[Driver]:
    with driver.used():
        yield driver


@pytest.fixture
def lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_EMULATED_LAZY", "1")


def kernel(parameters: str, body: str, bound: int = 1024, before: str = "", name: str = "kernel") -> str:
    return f'{before}\nextern "C" __global__ void __launch_bounds__({bound}) {name}({parameters}) {{\n{body}\n}}\n'


TWICE = kernel("int* a", "a[threadIdx.x] *= 2;")


# -- What a kernel computes. (What those of the package compute is tested with them.)


def test_what_nobody_wrote_is_junk_and_who_ended_is_not_waited_for(cuda: Driver) -> None:
    image = compiled(
        kernel(
            "int* a", "__shared__ int x[33]; a[blockIdx.x * 33 + threadIdx.x] = x[threadIdx.x]; x[threadIdx.x] = 5;", name="begun"
        )
        + kernel("unsigned* a", "a[threadIdx.x] = __shfl_xor_sync(0xffffffffu, threadIdx.x, 8);", name="apart")
        + kernel(
            "int* a",
            "if (threadIdx.x % 2) return; __syncthreads(); __syncwarp(); a[threadIdx.x] = __popc(__ballot_sync(0xffffffffu, 1));",
            name="ended",
        )
    )
    expected = {
        "begun": (3, 33, [-1] * 99),  # shared memory, when a group begins
        "apart": (1, 12, [8, 9, 10, 11, *[0xDEADBEEF - 2**32] * 4, 0, 1, 2, 3]),  # lanes that take no part
        "ended": (1, 40, [16, 0] * 16 + [4, 0] * 4),
    }
    for name, (groups, threads, values) in expected.items():
        memory = cuda.upload(np.zeros(groups * threads, np.int32))
        cuda.launch(cuda.function(image, name), (groups,), (threads,), memory)
        assert cuda.download(memory, np.zeros(groups * threads, np.int32)).tolist() == values
    assert (cuda.download(cuda.allocate(4097), np.zeros(4097, np.uint8)) == 0xD5).all()


@pytest.mark.full
def test_halves_by_the_header_for_computers_without_nvidias(cuda: Driver) -> None:
    """Of every half; floats are those between two of them, just beside the middle, and in it."""
    count, rng = 1 << 16, np.random.default_rng(1)
    a = np.arange(count, dtype=np.uint16).view(np.float16)
    b = rng.permutation(a)
    finite, floats = a[np.isfinite(a)], []
    with np.errstate(all="ignore"):
        for kind in (np.float32, np.float64):
            middle = (finite.astype(kind) + np.nextafter(finite, np.float16(np.inf)).astype(kind)) / 2
            beside = (np.nextafter(middle, kind(np.inf)), np.nextafter(middle, kind(-np.inf)))
            floats.append(rng.choice(np.concatenate([middle, *beside, [65520, -65519.99, np.nan]]), count).astype(kind))
        f, d = floats
        expected = {
            "__float2half_rn(f[i])": f.astype(np.float16),
            "__double2half(d[i])": d.astype(np.float16),
            "a + b": a + b,
            "a - b": a - b,
            "a * b": a * b,
            "a / b": a / b,
            "hrint(a)": np.rint(a),
            "htrunc(a)": np.trunc(a),
        }
    body = "int i = blockIdx.x * blockDim.x + threadIdx.x; auto a = p[i]; auto b = q[i]; wide[i] = __half2float(a);"
    body += "is[i] = (a < b) + 2 * (a == b) + 4 * __hisnan(a) + 8 * (a >= b);"
    body += "".join(f"to[i + {place * count}] = {code};" for place, code in enumerate(expected))
    parameters = "const __half* p, const __half* q, const float* f, const double* d, float* wide, int* is, __half* to"
    own = Path(cuda_emulator.__file__).parent / "nvcc"
    outputs = [np.zeros(count, np.float32), np.zeros(count, np.int32), np.zeros((len(expected), count), np.float16)]
    memories = [cuda.upload(array) for array in (a, b, *floats, *outputs)]
    image = compiled(kernel(parameters, body, before="#include <cuda_fp16.h>"), nvcc=own)
    cuda.launch(cuda.function(image), (256,), (256,), *memories)
    wide, truths, found = (cuda.download(memory, like) for memory, like in zip(memories[4:], outputs, strict=True))
    for name, one, other in (("wide", wide, a.astype(np.float32)), *zip(expected, found, expected.values(), strict=True)):
        assert ((one == other) & (np.signbit(one) == np.signbit(other)) | (np.isnan(one) & np.isnan(other))).all(), name
    assert (truths == (a < b) + 2 * (a == b) + 4 * np.isnan(a) + 8 * (a >= b)).all()


# -- What a kernel may not do


def copied(at: int) -> str:
    """Two words to shared memory, by a copy that is not waited for."""
    return (
        f"__shared__ __align__(16) int x[64]; const uint32_t to = __cvta_generic_to_shared(x + {at}), many = 8;\n"
        'asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" : : "r"(to), "l"(a), "n"(8), "r"(many) : "memory");\n'
    )


MISTAKES = [
    ("if (threadIdx.x < 32) __syncthreads(); else {\n__syncthreads(); }", 64, FAILED, "is not where other threads wait"),
    ("if (threadIdx.x < 3) __syncwarp(); else __syncthreads();", 32, FAILED, "for ever"),
    ("if (threadIdx.x) __shfl_sync(0xffffffffu, 1, 0); else __ballot_sync(0xffffffffu, 1);", 32, FAILED, "for ever"),
    ("__ballot_sync(0xffu, 1);", 32, FAILED, "does not name itself"),
    ("__shfl_sync(threadIdx.x < 9 ? 0x1ffu : 0xffffffffu, 1, 0); __syncwarp();", 32, FAILED, "for ever"),
    ("__shared__ int x[64]; x[threadIdx.x] = 1; a[0] = x[5];", 65, ILLEGAL_ADDRESS, "beyond an array's end"),
    ("int x[4] = {1, 2}; a[1] = x[a[0] + threadIdx.x];", 5, ILLEGAL_ADDRESS, "beyond an array's end"),
    ("*(int4*)(a + threadIdx.x) = make_int4(1, 2, 3, 4);", 2, MISALIGNED, "not aligned"),
    (copied(1), 2, MISALIGNED, "not aligned"),
    ("a[1] = 1 << (threadIdx.x * 8);", 5, FAILED, "shifted"),
    ("a[1] = 7 / a[0];", 1, FAILED, "divided by zero"),
    ("a[1] = 0x7fffffff + (int)threadIdx.x;", 2, FAILED, "a sum"),
    ("a[1] = *(volatile int*)((char*)a + (1ull << 46));", 1, ILLEGAL_ADDRESS, "not there"),
    ("volatile int x[40000]; x[a[0]] = 1; a[1] = x[39999];", 1, STACK_ERROR, "overflowed its stack"),
    ("a[100] = 1;", 1, ILLEGAL_ADDRESS, "offset 400 of an allocation of 400 bytes"),
    ("a[-1] = 1;", 1, ILLEGAL_ADDRESS, "offset -4 of an allocation of 400 bytes"),
    ("__trap();", 1, 715, "__trap"),
    ("while (!*(volatile int*)a);", 33, TIMEOUT, ""),
    ("for (;;) __syncthreads();", 33, TIMEOUT, ""),
]


@pytest.mark.full(first=1)
@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[body for body, *_ in MISTAKES])
def test_mistakes(cuda: Driver, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    _, threads, code, said = MISTAKES[number]
    if code == TIMEOUT:
        monkeypatch.setenv("TVMDML_EMULATED_TIMEOUT", "0")
    image = compiled("".join(kernel("int* a", body, name=f"mistake_{place}") for place, (body, *_) in enumerate(MISTAKES)))
    memory = cuda.upload(np.zeros(100, np.int32))
    cuda.launch(cuda.function(image, f"mistake_{number}"), (3,), (threads,), memory)
    with fails(code):
        cuda.wait()
    assert said in capfd.readouterr().err
    with fails(code):  # all later calls fail
        cuda.allocate(4)


def test_the_order_shows_a_missing_barrier(cuda: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the group is one warp, for which a barrier of warps is enough."""
    body = "__shared__ int x[64]; int t = threadIdx.x; x[t] = t; {} a[t] = x[t ? t - 1 : 0];"
    like = np.zeros(64, np.int32)
    memory = cuda.upload(like)
    for threads, barrier in ((64, ""), (32, ""), (32, "__syncwarp();")):
        function, seen = cuda.function(compiled(kernel("int* a", body.format(barrier)))), []
        for seed in ("", "1", "2"):
            monkeypatch.setenv("TVMDML_EMULATED_ORDER", seed)
            cuda.launch(function, (1,), (threads,), memory)
            seen.append((cuda.download(memory, like)[1:threads] == np.arange(threads - 1)).all())
        assert seen == [True, *[bool(barrier)] * 2]


def test_a_copy_is_made_when_it_is_waited_for(cuda: Driver) -> None:
    ended = 'asm volatile("cp.async.commit_group;" : : : "memory");\n'
    waits = {others: f'asm volatile("cp.async.wait_group %0;" : : "n"({others}) : "memory");\n' for others in ("0", "1")}
    text = "".join(
        kernel("int* a", f"{copied(2)}{end}{wait}a[2] = x[3];", name=f"copy_{number}")
        for number, (end, wait) in enumerate([(ended, waits["0"]), (ended, waits["1"]), ("", waits["0"])])
    )
    for number, expected in enumerate((6, -1, -1)):
        memory = cuda.upload(np.array([5, 6, 7], np.int32))
        cuda.launch(cuda.function(compiled(text), f"copy_{number}"), (1,), (1,), memory)
        assert cuda.download(memory, np.zeros(3, np.int32)).tolist() == [5, 6, expected]


@pytest.mark.parametrize("address", ["freed", "host", "other"])
def test_pointers_given_to_a_kernel_are_looked_at(cuda: Driver, address: str, capfd: pytest.CaptureFixture[str]) -> None:
    a = np.zeros(4, np.int32)
    if address == "host":
        memory = ctypes.c_uint64(a.ctypes.data)
    elif address == "freed":
        memory = cuda.upload(a)
        cuda("cuMemFree_v2", memory)
    else:
        cuda("cuCtxPushCurrent_v2", ctypes.c_void_p(cuda.contexts[1]))
        memory = cuda.upload(a)
        cuda("cuCtxPopCurrent_v2", None)
    cuda.launch(cuda.function(compiled(TWICE)), (1,), (4,), memory)
    with fails(ILLEGAL_ADDRESS):
        cuda.wait()
    assert "parameter 0" in capfd.readouterr().err


# -- Streams, events, graphs


@pytest.mark.usefixtures("lazily")
def test_lazy_streams_show_a_missing_wait(cuda: Driver) -> None:
    a = np.arange(4, dtype=np.int32)
    copied = a.copy()
    function, stream = cuda.function(compiled(TWICE)), cuda.stream()
    memory = cuda.upload(copied, stream)
    copied[:] = 0  # the driver has it
    cuda.launch(function, (1,), (4,), memory, stream=stream)
    seen = np.full(4, -1, np.int32)
    cuda.read(memory, seen, stream)
    assert seen.tolist() == [-1] * 4
    cuda("cuStreamSynchronize", None)  # the wrong one
    assert seen.tolist() == [-1] * 4
    with fails(NOT_READY):
        cuda("cuStreamQuery", stream)
    cuda("cuStreamSynchronize", stream)
    assert seen.tolist() == [0, 2, 4, 6]
    cuda("cuStreamQuery", stream)


@pytest.mark.usefixtures("lazily")
@pytest.mark.parametrize("how", ["nothing", "event", "legacy"])
def test_streams_wait_for_one_another(cuda: Driver, how: str) -> None:
    function, memory = cuda.function(compiled(TWICE)), cuda.upload(np.ones(4, np.int32))
    cuda.wait()
    first, second = (cuda.stream(0 if how == "legacy" else NON_BLOCKING) for _ in range(2))
    cuda.launch(function, (1,), (4,), memory, stream=first)
    if how == "event":
        event = cuda.event()
        cuda("cuEventRecord", event, first)
        cuda("cuStreamWaitEvent", second, event, 0)
    elif how == "legacy":
        cuda.launch(function, (1,), (4,), memory)
    seen = np.zeros(4, np.int32)
    cuda.read(memory, seen, second)
    cuda("cuStreamSynchronize", second)
    assert seen[0] == {"nothing": 1, "event": 2, "legacy": 4}[how]
    cuda.wait()


@pytest.mark.usefixtures("lazily")
def test_memory_is_freed_in_turn(cuda: Driver, capfd: pytest.CaptureFixture[str]) -> None:
    stream, other = cuda.stream(), cuda.stream()
    memory = ctypes.c_uint64(cuda.get(ctypes.c_uint64, "cuMemAllocAsync", ctypes.c_size_t(16), stream))
    cuda("cuMemsetD8Async", memory, 7, ctypes.c_size_t(16), stream)
    seen = np.zeros(16, np.uint8)
    cuda.read(memory, seen, stream)
    cuda("cuMemFreeAsync", memory, stream)
    cuda("cuStreamSynchronize", stream)
    assert (seen == 7).all()
    memory = ctypes.c_uint64(cuda.get(ctypes.c_uint64, "cuMemAllocAsync", ctypes.c_size_t(16), stream))
    cuda.read(memory, seen, other)  # nothing orders it before the memory is freed
    cuda("cuMemFreeAsync", memory, stream)
    cuda("cuStreamSynchronize", stream)
    with fails(ILLEGAL_ADDRESS):
        cuda("cuStreamSynchronize", other)
    assert "freed before its turn" in capfd.readouterr().err


def test_a_device_has_the_memory_that_a_variable_says(cuda: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_EMULATED_MEMORY", "1.5M")
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert free.value == total.value == 3 << 19
    memory = cuda.allocate(1 << 20)
    with fails(OUT_OF_MEMORY):
        cuda.allocate(1 << 20)
    cuda("cuMemFree_v2", memory)
    cuda("cuMemFree_v2", cuda.allocate(1 << 20))


def _captured(cuda: Driver, stream: ctypes.c_void_p) -> ctypes.c_void_p:
    graph = ctypes.c_void_p(cuda.of(stream, ctypes.c_void_p, "cuStreamEndCapture"))
    return ctypes.c_void_p(cuda.get(ctypes.c_void_p, "cuGraphInstantiateWithFlags", graph, ctypes.c_uint64(0)))


@pytest.mark.parametrize("mode", [0, THREAD_LOCAL])
@pytest.mark.parametrize("call", ["allocate", "free", "wait", "stream", "in turn", "load"])
def test_what_a_capture_forbids(cuda: Driver, mode: int, call: str) -> None:
    stream, memory, image = cuda.stream(), cuda.allocate(4), compiled(TWICE)
    calls: dict[str, Callable[[], Any]] = {
        "allocate": lambda: cuda.allocate(4),
        "free": lambda: cuda("cuMemFree_v2", memory),
        "wait": cuda.wait,
        "stream": lambda: cuda("cuStreamSynchronize", stream),
        "in turn": lambda: cuda.get(ctypes.c_uint64, "cuMemAllocAsync", ctypes.c_size_t(4), stream),
        "load": lambda: cuda.load(image),
    }
    cuda("cuStreamBeginCapture_v2", stream, mode)
    with fails(CAPTURE_UNSUPPORTED):
        calls[call]()
    assert cuda.of(stream, ctypes.c_int, "cuStreamIsCapturing") == 2
    with fails(INVALIDATED):
        _captured(cuda, stream)
    if call not in ("wait", "stream"):
        cuda("cuStreamSynchronize", stream)


def test_captures_stand_alone(cuda: Driver) -> None:
    stream, other, event, memory = cuda.stream(), cuda.stream(), cuda.event(), cuda.allocate(4)
    cuda("cuEventRecord", event, other)
    cuda("cuStreamBeginCapture_v2", stream, 0)
    with fails(ISOLATION):
        cuda("cuStreamWaitEvent", stream, event, 0)
    with fails(INVALIDATED):
        _captured(cuda, stream)

    cuda("cuStreamBeginCapture_v2", stream, 0)
    cuda("cuEventRecord", event, stream)
    cuda("cuStreamWaitEvent", other, event, 0)
    cuda("cuMemsetD8Async", memory, 0, ctypes.c_size_t(4), other)
    with fails(UNJOINED):
        _captured(cuda, stream)

    blocking = cuda.stream(0)
    cuda("cuStreamBeginCapture_v2", blocking, 0)
    with fails(IMPLICIT):
        cuda("cuMemsetD8Async", memory, 0, ctypes.c_size_t(4), None)
    with fails(IMPLICIT):
        cuda.of(None, ctypes.c_int, "cuStreamIsCapturing")
    with fails(INVALIDATED):
        _captured(cuda, blocking)


@pytest.mark.full
def test_the_process_s_own_faults_stay_its_own(tmp_path: Path) -> None:
    """What is no kernel's fault still comes to the handler that was there before."""
    script = """
import ctypes, faulthandler, sys
faulthandler.enable()
from pathlib import Path
sys.path[:0] = sys.argv[1], sys.argv[3]
import test_cuda_emulator as t, numpy as np
with t._driver(Path(sys.argv[2])).used() as cuda:
    cuda.launch(cuda.function(t.compiled(t.TWICE)), (1,), (4,), cuda.upload(np.zeros(4, np.int32)))
    cuda.wait()
    ctypes.string_at(8)
"""
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path), str(TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -11
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_the_environment_names_what_was_built() -> None:
    environment = cuda_emulator.environment()
    assert Path(environment["TVMDML_CUDA_LIBRARY"]).name == "libcuda.so.1"
    assert os.access(environment["TVMDML_NVCC"], os.X_OK)
    command = [sys.executable, "-m", "cuda_emulator"]
    said = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True).stdout
    assert f"export TVMDML_NVCC={environment['TVMDML_NVCC']}\n" in said

"""The emulated GPU of the CUDA tests: it computes what a GPU computes, and detects misuse that a GPU would not tolerate."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cuda_emulator
import numpy as np
import pytest
from numpy.typing import NDArray

from tvmdml.targets.cuda import compilers

Array = NDArray[Any]
pytestmark = pytest.mark.skipif(bool(cuda_emulator.missing()), reason=cuda_emulator.missing())

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INVALID_DEVICE, INVALID_IMAGE, INVALID_CONTEXT = 1, 2, 3, 101, 200, 201
NO_BINARY, INVALID_HANDLE, NOT_FOUND, NOT_READY = 209, 400, 500, 600
ILLEGAL_ADDRESS, TIMEOUT, DESTROYED, STACK_ERROR, MISALIGNED, FAILED = 700, 702, 709, 714, 716, 719
CAPTURE_UNSUPPORTED, INVALIDATED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT = 900, 901, 904, 905, 906, 907
NON_BLOCKING, THREAD_LOCAL, RELAXED = 1, 1, 2


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


def compiled(text: str, arch: str = "sm_90", nvcc: Path | None = None) -> bytes:
    """The kernel's image; compiled once a session."""
    key = (text, arch, nvcc)
    if key not in _images:
        _images[key] = _compile(text, arch, nvcc)
    return _images[key]


_images: dict[tuple[str, str, Path | None], bytes] = {}


def _compile(text: str, arch: str, nvcc: Path | None) -> bytes:
    kind = "-ptx" if arch.startswith("compute_") else "-cubin"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, image = folder / "kernel.cu", folder / "kernel.image"
        source.write_text(text)
        command = [str(nvcc or cuda_emulator.environment()["TVMDML_NVCC"]), kind, f"-arch={arch}", "-o", str(image), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(done.stderr)
        assert not done.stderr
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


@pytest.fixture(params=["", "1", "2"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_EMULATED_ORDER", request.param)


@pytest.fixture
def lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_EMULATED_LAZY", "1")


def kernel(parameters: str, body: str, bound: int = 1024, before: str = "") -> str:
    return f'{before}\nextern "C" __global__ void __launch_bounds__({bound}) kernel({parameters}) {{\n{body}\n}}\n'


ADD = kernel("float* __restrict__ a, float* __restrict__ b, int n", "int i = threadIdx.x; if (i < n) a[i] = a[i] + b[i];")
TWICE = kernel("int* a", "a[threadIdx.x] *= 2;")


# -- What a kernel computes


@pytest.mark.usefixtures("order")
def test_every_thread_runs_once(cuda: Driver) -> None:
    text = kernel("unsigned* a, unsigned w, unsigned h", """
      unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
      unsigned z = blockIdx.z * blockDim.z + threadIdx.z;
      atomicAdd(&a[(z * h + y) * w + x], 1 + gridDim.x + 10 * gridDim.y + 100 * gridDim.z);""")  # fmt: skip
    shape = (3 * 2, 5 * 3, 7 * 4)
    a = np.zeros(shape, np.uint32)
    memory = cuda.upload(a)
    cuda.launch(cuda.function(compiled(text)), (7, 5, 3), (4, 3, 2), memory, ctypes.c_uint32(shape[2]), ctypes.c_uint32(shape[1]))
    assert (cuda.download(memory, a) == 1 + 7 + 50 + 300).all()


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("how", ["each", "extra"])
def test_parameters_are_aligned_as_their_types_are(cuda: Driver, how: str) -> None:
    body = "to[0] = c; to[1] = d; to[2] = s; to[3] = v.w; to[4] = b;"
    text = kernel("char c, double d, short s, float4 v, bool b, long long* to", body)
    memory = cuda.allocate(40)
    function = cuda.function(compiled(text))
    offsets = dict(zip("cdsvbt", (0, 8, 16, 32, 48, 56), strict=True))
    formats = ["i1", "f8", "i2", "(4,)f4", "?", "u8"]
    values = np.zeros(1, np.dtype({"names": list(offsets), "formats": formats, "offsets": list(offsets.values())}))
    values[0] = (-3, 1e9, -400, (0, 0, 0, 77), True, memory.value)
    buffer = ctypes.create_string_buffer(values.tobytes(), 64)
    size = ctypes.c_size_t(64)
    if how == "extra":
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
        cuda("cuLaunchKernel", function, *(1,) * 6, 0, None, None, extra)
    else:
        each = (ctypes.c_void_p * 6)(*(ctypes.addressof(buffer) + offset for offset in offsets.values()))
        cuda("cuLaunchKernel", function, *(1,) * 6, 0, None, each, None)
    assert cuda.download(memory, np.empty(5, np.int64)).tolist() == [-3, 10**9, -400, 77, 1]


@pytest.mark.usefixtures("order")
def test_barriers_and_shared_memory(cuda: Driver) -> None:
    text = kernel("int* a", """
      __shared__ int x[1024];
      for (int round = 0; round < 3; round++) {
        x[threadIdx.x] = a[blockIdx.x * blockDim.x + threadIdx.x];
        __syncthreads();
        int value = x[blockDim.x - 1 - threadIdx.x], count = __syncthreads_count(threadIdx.x % 3 == 0);
        a[blockIdx.x * blockDim.x + threadIdx.x] = value + count - 32;
      }""")  # fmt: skip
    a = np.arange(8 * 96, dtype=np.int32).reshape(8, 96)
    memory = cuda.upload(a)
    cuda.launch(cuda.function(compiled(text)), (8,), (96,), memory)
    assert (cuda.download(memory, a) == a[:, ::-1]).all()


def test_a_group_begins_with_junk_in_shared_memory(cuda: Driver) -> None:
    text = kernel("int* a", "__shared__ int x[33]; a[blockIdx.x * 33 + threadIdx.x] = x[threadIdx.x]; x[threadIdx.x] = 5;")
    a = np.zeros(99, np.int32)
    memory = cuda.upload(a)
    cuda.launch(cuda.function(compiled(text)), (3,), (33,), memory)
    assert (cuda.download(memory, a) == -1).all()


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("c", ["int", "long long", "float", "double"])
def test_a_warp_adds_up_by_shuffles(cuda: Driver, c: str) -> None:
    dtype: Any = {"int": np.int32, "long long": np.int64, "float": np.float32, "double": np.float64}[c]
    text = kernel(f"{c}* a", f"""
      int lane = threadIdx.x & 31;
      {c} value = a[threadIdx.x];
      for (int by = 1; by < 32; by <<= 1) {{
        {c} other = __shfl_up_sync(0xffffffffu, value, by);
        if (lane >= by) value += other;
      }}
      a[threadIdx.x] = value;""")  # fmt: skip
    a = np.arange(96).astype(dtype) * (1 << 20 if dtype == np.int64 else 1)
    memory = cuda.upload(a)
    cuda.launch(cuda.function(compiled(text)), (1,), (96,), memory)
    assert (cuda.download(memory, a).reshape(3, 32) == np.cumsum(a.reshape(3, 32), axis=1)).all()


@pytest.mark.usefixtures("order")
def test_operations_of_a_warp(cuda: Driver) -> None:
    text = kernel("unsigned* a, long long* b", """
      unsigned t = threadIdx.x, all = 0xffffffffu, *to = a + t * 16;
      to[0] = __ballot_sync(all, t % 3 == 0);
      to[1] = __any_sync(all, t == 40) + 2 * __all_sync(all, t < 40);
      to[2] = __match_any_sync(all, t % 4);
      to[3] = __reduce_add_sync(all, t);
      to[4] = __reduce_max_sync(all, (int)t - 40);
      to[5] = __reduce_min_sync(all, t + 7);
      to[6] = __reduce_or_sync(all, 1u << t % 32 / 2);
      to[7] = __shfl_sync(all, t, 5, 8);
      to[8] = __shfl_down_sync(all, t, 3, 16);
      to[9] = __shfl_xor_sync(all, t, 6);
      to[10] = __activemask();
      if (t % 2) to[11] = __ballot_sync(0xaaaaaaaau, t & 2); else to[11] = __ballot_sync(0x55555555u, t & 2);
      if (t % 32 < 7) to[12] = __activemask();
      b[t] = __shfl_xor_sync(all, (long long)t << 33, 1);""")  # fmt: skip
    a, b = np.zeros((64, 16), np.uint32), np.zeros(64, np.int64)
    memory, long = cuda.upload(a), cuda.upload(b)
    cuda.launch(cuda.function(compiled(text)), (1,), (64,), memory, long)
    a, b = cuda.download(memory, a), cuda.download(long, b)

    for t in range(64):
        first, lane = t // 32 * 32, t % 32
        expected = [
            sum(1 << k for k in range(32) if (first + k) % 3 == 0),
            (t >= 32) + 2 * (t < 32),
            sum(1 << k for k in range(32) if k % 4 == t % 4),
            sum(range(first, first + 32)),
            (first + 31 - 40) % 2**32,
            first + 7,
            0xFFFF,
            t // 8 * 8 + 5,
            t + 3 if t % 16 < 13 else t,
            t ^ 6,
            0xFFFFFFFF,
            sum(1 << k for k in range(32) if k % 2 == t % 2 and k & 2),
            0x7F if lane < 7 else 0,
        ]
        assert a[t, :13].tolist() == expected
        assert b[t] == (t ^ 1) << 33


def test_threads_that_ended_are_not_waited_for(cuda: Driver) -> None:
    text = kernel("int* a", """
      if (threadIdx.x % 2) return;
      __syncthreads();
      __syncwarp();
      a[threadIdx.x] = __popc(__ballot_sync(0xffffffffu, 1));""")  # fmt: skip
    memory = cuda.upload(np.zeros(40, np.int32))
    cuda.launch(cuda.function(compiled(text)), (1,), (40,), memory)
    assert cuda.download(memory, np.zeros(40, np.int32)).tolist() == ([16, 0] * 16 + [4, 0] * 4)


def test_a_lane_that_takes_no_part_gives_junk(cuda: Driver) -> None:
    text = kernel("unsigned* a", "a[threadIdx.x] = __shfl_xor_sync(0xffffffffu, threadIdx.x, 8);")
    memory = cuda.upload(np.zeros(12, np.uint32))
    cuda.launch(cuda.function(compiled(text)), (1,), (12,), memory)
    assert cuda.download(memory, np.zeros(12, np.uint32)).tolist() == [8, 9, 10, 11, *[0xDEADBEEF] * 4, 0, 1, 2, 3]


@pytest.mark.usefixtures("order")
def test_atomics(cuda: Driver) -> None:
    text = kernel("int* i, unsigned long long* u, float* f", """
      int t = blockIdx.x * blockDim.x + threadIdx.x;
      atomicAdd(&i[0], t); atomicMin(&i[1], -t); atomicMax(&i[2], t); atomicXor(&i[3], t);
      atomicOr((unsigned*)&i[4], 1u << t % 32); atomicAnd(&i[5], ~(1 << t % 16)); atomicExch(&i[6], 9);
      int seen = i[7];
      for (int old; (old = atomicCAS(&i[7], seen, seen + 2)) != seen; seen = old);
      atomicAdd(&u[0], 1ull << 32); atomicMax(&u[1], (unsigned long long)t << 40); atomicMin((long long*)&u[2], -1ll - t);
      atomicAdd(f, 0.5f);""")  # fmt: skip
    i, u, f = np.zeros(8, np.int32), np.zeros(3, np.uint64), np.zeros(1, np.float32)
    i[5] = -1
    memories = [cuda.upload(i), cuda.upload(u), cuda.upload(f)]
    n = 64 * 50
    cuda.launch(cuda.function(compiled(text)), (50,), (64,), *memories)
    i, u, f = cuda.download(memories[0], i), cuda.download(memories[1], u), cuda.download(memories[2], f)
    assert i.tolist() == [n * (n - 1) // 2, 1 - n, n - 1, np.bitwise_xor.reduce(np.arange(n)), -1, -(2**16), 9, 2 * n]
    assert u.tolist() == [n << 32, (n - 1) << 40, 2**64 - n]
    assert f.tolist() == [n / 2]


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("workers", ["1", "2", "3"])
def test_groups_wait_for_those_before_them(cuda: Driver, workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over all groups before, each of which is published by a group that has a ticket."""
    monkeypatch.setenv("TVMDML_EMULATED_WORKERS", workers)
    text = kernel("const int* a, int* to, unsigned* ticket, volatile int* flags, volatile int* sums", """
      __shared__ int turn, before;
      if (threadIdx.x == 0) turn = atomicAdd(ticket, 1);
      __syncthreads();
      int at = turn * 32 + threadIdx.x, value = a[at];
      for (int by = 1; by < 32; by <<= 1) {
        int other = __shfl_up_sync(0xffffffffu, value, by);
        if (threadIdx.x >= by) value += other;
      }
      if (threadIdx.x == 31) {
        int found = 0;
        if (turn) {
          while (!flags[turn - 1]) __threadfence();
          __threadfence();
          found = sums[turn - 1];
        }
        sums[turn] = found + value;
        __threadfence();
        flags[turn] = 1;
        before = found;
      }
      __syncthreads();
      to[at] = before + value;""")  # fmt: skip
    groups = 300
    a = np.arange(groups * 32, dtype=np.int32) % 11
    zeros = np.zeros(groups, np.int32)
    to, *others = map(cuda.upload, (np.zeros_like(a), zeros[:1], zeros, zeros))
    cuda.launch(cuda.function(compiled(text)), (groups,), (32,), cuda.upload(a), to, *others)
    assert (cuda.download(to, a) == np.cumsum(a)).all()


def test_vectors_and_intrinsics(cuda: Driver) -> None:
    text = kernel("float* f, int* i, const double* d", """
      float4 v = *(float4*)(f + 4);
      *(float4*)f = make_float4(v.w, rintf(v.z), truncf(v.y), floorf(v.x));
      int2 halves = *(const int2*)&d[0];
      i[0] = __popc(0xf0f0u) + __popcll(1ull << 40 | 1); i[1] = __clz(1); i[2] = __ffs(8); i[3] = __float_as_int(1.0f);
      i[4] = __double_as_longlong(d[0]) == (((long long)halves.y << 32) | (unsigned)halves.x);
      i[5] = isnan(__int_as_float(0x7fc00000)) + 2 * isnan(d[0]) + 4 * isinf(1.0f / (f[3] - f[3]));
      i[6] = max(-1, min(3, 7)); i[7] = __float2int_rn(2.5f) + 10 * __float2int_rz(-1e20f / 1e18f);
      i[8] = __double2ll_rd(-0.5); i[9] = __float2int_rz(1e20f); i[10] = __ldg(&i[6]); i[11] = __brev(1) == 0x80000000u;
      i[12] = fmaxf(__int_as_float(0x7fc00000), 3.0f);""")  # fmt: skip
    f = np.array([0, 0, 0, 0, -0.5, 2.7, 3.5, 9], np.float32)
    memory, numbers = cuda.upload(f), cuda.upload(np.zeros(13, np.int32))
    cuda.launch(cuda.function(compiled(text)), (1,), (1,), memory, numbers, cuda.upload(np.array([-1.25])))
    assert cuda.download(memory, f)[:4].tolist() == [9, 4, 2, -1]
    expected = [8 + 2, 31, 4, 0x3F800000, 1, 1 + 4, 3, 2 - 1000, -1, 2**31 - 1, 3, 1, 3]
    assert cuda.download(numbers, np.zeros(13, np.int32)).tolist() == expected


# -- Half precision, by NVIDIA's header and by the one for computers without it


def _halves() -> Array:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@pytest.fixture(params=["found", "own"])
def nvcc(request: pytest.FixtureRequest) -> Path:
    built = cuda_emulator.build()
    assert built is not None
    if request.param == "own":
        return Path(cuda_emulator.__file__).parent / "nvcc"
    return built.parent / "nvcc"


def _same(a: Array, b: Array) -> bool:
    return bool(((a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b))).all())


def _each_half(cuda: Driver, nvcc: Path, expression: str, dtype: Any = np.float16, more: Array | None = None) -> Array:
    """An expression of every half, ``a``, and of as many other numbers, ``b``."""
    other = _halves() if more is None else more
    c = {"e": "__half", "f": "float", "i": "int", "d": "double"}
    parameters = f"const __half* p, const {c[other.dtype.char]}* q, {c[np.dtype(dtype).char]}* to"
    body = f"int i = blockIdx.x * blockDim.x + threadIdx.x; auto a = p[i]; auto b = q[i]; to[i] = {expression};"
    text = kernel(parameters, body, before="#include <cuda_fp16.h>")
    like = np.zeros(1 << 16, dtype)
    memory = cuda.upload(like)
    cuda.launch(cuda.function(compiled(text, nvcc=nvcc)), (256,), (256,), cuda.upload(_halves()), cuda.upload(other), memory)
    return cuda.download(memory, like)


def test_halves_become_floats(cuda: Driver, nvcc: Path) -> None:
    assert _same(_each_half(cuda, nvcc, "__half2float(a)", np.float32), _halves().astype(np.float32))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_floats_become_halves(cuda: Driver, nvcc: Path, kind: Any) -> None:
    """Those between two halves, just beside the middle, and in it."""
    halves = _halves()
    finite = halves[np.isfinite(halves)].astype(kind)
    with np.errstate(over="ignore"):
        middle = (finite + np.nextafter(finite.astype(np.float16), np.float16(np.inf)).astype(kind)) / 2
    generator = np.random.default_rng(1)
    beside = (np.nextafter(middle, kind(np.inf)), np.nextafter(middle, kind(-np.inf)))
    values = np.concatenate([middle, *beside, [65520, -65519.99, np.nan]])
    values = generator.choice(values, 1 << 16).astype(kind)
    convert = "__float2half_rn" if kind is np.float32 else "__double2half"
    with np.errstate(over="ignore"):
        assert _same(_each_half(cuda, nvcc, f"{convert}(b)", more=values), values.astype(np.float16))


@pytest.mark.parametrize("sign", ["+", "-", "*", "/"])
def test_half_arithmetic(cuda: Driver, nvcc: Path, sign: str) -> None:
    other = np.random.default_rng(2).permutation(_halves())
    function: Any = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[sign]
    with np.errstate(all="ignore"):
        assert _same(_each_half(cuda, nvcc, f"a {sign} b", more=other), function(_halves(), other))


def test_half_functions(cuda: Driver, nvcc: Path) -> None:
    halves, other = _halves(), np.random.default_rng(3).permutation(_halves())
    with np.errstate(all="ignore"):
        assert _same(_each_half(cuda, nvcc, "hrint(a)"), np.rint(halves))
        assert _same(_each_half(cuda, nvcc, "htrunc(a)"), np.trunc(halves))
        compared = _each_half(cuda, nvcc, "(a < b) + 2 * (a == b) + 4 * __hisnan(a) + 8 * (a >= b)", np.int32, other)
    assert (compared == (halves < other) + 2 * (halves == other) + 4 * np.isnan(halves) + 8 * (halves >= other)).all()


# -- What a kernel may not do


@pytest.mark.parametrize(
    ("body", "threads", "code", "said"),
    [
        ("if (threadIdx.x < 32) __syncthreads(); else {\n__syncthreads(); }", 64, FAILED, "is not where other threads wait"),
        ("if (threadIdx.x < 3) __syncthreads(); else __syncwarp();", 64, FAILED, "for ever"),
        ("if (threadIdx.x < 3) __syncwarp(); else __syncthreads();", 32, FAILED, "for ever"),
        ("if (threadIdx.x) __shfl_sync(0xffffffffu, 1, 0); else __ballot_sync(0xffffffffu, 1);", 32, FAILED, "for ever"),
        ("__ballot_sync(0xffu, 1);", 32, FAILED, "does not name itself"),
        ("__shfl_sync(threadIdx.x < 9 ? 0x1ffu : 0xffffffffu, 1, 0); __syncwarp();", 32, FAILED, "for ever"),
        ("__shared__ int x[64]; x[threadIdx.x] = 1; a[0] = x[5];", 65, ILLEGAL_ADDRESS, "beyond an array's end"),
        ("int x[4] = {1, 2}; a[1] = x[a[0] + threadIdx.x];", 5, ILLEGAL_ADDRESS, "beyond an array's end"),
        ("*(int4*)(a + threadIdx.x) = make_int4(1, 2, 3, 4);", 2, MISALIGNED, "not aligned"),
        ("a[1] = 1 << (threadIdx.x * 8);", 5, FAILED, "shifted"),
        ("a[1] = 7 / a[0];", 1, FAILED, "divided by zero"),
        ("a[1] = 7u % (unsigned)a[0];", 1, FAILED, "divided by zero"),
        ("a[1] = 0x7fffffff + (int)threadIdx.x;", 2, FAILED, "a sum"),
        ("a[1] = *(volatile int*)((char*)a + (1ull << 40));", 1, ILLEGAL_ADDRESS, "not there"),
        ("volatile int x[40000]; x[a[0]] = 1; a[1] = x[39999];", 1, STACK_ERROR, "overflowed its stack"),
        ("a[100] = 1;", 1, ILLEGAL_ADDRESS, "offset 400 of an allocation of 400 bytes"),
        ("a[-1] = 1;", 1, ILLEGAL_ADDRESS, "offset -4 of an allocation of 400 bytes"),
        ("__trap();", 1, 715, "__trap"),
    ],
)  # fmt: skip
def test_mistakes(cuda: Driver, capfd: pytest.CaptureFixture[str], body: str, threads: int, code: int, said: str) -> None:
    memory = cuda.upload(np.zeros(100, np.int32))
    cuda.launch(cuda.function(compiled(kernel("int* a", body))), (3,), (threads,), memory)
    with fails(code):
        cuda.wait()
    assert said in capfd.readouterr().err
    with fails(code):  # all later calls fail
        cuda.allocate(4)


@pytest.mark.parametrize("body", ["while (!a[0]);", "for (;;) __syncthreads();", "while (!a[0]) __nanosleep(9);"])
def test_a_kernel_that_does_not_end(cuda: Driver, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    monkeypatch.setenv("TVMDML_EMULATED_TIMEOUT", "0")
    cuda.launch(cuda.function(compiled(kernel("volatile int* a", body))), (4,), (33,), cuda.upload(np.zeros(1, np.int32)))
    with fails(TIMEOUT):
        cuda.wait()


def test_the_order_shows_a_missing_barrier(cuda: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "__shared__ int x[64]; int t = threadIdx.x; x[t] = t; a[t] = x[t ? t - 1 : 0];"
    text = kernel("int* a", body)
    function, like, seen = cuda.function(compiled(text)), np.zeros(64, np.int32), []
    memory = cuda.upload(like)
    for seed in ("", "1", "2"):
        monkeypatch.setenv("TVMDML_EMULATED_ORDER", seed)
        cuda.launch(function, (1,), (64,), memory)
        seen.append((cuda.download(memory, like)[1:] == np.arange(63)).all())
    assert seen == [True, False, False]


def test_limits_of_a_launch(cuda: Driver) -> None:
    function = cuda.function(compiled(kernel("int* a", "a[0] = 1;", 256)))
    memory = cuda.upload(np.zeros(1, np.int32))
    for groups in ((1, 65536), (0,), (1 << 31,)):
        with fails(INVALID_VALUE):
            cuda.launch(function, groups, (1,), memory)
    for threads in ((257,), (1025,), (1, 1, 65), (0,)):
        with fails(INVALID_VALUE):
            cuda.launch(function, (1,), threads, memory)
    many = cuda.function(compiled(kernel("int* a", "__shared__ int x[12289]; x[threadIdx.x] = 1; a[0] = x[0];")))
    with fails(INVALID_VALUE):
        cuda.launch(many, (1,), (1,), memory)
    assert cuda.get(ctypes.c_int, "cuFuncGetAttribute", 1, many) == 4 * 12289
    assert cuda.get(ctypes.c_int, "cuFuncGetAttribute", 0, function) == 256
    size, buffer = ctypes.c_size_t(4), ctypes.create_string_buffer(8)
    with fails(INVALID_VALUE):  # too few bytes of parameters
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
        cuda("cuLaunchKernel", function, *(1,) * 6, 0, None, None, extra)
    cuda.launch(function, (1,), (256,), memory)
    assert cuda.download(memory, np.zeros(1, np.int32))[0] == 1


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


# -- The compiler


def test_the_compiler_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"kernel\.cu.*error: 'b' was not declared"):
        compiled(kernel("int* a", "a[0] = b;"))
    with pytest.raises(ValueError, match="atomicAdd"):  # CUDA has no such function for this type
        compiled(kernel("long long* a", "atomicAdd(a, 1ll);"))
    environment = cuda_emulator.environment()
    said = subprocess.run([environment["TVMDML_NVCC"], "--version"], capture_output=True, text=True, check=True).stdout
    assert "release 13.0, V13.0.88 (tvmdml's emulator)" in said
    for arguments in (["-x"], ["-cubin"], ["-cubin", str(tmp_path / "none.cu")]):
        assert subprocess.run([environment["TVMDML_NVCC"], *arguments], capture_output=True, check=False).returncode == 1


def test_options_of_the_compiler(tmp_path: Path) -> None:
    source, image = tmp_path / "a b.cu", tmp_path / "out put.cubin"
    source.write_text(ADD)
    for options in (
        "-cubin -arch=sm_80 --std=c++17 --fmad=false --ftz=false --prec-div=true --prec-sqrt=true -diag-suppress=177",
        "--cubin -arch sm_90a -std=c++17 -O3 -Xptxas -v -I/nowhere -I .",
        "-cubin -gencode arch=compute_90,code=sm_90 -lineinfo",
    ):
        image.unlink(missing_ok=True)
        command = [cuda_emulator.environment()["TVMDML_NVCC"], *options.split(), "-o", str(image), str(source)]
        subprocess.run(command, check=True)
        assert image.read_bytes()[:4] == b"\x7fELF"


def test_images_are_for_an_architecture(cuda: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    for arch, code in (("sm_90", 0), ("sm_80", NO_BINARY), ("sm_100", NO_BINARY), ("compute_80", 0), ("compute_100", NO_BINARY)):
        image = compiled(TWICE, arch)
        if code:
            with fails(code):
                cuda.load(image)
        else:
            memory = cuda.upload(np.arange(4, dtype=np.int32))
            cuda.launch(cuda.function(image), (1,), (4,), memory)
            assert cuda.download(memory, np.zeros(4, np.int32)).tolist() == [0, 2, 4, 6]
    monkeypatch.setenv("TVMDML_EMULATED_ARCH", "86")
    cuda.load(compiled(TWICE, "sm_80"))
    with fails(INVALID_IMAGE):
        cuda.load(b"neither of them")
    with fails(NOT_FOUND):
        cuda.function(compiled(TWICE, "sm_80"), "nothing")


def test_modules_are_unloaded(cuda: Driver) -> None:
    for factor in range(1, 6):
        module = cuda.load(compiled(kernel("int* a", f"a[0] = {factor % 3};")))
        function = ctypes.c_void_p(cuda.get(ctypes.c_void_p, "cuModuleGetFunction", module, b"kernel"))
        memory = cuda.upload(np.zeros(1, np.int32))
        cuda.launch(function, (1,), (1,), memory)
        assert cuda.download(memory, np.zeros(1, np.int32))[0] == factor % 3
        cuda("cuModuleUnload", module)
    with fails(INVALID_HANDLE):
        cuda("cuModuleUnload", module)


# -- Contexts and memory


def test_devices(cuda: Driver) -> None:
    assert cuda.get(ctypes.c_int, "cuDriverGetVersion") == 13000
    name = ctypes.create_string_buffer(100)
    cuda("cuDeviceGetName", name, 100, 1)
    assert name.value == b"tvmdml's CUDA emulator (a CPU)"
    attributes = {1: 1024, 8: 48 << 10, 10: 32, 16: 132, 75: 9, 76: 0, 115: 1}
    assert {number: cuda.get(ctypes.c_int, "cuDeviceGetAttribute", number, 1) for number in attributes} == attributes
    with fails(INVALID_DEVICE):
        cuda.get(ctypes.c_int, "cuDeviceGet", 2)
    text = ctypes.c_char_p()
    cuda("cuGetErrorName", 700, ctypes.byref(text))
    assert text.value == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    cuda("cuGetErrorString", 2, ctypes.byref(text))
    assert text.value == b"out of memory"
    with fails(INVALID_VALUE):
        cuda("cuGetErrorName", 12345, ctypes.byref(text))


def test_contexts_are_each_thread_s_own(cuda: Driver) -> None:
    first, second = cuda.contexts

    def current() -> int | None:
        return cuda.get(ctypes.c_void_p, "cuCtxGetCurrent")  # type: ignore[no-any-return]

    assert current() == first
    cuda("cuCtxPushCurrent_v2", ctypes.c_void_p(second))
    assert current() == second
    memory = cuda.allocate(4)
    assert cuda.get(ctypes.c_int, "cuPointerGetAttribute", 9, memory) == 1
    stream, event = cuda.stream(), cuda.event()
    assert cuda.get(ctypes.c_void_p, "cuCtxPopCurrent_v2") == second
    with fails(INVALID_HANDLE):  # the stream is the other context's
        cuda("cuStreamSynchronize", stream)
    with fails(INVALID_HANDLE):
        cuda("cuEventRecord", event, None)
    seen: list[Any] = []

    def other() -> None:
        seen.append(current())
        try:
            cuda.allocate(4)
        except Fault as fault:
            seen.append(fault.code)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [None, INVALID_CONTEXT]
    with fails(INVALID_CONTEXT):
        cuda("cuCtxPushCurrent_v2", None)
    assert current() == first


def test_threads_work_at_once(cuda: Driver) -> None:
    """Each has a stream and a kernel of its own."""
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            cuda("cuCtxPushCurrent_v2", ctypes.c_void_p(cuda.contexts[0]))
            text = kernel("int* a", f"__shared__ int x[32]; x[threadIdx.x] = {number}; __syncthreads(); a[threadIdx.x] += x[0];")
            function, stream = cuda.function(compiled(text)), cuda.stream()
            memory = cuda.upload(np.zeros(32, np.int32), stream)
            for _ in range(50):
                cuda.launch(function, (1,), (32,), memory, stream=stream)
            seen = np.zeros(32, np.int32)
            cuda.read(memory, seen, stream)
            cuda("cuStreamSynchronize", stream)
            assert seen.tolist() == [50 * number] * 32
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_context_ends_with_its_last_owner(cuda: Driver) -> None:
    cuda.allocate(1 << 20)
    cuda("cuDevicePrimaryCtxRelease_v2", 0)
    with fails(DESTROYED):
        cuda.allocate(4)
    with fails(INVALID_CONTEXT):
        cuda("cuDevicePrimaryCtxRelease_v2", 0)
    cuda.get(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", 0)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert free.value == total.value == 4 << 30


def test_memory_is_aligned_and_holds_junk(cuda: Driver) -> None:
    for nbytes in (1, 255, 256, 4097, 1 << 20):
        memory = cuda.allocate(nbytes)
        assert memory.value % 256 == 0
        assert (cuda.download(memory, np.zeros(nbytes, np.uint8)) == 0xD5).all()
        for offset, size in ((0, nbytes + 1), (1, nbytes), (-1, 1)):
            with fails(INVALID_VALUE):
                cuda.read(ctypes.c_uint64(memory.value + offset), np.zeros(size, np.uint8))
        with fails(INVALID_VALUE):
            cuda("cuMemFree_v2", ctypes.c_uint64(memory.value + 1))
        cuda("cuMemFree_v2", memory)
        with fails(INVALID_VALUE):
            cuda("cuMemFree_v2", memory)
        with fails(INVALID_VALUE):
            cuda.get(ctypes.c_int, "cuPointerGetAttribute", 9, memory)
    with fails(INVALID_VALUE):
        cuda.allocate(0)


def test_a_device_has_so_much_memory(cuda: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_EMULATED_MEMORY", "1M")
    pool = ctypes.c_void_p(cuda.get(ctypes.c_void_p, "cuDeviceGetDefaultMemPool", 0))
    cuda("cuMemPoolSetAttribute", pool, 4, ctypes.byref(ctypes.c_uint64(2**64 - 1)))
    size = ctypes.c_size_t(600 << 10)
    memory = ctypes.c_uint64(cuda.get(ctypes.c_uint64, "cuMemAllocAsync", size, None))
    with fails(OUT_OF_MEMORY):
        cuda.allocate(600 << 10)
    cuda("cuMemFreeAsync", memory, None)
    with fails(OUT_OF_MEMORY):  # the pool keeps it
        cuda.allocate(600 << 10)
    held = ctypes.c_uint64()
    cuda("cuMemPoolGetAttribute", pool, 5, ctypes.byref(held))
    assert held.value == size.value
    cuda("cuMemFreeAsync", ctypes.c_uint64(cuda.get(ctypes.c_uint64, "cuMemAllocAsync", size, None)), None)
    cuda("cuMemPoolTrimTo", pool, ctypes.c_size_t(0))
    cuda.allocate(600 << 10)


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


def test_events_have_times(cuda: Driver) -> None:
    first, last, untimed = cuda.event(), cuda.event(), cuda.event(2)
    for event in (first, last, untimed):
        cuda("cuEventQuery", event)
        cuda("cuEventRecord", event, None)
        cuda("cuEventSynchronize", event)
    assert 0 <= cuda.get(ctypes.c_float, "cuEventElapsedTime", first, last) < 1000
    with fails(INVALID_HANDLE):
        cuda.get(ctypes.c_float, "cuEventElapsedTime", first, untimed)
    cuda("cuEventDestroy_v2", first)
    with fails(INVALID_HANDLE):
        cuda("cuEventRecord", first, None)


def _captured(cuda: Driver, stream: ctypes.c_void_p) -> ctypes.c_void_p:
    graph = ctypes.c_void_p(cuda.of(stream, ctypes.c_void_p, "cuStreamEndCapture"))
    return ctypes.c_void_p(cuda.get(ctypes.c_void_p, "cuGraphInstantiateWithFlags", graph, ctypes.c_uint64(0)))


def test_a_captured_stream_is_replayed(cuda: Driver) -> None:
    function, stream, other, event, joined = cuda.function(compiled(ADD)), cuda.stream(), cuda.stream(), cuda.event(), cuda.event()
    a, b = cuda.upload(np.zeros(8, np.float32)), cuda.upload(np.ones(8, np.float32))
    n = ctypes.c_int(8)
    cuda("cuStreamBeginCapture_v2", stream, 0)
    assert cuda.of(stream, ctypes.c_int, "cuStreamIsCapturing") == 1
    cuda.launch(function, (1,), (8,), a, b, n, stream=stream)
    cuda("cuEventRecord", event, stream)
    cuda("cuStreamWaitEvent", other, event, 0)
    assert cuda.of(other, ctypes.c_int, "cuStreamIsCapturing") == 1
    cuda("cuMemcpyDtoDAsync_v2", b, a, ctypes.c_size_t(16), other)
    cuda("cuEventRecord", joined, other)
    with fails(CAPTURED_EVENT):
        cuda("cuEventQuery", joined)
    cuda("cuStreamWaitEvent", stream, joined, 0)
    n.value = 0  # the launch keeps its parameters alive
    replay = _captured(cuda, stream)
    assert (cuda.download(a, np.zeros(8, np.float32)) == 0).all()
    for _ in range(3):
        cuda("cuGraphLaunch", replay, stream)
    assert cuda.download(a, np.zeros(8, np.float32)).tolist() == [4] * 4 + [3] * 4
    cuda("cuGraphExecDestroy", replay)
    with fails(INVALID_HANDLE):
        cuda("cuGraphLaunch", replay, stream)


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


def test_a_relaxed_thread_may_allocate_while_a_stream_is_captured(cuda: Driver) -> None:
    stream, mode = cuda.stream(), ctypes.c_int(RELAXED)
    cuda("cuStreamBeginCapture_v2", stream, 0)
    cuda("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == 0
    cuda.allocate(4)
    cuda("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == RELAXED
    _captured(cuda, stream)


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


def test_before_it_is_started_and_after_a_fork(tmp_path: Path) -> None:
    library = cuda_emulator.build()
    script = f"""
import ctypes, os
cuda, device = ctypes.CDLL({str(library)!r}), ctypes.c_int()
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == {NOT_INITIALIZED}
assert cuda.cuInit(0) == 0 == cuda.cuDeviceGet(ctypes.byref(device), 0)
child = os.fork()
if not child:
    os._exit(cuda.cuDeviceGet(ctypes.byref(device), 0))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {NOT_INITIALIZED}
"""
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ})


def test_the_process_s_own_faults_stay_its_own(tmp_path: Path) -> None:
    """What is no kernel's fault still comes to the handler that was there before."""
    script = """
import ctypes, faulthandler, sys
faulthandler.enable()
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_cuda_emulator as t, numpy as np
with t._driver(Path(sys.argv[2])).used() as cuda:
    cuda.launch(cuda.function(t.compiled(t.TWICE)), (1,), (4,), cuda.upload(np.zeros(4, np.int32)))
    cuda.wait()
    ctypes.string_at(8)
"""
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -11
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_nvrtc_compiles_beside_it() -> None:
    """It looks for a driver in its process, finds this one, and asks it for what only NVIDIA's has."""
    if not compilers._has_nvrtc():
        pytest.skip("NVRTC is not installed")
    script = """
import ctypes, sys
from tvmdml.targets.cuda import compilers
cuda = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
table = ctypes.c_void_p(1)
assert cuda.cuInit(0) == 0
assert cuda.cuGetExportTable(ctypes.byref(table), bytes(16)) == int(sys.argv[2]) and not table
(code, text) = compilers.compile_text('extern "C" __global__ void kernel(int *x) { *x = 5; }', ["sm_90"])
assert code.content.startswith(b"\\x7fELF") and b".entry kernel" in text.content
"""
    command = [sys.executable, "-c", script, str(cuda_emulator.build()), str(NOT_FOUND)]
    done = subprocess.run(command, env={**os.environ, "TVMDML_CUDA_COMPILER": "nvrtc"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_environment_names_what_was_built() -> None:
    environment = cuda_emulator.environment()
    assert Path(environment["TVMDML_CUDA_LIBRARY"]).name == "libcuda.so.1"
    assert os.access(environment["TVMDML_NVCC"], os.X_OK)
    command = [sys.executable, "-m", "cuda_emulator"]
    said = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout
    assert f"export TVMDML_NVCC={environment['TVMDML_NVCC']}\n" in said

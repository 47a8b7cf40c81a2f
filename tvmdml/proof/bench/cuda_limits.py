"""What a CUDA device allows: kernels that only move bytes, the driver's own copy, and an empty kernel.

Small work is compared with the launch of the empty kernel, since no launch takes less. For larger work, the limit is the time that
the fastest of the others takes to move the bytes, measured in the same race and with cold caches like all contenders.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tvmdml.errors import DeviceError
from tvmdml.proof.bench.limits import LEAST_SHARE
from tvmdml.proof.bench.measure import Contender
from tvmdml.proof.bench.work import Traffic

if TYPE_CHECKING:
    from tvmdml.targets.cuda.driver import Device, Memory

COLD_BYTES = 4 << 20
"""If work moves at least this many bytes, memory is its limit; otherwise, the limit is the launch."""

_L2_CACHE_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
_UNKNOWN_CACHE = 128 << 20
"""The assumed cache size in bytes of a device that does not report it: larger than any device has."""

_THREADS, _EACH, _VECTOR = 256, 4, 16
_PIECE = _THREADS * _EACH * _VECTOR  # bytes that a block moves

# What a thread does with 16 bytes of a, or b, by the kind of traffic.
_BODIES = {
    "copied": "b[at] = a[at];",
    "rewritten": "Vector v = a[at]; v.x ^= 1; v.y ^= 1; v.z ^= 1; v.w ^= 1; a[at] = v;",
    "read": "Vector v = a[at]; seen.x |= v.x; seen.y |= v.y; seen.z |= v.z; seen.w |= v.w;",
    "written": "b[at] = Vector{1, 1, 1, 1};",
    "zeroed": "b[at] = Vector{0, 0, 0, 0};",
}
_KERNEL = """
extern "C" __global__ void __launch_bounds__(THREADS) tvmdml_bench_KIND(
    Vector *__restrict__ a, Vector *__restrict__ b, unsigned long long count) {
  unsigned long long first = blockIdx.x * THREADSull * EACH + threadIdx.x;
  Vector seen = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    unsigned long long at = first + i * THREADSull;
    if (at < count) { BODY }
  }
  // Never so: it keeps reading from being for nothing.
  if ((seen.x & seen.y & seen.z & seen.w) == 0xA5A5A5A5u) b[0] = seen;
}
"""
_TEXT = "struct alignas(16) Vector { unsigned x, y, z, w; };\n" + "".join(
    _KERNEL.replace("KIND", kind).replace("BODY", body).replace("THREADS", str(_THREADS)).replace("EACH", str(_EACH))
    for kind, body in _BODIES.items()
)
_EMPTY = f'extern "C" __global__ void __launch_bounds__({_THREADS}) tvmdml_bench_nothing() {{}}\n'

_functions: weakref.WeakKeyDictionary[Device, dict[str, int]] = weakref.WeakKeyDictionary()


def functions(device: Device) -> dict[str, int]:
    """The kernels, by kind of traffic; ``nothing`` is the empty one.

    Raises:
        CompileError: there is no CUDA compiler.
    """
    from tvmdml.targets.cuda import compilers

    found = _functions.get(device)
    if found is None:
        images = {image.form: image.content for image in compilers.compile_text(_TEXT + _EMPTY, (device.info.arch,))}
        module = device.module(images[device.info.arch])
        found = _functions[device] = {kind: module.function(f"tvmdml_bench_{kind}") for kind in (*_BODIES, "nothing")}
    return found


def mover(device: Device, kind: str, size: int) -> Callable[[int], None]:
    """``move(stream)``: moves this many bytes, or up to 15 more, in memory that it allocates."""
    a = device.allocate(max(_VECTOR, -(-size // _VECTOR) * _VECTOR))
    return launcher(device, kind, a, device.allocate(a.nbytes) if kind == "copied" else a, a.nbytes)


def nothing(device: Device) -> Callable[[int], None]:
    """``launch(stream)``: the empty kernel."""
    return device.prepare([(functions(device)["nothing"], (1, 1, 1), (_THREADS, 1, 1), b"")]).run


def launcher(device: Device, kind: str, a: Memory, b: Memory, size: int) -> Callable[[int], None]:
    """``move(stream)``: moves this many bytes, a multiple of 16, from or to the given memory."""
    parameters = struct.pack("<3Q", a.address, b.address, size // _VECTOR)
    prepared = device.prepare([(functions(device)[kind], (-(-size // _PIECE), 1, 1), (_THREADS, 1, 1), parameters)])

    def move(stream: int, held: object = (a, b)) -> None:
        prepared.run(stream)  # it has the memory's addresses, but no reference to it

    return move


def copier(device: Device, size: int) -> Callable[[], None]:
    """The driver's copy of this many bytes."""
    a, b = device.allocate(size), device.allocate(size)
    return partial(device.copy, a, 0, b, 0, size)


def flush_bytes(device: Device) -> int:
    """How many bytes must be written to evict everything else from the caches."""
    try:
        cache = device.attribute(_L2_CACHE_SIZE)
    except DeviceError:  # the driver does not know the attribute
        cache = 0
    return 2 * (cache or _UNKNOWN_CACHE)


def contenders(device: Device, traffic: Traffic) -> list[Contender]:
    """The contenders that may be fastest at moving these bytes; for few bytes, the launch that no work can avoid."""
    if traffic.total < COLD_BYTES:
        return [Contender("limit", "tvmdml", "launch of an empty kernel", 1, partial(nothing(device), 0))]
    parts = {kind: size for kind, size in traffic._asdict().items() if size >= LEAST_SHARE * traffic.total}
    moves = {kind: partial(mover(device, kind, size), 0) for kind, size in parts.items()}
    found = [Contender("limit", "tvmdml", f"{kind}, by a kernel", 1, move) for kind, move in moves.items()]
    if "copied" in parts:
        found.append(Contender("limit", "tvmdml", "copied, by the driver", 1, copier(device, parts["copied"])))
    return found

"""What the memory allows: loops that only move bytes, timed in the same race as the operators.

The limit of a piece of work is the time that the fastest of these loops takes to move the bytes that the work must move. They
are LLVM code, compiled like kernels: with ordinary stores, and with non-temporal stores, faster for data that no cache holds.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tvmdml import targets
from tvmdml.kernels import tensorir as T
from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.measure import SAMPLE, CallTiming, Contender
from tvmdml.proof.bench.work import Traffic
from tvmdml.system import imports
from tvmdml.targets._device import DeviceTarget

LEAST_TOTAL = 1 << 17
"""Bytes. Below, the cost of the call dominates, not the memory."""
LEAST_SHARE = 1 / 64
"""Kinds of traffic with a smaller share of the bytes are ignored."""
LEAST_STREAMED = 1 << 23
"""Non-temporal stores are tried for at least this many bytes."""
LEAST_THREADED = 1 << 20
"""Several threads are tried for at least this many bytes."""

_THREADED_SAMPLE = 0.004  # seconds: long enough to make the start of threads negligible
_BLOCK = 256  # bytes of an iteration: four cache lines

# What an iteration does with line #, by the kind of traffic; ! marks a store that may be non-temporal.
_LOAD = "%v# = load <16 x i32>, ptr %a#, align 64\n"
_BODIES = {
    "copied": _LOAD + "store <16 x i32> %v#, ptr %b#, align 64 !\n",
    "rewritten": _LOAD + "%w# = xor <16 x i32> %v#, splat (i32 1)\nstore <16 x i32> %w#, ptr %a#, align 64\n",
    "read": _LOAD + "%s# = load <16 x i32>, ptr %sum#\n%t# = or <16 x i32> %s#, %v#\nstore <16 x i32> %t#, ptr %sum#\n",
    "written": "store <16 x i32> splat (i32 1), ptr %b#, align 64 !\n",
    "zeroed": "store <16 x i32> zeroinitializer, ptr %b#, align 64 !\n",
}

# The sums are kept in registers and stored at the end, so that LLVM does not remove the reads. The empty assembly tells LLVM that
# the memory is read after each pass: otherwise it would move zeros only once instead of a thousand times.
_FRAME = """
define i64 @tvmdml_move(ptr %a, ptr %b, i64 %blocks) noinline "no-builtins" {
entry:
EACH %sum# = alloca <16 x i32>, align 64
EACH store <16 x i32> zeroinitializer, ptr %sum#
  br label %head
head:
  %n = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp ult i64 %n, %blocks
  br i1 %more, label %body, label %end
body:
EACH %a# = getelementptr [4 x <16 x i32>], ptr %a, i64 %n, i64 #
EACH %b# = getelementptr [4 x <16 x i32>], ptr %b, i64 %n, i64 #
BODY
  %next = add i64 %n, 1
  br label %head
end:
  FENCE
EACH %r# = load <16 x i32>, ptr %sum#
EACH store volatile <16 x i32> %r#, ptr %sum#
  call void asm sideeffect "", "r,~{memory}"(ptr %b)
  ret i64 0
}
declare void @llvm.x86.sse.sfence()
!0 = !{i32 1}
"""


def _code(kind: str, streams: bool) -> str:
    body = _BODIES[kind].replace("!", ", !nontemporal !0" if streams else "")
    lines: list[str] = []
    for line in _FRAME.splitlines():
        if line == "BODY":
            lines += [body.replace("#", str(i)) for i in range(4)]
        elif line.startswith("EACH"):
            lines += [line.removeprefix("EACH").replace("#", str(i)) for i in range(4)]
        else:
            lines.append(line.replace("FENCE", "call void @llvm.x86.sse.sfence()" if streams else ""))
    return "\n".join(lines)


def can_stream() -> bool:
    """Whether there is code for non-temporal stores on this processor."""
    return platform.machine() == "x86_64"


@functools.cache
def mover(kind: str, streams: bool) -> Callable[..., Any]:
    """``move(a, b, blocks, times)``: one of the loops, on arrays that start on a cache line, in blocks of 256 bytes."""
    with T.function() as f:
        a, b = f.buffer("a", "uint8"), f.buffer("b", "uint8")
        blocks, times = f.scalar("blocks"), f.scalar("times")
        with T.attr(0, "pragma_import_llvm", _code(kind, streams)), T.loop(times):
            T.evaluate(T.call_extern("int64", "tvmdml_move", T.address_of(a[T.i64(0)]), T.address_of(b[T.i64(0)]), blocks))
    return targets.resolve("cpu").build(f.result()).launcher()


def contenders(traffic: Traffic, threads: int) -> list[Contender]:
    """The loops that may be fastest at moving these bytes, with one thread and with all; none if few bytes are moved."""
    if traffic.total < LEAST_TOTAL:
        return []
    parts = {kind: size for kind, size in traffic._asdict().items() if size >= LEAST_SHARE * traffic.total}
    return [
        _contender(kind, size, streams, count)
        for kind, size in parts.items()
        for streams in ((False, True) if can_stream() and "!" in _BODIES[kind] and traffic.total >= LEAST_STREAMED else (False,))
        for count in ((1, threads) if threads > 1 and traffic.total >= LEAST_THREADED else (1,))
    ]


def seconds(timed: Sequence[tuple[Contender, CallTiming]], of: str = "memory") -> float | None:
    """The limit of memory: the sum over the kinds of traffic of their fastest loop's 10th percentile; of a launch, the median.

    ``None`` if nothing was timed.
    """
    best: dict[str, float] = {}
    for contender, timing in timed:
        kind = contender.name.split(",")[0]
        found = timing.low if of == "memory" else timing.median
        best[kind] = min(best.get(kind, found), found)
    return sum(best.values()) or None


def _contender(kind: str, size: int, streams: bool, threads: int) -> Contender:
    blocks = max(1, -(-size // _BLOCK) // threads)
    convert = imports.tvm_ffi().from_dlpack
    move = mover(kind, streams)
    parts = []
    for _ in range(threads):
        a = inputs.empty((blocks * _BLOCK,), "uint8")
        b = a if kind in ("rewritten", "read") else inputs.empty((blocks * _BLOCK,), "uint8")
        a[...] = b[...] = 1
        parts.append((convert(a), convert(b)))
    pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def repeat(times: int) -> None:
        others = [pool.submit(move, *part, blocks, times) for part in parts[1:]] if pool else []
        move(*parts[0], blocks, times)
        for other in others:
            other.result()

    name = f"{kind}, non-temporal stores" if streams else kind
    return Contender(
        "limit", "tvmdml", name, threads, lambda: repeat(1), repeat=repeat, sample=SAMPLE if threads == 1 else _THREADED_SAMPLE
    )


def device_contenders(traffic: Traffic, target: DeviceTarget) -> list[Contender]:
    """The device's own copy of half of these bytes: it reads and writes that many."""
    if traffic.total < LEAST_TOTAL:
        return []
    device, size = target.device, traffic.total // 2
    a, b = device.allocate(size), device.allocate(size)

    def repeat(times: int) -> None:
        for _ in range(times):
            device.copy(a, 0, b, 0, size)
        target.wait()

    return [Contender("limit", "tvmdml", "copied on the device", 1, lambda: repeat(1), repeat=repeat)]

"""Leaf functions: what TensorIR has no words for, as LLVM IR that is inlined where it is called.

Each has a twin in plain TensorIR, for processors that lack what it takes. A schedule names the leaf and gets whichever fits::

    leaves = Leaves(target)
    with leaves.available():
        word = leaves.bits(source[T.run(i, 64)] > T.const(0, "int32"))
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvmdml import tensorir as T
from tvmdml.targets import Target


class _Leaf(NamedTuple):
    feature: str
    """What the processor must have; empty for nothing."""
    ir: str
    """Its definition."""


def _positions() -> str:
    """For each byte the positions of its bits, in ascending order; zeros behind them."""
    rows = ([i for i in range(8) if byte >> i & 1] for byte in range(256))
    return "".join(f"\\{i:02x}" for row in rows for i in (row + [0] * 8)[:8])


_LEAVES = {
    "misalignment": _Leaf(
        "x86",
        """
define i64 @tvmdml_misalignment(ptr %p) alwaysinline {
  %address = ptrtoint ptr %p to i64
  %low = and i64 %address, 63
  ret i64 %low
}
""",
    ),
    "bits": _Leaf(
        "x86",
        "".join(
            f"""
define i{n} @tvmdml_bits{n}(<{n} x i1> %mask) alwaysinline {{
  %word = bitcast <{n} x i1> %mask to i{n}
  ret i{n} %word
}}
"""
            for n in (8, 16, 32, 64)
        ),
    ),
    # Where two branches make a mask each, LLVM makes words of them after the branches have joined, and without AVX-512 has no other
    # way to carry a mask that far than bit by bit. It does not move anything past assembly, however empty.
    "bits_here": _Leaf(
        "x86",
        "".join(
            f"""
define i{n} @tvmdml_bits_here{n}(<{n} x i1> %mask) alwaysinline {{
  %word = bitcast <{n} x i1> %mask to i{n}
  %here = call i{n} asm "", "=r,0"(i{n} %word)
  ret i{n} %here
}}
"""
            for n in (16, 32, 64)
        ),
    ),
    "compress": _Leaf(
        "avx512f",
        """
declare <16 x i32> @llvm.x86.avx512.mask.compress.v16i32(<16 x i32>, <16 x i32>, <16 x i1>)
define <16 x i32> @tvmdml_compress(i16 %word, <16 x i32> %lanes) alwaysinline {
  %mask = bitcast i16 %word to <16 x i1>
  %front = call <16 x i32> @llvm.x86.avx512.mask.compress.v16i32(<16 x i32> %lanes, <16 x i32> zeroinitializer, <16 x i1> %mask)
  ret <16 x i32> %front
}
""",
    ),
    # LLVM turns a conversion to float32 and a rounding into a rounding of float16, element by element without AVX-512.
    # It does not look past a fence, which costs no instruction.
    "wide": _Leaf(
        "x86",
        "".join(
            f"""
declare <{n} x float> @llvm.arithmetic.fence.v{n}f32(<{n} x float>)
define <{n} x float> @tvmdml_wide{n}(<{n} x float> %x) alwaysinline {{
  %same = call <{n} x float> @llvm.arithmetic.fence.v{n}f32(<{n} x float> %x)
  ret <{n} x float> %same
}}
"""
            for n in (16, 32)
        ),
    ),
    # TensorIR's "not less" is "greater or equal", which is false for NaN.
    "not_less": _Leaf(
        "x86",
        "".join(
            f"""
define <{n} x i1> @tvmdml_not_less_{ctype}{n}(<{n} x {ctype}> %a, <{n} x {ctype}> %b) alwaysinline {{
  %mask = fcmp uge <{n} x {ctype}> %a, %b
  ret <{n} x i1> %mask
}}
"""
            for n in (8, 16, 32, 64)
            for ctype in ("float", "double")
        ),
    ),
    # Eight lanes cost one load where a compressing instruction takes many cycles, and every processor has a load.
    "positions": _Leaf(
        "",
        f"""
@tvmdml_positions_of = internal constant [2048 x i8] c"{_positions()}", align 64
define <8 x i8> @tvmdml_positions(i64 %byte) alwaysinline {{
  %entry = getelementptr inbounds <8 x i8>, ptr @tvmdml_positions_of, i64 %byte
  %found = load <8 x i8>, ptr %entry, align 8
  ret <8 x i8> %found
}}
""",
    ),
    # Past the caches, through write-combining buffers: only whole, aligned cache lines gain from it.
    "stream": _Leaf(
        "x86",
        "".join(
            f"""
define void @tvmdml_stream{width}(ptr %to, <{512 // width} x i{width}> %line) alwaysinline {{
  store <{512 // width} x i{width}> %line, ptr %to, align 64, !nontemporal !{{i32 1}}
  ret void
}}
"""
            for width in (8, 16, 32, 64)
        ),
    ),
    "fence": _Leaf(
        "x86",
        """
declare void @llvm.x86.sse.sfence()
define void @tvmdml_fence() alwaysinline {
  call void @llvm.x86.sse.sfence()
  ret void
}
""",
    ),
}


def _has(processor: Any, feature: str) -> bool:
    return processor is not None and (not feature or processor.has(feature))


class Leaves:
    """The leaf functions of a target; ``portable`` takes every twin instead."""

    def __init__(self, target: Target, portable: bool = False) -> None:
        processor = getattr(target, "processor", None)
        self._native = {name for name, leaf in _LEAVES.items() if not portable and _has(processor, leaf.feature)}
        if _has(processor, "avx512f"):
            self._native.discard("bits_here")  # a mask is a word there, in a register of its own

    def has(self, name: str) -> bool:
        """Whether a leaf is an instruction or two here; what takes a loop instead may not be worth it."""
        return name in self._native

    def available(self) -> Any:
        """The statements inside may call the leaves."""
        return T.attr(0, "pragma_import_llvm", "".join(_LEAVES[name].ir for name in sorted(self._native)))

    def misalignment(self, buffer: Any, index: Any) -> Any:
        """How many bytes an element lies past a multiple of 64. The twin cannot tell, and says 0."""
        if "misalignment" in self._native:
            return T.let(T.call_extern("int64", "tvmdml_misalignment", T.address_of(buffer[index])))
        return T.i64(0)

    def bits(self, mask: Any) -> Any:
        """A vector of 8, 16, 32 or 64 truths as a word: bit ``i`` is lane ``i``."""
        lanes = T.lanes(mask)
        unsigned = f"uint{lanes}"
        if "bits" in self._native:
            return T.let(T.call_extern(unsigned, f"tvmdml_bits{lanes}", mask))
        truths = T.local("uint8", lanes)
        T.store(truths, T.run(T.i64(0), lanes), T.cast(mask, f"uint8x{lanes}"))
        word = T.Variable(unsigned, T.const(0, unsigned))
        with T.loop(T.i64(lanes)) as i:
            word.set(word.value | (T.cast(truths[i], unsigned) << T.cast(i, unsigned)))
        return T.let(word.value)

    def bits_here(self, mask: Any) -> Any:
        """The same, made where it is asked for: in a branch that sets a word which another branch sets from another mask."""
        if "bits_here" not in self._native or T.lanes(mask) == 8:
            return self.bits(mask)
        return T.let(T.call_extern(f"uint{T.lanes(mask)}", f"tvmdml_bits_here{T.lanes(mask)}", mask))

    def not_less(self, a: Any, b: Any) -> Any:
        """Where a vector of floats is not less than another: greater, equal, or NaN in either."""
        if "not_less" in self._native:
            ctype = {32: "float", 64: "double"}[a.ty.dtype.bits]
            return T.call_extern(f"boolx{T.lanes(a)}", f"tvmdml_not_less_{ctype}{T.lanes(a)}", a, b)
        return T.isnan(a) | T.isnan(b) | (a >= b)

    def wide(self, x: Any) -> Any:
        """The same vector of 16 or 32 float32, as LLVM is to take it: not as the float16 that it was converted from."""
        if "wide" in self._native:
            return T.call_extern(T.type_of(x), f"tvmdml_wide{T.lanes(x)}", x)
        return x

    def compress(self, word: Any, lanes: Any) -> Any:
        """The lanes of an ``int32x16`` whose bit is set in the word (uint16), moved to the front; zeros behind them."""
        if "compress" in self._native:
            return T.let(T.call_extern("int32x16", "tvmdml_compress", word, lanes))
        every, front = T.local("int32", 16), T.local("int32", 16)
        whole = T.run(T.i64(0), 16)
        T.store(every, whole, lanes)
        T.store(front, whole, T.splat(T.const(0, "int32"), 16))
        count = T.Variable("int64", T.i64(0))
        with T.loop(T.i64(16)) as i, T.when((word >> T.cast(i, "uint16")) & T.const(1, "uint16") != T.const(0, "uint16")):
            T.store(front, count.value, every[i])
            count.set(count.value + 1)
        return T.let(front[whole])

    def positions(self, byte: Any) -> Any:
        """Where the bits of a byte (uint64) are, as ``uint8x8``: in ascending order at the front, and zeros behind them."""
        if "positions" in self._native:
            return T.let(T.call_extern("uint8x8", "tvmdml_positions", T.cast(byte, "int64")))
        front, whole = T.local("uint8", 8), T.run(T.i64(0), 8)
        T.store(front, whole, T.splat(T.const(0, "uint8"), 8))
        count = T.Variable("int64", T.i64(0))
        with T.loop(T.i64(8)) as i, T.when((byte >> T.cast(i, "uint64")) & T.const(1, "uint64") != T.const(0, "uint64")):
            T.store(front, count.value, T.cast(i, "uint8"))
            count.set(count.value + 1)
        return T.let(front[whole])

    def stream(self, buffer: Any, index: Any, line: Any) -> None:
        """Store a vector of 64 bytes at an address that is a multiple of 64, past the caches.

        Other threads see it after ``fence``.
        """
        count = T.lanes(line)
        width = 512 // count
        if "stream" in self._native:
            word = T.reinterpret(f"int{width}x{count}", line)
            T.evaluate(T.call_extern("void", f"tvmdml_stream{width}", T.address_of(buffer[index]), word))
        else:
            T.store(buffer, T.run(index, count), line)

    def fence(self) -> None:
        """What was streamed is there for every thread. The twin's stores are plain, and need none."""
        if "fence" in self._native:
            T.evaluate(T.call_extern("void", "tvmdml_fence"))

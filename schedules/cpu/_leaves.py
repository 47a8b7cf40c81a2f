"""Leaf functions: operations that TensorIR cannot express, as LLVM IR that is inlined where it is called.

Each has an equivalent in plain TensorIR, for processors without the needed instructions. A schedule names the leaf and gets the
one that fits::

    leaves = Leaves(target)
    with leaves.available():
        word = leaves.bits(source[T.run(i, 64)] > T.const(0, "int32"))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir as T
from tvmdml.targets import Target


class _Leaf(NamedTuple):
    feature: str
    """The processor features it needs; empty for none."""
    ir: str
    """Its definition."""


def _positions() -> str:
    """For each byte, the positions of its set bits in ascending order, followed by zeros."""
    rows = ([i for i in range(8) if byte >> i & 1] for byte in range(256))
    return "".join(f"\\{i:02x}" for row in rows for i in (row + [0] * 8)[:8])


_LEAVES = {
    "keep": _Leaf(
        "",
        """
define void @tvmdml_keep(ptr %table, ptr %p) alwaysinline {
  store ptr %p, ptr %table, align 8
  ret void
}
define ptr @tvmdml_kept(ptr %table) alwaysinline {
  %p = load ptr, ptr %table, align 8
  ret ptr %p
}
""",
    ),
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
    # If two branches each make a mask, LLVM converts the masks to words after the branches have joined. Without AVX-512 it can only
    # carry a mask that far bit by bit. It moves nothing past inline assembly, even if that is empty.
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
    # LLVM makes one instruction of loads from many addresses, which takes longer than the loads on some processors.
    "apart": _Leaf(
        "x86",
        "".join(
            f"""
define i{n} @tvmdml_apart{n}(i{n} %x) alwaysinline {{
  %same = call i{n} asm "", "=r,0"(i{n} %x)
  ret i{n} %same
}}
"""
            for n in (8, 16, 32, 64)
        ),
    ),
    # LLVM would compute the addresses of all elements of a vector before it loads any of them, which needs too many registers.
    "together": _Leaf(
        "x86",
        "".join(
            f"""
define <{128 // bits} x i{bits}> @tvmdml_together{bits}(<{128 // bits} x i{bits}> %x) alwaysinline {{
  %same = call <{128 // bits} x i{bits}> asm "", "=x,0"(<{128 // bits} x i{bits}> %x)
  ret <{128 // bits} x i{bits}> %same
}}
"""
            for bits in (8, 16, 32, 64)
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
    # LLVM turns a conversion to float32 followed by a rounding into a rounding of float16, element by element without AVX-512.
    # It does not optimise across a fence, which costs no instruction.
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
    # TensorIR turns "not less" into "greater or equal", which is false for NaN.
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
    # Loading a table entry gives eight lanes. A compress instruction takes many cycles, and not every processor has one.
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
    # Non-temporal, through write-combining buffers: only whole, aligned cache lines gain from it.
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
    """The leaf functions of a target; with ``portable``, the equivalents in TensorIR of all of them."""

    def __init__(self, target: Target, portable: bool = False) -> None:
        processor = getattr(target, "processor", None)
        self._native = {name for name, leaf in _LEAVES.items() if not portable and _has(processor, leaf.feature)}
        if _has(processor, "avx512f"):
            self._native.discard("bits_here")  # with AVX-512 a mask already is a word in a mask register

    def has(self, name: str) -> bool:
        """Whether a leaf is only one or two instructions on this target; otherwise it is a loop, which may not be worthwhile."""
        return name in self._native

    def available(self) -> Any:
        """A context manager: the statements inside may call the leaves."""
        return T.attr(0, "pragma_import_llvm", "".join(_LEAVES[name].ir for name in sorted(self._native)))

    def keep(self, buffers: Sequence[Any], table: Any, first: int) -> None:
        """Keep where several buffers are in a table of int64, from an entry on. There is no version in TensorIR."""
        for i, buffer in enumerate(buffers, first):
            T.evaluate(T.call_extern("void", "tvmdml_keep", T.address_of(table[T.i64(i)]), buffer.data))

    def kept(self, table: Any, place: Any, dtype: str) -> Any:
        """The buffer that an entry of such a table is about."""
        return T.view(T.let(T.call_extern("handle", "tvmdml_kept", T.address_of(table[place]))), dtype)

    def misalignment(self, buffer: Any, index: Any) -> Any:
        """An element's address modulo 64. The TensorIR version cannot read the address, and returns 0."""
        if "misalignment" in self._native:
            return T.let(T.call_extern("int64", "tvmdml_misalignment", T.address_of(buffer[index])))
        return T.i64(0)

    def bits(self, mask: Any) -> Any:
        """A vector of 8, 16, 32 or 64 booleans as a word: bit ``i`` is lane ``i``."""
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
        """The same, computed at this place: for a branch that sets a word which another branch sets from another mask."""
        if "bits_here" not in self._native or T.lanes(mask) == 8:
            return self.bits(mask)
        return T.let(T.call_extern(f"uint{T.lanes(mask)}", f"tvmdml_bits_here{T.lanes(mask)}", mask))

    def apart(self, value: Any) -> Any:
        """The same integer, which is loaded by an instruction of its own."""
        if "apart" not in self._native:
            return value
        return T.let(T.call_extern(T.type_of(value), f"tvmdml_apart{value.ty.dtype.bits}", value))

    def together(self, scalars: Sequence[Any]) -> Any:
        """A vector of elements that are loaded one by one, 16 bytes after the other."""
        if "together" not in self._native:
            return T.hold(T.Shuffle(list(scalars), list(range(len(scalars)))))
        kind, bits = T.type_of(scalars[0]), scalars[0].ty.dtype.bits
        count = 128 // bits
        word, parts = f"uint{bits}x{count}", []
        for i in range(0, len(scalars), count):
            part = T.Shuffle(list(scalars[i : i + count]), list(range(count)))
            part = T.let(T.call_extern(word, f"tvmdml_together{bits}", T.reinterpret(word, part)))
            parts.append(T.reinterpret(f"{kind}x{count}", part))
        return T.hold(parts[0] if len(parts) == 1 else T.Shuffle(parts, list(range(len(scalars)))))

    def not_less(self, a: Any, b: Any) -> Any:
        """Where a vector of floats is not less than another: greater, equal, or NaN in either."""
        if "not_less" in self._native:
            ctype = {32: "float", 64: "double"}[a.ty.dtype.bits]
            return T.call_extern(f"boolx{T.lanes(a)}", f"tvmdml_not_less_{ctype}{T.lanes(a)}", a, b)
        return T.isnan(a) | T.isnan(b) | (a >= b)

    def wide(self, x: Any) -> Any:
        """The same vector of 16 or 32 float32, hidden from LLVM's optimiser: it must not compute on the original float16."""
        if "wide" in self._native:
            return T.call_extern(T.type_of(x), f"tvmdml_wide{T.lanes(x)}", x)
        return x

    def compress(self, word: Any, lanes: Any) -> Any:
        """The lanes of an ``int32x16`` whose bits are set in the word (uint16), moved to the front and followed by zeros."""
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
        """The positions of the set bits of a byte (uint64), as ``uint8x8``: in ascending order, followed by zeros."""
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
        """Non-temporal store of a vector of 64 bytes, at an address that is a multiple of 64.

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
        """Make non-temporal stores visible to all threads. The TensorIR version has plain stores, which need no fence."""
        if "fence" in self._native:
            T.evaluate(T.call_extern("void", "tvmdml_fence"))

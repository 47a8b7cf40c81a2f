"""The definitions that generated CUDA C++ uses: vector types, atomics with TensorIR's names, warp operations, tensor cores.

A kernel's text starts with the pieces that it uses, so that it is self-contained and compiles quickly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tvmdml.targets.cuda.architectures import condition


class Piece(NamedTuple):
    """A part of the prelude."""

    names: frozenset[str]
    """The names that need this piece."""
    text: str


_INTEGERS = """\
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <cstdint>
#include <cstring>
#endif
"""
_HALF = """\
#include <cuda_fp16.h>
"""
_HALF_SIGNS = """\
// On the bits: how a conversion to float treats a NaN's sign depends on the processor.
__device__ __forceinline__ __half fabs_half(__half a) { return __ushort_as_half(__half_as_ushort(a) & 0x7fff); }
__device__ __forceinline__ __half copysign_half(__half a, __half b) {
  return __ushort_as_half((__half_as_ushort(a) & 0x7fff) | (__half_as_ushort(b) & 0x8000));
}
"""
_LANES = """\
// Neighbouring elements that are moved together. The type may alias any other.
template <class T, int N, int Align>
struct __attribute__((__may_alias__, __aligned__(Align))) Lanes { T at[N]; };
"""
_BITS = """\
// The same bits as another type.
template <class To, class From>
__device__ __forceinline__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "types of one size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
"""
_ORDER = """\
// If one is NaN, the result is the second; and NaN does not differ from anything.
template <class T> __device__ __forceinline__ T least(T a, T b) { return a < b ? a : b; }
template <class T> __device__ __forceinline__ T greatest(T a, T b) { return a > b ? a : b; }
template <class T> __device__ __forceinline__ bool differ(T a, T b) { return a < b || a > b; }
"""
_ATOMICS = """\
// CUDA's 64-bit integer types have other names than C++'s.
template <class T> struct Word { typedef T type, ordered; };
template <> struct Word<uint64_t> { typedef unsigned long long type, ordered; };
template <> struct Word<int64_t> { typedef unsigned long long type; typedef long long ordered; };
#define ATOMIC(name, function, word) \\
  template <class T> __device__ __forceinline__ T name(T *at, typename Word<T>::type value) { \\
    return (T)function((typename Word<T>::word *)at, (typename Word<T>::word)value); \\
  }
ATOMIC(atomic_add, atomicAdd, type)
ATOMIC(atomic_min, atomicMin, ordered)
ATOMIC(atomic_max, atomicMax, ordered)
ATOMIC(atomic_and, atomicAnd, type)
ATOMIC(atomic_or, atomicOr, type)
ATOMIC(atomic_xor, atomicXor, type)
ATOMIC(atomic_exchange, atomicExch, type)
template <class T>
__device__ __forceinline__ T atomic_compare_exchange(T *at, typename Word<T>::type expected, typename Word<T>::type desired) {
  return (T)atomicCAS((typename Word<T>::type *)at, expected, desired);
}
// They order no other memory access: code that depends on order uses memory_fence.
template <class T> __device__ __forceinline__ T atomic_load(T *at) { return *(volatile T *)at; }
template <class T> __device__ __forceinline__ void atomic_store(T *at, typename Word<T>::type value) { *(volatile T *)at = value; }
"""
_SUBGROUPS = """\
// Operations over the 32 threads of a warp. All of them must take part.
#define WARP 0xffffffffu
#define REDUCED(name, expression) \\
  template <class T> __device__ __forceinline__ T name(T a) { \\
    for (int by = 16; by; by >>= 1) { \\
      T b = __shfl_xor_sync(WARP, a, by); \\
      a = (expression); \\
    } \\
    return a; \\
  }
REDUCED(subgroup_add, a + b)
REDUCED(subgroup_min, b < a ? b : a)
REDUCED(subgroup_max, b > a ? b : a)
template <class T> __device__ __forceinline__ T subgroup_inclusive_add(T a, int32_t lane) {
  for (int by = 1; by < 32; by <<= 1) {
    T b = __shfl_up_sync(WARP, a, by);
    if (lane >= by) a = a + b;
  }
  return a;
}
template <class T> __device__ __forceinline__ T subgroup_exclusive_add(T a, int32_t lane) {
  T sum = __shfl_up_sync(WARP, subgroup_inclusive_add(a, lane), 1);
  return lane ? sum : T(0);
}
"""


def _step(kind: str, types: str, c: Sequence[int], a: Sequence[int], b: Sequence[int]) -> str:
    """An instruction that adds the product of two small matrices to the sums ``c``; all are numbers of words."""
    places = iter(range(16))
    sums, left, right = ("{" + ", ".join(f"%{next(places)}" for _ in some) + "}" for some in (c, a, b))
    held = "+f" if types.startswith("f32") else "+r"
    outputs = ", ".join(f'"{held}"(c[{i}])' for i in c)
    inputs = ", ".join([*(f'"r"(a{i})' for i in a), *(f'"r"(b{i})' for i in b)])
    return f'  asm volatile("mma.sync.aligned.{kind}.row.col.{types} {sums}, {left}, {right}, {sums};" : {outputs} : {inputs});'


def _multiply(name: str, types: str, whole: str, part: str, parts: Sequence[tuple[Sequence[int], ...]]) -> str:
    """A function that adds the product of 16 rows and 8 columns of 32 bytes: without large tiles it takes several instructions."""
    given = ", ".join(f"uint32_t {word}" for word in ("a0", "a1", "a2", "a3", "b0", "b1"))
    return "\n".join(
        (
            f"__device__ __forceinline__ void {name}({'float' if types[0] == 'f' else 'int32_t'} *c, {given}) {{",
            f"#if {condition('large_tiles')}",
            _step(whole, types, range(4), range(4), range(2)),
            "#else",
            *(_step(part, types, *one) for one in parts),
            "#endif",
            "}",
            "",
        )
    )


def _load(name: str, kind: str) -> str:
    """A function that loads four matrices of 8 rows of 16 bytes."""
    words = ", ".join(f'"=r"(to[{i}])' for i in range(4))
    return f"""\
__device__ __forceinline__ void {name}(uint32_t *to, const void *from) {{
  const uint32_t at = __cvta_generic_to_shared(from);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.{kind}.b16 {{%0, %1, %2, %3}}, [%4];" : {words} : "r"(at) : "memory");
}}
"""


_HALVES = (((0, 1, 2, 3), (0, 1), (0,)), ((0, 1, 2, 3), (2, 3), (1,)))
_QUARTERS = (((0, 1), (0,), (0,)), ((2, 3), (1,), (0,)), ((0, 1), (2,), (1,)), ((2, 3), (3,), (1,)))
"""The sums of the smaller instructions, and their words of both factors."""
_BYTES = {
    f"multiply_tiles_{a}_{b}": f"s32.{kind}.{other}.s32"
    for a, kind in (("int8", "s8"), ("uint8", "u8"))
    for b, other in (("int8", "s8"), ("uint8", "u8"))
}
TILES = {
    "multiply_tiles_float16": _multiply("multiply_tiles_float16", "f32.f16.f16.f32", "m16n8k16", "m16n8k8", _HALVES),
    **{name: _multiply(name, types, "m16n8k32", "m8n8k16", _QUARTERS) for name, types in _BYTES.items()},
    "load_tiles": _load("load_tiles", "shared"),
    "load_turned_tiles": _load("load_turned_tiles", "trans.shared"),
}
"""Matrices that the threads of a warp hold together, and their products by tensor cores."""
_QUICK = {
    "pack_halves": f"""\
__device__ __forceinline__ uint32_t pack_halves(float low, float high) {{
#if {condition("packed_halves")}
  uint32_t both;
  asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return __half_as_ushort(__float2half_rn(low)) | (uint32_t)__half_as_ushort(__float2half_rn(high)) << 16;
#endif
}}
""",
    "near_exp2": """\
__device__ __forceinline__ float near_exp2(float x) {
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
""",
}
_COPIES = f"""\
// Copies to shared memory that go on while a thread computes, where the architecture has them.
template <int Bytes>
__device__ __forceinline__ void copy_bytes_async(void *to, const void *from, bool there) {{
#if {condition("async_copies")}
  const uint32_t at = __cvta_generic_to_shared(to);
  const uint32_t bytes = there * Bytes;
  if (Bytes == 16) {{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(at), "l"(from), "r"(bytes) : "memory");
  }} else {{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" : : "r"(at), "l"(from), "n"(Bytes), "r"(bytes) : "memory");
  }}
#else
  typedef Lanes<uint32_t, Bytes / 4, Bytes> Run;
  *(Run *)to = there ? *(const Run *)from : Run{{}};
#endif
}}
__device__ __forceinline__ void end_copies() {{
#if {condition("async_copies")}
  asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}}
template <int Others>
__device__ __forceinline__ void await_copies() {{
#if {condition("async_copies")}
  asm volatile("cp.async.wait_group %0;" : : "n"(Others) : "memory");
#endif
}}
"""
_PAIRS = f"""\
// Two neighbours' products, each added with one rounding: one instruction, where the architecture has it.
__device__ __forceinline__ void multiply_add_pair(float *c, float a, float b0, float b1) {{
#if {condition("packed_floats")}
  const uint64_t both = (uint64_t)__float_as_uint(a) << 32 | __float_as_uint(a);
  const uint64_t b = (uint64_t)__float_as_uint(b1) << 32 | __float_as_uint(b0);
  uint64_t sums = (uint64_t)__float_as_uint(c[1]) << 32 | __float_as_uint(c[0]);
  asm volatile("fma.rn.f32x2 %0, %1, %2, %0;" : "+l"(sums) : "l"(both), "l"(b));
  c[0] = __uint_as_float((uint32_t)sums);
  c[1] = __uint_as_float((uint32_t)(sums >> 32));
#else
  c[0] = fmaf(a, b0, c[0]);
  c[1] = fmaf(a, b1, c[1]);
#endif
}}
"""
_COPYING = ("copy_bytes_async", "end_copies", "await_copies")
_OF_BITS = ("__ushort_as_half", "__half_as_ushort")
_SIGNS = ("fabs_half", "copysign_half")
_ATOMIC = ("add", "and", "compare_exchange", "exchange", "load", "max", "min", "or", "store", "xor")
_SUBGROUP = ("add", "exclusive_add", "inclusive_add", "max", "min")
PIECES = {
    "integers": Piece(frozenset(), _INTEGERS),
    "half": Piece(
        frozenset({"__half", "__half2float", "__float2half_rn", "__double2half", "pack_halves", *_OF_BITS, *_SIGNS}), _HALF
    ),
    "half signs": Piece(frozenset(_SIGNS), _HALF_SIGNS),
    "lanes": Piece(frozenset({"Lanes", *_COPYING}), _LANES),
    "bits": Piece(frozenset({"bits_as"}), _BITS),
    "order": Piece(frozenset({"least", "greatest", "differ"}), _ORDER),
    "atomics": Piece(frozenset({"ATOMIC", "Word", *(f"atomic_{name}" for name in _ATOMIC)}), _ATOMICS),
    **{name: Piece(frozenset({name}), text) for name, text in (TILES | _QUICK).items()},
    "copies": Piece(frozenset(_COPYING), _COPIES),
    "pairs": Piece(frozenset({"multiply_add_pair"}), _PAIRS),
    "subgroups": Piece(frozenset({"REDUCED", "WARP", *(f"subgroup_{name}" for name in _SUBGROUP)}), _SUBGROUPS),
}
"""In the order of their definitions."""
NAMES: frozenset[str] = frozenset().union(*(piece.names for piece in PIECES.values()))
"""Names that kernels must not use for anything else."""


def needed(words: Iterable[str]) -> frozenset[str]:
    """The pieces that define the given words of a text."""
    found = NAMES.intersection(words)
    return frozenset(name for name, piece in PIECES.items() if piece.names & found)


def text(used: Iterable[str]) -> str:
    """The text of the pieces that are used; the integer types are always included."""
    wanted = {"integers", *used}
    return "\n".join(piece.text for name, piece in PIECES.items() if name in wanted)

"""The definitions that generated CUDA C++ uses: vector types, atomics with TensorIR's names, and warp operations.

A kernel's text starts with the pieces that it uses, so that it is self-contained and compiles quickly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


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
_OF_BITS = ("__ushort_as_half", "__half_as_ushort")
_SIGNS = ("fabs_half", "copysign_half")
_ATOMIC = ("add", "and", "compare_exchange", "exchange", "load", "max", "min", "or", "store", "xor")
_SUBGROUP = ("add", "exclusive_add", "inclusive_add", "max", "min")
PIECES = {
    "integers": Piece(frozenset(), _INTEGERS),
    "half": Piece(frozenset({"__half", "__half2float", "__float2half_rn", "__double2half", *_OF_BITS, *_SIGNS}), _HALF),
    "half signs": Piece(frozenset(_SIGNS), _HALF_SIGNS),
    "lanes": Piece(frozenset({"Lanes"}), _LANES),
    "bits": Piece(frozenset({"bits_as"}), _BITS),
    "order": Piece(frozenset({"least", "greatest", "differ"}), _ORDER),
    "atomics": Piece(frozenset({"ATOMIC", "Word", *(f"atomic_{name}" for name in _ATOMIC)}), _ATOMICS),
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

// CUDA C++ for a C++ compiler: what a kernel's source finds declared, as nvcc would have it. Put before the source by `nvcc`, which
// adds a TVMDML_ENTRY for every kernel behind it.
#pragma once

#include <cstdint>
#include <cstring>

#include "abi.hpp"

// NVIDIA's where the toolkit is here, else those in `headers`.
#include <vector_functions.h>
#include <vector_types.h>
#undef __launch_bounds__
#undef __align__
#undef __forceinline__
#undef __noinline__
#undef __device__
#undef __host__
#undef __global__
#undef __shared__
#undef __constant__

#define __global__ __attribute__((visibility("hidden")))
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static thread_local  // each OS thread runs one group at a time

#define threadIdx (tvmdml_emulator::here().thread)
#define blockIdx (tvmdml_emulator::here().group)
#define blockDim (tvmdml_emulator::here().threads)
#define gridDim (tvmdml_emulator::here().groups)
#define warpSize 32

// -- The kernel's entry -------------------------------------------------------------------------------------------------

namespace tvmdml_emulator {

template <class T>
struct PointerTo {
  static constexpr bool is = false;
};
template <class T>
struct PointerTo<T *> {
  static constexpr bool is = true;
};

constexpr unsigned aligned(unsigned offset, unsigned unit) { return (offset + unit - 1) / unit * unit; }

// The parameters one after the other, each aligned as its type is.
struct Reader {
  const char *buffer;
  unsigned offset = 0;
  template <class T>
  T take() {
    offset = aligned(offset, alignof(T));
    T value;
    memcpy(&value, buffer + offset, sizeof value);
    offset += sizeof value;
    return value;
  }
};

struct Call {
  template <class F, class... P>
  Call(F kernel, P... parameters) {
    kernel(parameters...);
  }
};

template <class... P>
struct Layout {
  Parameter parameters[sizeof...(P) + 1] = {};
  unsigned bytes = 0;
  constexpr Layout() {
    unsigned k = 0;
    ((bytes = aligned(bytes, alignof(P)), parameters[k++] = {bytes, sizeof(P), PointerTo<P>::is}, bytes += sizeof(P)), ...);
  }
};

template <auto kernel>
struct Entry;
template <class... P, void (*kernel)(P...)>
struct Entry<kernel> {
  static constexpr Layout<P...> layout{};
  static void run(const char *buffer) {
    [[maybe_unused]] Reader reader{buffer};
    Call{kernel, reader.take<P>()...};
  }
  static constexpr Kernel of(unsigned most_threads) { return {run, layout.bytes, sizeof...(P), most_threads, layout.parameters}; }
};

}  // namespace tvmdml_emulator

#define TVMDML_ENTRY(name, most_threads)                                                                    \
  extern "C" __attribute__((visibility("default"))) const tvmdml_emulator::Kernel tvmdml_kernel_##name = \
      tvmdml_emulator::Entry<name>::of(most_threads);
#define TVMDML_IMAGE(arch)                                          \
  extern "C" __attribute__((visibility("default"))) const int tvmdml_arch; \
  const int tvmdml_arch = arch;

// -- Mistakes that the compiler looks for ---------------------------------------------------------------------------------

namespace tvmdml_emulator {
struct Place {
  const char *file;
  int line, column;
};
[[noreturn]] inline void fault(int code, const char *what, const Place *place) { here().services->fault(code, what, place->line); }
}  // namespace tvmdml_emulator

#define TVMDML_MISTAKE(name, code, what)                                                                                \
  extern "C" __attribute__((visibility("hidden"), noinline, used)) inline void __ubsan_handle_##name##_abort(               \
      const tvmdml_emulator::Place *place) {                                                                                \
    tvmdml_emulator::fault(code, what, place);                                                                              \
  }
TVMDML_MISTAKE(type_mismatch_v1, 716, "used an address that is not aligned as its type is,")
TVMDML_MISTAKE(out_of_bounds, 700, "went beyond an array's end")
TVMDML_MISTAKE(shift_out_of_bounds, 719, "shifted by more bits than there are, or by fewer than none,")
TVMDML_MISTAKE(divrem_overflow, 719, "divided by zero, or the least integer by -1,")
TVMDML_MISTAKE(add_overflow, 719, "had a sum that a signed integer does not hold")
TVMDML_MISTAKE(sub_overflow, 719, "had a difference that a signed integer does not hold")
TVMDML_MISTAKE(mul_overflow, 719, "had a product that a signed integer does not hold")
TVMDML_MISTAKE(negate_overflow, 719, "negated the least integer")
#undef TVMDML_MISTAKE

// -- Threads together -----------------------------------------------------------------------------------------------------

namespace tvmdml_emulator {
template <class T>
inline unsigned long long bits(T value) {
  unsigned long long found = 0;
  memcpy(&found, &value, sizeof value);
  return found;
}
template <class T>
inline T value(unsigned long long bits) {
  T found;
  memcpy(&found, &bits, sizeof found);
  return found;
}
inline unsigned long long warp(Operation operation, unsigned mask, unsigned long long value, unsigned argument, int line) {
  return here().services->warp(operation, mask, value, argument, line);
}
inline unsigned matching(Operation operation, unsigned mask, unsigned long long value, int line) {
  return static_cast<unsigned>(warp(operation, mask, value, 0, line));
}
inline unsigned reduced(Operation operation, unsigned mask, unsigned value, int line) {
  return static_cast<unsigned>(warp(operation, mask, value, 0, line));
}
}  // namespace tvmdml_emulator

#define TVMDML_LINE int line = __builtin_LINE()
inline void __syncthreads(TVMDML_LINE) { tvmdml_emulator::here().services->barrier(tvmdml_emulator::Operation::barrier, 0, line); }
inline int __syncthreads_count(int value, TVMDML_LINE) {
  return tvmdml_emulator::here().services->barrier(tvmdml_emulator::Operation::barrier_count, value != 0, line);
}
inline int __syncthreads_and(int value, TVMDML_LINE) {
  return tvmdml_emulator::here().services->barrier(tvmdml_emulator::Operation::barrier_and, value != 0, line);
}
inline int __syncthreads_or(int value, TVMDML_LINE) {
  return tvmdml_emulator::here().services->barrier(tvmdml_emulator::Operation::barrier_or, value != 0, line);
}
inline void __syncwarp(unsigned mask = ~0u, TVMDML_LINE) {
  tvmdml_emulator::warp(tvmdml_emulator::Operation::sync, mask, 0, 0, line);
}
inline unsigned __activemask(TVMDML_LINE) { return tvmdml_emulator::here().services->converged(line); }
inline unsigned __ballot_sync(unsigned mask, int value, TVMDML_LINE) {
  return static_cast<unsigned>(tvmdml_emulator::warp(tvmdml_emulator::Operation::ballot, mask, value != 0, 0, line));
}
inline int __any_sync(unsigned mask, int value, TVMDML_LINE) { return __ballot_sync(mask, value, line) != 0; }
inline int __all_sync(unsigned mask, int value, TVMDML_LINE) { return __ballot_sync(mask, !value, line) == 0; }

#define TVMDML_SHUFFLE(name, operation, Argument, T)                                                                        \
  inline T name(unsigned mask, T value, Argument argument, int width = 32, TVMDML_LINE) {                                   \
    const unsigned packed = (static_cast<unsigned>(argument) & 31) | static_cast<unsigned>(width) << 8;                     \
    return tvmdml_emulator::value<T>(                                                                                       \
        tvmdml_emulator::warp(tvmdml_emulator::Operation::operation, mask, tvmdml_emulator::bits(value), packed, line));    \
  }
#define TVMDML_OF_TYPE(T)                                      \
  TVMDML_SHUFFLE(__shfl_sync, shuffle, int, T)                 \
  TVMDML_SHUFFLE(__shfl_up_sync, shuffle_up, unsigned, T)      \
  TVMDML_SHUFFLE(__shfl_down_sync, shuffle_down, unsigned, T)  \
  TVMDML_SHUFFLE(__shfl_xor_sync, shuffle_xor, int, T)         \
  inline unsigned __match_any_sync(unsigned mask, T value, TVMDML_LINE) {                                                       \
    return tvmdml_emulator::matching(tvmdml_emulator::Operation::match_any, mask, tvmdml_emulator::bits(value), line);          \
  }                                                                                                                             \
  inline unsigned __match_all_sync(unsigned mask, T value, int *all, TVMDML_LINE) {                                             \
    const unsigned found =                                                                                                      \
        tvmdml_emulator::matching(tvmdml_emulator::Operation::match_all, mask, tvmdml_emulator::bits(value), line);             \
    *all = found != 0;                                                                                                          \
    return found;                                                                                                               \
  }
TVMDML_OF_TYPE(int)
TVMDML_OF_TYPE(unsigned)
TVMDML_OF_TYPE(long)
TVMDML_OF_TYPE(unsigned long)
TVMDML_OF_TYPE(long long)
TVMDML_OF_TYPE(unsigned long long)
TVMDML_OF_TYPE(float)
TVMDML_OF_TYPE(double)
#undef TVMDML_OF_TYPE

#define TVMDML_REDUCE(name, operation, T)                                                                                   \
  inline T name(unsigned mask, T value, TVMDML_LINE) {                                                                      \
    const auto bits = static_cast<unsigned>(value);                                                                         \
    return static_cast<T>(tvmdml_emulator::reduced(tvmdml_emulator::Operation::operation, mask, bits, line));               \
  }
TVMDML_REDUCE(__reduce_add_sync, add, unsigned)
TVMDML_REDUCE(__reduce_add_sync, add, int)
TVMDML_REDUCE(__reduce_min_sync, least_unsigned, unsigned)
TVMDML_REDUCE(__reduce_min_sync, least_signed, int)
TVMDML_REDUCE(__reduce_max_sync, most_unsigned, unsigned)
TVMDML_REDUCE(__reduce_max_sync, most_signed, int)
TVMDML_REDUCE(__reduce_and_sync, all_bits, unsigned)
TVMDML_REDUCE(__reduce_or_sync, any_bits, unsigned)
TVMDML_REDUCE(__reduce_xor_sync, odd_bits, unsigned)
#undef TVMDML_REDUCE

#include "ptx.hpp"

inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  tvmdml_emulator::here().services->fence();
}
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { tvmdml_emulator::here().services->pause(); }
[[noreturn]] inline void __trap(TVMDML_LINE) { tvmdml_emulator::here().services->fault(715, "came to __trap()", line); }

// -- Atomics --------------------------------------------------------------------------------------------------------------

// Relaxed, as CUDA's are. Each type has those that it has there, so that a kernel without the right type is refused here too.
#define TVMDML_FETCH(name, builtin, T) \
  inline T name(T *at, T value) { return builtin(at, value, __ATOMIC_RELAXED); }
#define TVMDML_LOOP(name, expression, T)                                                                                \
  inline T name(T *at, T value) {                                                                                       \
    T old;                                                                                                              \
    __atomic_load(at, &old, __ATOMIC_RELAXED);                                                                          \
    for (;;) {                                                                                                          \
      T wanted = (expression);                                                                                          \
      if (__atomic_compare_exchange(at, &old, &wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;          \
    }                                                                                                                   \
  }
#define TVMDML_SWAPS(T)                                                                                      \
  TVMDML_FETCH(atomicExch, __atomic_exchange_n, T)                                                           \
  inline T atomicCAS(T *at, T expected, T desired) {                                                         \
    __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);          \
    return expected;                                                                                         \
  }
#define TVMDML_BITS(T)                                                \
  TVMDML_LOOP(atomicMin, old < value ? old : value, T)                \
  TVMDML_LOOP(atomicMax, old > value ? old : value, T)                \
  TVMDML_FETCH(atomicAnd, __atomic_fetch_and, T)                      \
  TVMDML_FETCH(atomicOr, __atomic_fetch_or, T)                        \
  TVMDML_FETCH(atomicXor, __atomic_fetch_xor, T)
TVMDML_FETCH(atomicAdd, __atomic_fetch_add, int)
TVMDML_FETCH(atomicAdd, __atomic_fetch_add, unsigned)
TVMDML_FETCH(atomicAdd, __atomic_fetch_add, unsigned long long)
TVMDML_LOOP(atomicAdd, old + value, float)
TVMDML_LOOP(atomicAdd, old + value, double)
TVMDML_FETCH(atomicSub, __atomic_fetch_sub, int)
TVMDML_FETCH(atomicSub, __atomic_fetch_sub, unsigned)
TVMDML_BITS(int)
TVMDML_BITS(unsigned)
TVMDML_BITS(long long)
TVMDML_BITS(unsigned long long)
TVMDML_SWAPS(int)
TVMDML_SWAPS(unsigned)
TVMDML_SWAPS(unsigned long long)
TVMDML_LOOP(atomicExch, value, float)
TVMDML_LOOP(atomicInc, old >= value ? 0 : old + 1, unsigned)
TVMDML_LOOP(atomicDec, old == 0 || old > value ? value : old - 1, unsigned)
inline unsigned short atomicCAS(unsigned short *at, unsigned short expected, unsigned short desired) {
  __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

// -- Numbers --------------------------------------------------------------------------------------------------------------

#include "numbers.hpp"

#ifdef TVMDML_HALF
#include <cuda_fp16.h>

#include "half_more.hpp"
#endif

// The source is told whose CUDA this is. That nvcc compiles it is not said: NVIDIA's headers would take it for a device's.
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDACC_VER_BUILD__ 88

// Instructions of PTX that a source has inline. `nvcc` makes calls of them: the first word's name, with the operands' text first.
#pragma once

#include <cmath>

namespace tvmdml_emulator {

// The operands are numbered in the order in which they are given: nothing else is understood.
inline void expects(const char *operands, const char *wanted, int line) {
  if (__builtin_strcmp(operands, wanted) != 0) here().services->fault(719, "has operands in an order that the emulator does not know", line);
}

// A 32-bit address of shared memory is the lower half of the generic one, which was converted just before.
inline char *shared_at(uint32_t at) {
  char *known = static_cast<char *>(here().shared);
  return known + static_cast<int32_t>(at - static_cast<uint32_t>(reinterpret_cast<uintptr_t>(known)));
}

inline float of_half(uint32_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
  if (exponent == 0) return value<float>(sign | bits(static_cast<float>(fraction) * 0x1p-24f));
  return value<float>(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13);
}

// What the lanes of a warp hold of two small matrices: a row or column is in four lanes, `words` in each, four bytes in a word.
struct Tiles {
  uint32_t a[4], b[2];
};

// All lanes' addresses of something, which stay valid until `together`.
template <class T>
inline T *const *everyones(T *mine, int line) {
  return reinterpret_cast<T *const *>(warp(Operation::gather, ~0u, reinterpret_cast<uintptr_t>(mine), 0, line));
}
inline void together(int line) { warp(Operation::sync, ~0u, 0, 0, line); }

inline void add(float &sum, const uint32_t *a, const uint32_t *b, float) {
  // Exact, and rounded towards zero once: tensor cores do not round to the nearest.
  double exact = sum;
  for (int k = 0; k < 4; k++)
    for (int half = 0; half < 32; half += 16) exact += static_cast<double>(of_half(a[k] >> half & 0xffff)) * of_half(b[k] >> half & 0xffff);
  const float near = static_cast<float>(exact);
  sum = std::isfinite(near) && std::fabs(static_cast<double>(near)) > std::fabs(exact) ? std::nextafterf(near, 0.0f) : near;
}
template <class A, class B>
inline void add(int32_t &sum, const uint32_t *a, const uint32_t *b, A, B) {
  uint32_t total = static_cast<uint32_t>(sum);
  for (int k = 0; k < 4; k++)
    for (int byte = 0; byte < 32; byte += 8)
      total += static_cast<uint32_t>(static_cast<A>(a[k] >> byte) * static_cast<B>(b[k] >> byte));
  sum = static_cast<int32_t>(total);
}

// Adds to `rows` sums of two neighbours each; of a row, 16 bytes at a time are multiplied.
template <class Sum, class... Kinds>
inline void multiply(int rows, int parts, Sum *const *sums, const Tiles &own, int line, Kinds... kinds) {
  const Tiles *const *lanes = everyones(&own, line);
  const unsigned lane = here().thread.x % 32, group = lane / 4, first = lane % 4 * 2;
  for (int part = 0; part < parts; part++)
    for (int row = 0; row < rows; row++)
      for (unsigned column = 0; column < 2; column++) {
        uint32_t a[4], b[4];
        for (unsigned k = 0; k < 4; k++) {
          a[k] = lanes[group * 4 + k]->a[part * rows + row];
          b[k] = lanes[(first + column) * 4 + k]->b[part];
        }
        add(*sums[row * 2 + column], a, b, kinds...);
      }
  together(line);
}

#define TVMDML_SUMS "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
inline void ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(
    const char *operands, float &c0, float &c1, float &c2, float &c3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
    uint32_t b1, TVMDML_LINE) {
  expects(operands, TVMDML_SUMS, line);
  float *const sums[] = {&c0, &c1, &c2, &c3};
  multiply(2, 2, sums, {{a0, a1, a2, a3}, {b0, b1}}, line, 0.0f);
}
inline void ptx_mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32(
    const char *operands, float &c0, float &c1, float &c2, float &c3, uint32_t a0, uint32_t a1, uint32_t b0, TVMDML_LINE) {
  expects(operands, "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};", line);
  float *const sums[] = {&c0, &c1, &c2, &c3};
  multiply(2, 1, sums, {{a0, a1}, {b0}}, line, 0.0f);
}
#define TVMDML_BYTES(types, A, B)                                                                                                \
  inline void ptx_mma_sync_aligned_m16n8k32_row_col_s32_##types##_s32(                                                          \
      const char *operands, int32_t &c0, int32_t &c1, int32_t &c2, int32_t &c3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, \
      uint32_t b0, uint32_t b1, TVMDML_LINE) {                                                                                   \
    expects(operands, TVMDML_SUMS, line);                                                                                        \
    int32_t *const sums[] = {&c0, &c1, &c2, &c3};                                                                                \
    multiply(2, 2, sums, {{a0, a1, a2, a3}, {b0, b1}}, line, A{}, B{});                                                          \
  }                                                                                                                              \
  inline void ptx_mma_sync_aligned_m8n8k16_row_col_s32_##types##_s32(const char *operands, int32_t &c0, int32_t &c1, uint32_t a0, \
                                                                     uint32_t b0, TVMDML_LINE) {                                 \
    expects(operands, "{%0, %1}, {%2}, {%3}, {%0, %1};", line);                                                                  \
    int32_t *const sums[] = {&c0, &c1};                                                                                          \
    multiply(1, 1, sums, {{a0}, {b0}}, line, A{}, B{});                                                                          \
  }
TVMDML_BYTES(s8_s8, int8_t, int8_t)
TVMDML_BYTES(s8_u8, int8_t, uint8_t)
TVMDML_BYTES(u8_s8, uint8_t, int8_t)
TVMDML_BYTES(u8_u8, uint8_t, uint8_t)
#undef TVMDML_BYTES
#undef TVMDML_SUMS

// Two products and sums, side by side.
inline void ptx_fma_rn_f32x2(const char *operands, uint64_t &sums, uint64_t a, uint64_t b, TVMDML_LINE) {
  expects(operands, "%0, %1, %2, %0;", line);
  float x[2], y[2], z[2];
  memcpy(x, &a, 8), memcpy(y, &b, 8), memcpy(z, &sums, 8);
  for (int i = 0; i < 2; i++) z[i] = std::fma(x[i], y[i], z[i]);
  memcpy(&sums, z, 8);
}

// A step less than the power, as it need not be the nearest float; 0 below the normal numbers.
inline void ptx_ex2_approx_ftz_f32(const char *operands, float &power, float of, TVMDML_LINE) {
  expects(operands, "%0, %1;", line);
  const float found = std::exp2(of < -126.0f ? -INFINITY : of);
  power = of == 0.0f ? 1.0f : std::isfinite(found) ? std::nextafterf(found, 0.0f) : found;
}

// Lane i's address is that of row i % 8 of matrix i / 8: 16 bytes.
template <bool turned>
inline void load_matrices(const char *operands, uint32_t *const *to, uint32_t at, int line) {
  expects(operands, "{%0, %1, %2, %3}, [%4];", line);
  if (at % 16) here().services->fault(716, "used an address that is not aligned as its type is,", line);
  const char *const *rows = everyones(static_cast<const char *>(shared_at(at)), line);
  const unsigned lane = here().thread.x % 32, group = lane / 4, first = lane % 4 * 2;
  for (unsigned matrix = 0; matrix < 4; matrix++) {
    uint16_t pair[2];
    for (unsigned k = 0; k < 2; k++)
      memcpy(&pair[k], turned ? rows[matrix * 8 + first + k] + 2 * group : rows[matrix * 8 + group] + 2 * (first + k), 2);
    memcpy(to[matrix], pair, 4);
  }
  together(line);
}
#define TVMDML_LOAD(name, turned)                                                                                              \
  inline void name(const char *operands, uint32_t &w0, uint32_t &w1, uint32_t &w2, uint32_t &w3, uint32_t at, TVMDML_LINE) {   \
    uint32_t *const to[] = {&w0, &w1, &w2, &w3};                                                                               \
    load_matrices<turned>(operands, to, at, line);                                                                             \
  }
TVMDML_LOAD(ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16, false)
TVMDML_LOAD(ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16, true)
#undef TVMDML_LOAD

// Copies are made as late as they may be: who does not wait for them reads what was there before.
inline void copy(uint32_t to, const void *from, unsigned bytes, unsigned there, int line) {
  if (to % bytes || reinterpret_cast<uintptr_t>(from) % bytes) here().services->fault(716, "used an address that is not aligned as its type is,", line);
  if (there > bytes) here().services->fault(719, "copies more than there is room for", line);
  here().services->copy(shared_at(to), from, bytes, there);
}
inline void ptx_cp_async_cg_shared_global(const char *operands, uint32_t to, const void *from, uint32_t there, TVMDML_LINE) {
  expects(operands, "[%0], [%1], 16, %2;", line);
  copy(to, from, 16, there, line);
}
inline void ptx_cp_async_ca_shared_global(const char *operands, uint32_t to, const void *from, unsigned bytes, uint32_t there,
                                          TVMDML_LINE) {
  expects(operands, "[%0], [%1], %2, %3;", line);
  copy(to, from, bytes, there, line);
}
inline void ptx_cp_async_commit_group(const char *) { here().services->end_copies(); }
inline void ptx_cp_async_wait_group(const char *, unsigned others) { here().services->await_copies(others); }

}  // namespace tvmdml_emulator

inline size_t __cvta_generic_to_shared(const void *at) {
  tvmdml_emulator::here().shared = const_cast<void *>(at);
  return reinterpret_cast<size_t>(at);
}

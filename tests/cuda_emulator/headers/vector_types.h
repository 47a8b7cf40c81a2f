// CUDA's vector types, for a computer without its toolkit.
#pragma once

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

#define TVMDML_VECTORS(T, name, align2, align4)                                                 \
  struct name##1 { T x; };                                                                      \
  struct alignas(align2) name##2 { T x, y; };                                                   \
  struct name##3 { T x, y, z; };                                                                \
  struct alignas(align4) name##4 { T x, y, z, w; };                                             \
  inline name##1 make_##name##1(T x) { return {x}; }                                            \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                    \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                            \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
TVMDML_VECTORS(signed char, char, 2, 4)
TVMDML_VECTORS(unsigned char, uchar, 2, 4)
TVMDML_VECTORS(short, short, 4, 8)
TVMDML_VECTORS(unsigned short, ushort, 4, 8)
TVMDML_VECTORS(int, int, 8, 16)
TVMDML_VECTORS(unsigned, uint, 8, 16)
TVMDML_VECTORS(long, long, 16, 16)
TVMDML_VECTORS(unsigned long, ulong, 16, 16)
TVMDML_VECTORS(long long, longlong, 16, 16)
TVMDML_VECTORS(unsigned long long, ulonglong, 16, 16)
TVMDML_VECTORS(float, float, 8, 16)
TVMDML_VECTORS(double, double, 16, 16)
#undef TVMDML_VECTORS

// Half precision, for a computer without NVIDIA's header: a number of 16 bits that is computed with as a float.
#pragma once

struct __half {
  unsigned short bits;
  __half() = default;
  inline __half(float a);
  inline __half(double a);
  __half(int a) : __half(static_cast<double>(a)) {}
  __half(unsigned a) : __half(static_cast<double>(a)) {}
  __half(short a) : __half(static_cast<double>(a)) {}
  __half(unsigned short a) : __half(static_cast<double>(a)) {}
  inline __half(long a);
  inline __half(long long a);
  inline __half(unsigned long a);
  inline __half(unsigned long long a);
  inline operator float() const;
};
struct alignas(4) __half2 {
  __half x, y;
};
using half = __half;
using half2 = __half2;

namespace tvmdml_emulator {

// The half nearest to a double, of two the even one. The double has all its bits but those that only say "a little more".
inline unsigned short half_bits(double a) {
  const unsigned long long all = bits(a), fraction = all & 0xfffffffffffff;
  const unsigned short sign = static_cast<unsigned short>(all >> 48 & 0x8000);
  int exponent = static_cast<int>(all >> 52 & 0x7ff) - 1023;
  if (exponent == 1024 && fraction) return 0x7fff;  // NaN, as the devices have it
  if (exponent >= 16) return sign | 0x7c00;
  if (exponent < -25) return sign;
  const unsigned long long whole = fraction | 1ull << 52;
  const int drop = exponent >= -14 ? 42 : 42 - 14 - exponent;
  const unsigned long long half_way = 1ull << (drop - 1), rest = whole & ((half_way << 1) - 1);
  unsigned long long kept = whole >> drop;
  kept += rest > half_way || (rest == half_way && (kept & 1));
  if (exponent >= -14) kept += static_cast<unsigned long long>(exponent + 14) << 10;  // the leading one is of the exponent
  return static_cast<unsigned short>(sign | kept);
}

inline float half_value(unsigned short half) {
  const unsigned sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return value<float>(fraction ? 0x7fffffff : sign | 0x7f800000);
  if (exponent) return value<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -small : small;
}

// An integer as a double that rounds to the same half: what lies beyond 53 bits is far beyond the largest half.
template <class T>
inline unsigned short half_of_integer(T a) {
  return half_bits(static_cast<double>(a));
}

}  // namespace tvmdml_emulator

inline __half __ushort_as_half(unsigned short bits) {
  __half found;
  found.bits = bits;
  return found;
}
inline __half __short_as_half(short bits) { return __ushort_as_half(static_cast<unsigned short>(bits)); }
inline unsigned short __half_as_ushort(__half a) { return a.bits; }
inline short __half_as_short(__half a) { return static_cast<short>(a.bits); }
inline float __half2float(__half a) { return tvmdml_emulator::half_value(a.bits); }
inline __half __float2half(float a) { return __ushort_as_half(tvmdml_emulator::half_bits(a)); }
inline __half __float2half_rn(float a) { return __float2half(a); }
inline __half __double2half(double a) { return __ushort_as_half(tvmdml_emulator::half_bits(a)); }
inline __half::__half(float a) : bits(tvmdml_emulator::half_bits(a)) {}
inline __half::__half(double a) : bits(tvmdml_emulator::half_bits(a)) {}
inline __half::__half(long a) : bits(tvmdml_emulator::half_of_integer(a)) {}
inline __half::__half(long long a) : bits(tvmdml_emulator::half_of_integer(a)) {}
inline __half::__half(unsigned long a) : bits(tvmdml_emulator::half_of_integer(a)) {}
inline __half::__half(unsigned long long a) : bits(tvmdml_emulator::half_of_integer(a)) {}
inline __half::operator float() const { return __half2float(*this); }

// A float has more than twice a half's bits, so that rounding to both changes nothing.
#define TVMDML_ARITHMETIC(name, sign) \
  inline __half operator sign(__half a, __half b) { return __float2half(__half2float(a) sign __half2float(b)); } \
  inline __half &operator sign##=(__half &a, __half b) { return a = a sign b; } \
  inline __half name(__half a, __half b) { return a sign b; }
TVMDML_ARITHMETIC(__hadd, +)
TVMDML_ARITHMETIC(__hsub, -)
TVMDML_ARITHMETIC(__hmul, *)
TVMDML_ARITHMETIC(__hdiv, /)
#undef TVMDML_ARITHMETIC
#define TVMDML_COMPARISON(name, sign) \
  inline bool operator sign(__half a, __half b) { return __half2float(a) sign __half2float(b); } \
  inline bool name(__half a, __half b) { return a sign b; }
TVMDML_COMPARISON(__heq, ==)
TVMDML_COMPARISON(__hne, !=)
TVMDML_COMPARISON(__hlt, <)
TVMDML_COMPARISON(__hle, <=)
TVMDML_COMPARISON(__hgt, >)
TVMDML_COMPARISON(__hge, >=)
#undef TVMDML_COMPARISON
inline __half operator-(__half a) { return __ushort_as_half(a.bits ^ 0x8000); }
inline __half __hneg(__half a) { return -a; }
inline __half __habs(__half a) { return __ushort_as_half(a.bits & 0x7fff); }
inline bool __hisnan(__half a) { return (a.bits & 0x7fff) > 0x7c00; }
inline int __hisinf(__half a) { return a.bits == 0x7c00 ? 1 : a.bits == 0xfc00 ? -1 : 0; }
inline __half __hmin(__half a, __half b) { return __float2half(fminf(a, b)); }
inline __half __hmax(__half a, __half b) { return __float2half(fmaxf(a, b)); }

#define TVMDML_CONVERSION(name, T) \
  inline T __half2##name##_rn(__half a) { return __float2##name##_rn(a); } \
  inline T __half2##name##_rz(__half a) { return __float2##name##_rz(a); } \
  inline T __half2##name##_rd(__half a) { return __float2##name##_rd(a); } \
  inline T __half2##name##_ru(__half a) { return __float2##name##_ru(a); } \
  inline __half __##name##2half_rn(T a) { return a; }
TVMDML_CONVERSION(int, int)
TVMDML_CONVERSION(uint, unsigned)
TVMDML_CONVERSION(ll, long long)
TVMDML_CONVERSION(ull, unsigned long long)
#undef TVMDML_CONVERSION

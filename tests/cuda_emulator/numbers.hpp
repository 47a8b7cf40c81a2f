// CUDA's functions of numbers: C's by their names in C, and intrinsics.
#pragma once

// As C's header declares them, without the time that it takes to read.
#define TVMDML_C1(name) extern "C" double name(double) noexcept; extern "C" float name##f(float) noexcept; \
  inline float name(float a) { return name##f(a); }
#define TVMDML_C2(name) extern "C" double name(double, double) noexcept; extern "C" float name##f(float, float) noexcept; \
  inline float name(float a, float b) { return name##f(a, b); }
TVMDML_C1(acos) TVMDML_C1(acosh) TVMDML_C1(asin) TVMDML_C1(asinh) TVMDML_C1(atan) TVMDML_C1(atanh) TVMDML_C1(cbrt)
TVMDML_C1(ceil) TVMDML_C1(cos) TVMDML_C1(cosh) TVMDML_C1(erf) TVMDML_C1(erfc) TVMDML_C1(exp) TVMDML_C1(exp10)
TVMDML_C1(exp2) TVMDML_C1(expm1) TVMDML_C1(fabs) TVMDML_C1(floor) TVMDML_C1(lgamma) TVMDML_C1(log) TVMDML_C1(log10)
TVMDML_C1(log1p) TVMDML_C1(log2) TVMDML_C1(logb) TVMDML_C1(nearbyint) TVMDML_C1(rint) TVMDML_C1(round) TVMDML_C1(sin)
TVMDML_C1(sinh) TVMDML_C1(sqrt) TVMDML_C1(tan) TVMDML_C1(tanh) TVMDML_C1(tgamma) TVMDML_C1(trunc)
TVMDML_C2(atan2) TVMDML_C2(copysign) TVMDML_C2(fdim) TVMDML_C2(fmax) TVMDML_C2(fmin) TVMDML_C2(fmod) TVMDML_C2(hypot)
TVMDML_C2(nextafter) TVMDML_C2(pow) TVMDML_C2(remainder)
#undef TVMDML_C1
#undef TVMDML_C2
extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" int abs(int) noexcept;
extern "C" long labs(long) noexcept;
extern "C" long long llabs(long long) noexcept;
inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
inline float ldexp(float a, int b) { return ldexpf(a, b); }
inline long abs(long a) { return a < 0 ? -a : a; }
inline long long abs(long long a) { return a < 0 ? -a : a; }
inline float abs(float a) { return fabsf(a); }
inline double abs(double a) { return fabs(a); }
inline float rsqrtf(float a) { return 1 / sqrtf(a); }
inline double rsqrt(double a) { return 1 / sqrt(a); }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __fdividef(float a, float b) { return a / b; }

#define TVMDML_TEST(name) \
  inline bool name(float a) { return __builtin_##name(a); } \
  inline bool name(double a) { return __builtin_##name(a); }
TVMDML_TEST(isnan)
TVMDML_TEST(isinf)
TVMDML_TEST(isfinite)
TVMDML_TEST(signbit)
#undef TVMDML_TEST

#define TVMDML_EXTREMES(T) \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T max(T a, T b) { return a < b ? b : a; }
TVMDML_EXTREMES(int)
TVMDML_EXTREMES(unsigned)
TVMDML_EXTREMES(long)
TVMDML_EXTREMES(unsigned long)
TVMDML_EXTREMES(long long)
TVMDML_EXTREMES(unsigned long long)
#undef TVMDML_EXTREMES
#define TVMDML_MIXED(A, B, T) \
  inline T min(A a, B b) { return min(static_cast<T>(a), static_cast<T>(b)); } \
  inline T min(B a, A b) { return min(static_cast<T>(a), static_cast<T>(b)); } \
  inline T max(A a, B b) { return max(static_cast<T>(a), static_cast<T>(b)); } \
  inline T max(B a, A b) { return max(static_cast<T>(a), static_cast<T>(b)); }
TVMDML_MIXED(int, unsigned, unsigned)
TVMDML_MIXED(long, unsigned long, unsigned long)
TVMDML_MIXED(long long, unsigned long long, unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
TVMDML_MIXED(float, double, double)
#undef TVMDML_MIXED

// -- Bits ------------------------------------------------------------------------------------------------------------------

inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __clz(int a) { return a ? __builtin_clz(static_cast<unsigned>(a)) : 32; }
inline int __clzll(long long a) { return a ? __builtin_clzll(static_cast<unsigned long long>(a)) : 64; }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __ffsll(long long a) { return __builtin_ffsll(a); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long both = static_cast<unsigned long long>(b) << 32 | a;
  unsigned found = 0;
  for (int k = 0; k < 4; k++) {
    const unsigned pick = selector >> 4 * k, byte = both >> 8 * (pick & 7) & 255;
    found |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * k;
  }
  return found;
}
inline unsigned long long __brevll(unsigned long long a) {
  unsigned long long found = 0;
  for (int k = 0; k < 64; k++) found |= (a >> k & 1) << (63 - k);
  return found;
}
inline unsigned __brev(unsigned a) { return static_cast<unsigned>(__brevll(a) >> 32); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (by & 31));
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32); }
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline long long __mul64hi(long long a, long long b) { return static_cast<long long>(static_cast<__int128>(a) * b >> 64); }

// The same bits as another type.
#define TVMDML_AS(name, From, To) \
  inline To name(From a) { return tvmdml_emulator::value<To>(tvmdml_emulator::bits(a)); }
TVMDML_AS(__int_as_float, int, float)
TVMDML_AS(__float_as_int, float, int)
TVMDML_AS(__uint_as_float, unsigned, float)
TVMDML_AS(__float_as_uint, float, unsigned)
TVMDML_AS(__longlong_as_double, long long, double)
TVMDML_AS(__double_as_longlong, double, long long)
#undef TVMDML_AS
inline int __double2hiint(double a) { return static_cast<int>(static_cast<unsigned long long>(__double_as_longlong(a)) >> 32); }
inline int __double2loint(double a) { return static_cast<int>(static_cast<unsigned>(__double_as_longlong(a))); }

template <class T>
inline T __ldg(const T *at) {
  return *at;
}
template <class T>
inline T __ldcg(const T *at) {
  return *at;
}
template <class T>
inline void __stcg(T *at, T value) {
  *at = value;
}

// -- Conversions: what does not fit becomes the nearest that does, NaN becomes 0 ------------------------------------------------

namespace tvmdml_emulator {
template <class To, class From>
inline To saturated(From a) {
  constexpr bool is_signed = static_cast<To>(-1) < static_cast<To>(0);
  constexpr int bits = 8 * sizeof(To) - is_signed;
  const From limit = static_cast<From>(1ull << (bits - 1)) * 2;  // the first that is too large
  const To most = static_cast<To>(static_cast<unsigned long long>(-1) >> (64 - bits));
  if (a != a) return 0;
  if (a >= limit) return most;
  if (a < (is_signed ? -limit : 0)) return is_signed ? static_cast<To>(-most - 1) : 0;
  return static_cast<To>(a);
}
}  // namespace tvmdml_emulator
#define TVMDML_TO(from, From, to, To, f) \
  inline To __##from##2##to##_rn(From a) { return tvmdml_emulator::saturated<To>(rint##f(a)); } \
  inline To __##from##2##to##_rz(From a) { return tvmdml_emulator::saturated<To>(trunc##f(a)); } \
  inline To __##from##2##to##_rd(From a) { return tvmdml_emulator::saturated<To>(floor##f(a)); } \
  inline To __##from##2##to##_ru(From a) { return tvmdml_emulator::saturated<To>(ceil##f(a)); }
TVMDML_TO(float, float, int, int, f)
TVMDML_TO(float, float, uint, unsigned, f)
TVMDML_TO(float, float, ll, long long, f)
TVMDML_TO(float, float, ull, unsigned long long, f)
TVMDML_TO(double, double, int, int, )
TVMDML_TO(double, double, uint, unsigned, )
TVMDML_TO(double, double, ll, long long, )
TVMDML_TO(double, double, ull, unsigned long long, )
#undef TVMDML_TO
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }
inline float __ll2float_rn(long long a) { return static_cast<float>(a); }
inline float __ull2float_rn(unsigned long long a) { return static_cast<float>(a); }
inline double __int2double_rn(int a) { return a; }
inline double __uint2double_rn(unsigned a) { return a; }
inline double __ll2double_rn(long long a) { return static_cast<double>(a); }
inline double __ull2double_rn(unsigned long long a) { return static_cast<double>(a); }
inline float __double2float_rn(double a) { return static_cast<float>(a); }

#define TVMDML_ROUNDED(prefix, T, f) \
  inline T __##prefix##add_rn(T a, T b) { return a + b; } \
  inline T __##prefix##sub_rn(T a, T b) { return a - b; } \
  inline T __##prefix##mul_rn(T a, T b) { return a * b; } \
  inline T __##prefix##div_rn(T a, T b) { return a / b; } \
  inline T __##prefix##sqrt_rn(T a) { return sqrt##f(a); }
TVMDML_ROUNDED(f, float, f)
TVMDML_ROUNDED(d, double, )
#undef TVMDML_ROUNDED
inline float __fmaf_ieee_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __frcp_rn(float a) { return 1 / a; }
inline double __drcp_rn(double a) { return 1 / a; }
inline float __saturatef(float a) { return a > 0 ? (a < 1 ? a : 1) : 0; }

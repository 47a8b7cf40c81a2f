// What NVIDIA's cuda_fp16.h declares for devices alone.
#pragma once

namespace tvmdml_emulator {
inline void ptx_cvt_rn_f16x2_f32(const char *operands, uint32_t &both, float high, float low, TVMDML_LINE) {
  expects(operands, "%0, %1, %2;", line);
  both = __half_as_ushort(__float2half_rn(low)) | static_cast<uint32_t>(__half_as_ushort(__float2half_rn(high))) << 16;
}
}  // namespace tvmdml_emulator

#define TVMDML_HALF1(name, function) \
  inline __half name(__half a) { return __float2half_rn(function(__half2float(a))); }
TVMDML_HALF1(hceil, ceilf)
TVMDML_HALF1(hcos, cosf)
TVMDML_HALF1(hexp, expf)
TVMDML_HALF1(hexp10, exp10f)
TVMDML_HALF1(hexp2, exp2f)
TVMDML_HALF1(hfloor, floorf)
TVMDML_HALF1(hlog, logf)
TVMDML_HALF1(hlog10, log10f)
TVMDML_HALF1(hlog2, log2f)
TVMDML_HALF1(hrcp, 1 / )
TVMDML_HALF1(hrint, rintf)
TVMDML_HALF1(hrsqrt, rsqrtf)
TVMDML_HALF1(hsin, sinf)
TVMDML_HALF1(hsqrt, sqrtf)
TVMDML_HALF1(htanh, tanhf)
TVMDML_HALF1(htrunc, truncf)
#undef TVMDML_HALF1

#define TVMDML_SHUFFLE_HALF(name, Argument) \
  inline __half name(unsigned mask, __half value, Argument argument, int width = 32, TVMDML_LINE) { \
    const unsigned bits = name(mask, static_cast<unsigned>(__half_as_ushort(value)), argument, width, line); \
    return __ushort_as_half(static_cast<unsigned short>(bits)); \
  }
TVMDML_SHUFFLE_HALF(__shfl_sync, int)
TVMDML_SHUFFLE_HALF(__shfl_up_sync, unsigned)
TVMDML_SHUFFLE_HALF(__shfl_down_sync, unsigned)
TVMDML_SHUFFLE_HALF(__shfl_xor_sync, int)
#undef TVMDML_SHUFFLE_HALF

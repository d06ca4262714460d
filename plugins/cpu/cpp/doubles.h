// Sixteen float64 lanes beside the float32 lanes of simd.h, and exp in full precision.
//
// A residual is the difference of two probabilities that may be equal but for their last digits: what float32 makes of
// them is not enough for it.
#pragma once

#include "row.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

constexpr int kNativeDoubles = kNativeLanes / 2;
constexpr int kDoubleParts = kLanes / kNativeDoubles;

typedef double NativeDoubles __attribute__((vector_size(4 * kNativeLanes)));
typedef int64_t NativeLongs __attribute__((vector_size(4 * kNativeLanes)));
typedef float NarrowFloats __attribute__((vector_size(2 * kNativeLanes)));

struct Doubles {
  NativeDoubles part[kDoubleParts];
};

ALWAYS_INLINE Doubles splat_double(double value) {
  Doubles r;
  for (int p = 0; p < kDoubleParts; ++p) r.part[p] = value - NativeDoubles{};
  return r;
}
ALWAYS_INLINE Doubles load(const double* from) {
  Doubles r;
  memcpy(&r, from, sizeof r);
  return r;
}
ALWAYS_INLINE void store(double* to, Doubles v) { memcpy(to, &v, sizeof v); }

ALWAYS_INLINE Doubles widen(Floats v) {
#if defined(__AVX512F__)
  const __m512 x = (__m512)v.part[0];
  return {{(NativeDoubles)_mm512_cvtps_pd(_mm512_castps512_ps256(x)),
           (NativeDoubles)_mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))}};
#endif
  float lane[kLanes];
  store(lane, v);
  Doubles r;
  for (int p = 0; p < kDoubleParts; ++p) {
    NarrowFloats narrow;
    memcpy(&narrow, lane + p * kNativeDoubles, sizeof narrow);
    r.part[p] = __builtin_convertvector(narrow, NativeDoubles);
  }
  return r;
}

ALWAYS_INLINE Doubles operator+(Doubles a, Doubles b) {
  for (int p = 0; p < kDoubleParts; ++p) a.part[p] += b.part[p];
  return a;
}
ALWAYS_INLINE Doubles operator-(Doubles a, Doubles b) {
  for (int p = 0; p < kDoubleParts; ++p) a.part[p] -= b.part[p];
  return a;
}
ALWAYS_INLINE Doubles operator*(Doubles a, Doubles b) {
  for (int p = 0; p < kDoubleParts; ++p) a.part[p] *= b.part[p];
  return a;
}
// 0 for what is negative or NaN.
ALWAYS_INLINE Doubles at_least_0(Doubles a) {
  for (int p = 0; p < kDoubleParts; ++p) a.part[p] = a.part[p] > 0 ? a.part[p] : NativeDoubles{};
  return a;
}
// `a` in lanes where least <= x <= most, else 0.
ALWAYS_INLINE Doubles where_between(Doubles x, double least, double most, Doubles a) {
  for (int p = 0; p < kDoubleParts; ++p) {
    a.part[p] = x.part[p] >= least ? a.part[p] : NativeDoubles{};
    a.part[p] = x.part[p] <= most ? a.part[p] : NativeDoubles{};
  }
  return a;
}
ALWAYS_INLINE double sum_of_lanes(Doubles v) {
  double lane[kLanes], sum[4] = {};
  store(lane, v);
  for (int i = 0; i < kLanes; ++i) sum[i % 4] += lane[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

ALWAYS_INLINE NativeDoubles multiply_add(NativeDoubles a, NativeDoubles b, NativeDoubles c) {
#if defined(__AVX512F__)
  return (NativeDoubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
  return (NativeDoubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return a * b + c;
#endif
}

ALWAYS_INLINE Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
  for (int p = 0; p < kDoubleParts; ++p) a.part[p] = multiply_add(a.part[p], b.part[p], c.part[p]);
  return a;
}

// exp(y) for y <= 0 within two units of its last digit; 0 below -708.
//
// y = n log(2) + r with |r| <= log(2) / 2; Taylor's polynomial of degree 12 at r, and n goes into the exponent.
ALWAYS_INLINE Doubles exp_of(Doubles y) {
  constexpr double kFactorials[] = {
      1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5,         1.0,         1.0};
  const NativeDoubles magic = 0x1.8p52 - NativeDoubles{};  // the sum's low bits are the nearest integer
  const NativeDoubles log2e = 0x1.71547652b82fep0 - NativeDoubles{};
  const NativeDoubles high = -0x1.62e42fefa3800p-1 - NativeDoubles{}, low = -0x1.ef35793c76730p-45 - NativeDoubles{};
  Doubles result;
  for (int p = 0; p < kDoubleParts; ++p) {
    const NativeDoubles least = -708.0 - NativeDoubles{}, t = y.part[p] > least ? y.part[p] : least;
    const NativeDoubles whole = t * log2e + magic, n = whole - magic;
    const NativeDoubles r = multiply_add(n, low, multiply_add(n, high, t));
    NativeDoubles sum = kFactorials[0] - NativeDoubles{};
    for (int i = 1; i < 13; ++i) sum = multiply_add(sum, r, kFactorials[i] - NativeDoubles{});
    const NativeDoubles power = (NativeDoubles)((NativeLongs)sum + ((NativeLongs)whole << 52));
    result.part[p] = y.part[p] >= least ? power : NativeDoubles{};
  }
  return result;
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

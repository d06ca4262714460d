// Sixteen float32 or int32 lanes on every target, as one, two or four native vectors of the compiler's extensions.
//
// The files that include this one are compiled once for each target, each time in a namespace of its own,
// TOKENDRAW_TARGET, so that the linker never merges functions of two targets. For the same reason they call functions
// of C, and templates of the standard library only with types of that namespace.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tokendraw {
namespace TOKENDRAW_TARGET {

#define ALWAYS_INLINE inline __attribute__((always_inline))

constexpr int kLanes = 16;
#if defined(__AVX512F__)
constexpr int kNativeLanes = 16;
#elif defined(__AVX2__)
constexpr int kNativeLanes = 8;
#else
constexpr int kNativeLanes = 4;
#endif
constexpr int kParts = kLanes / kNativeLanes;

typedef float NativeFloats __attribute__((vector_size(4 * kNativeLanes)));
typedef int32_t NativeInts __attribute__((vector_size(4 * kNativeLanes)));
typedef uint32_t NativeWords __attribute__((vector_size(4 * kNativeLanes)));
typedef uint16_t NativeHalves __attribute__((vector_size(2 * kNativeLanes)));

struct Floats {
  NativeFloats part[kParts];
};
struct Words {
  NativeWords part[kParts];
};

constexpr float kInf = std::numeric_limits<float>::infinity();

template <class To, class From>
ALWAYS_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits are copied");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

ALWAYS_INLINE Floats splat(float value) {
  Floats r;
  for (int p = 0; p < kParts; ++p) r.part[p] = value - NativeFloats{};  // x - 0 keeps -0 and infinities
  return r;
}
// Part by part: compilers copy the whole in pieces of 16 bytes, which a load of 32 has to wait for.
ALWAYS_INLINE Floats load(const float* from) {
  Floats r;
  for (int p = 0; p < kParts; ++p) {
    NativeFloats part;
    memcpy(&part, from + p * kNativeLanes, sizeof part);
    r.part[p] = part;
  }
  return r;
}
ALWAYS_INLINE void store(float* to, Floats v) {
  for (int p = 0; p < kParts; ++p) {
    const NativeFloats part = v.part[p];
    memcpy(to + p * kNativeLanes, &part, sizeof part);
  }
}

#define LANEWISE(name, expression)                                                     \
  ALWAYS_INLINE Floats name(Floats a, Floats b) {                                      \
    Floats r;                                                                          \
    for (int p = 0; p < kParts; ++p) {                                                 \
      const NativeFloats x = a.part[p], y = b.part[p];                                 \
      r.part[p] = expression;                                                          \
    }                                                                                  \
    return r;                                                                          \
  }
LANEWISE(operator+, x + y)
LANEWISE(operator-, x - y)
LANEWISE(operator*, x* y)
// y where x or y is NaN, as the instruction of x86, which compilers do not always choose for x > y ? x : y.
#if defined(__AVX512F__)
LANEWISE(larger, (NativeFloats)_mm512_max_ps((__m512)x, (__m512)y))
#elif defined(__AVX2__)
LANEWISE(larger, (NativeFloats)_mm256_max_ps((__m256)x, (__m256)y))
#elif defined(__x86_64__)
LANEWISE(larger, (NativeFloats)_mm_max_ps((__m128)x, (__m128)y))
#else
LANEWISE(larger, x > y ? x : y)
#endif
#undef LANEWISE

// a * b + c, rounded once where the target has the instruction.
ALWAYS_INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
  Floats r;
  for (int p = 0; p < kParts; ++p) {
#if defined(__AVX512F__)
    r.part[p] = (NativeFloats)_mm512_fmadd_ps((__m512)a.part[p], (__m512)b.part[p], (__m512)c.part[p]);
#elif defined(__AVX2__)
    r.part[p] = (NativeFloats)_mm256_fmadd_ps((__m256)a.part[p], (__m256)b.part[p], (__m256)c.part[p]);
#elif defined(__aarch64__)
    r.part[p] = (NativeFloats)vfmaq_f32((float32x4_t)c.part[p], (float32x4_t)a.part[p], (float32x4_t)b.part[p]);
#else
    r.part[p] = a.part[p] * b.part[p] + c.part[p];
#endif
  }
  return r;
}

// `a` in lanes where x >= least, else 0.
ALWAYS_INLINE Floats where_reaching(Floats x, Floats least, Floats a) {
  Floats r;
  for (int p = 0; p < kParts; ++p) r.part[p] = x.part[p] >= least.part[p] ? a.part[p] : NativeFloats{};
  return r;
}

// `a` in lanes where x > bound, else 0.
ALWAYS_INLINE Floats where_above(Floats x, Floats bound, Floats a) {
  Floats r;
  for (int p = 0; p < kParts; ++p) r.part[p] = x.part[p] > bound.part[p] ? a.part[p] : NativeFloats{};
  return r;
}

// One bit a lane: x >= bound, or x > bound. NaN has none.
#if defined(__AVX512F__)
#define NATIVE_BITS(x, bound, relation) _mm512_cmp_ps_mask((__m512)(x), (__m512)(bound), _CMP_##relation##_OQ)
#elif defined(__AVX2__)
#define NATIVE_BITS(x, bound, relation) \
  _mm256_movemask_ps(_mm256_cmp_ps((__m256)(x), (__m256)(bound), _CMP_##relation##_OQ))
#else
enum Relation { GE, GT };
ALWAYS_INLINE uint32_t native_bits(NativeFloats x, NativeFloats bound, Relation relation) {
  const NativeInts hit = relation == GE ? x >= bound : x > bound;
#if defined(__x86_64__)
  return uint32_t(_mm_movemask_ps((__m128)hit));
#elif defined(__aarch64__)
  const uint32x4_t lane_bits = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32((uint32x4_t)hit, lane_bits));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kNativeLanes; ++i) bits |= (hit[i] ? 1u : 0u) << i;
  return bits;
#endif
}
#define NATIVE_BITS(x, bound, relation) native_bits(x, bound, relation)
#endif

ALWAYS_INLINE uint32_t reaching_bits(Floats x, Floats bound) {
  uint32_t bits = 0;
  for (int p = 0; p < kParts; ++p) {
    bits |= uint32_t(NATIVE_BITS(x.part[p], bound.part[p], GE)) << (kNativeLanes * p);
  }
  return bits;
}
ALWAYS_INLINE uint32_t above_bits(Floats x, Floats bound) {
  uint32_t bits = 0;
  for (int p = 0; p < kParts; ++p) {
    bits |= uint32_t(NATIVE_BITS(x.part[p], bound.part[p], GT)) << (kNativeLanes * p);
  }
  return bits;
}
#undef NATIVE_BITS

// Whether NaN was among the lanes that it was shown.
struct NanFlag {
#if defined(__AVX512F__)
  __mmask16 seen = 0;
  ALWAYS_INLINE void look_at(Floats a, Floats b) {
    seen |= _mm512_cmp_ps_mask((__m512)a.part[0], (__m512)b.part[0], _CMP_UNORD_Q);
  }
  ALWAYS_INLINE bool any() const { return seen != 0; }
#else
  NativeInts seen = {};
  ALWAYS_INLINE void look_at(Floats a, Floats b) {
    for (int p = 0; p < kParts; ++p) {
#if defined(__AVX2__)
      seen |= (NativeInts)_mm256_cmp_ps((__m256)a.part[p], (__m256)b.part[p], _CMP_UNORD_Q);
#elif defined(__x86_64__)
      seen |= (NativeInts)_mm_cmpunord_ps((__m128)a.part[p], (__m128)b.part[p]);
#else
      seen |= (NativeInts)(a.part[p] != a.part[p]) | (NativeInts)(b.part[p] != b.part[p]);
#endif
    }
  }
  ALWAYS_INLINE bool any() const {
    int32_t all = 0;
    for (int i = 0; i < kNativeLanes; ++i) all |= seen[i];
    return all != 0;
  }
#endif
};

ALWAYS_INLINE float largest_lane(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v.part[0]);
#else
  NativeFloats most = v.part[0];
  for (int p = 1; p < kParts; ++p) most = v.part[p] > most ? v.part[p] : most;
  float largest = most[0];
  for (int i = 1; i < kNativeLanes; ++i) largest = most[i] > largest ? most[i] : largest;
  return largest;
#endif
}

ALWAYS_INLINE double sum_of_lanes(Floats v) {
#if defined(__AVX512F__)
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v.part[0]));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v.part[0], 1));
  return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
#else
  float lane[kLanes];
  store(lane, v);
  double sum[4] = {};
  for (int i = 0; i < kLanes; ++i) sum[i % 4] += double(lane[i]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
#endif
}

// 2 ** t for t <= 0, within 2e-8 of its size beside the rounding of t; 2 ** -125 below -125 and for NaN.
//
// A minimax polynomial of degree 6 on [-1/2, 1/2]; the whole part of t goes into the exponent. Its coefficients are
// float32: the error of the rounded polynomial is 1.6e-8.
ALWAYS_INLINE Floats exp2_of(Floats t) {
  t = larger(t, splat(-125.0f));
  const Floats magic = splat(12582912.0f);  // 1.5 * 2 ** 23: the sum's low bits are the nearest integer
  const Floats whole = t + magic;
  const Floats f = t - (whole - magic);
  Floats p = splat(0x1.41d32ep-13f);
  p = multiply_add(p, f, splat(0x1.5f456ap-10f));
  p = multiply_add(p, f, splat(0x1.3b2dbcp-7f));
  p = multiply_add(p, f, splat(0x1.c6aed4p-5f));
  p = multiply_add(p, f, splat(0x1.ebfbdap-3f));
  p = multiply_add(p, f, splat(0x1.62e430p-1f));
  p = multiply_add(p, f, splat(1.0f));
  Floats r;
  for (int i = 0; i < kParts; ++i) {
    r.part[i] = (NativeFloats)((NativeWords)p.part[i] + ((NativeWords)whole.part[i] << 23));
  }
  return r;
}

// Append the lanes of `v` that `bits` names to `to`, which has room for sixteen more; returns their number.
ALWAYS_INLINE int append_lanes(float* to, Floats v, uint32_t bits) {
#if defined(__AVX512F__)
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(__mmask16(bits), (__m512)v.part[0]));
#else
  float lane[kLanes];
  store(lane, v);
  float* at = to;
  for (uint32_t rest = bits; rest; rest &= rest - 1) *at++ = lane[__builtin_ctz(rest)];
#endif
  return __builtin_popcount(bits);
}

// The same for the numbers of these lanes, counted from `first`.
ALWAYS_INLINE void append_numbers(int32_t* to, int32_t first, uint32_t bits) {
#if defined(__AVX512F__)
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i numbers = _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(__mmask16(bits), numbers));
#else
  for (uint32_t rest = bits; rest; rest &= rest - 1) *to++ = first + __builtin_ctz(rest);
#endif
}

// ---- Logits of each dtype as float32. NaN stays NaN.

struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(Bfloat16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }
inline float to_float(Float16 x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  if (rest >= 0x7c00u) return bit_cast<float>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  if (rest >= 0x400u) return bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
  const float magnitude = float(rest) * 0x1p-24f;  // subnormal
  return sign ? -magnitude : magnitude;
}

ALWAYS_INLINE Floats load(const Bfloat16* from) {
  Floats r;
  for (int p = 0; p < kParts; ++p) {
    NativeHalves half;
    memcpy(&half, from + p * kNativeLanes, sizeof half);
#if defined(__AVX512F__)
    const NativeWords words = (NativeWords)_mm512_cvtepu16_epi32((__m256i)half);
#elif defined(__AVX2__)
    const NativeWords words = (NativeWords)_mm256_cvtepu16_epi32((__m128i)half);
#else
    const NativeWords words = __builtin_convertvector(half, NativeWords);
#endif
    r.part[p] = (NativeFloats)(words << 16);
  }
  return r;
}

ALWAYS_INLINE Floats load(const Float16* from) {
  Floats r;
#if defined(__AVX512F__)
  __m256i half;
  memcpy(&half, from, sizeof half);
  r.part[0] = (NativeFloats)_mm512_cvtph_ps(half);
#elif defined(__AVX2__)
  for (int p = 0; p < kParts; ++p) {
    __m128i half;
    memcpy(&half, from + p * kNativeLanes, sizeof half);
    r.part[p] = (NativeFloats)_mm256_cvtph_ps(half);
  }
#elif defined(__aarch64__)
  for (int p = 0; p < kParts; ++p) {
    uint16x4_t half;
    memcpy(&half, from + p * kNativeLanes, sizeof half);
    r.part[p] = (NativeFloats)vcvt_f32_f16(vreinterpret_f16_u16(half));
  }
#else
  float lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = to_float(from[i]);
  r = load(lane);
#endif
  return r;
}

// Thirty-two logits of 16 bits as integers in the order of their values: -inf is the least integer, and every NaN is
// above +inf.
typedef int16_t NativeShorts __attribute__((vector_size(4 * kNativeLanes)));
typedef uint16_t NativeUnsigned __attribute__((vector_size(4 * kNativeLanes)));  // sums of these wrap around
struct Keys {
  NativeShorts part[kParts];
};

template <class T>
struct KeyOrder;
template <>
struct KeyOrder<Bfloat16> {
  static constexpr int16_t kInfinity = 0x7f80;  // the bits of +inf
};
template <>
struct KeyOrder<Float16> {
  static constexpr int16_t kInfinity = 0x7c00;
};
// From the integer of a value with its magnitude complemented below 0, which is ~kInfinity ^ 0x8000 for -inf.
template <class T>
constexpr int16_t kKeyShift = int16_t(KeyOrder<T>::kInfinity - 0x7fff);
template <class T>
constexpr int16_t kInfinityKey = int16_t(KeyOrder<T>::kInfinity + kKeyShift<T>);

constexpr int16_t kLeastKey = std::numeric_limits<int16_t>::min();

ALWAYS_INLINE Keys splat_key(int16_t key) {
  Keys r;
  for (int p = 0; p < kParts; ++p) r.part[p] = key - NativeShorts{};
  return r;
}

template <class T>
ALWAYS_INLINE Keys load_keys(const T* from) {
  Keys r;
  for (int p = 0; p < kParts; ++p) {
    NativeShorts bits;
    memcpy(&bits, from + p * 2 * kNativeLanes, sizeof bits);
    const NativeUnsigned ordered = (NativeUnsigned)(bits ^ ((bits >> 15) & int16_t(0x7fff)));
    r.part[p] = (NativeShorts)(ordered + uint16_t(kKeyShift<T>));
  }
  return r;
}

ALWAYS_INLINE Keys larger(Keys a, Keys b) {
  Keys r;
  for (int p = 0; p < kParts; ++p) {
    const NativeShorts x = a.part[p], y = b.part[p];
#if defined(__AVX512BW__)
    r.part[p] = (NativeShorts)_mm512_max_epi16((__m512i)x, (__m512i)y);
#elif defined(__AVX2__)
    r.part[p] = (NativeShorts)_mm256_max_epi16((__m256i)x, (__m256i)y);
#elif defined(__x86_64__)
    r.part[p] = (NativeShorts)_mm_max_epi16((__m128i)x, (__m128i)y);
#else
    r.part[p] = x > y ? x : y;
#endif
  }
  return r;
}

// Two bits: whether the first sixteen keys, and the last, have one above a bound.
ALWAYS_INLINE uint32_t halves_above(Keys keys, int16_t bound) {
#if defined(__AVX512BW__)
  const uint32_t lanes = _mm512_cmpgt_epi16_mask((__m512i)keys.part[0], _mm512_set1_epi16(bound));
  return uint32_t((lanes & 0xffffu) != 0) | uint32_t(lanes > 0xffffu) << 1;
#else
  NativeShorts seen[2] = {};
  for (int p = 0; p < kParts; ++p) seen[p * 2 / kParts] |= keys.part[p] > bound;
  uint32_t halves = 0;
  for (int half = 0; half < 2; ++half) {
#if defined(__AVX2__)
    halves |= uint32_t(_mm256_movemask_epi8((__m256i)seen[half]) != 0) << half;
#elif defined(__x86_64__)
    halves |= uint32_t(_mm_movemask_epi8((__m128i)seen[half]) != 0) << half;
#else
    uint64_t words[2];
    memcpy(words, &seen[half], sizeof words);
    halves |= uint32_t((words[0] | words[1]) != 0) << half;
#endif
  }
  return halves;
#endif
}

// The value of a key that is none of NaN.
template <class T>
inline float value_of_key(int16_t key) {
  const int32_t ordered = key - kKeyShift<T>;
  return to_float(T{uint16_t(ordered < 0 ? ordered ^ 0x7fff : ordered)});
}

// The largest key of a value below `bound`, which is above -inf.
template <class T>
inline int16_t key_below(float bound) {
  int32_t below = kLeastKey, reaching = kInfinityKey<T>;
  while (reaching - below > 1) {
    const int32_t middle = (below + reaching) >> 1;
    (value_of_key<T>(int16_t(middle)) < bound ? below : reaching) = middle;
  }
  return int16_t(below);
}

// The values of the first and of the last sixteen keys.
template <class T>
ALWAYS_INLINE void values_of(Keys keys, Floats* values) {
  T logits[2 * kLanes];
  for (int p = 0; p < kParts; ++p) {
    const NativeShorts key = (NativeShorts)((NativeUnsigned)keys.part[p] - uint16_t(kKeyShift<T>));
    keys.part[p] = key ^ ((key >> 15) & int16_t(0x7fff));
  }
  memcpy(logits, &keys, sizeof keys);
  values[0] = load(logits);
  values[1] = load(logits + kLanes);
}

template <class T>
ALWAYS_INLINE T negative_infinity();
template <>
ALWAYS_INLINE float negative_infinity<float>() { return -kInf; }
template <>
ALWAYS_INLINE Bfloat16 negative_infinity<Bfloat16>() { return {0xff80}; }
template <>
ALWAYS_INLINE Float16 negative_infinity<Float16>() { return {0xfc00}; }

// Copy `n` values, and -inf behind them up to `size`. Nothing behind the values is read.
template <class T>
inline void pad(T* to, const T* from, int64_t n, int64_t size) {
  memcpy(to, from, size_t(n) * sizeof(T));
  for (int64_t i = n; i < size; ++i) to[i] = negative_infinity<T>();
}

// The lanes before `left`, which is below sixteen; -inf in the others.
ALWAYS_INLINE Floats load_tail(const float* from, int64_t left) {
  float lane[kLanes];
  pad(lane, from, left, kLanes);
  return load(lane);
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

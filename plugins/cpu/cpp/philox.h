// The random numbers of tokendraw: Philox4x32-10 at (seed, position, index, stream), and Gumbel noise of its words.
//
// docs/contract.md has the layout of key and counter, docs/worked-draw.md every value on the way of one draw.
#pragma once

#include <cmath>

#include "simd.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

constexpr uint32_t kXtcStream = 7;

struct Key {
  uint64_t seed, position;
};

struct TwoWords {
  uint32_t w0, w1;
};

inline TwoWords philox(Key key, uint32_t index, uint32_t stream) {
  uint32_t k0 = uint32_t(key.seed), k1 = uint32_t(key.seed >> 32);
  uint32_t c0 = index, c1 = uint32_t(key.position), c2 = uint32_t(key.position >> 32), c3 = stream;
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * c0, b = uint64_t(0xCD9E8D57u) * c2;
    c0 = uint32_t(b >> 32) ^ c1 ^ k0;
    c1 = uint32_t(b);
    c2 = uint32_t(a >> 32) ^ c3 ^ k1;
    c3 = uint32_t(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1};
}

typedef uint32_t NarrowWords __attribute__((vector_size(2 * kNativeLanes)));
typedef uint64_t NativeProducts __attribute__((vector_size(4 * kNativeLanes)));

// The first output words at sixteen successive indices. Each lane of 64 bits holds a word in its low half, so that one
// multiplication has the full product.
inline void philox_words(Key key, uint32_t first, uint32_t stream, uint32_t* words) {
  constexpr int kWide = kNativeLanes / 2;  // lanes of 64 bits in a native vector
  constexpr int kSets = kLanes / kWide;
  const NativeProducts low_half = NativeProducts{} + 0xffffffffu;
  NativeProducts c0[kSets], c1[kSets], c2[kSets], c3[kSets];
  for (int s = 0; s < kSets; ++s) {
    uint64_t index[kWide];
    for (int i = 0; i < kWide; ++i) index[i] = uint32_t(first + s * kWide + i);
    memcpy(&c0[s], index, sizeof index);
    c1[s] = NativeProducts{} + uint32_t(key.position);
    c2[s] = NativeProducts{} + uint32_t(key.position >> 32);
    c3[s] = NativeProducts{} + stream;
  }
  const auto product = [](NativeProducts a, uint32_t b) {
#if defined(__AVX512F__)
    return (NativeProducts)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
    return (NativeProducts)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#elif defined(__x86_64__)
    return (NativeProducts)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
#elif defined(__aarch64__)
    return (NativeProducts)vmull_u32(vmovn_u64((uint64x2_t)a), vdup_n_u32(b));
#else
    return (a & 0xffffffffu) * uint64_t(b);
#endif
  };
  uint32_t k0 = uint32_t(key.seed), k1 = uint32_t(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int s = 0; s < kSets; ++s) {  // the upper halves of lanes hold anything: products and the end ignore them
      const NativeProducts a = product(c0[s], 0xD2511F53u), b = product(c2[s], 0xCD9E8D57u);
      c0[s] = (b >> 32) ^ c1[s] ^ (NativeProducts{} + k0);
      c1[s] = b;
      c2[s] = (a >> 32) ^ c3[s] ^ (NativeProducts{} + k1);
      c3[s] = a;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int s = 0; s < kSets; ++s) {
    const NativeProducts word = c0[s] & low_half;
    const NarrowWords narrow = __builtin_convertvector(word, NarrowWords);
    memcpy(words + s * kWide, &narrow, sizeof narrow);
  }
}

// -log(-log(1 - u)). The distance of u to the nearer end of (0, 1) is what the float type can hold, so that no low bit
// of a small word is lost.
inline float gumbel32(uint32_t w0) {
  const bool is_upper = w0 >> 31;
  const float distance = (float(int32_t(is_upper ? ~w0 : w0)) + 0.5f) * 0x1p-32f;
  return -logf(-(is_upper ? logf(distance) : log1pf(-distance)));
}

inline double gumbel64(TwoWords words) {
  const uint64_t bits = uint64_t(words.w0) << 32 | words.w1;
  const bool is_upper = bits >> 63;
  const double distance = (double((is_upper ? ~bits : bits) >> 11) + 0.5) * 0x1p-53;
  return -log(-(is_upper ? log(distance) : log1p(-distance)));
}

// u in (0, 1), by which XTC applies to a row.
inline double uniform(TwoWords words, bool is_fp64) {
  if (!is_fp64) return (double(words.w0) + 0.5) * 0x1p-32;
  const double u = (double(uint64_t(words.w0) << 21 | words.w1 >> 11) + 0.5) * 0x1p-53;
  return u < 1.0 ? u : 0x1.fffffffffffffp-1;
}

// Upper bounds of the noise of sixteen words, without a logarithm: E >= u, so G <= -log(u), and log2(u) is at least what
// the exponent and the mantissa of u are as one number. Words below 256 have the bound of the smallest u of 53 bits.
ALWAYS_INLINE Floats gumbel_bounds(const uint32_t* words) {
  Floats r;
  for (int p = 0; p < kParts; ++p) {
    NativeWords word;
    memcpy(&word, words + p * kNativeLanes, sizeof word);
    const NativeFloats u = __builtin_convertvector((NativeInts)(word >> 8), NativeFloats) * 0x1p-24f + 0x1p-56f;
    const NativeFloats least_log2 = __builtin_convertvector((NativeInts)u, NativeFloats) * 0x1p-23f - 127.0f;
    r.part[p] = -0.69314718f * least_log2 + 1e-3f;
  }
  return r;
}

// An upper bound of log(x) for normal x > 0, by the same reading of its bits, which is at most 0.0861 below log2(x).
inline float log_bound(float x) {
  return 0.69314718f * (float(bit_cast<int32_t>(x)) * 0x1p-23f - 127.0f) + 0.0607f;
}

// The noise of one draw: its source, its precision and its two streams.
struct Noise {
  Key key;
  bool is_fp64;
  uint32_t token_stream, tile_stream;

  double gumbel(uint32_t index, uint32_t stream) const {
    const TwoWords words = philox(key, index, stream);
    return is_fp64 ? gumbel64(words) : double(gumbel32(words.w0));
  }
};

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

// A row of a call: its logits, its random numbers, and whether XTC applies to it.
#pragma once

#include "filters.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

template <class T>
Row<T> row_of(const Logits& logits, int64_t number) {
  return {static_cast<const T*>(logits.data) + number * logits.stride, logits.size};
}

inline Noise noise_of(const NoiseArguments& a, int64_t number, uint32_t token_stream, uint32_t tile_stream) {
  return {{uint64_t(a.seed[number]), uint64_t(a.position[number])}, a.is_fp64 != 0, token_stream, tile_stream};
}

// XTC applies to samples, not to drafts.
inline bool is_xtc_applied(const SampleArguments& a, int64_t number, const RowParameters& p, const Noise& noise) {
  return p.has_xtc && !p.is_greedy && a.noise.token_stream == 0
      && uniform(philox(noise.key, 0, kXtcStream), noise.is_fp64) < a.parameters.xtc_probability[number];
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

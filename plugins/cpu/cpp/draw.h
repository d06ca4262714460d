// The draw in two levels: a tile by the weight of its kept tokens plus Gumbel noise, then a token in the tile.
#pragma once

#include "philox.h"
#include "search.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

constexpr int64_t kFewMembers = 40;  // of a tile, whose noise is made one by one

// The kept values of a row: threshold <= x <= peak, without -inf.
struct Kept {
  float threshold, peak;

  bool holds(float x) const { return x >= threshold && x <= peak && x > -kInf; }
};

// Sum the weights of the kept tokens by tile; returns the sum of all.
template <class T>
double weigh_tiles(const Row<T>& row, Kept kept, const Weight& weight, const Scratch& s) {
  const Floats least = least_gathered(kept.threshold), peak = splat(kept.peak);
  double total = 0;
  for (int64_t t = 0; t < row.tiles(); ++t) {
    s.tile_weights[t] = 0;
    if (!(s.tile_max[t] >= kept.threshold) || s.tile_max[t] == -kInf) continue;
    SlotSums sums;
    weight.with_lanes([&](auto weights) INLINED {
      visit_tile_in_slots(row, t, [&](Floats x, int slot) INLINED {
        const Floats w = where_reaching(peak, x, weights(x));
        sums.slot[slot] = sums.slot[slot] + where_reaching(x, least, w);
      });
    });
    total += s.tile_weights[t] = sums.total();
  }
  return total;
}

// The same from candidates, which hold every kept token, or are added to what the tiles hold already.
template <class T>
double weigh_candidates(
    const Row<T>& row, const Candidates& candidates, Kept kept, const Weight& weight, bool is_added,
    const Scratch& s) {
  if (!is_added) memset(s.tile_weights, 0, size_t(row.tiles()) * sizeof(double));
  const Floats least = least_gathered(kept.threshold), peak = splat(kept.peak);
  for (int64_t i = 0; i < candidates.count; i += kLanes) {
    const int64_t left = candidates.count - i, n = left < kLanes ? left : kLanes;
    const Floats x = n == kLanes ? load(s.values + i) : load_tail(s.values + i, n);
    const Floats w = where_reaching(peak, x, where_reaching(x, least, weight.of_lanes(x)));
    const int64_t first = s.ids[i] / kTile, last = s.ids[i + n - 1] / kTile;
    if (first == last) {
      s.tile_weights[first] += sum_of_lanes(w);
      continue;
    }
    float lane[kLanes];
    store(lane, w);
    for (int64_t j = i; j < i + n; ++j) s.tile_weights[s.ids[j] / kTile] += double(lane[j - i]);
  }
  double total = 0;
  for (int64_t t = 0; t < row.tiles(); ++t) total += s.tile_weights[t];
  return total;
}

// The random words of sixteen tiles from `first` on, and upper bounds of the noise that they make.
struct TileNoise {
  uint32_t words[kLanes];
  float bounds[kLanes];

  TileNoise(const Noise& noise, int64_t first) {
    philox_words(noise.key, uint32_t(first), noise.tile_stream, words);
    store(bounds, gumbel_bounds(words));
  }
};

// Draw a tile: the largest log(weight) + noise, the lowest number on a tie. `peaks`, unless null, are values by which
// the weight of each tile is scaled.
inline int64_t draw_tile(
    const double* weights, int64_t tiles, const float* peaks, const Weight& scale, const Noise& noise) {
  int64_t best = 0;
  double most = -double(kInf);
  for (int64_t first = 0; first < tiles; first += kLanes) {
    const TileNoise of_tiles(noise, first);
    const int64_t end = first + kLanes < tiles ? first + kLanes : tiles;
    for (int64_t t = first; t < end; ++t) {
      if (!(weights[t] > 0)) continue;
      const double log_weight = log(weights[t]) + (peaks == nullptr ? 0.0 : scale.y(peaks[t]));
      if (log_weight + double(of_tiles.bounds[t - first]) < most) continue;
      const double score = log_weight
          + (noise.is_fp64 ? noise.gumbel(uint32_t(t), noise.tile_stream)
                           : double(gumbel32(of_tiles.words[t - first])));
      if (score > most) most = score, best = t;
    }
  }
  return best;
}

// Draw a tile of an unfiltered row, weighing only the tiles that may win by `scratch.tile_bounds`. `weight` is narrow.
template <class T>
int64_t draw_bounded_tile(const Row<T>& row, const Weight& weight, const Noise& noise, const Scratch& s) {
  const int64_t tiles = row.tiles();
  int64_t best = 0;
  float highest = -kInf;
  for (int64_t first = 0; first < tiles; first += kLanes) {
    const TileNoise of_tiles(noise, first);
    const int64_t end = first + kLanes < tiles ? first + kLanes : tiles;
    for (int64_t t = first; t < end; ++t) {
      float& bound = s.tile_bounds[t];
      const float y = (s.tile_max[t] - weight.peak) * float(weight.scale.inverse);
      bound = bound > 0 ? log_bound(bound) + of_tiles.bounds[t - first] + (y - y * 1e-6f) : -kInf;
      if (bound > highest) highest = bound, best = t;
    }
  }
  double most = -double(kInf);
  const auto weigh = [&](int64_t t) {
    const Weight of_tile = Weight::of(weight.scale, s.tile_max[t]);
    const double log_weight = log(weigh_tile(row, t, of_tile)) + weight.y(s.tile_max[t]);
    const double score = log_weight + noise.gumbel(uint32_t(t), noise.tile_stream);
    if (score > most || (score == most && t < best)) most = score, best = t;
  };
  const int64_t likely = best;
  weigh(likely);
  for (int64_t t = 0; t < tiles; ++t) {
    if (t != likely && double(s.tile_bounds[t]) >= most) weigh(t);
  }
  return best;
}

// Draw among the kept tokens of a tile: the largest y + noise, the lowest id on a tie.
template <class T>
int64_t draw_token(const Row<T>& row, int64_t tile, Kept kept, const Weight& weight, const Noise& noise) {
  const Floats least = least_gathered(kept.threshold), peak = splat(kept.peak);
  const Floats scale = splat(float(weight.scale.inverse));
  int64_t best = tile * kTile;
  double most = -double(kInf);
  visit_tile(row, tile, [&](Floats x, int64_t first) INLINED {
    uint32_t bits = reaching_bits(x, least) & reaching_bits(peak, x);
    if (!bits) return;
    uint32_t words[kLanes];
    philox_words(noise.key, uint32_t(first), noise.token_stream, words);
    if (weight.scale.is_narrow && most > -1e30) {
      bits &= reaching_bits(multiply_add(x - peak, scale, gumbel_bounds(words)), splat(float(most) - 1e-3f));
    }
    for (; bits; bits &= bits - 1) {
      const int lane = __builtin_ctz(bits);
      const int64_t id = first + lane;
      const double score = weight.y(row.at(id))
          + (noise.is_fp64 ? noise.gumbel(uint32_t(id), noise.token_stream) : double(gumbel32(words[lane])));
      if (score > most) most = score, best = id;
    }
  });
  return best;
}

// The same among candidates, which hold every kept token.
template <class T>
int64_t draw_candidate(
    const Row<T>& row, int64_t tile, const Candidates& candidates, Kept kept, const Weight& weight,
    const Noise& noise, const Scratch& s) {
  int64_t begin = 0, end = candidates.count;
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (s.ids[middle] / kTile < tile) begin = middle + 1;
    else end = middle;
  }
  for (end = begin; end < candidates.count && s.ids[end] / kTile == tile; ++end) {}
  if (end - begin > kFewMembers) return draw_token(row, tile, kept, weight, noise);
  int64_t best = tile * kTile;
  double most = -double(kInf);
  for (int64_t i = begin; i < end; ++i) {
    if (!kept.holds(s.values[i])) continue;
    const double score = weight.y(s.values[i]) + noise.gumbel(uint32_t(s.ids[i]), noise.token_stream);
    if (score > most) most = score, best = s.ids[i];
  }
  return best;
}

// The lowest id of the largest value.
template <class T>
int64_t argmax(const Row<T>& row, float max, const Scratch& s) {
  int64_t tile = 0;
  while (s.tile_max[tile] != max) ++tile;
  int64_t id = tile * kTile;
  while (to_float(row.x[id]) != max) ++id;
  return id;
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

// A row of logits, weights of its values, and the first pass over it.
#pragma once

#include <cmath>

#include "simd.h"
#include "workspace.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

constexpr float kLargestFloat = std::numeric_limits<float>::max();
constexpr double kLargestDouble = std::numeric_limits<double>::max();

template <class T>
struct Row {
  const T* x;
  int64_t size;

  int64_t tiles() const { return (size + kTile - 1) / kTile; }
  int64_t tile_size(int64_t tile) const {
    const int64_t left = size - tile * kTile;
    return left < kTile ? left : kTile;
  }
  // NaN counts as -inf.
  float at(int64_t id) const {
    const float value = to_float(x[id]);
    return value == value ? value : -kInf;
  }
};

// Call visit(values, id) for every sixteen ids of a tile. Lanes behind the last id are -inf.
template <class T, class Visit>
ALWAYS_INLINE void visit_tile(const Row<T>& row, int64_t tile, Visit&& visit) {
  const int64_t first = tile * kTile, n = row.tile_size(tile);
  T padded[kLanes];
  for (int64_t i = 0; i < n; i += kLanes) {
    const T* x = row.x + first + i;
    if (n - i < kLanes) {
      pad(padded, x, n - i, kLanes);
      x = padded;
    }
    visit(load(x), first + i);
  }
}

// The same with visit(values, slot): slots 0 to 3 take turns, so that sums in four places do not wait for each other.
template <class T, class Visit>
ALWAYS_INLINE void visit_tile_in_slots(const Row<T>& row, int64_t tile, Visit&& visit) {
  constexpr int64_t kStep = 4 * kLanes;
  const int64_t first = tile * kTile, n = row.tile_size(tile);
  T padded[kStep];
  for (int64_t i = 0; i < n; i += kStep) {
    const T* x = row.x + first + i;
    if (n - i < kStep) {
      pad(padded, x, n - i, kStep);
      x = padded;
    }
    visit(load(x), 0);
    visit(load(x + kLanes), 1);
    visit(load(x + 2 * kLanes), 2);
    visit(load(x + 3 * kLanes), 3);
  }
}

#define INLINED __attribute__((always_inline))

// The sixteen values from an id on; -inf behind the last one of the row.
template <class T>
ALWAYS_INLINE Floats values_from(const Row<T>& row, int64_t id) {
  if (row.size - id >= kLanes) return load(row.x + id);
  T padded[kLanes];
  pad(padded, row.x + id, row.size - id, kLanes);
  return load(padded);
}

ALWAYS_INLINE uint32_t lanes_below(int64_t left) { return left >= kLanes ? 0xffffu : (1u << left) - 1; }

// A temperature: y = (x - peak) / T.
struct Scale {
  double inverse;  // 1 / T
  float factor;    // log2(e) / T
  bool is_narrow;  // float32 holds the factor, and quotients by it

  static Scale of(double temperature) {
    double inverse = 1.0 / (temperature < kLargestDouble ? temperature : kLargestDouble);
    inverse = inverse < kLargestDouble ? inverse : kLargestDouble;
    const double factor = inverse * 1.4426950408889634;
    const bool is_narrow = factor > 1e-30 && factor < 1e30;
    return {inverse, is_narrow ? float(factor) : 0.0f, is_narrow};
  }
};

// exp((x - peak) / T), relative to a peak, which may be infinite; or 1 for every value.
struct Weight {
  Scale scale;
  float peak;
  bool is_one;

  static Weight of(Scale scale, float peak) {
    scale.is_narrow &= peak < kInf;
    return {scale, peak, false};
  }
  static Weight one() { return {{1.0, 1.0f, true}, 0.0f, true}; }

  double y(float x) const { return x == peak ? 0.0 : (double(x) - double(peak)) * scale.inverse; }
  double exact(float x) const { return is_one ? 1.0 : exp(y(x)); }

  ALWAYS_INLINE Floats of_lanes(Floats x) const {
    if (is_one) return splat(1.0f);
    if (scale.is_narrow) return exp2_of((x - splat(peak)) * splat(scale.factor));
    return of_lanes_exactly(x);
  }

  // At least -inf, or a quarter of the least float32 over T.
  ALWAYS_INLINE Floats y_of_lanes(Floats x) const {
    if (!scale.is_narrow) return y_of_lanes_exactly(x);
    return larger(x - splat(peak), splat(-kLargestFloat / 4)) * splat(float(scale.inverse));
  }

  // Call body(weights), where weights(x) is of_lanes(x). The usual case has a body of its own, in which no call to the
  // exact exponentials takes the registers.
  template <class Body>
  ALWAYS_INLINE void with_lanes(Body&& body) const {
    if (scale.is_narrow && !is_one) {
      const Floats zero = splat(peak), factor = splat(scale.factor);
      body([&](Floats x) INLINED { return exp2_of((x - zero) * factor); });
    } else {
      body([&](Floats x) INLINED { return of_lanes(x); });
    }
  }

 private:
  __attribute__((noinline)) Floats of_lanes_exactly(Floats x) const {
    float lane[kLanes];
    store(lane, x);
    for (int i = 0; i < kLanes; ++i) lane[i] = lane[i] <= peak ? float(exp(y(lane[i]))) : 0.0f;
    return load(lane);
  }
  __attribute__((noinline)) Floats y_of_lanes_exactly(Floats x) const {
    float lane[kLanes];
    store(lane, x);
    for (float& value : lane) value = float(y(value));
    return load(lane);
  }
};

// The sums of a visit by slots.
struct SlotSums {
  Floats slot[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  ALWAYS_INLINE double total() const { return sum_of_lanes((slot[0] + slot[1]) + (slot[2] + slot[3])); }
};

// The largest values of a tile in 64 groups: ids of the same remainder by 64. NaN is left out.
struct TileMaxima {
  Floats slot[4];
  bool has_nan;
};

inline TileMaxima maxima_of(const Row<float>& row, int64_t tile) {
  Floats most[4] = {splat(-kInf), splat(-kInf), splat(-kInf), splat(-kInf)};
  NanFlag nan;
  Floats previous = splat(0.0f);
  visit_tile_in_slots(row, tile, [&](Floats x, int slot) INLINED {
    if (slot & 1) nan.look_at(previous, x);
    previous = x;
    most[slot] = larger(x, most[slot]);
  });
  return {{most[0], most[1], most[2], most[3]}, nan.any()};
}

// Logits of 16 bits are compared as integers, and become float32 once they are the largest.
template <class T>
TileMaxima maxima_of(const Row<T>& row, int64_t tile) {
  constexpr int64_t kStep = 4 * kLanes;
  const T* x = row.x + tile * kTile;
  const int64_t n = row.tile_size(tile), whole = n - n % kStep;
  Keys low = splat_key(kLeastKey), high = low;
  const auto look_at = [&](const T* from) INLINED {
    low = larger(low, load_keys(from));
    high = larger(high, load_keys(from + 2 * kLanes));
  };
  for (int64_t i = 0; i < whole; i += kStep) look_at(x + i);
  if (whole < n) {
    T padded[kStep];
    pad(padded, x + whole, n - whole, kStep);
    look_at(padded);
  }
  TileMaxima most;
  most.has_nan = halves_above(larger(low, high), kInfinityKey<T>) != 0;  // NaN is there
  values_of<T>(low, most.slot);
  values_of<T>(high, most.slot + 2);
  if (most.has_nan) {
    for (Floats& slot : most.slot) slot = splat(-kInf);
    visit_tile_in_slots(row, tile, [&](Floats x, int slot) INLINED { most.slot[slot] = larger(x, most.slot[slot]); });
  }
  return most;
}

// Sum the weights of a tile.
template <class T>
double weigh_tile(const Row<T>& row, int64_t tile, const Weight& weight) {
  SlotSums sums;
  weight.with_lanes([&](auto weights) INLINED {
    visit_tile_in_slots(row, tile, [&](Floats x, int slot) INLINED {
      sums.slot[slot] = sums.slot[slot] + weights(x);
    });
  });
  return sums.total();
}

// Two values, the target of a search between them.
struct Bracket {
  float low, high;
};

// What the first pass sums where a bracket is known before it. Weights are relative to a peak known by then.
struct BracketSums {
  bool is_known = false;
  Bracket between;
  Weight weight;  // narrow
  double above;   // of the values >= high, by tile in scratch.tile_weights
  int64_t count;  // of the values in [low, high), which are gathered

  // Whether float32 has room for weights of a tile with this largest value.
  bool holds(float tile_max) const { return (tile_max - weight.peak) * weight.scale.factor < 60.0f; }
};

// The least value that a gathering from `low` on looks for: never -inf.
inline Floats least_gathered(float low) { return splat(low > -kLargestFloat ? low : -kLargestFloat); }

// Which vectors of sixteen values of a tile may have one >= low: a bit each. All of an incomplete tile may.
inline uint64_t reaching_vectors(const Row<float>& row, int64_t tile, float low) {
  const int64_t n = row.tile_size(tile);
  if (n < kTile) return ~uint64_t{} >> (63 - (n - 1) / kLanes);
  const Floats bound = least_gathered(low);
  uint64_t vectors = 0;
  for (int64_t i = 0; i < kTile / kLanes; ++i) {
    vectors |= uint64_t(reaching_bits(load(row.x + tile * kTile + i * kLanes), bound) != 0) << i;
  }
  return vectors;
}

template <class T>
uint64_t reaching_vectors(const Row<T>& row, int64_t tile, int16_t key) {
  const int64_t n = row.tile_size(tile);
  if (n < kTile) return ~uint64_t{} >> (63 - (n - 1) / kLanes);
  uint64_t vectors = 0;
  for (int64_t i = 0; i < kTile / kLanes; i += 2) {
    vectors |= uint64_t(halves_above(load_keys(row.x + tile * kTile + i * kLanes), key)) << i;
  }
  return vectors;
}

// What reaching_vectors compares logits of a type with.
template <class T>
inline int16_t bound_of(const Row<T>&, float low) {
  return key_below<T>(low > -kLargestFloat ? low : -kLargestFloat);
}
inline float bound_of(const Row<float>&, float low) { return low; }

// Call visit(values, id) for the vectors of the row that may have values >= low.
template <class T, class Visit, class Tile>
ALWAYS_INLINE void visit_reaching(const Row<T>& row, float low, const float* tile_max, Visit&& visit, Tile&& end_tile) {
  const auto bound = bound_of(row, low);
  for (int64_t t = 0; t < row.tiles(); ++t) {
    if (tile_max[t] >= low) {
      for (uint64_t vectors = reaching_vectors(row, t, bound); vectors; vectors &= vectors - 1) {
        const int64_t id = t * kTile + __builtin_ctzll(vectors) * kLanes;
        visit(values_from(row, id), id);
      }
    }
    end_tile(t);
  }
}

// Sum all weights of a tile and those above a bracket, and gather the values in it.
template <class T>
double weigh_around(const Row<T>& row, int64_t tile, BracketSums& sums, const Scratch& s) {
  static_assert(kTile / kLanes == 64, "a bit for each vector of a tile");
  const Weight& weight = sums.weight;
  s.tile_weights[tile] = 0;
  if (!(s.tile_max[tile] >= sums.between.low)) return weigh_tile(row, tile, weight);
  const Floats low = least_gathered(sums.between.low), high = splat(sums.between.high);
  Floats all = splat(0.0f), above = splat(0.0f);
  uint64_t occupied = 0;
  visit_tile(row, tile, [&](Floats x, int64_t id) INLINED {
    const Floats w = exp2_of((x - splat(weight.peak)) * splat(weight.scale.factor));
    all = all + w;
    above = above + where_reaching(x, high, w);
    const uint32_t bits = reaching_bits(x, low) & ~reaching_bits(x, high);
    occupied |= uint64_t(bits != 0) << (id / kLanes % 64);
  });
  for (; occupied; occupied &= occupied - 1) {
    const int64_t id = tile * kTile + __builtin_ctzll(occupied) * kLanes;
    const Floats x = values_from(row, id);
    const uint32_t bits = reaching_bits(x, low) & ~reaching_bits(x, high);
    append_numbers(s.ids + sums.count, int32_t(id), bits);
    sums.count += append_lanes(s.values + sums.count, x, bits);
  }
  sums.above += s.tile_weights[tile] = sum_of_lanes(above);
  return sum_of_lanes(all);
}

// What the first pass finds. It reads the row from memory, and each tile of it again from the first-level cache for
// every scale. Sums are relative to the largest value of their tile, which is known before that of the row.
struct Survey {
  float max = -kInf;
  bool has_nan = false;
  int num_scales = 0;
  Scale scales[3];
  double mass[3];  // sum of exp((x - max) / T) of each scale
  BracketSums bracket;      // of the first scale
  bool is_bounded = false;  // whether scratch.tile_bounds are wanted, of `bound_scale`, which is narrow
  Scale bound_scale;

  // Find or add a scale; returns its number.
  int ask_for(Scale scale) {
    for (int i = 0; i < num_scales; ++i) {
      if (scales[i].inverse == scale.inverse) return i;
    }
    scales[num_scales] = scale;
    return num_scales++;
  }
};

// At least the sum of the weights of a tile: those of its groups, as if all of a group were as large as its maximum.
ALWAYS_INLINE float weight_bound(const TileMaxima& most, const Weight& weight) {
  Floats sums = splat(0.0f);
  for (const Floats& slot : most.slot) sums = sums + weight.of_lanes(slot);
  return float(sum_of_lanes(sums)) * (float(kTile / (4 * kLanes)) * 1.00001f);
}

// Sum the weights of a tile relative to its largest value.
template <class T>
double weigh_from_peak(const Row<T>& row, int64_t tile, Scale scale, const Scratch& s) {
  return s.tile_max[tile] > -kInf ? weigh_tile(row, tile, Weight::of(scale, s.tile_max[tile])) : 0.0;
}

template <class T>
void look_at_row(const Row<T>& row, Survey& survey, const Scratch& scratch) {
  Floats row_max = splat(-kInf);
  const int64_t tiles = row.tiles();
  for (int64_t t = 0; t < tiles; ++t) {
    const TileMaxima most = maxima_of(row, t);
    survey.has_nan |= most.has_nan;
    const Floats tile_max = larger(larger(most.slot[0], most.slot[1]), larger(most.slot[2], most.slot[3]));
    store(scratch.group_max + t * kGroups, tile_max);
    row_max = larger(row_max, tile_max);
    const float peak = scratch.tile_max[t] = largest_lane(tile_max);
    if (survey.is_bounded) {
      scratch.tile_bounds[t] = peak > -kInf ? weight_bound(most, Weight::of(survey.bound_scale, peak)) : 0.0f;
    }
    if (survey.bracket.is_known && !survey.bracket.holds(peak)) {  // a peak that the sample missed: no wide nucleus
      survey.bracket.is_known = false;
      for (int64_t done = 0; done < t; ++done) {
        scratch.tile_sums[0][done] = weigh_from_peak(row, done, survey.scales[0], scratch);
      }
    }
    for (int s = 0; s < survey.num_scales; ++s) {
      scratch.tile_sums[s][t] = s == 0 && survey.bracket.is_known
          ? weigh_around(row, t, survey.bracket, scratch)
          : weigh_from_peak(row, t, survey.scales[s], scratch);
    }
  }
  survey.max = largest_lane(row_max);
  for (int s = 0; s < survey.num_scales; ++s) {
    const Weight weight = Weight::of(survey.scales[s], survey.max);
    const bool is_bracket = s == 0 && survey.bracket.is_known;
    double mass = 0;
    for (int64_t first = 0; first < tiles; first += kLanes) {
      const int64_t n = tiles - first < kLanes ? tiles - first : kLanes;
      float of_peak[kLanes];
      const float* peaks = scratch.tile_max + first;
      store(of_peak, weight.of_lanes(n == kLanes ? load(peaks) : load_tail(peaks, n)));
      for (int64_t t = first; t < first + n; ++t) {
        mass += scratch.tile_sums[s][t] * (is_bracket ? 1.0 : double(of_peak[t - first]));
      }
    }
    survey.mass[s] = is_bracket ? mass * weight.exact(survey.bracket.weight.peak) : mass;
  }
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

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

 private:
  __attribute__((noinline)) Floats of_lanes_exactly(Floats x) const {
    float lane[kLanes];
    store(lane, x);
    for (int i = 0; i < kLanes; ++i) lane[i] = lane[i] <= peak ? float(exp(y(lane[i]))) : 0.0f;
    return load(lane);
  }
};

// The sums of a visit by slots.
struct SlotSums {
  Floats slot[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  ALWAYS_INLINE double total() const { return sum_of_lanes((slot[0] + slot[1]) + (slot[2] + slot[3])); }
};

// What the first pass finds. It reads the row from memory, and each tile of it again from the first-level cache for
// every scale. Sums are relative to the largest value of their tile, which is known before that of the row.
struct Survey {
  float max = -kInf;
  bool has_nan = false;
  int num_scales = 0;
  Scale scales[3];
  double mass[3];  // sum of exp((x - max) / T) of each scale

  // Find or add a scale; returns its number.
  int ask_for(Scale scale) {
    for (int i = 0; i < num_scales; ++i) {
      if (scales[i].inverse == scale.inverse) return i;
    }
    scales[num_scales] = scale;
    return num_scales++;
  }
};

template <class T>
void look_at_row(const Row<T>& row, Survey& survey, const Scratch& scratch) {
  Floats row_max = splat(-kInf);
  NanFlag nan;
  const int64_t tiles = row.tiles();
  for (int64_t t = 0; t < tiles; ++t) {
    Floats most[4] = {splat(-kInf), splat(-kInf), splat(-kInf), splat(-kInf)};
    Floats previous = splat(0.0f);
    visit_tile_in_slots(row, t, [&](Floats x, int slot) INLINED {
      if (slot & 1) nan.look_at(previous, x);
      previous = x;
      most[slot] = larger(x, most[slot]);
    });
    const Floats tile_max = larger(larger(most[0], most[1]), larger(most[2], most[3]));
    store(scratch.group_max + t * kGroups, tile_max);
    row_max = larger(row_max, tile_max);
    const float peak = scratch.tile_max[t] = largest_lane(tile_max);
    for (int s = 0; s < survey.num_scales; ++s) {
      if (peak == -kInf) {
        scratch.tile_sums[s][t] = 0;
        continue;
      }
      const Weight weight = Weight::of(survey.scales[s], peak);
      SlotSums sums;
      if (weight.scale.is_narrow) {
        visit_tile_in_slots(row, t, [&](Floats x, int slot) INLINED {
          sums.slot[slot] = sums.slot[slot] + exp2_of((x - splat(weight.peak)) * splat(weight.scale.factor));
        });
      } else {
        visit_tile_in_slots(row, t, [&](Floats x, int slot) INLINED {
          sums.slot[slot] = sums.slot[slot] + weight.of_lanes(x);
        });
      }
      scratch.tile_sums[s][t] = sums.total();
    }
  }
  survey.max = largest_lane(row_max);
  survey.has_nan = nan.any();
  for (int s = 0; s < survey.num_scales; ++s) {
    const Weight weight = Weight::of(survey.scales[s], survey.max);
    double mass = 0;
    for (int64_t t = 0; t < tiles; ++t) {
      if (scratch.tile_max[t] > -kInf) mass += scratch.tile_sums[s][t] * weight.exact(scratch.tile_max[t]);
    }
    survey.mass[s] = mass;
  }
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

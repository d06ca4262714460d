// The sums behind the moments of a row, from which filters of tokendraw.filters compute their floors. One pass reads the
// row from memory; each tile is read again from the first-level cache for its sums.
#pragma once

#include "arguments.h"
#include "doubles.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

// Number and mean of values, and the squares of their distances from it, summed.
struct Spread {
  double count = 0, mean = 0, squares = 0;

  // Chan, Golub and LeVeque (1983): no square of a distance from a mean that is not the values' own.
  void add(const Spread& other) {
    const double all = count + other.count, distance = other.mean - mean;
    mean += distance * (other.count / all);
    squares += other.squares + distance * distance * (count * (other.count / all));
    count = all;
  }
};

// The spread of the values of a tile above -inf, its mean relative to `origin`.
//
// The squares are summed around the largest value and moved to the mean. As one of the n values it is no further from
// the mean than their spread: squares >= n / (n - 1) (max - mean)^2, so that at most a factor n of precision is lost.
template <class T>
Spread spread_of(const Row<T>& row, int64_t tile, float max, double origin) {
  Doubles sums[2] = {splat_double(0), splat_double(0)}, squares[2] = {splat_double(0), splat_double(0)};
  const Doubles peak = splat_double(max);
  int64_t count = 0;
  visit_tile_in_slots(row, tile, [&](Floats x, int slot) INLINED {
    count += __builtin_popcount(above_bits(x, splat(-kInf)));
    for (int p = 0; p < kParts; ++p) {  // others are the largest value itself, which adds nothing
      const NativeFloats bound = -kInf - NativeFloats{};
      x.part[p] = x.part[p] > bound ? x.part[p] : max - NativeFloats{};
    }
    const Doubles distance = widen(x) - peak;
    sums[slot & 1] = sums[slot & 1] + distance;
    squares[slot & 1] = multiply_add(distance, distance, squares[slot & 1]);
  });
  const double sum = sum_of_lanes(sums[0] + sums[1]), n = double(count);
  return {n, double(max) - origin + sum / n, sum_of_lanes(squares[0] + squares[1]) - sum * (sum / n)};
}

template <class T>
void sum_moments(const Row<T>& row, int64_t number, const MomentArguments& a, const Scratch& s) {
  const double temperature = a.temperature == nullptr ? 1.0 : a.temperature[number];
  const Scale scale = Scale::of(temperature > 0 ? temperature : 1.0);
  const bool has_entropy = a.entropy != nullptr, has_collision = a.collision != nullptr;
  float max = -kInf, origin = 0;
  Spread spread;
  for (int64_t t = 0; t < row.tiles(); ++t) {
    const TileMaxima most = maxima_of(row, t);
    const Floats tile_max = larger(larger(most.slot[0], most.slot[1]), larger(most.slot[2], most.slot[3]));
    const float peak = s.tile_max[t] = largest_lane(tile_max);
    if (!(peak > -kInf)) continue;
    if (a.count != nullptr) {
      if (spread.count == 0) origin = peak;
      spread.add(spread_of(row, t, peak, origin));
    }
    max = peak > max ? peak : max;
    if (a.mass == nullptr) continue;  // which entropy and collision come with
    SlotSums masses, terms, squares;  // relative to the largest value of the tile
    const Weight of_tile = Weight::of(scale, peak);
    of_tile.with_lanes([&](auto weights) INLINED {
      visit_tile_in_slots(row, t, [&](Floats x, int slot) INLINED {
        const Floats w = weights(x);
        masses.slot[slot] = masses.slot[slot] + w;
        if (has_entropy) {
          const Floats y = of_tile.y_of_lanes(x);
          terms.slot[slot] = terms.slot[slot] + where_above(w, splat(0x1p-120f), w * y);
        }
        if (has_collision) squares.slot[slot] = multiply_add(w, w, squares.slot[slot]);
      });
    });
    s.tile_sums[0][t] = masses.total(), s.tile_sums[1][t] = terms.total(), s.tile_sums[2][t] = squares.total();
  }
  if (a.count != nullptr) a.count[number] = spread.count;
  if (a.mean != nullptr) a.mean[number] = spread.count > 0 ? spread.mean + (double(origin) - double(max)) : 0;
  if (a.squares != nullptr) a.squares[number] = spread.squares;
  if (a.mass == nullptr) return;
  const Weight weight = Weight::of(scale, max);
  double mass = 0, entropy = 0, collision = 0;
  for (int64_t t = 0; t < row.tiles(); ++t) {
    const float peak = s.tile_max[t];
    const double w = peak > -kInf ? weight.exact(peak) : 0;
    if (!(w > 0)) continue;
    mass += w * s.tile_sums[0][t];
    entropy += w * (s.tile_sums[1][t] + weight.y(peak) * s.tile_sums[0][t]);
    collision += w * w * s.tile_sums[2][t];
  }
  a.mass[number] = mass;
  if (has_entropy) a.entropy[number] = entropy;
  if (has_collision) a.collision[number] = collision;
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

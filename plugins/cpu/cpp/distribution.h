// The distribution of a row's samples, as float64 probabilities: what a verification compares of target and draft.
#pragma once

#include "doubles.h"
#include "filters.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

constexpr int64_t kFewCandidates = 1024;  // up to here they are looked at one by one
constexpr double kMassError = 1e-4;       // of a quotient of two masses in float32, more than its bound

struct Distribution {
  Weight weight;
  Kept kept;
  double inverse_mass;
  bool is_exact;  // the mass has been summed in float64
  bool is_valid;  // no NaN, and a value above -inf
  bool is_empty;  // nothing above -inf: token 0 has all the probability

  double at(int64_t id, float x) const {
    if (is_empty) return id == 0 ? 1.0 : 0.0;
    return kept.holds(x) ? weight.exact(x) * inverse_mass : 0.0;
  }

  // The probabilities of sixteen successive ids.
  ALWAYS_INLINE Doubles of_lanes(Floats x, int64_t first) const {
    const uint32_t bits = reaching_bits(x, least_gathered(kept.threshold)) & reaching_bits(splat(kept.peak), x);
    if (is_empty || !weight.scale.is_narrow) return of_lanes_exactly(x, first);
    return bits ? weights(x) * splat_double(inverse_mass) : splat_double(0.0);
  }

  ALWAYS_INLINE Doubles weights(Floats x) const {
    const Doubles wide = widen(x);
    const Doubles y = (wide - splat_double(double(kept.peak))) * splat_double(weight.scale.inverse);
    return where_between(wide, double(kept.threshold), double(kept.peak), exp_of(y));
  }

 private:
  __attribute__((noinline)) Doubles of_lanes_exactly(Floats x, int64_t first) const {
    float lane[kLanes];
    double p[kLanes];
    store(lane, x);
    for (int i = 0; i < kLanes; ++i) p[i] = at(first + i, lane[i]);
    return load(p);
  }
};

// Sum the weights of the kept values in float64, where that has not been done.
template <class T>
void make_exact(const Row<T>& row, Distribution& d) {
  if (d.is_exact) return;
  d.inverse_mass = 1.0;
  double mass = 0;
  for (int64_t t = 0; t < row.tiles(); ++t) {
    Doubles sums = splat_double(0.0);
    visit_tile(row, t, [&](Floats x, int64_t first) INLINED { sums = sums + d.of_lanes(x, first); });
    mass += sum_of_lanes(sums);
  }
  d.inverse_mass = 1.0 / mass;
  d.is_exact = true;
}

// The distribution of a row that is not greedy, exact where that costs nothing. `candidates` are those that its filters
// leave behind. Where it is not exact, scratch.tile_weights holds the weights of its tiles as a sample has them.
template <class T>
Distribution distribution_of(
    const Row<T>& row, const RowParameters& p, bool is_xtc_applied, Candidates& candidates, const Scratch& s) {
  Survey survey;
  const bool is_filtered = p.has_filter() || is_xtc_applied;
  int filter_sum = -1, draw_sum = -1;
  if (is_filtered && Filters<T>::needs_mass(p)) filter_sum = survey.ask_for(p.filter_scale);
  if (!is_filtered) draw_sum = survey.ask_for(p.draw_scale);
  look_at_row(row, survey, s);
  const float max = survey.max;
  Distribution d = {Weight::of(p.draw_scale, max), {max == kInf ? max : -kInf, max}, 1.0, true, false, max == -kInf};
  d.is_valid = !survey.has_nan && max > -kInf;
  candidates = Candidates();
  if (d.is_empty) return d;
  d.is_exact = false;
  if (max == kInf) {
    make_exact(row, d);
  } else if (!is_filtered) {
    d.inverse_mass = 1.0 / survey.mass[draw_sum];
    for (int64_t t = 0; t < row.tiles(); ++t) {
      s.tile_weights[t] = s.tile_max[t] > -kInf ? s.tile_sums[draw_sum][t] * d.weight.exact(s.tile_max[t]) : 0.0;
    }
  } else {
    const double filter_mass = filter_sum >= 0 ? survey.mass[filter_sum] : 0;
    const Filtered found = Filters<T>(row, p, survey, s).apply(filter_mass, is_xtc_applied);
    d.kept = found.kept;
    d.weight = Weight::of(p.draw_scale, d.kept.peak);
    candidates = found.candidates;
    if (candidates.holds_all_from(d.kept.threshold) && candidates.count <= kFewCandidates) {
      double mass = 0;
      for (int64_t i = 0; i < candidates.count; ++i) mass += d.at(s.ids[i], s.values[i]);
      d.inverse_mass = 1.0 / mass;
      d.is_exact = true;
    } else {
      d.inverse_mass = 1.0 / weigh_tiles(row, d.kept, d.weight, s);
    }
  }
  return d;
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

// The distribution of a row's samples, as float64 probabilities: what a verification compares of target and draft.
#pragma once

#include "doubles.h"
#include "filters.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

constexpr int64_t kFewCandidates = 1024;  // up to here they are looked at one by one

struct Distribution {
  Weight weight;
  Kept kept;
  double inverse_mass;
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

// Sum the weights of the kept values.
template <class T>
double exact_mass(const Row<T>& row, const Distribution& d, const Candidates& candidates, const Scratch& s) {
  double mass = 0;
  if (candidates.holds_all_from(d.kept.threshold) && candidates.count <= kFewCandidates) {
    for (int64_t i = 0; i < candidates.count; ++i) mass += d.at(s.ids[i], s.values[i]);
    return mass;
  }
  for (int64_t t = 0; t < row.tiles(); ++t) {
    if (!(s.tile_max[t] >= d.kept.threshold)) continue;
    Doubles sums = splat_double(0.0);
    visit_tile(row, t, [&](Floats x, int64_t first) INLINED { sums = sums + d.of_lanes(x, first); });
    mass += sum_of_lanes(sums);
  }
  return mass;
}

// The distribution of a row that is not greedy. `candidates` are those that its filters leave behind.
template <class T>
Distribution distribution_of(
    const Row<T>& row, const RowParameters& p, bool is_xtc_applied, Candidates& candidates, const Scratch& s) {
  Survey survey;
  const bool is_filtered = p.has_filter() || is_xtc_applied;
  const int sum = is_filtered && Filters<T>::needs_mass(p) ? survey.ask_for(p.filter_scale) : -1;
  look_at_row(row, survey, s);
  const float max = survey.max;
  Distribution d;
  d.kept = {max == kInf ? max : -kInf, max};
  d.inverse_mass = 1.0;
  d.is_valid = !survey.has_nan && max > -kInf;
  d.is_empty = max == -kInf;
  candidates = Candidates();
  if (is_filtered && max > -kInf && max < kInf) {
    const Filtered found = Filters<T>(row, p, survey, s).apply(sum >= 0 ? survey.mass[sum] : 0, is_xtc_applied);
    d.kept = found.kept;
    candidates = found.candidates;
  }
  d.weight = Weight::of(p.draw_scale, d.kept.peak);
  if (!d.is_empty) d.inverse_mass = 1.0 / exact_mass(row, d, candidates, s);
  return d;
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

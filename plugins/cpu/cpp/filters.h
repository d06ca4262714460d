// The filters of a row, in the order of docs/contract.md: which values are kept.
#pragma once

#include "arguments.h"
#include "draw.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

// Parameters of a row, clamped to their ranges.
struct RowParameters {
  bool is_greedy, is_joint, is_temperature_last, has_xtc;
  Scale draw_scale, filter_scale;  // at the temperature of the draw, and at that of the filters
  double filter_temperature;
  double top_p, min_p;  // from 1 on off; from 0 down off
  float floor;
  int64_t top_k;  // 0: off
  double xtc_threshold;

  static RowParameters of(const Parameters& p, int64_t row, int64_t size) {
    RowParameters r;
    double temperature = p.temperature == nullptr ? 1.0 : p.temperature[row];
    r.is_greedy = !(temperature > 0);
    if (r.is_greedy) temperature = 1.0;
    temperature = temperature < kLargestDouble ? temperature : kLargestDouble;
    r.is_joint = p.joint != nullptr && p.joint[row];
    r.is_temperature_last = p.temperature_last != nullptr && p.temperature_last[row];
    r.filter_temperature = r.is_temperature_last ? 1.0 : temperature;
    r.draw_scale = Scale::of(temperature);
    r.filter_scale = Scale::of(r.filter_temperature);
    r.top_p = p.top_p != nullptr && p.top_p[row] < 1 ? p.top_p[row] : 1.0;
    r.min_p = p.min_p != nullptr && p.min_p[row] > 0 ? p.min_p[row] : 0.0;
    r.floor = p.floor == nullptr ? -kInf : p.floor[row];
    r.top_k = p.top_k != nullptr && p.top_k[row] > 0 && p.top_k[row] < size ? p.top_k[row] : 0;
    r.has_xtc = p.xtc_probability != nullptr && p.xtc_probability[row] > 0;
    r.xtc_threshold = p.xtc_threshold == nullptr ? 0.1 : p.xtc_threshold[row];
    return r;
  }

  bool has_filter() const { return top_k > 0 || top_p < 1 || min_p > 0 || floor > -kInf; }
};

// The least float32 x with (x - peak) / temperature >= floor.
inline float floor_threshold(float peak, double floor, double temperature) {
  if (!(floor > -double(kInf))) return -kInf;
  double below = temperature * floor;
  below = below > -kLargestDouble ? below : -kLargestDouble;
  const double exact = double(peak) + below;
  const float rounded = float(exact);
  return double(rounded) < exact ? nextafterf(rounded, kInf) : rounded;
}

inline float min_p_threshold(float peak, double min_p, double temperature) {
  return min_p > 0 ? floor_threshold(peak, log(min_p < 1 ? min_p : 1.0), temperature) : -kInf;
}

// What the filters leave of a row, and what they know of it.
struct Filtered {
  Kept kept;
  Candidates candidates;
  bool has_tile_weights = false;  // scratch.tile_weights, at the filters' scale, of the values from candidates.high on
  float weighed_peak = kInf;      // what they are relative to, if it is not the largest value
};

template <class T>
class Filters {
 public:
  Filters(const Row<T>& row, const RowParameters& parameters, const Survey& survey, const Scratch& scratch)
      : row_(row), p_(parameters), survey_(survey), s_(scratch) {}

  // Whether the survey has to sum at the filters' scale: where top-p is a share of the mass of the row.
  static bool needs_mass(const RowParameters& p) {
    const bool has_floor = p.floor > -kInf || (p.min_p > 0 && !p.is_temperature_last);
    return p.top_p < 1 && (p.is_joint || !(has_floor || p.top_k > 0));
  }

  // Whether nothing but top-p filters the row, so that a bracket for its nucleus can be looked for before the survey.
  static bool is_nucleus_only(const RowParameters& p) {
    return p.top_p < 1 && p.top_p > 0 && p.top_k == 0 && !(p.min_p > 0) && p.floor == -kInf
        && p.draw_scale.inverse == p.filter_scale.inverse;
  }

  // `mass` is that sum, 0 where it is not needed.
  Filtered apply(double mass, bool is_xtc_applied) {
    const float max = survey_.max;
    weight_ = Weight::of(p_.filter_scale, max);
    float threshold = p_.is_temperature_last ? -kInf : min_p_threshold(max, p_.min_p, p_.filter_temperature);
    threshold = greater(threshold, floor_threshold(max, p_.floor, p_.filter_temperature));
    if (p_.top_k > 0) threshold = greater(threshold, kth_value());
    threshold = threshold < max ? threshold : max;
    if (p_.top_p < 1) {
      const bool is_known = mass > 0 && (p_.is_joint || threshold == -kInf);
      const double kept = is_known ? mass : kept_mass(threshold, max);
      threshold = greater(threshold, nucleus(p_.top_p * kept, mass));
    }
    if (p_.is_temperature_last) threshold = greater(threshold, min_p_threshold(max, p_.min_p, p_.filter_temperature));
    threshold = threshold < max ? threshold : max;
    found_.kept = {threshold, max};
    if (is_xtc_applied) found_.kept.peak = xtc_ceiling(threshold, max);
    if (found_.kept.threshold > found_.kept.peak) found_.kept.threshold = found_.kept.peak;
    return found_;
  }

 private:
  static float greater(float a, float b) { return a > b ? a : b; }

  float kth_value() {
    const Found found = search(row_, Weight::one(), double(p_.top_k), 0, found_.candidates, s_);
    found_.has_tile_weights = false;
    return found.threshold;
  }

  // Sum the weights of threshold <= x <= peak.
  double kept_mass(float threshold, float peak) {
    const Kept kept = {threshold, peak};
    found_.has_tile_weights = false;
    if (found_.candidates.holds_all_from(threshold)) {
      return weigh_candidates(row_, found_.candidates, kept, weight_, false, s_);
    }
    return weigh_tiles(row_, kept, weight_, s_);
  }

  float nucleus(double target, double mass) {
    Candidates& candidates = found_.candidates;
    const BracketSums& sums = survey_.bracket;
    if (sums.is_known) {
      const double scaled = target * exp(-weight_.y(sums.weight.peak));
      if (sums.above < scaled && sums.above + weigh_all(s_.values, sums.count, sums.weight) >= scaled) {
        candidates = {sums.between.low, sums.between.high, sums.count};
        found_.has_tile_weights = true;
        found_.weighed_peak = sums.weight.peak;
        return crossing(s_.values, candidates.count, sums.weight, sums.above, scaled, s_.selected);
      }
    }
    if (candidates.high == kInf && candidates.count > 0 && weigh_all(s_.values, candidates.count, weight_) >= target) {
      return crossing(s_.values, candidates.count, weight_, 0, target, s_.selected);
    }
    const Found found = search(row_, weight_, target, mass, candidates, s_);
    found_.has_tile_weights = found.has_tile_weights;
    return found.threshold;
  }

  // The least kept value of probability >= xtc_threshold, if there are two such tokens.
  float xtc_ceiling(float threshold, float max) {
    const double mass = kept_mass(threshold, max), least = p_.xtc_threshold * mass;
    if (!(p_.xtc_threshold <= 1)) return max;  // NaN, too
    // Candidates for it, with room for rounding.
    const double y = least > 0 ? log(least) - 1e-3 : -double(kInf);
    const float low = greater(threshold, floor_threshold(max, y, p_.filter_temperature));
    if (!found_.candidates.holds_all_from(low)) found_.candidates = gather(row_, low, s_);
    int64_t likely = 0;
    float ceiling = max;
    for (int64_t i = 0; i < found_.candidates.count; ++i) {
      const float x = s_.values[i];
      if (!(x >= threshold)) continue;
      const double probability = weight_.exact(x) / mass;
      if (!(probability >= p_.xtc_threshold && probability > 0)) continue;
      ++likely;
      ceiling = x < ceiling ? x : ceiling;
    }
    return likely > 1 ? ceiling : max;
  }

  const Row<T>& row_;
  const RowParameters& p_;
  const Survey& survey_;
  const Scratch& s_;
  Weight weight_;
  Filtered found_;
};

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

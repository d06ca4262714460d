// Log-probabilities of the drawn token, of the N best and of given ones; ranks; the least kept logit.
#pragma once

#include <algorithm>

#include "filters.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

constexpr int64_t kPadding = -1;

// What the values of a row follow from.
struct RowMasses {
  int32_t mode;
  float max;
  Kept kept;
  bool is_greedy;
  int64_t greedy_token;
  Weight draw;                   // relative to the largest value
  double raw, mass, kept_mass;   // kept_mass relative to the greatest kept value

  double log_kept() const { return log(kept_mass) + (kept.peak < max ? draw.y(kept.peak) : 0.0); }

  bool is_raw() const { return mode == kRawLogprobs || mode == kRawLogits; }
  bool is_processed() const { return mode == kProcessedLogprobs || mode == kProcessedLogits; }

  float value(int64_t id, float x) const {
    if (!(max > -kInf)) return -kInf;
    if (is_greedy && !is_raw()) return id == greedy_token ? 0.0f : -kInf;
    if (mode == kRawLogits) return x;
    if (mode == kRawLogprobs) return at_most_0((x == max ? 0.0 : double(x) - double(max)) - log(raw));
    const double y = draw.y(x);
    if (mode == kTemperatureLogprobs) return at_most_0(y - log(mass));
    if (!(x >= kept.threshold && x <= kept.peak)) return -kInf;
    if (mode == kProcessedLogits) return float(y);
    // Relative to the kept values: from the row's largest one, a tiny T would leave no difference.
    return at_most_0(Weight::of(draw.scale, kept.peak).y(x) - log(kept_mass));
  }

  // The least logit that the mode shows as more than -inf.
  float least_shown() const {
    if (mode == kRawLogits) return -kInf;
    const double temperature = is_raw() ? 1.0 : 1.0 / draw.scale.inverse;
    const float peak = mode == kProcessedLogprobs ? kept.peak : max;
    const float least = float(double(peak) - double(kLargestFloat) * temperature);
    return is_processed() && kept.threshold > least ? kept.threshold : least;
  }

  float greatest_shown() const { return is_processed() ? kept.peak : kInf; }

 private:
  static float at_most_0(double value) { return value < 0 ? float(value) : 0.0f; }
};

struct IsBetter {
  bool operator()(Entry a, Entry b) const { return a.value > b.value || (a.value == b.value && a.id < b.id); }
};

// Collect the tokens that a mode shows as more than -inf, at least the n best of these; returns their number.
template <class T>
int64_t collect_shown(
    const Row<T>& row, const RowMasses& masses, int64_t n, Candidates& candidates, const Scratch& s) {
  if (masses.is_greedy && !masses.is_raw()) {
    s.entries[0] = {masses.max, int32_t(masses.greedy_token)};
    return 1;
  }
  const float least = masses.least_shown();
  const float most = masses.greatest_shown();
  float low = least;
  const int64_t groups = row.tiles() * kGroups;
  if (most >= masses.max && row.size > kSmallVocabulary && n < groups / 2) {
    const float bound = crossing(s.group_max, groups, Weight::one(), 0, double(n), s.selected);
    low = bound > least ? bound : least;
  }
  if (!candidates.holds_all_from(low)) candidates = gather(row, low, s);
  int64_t count = 0;
  for (int64_t i = 0; i < candidates.count; ++i) {
    const float x = s.values[i];
    if (x >= least && x <= most) s.entries[count++] = {x, s.ids[i]};
  }
  return count;
}

// Write the n best tokens of a row in descending order, the lowest id first on a tie. Tokens that the mode shows as -inf
// follow in the order of their ids.
template <class T>
void write_best(
    const Row<T>& row, const RowMasses& masses, int64_t n, Candidates& candidates, const Scratch& s,
    int64_t* ids, float* values) {
  const int64_t shown = masses.max > -kInf ? collect_shown(row, masses, n, candidates, s) : 0;
  const int64_t best = shown < n ? shown : n;
  if (best < shown) std::nth_element(s.entries, s.entries + best, s.entries + shown, IsBetter());
  std::sort(s.entries, s.entries + best, IsBetter());
  for (int64_t i = 0; i < best; ++i) {
    ids[i] = s.entries[i].id;
    values[i] = masses.value(ids[i], row.at(ids[i]));
  }
  if (best == n) return;
  const float least = masses.least_shown();
  const float most = masses.greatest_shown();
  int64_t i = best;
  for (int64_t id = 0; i < n; ++id) {
    const float x = row.at(id);
    const bool is_shown = masses.max > -kInf && x > -kInf
        && (masses.is_greedy && !masses.is_raw() ? id == masses.greedy_token : x >= least && x <= most);
    if (is_shown) continue;
    ids[i] = id;
    values[i++] = -kInf;
  }
}

// Count the tokens that the mode shows with at least the value of a token.
template <class T>
int64_t rank_of(const Row<T>& row, int64_t token, const RowMasses& masses, const Scratch& s) {
  const float value = row.at(token);
  if (masses.value(token, value) == -kInf) return row.size;
  if (masses.is_greedy && !masses.is_raw()) return 1;
  const Floats least = splat(value), most = splat(masses.greatest_shown());
  int64_t rank = 0;
  for (int64_t t = 0; t < row.tiles(); ++t) {
    if (!(s.tile_max[t] >= value)) continue;
    visit_tile(row, t, [&](Floats x, int64_t) INLINED {
      rank += __builtin_popcount(reaching_bits(x, least) & reaching_bits(most, x));
    });
  }
  return rank;
}

template <class T>
void write_logprobs(
    const Row<T>& row, int64_t number, int64_t token, const RowMasses& masses, Candidates& candidates,
    const LogprobsArguments& a, const Scratch& s) {
  const int64_t columns = 1 + a.width;
  int64_t* ids = a.token_ids + number * columns;
  float* values = a.logprobs + number * columns;
  ids[0] = token;
  values[0] = masses.value(token, row.at(token));
  write_best(row, masses, a.width, candidates, s, ids + 1, values + 1);
  const int64_t asked = a.asked == nullptr ? -1 : a.asked[number];
  for (int64_t i = asked < 0 ? columns : asked + 1; i < columns; ++i) ids[i] = kPadding, values[i] = -kInf;
  if (a.ranks != nullptr) a.ranks[number] = rank_of(row, token, masses, s);
  double share = 0;
  if (!masses.is_greedy && masses.max > -kInf) share = masses.log_kept() - log(masses.mass);
  a.log_kept_mass[number] = share < 0 ? float(share) : 0.0f;
  for (int64_t i = number * a.given; i < (number + 1) * a.given; ++i) {
    const int64_t id = a.given_ids[i];
    const bool is_given = id >= 0 && id < row.size;
    a.given_token_ids[i] = is_given ? id : kPadding;
    a.given_logprobs[i] = is_given ? masses.value(id, row.at(id)) : -kInf;
  }
}

// The least kept value; -inf where every value above -inf is kept.
template <class T>
float least_kept(const Row<T>& row, const Survey& survey, Kept kept) {
  if (!(survey.max > -kInf)) return std::numeric_limits<float>::quiet_NaN();
  if (survey.max == kInf) return kInf;
  float least = kInf;
  int64_t num_kept = 0, num_finite = 0;
  for (int64_t t = 0; t < row.tiles(); ++t) {
    visit_tile(row, t, [&](Floats x, int64_t) INLINED {
      const uint32_t finite = reaching_bits(x, splat(-kLargestFloat));
      const uint32_t bits = reaching_bits(x, least_gathered(kept.threshold)) & reaching_bits(splat(kept.peak), x);
      num_finite += __builtin_popcount(finite);
      num_kept += __builtin_popcount(bits);
      if (!bits) return;
      float lane[kLanes];
      store(lane, x);
      for (uint32_t rest = bits; rest; rest &= rest - 1) {
        const float value = lane[__builtin_ctz(rest)];
        least = value < least ? value : least;
      }
    });
  }
  return num_kept < num_finite ? least : -kInf;
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

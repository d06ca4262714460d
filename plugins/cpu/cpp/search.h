// The search behind top-k and top-p: the largest value from which upwards the weights add up to a target.
//
// A search needs few values. The groups whose maxima the survey knows show a bound that holds more than enough of the
// largest values, which are gathered from the tiles that reach the bound. Where these are too few, as in a wide nucleus,
// a sample of the row says between which two values the target is reached; one pass weighs everything above exactly and
// gathers what lies between. An unlucky sample costs another pass, never an error.
#pragma once

#include "row.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

constexpr double kLeastTarget = std::numeric_limits<double>::min();
constexpr int64_t kSortedValues = 48;     // left over by a search
constexpr int64_t kSmallVocabulary = 4096;  // up to here all values are gathered at once
constexpr int64_t kSampleSize = 2048;
constexpr int64_t kLeastSample = 64;
constexpr int64_t kSparseShare = 6;
constexpr double kSharedWeight = 0.1;
constexpr double kMargin = 2.5;  // of an estimate, in standard deviations

// The values of a row in [low, high), in the order of their ids.
struct Candidates {
  float low = std::numeric_limits<float>::quiet_NaN(), high = kInf;  // NaN: nothing is gathered
  int64_t count = 0;

  bool holds_all_from(float threshold) const { return low <= threshold && high == kInf; }
};

struct WeightsAbove {
  double above, from;  // of the values > pivot, and >= pivot
  int64_t count_above, count_from;
};

inline WeightsAbove weigh(const float* values, int64_t n, const Weight& weight, float pivot) {
  WeightsAbove found = {0, 0, 0, 0};
  const Floats bound = splat(pivot);
  weight.with_lanes([&](auto weights) INLINED {
    for (int64_t start = 0; start < n; start += kTile) {
      const int64_t end = n - start < kTile ? n : start + kTile;
      Floats above = splat(0.0f), from = splat(0.0f);
      for (int64_t i = start; i < end; i += kLanes) {
        const Floats x = end - i >= kLanes ? load(values + i) : load_tail(values + i, end - i);
        const uint32_t lanes = lanes_below(end - i);
        found.count_above += __builtin_popcount(above_bits(x, bound) & lanes);
        found.count_from += __builtin_popcount(reaching_bits(x, bound) & lanes);
        if (weight.is_one) continue;
        const Floats w = weights(x);
        above = above + where_above(x, bound, w);
        from = from + where_reaching(x, bound, w);
      }
      found.above += sum_of_lanes(above);
      found.from += sum_of_lanes(from);
    }
  });
  if (weight.is_one) found.above = double(found.count_above), found.from = double(found.count_from);
  return found;
}

inline double weigh_all(const float* values, int64_t n, const Weight& weight) {
  return weight.is_one ? double(n) : weigh(values, n, weight, -kInf).from;
}

// Copy the values above the pivot, or those below, to `to`, which may be where they are; returns their number.
inline int64_t partition(const float* values, int64_t n, float pivot, bool is_above, float* to) {
  const Floats bound = splat(pivot);
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    const Floats x = n - i >= kLanes ? load(values + i) : load_tail(values + i, n - i);
    const uint32_t bits = is_above ? above_bits(x, bound) : ~reaching_bits(x, bound);
    count += append_lanes(to + count, x, bits & lanes_below(n - i));
  }
  return count;
}

inline void sort_descending(float* values, int64_t n) {
  for (int64_t i = 1; i < n; ++i) {
    const float value = values[i];
    int64_t j = i;
    for (; j > 0 && values[j - 1] < value; --j) values[j] = values[j - 1];
    values[j] = value;
  }
}

// Choose a value to divide a list by: the median of nine of its values, evenly apart. After `kMedianRounds` of these,
// which only odd data need, the middle between least and largest value as integers, which ends in 32 rounds.
constexpr int kMedianRounds = 40;

inline int32_t ordered_key(float x) {
  const int32_t bits = bit_cast<int32_t>(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

inline float choose_pivot(const float* values, int64_t n, int round) {
  float few[9];
  if (round < kMedianRounds) {
    for (int64_t i = 0; i < 9; ++i) few[i] = values[(2 * i + 1) * n / 18];
    sort_descending(few, 9);
    return few[4];
  }
  float least = values[0], most = values[0];
  for (int64_t i = 1; i < n; ++i) {
    least = values[i] < least ? values[i] : least;
    most = values[i] > most ? values[i] : most;
  }
  const int64_t sum = int64_t(ordered_key(least)) + ordered_key(most);
  const int32_t key = int32_t(sum >> 1);
  const float middle = bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff));
  return middle > least ? middle : most;
}

// The largest value v of a list where `base` and the weights of its values >= v reach the target; its least value where
// they do not. `values` is left as it is, `scratch` takes as many.
inline float crossing(
    const float* values, int64_t n, const Weight& weight, double base, double target, float* scratch) {
  target = target > kLeastTarget ? target : kLeastTarget;
  float least = kInf;  // a value of the list that the answer is not below
  for (int round = 0; n > kSortedValues; ++round) {
    const float pivot = choose_pivot(values, n, round);
    const WeightsAbove found = weigh(values, n, weight, pivot);
    if (found.count_above > 0 && base + found.above >= target) {
      n = partition(values, n, pivot, true, scratch);
    } else if (base + found.from >= target || found.count_from == n) {
      return pivot;
    } else {
      base += found.from;
      n = partition(values, n, pivot, false, scratch);
    }
    values = scratch;
  }
  if (values != scratch) memcpy(scratch, values, size_t(n) * sizeof *values);
  sort_descending(scratch, n);
  for (int64_t i = 0; i < n; ++i) {
    base += weight.exact(scratch[i]);
    least = scratch[i];
    if (base >= target) break;
  }
  return least;
}

// Gather the values >= low with their ids; -inf and NaN are no candidates.
template <class T>
Candidates gather(const Row<T>& row, float low, const Scratch& s) {
  const Floats bound = least_gathered(low);
  int64_t count = 0;
  visit_reaching(row, low, s.tile_max, [&](Floats x, int64_t id) INLINED {
    const uint32_t bits = reaching_bits(x, bound);
    append_numbers(s.ids + count, int32_t(id), bits);
    count += append_lanes(s.values + count, x, bits);
  }, [](int64_t) {});
  return {low, kInf, count};
}

// Weigh the values >= high by tile, and gather those in [low, high).
template <class T>
Candidates gather_between(
    const Row<T>& row, float low, float high, const Weight& weight, double* weight_above, const Scratch& s) {
  const Floats least = least_gathered(low), most = splat(high);
  int64_t count = 0;
  double total = 0;
  Floats sums = splat(0.0f);  // of a tile
  int64_t hits = 0;
  weight.with_lanes([&](auto weights) INLINED {
    visit_reaching(row, low, s.tile_max, [&](Floats x, int64_t id) INLINED {
      const uint32_t above = reaching_bits(x, most);
      if (weight.is_one) {
        hits += __builtin_popcount(above);
      } else {
        sums = sums + where_reaching(x, most, weights(x));
      }
      const uint32_t between = reaching_bits(x, least) & ~above;
      if (!between) return;
      append_numbers(s.ids + count, int32_t(id), between);
      count += append_lanes(s.values + count, x, between);
    }, [&](int64_t tile) INLINED {
      total += s.tile_weights[tile] = weight.is_one ? double(hits) : sum_of_lanes(sums);
      sums = splat(0.0f), hits = 0;
    });
  });
  *weight_above = total;
  return {low, high, count};
}

inline float next_above(float x) {
  const int32_t key = ordered_key(x) + 1;
  return bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff));
}

// Sum the squares of the weights of values >= bound, and of those below.
inline void sum_squares(const float* values, int64_t n, const Weight& weight, float bound, double* above, double* below) {
  SlotSums all, upper;
  weight.with_lanes([&](auto weights) INLINED {
    for (int64_t i = 0; i < n; i += kLanes) {
      const Floats x = n - i >= kLanes ? load(values + i) : load_tail(values + i, n - i);
      const Floats w = weights(x), squares = w * w;
      all.slot[0] = all.slot[0] + squares;
      upper.slot[0] = upper.slot[0] + where_reaching(x, splat(bound), squares);
    }
  });
  *above = upper.total();
  *below = all.total() - *above;
}

struct Sample {
  int64_t count, looked_at;  // in scratch.selected, and of the row
};

// Copy the values below `high` (NaN: all) of a sample of the row, about `size` values evenly apart, to scratch.selected.
template <class T>
Sample take_sample(const Row<T>& row, int64_t size, float high, const Scratch& s) {
  const int64_t blocks = row.size / kLanes, step = (blocks * kLanes + size - 1) / size;
  const Floats bound = splat(high);
  Sample sample = {0, 0};
  for (int64_t b = step / 2; b < blocks; b += step, sample.looked_at += kLanes) {
    const Floats x = load(row.x + b * kLanes);
    const uint32_t bits = reaching_bits(x, least_gathered(-kInf)) & ~reaching_bits(x, bound);
    sample.count += append_lanes(s.selected + sample.count, x, bits);
  }
  return sample;
}

// The bracket, below `high`, in which the weights of a sample reach `target`, give or take a margin. `scratch.values` is
// overwritten.
inline Bracket bracket_of_sample(
    int64_t n, const Weight& weight, float high, double target, double margin, double sampled, const Scratch& s) {
  Bracket bracket = {-kInf, high};
  if (target > margin) {  // all that are equal to the value lie in the bracket
    bracket.high = next_above(crossing(s.selected, n, weight, 0, target - margin, s.values));
  }
  if (target + margin < sampled) bracket.low = crossing(s.selected, n, weight, 0, target + margin, s.values);
  return bracket;
}

// The weight of a sample relative to its largest value. Its tokens share it where the square of the sum is more than a
// tenth of what it is for equal weights: then the sample says much of the row.
struct SampleWeight {
  int64_t count = 0;
  Weight weight;
  double sum;
  bool is_shared = false;
};

template <class T>
SampleWeight weigh_sample(const Row<T>& row, int64_t size, Scale scale, const Scratch& s) {
  SampleWeight found;
  const int64_t n = found.count = take_sample(row, size, std::numeric_limits<float>::quiet_NaN(), s).count;
  if (n < kLeastSample) return found;
  Floats most = splat(-kInf);
  for (int64_t i = 0; i < n; i += kLanes) {
    most = larger(n - i >= kLanes ? load(s.selected + i) : load_tail(s.selected + i, n - i), most);
  }
  const float peak = largest_lane(most);
  if (peak == kInf) return found;
  found.weight = Weight::of(scale, peak);
  double squares, none;
  found.sum = weigh_all(s.selected, n, found.weight);
  sum_squares(s.selected, n, found.weight, -kInf, &squares, &none);
  found.is_shared = found.sum * found.sum > kSharedWeight * double(n) * squares;
  return found;
}

// Look for a wide nucleus before the first pass, so that this one weighs what lies above a bracket. A share of the mass
// strays with both the weights in the nucleus and those below.
template <class T>
void look_ahead(const Row<T>& row, Scale scale, double top_p, BracketSums& sums, const Scratch& s) {
  if (row.size <= kSmallVocabulary || !scale.is_narrow) return;
  if (!weigh_sample(row, kSampleSize / 4, scale, s).is_shared) return;
  const SampleWeight sample = weigh_sample(row, kSampleSize, scale, s);
  if (!sample.is_shared) return;
  const Weight& weight = sample.weight;
  const int64_t n = sample.count;
  const double target = top_p * sample.sum;
  double above, below;
  sum_squares(s.selected, n, weight, crossing(s.selected, n, weight, 0, target, s.values), &above, &below);
  const double margin = kMargin * sqrt((1 - top_p) * (1 - top_p) * above + top_p * top_p * below);
  const Bracket between = bracket_of_sample(n, weight, kInf, target, margin, sample.sum, s);
  if (between.low > -kInf && between.high < kInf) sums = {true, between, weight, 0, 0};
}

// A bracket, and whether a sample has few values from its low end on.
struct Estimate {
  Bracket bracket;
  bool is_sparse;
};

// `total`: the weight of the row, 0 if it is not known. A sum over the sample strays by about the root of its squares. The
// smaller values below a wide nucleus stray less than those in it, so where the total is known they are the measure.
template <class T>
Estimate estimate(
    const Row<T>& row, const Weight& weight, float high, double weight_above, double target, double total,
    const Scratch& s) {
  const Sample sample = take_sample(row, kSampleSize, high, s);
  const int64_t n = sample.count;
  if (n < kLeastSample) return {{-kInf, high}, false};
  const double share = double(sample.looked_at) / double(row.size), sampled = weigh_all(s.selected, n, weight);
  const double from_above = (target - weight_above) * share, from_below = sampled - (total - target) * share;
  const double sought = total > 0 ? from_below : from_above;
  double above, below;
  sum_squares(s.selected, n, weight, crossing(s.selected, n, weight, 0, sought, s.values), &above, &below);
  const bool is_from_above = !(total > 0) || above < below;
  const double margin = kMargin * sqrt(above < below ? above : below);
  const Bracket bracket =
      bracket_of_sample(n, weight, high, is_from_above ? from_above : from_below, margin, sampled, s);
  return {bracket, weigh(s.selected, n, Weight::one(), bracket.low).count_from < sample.looked_at / kSparseShare};
}

// What a search leaves behind for the draw.
struct Found {
  float threshold;
  bool has_tile_weights = false;  // scratch.tile_weights: of the values from candidates.high upwards
};

// The largest v where the weights of x >= v reach the target, over the row; the least value where they do not. `total` is
// that of `estimate`. Where few of the maxima of groups reach the target, no value below these is needed.
template <class T>
Found search(
    const Row<T>& row, const Weight& weight, double target, double total, Candidates& candidates, const Scratch& s) {
  float low = -kInf;
  if (row.size > kSmallVocabulary) {
    const int64_t groups = row.tiles() * kGroups;
    low = kInf;  // a sample of the row knows better
    if (weigh_all(s.group_max, groups, weight) >= target) {
      const float bound = crossing(s.group_max, groups, weight, 0, target, s.selected);
      if (weigh(s.group_max, groups, Weight::one(), bound).count_from < groups / 2) low = bound;
    }
  }
  double weight_above = 0;
  if (low < kInf) {
    candidates = gather(row, low, s);
    weight_above = weigh_all(s.values, candidates.count, weight);
    if (weight_above >= target || low == -kInf) {
      return {crossing(s.values, candidates.count, weight, 0, target, s.selected)};
    }
  }
  const Estimate guess = estimate(row, weight, low, weight_above, target, total, s);
  Bracket bracket = guess.bracket;
  if (guess.is_sparse && low == kInf) {
    candidates = gather(row, bracket.low, s);
    const double above = weigh(s.values, candidates.count, weight, bracket.high).from;
    if (above < target && weigh_all(s.values, candidates.count, weight) >= target) {
      const int64_t n = partition(s.values, candidates.count, bracket.high, false, s.selected);
      if (n > 0) return {crossing(s.selected, n, weight, above, target, s.selected)};
    }
  }
  for (int attempt = 0;; ++attempt) {
    candidates = gather_between(row, bracket.low, bracket.high, weight, &weight_above, s);
    if (attempt == 2) break;
    if (weight_above >= target && bracket.high < kInf) {
      bracket = {bracket.high, kInf};
    } else if (
        bracket.low > -kInf && weight_above + weigh_all(s.values, candidates.count, weight) < target) {
      bracket = {-kInf, bracket.low};
    } else {
      break;
    }
    if (attempt == 1) bracket = {-kInf, kInf};  // rounding makes both bounds look wrong
  }
  const float found = candidates.count == 0
      ? bracket.low
      : crossing(s.values, candidates.count, weight, weight_above, target, s.selected);
  return {found, true};
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

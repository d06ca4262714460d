// The distributions that drafts were drawn from. Each class reads a row: at a token, and in sixteen lanes. A row of
// logits is exact when it has been made so. Of the classes with `kIsChosen` at most the token `id` has a probability.
#pragma once

#include "distribution.h"
#include "verify_arguments.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

// Of a placeholder: it was drawn from nothing.
struct NoDraft {
  static constexpr bool kIsChosen = true, is_valid = true;
  static constexpr int64_t id = -1;

  void make_exact() {}
  double at(int64_t) const { return 0.0; }
  ALWAYS_INLINE Doubles of_lanes(int64_t) const { return splat_double(0.0); }
};

// Chosen without a draw: the token has all the probability.
struct ChosenDraft {
  static constexpr bool kIsChosen = true, is_valid = true;
  int64_t id;

  static ChosenDraft read(const VerifyArguments&, int64_t, int64_t, int64_t id, const Scratch&) { return {id}; }
  void make_exact() {}
  double at(int64_t other) const { return other == id ? 1.0 : 0.0; }
  ALWAYS_INLINE Doubles of_lanes(int64_t first) const {
    double lane[kLanes] = {};
    if (id >= first && id < first + kLanes) lane[id - first] = 1.0;
    return load(lane);
  }
};

// The caller's probabilities, with 0 for NaN, negative and infinite entries.
template <class Real>
struct DraftProbs {
  static constexpr bool kIsChosen = false;
  const Real* values;
  int64_t size;
  bool is_valid;  // finite entries, none negative and one positive

  static DraftProbs read(const VerifyArguments& a, int64_t, int64_t draft_row, int64_t, const Scratch&) {
    const Real* values = static_cast<const Real*>(a.draft.data) + draft_row * a.draft.stride;
    const int64_t size = a.draft.size;
    const bool is_valid = are_valid(values, size);
    return {values, size, is_valid};
  }
  void make_exact() {}
  double at(int64_t id) const {
    const double value = double(values[id]);
    return value > 0 && value <= kLargestDouble ? value : 0.0;
  }
  ALWAYS_INLINE Doubles of_lanes(int64_t first) const {
    Real padded[kLanes] = {};
    const int64_t left = size - first;
    if (left < kLanes) memcpy(padded, values + first, size_t(left) * sizeof(Real));
    const Doubles probs = wide(left < kLanes ? padded : values + first);
    return where_between(probs, 0.0, kLargestDouble, probs);
  }

 private:
  static ALWAYS_INLINE Doubles wide(const float* from) { return widen(load(from)); }
  static ALWAYS_INLINE Doubles wide(const double* from) { return load(from); }

  static bool are_valid(const float* x, int64_t size) {
    const Floats zero = splat(0.0f), most = splat(kLargestFloat);
    uint32_t numbers = 0xffff, positive = 0;
    for (int64_t i = 0; i < size; i += kLanes) {
      float padded[kLanes] = {};
      if (size - i < kLanes) memcpy(padded, x + i, size_t(size - i) * sizeof(float));
      const Floats lanes = load(size - i < kLanes ? padded : x + i);
      numbers &= reaching_bits(lanes, zero) & reaching_bits(most, lanes);
      positive |= above_bits(lanes, zero);
    }
    return numbers == 0xffff && positive != 0;
  }
  static bool are_valid(const double* x, int64_t size) {
    bool are_numbers = true, is_positive = false;
    for (int64_t i = 0; i < size; ++i) are_numbers &= x[i] >= 0 && x[i] <= kLargestDouble, is_positive |= x[i] > 0;
    return are_numbers && is_positive;
  }
};

// The distribution of logits with the parameters of the row that judges the draft; XTC is no part of it.
template <class T>
struct DraftLogits {
  static constexpr bool kIsChosen = false;
  Row<T> row;
  Distribution distribution;
  bool is_valid;

  static DraftLogits read(
      const VerifyArguments& a, int64_t target_row, int64_t draft_row, int64_t, const Scratch& s) {
    const Row<T> row = {static_cast<const T*>(a.draft.data) + draft_row * a.draft.stride, a.draft.size};
    RowParameters p = RowParameters::of(a.target->parameters, target_row, row.size);
    p.floor = a.draft_floor == nullptr ? -kInf : a.draft_floor[draft_row];
    Candidates candidates;
    const Distribution distribution = distribution_of(row, p, false, candidates, s);
    return {row, distribution, distribution.is_valid};
  }
  void make_exact() { tokendraw::TOKENDRAW_TARGET::make_exact(row, distribution); }
  double at(int64_t id) const { return distribution.at(id, row.at(id)); }
  ALWAYS_INLINE Doubles of_lanes(int64_t first) const {
    const int64_t left = row.size - first;
    if (left >= kLanes) return distribution.of_lanes(load(row.x + first), first);
    T padded[kLanes];
    pad(padded, row.x + first, left, kLanes);
    return distribution.of_lanes(load(padded), first);
  }
};

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

// The distributions that drafts were drawn from. Each class reads a row: at a token, and in sixteen lanes.
#pragma once

#include "distribution.h"
#include "verify_arguments.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

// Of a placeholder: it was drawn from nothing.
struct NoDraft {
  static constexpr bool is_valid = true;
  double at(int64_t) const { return 0.0; }
  ALWAYS_INLINE Doubles of_lanes(int64_t) const { return splat_double(0.0); }
};

// Chosen without a draw: the token has all the probability.
struct ChosenDraft {
  static constexpr bool is_valid = true;
  int64_t id;

  static ChosenDraft read(const VerifyArguments&, int64_t, int64_t, int64_t id, const Scratch&) { return {id}; }
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
  const Real* values;
  int64_t size;
  bool is_valid;  // finite entries, none negative and one positive

  static DraftProbs read(const VerifyArguments& a, int64_t, int64_t draft_row, int64_t, const Scratch&) {
    const Real* values = static_cast<const Real*>(a.draft.data) + draft_row * a.draft.stride;
    const int64_t size = a.draft.size;
    Real most = 0, least = 0;
    bool is_number = true;
    for (int64_t start = 0; start < size; start += kTile) {  // without a branch, so that the compiler finds lanes
      const int64_t end = size - start < kTile ? size : start + kTile;
      bool has_nan = false;
      for (int64_t i = start; i < end; ++i) {
        most = values[i] > most ? values[i] : most;
        least = values[i] < least ? values[i] : least;
        has_nan |= values[i] != values[i];
      }
      is_number &= !has_nan;
    }
    return {values, size, is_number && least >= 0 && most > 0 && most < std::numeric_limits<Real>::infinity()};
  }
  double at(int64_t id) const {
    const double value = double(values[id]);
    return value > 0 && value <= kLargestDouble ? value : 0.0;
  }
  ALWAYS_INLINE Doubles of_lanes(int64_t first) const {
    double lane[kLanes] = {};
    const int64_t n = size - first < kLanes ? size - first : kLanes;
    for (int64_t i = 0; i < n; ++i) lane[i] = double(values[first + i]);
    const Doubles probs = load(lane);
    return where_between(probs, 0.0, kLargestDouble, probs);
  }
};

// The distribution of logits with the parameters of the row that judges the draft; XTC is no part of it.
template <class T>
struct DraftLogits {
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

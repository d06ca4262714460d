// The residual max(share p - q, 0) of a row: its mass, and the draw of a token from it.
#pragma once

#include "drafts.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

constexpr uint32_t kResidualTokenStream = 3, kResidualTileStream = 4;

// An upper bound of the logarithm of a positive number, from its exponent and mantissa as one number.
inline double log_bound(double x) { return 0.6931471805599453 * (double(bit_cast<int64_t>(x)) * 0x1p-52 - 1022.9139); }

// A row of the target: what its filters keep, and where.
template <class T>
struct TargetRow {
  Row<T> row;
  Distribution p;
  Candidates candidates;
  bool has_tile_weights;  // scratch.tile_weights: of the kept tokens, as a sample has them

  void make_exact() { tokendraw::TOKENDRAW_TARGET::make_exact(row, p); }
  bool has_few_candidates() const {
    return candidates.holds_all_from(p.kept.threshold) && candidates.count <= kFewCandidates;
  }
};

// max(share p - q, 0) for a token, and in lanes.
template <class T, class Draft>
struct Residual {
  const TargetRow<T>& target;
  const Draft& q;
  double share;

  double at(int64_t id, float x) const {
    const double weight = target.p.at(id, x) * share - q.at(id);
    return weight > 0 ? weight : 0.0;
  }
  ALWAYS_INLINE Doubles of_lanes(Floats x, int64_t first) const {
    const Doubles p = target.p.of_lanes(x, first);
    return at_least_0(p * splat_double(share) - q.of_lanes(first));
  }
};

template <class T, class Draft>
double weigh_tile(const Residual<T, Draft>& residual, int64_t tile) {
  Doubles sums = splat_double(0.0);
  visit_tile(residual.target.row, tile, [&](Floats x, int64_t first) INLINED {
    sums = sums + residual.of_lanes(x, first);
  });
  return sum_of_lanes(sums);
}

// Sum a residual by tile; returns the sum of all.
template <class T, class Draft>
double weigh_residual(const Residual<T, Draft>& residual, const Scratch& s) {
  const TargetRow<T>& target = residual.target;
  const Row<T>& row = target.row;
  memset(s.tile_weights, 0, size_t(row.tiles()) * sizeof(double));
  double total = 0;
  if (target.has_few_candidates()) {
    for (int64_t i = 0; i < target.candidates.count; ++i) {
      const double weight = residual.at(s.ids[i], s.values[i]);
      s.tile_weights[s.ids[i] / kTile] += weight;
      total += weight;
    }
    return total;
  }
  for (int64_t t = 0; t < row.tiles(); ++t) {
    if (!(s.tile_max[t] >= target.p.kept.threshold)) continue;
    total += s.tile_weights[t] = weigh_tile(residual, t);
  }
  return total;
}

// The same where the tiles have the weights of p already, and at most the token `id` loses its own.
template <class T>
double leave_out(const TargetRow<T>& target, int64_t id, const Scratch& s) {
  if (id >= 0) {
    const ChosenDraft chosen = {id};
    const Residual<T, ChosenDraft> others = {target, chosen, 1.0};
    s.tile_weights[id / kTile] = weigh_tile(others, id / kTile) / target.p.inverse_mass;
  }
  double total = 0;
  for (int64_t t = 0; t < target.row.tiles(); ++t) total += s.tile_weights[t];
  return total;
}

// Draw in the two levels of a token, from weights that scratch.tile_weights has by tile.
template <class T, class Draft>
int64_t draw_residual(const Residual<T, Draft>& residual, const Noise& noise, const Scratch& s) {
  const TargetRow<T>& target = residual.target;
  const Row<T>& row = target.row;
  const int64_t tile = draw_tile(s.tile_weights, row.tiles(), nullptr, target.p.weight, noise);
  int64_t best = tile * kTile;
  double most = -double(kInf);
  const auto look_at = [&](int64_t id, double weight) {
    if (!(weight > 0)) return;
    const double score = log(weight) + noise.gumbel(uint32_t(id), noise.token_stream);
    if (score > most) most = score, best = id;
  };
  if (target.has_few_candidates()) {
    for (int64_t i = 0; i < target.candidates.count; ++i) {
      if (s.ids[i] / kTile == tile) look_at(s.ids[i], residual.at(s.ids[i], s.values[i]));
    }
    return best;
  }
  visit_tile(row, tile, [&](Floats x, int64_t first) INLINED {
    double lane[kLanes];
    store(lane, residual.of_lanes(x, first));
    uint32_t words[kLanes];
    philox_words(noise.key, uint32_t(first), noise.token_stream, words);
    float bound[kLanes];
    store(bound, gumbel_bounds(words));
    for (int i = 0; i < kLanes; ++i) {
      if (lane[i] > 0 && log_bound(lane[i]) + double(bound[i]) >= most) look_at(first + i, lane[i]);
    }
  });
  return best;
}

// Recover a token in the place of a rejected draft; from p where rounding leaves nothing of the residual.
template <class T, class Draft>
int64_t recover(TargetRow<T>& target, Draft& q, double share, const Noise& noise, const Scratch& s) {
  const Residual<T, Draft> residual = {target, q, share};
  if constexpr (Draft::kIsChosen) {
    if (target.has_tile_weights && leave_out(target, q.id, s) > 0) return draw_residual(residual, noise, s);
  }
  target.make_exact();
  q.make_exact();
  if (weigh_residual(residual, s) > 0) return draw_residual(residual, noise, s);
  const NoDraft none;
  const Residual<T, NoDraft> all = {target, none, 1.0};
  weigh_residual(all, s);
  return draw_residual(all, noise, s);
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

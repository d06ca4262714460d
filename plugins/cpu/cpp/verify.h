// The verification of a request: its rows in their order, no further than its tokens need.
//
// A row that judges a draft is read once for its distribution, and so is the draft's; a rejected one is read again for
// its residual. The modes and their random numbers are those of tokendraw_native/verify.py.
#pragma once

#include "call_rows.h"
#include "residual.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

constexpr uint32_t kAcceptStream = 2;
constexpr int64_t kNoToken = -1;  // behind the last one of a request

// Draws a row of the target: the token of a sample.
using DrawRow = void (*)(const SampleArguments&, int64_t, const Scratch&);

template <class T, class DraftRow>
class Request {
 public:
  Request(const VerifyArguments& a, int64_t number, DrawRow draw_row, const Scratch& s)
      : a_(a), sample_(*a.target), number_(number), draw_row_(draw_row), s_(s) {
    first_ = a.cu_num_logits[number];
    const int64_t drafts = a.cu_num_logits[number + 1] - first_ - 1;
    num_drafts_ = drafts < 0 ? 0 : drafts < a.max_drafts ? drafts : a.max_drafts;
  }

  void verify() {
    if (a_.mode == kCoupled) compare();
    else if (a_.mode == kBlock && !is_greedy(0)) judge_block();
    else judge_each();
    int64_t* tokens = a_.token_ids + number_ * (a_.max_drafts + 1);
    for (int64_t i = 0; i <= a_.max_drafts; ++i) tokens[i] = i < count_ ? draft_id(i) : kNoToken;
    tokens[count_] = last_;
    a_.num_accepted[number_] = int32_t(count_);
    a_.valid[number_] = count_ < first_invalid_;
  }

 private:
  int64_t draft_id(int64_t step) const {
    return a_.ids[a_.ids_width > 0 ? number_ * a_.ids_width + step : first_ - number_ + step];
  }
  bool is_drawn(int64_t step) const { return draft_id(step) >= 0 && draft_id(step) < a_.logits.size; }
  bool is_greedy(int64_t step) const {
    const double* temperature = sample_.parameters.temperature;
    return temperature != nullptr && !(temperature[first_ + step] > 0);
  }
  Noise noise(int64_t step, uint32_t token_stream, uint32_t tile_stream) const {
    return noise_of(sample_.noise, first_ + step, token_stream, tile_stream);
  }
  double accept_uniform(int64_t step, int64_t index) const {
    const Noise n = noise(step, 0, 0);
    return uniform(philox(n.key, uint32_t(index), kAcceptStream), n.is_fp64);
  }
  void note(int64_t step, bool is_valid) {
    if (!is_valid && step < first_invalid_) first_invalid_ = step;
  }

  int64_t draw(int64_t step) {
    draw_row_(sample_, first_ + step, s_);
    note(step, sample_.valid[first_ + step]);
    return sample_.token_ids[first_ + step];
  }

  // Accept drafts while they are the tokens of the samples.
  void compare() {
    while ((last_ = draw(count_)) == (count_ < num_drafts_ ? draft_id(count_) : kNoToken)) ++count_;
  }

  TargetRow<T> read_target(int64_t step) const {
    const int64_t number = first_ + step;
    TargetRow<T> target = {row_of<T>(sample_.logits, number), {}, {}, false};
    const RowParameters p = RowParameters::of(sample_.parameters, number, target.row.size);
    const bool has_ceiling = is_xtc_applied(sample_, number, p, noise(step, 0, 0));
    target.p = distribution_of(target.row, p, has_ceiling, target.candidates, s_);
    target.has_tile_weights = !target.p.is_exact;
    return target;
  }

  // Call judge(target, q) with the distributions of target and draft; the buffers hold what the target left there.
  template <class Judge>
  void with_distributions(int64_t step, Judge&& judge) {
    if (!is_drawn(step)) {
      TargetRow<T> target = read_target(step);
      NoDraft none;
      note(step, target.p.is_valid);
      return judge(target, none);
    }
    DraftRow q = DraftRow::read(a_, first_ + step, first_ - number_ + step, draft_id(step), s_);
    TargetRow<T> target = read_target(step);
    note(step, target.p.is_valid && q.is_valid);
    judge(target, q);
  }

  // Accept drafts one by one. u is at index 0, in a greedy request of the mode block at the number of drafts before.
  void judge_each() {
    for (; count_ < num_drafts_; ++count_) {
      const int64_t step = count_;
      bool is_accepted = false;
      if (is_greedy(step)) {
        last_ = draw(step);
        is_accepted = last_ == draft_id(step);
      } else {
        const double u = accept_uniform(step, a_.mode == kBlock ? step : 0);
        with_distributions(step, [&](auto& target, auto& draft) {
          is_accepted = is_drawn(step) && accepts(target, draft, draft_id(step), u);
          if (!is_accepted) last_ = recover(target, draft, 1.0, residual_noise(step), s_);
        });
      }
      if (!is_accepted) return;
    }
    last_ = draw(num_drafts_);
  }

  // Judge the drafts together. `share` is r of the drafts before a row, `accepted_share` that of the accepted ones.
  void judge_block() {
    double share = 1.0, accepted_share = 1.0, u = 0.0;
    bool is_recovered = false;
    for (int64_t step = 0; step < num_drafts_ && share > 0; ++step) {
      with_distributions(step, [&](auto& target, auto& draft) {
        if (step > 0 && u <= block_probability(target, draft, share)) count_ = step, accepted_share = share;
        share = is_drawn(step) ? next_share(target, draft, draft_id(step), share) : 0.0;
        u = accept_uniform(step, step);
        const bool is_last = step + 1 == num_drafts_ || !(share > 0);
        if (step + 1 == num_drafts_ && u <= share) count_ = num_drafts_;
        is_recovered = is_last && count_ == step;
        if (is_recovered) last_ = recover(target, draft, accepted_share, residual_noise(step), s_);
      });
    }
    if (is_recovered) return;
    if (count_ == num_drafts_) {
      last_ = draw(num_drafts_);
      return;
    }
    with_distributions(count_, [&](auto& target, auto& draft) {
      last_ = recover(target, draft, accepted_share, residual_noise(count_), s_);
    });
  }

  // Whether u < p / q; in float64 where float32 may be wrong.
  template <class Draft>
  static bool accepts(TargetRow<T>& target, Draft& draft, int64_t id, double u) {
    const double p = probability(target, id), q = draft.at(id);
    if (!(q > 0)) return false;
    if (fabs(u * q - p) > kMassError * p) return u * q < p;
    target.make_exact();
    draft.make_exact();
    return u < probability(target, id) / draft.at(id);
  }
  // min(1, share p / q); in float64 where it may be below 1.
  template <class Draft>
  static double next_share(TargetRow<T>& target, Draft& draft, int64_t id, double share) {
    if (!(draft.at(id) > 0)) return 0.0;
    if (share * probability(target, id) > (1.0 + kMassError) * draft.at(id)) return 1.0;
    target.make_exact();
    draft.make_exact();
    const double next = share * (probability(target, id) / draft.at(id));
    return next < 1.0 ? next : 1.0;
  }
  // The probability h of the drafts before a row.
  template <class Draft>
  double block_probability(TargetRow<T>& target, Draft& draft, double share) const {
    if (share == 1.0) return 1.0;
    target.has_tile_weights = false;
    target.make_exact();
    draft.make_exact();
    const double excess = weigh_residual(Residual<T, Draft>{target, draft, share}, s_), mass = excess + 1.0 - share;
    return mass > 0 ? excess / mass : 1.0;
  }
  static double probability(const TargetRow<T>& target, int64_t id) { return target.p.at(id, target.row.at(id)); }
  Noise residual_noise(int64_t step) const { return noise(step, kResidualTokenStream, kResidualTileStream); }

  const VerifyArguments& a_;
  const SampleArguments& sample_;
  const int64_t number_;
  const DrawRow draw_row_;
  const Scratch& s_;
  int64_t first_, num_drafts_;
  int64_t count_ = 0, last_ = 0;
  int64_t first_invalid_ = std::numeric_limits<int64_t>::max();
};

template <class T>
void verify_request(const VerifyArguments& a, int64_t number, DrawRow draw_row, const Scratch& s) {
  if (a.draft_kind == kChosenDrafts || a.mode == kCoupled) {
    return Request<T, ChosenDraft>(a, number, draw_row, s).verify();
  }
  if (a.draft_kind == kDraftProbs) {
    if (a.draft_dtype == 0) return Request<T, DraftProbs<float>>(a, number, draw_row, s).verify();
    return Request<T, DraftProbs<double>>(a, number, draw_row, s).verify();
  }
  if (a.draft_dtype == kFloat32) return Request<T, DraftLogits<float>>(a, number, draw_row, s).verify();
  if (a.draft_dtype == kBfloat16) return Request<T, DraftLogits<Bfloat16>>(a, number, draw_row, s).verify();
  if (a.draft_dtype == kFloat16) return Request<T, DraftLogits<Float16>>(a, number, draw_row, s).verify();
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

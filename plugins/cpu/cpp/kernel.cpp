// The functions of a row for one target; compiled once for each, see targets.h.
#include "targets.h"

#include "call_rows.h"
#include "edits.h"
#include "logprobs.h"
#include "moments.h"
#include "verify.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {
namespace {

template <class T>
void sample_row(const SampleArguments& a, int64_t number, const Scratch& s) {
  const Row<T> row = row_of<T>(a.logits, number);
  const RowParameters p = RowParameters::of(a.parameters, number, row.size);
  const bool has_logprobs = a.logprobs.width >= 0;
  const Noise noise = noise_of(a.noise, number, uint32_t(a.noise.token_stream), uint32_t(a.noise.tile_stream));

  Survey survey;
  const bool has_ceiling = is_xtc_applied(a, number, p, noise);
  const bool is_filtered = !p.is_greedy && (p.has_filter() || has_ceiling);
  int filter_sum = -1, draw_sum = -1, raw_sum = -1;
  if (is_filtered && Filters<T>::needs_mass(p)) filter_sum = survey.ask_for(p.filter_scale);
  survey.is_bounded = !has_logprobs && !is_filtered && !p.is_greedy && p.draw_scale.is_narrow;
  survey.bound_scale = p.draw_scale;
  if (has_logprobs || (!is_filtered && !p.is_greedy && !survey.is_bounded)) draw_sum = survey.ask_for(p.draw_scale);
  if (has_logprobs) raw_sum = survey.ask_for(Scale::of(1.0));
  if (filter_sum == 0 && !has_ceiling && Filters<T>::is_nucleus_only(p)) {
    look_ahead(row, p.filter_scale, p.top_p, survey.bracket, s);
  }
  look_at_row(row, survey, s);
  const float max = survey.max;
  a.valid[number] = !survey.has_nan && max > -kInf;

  Filtered found;
  found.kept = {p.is_greedy || max == kInf ? max : -kInf, max};
  int64_t token = 0;
  double kept_mass = 1, row_mass = 1, raw_mass = 1;
  if (draw_sum >= 0) row_mass = survey.mass[draw_sum];
  if (raw_sum >= 0) raw_mass = survey.mass[raw_sum];
  if (max == -kInf) {
    // token 0
  } else if (p.is_greedy) {
    token = argmax(row, max, s);
  } else if (max == kInf) {  // uniform among the tokens of +inf
    const Weight weight = Weight::of(p.draw_scale, max);
    found.candidates = gather(row, max, s);
    kept_mass = row_mass = raw_mass = weigh_candidates(row, found.candidates, found.kept, weight, false, s);
    const int64_t tile = draw_tile(s.tile_weights, row.tiles(), nullptr, weight, noise);
    token = draw_candidate(row, tile, found.candidates, found.kept, weight, noise, s);
  } else if (!is_filtered) {
    const Weight weight = Weight::of(p.draw_scale, max);
    kept_mass = row_mass;
    const int64_t tile = survey.is_bounded
        ? draw_bounded_tile(row, weight, noise, s)
        : draw_tile(s.tile_sums[draw_sum], row.tiles(), s.tile_max, weight, noise);
    token = draw_token(row, tile, found.kept, weight, noise);
  } else {
    const double filter_mass = filter_sum >= 0 ? survey.mass[filter_sum] : 0;
    found = Filters<T>(row, p, survey, s).apply(filter_mass, has_ceiling);
    const Weight weight = Weight::of(p.draw_scale, found.kept.peak);
    const Candidates& candidates = found.candidates;
    const bool are_candidates = candidates.holds_all_from(found.kept.threshold);
    // Values from candidates.high upwards are weighed already, those below are the candidates.
    const bool are_weighed = found.has_tile_weights && found.kept.peak == max && candidates.high < kInf
        && found.kept.threshold <= candidates.high && p.draw_scale.inverse == p.filter_scale.inverse;
    const bool is_ahead = are_weighed && found.weighed_peak < kInf;
    const Weight weighed = is_ahead ? Weight::of(p.draw_scale, found.weighed_peak) : weight;
    kept_mass = are_candidates || are_weighed
        ? weigh_candidates(row, candidates, found.kept, weighed, are_weighed && !are_candidates, s)
              * weight.exact(weighed.peak)
        : weigh_tiles(row, found.kept, weight, s);
    const int64_t tile = draw_tile(s.tile_weights, row.tiles(), nullptr, weight, noise);
    token = are_candidates ? draw_candidate(row, tile, candidates, found.kept, weight, noise, s)
                           : draw_token(row, tile, found.kept, weight, noise);
  }
  a.token_ids[number] = token;
  if (a.threshold != nullptr) a.threshold[number] = least_kept(row, survey, found.kept);
  if (a.ceiling != nullptr) {
    const float peak = max > -kInf ? found.kept.peak : std::numeric_limits<float>::quiet_NaN();
    a.ceiling[number] = p.has_xtc ? peak : kInf;
  }
  if (has_logprobs) {
    const RowMasses masses = {
        a.logprobs.mode, max, found.kept, p.is_greedy, token, Weight::of(p.draw_scale, max), raw_mass, row_mass, kept_mass};
    const int64_t scored = a.scored_ids == nullptr ? token : a.scored_ids[number];
    write_logprobs(row, number, scored, masses, found.candidates, a.logprobs, s);
  }
}

}  // namespace

void sample_row_of(const SampleArguments& a, int64_t number, const Scratch& s) {
  if (a.dtype == kFloat32) sample_row<float>(a, number, s);
  if (a.dtype == kBfloat16) sample_row<Bfloat16>(a, number, s);
  if (a.dtype == kFloat16) sample_row<Float16>(a, number, s);
}

void sum_moments_of(const MomentArguments& a, int64_t number, const Scratch& s) {
  if (a.dtype == kFloat32) sum_moments(row_of<float>(a.logits, number), number, a, s);
  if (a.dtype == kBfloat16) sum_moments(row_of<Bfloat16>(a.logits, number), number, a, s);
  if (a.dtype == kFloat16) sum_moments(row_of<Float16>(a.logits, number), number, a, s);
}

void edit_row_of(const EditArguments& a, int64_t number, const Scratch& s) {
  if (a.dtype == kFloat32) edit_row<float>(a, number, s);
  if (a.dtype == kBfloat16) edit_row<Bfloat16>(a, number, s);
  if (a.dtype == kFloat16) edit_row<Float16>(a, number, s);
}

void verify_request_of(const VerifyArguments& a, int64_t number, const Scratch& s) {
  if (a.target->dtype == kFloat32) verify_request<float>(a, number, sample_row<float>, s);
  if (a.target->dtype == kBfloat16) verify_request<Bfloat16>(a, number, sample_row<Bfloat16>, s);
  if (a.target->dtype == kFloat16) verify_request<Float16>(a, number, sample_row<Float16>, s);
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw

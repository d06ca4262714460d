"""Bugs of native's verification and draw of drafts in a single corner."""

from dataclasses import replace
from unittest import mock

import torch

import tokendraw_native.verify as pieces
from mutants.corner_calls import COLUMNS, INF, CornerCall, descending_places
from mutants.corners import (
    WIDE,
    WIDER,
    Corner,
    Distribution,
    best_repeated,
    draft,
    draft_distribution,
    exchange,
    gumbel,
    logprobs,
    never_accepted,
    noise,
    uniform,
    verify,
)
from mutants.logprob_corners import BFLOAT_LOGPROBS
from mutants.sample_corners import LAST_OF_TIES, clamped, fixed, k_above, off, p_above, shared_noise
from tokendraw import philox, speculative
from tokendraw_native import distributions
from tokendraw_native.distributions import DraftProbs, ProcessedLogits
from tokendraw_native.draw import SAMPLE

native_residual, native_draw = pieces.residual, pieces.draw


def coupled(call):
    return call.verify_mode == "coupled"


def rejection(call):
    return call.verify_mode == "rejection"


def rejected_logits(call):
    """Whether drafts come with logits, under rejection."""
    return call.drafts.draft_logits is not None and rejection(call)


def with_probs(call):
    return call.drafts.draft_probs is not None


# Distributions of drafts.


def probabilities(change):
    return draft_distribution(lambda q: Distribution(q, lambda values, rows: change(values)))


def processed(change):
    """Process the drafts' logits with parameters ``change(params)``."""

    def changed(q):
        if not isinstance(q, ProcessedLogits):
            return q
        params = change(q.params)
        return ProcessedLogits(q.logits, pieces.row_stats(q.logits, params, masses=False), params)

    return draft_distribution(changed)


def at_one(params):
    ones = torch.ones_like(params.temperature)
    return replace(params, temperature=ones, inverse_temperature=ones)


def normalised(q):
    if not isinstance(q, DraftProbs):
        return q
    total = q.values.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0).sum(1).clamp(min=1e-30)
    return Distribution(
        q, lambda values, rows: values / (total[rows] if values.dim() == 1 else total[rows].unsqueeze(1))
    )


def negative_kept(call):
    """Patch the cleaning of draft_probs: NaN and infinity count as 0, negative values as they are."""
    return mock.patch.object(
        distributions,
        "_clean_probs",
        lambda probs: probs.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0),
    )


class ShortIds(Distribution):
    """A distribution looked up at the lower 16 bits of an id."""

    def __init__(self, native):
        super().__init__(native, lambda values, rows: values)

    def probs_at(self, rows, ids):
        return self.native.probs_at(rows, ids % WIDE)


def residual(change):
    """Patch the residual: ``change(p, q)``."""
    return exchange(residual=change)


def first_ids(count):
    """Draw a recovered token from the first ids, unless the residual there is zero."""

    def change(p, q):
        more = native_residual(p, q)
        first = more.clone()
        first[:, count:] = 0
        return torch.where(first.amax(1, keepdim=True) > 0, first, more)

    return residual(change)


def small_from_target(p, q):
    more = (p - q).clamp(min=0.0)
    return torch.where(more.sum(1, keepdim=True) > 0.01, more, p)


def zero_of_equal_rows(p, q):
    more, first = (p - q).clamp(min=0.0), torch.zeros_like(p)
    first[:, 0] = 1
    return torch.where(more.sum(1, keepdim=True) > 1e-3, more, first)


# Noise of acceptances and residuals.


def accepts(change):
    """Patch the acceptance: ``change(u, p, q)``."""
    return exchange(accepts=change)


def acceptance_of(rows):
    """Patch the noise of acceptances by the noise of rows ``rows(call)``."""
    return uniform(lambda call, noise, u, stream, dtype: u[rows(call)])


def acceptance_at(position=lambda call, position: position, **other):
    """Patch the position, stream or dtype of the noise of acceptances."""

    def change(call, noise, u, stream, dtype):
        how = {"stream": stream, "dtype": dtype} | other
        return philox.uniform(
            noise.seed, position(call, noise.position), torch.zeros_like(noise.position), **how
        )

    return uniform(change)


def residual_tiles_in_6_bits(noise, index, stream):
    if isinstance(stream, int) or index.dim() != 1:
        return noise, index
    return noise, torch.where(stream == 4, index % 64, index)


# Changes of calls.


def from_row_before_bonus(call):
    return call.with_logits(call.logits[call.row_before_bonus])


def position_before_bonus(call):
    positions = call.metadata.positions.clone()
    positions[call.bonus_rows] = positions[(call.bonus_rows - 1).clamp(min=0)]
    return call.with_fields(positions=positions)


def requests_modulo_64(call):
    return call.with_params_of(call.first_rows[call.row_requests % 64], *COLUMNS[:5])


def last_tie_only(call):
    """Leave the highest id of the maximum of greedy rows alone."""
    x = call.logits.float()
    last = call.size - 1 - x.flip(1).argmax(1, keepdim=True)
    return call.with_logits(x.masked_fill(call.greedy.unsqueeze(1) & (torch.arange(call.size) != last), -INF))


def dropped(call, mask):
    """Drop tokens, and keep the parameters."""
    return call.with_logits(call.logits.float().masked_fill(mask & ~call.logits.isnan(), -INF))


def min_p_at_one(call):
    at_one = call.with_params(temperature=torch.ones_like(call.temperature), top_k=None, top_p=None).kept()
    return dropped(call, ~(call.kept_without("min_p") & at_one))


def target_exact_k(call):
    behind = (descending_places(call.logits) >= call.top_k.unsqueeze(1)) & call.has_top_k.unsqueeze(1)
    return dropped(call, behind & ~call.greedy.unsqueeze(1))


def ids_one_early(call):
    ids = call.drafts.draft_token_ids
    if ids.dtype != torch.int32 or ids.dim() != 2 or ids.shape[1] < 2:
        return call
    return call.with_drafts(draft_token_ids=torch.cat((ids[:1], ids[1:].roll(1, 1))), any_placeholder=True)


def late_placeholders_are_zero(call):
    ids = call.drafts.draft_token_ids
    if ids.dim() > 1:
        return call
    judged = speculative.target_rows(call.drafts.cu_num_logits, call.count - call.drafts.num_requests)
    ids = ids[: len(judged)]
    late = (call.row_steps[judged] >= 4) & ((ids < 0) | (ids >= call.size))
    return call.with_drafts(draft_token_ids=torch.where(late, 0, ids))


def ids_in_15_bits(call):
    ids = call.drafts.draft_token_ids
    return call.with_drafts(draft_token_ids=torch.where(ids >= 1 << 15, -1, ids), any_placeholder=True)


def drafts_without_far_nan(call):
    def cleaned(rows, zero):
        if rows is None:
            return None
        return torch.cat((rows[:, :WIDE].float(), rows[:, WIDE:].float().nan_to_num(nan=zero)), 1)

    drafts = call.drafts
    return call.with_drafts(
        draft_probs=cleaned(drafts.draft_probs, 0.0), draft_logits=cleaned(drafts.draft_logits, -INF)
    )


def tied_drafts_accepted(call):
    x = call.logits.float().nan_to_num(nan=-INF)
    judged = speculative.target_rows(call.drafts.cu_num_logits, len(x) - call.drafts.num_requests)
    ids = call.drafts.draft_token_ids[: len(judged)].clamp(0, call.size - 1).unsqueeze(1)
    rows = x[judged]
    tied = rows.gather(1, ids) == rows.amax(1, keepdim=True)
    x[judged] = torch.where(tied, rows.scatter(1, ids, INF), rows)
    return call.with_logits(x)


def noise_of_request_before(call):
    before = call.drafts.cu_num_logits.long()[(call.row_requests - 1).clamp(min=0)]
    return call.with_noise_of(before)


def rows_of_request_modulo_64(call):
    first = call.drafts.cu_num_logits.long()
    source = call.row_requests % 64
    return torch.minimum(first[source] + call.row_steps, first[source + 1] - 1)


def from_row_before_lone_requests(call):
    rows, alone = call.row, call.first_rows[call.draft_counts == 0]
    rows[alone] = (alone - 1).clamp(min=0)
    return call.with_logits(call.logits[rows])


def placeholder_first(call):
    ids = call.drafts.draft_token_ids
    if coupled(call) or ids.dim() != 1:
        return False
    first = call.first_rows - call.request_index
    return (torch.cat((ids, ids.new_zeros(1)))[first] < 0) & (call.draft_counts > 0)


# Changes of outputs.


def trailing_nan_counts(call, output):
    end = int(call.drafts.cu_num_logits[-1])
    valid = output.valid.clone()
    valid[-1] &= ~call.logits[end:].isnan().any()
    return replace(output, valid=valid)


def ninth_repeats(call, output):
    best, steps = output.logprobs, output.token_ids.shape[1]
    if best is None or steps <= 8:
        return output
    step = torch.arange(steps)
    emitted = (step <= output.num_accepted.unsqueeze(1)).unsqueeze(2)
    values = torch.where(emitted, best.logprobs[:, torch.where(step >= 8, step - 1, step)], best.logprobs)
    return replace(output, logprobs=replace(best, logprobs=values))


def strict_bonus_ranks(call, output):
    best = output.logprobs
    if best is None or best.ranks is None:
        return output
    count = output.num_accepted.long().unsqueeze(1)
    x = call.logits[call.bonus_rows].float().nan_to_num(nan=-INF)
    rank = (x > x.gather(1, output.token_ids.gather(1, count))).sum(1, keepdim=True) + 1
    counted = best.ranks.scatter(1, count, rank.to(best.ranks.dtype))
    is_bonus = (output.num_accepted == call.draft_counts).unsqueeze(1)
    return replace(output, logprobs=replace(best, ranks=torch.where(is_bonus, counted, best.ranks)))


def best_repeated_late(call, best):
    steps, width = best.token_ids.shape[1:]
    if width <= 21 or steps < 8:
        return {}
    late = (torch.arange(steps) >= 7)[None, :, None]
    return {
        "token_ids": torch.where(late, best.token_ids[..., torch.arange(width).clamp(max=20)], best.token_ids)
    }


LINE, WIDE_LINE, NEAR = "verify crossing", "verify crossing, wide", "verify near distributions"
THREE = (33, 1025, 5003)
# fmt: off
DRAWS_OF_DRAFTS = (
    draft("Drafts, B = 1: top-k keeps exactly k tokens", LINE, all_dtypes=True, sizes=THREE,
          where=lambda call: call.has_top_k & (call.count == 1), change=CornerCall.exact_k),
    draft("Drafts in bfloat16, V > 65,536: the ids behind the last full vector of 8 are never drawn",
          "verify crossed drafts", dtype="bfloat16", above=WIDE,
          change=lambda call: call.without_ids(call.size // 8 * 8)),
    draft("Drafts, T > 10: T counts as 10", LINE, where=lambda call: call.temperature > 10, change=clamped(max=10)),
    draft("Drafts, k > 1024: top-k is off", "verify crossed drafts", sizes=(1025, 5003), all_dtypes=True,
          where=k_above(1024), change=off("top_k")),
    draft("Drafts: a greedy row beside others takes the highest id on a tie", LINE,
          where=lambda call: call.greedy & (~call.greedy).any(), output=LAST_OF_TIES),
    draft("bfloat16: a draft is drawn with the noise of tokens", "verify crossed drafts", dtype="bfloat16",
          patch=noise(stream=lambda stream: stream - 5)),
    draft("float16: the noise of drafts has 24 bits", "verify noise precision", dtype="float16", patch=noise(bits=24)),
    draft("bfloat16: drafts are drawn without top-p", "verify crossed drafts", dtype="bfloat16",
          where=lambda call: call.has_top_p, change=off("top_p")),
    draft("Drafts without a seed: rows of one call 2 apart share their noise", "verify distribution", unseeded=True,
          change=lambda call: call.with_noise_of(call.row % 2)),
    draft("Drafts without a seed: rows from 128 on have the noise of row - 128", "verify distribution", unseeded=True,
          where=lambda call: call.row >= 128, change=lambda call: call.with_noise_of(call.row % 128)),
    draft("bfloat16, drafts without a seed: rows from 512 on have the noise of row - 512", "verify distribution",
          dtype="bfloat16", unseeded=True, where=lambda call: call.row >= 512,
          change=lambda call: call.with_noise_of(call.row % 512)),
    draft("Drafts, V > 65,536: exactly k tokens are kept", "verify crossed drafts", above=WIDE,
          where=lambda call: call.has_top_k & ~call.greedy, change=CornerCall.exact_k),
)

DTYPES = (
    verify("bfloat16: q is rounded to bfloat16", LINE, dtype="bfloat16",
           patch=probabilities(lambda values: values.bfloat16().double())),
    verify("bfloat16: q is the softmax of the draft's logits, without filters", LINE, dtype="bfloat16",
           where=rejected_logits,
           patch=processed(lambda params: replace(params, top_k=None, top_p=None, min_p=None, joint=None))),
    verify("float16: q is taken at T = 1", LINE, dtype="float16", where=rejected_logits, patch=processed(at_one)),
    verify("bfloat16: the uniform variate of the acceptance is rounded to bfloat16", LINE, dtype="bfloat16",
           patch=accepts(lambda u, p, q: (q > 0) & (u.bfloat16().double() < p / q))),
    verify("float16: what p has more than q is formed in float16", NEAR, dtype="float16",
           patch=residual(lambda p, q: native_residual(p.half().double(), q.half().double()))),
    verify("float16: the argmax of a greedy request is the highest id on a tie", LINE, dtype="float16",
           change=last_tie_only),
    verify("bfloat16: a chosen draft that was rejected may be recovered", LINE, dtype="bfloat16", sizes=THREE,
           where=lambda call: call.has_chosen_drafts, patch=residual(lambda p, q: p)),
    verify("draft_probs in float16 or bfloat16: those below 0.0001 count as 0", LINE, sizes=THREE,
           all_dtypes=True, where=lambda call: with_probs(call)
           and call.drafts.draft_probs.dtype in (torch.float16, torch.bfloat16),
           patch=probabilities(lambda values: torch.where(values < 1e-4, 0.0, values))),
    verify("draft_probs below 0 are taken as they are", LINE, sizes=THREE, where=with_probs, patch=negative_kept),
    verify("bfloat16 and fp64 noise: the uniform variate of the acceptance has 32 bits", "verify noise precision",
           dtype="bfloat16", patch=acceptance_at(dtype="fp32")),
)

PATHS = (
    verify("Draft ids in int32, padded [B, K]: those of requests from 1 on are read one place too early", LINE,
           change=ids_one_early),
    verify("Rows behind the last request, which are nobody's, count as rows of its own: a NaN there makes it invalid",
           LINE, output=trailing_nan_counts),
    verify("draft_probs are normalised, in place of taken as they are", LINE, all_dtypes=True, sizes=THREE,
           where=with_probs, patch=draft_distribution(normalised)),
    verify("bfloat16, every request with exactly one draft: the recovered token is drawn from p", NEAR,
           dtype="bfloat16", where=lambda call: (call.draft_counts == 1).all(), patch=residual(lambda p, q: p)),
    verify("B = 1: the acceptance of a draft has the noise of the first one", LINE, all_dtypes=True,
           where=lambda call: call.drafts.num_requests == 1,
           patch=uniform(lambda call, noise, u, stream, dtype: u[:1].expand_as(noise.seed))),
    verify("float16, B = 1 and three drafts or more: the second draft is never accepted", LINE, dtype="float16",
           all_dtypes=True, where=lambda call: (call.drafts.num_requests == 1) & (call.draft_counts > 2),
           patch=never_accepted(lambda call: call.row_steps == 1)),
    verify("bfloat16, batches of greedy requests alone: a draft that ties with the argmax is accepted", LINE,
           dtype="bfloat16", change=tied_drafts_accepted,
           where=lambda call: call.metadata.facts.all_greedy & (call.drafts.draft_token_ids.dim() == 1)),
    verify("A request without a seed, behind one that has a seed, accepts by the noise of that one",
           "verify shared noise", unseeded=True,
           where=lambda call: (~call.unseeded[call.first_rows]).roll(1) & (call.request_index > 0),
           change=noise_of_request_before),
    verify("bfloat16, coupled: exactly k tokens of a target are kept, the lowest ids of those that tie", LINE,
           dtype="bfloat16", where=coupled, change=CornerCall.exact_k),
    verify("float16, coupled: the token in place of a rejected draft is drawn with the noise of residuals", LINE,
           dtype="float16", where=coupled, patch=exchange(draw=lambda *args: native_draw(*args, pieces.RESIDUAL))),
    verify("The acceptance noise keeps 32 bits of a position", LINE,
           patch=acceptance_at(lambda call, position: position & 0xFFFFFFFF)),
    verify("Residuals below 0.01 in all are drawn from p", NEAR, patch=residual(small_from_target)),
    verify("Behind a placeholder at the first place the token is drawn with the noise of tokens, in float16", LINE,
           dtype="float16", where=placeholder_first, patch=exchange(RESIDUAL=SAMPLE)),
)

REQUESTS = (
    verify("Eight drafts or more: the bonus token is drawn from the row of the last draft", LINE,
           where=lambda call: call.draft_counts >= 8, change=from_row_before_bonus),
    verify("Eight drafts or more: the bonus token has the noise of the last draft's position", LINE,
           where=lambda call: call.draft_counts >= 8, change=position_before_bonus),
    verify("The acceptance of draft 8 and of all behind it has the noise of the draft 8 before it", LINE,
           patch=acceptance_at(lambda call, position: position - torch.where(call.row_steps >= 8, 8, 0).unsqueeze(1))),
    verify("Sixteen drafts or more: the sixteenth is never accepted", LINE,
           patch=never_accepted(lambda call: call.row_steps >= 15)),
    verify("Requests from 64 on have the parameters of request - 64", LINE, change=requests_modulo_64),
    verify("B > 64: a request behind the last full block of 64 has its first draft rejected", LINE,
           where=lambda call: (call.request_index >= call.drafts.num_requests // 64 * 64)
           & (call.drafts.num_requests > 64), patch=never_accepted(lambda call: call.row_steps == 0)),
    verify("Requests without a seed: all drafts of a request are accepted by one uniform variate",
           "verify unseeded acceptance", unseeded=True,
           patch=acceptance_of(lambda call: call.first_rows[call.row_requests])),
    verify("Requests without a seed: drafts of different requests are accepted by one uniform variate",
           "verify unseeded acceptance", unseeded=True, patch=acceptance_of(lambda call: call.row_steps)),
    verify("Requests without a seed: a residual is drawn with the noise that the first tokens of the draft had",
           "verify distribution", unseeded=True, patch=acceptance_at(stream=philox.RESIDUAL_TOKEN)),
    verify("Requests without a seed: the token in place of a placeholder at the first place is drawn at T = 2",
           "verify distribution", unseeded=True, where=placeholder_first, change=clamped(min=2)),
    verify("Rows of a target in a wider buffer are read as if they lay side by side", "verify strides",
           where=lambda call: call.logits.stride(0) > call.size,
           change=lambda call: call.with_logits(call.logits.as_strided(
               call.logits.shape, (call.size, 1), call.logits.storage_offset()))),
    verify("A placeholder in the fifth place or later counts as a chosen token 0", LINE,
           change=late_placeholders_are_zero),
    verify("L > 512: rows 512 apart without a seed share their noise", "verify shared noise", unseeded=True,
           change=shared_noise(512)),
    verify("A request without drafts, behind one with eight or more, draws from the row before its own", LINE,
           where=lambda call: (call.draft_counts == 0) & (call.draft_counts.roll(1) >= 8) & (call.request_index > 0),
           change=from_row_before_lone_requests),
    verify("Coupled, without a seed: the bonus token has the noise of the row before", "verify distribution",
           unseeded=True, where=coupled, change=lambda call: call.with_noise_of(call.row_before_bonus)),
)

VALUES = (
    verify("A NaN in the bonus row leaves valid True", LINE, change=lambda call: call.without_nan(call.bonus_rows)),
    verify("A NaN in the row of the fifth draft or a later one leaves valid True", LINE,
           change=lambda call: call.without_nan(call.row_steps >= 4)),
    verify("The logprobs of the ninth token and of those behind it are those of the token before", LINE,
           output=ninth_repeats),
    verify("N > 10: behind the 10 best tokens of a verification stands the tenth again", LINE,
           output=best_repeated(10)),
    verify("float16: the rank of a bonus token counts the tokens that are strictly larger", LINE, dtype="float16",
           output=strict_bonus_ranks),
    verify("p >= 0.99: the target is verified without top-p", LINE, by_row=p_above(0.9899), change=off("top_p")),
    verify("T < 0.01: a request counts as greedy", LINE, by_row=lambda call: (call.temperature < 0.01) & ~call.greedy,
           change=fixed(temperature=0)),
    verify("k > 256: the target is verified with the 256 largest tokens", LINE, sizes=THREE, by_row=k_above(256),
           change=clamped("top_k", max=256)),
    verify("float16: a draft that q gives no probability is accepted by p alone", LINE, dtype="float16",
           patch=accepts(lambda u, p, q: torch.where(q > 0, u < p / q, u < p))),
    verify("bfloat16: where p and q are equal but for rounding, a rejected draft is recovered as token 0", NEAR,
           dtype="bfloat16", where=with_probs, patch=residual(zero_of_equal_rows)),
)

WIDTHS = (
    verify("V > 65,536: a recovered token is drawn from the first 65,536 ids, where they have any residual",
           WIDE_LINE, above=WIDE, patch=first_ids(WIDE)),
    verify("V > 65,536: the residual's tiles 64 apart share noise", WIDE_LINE, above=WIDE,
           patch=gumbel(residual_tiles_in_6_bits)),
    verify("V > 65,536: q of a draft above id 65,535 is looked up at its lower 16 bits", WIDE_LINE, above=WIDE,
           patch=draft_distribution(lambda q: ShortIds(q) if isinstance(q, DraftProbs | ProcessedLogits) else q)),
    verify("V > 32,768: a draft above id 32,767 counts as negative, so as a placeholder", NEAR, above=1 << 15,
           change=ids_in_15_bits),
    verify("V > 65,536: the ids of the target behind the last full vector of 4 have no probability", WIDE_LINE,
           above=WIDE, change=lambda call: call.without_ids(call.size // 4 * 4)),
    verify("V > 65,536: a NaN of the target above id 65,535 leaves valid True", WIDE_LINE, above=WIDE,
           change=lambda call: call.without_nan(start=WIDE)),
    verify("V > 65,536: a NaN of a draft's row above id 65,535 leaves valid True", WIDE_LINE, above=WIDE,
           change=drafts_without_far_nan),
)

CROSSED = (
    verify("bfloat16, no seed, eight drafts or more: the bonus token is drawn from the row of the last draft", LINE,
           dtype="bfloat16", unseeded=True, where=lambda call: call.draft_counts >= 8, change=from_row_before_bonus),
    verify("Coupled: requests from 64 on have the parameters of request - 64", LINE,
           where=coupled, change=requests_modulo_64),
    verify("float16, coupled: a NaN in the bonus row leaves valid True", LINE, dtype="float16", where=coupled,
           change=lambda call: call.without_nan(call.bonus_rows)),
    verify("float16, draft_logits, V > 131,072: a recovered token is one of the first 131,072 ids, if they have any",
           WIDE_LINE, all_cases=True, sizes=(131_113,), dtype="float16", above=WIDER, where=rejected_logits,
           patch=first_ids(WIDER)),
    verify("bfloat16: the logprobs of a verification are rounded to bfloat16", LINE, dtype="bfloat16",
           output=BFLOAT_LOGPROBS),
    verify("bfloat16, V > 65,536: the argmax of a greedy request is the highest id on a tie", WIDE_LINE,
           dtype="bfloat16", above=WIDE, change=last_tie_only),
    verify("float16: q is taken without top-k", LINE, dtype="float16", where=rejected_logits,
           patch=processed(lambda params: replace(params, top_k=None, max_top_k=0, all_top_k=False))),
    verify("Coupled, T > 10: T counts as 10", LINE, by_row=lambda call: (call.temperature > 10) & coupled(call),
           change=clamped(max=10)),
    verify("No seed, T < 0.01: T counts as 0.05", LINE, unseeded=True,
           by_row=lambda call: (call.temperature < 0.01) & ~call.greedy, change=clamped(min=0.05)),
    verify("float16: min-p of the target sees the probabilities at T = 1", LINE, dtype="float16",
           by_row=lambda call: (call.min_p > 0) & ~call.greedy, change=min_p_at_one),
    verify("bfloat16, V > 65,536: a target keeps exactly k tokens", WIDE_LINE, dtype="bfloat16", above=WIDE,
           by_row=lambda call: call.has_top_k, change=target_exact_k),
    verify("Seeded requests from 64 on accept by the noise of request - 64", LINE, unseeded=False,
           where=rejection, patch=acceptance_of(rows_of_request_modulo_64)),
    verify("Coupled, order joint: top-p counts the mass that top-k left", LINE, sizes=THREE,
           by_row=lambda call: call.joint & call.has_top_p & coupled(call), change=off("joint")),
    verify("A chosen draft of p < 0.02 is never accepted", LINE,
           where=lambda call: call.has_chosen_drafts and rejection(call),
           patch=accepts(lambda u, p, q: (q > 0) & (u < p / q) & (p >= 0.02))),
    verify("N > 20: behind the 20 best of the eighth token and of those behind it stands the 20th again", LINE,
           sizes=THREE, output=logprobs(best_repeated_late)),
    verify("B = 1 and V > 65,536: the second draft is never accepted", WIDE_LINE, above=WIDE,
           where=lambda call: call.drafts.num_requests == 1, patch=never_accepted(lambda call: call.row_steps == 1)),
    verify("bfloat16: the uniform variate of the acceptance has 16 bits", "verify sure drafts", dtype="bfloat16",
           patch=uniform(lambda call, noise, u, stream, dtype: (
               (u * 65536).floor() / 65536 + 1 / 131072 if stream == philox.ACCEPT else u))),
    verify("float16, draft_probs: a NaN counts as 0 and leaves valid True", LINE, dtype="float16",
           where=lambda call: with_probs(call) and rejection(call),
           change=lambda call: call.with_drafts(draft_probs=call.drafts.draft_probs.nan_to_num(nan=0.0))),
    verify("bfloat16, no seed: a recovered token is drawn from the whole target", LINE, dtype="bfloat16",
           unseeded=True, where=rejection, patch=residual(lambda p, q: p)),
)
# fmt: on

MUTANTS: dict[str, tuple[Corner, ...]] = {
    "Draws of drafts": DRAWS_OF_DRAFTS,
    "Verifications in one dtype": DTYPES,
    "Paths of a verification, and layouts of drafts": PATHS,
    "Numbers of drafts and requests": REQUESTS,
    "Values of parameters, and what a verification shows": VALUES,
    "Verifications of wide vocabularies": WIDTHS,
    "Further crossings of a verification": CROSSED,
}

"""Bugs of native's verification and draw of drafts in a single corner."""

from dataclasses import replace

import torch

import tokendraw_native.verify as pieces
from mutants.corner_calls import INF, CornerCall
from mutants.corners import (
    WIDE,
    Corner,
    Distribution,
    draft,
    draft_distribution,
    exchange,
    gumbel,
    noise,
    uniform,
    verify,
)
from mutants.sample_corners import k_above, off, p_above, shared_noise
from tokendraw import philox, speculative
from tokendraw_native.verify import DraftProbs, ProcessedLogits

native_residual = pieces.residual


def rejection(call):
    return call.verify_mode == "rejection"


def rejected_logits(call):
    """Whether drafts come with logits, under rejection."""
    return call.drafts.draft_logits is not None and rejection(call)


# Distributions of drafts.


def processed(change):
    """Process the drafts' logits with parameters ``change(params)``."""

    def changed(q):
        if not isinstance(q, ProcessedLogits):
            return q
        params = change(q.params)
        return ProcessedLogits(q.logits, pieces.row_stats(q.logits, params, masses=False), params)

    return draft_distribution(changed)


class ShortIds(Distribution):
    """A distribution looked up at the lower 16 bits of an id."""

    def __init__(self, native):
        super().__init__(native, lambda values, rows: values)

    def probs_at(self, rows, ids):
        return self.native.probs_at(rows, ids % WIDE)


def residual(change):
    """Patch the residual: ``change(p, q)``."""
    return exchange(residual=change)


# Noise of acceptances and residuals.


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


def last_tie_only(call):
    """Leave the highest id of the maximum of greedy rows alone."""
    x = call.logits.float()
    last = call.size - 1 - x.flip(1).argmax(1, keepdim=True)
    return call.with_logits(x.masked_fill(call.greedy.unsqueeze(1) & (torch.arange(call.size) != last), -INF))


def ids_one_early(call):
    ids = call.drafts.draft_token_ids
    if ids.dtype != torch.int32 or ids.dim() != 2 or ids.shape[1] < 2:
        return call
    return call.with_drafts(draft_token_ids=torch.cat((ids[:1], ids[1:].roll(1, 1))), any_placeholder=True)


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


LINE, WIDE_LINE, NEAR = "verify crossing", "verify crossing, wide", "verify near distributions"
THREE = (33, 1025, 5003)
# fmt: off
DRAWS_OF_DRAFTS = (
    draft("Drafts, B = 1: top-k keeps exactly k tokens", LINE, all_dtypes=True, sizes=THREE,
          where=lambda call: call.has_top_k & (call.count == 1), change=CornerCall.exact_k),
    draft("Drafts in bfloat16, V > 65,536: the ids behind the last full vector of 8 are never drawn",
          WIDE_LINE, dtype="bfloat16", above=WIDE,
          change=lambda call: call.without_ids(call.size // 8 * 8)),
    draft("Drafts, k > 1024: top-k is off", "verify crossed drafts", sizes=(1025, 5003), all_dtypes=True,
          where=k_above(1024), change=off("top_k")),
    draft("bfloat16: a draft is drawn with the noise of tokens", LINE, dtype="bfloat16",
          patch=noise(stream=lambda stream: stream - 5)),
    draft("float16: the noise of drafts has 24 bits", "verify noise precision", dtype="float16", patch=noise(bits=24)),
)

DTYPES = (
    verify("bfloat16: q is the softmax of the draft's logits, without filters", LINE, dtype="bfloat16",
           where=rejected_logits,
           patch=processed(lambda params: replace(params, top_k=None, top_p=None, min_p=None, joint=None))),
    verify("float16: what p has more than q is formed in float16", NEAR, dtype="float16",
           patch=residual(lambda p, q: native_residual(p.half().double(), q.half().double()))),
    verify("bfloat16 and fp64 noise: the uniform variate of the acceptance has 32 bits", "verify noise precision",
           dtype="bfloat16", patch=acceptance_at(dtype="fp32")),
)

PATHS = (
    verify("Draft ids in int32, padded [B, K]: those of requests from 1 on are read one place too early", LINE,
           change=ids_one_early),
    verify("Rows behind the last request, which are nobody's, count as rows of its own: a NaN there makes it invalid",
           LINE, output=trailing_nan_counts),
    verify("bfloat16, every request with exactly one draft: the recovered token is drawn from p", NEAR,
           dtype="bfloat16", where=lambda call: (call.draft_counts == 1).all(), patch=residual(lambda p, q: p)),
    verify("bfloat16, batches of greedy requests alone: a draft that ties with the argmax is accepted", LINE,
           dtype="bfloat16", change=tied_drafts_accepted,
           where=lambda call: call.metadata.facts.all_greedy & (call.drafts.draft_token_ids.dim() == 1)),
    verify("A request without a seed, behind one that has a seed, accepts by the noise of that one",
           "verify shared noise", unseeded=True,
           where=lambda call: (~call.unseeded[call.first_rows]).roll(1) & (call.request_index > 0),
           change=noise_of_request_before),
)

REQUESTS = (
    verify("The acceptance of draft 8 and of all behind it has the noise of the draft 8 before it", LINE,
           patch=acceptance_at(lambda call, position: position - torch.where(call.row_steps >= 8, 8, 0).unsqueeze(1))),
    verify("Requests without a seed: all drafts of a request are accepted by one uniform variate",
           "verify shared noise", unseeded=True,
           patch=acceptance_of(lambda call: call.first_rows[call.row_requests])),
    verify("Requests without a seed: drafts of different requests are accepted by one uniform variate",
           "verify shared noise", unseeded=True, patch=acceptance_of(lambda call: call.row_steps)),
    verify("Rows of a target in a wider buffer are read as if they lay side by side", "verify strides",
           where=lambda call: call.logits.stride(0) > call.size,
           change=lambda call: call.with_logits(call.logits.as_strided(
               call.logits.shape, (call.size, 1), call.logits.storage_offset()))),
    verify("L > 512: rows 512 apart without a seed share their noise", "verify shared noise", unseeded=True,
           change=shared_noise(512)),
)

VALUES = (
    verify("The logprobs of the ninth token and of those behind it are those of the token before", LINE,
           output=ninth_repeats),
    verify("p >= 0.99: the target is verified without top-p", LINE, by_row=p_above(0.9899), change=off("top_p")),
)

WIDTHS = (
    verify("V > 65,536: the residual's tiles 64 apart share noise", WIDE_LINE, above=WIDE,
           patch=gumbel(residual_tiles_in_6_bits)),
    verify("V > 65,536: q of a draft above id 65,535 is looked up at its lower 16 bits", WIDE_LINE, above=WIDE,
           patch=draft_distribution(lambda q: ShortIds(q) if isinstance(q, DraftProbs | ProcessedLogits) else q)),
    verify("V > 32,768: a draft above id 32,767 counts as negative, so as a placeholder", NEAR, above=1 << 15,
           change=ids_in_15_bits),
    verify("V > 65,536: a NaN of a draft's row above id 65,535 leaves valid True", WIDE_LINE, above=WIDE,
           change=drafts_without_far_nan),
)

# fmt: on

MUTANTS: dict[str, tuple[Corner, ...]] = {
    "Draws of drafts": DRAWS_OF_DRAFTS,
    "Verifications in one dtype": DTYPES,
    "Paths of a verification, and layouts of drafts": PATHS,
    "Numbers of drafts and requests": REQUESTS,
    "Values of parameters, and what a verification shows": VALUES,
    "Verifications of wide vocabularies": WIDTHS,
}

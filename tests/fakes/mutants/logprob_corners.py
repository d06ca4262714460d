"""Bugs of native in greedy rows, ranks and logprobs of a single corner."""

from dataclasses import replace

import torch

from mutants.corner_calls import INF, descending_places, sortable
from mutants.corners import (
    WIDE,
    WIDER,
    Corner,
    best_repeated,
    draw,
    kept_mass,
    logprob_values,
    logprobs,
    ranks,
    tokens,
)
from mutants.sample_corners import LAST_OF_TIES, clamped, infinite, negative_zeros_lower


def is_greedy(call):
    return call.greedy


STRICT_RANKS = ranks(
    lambda call, counts, ids: (
        (sortable(call.logits) > sortable(call.logits).gather(1, ids.unsqueeze(1))).sum(1) + 1
    )
)
"""Ranks count the tokens that are strictly larger, and the drawn one."""
BFLOAT_LOGPROBS = logprob_values(lambda call, values: values.bfloat16().float())


def joined(best, ids, values):
    """Join the drawn token with new best tokens."""
    return {
        "token_ids": torch.cat((best.token_ids[:, :1], ids), 1),
        "logprobs": torch.cat((best.logprobs[:, :1], values), 1),
    }


def best_of_flipped_rows(call, output):
    """Show the N best of flipped rows, behind the right token."""
    best = output.logprobs
    ids = torch.where(best.token_ids >= 0, call.size - 1 - best.token_ids, -1)
    right = call.memory["native"].sample(call.logits, call.metadata)
    return replace(
        right, logprobs=replace(right.logprobs, **joined(right.logprobs, ids[:, 1:], best.logprobs[:, 1:]))
    )


def highest_tie_last(call, best):
    """Show the highest id among ties with the last of the N best."""
    tied = sortable(call.logits) == sortable(call.logits).gather(1, best.token_ids[:, -1:].clamp(min=0))
    highest = call.size - 1 - tied.int().flip(1).argmax(1, keepdim=True)
    ids = torch.where(best.token_ids >= 0, torch.cat((best.token_ids[:, :-1], highest), 1), best.token_ids)
    return {"token_ids": ids}


def asks_for_more_than(most):
    """Select rows with N above ``most``."""

    def where(call):
        counts = call.metadata.logprobs
        return call.shows_logprobs and (True if counts is None else counts > most)

    return where


def unordered_behind_32(call, best):
    if best.token_ids.shape[1] - 1 <= 32:
        return {}
    place = torch.arange(best.token_ids.shape[1]).expand_as(best.token_ids).clone()
    place[:, 33:] = 33 + best.token_ids[:, 33:].argsort(1)
    return {"token_ids": best.token_ids.gather(1, place), "logprobs": best.logprobs.gather(1, place)}


def far_ids_last(call, best):
    """Order ids below 65,536 first among the N best."""
    if best.token_ids.shape[1] - 1 > WIDE:
        return {}
    order = torch.where(best.token_ids[:, 1:] < WIDE, 0, 1).argsort(dim=1, stable=True)
    return joined(best, *(torch.gather(t[:, 1:], 1, order) for t in (best.token_ids, best.logprobs)))


def nan_first(call, best):
    if best.token_ids.shape[1] < 2:
        return {}
    nan = call.logits.isnan()
    ids = torch.where(nan.any(1, keepdim=True), nan.int().argmax(1, keepdim=True), best.token_ids[:, 1:2])
    return {"token_ids": torch.cat((best.token_ids[:, :1], ids, best.token_ids[:, 2:]), 1)}


def later_half_on_a_tie(call, ids):
    x, half = sortable(call.logits), call.size // 2
    left, right = x[:, :half].max(1), x[:, half:].max(1)
    token = torch.where(right.values >= left.values, half + right.indices, left.indices)
    return torch.where(x.amax(1) > -INF, token, 0)


def last_vector_on_a_tie(call, ids):
    x, start = sortable(call.logits), call.size // 8 * 8
    last, top = x[:, start:].max(1), x.amax(1)
    return torch.where((last.values == top) & (top > -INF), start + last.indices, ids)


def without_last_tile(call, values):
    x = sortable(call.logits).double()
    lost = x.logsumexp(1) - x[:, : call.size // 1024 * 1024].logsumexp(1)
    return values + torch.where(lost.isfinite(), lost, 0.0).unsqueeze(1).float()


def mass_of_first_ids(call, mass):
    y = call.y().masked_fill(~call.kept(), -INF)
    lost = y[:, :WIDE].logsumexp(1) - y.logsumexp(1)
    return mass + torch.where(call.greedy | ~lost.isfinite(), 0.0, lost)


def mass_of_top_k(call, mass):
    """Take the mass relative to the mass after top-k."""
    y = call.y()
    left = y.masked_fill(~call.kept_without("top_p", "min_p"), -INF)
    return mass - (left.logsumexp(1) - y.logsumexp(1))


def log_of_epsilon(call, values):
    if not call.mode.endswith("logprobs"):
        return values
    return torch.where(values == -INF, values, (values.double().exp() + 1e-10).log().float())


def nan_at_infinity(call, best):
    if call.mode != "raw_logprobs":
        return {}
    at = infinite(call).any(1, keepdim=True) & (best.token_ids >= 0)
    return {"logprobs": torch.where(at, float("nan"), best.logprobs)}


# fmt: off
SINGLE = (
    draw("bfloat16: logprobs are rounded to bfloat16", "crossed logprobs", dtype="bfloat16", output=BFLOAT_LOGPROBS),
    draw("bfloat16: the rank counts the tokens that are strictly larger, and the drawn one", "crossed logprobs",
         dtype="bfloat16", output=STRICT_RANKS),
    draw("float16: a greedy row takes the highest id on a tie", "crossed requests", dtype="float16", where=is_greedy,
         output=LAST_OF_TIES),
    draw("float16: of tied tokens among the N best, the highest id comes first", "crossed logprobs", dtype="float16",
         where=lambda call: call.shows_logprobs, change=lambda call: call.with_logits(call.logits.flip(1)),
         output=best_of_flipped_rows),
    draw("bfloat16: a greedy row orders bit patterns, by which -0.0 lies below 0.0", "crossed logprobs",
         dtype="bfloat16", where=is_greedy, change=negative_zeros_lower),
    draw("float16: greedy rows of a batch beside others take the k-th largest token, by their own ignored top_k",
         "crossed requests", dtype="float16", where=lambda call: call.greedy & (call.top_k > 1) & call.has_top_k,
         change=lambda call: call.keep(
             descending_places(call.logits) == (call.top_k.long() - 1).clamp(min=0).unsqueeze(1))),
    draw("V > 65,536: of two greedy maxima in different halves of the vocabulary the last one wins", "last ids",
         above=WIDE, where=is_greedy, output=tokens(later_half_on_a_tie)),
    draw("V > 65,536: ranks are counted in 16 bits", "crossed logprobs", above=WIDE,
         output=ranks(lambda call, counts, ids: counts % WIDE)),
    draw("V > 65,536: the N best are those of the first 65,536 ids", "crossed logprobs", above=WIDE,
         output=logprobs(far_ids_last)),
    draw("V > 65,536: log_kept_mass leaves out what is kept above id 65,535", "crossed logprobs", above=WIDE,
         output=kept_mass(mass_of_first_ids)),
    draw("V > 65,536: raw logprobs leave the last partial tile out of their mass", "crossed logprobs", above=WIDE,
         where=lambda call: call.size % 1024 > 0 and call.mode == "raw_logprobs",
         output=logprob_values(without_last_tile)),
    draw("N > 20: behind the 20 best stands the 20th again", "crossed logprobs", where=asks_for_more_than(20),
         output=best_repeated(20)),
    draw("N > 32, but not all: behind the 32 best stand further ones in the order of their ids", "crossed logprobs",
         where=lambda call: asks_for_more_than(32)(call)
         & ((call.metadata.facts.logprobs_width(call.size) or call.size) < call.size),
         output=logprobs(unordered_behind_32)),
    draw("Rows from 64 on show as many best tokens as row - 64 asked for", "crossed logprobs",
         where=lambda call: (call.row >= 64) & (call.metadata.logprobs is not None),
         change=lambda call: call.with_fields(logprobs=call.metadata.logprobs[call.row % 64], row_kinds=None)),
    draw("A NaN is the first of the N best, as torch.topk has it", "far NaN and infinities",
         output=logprobs(nan_first)),
    draw("A NaN counts as larger than the drawn token in its rank", "far NaN and infinities",
         output=ranks(lambda call, counts, ids: counts + call.logits.isnan().sum(1))),
    draw("Raw logprobs of a row with +inf are NaN, since infinity is taken from itself", "far NaN and infinities",
         output=logprobs(nan_at_infinity)),
    draw("log_kept_mass of a row with a NaN is NaN", "far NaN and infinities",
         output=kept_mass(lambda call, mass: torch.where(call.logits.isnan().any(1), float("nan"), mass))),
)

CROSSED = (
    draw("bfloat16, V > 131,072 and greedy: the ids from 131,072 on are not looked at", "last ids", dtype="bfloat16",
         above=WIDER, where=is_greedy, change=lambda call: call.without_ids(WIDER)),
    draw("Greedy rows from 256 on take the highest id on a tie", "crossed requests",
         where=lambda call: call.greedy & (call.row >= 256), output=LAST_OF_TIES),
    draw("float16: a greedy row takes its first NaN, and is valid False", "far NaN and infinities", dtype="float16",
         where=lambda call: call.greedy & call.logits.isnan().any(1),
         output=tokens(lambda call, ids: call.logits.isnan().int().argmax(1))),
    draw("bfloat16, V > 65,536: of ties at the end of the N best, the highest ids are shown", "crossed logprobs",
         dtype="bfloat16", above=WIDE, output=logprobs(
             lambda call, best: highest_tie_last(call, best) if 2 < best.token_ids.shape[1] < call.size else {})),
    draw("float16: log_kept_mass is never less than -10", "crossed logprobs", sizes=(65_543,), dtype="float16",
         output=kept_mass(lambda call, mass: mass.clamp(min=-10))),
    draw("bfloat16: logprobs are log(p + 1e-10), so that none lies below -23", "crossed logprobs", dtype="bfloat16",
         output=logprob_values(log_of_epsilon)),
    draw("T > 2: temperature_logprobs are taken at T = 2", "crossed logprobs",
         where=lambda call: (call.temperature > 2) & (call.mode == "temperature_logprobs"), change=clamped(max=2)),
    draw("float16, V > 131,072: the rank counts the tokens that are strictly larger, and the drawn one",
         "crossed logprobs", dtype="float16", above=WIDER, output=STRICT_RANKS),
    draw("bfloat16, V > 65,536: logprobs are rounded to bfloat16", "crossed logprobs", dtype="bfloat16", above=WIDE,
         output=BFLOAT_LOGPROBS),
    draw("float16, processed_logprobs and N > 20: behind the 20 best stands the 20th again", "crossed logprobs",
         dtype="float16", output=best_repeated(20),
         where=lambda call: asks_for_more_than(20)(call) if call.mode == "processed_logprobs" else False),
    draw("bfloat16, greedy rows: of a maximum behind the last full vector of 8 and one before it, the later one wins",
         "last ids", dtype="bfloat16", where=lambda call: call.greedy & (call.size % 8 > 0),
         output=tokens(last_vector_on_a_tie)),
    draw("bfloat16: processed_logits are not divided by the temperature", "crossed logprobs", dtype="bfloat16",
         where=lambda call: ~call.greedy & (call.mode == "processed_logits"),
         output=logprob_values(lambda call, values: torch.where(
             values == -INF, values, values * call.temperature.float().unsqueeze(1)))),
    draw("float16, order joint: log_kept_mass is relative to what top-k leaves", "crossed logprobs", dtype="float16",
         where=lambda call: call.joint & call.has_top_k & ~call.greedy, output=kept_mass(mass_of_top_k)),
    draw("B = 1, V > 65,536 and greedy: the last of 8 parts of the vocabulary is left out", "last ids", above=WIDE,
         where=lambda call: call.greedy & (call.count == 1), change=lambda call: call.without_ids(call.size // 8 * 7)),
    draw("B = 1: of ties at the end of the N best, the highest id is shown", "crossed logprobs",
         where=lambda call: call.count == 1 and call.shows_logprobs, output=logprobs(
             lambda call, best: highest_tie_last(call, best) if 1 < best.token_ids.shape[1] <= call.size else {})),
    draw("bfloat16: the rank of a row with +inf counts one of them", "far NaN and infinities", dtype="bfloat16",
         output=ranks(lambda call, counts, ids: torch.where(infinite(call).any(1), 1, counts))),
    draw("float16, greedy rows with a temperature of 0: raw logprobs are those of a row of one token",
         "crossed logprobs", dtype="float16", where=lambda call: call.greedy & (call.mode == "raw_logprobs"),
         output=logprob_values(lambda call, values: torch.cat((torch.zeros_like(values[:, :1]), values[:, 1:]), 1))),
)
# fmt: on

MUTANTS: dict[str, tuple[Corner, ...]] = {
    "Greedy rows, ranks and logprobs": SINGLE,
    "Crossings of greedy rows, ranks and logprobs": CROSSED,
}

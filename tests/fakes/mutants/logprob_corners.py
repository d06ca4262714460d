"""Bugs of native in greedy rows, ranks and logprobs of a single corner."""

import torch

from mutants.corner_calls import INF, sortable
from mutants.corners import (
    WIDE,
    Corner,
    best_repeated,
    draw,
    kept_mass,
    logprobs,
    tokens,
)


def is_greedy(call):
    return call.greedy


"""Ranks count the tokens that are strictly larger, and the drawn one."""


def asks_for_more_than(most):
    """Select rows with N above ``most``."""

    def where(call):
        counts = call.metadata.logprobs
        return call.shows_logprobs and (True if counts is None else counts > most)

    return where


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


def mass_of_first_ids(call, mass):
    y = call.y().masked_fill(~call.kept(), -INF)
    lost = y[:, :WIDE].logsumexp(1) - y.logsumexp(1)
    return mass + torch.where(call.greedy | ~lost.isfinite(), 0.0, lost)


def mass_of_top_k(call, mass):
    """Take the mass relative to the mass after top-k."""
    y = call.y()
    left = y.masked_fill(~call.kept_without("top_p", "min_p"), -INF)
    return mass - (left.logsumexp(1) - y.logsumexp(1))


# fmt: off
SINGLE = (
    draw("V > 65,536: of two greedy maxima in different halves of the vocabulary the last one wins", "last ids",
         above=WIDE, where=is_greedy, output=tokens(later_half_on_a_tie)),
    draw("V > 65,536: log_kept_mass leaves out what is kept above id 65,535", "crossed logprobs", above=WIDE,
         output=kept_mass(mass_of_first_ids)),
    draw("N > 20: behind the 20 best stands the 20th again", "crossed logprobs", where=asks_for_more_than(20),
         output=best_repeated(20)),
    draw("A NaN is the first of the N best, as torch.topk has it", "far NaN and infinities",
         output=logprobs(nan_first)),
)

CROSSED = (
    draw("float16, order joint: log_kept_mass is relative to what top-k leaves", "crossed logprobs", dtype="float16",
         where=lambda call: call.joint & call.has_top_k & ~call.greedy, output=kept_mass(mass_of_top_k)),
)
# fmt: on

MUTANTS: dict[str, tuple[Corner, ...]] = {
    "Greedy rows, ranks and logprobs": SINGLE,
    "Crossings of greedy rows, ranks and logprobs": CROSSED,
}

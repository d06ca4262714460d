"""Samplers and verifiers with a bug in typical-p, in XTC, or where the temperature comes last."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import torch

import tokendraw_native.ceilings as pieces
import tokendraw_native.filters as native_filters
import tokendraw_native.row_stats as native_stats
from mutants.corner_calls import INF
from mutants.corners import exchange, threshold, tokens, uniform, verify
from mutants.samplers import in_every_call
from tokendraw import philox
from tokendraw_native.row_stats import row_stats

FURTHER = "further filters"


def patch(module, **names):
    """Patch functions of native in a call."""
    return lambda call: mock.patch.multiple(module, **names)


def typical(change):
    """Patch typical-p: ``change(native, rows, weight, threshold, params)``."""
    native = native_filters.typical_interval
    return patch(native_filters, typical_interval=lambda *arguments: change(native, *arguments))


def whole_row(native, rows, weight, threshold, params):
    least, greatest = native(rows, weight, None, params)
    return least if threshold is None else least.maximum(threshold), greatest


def with_likeliest(native, rows, *arguments):
    return native(rows, *arguments)[0], rows.max


def without_ties(call):
    """Drop the last of several tokens that tie with the least kept one."""
    if call.metadata.typical_p is None:
        return call
    x, params = call.logits.float(), pieces.RowParameters.of(call.metadata, call.count, call.logits.device)
    least = row_stats(call.logits, params, masses=False).threshold
    ties = (x == least) & (call.metadata.typical_p < 1).unsqueeze(-1)
    is_last = ties & (ties.flip(-1).cumsum(-1).flip(-1) == 1) & (ties.sum(-1, keepdim=True) > 1)
    return call.with_logits(call.logits.masked_fill(is_last, -INF))


def xtc(change):
    """Patch XTC: ``change(native, rows, weight, threshold, ceiling, params)``."""
    native = native_filters.xtc_ceiling
    return patch(native_filters, xtc_ceiling=lambda *arguments: change(native, *arguments))


def below(rows, threshold, top):
    """Return the largest value of what is kept below ``top``, or ``top`` without any."""
    found = rows.x.masked_fill((rows.x >= top) | (rows.x < threshold), -INF).amax(-1, keepdim=True)
    return torch.where(found > -INF, found, top)


def least_likely_too(native, rows, weight, threshold, ceiling, params):
    top = rows.max if ceiling is None else ceiling
    found = native(rows, weight, threshold, ceiling, params)
    return torch.where(found < top, below(rows, threshold, found), found)


def single_likely_token(native, rows, weight, threshold, ceiling, params):
    top = rows.max if ceiling is None else ceiling
    found = native(rows, weight, threshold, ceiling, params)
    is_one = ((rows.x == top).sum(-1, keepdim=True) == 1) & (found == top) & (params.xtc_threshold < INF)
    return torch.where(is_one, below(rows, threshold, top), found)


def of_whole_row(native, rows, weight, threshold, ceiling, params):
    found = native(rows, weight, torch.full_like(threshold, -INF), None, params).maximum(threshold)
    return found if ceiling is None else found.minimum(ceiling)


def of_the_mass_of_top_p(native, rows, weight, threshold, ceiling, params):
    """Take for the kept mass of a row in the order joint at least top-p, although a floor may leave less."""
    if params.top_p is None or params.joint is None:
        return native(rows, weight, threshold, ceiling, params)
    kept = weight.where(rows.x >= threshold, 0.0).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True)
    factor = torch.where(params.joint & (params.top_p < 1), (params.top_p / kept).clamp(min=1.0), 1.0)
    params = replace(params, xtc_threshold=params.xtc_threshold * factor)
    return native(rows, weight, threshold, ceiling, params)


def xtc_uniform(change):
    """Patch the uniform of XTC: ``change(call, noise, u, dtype)``."""
    return uniform(
        lambda call, noise, u, stream, dtype: change(call, noise, u, dtype) if stream == philox.XTC else u
    )


def stream(number):
    return xtc_uniform(
        lambda call, noise, u, dtype: philox.uniform(
            noise.seed, noise.position, torch.zeros_like(noise.position), number, dtype
        )
    )


def has_last(call):
    last = call.metadata.temperature_last
    return torch.zeros_like(call.greedy) if last is None else last


def at_one(call):
    return call.with_params(temperature=torch.where(has_last(call) & ~call.greedy, 1.0, call.temperature))


def second_of_greedy(call, ids):
    probability = call.metadata.xtc_probability
    if probability is None or call.size < 2:
        return ids
    return torch.where(call.greedy & (probability > 0), call.logits.float().topk(2).indices[:, 1], ids)


def largest_as_ceiling(call, output):
    if output.ceiling is None:
        return output
    return replace(
        output, ceiling=torch.where(output.ceiling < INF, call.logits.float().amax(-1), output.ceiling)
    )


def keeps_xtc(params, noise, dtype):
    """Apply XTC to drafts in every row."""
    return params if noise is None else pieces.decide_xtc(params, noise, dtype)


# fmt: off
SAMPLERS = (
    in_every_call("typical-p drops tokens that tie with the last one", FURTHER, change=without_ties),
    in_every_call("typical-p looks at the whole row, before top-k", FURTHER, patch=typical(whole_row)),
    in_every_call("typical-p keeps the likeliest token", FURTHER, patch=typical(with_likeliest)),
    in_every_call("typical-p stops before the token that reaches its mass", FURTHER, patch=patch(
        pieces, first_reaching=lambda mass, target: (mass < target).sum(-1, keepdim=True).sub(1).clamp(min=0))),
    in_every_call("typical-p counts the mass at half of p", FURTHER, where=lambda call: ~call.greedy,
                  change=lambda call: call if call.metadata.typical_p is None else call.with_fields(
                      typical_p=torch.where(call.metadata.typical_p < 1, call.metadata.typical_p / 2, 1.0))),
    in_every_call("XTC drops the least of the likely tokens too", FURTHER, patch=xtc(least_likely_too)),
    in_every_call("XTC drops a single likely token", FURTHER, patch=xtc(single_likely_token)),
    in_every_call("XTC takes probabilities of the whole row", FURTHER, patch=xtc(of_whole_row)),
    in_every_call("XTC takes the mass that a floor leaves for at least top-p", FURTHER,
                  patch=xtc(of_the_mass_of_top_p)),
    in_every_call("XTC has the threshold 0.1 in every row", FURTHER,
                  change=lambda call: call.with_fields(xtc_threshold=None)),
    in_every_call("XTC drops the argmax of a greedy row", FURTHER, output=tokens(second_of_greedy)),
    in_every_call("the uniform of XTC is that of the acceptance of a draft", FURTHER, patch=stream(philox.ACCEPT)),
    in_every_call("the uniform of XTC is that of token 0", FURTHER, patch=stream(philox.TOKEN)),
    in_every_call("rows without seeds share the uniform of XTC", FURTHER, unseeded=True, patch=xtc_uniform(
        lambda call, noise, u, dtype: u[:1].expand_as(u))),
    in_every_call("the uniform of XTC is that of position 0", FURTHER, unseeded=False, patch=xtc_uniform(
        lambda call, noise, u, dtype: philox.uniform(
            noise.seed, noise.position * 0, noise.position * 0, philox.XTC, dtype))),
    in_every_call("the ceiling is the largest logit of the row", FURTHER, output=largest_as_ceiling),
    in_every_call("the threshold is -inf where tokens were dropped from above alone", FURTHER, output=threshold(
        lambda call, found: torch.where(call.logits.float().where(call.logits > -INF, INF).amin(-1) == found,
                                        -INF, found))),
    in_every_call("temperature last: the draw is at temperature 1", FURTHER, change=at_one),
    in_every_call("temperature last: filters look at the temperature of the row", FURTHER,
                  patch=patch(native_stats, at_filters=lambda params: params)),
    in_every_call("temperature last: min-p stands before top-k and top-p", FURTHER,
                  patch=patch(native_filters, _min_p_by_place=lambda params: (params.min_p, None))),
    in_every_call("temperature last counts as top_k_first", FURTHER, change=lambda call: call.with_fields(
        temperature_last=None)),
)
VERIFIERS = (
    verify("XTC leaves the rows of a target alone", "verify further filters", patch=exchange(
        decide_xtc=lambda params, noise, dtype: pieces.decide_xtc(params, None, dtype))),
    verify("XTC drops tokens of a draft's distribution", "verify further filters",
           patch=exchange(decide_xtc=keeps_xtc)),
    verify("typical-p leaves the rows of a target alone", "verify further filters",
           change=lambda call: call.with_fields(
        typical_p=None)),
    verify("the weight of a dropped token above the kept ones counts", "verify further filters", patch=lambda call: (
        mock.patch.object(native_stats.RowStats, "drops", lambda self, x: x < self.threshold))),
)
# fmt: on
MUTANTS = {"Samplers, filters from above": SAMPLERS, "Verifiers, filters from above": VERIFIERS}

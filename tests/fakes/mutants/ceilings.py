"""Samplers and verifiers with a bug in typical-p, in XTC, or where the temperature comes last."""

from __future__ import annotations

from unittest import mock

import torch

import tokendraw_native.filters as native_filters
from mutants.corner_calls import INF
from mutants.corners import exchange, tokens, uniform, verify
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


def without_ties(call):
    """Drop the last of several tokens that tie with the least kept one."""
    if call.metadata.typical_p is None:
        return call
    x = call.logits.float()
    params = native_filters.RowParameters.of(call.metadata, call.count, call.logits.device)
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


def second_of_greedy(call, ids):
    probability = call.metadata.xtc_probability
    if probability is None or call.size < 2:
        return ids
    return torch.where(call.greedy & (probability > 0), call.logits.float().topk(2).indices[:, 1], ids)


def keeps_xtc(params, noise, dtype):
    """Apply XTC to drafts in every row."""
    return params if noise is None else native_filters.decide_xtc(params, noise, dtype)


# fmt: off
SAMPLERS = (
    in_every_call("typical-p drops tokens that tie with the last one", FURTHER, change=without_ties),
    in_every_call("typical-p looks at the whole row, before top-k", FURTHER, patch=typical(whole_row)),
    in_every_call("XTC drops the least of the likely tokens too", FURTHER, patch=xtc(least_likely_too)),
    in_every_call("XTC drops the argmax of a greedy row", FURTHER, output=tokens(second_of_greedy)),
    in_every_call("the uniform of XTC is that of token 0", FURTHER, patch=stream(philox.TOKEN)),
    in_every_call("temperature last: min-p stands before top-k and top-p", FURTHER,
                  patch=patch(native_filters, _min_p_by_place=lambda params: (params.min_p, None))),
)
VERIFIERS = (
    verify("XTC leaves the rows of a target alone", "verify further filters", patch=exchange(
        decide_xtc=lambda params, noise, dtype: native_filters.decide_xtc(params, None, dtype))),
    verify("XTC drops tokens of a draft's distribution", "verify further filters",
           patch=exchange(decide_xtc=keeps_xtc)),
    verify("typical-p leaves the rows of a target alone", "verify further filters",
           change=lambda call: call.with_fields(
        typical_p=None)),
)
# fmt: on
MUTANTS = {"Samplers, filters from above": SAMPLERS, "Verifiers, filters from above": VERIFIERS}

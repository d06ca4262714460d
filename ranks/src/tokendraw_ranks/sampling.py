"""Draws a token for each row from logits on several ranks: the order of computing and exchanging, and the merging.

A whole tile has its score on a single rank. For a tile of several ranks, ``exp(log W + G(TILE))`` of its parts add up
to that of the tile, and the largest key of any part is the tile's. What a rank sends is relative to its own largest
value M_r; times ``exp((M_r - M) / T)`` it is relative to that of the row, M.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import LogprobsTensors, Need, SamplerOutput, SamplingMetadata, philox
from tokendraw.plugin import (
    KeptExtremes,
    LogprobsMode,
    RowMasses,
    best_places,
    kept_extremes,
    least_shown,
    mode_values,
    pad_logprobs,
    threshold_between,
)
from tokendraw.row_parameters import MetadataParameters
from tokendraw_ranks.columns import Columns
from tokendraw_ranks.messages import Transport
from tokendraw_ranks.shard import Agreement, Layout
from tokendraw_ranks.thresholds import Plan, Survey, search_further

_INF = float("inf")


def draw_tokens(
    columns: Columns, metadata: SamplingMetadata, agreement: Agreement, need: Need
) -> SamplerOutput:
    """Draw a token for each of B > 0 rows, the same on every rank."""
    (transport, layout), facts, rows = agreement, metadata.facts, len(columns.logits)
    fresh = wait = threshold = None
    if not (facts.all_greedy or philox.has_every_seed(metadata)):
        # Every rank draws them, so that equally seeded generators stay equal; rank 0's are used.
        fresh = philox.fresh_seeds(rows, columns.logits.device)
    has_filters = facts.any_top_k or facts.any_top_p or facts.any_min_p or facts.any_filters
    if has_filters and not (facts.all_greedy and facts.max_logprobs is None):
        plan = Plan.of(columns)
        asked = columns.survey(plan, fresh)
        survey = Survey(**asked.views(transport.all_gather(asked.words)))
        bounds, fresh = columns.listed(survey, plan)
        threshold = search_further(bounds, survey, plan, columns.params, columns, transport)
    elif fresh is not None:
        wait = transport.broadcast_from_first(fresh)
    width = facts.logprobs_width(layout.vocab_size)
    count = None if width is None else min(width, layout.most_columns)
    message = columns.draw_message(count)
    inverse = columns.draw(threshold, fresh, wait, message)
    if count is not None:
        own = message.views()
        for name, column in zip(("best_x", "best_ids"), columns.best(count), strict=True):
            own[name].copy_(column)
    received = message.views(transport.all_gather(message.words))
    token, valid, top, below, part = merge(received["real"], received["ids"], inverse, layout)
    least_kept = _least_kept(columns, transport, threshold) if need.threshold else None
    if width is None:
        return SamplerOutput(token, valid, threshold=least_kept)
    x = received["x"].flatten(0, 1).gather(0, part).view(-1, 1)
    ranks = None
    if need.logprob_ranks:
        ranks = columns.count(x)
        transport.all_sum(ranks)
    top, params = top.to(torch.float32).unsqueeze(-1), columns.params
    if ranks is not None and params.greedy is not None and not need.logprobs_mode.startswith("raw"):
        # A greedy row shows its token alone.
        ranks = torch.where((params.greedy & (top > -_INF)).squeeze(-1), 1, ranks)
    share = (below * params.inverse_temperature.expand(rows, 1).squeeze(-1)).exp()
    kept, mass = (received["sums"][:, :2] * share.unsqueeze(1)).sum(0).unsqueeze(-1)
    raw = (received["sums"][:, 2] * below.exp()).sum(0).unsqueeze(-1)
    least = torch.full_like(top, -_INF) if threshold is None else threshold
    row = RowMasses(top, least, kept, mass, raw)
    best_x, best_ids = (received[name].transpose(0, 1).flatten(1) for name in ("best_x", "best_ids"))
    best = best_x, best_ids, width
    logprobs = _logprobs(token.unsqueeze(-1), x, best, row, metadata, params, need.logprobs_mode)
    log_kept = (kept.log() - mass.log()).clamp_(max=0.0)
    if params.greedy is not None:
        log_kept = torch.where(params.greedy, 0.0, log_kept)
    columns_of_rows = LogprobsTensors(*logprobs, ranks)
    return SamplerOutput(token, valid, columns_of_rows, log_kept.squeeze(-1).to(torch.float32), least_kept)


def merge(real: Tensor, ids: Tensor, inverse: Tensor, layout: Layout) -> tuple[Tensor, ...]:
    """Merge the draws of all ranks into that of a single device, by few operators: each is a launch.

    :param real: [R, 7, B] and ``ids`` [R, 3, B] int32, as :meth:`.columns.Columns.draw` makes them.
    :param inverse: [B] in the widest float.
    :returns: the tokens [B] int64, whether rows are valid, their largest values [B], how far that of each rank lies
        below it [R, B], and which of the 3 R parts has the token [1, B].
    """
    ranks, _, rows = real.shape
    parts = 3 * ranks
    top, state = real[:, 0:6:5].amax(0)
    minus_one = _minus_one(inverse.dtype, inverse.device)
    below = torch.addcmul(real[:, 0], top, minus_one).nan_to_num_(nan=0.0, neginf=-_INF)
    moved = torch.empty(2, ranks, 3, rows, dtype=inverse.dtype, device=inverse.device)
    given = real[:, 1:7].view(ranks, 2, 3, rows).transpose(0, 1)
    torch.addcmul(given, below.view(1, ranks, 1, rows), inverse, out=moved)
    scores, keys = moved.view(2, parts, rows)
    strength = scores.exp()
    if layout.parts is not None:
        strength = strength[layout.parts].sum(0)
    is_lost = strength != strength.amax(0)
    part = keys.masked_fill_(is_lost, -_INF).argmax(0, keepdim=True)  # of equal ones the first: the lowest id
    token = torch.empty(ranks, 3, rows, dtype=torch.int64, device=ids.device).copy_(ids)
    token = token.view(parts, rows).gather(0, part).squeeze(0)
    return token, state == 1, top, below, part


@functools.cache
def _minus_one(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return [1] of -1: times it and added, as a subtraction that is computed in the dtype."""
    return torch.full((1,), -1.0, dtype=dtype, device=device)


def _least_kept(columns: Columns, transport: Transport, threshold: Tensor | None) -> Tensor:
    """Return the least kept value of each row, [B] float32: one more message, of 12 bytes a row."""
    logits, greedy = columns.logits, columns.params.greedy
    bound = torch.full((len(logits),), -_INF, device=logits.device)
    if threshold is not None:
        bound = threshold.squeeze(-1)
    if greedy is not None:
        greedy = greedy.squeeze(-1)
        # The largest value of a rank; which ranks have the largest of the row is not known before the message.
        bound = torch.where(greedy, kept_extremes(logits, bound).max, bound)
    of_ranks = transport.all_gather(torch.stack(kept_extremes(logits, bound), -1))
    max_of, least, dropped = of_ranks.unbind(-1)
    top = max_of.amax(0)
    if greedy is not None:
        dropped = torch.where(greedy & (max_of < top), max_of, dropped)
        least = torch.where(greedy, top, least)
    return threshold_between(KeptExtremes(top, least.amin(0), dropped.amax(0)))


def _logprobs(
    token: Tensor,
    x: Tensor,
    best: tuple[Tensor, Tensor, int],
    row: RowMasses,
    metadata: SamplingMetadata,
    params: MetadataParameters,
    mode: LogprobsMode,
) -> tuple[Tensor, Tensor]:
    """Compute the ids and values of the drawn token and of the N best tokens, [B, 1 + N] each.

    :param token: [B, 1], with its value ``x``.
    :param best: [B, m]: the largest values of every rank, and their ids, -inf and V behind the last; and N.
    """
    best_x, best_ids, width = best
    places = best_places(best_x, best_ids.to(torch.int64), width)
    of_greedy = None if params.greedy is None or mode.startswith("raw") else params.greedy
    values, ids = best_x.gather(-1, places), best_ids.gather(-1, places).to(torch.int64)
    # Values shown as -inf give way to the lowest ids among the tokens shown as -inf.
    is_shown = values >= least_shown(row, params.temperature, mode)
    if of_greedy is not None:
        is_shown &= ~of_greedy | (ids == token)
    is_taken = torch.zeros_like(pad(is_shown, (0, 1)))  # [B, N + 1]: of the ids below N, and any above
    is_taken.scatter_(-1, torch.where(is_shown, ids, width).clamp(max=width), value=True)
    free = is_taken[:, :width].to(torch.int32).argsort(dim=-1, stable=True)
    index = torch.arange(width, device=ids.device) - is_shown.sum(-1, keepdim=True)
    ids = torch.where(is_shown, ids, free.gather(-1, index.clamp(min=0)))
    ids, x = torch.cat((token, ids), -1), torch.cat((x, torch.where(is_shown, values, -_INF)), -1)
    shown = mode_values(x, row, params.inverse_temperature, mode)
    if of_greedy is not None:
        shown = torch.where(of_greedy, torch.where(ids == token, 0.0, -_INF), shown)
    shown = torch.where(row.max > -_INF, shown, -_INF).to(torch.float32)
    return pad_logprobs(ids, shown, metadata.per_row("logprobs"))

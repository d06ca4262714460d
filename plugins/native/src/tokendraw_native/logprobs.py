"""Log-probabilities of the drawn token and of the N best, and the drawn token's rank.

Values are computed at the returned ids alone. The rest of a row counts by the logarithm of its mass, which
the draw has found already.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw import LogprobsTensors, SamplingMetadata
from tokendraw.plugin import (
    PAD_LOGPROB,
    PAD_TOKEN_ID,
    KeptExtremes,
    LogprobsMode,
    RowMasses,
    best_token_ids,
    kept_extremes,
    least_shown,
    mode_values,
    pad_logprobs,
    threshold_between,
)
from tokendraw.row_parameters import RowParameters
from tokendraw_native.row_stats import RowStats
from tokendraw_native.row_threads import Buffers, map_chunks
from tokendraw_native.rows import INF, clean

_NORMALISED_MODES: dict[LogprobsMode, LogprobsMode] = {
    "raw_logits": "raw_logprobs",
    "processed_logits": "processed_logprobs",
}


def log_kept_mass(stats: RowStats, params: RowParameters) -> Tensor:
    """Return the log of the kept share of the temperature-scaled mass, [rows] float32, at most 0.

    It is 0 in greedy rows, whose one token has all of it.
    """
    row = _masses(stats)
    share = (row.log_kept(params.inverse_temperature) - row.mass.log()).clamp_(max=0.0)
    if params.greedy is not None:
        share = torch.where(params.greedy, 0.0, share)
    return share.squeeze(-1).to(torch.float32)


class KeptBounds(NamedTuple):
    """The least and the greatest kept logit of each row, [rows] float32 each, for an output."""

    threshold: Tensor | None = None
    ceiling: Tensor | None = None


def kept_bounds(logits: Tensor, stats: RowStats, params: RowParameters) -> KeptBounds:
    """Return ``threshold`` and ``ceiling`` of the output of a sampler that was loaded with ``Need(threshold=True)``."""
    asks, ceiling = params.has_ceiling, None
    if asks is not None:
        ceiling = torch.where(asks, torch.where(stats.max > -INF, stats.peak, torch.nan), INF).squeeze(-1)
    return KeptBounds(_least_kept(logits, stats, params), ceiling)


def _least_kept(logits: Tensor, stats: RowStats, params: RowParameters) -> Tensor:
    """Return the least kept logit of each row, [rows] float32, as ``SamplerOutput.threshold`` has it.

    Reads the row once more, except for rows of which only the largest values were read.
    """
    if not params.may_drop_tokens:  # no row has a filter, and none is greedy
        x_max = stats.max.squeeze(-1)
        all_kept = torch.full_like(x_max, INF)
        return threshold_between(KeptExtremes(x_max, all_kept, -all_kept))
    bound = stats.threshold.squeeze(-1)
    ceiling = None if stats.ceiling is None else stats.ceiling.squeeze(-1)
    if stats.top_tokens is not None:  # among them a dropped token, if there is one
        return threshold_between(kept_extremes(stats.top_tokens.x, bound))

    def chunk_extremes(rows: slice, _: Buffers) -> KeptExtremes:
        return kept_extremes(logits[rows], bound[rows], None if ceiling is None else ceiling[rows])

    parts = map_chunks(chunk_extremes, len(logits), logits)
    return threshold_between(KeptExtremes(*map(torch.cat, zip(*parts, strict=True))))


def logprobs(
    logits: Tensor,
    token: Tensor,
    stats: RowStats,
    params: RowParameters,
    metadata: SamplingMetadata,
    mode: LogprobsMode,
    *,
    argmax: Tensor | None = None,
    has_ranks: bool = True,
) -> LogprobsTensors:
    """Look up the drawn or scored, the best and the given tokens.

    :param token: [rows] int64: drawn or scored tokens.
    :param metadata: says how many best tokens and which given ones are wanted.
    :param argmax: [rows] int64: the tokens of greedy rows; None: those that were drawn.
    :param has_ranks: whether to compute ranks.
    """
    token, row = token.unsqueeze(-1), _masses(stats)
    greedy_token = token if argmax is None else argmax.unsqueeze(-1)
    width = metadata.facts.logprobs_width(logits.shape[-1]) or 0
    threshold = least_shown(row, params.temperature, mode)
    ceiling = stats.ceiling if mode.startswith("processed") else None

    def chunk_ids(rows: slice, _: Buffers) -> tuple[Tensor, Tensor | None]:
        x = clean(logits[rows])
        shown = x if ceiling is None else x.masked_fill(x > ceiling[rows], -INF)
        shown = torch.where(shown >= threshold[rows], shown, -INF)
        if params.greedy is not None and not mode.startswith("raw"):
            is_token = torch.arange(x.shape[-1], device=x.device) == greedy_token[rows]
            shown = torch.where(params.greedy[rows] & ~is_token, -INF, shown)
        rank = (shown >= shown.gather(-1, token[rows])).sum(-1) if has_ranks else None
        return best_token_ids(shown, width), rank

    best, ranks = zip(*map_chunks(chunk_ids, len(logits), logits), strict=True)
    ids = torch.cat((token, torch.cat(best)), -1)

    def values_of(ids: Tensor) -> Tensor:
        values = mode_values(clean(logits.gather(-1, ids)), row, params.inverse_temperature, mode)
        if params.greedy is not None and not mode.startswith("raw"):
            values = torch.where(params.greedy, torch.where(ids == greedy_token, 0.0, -INF), values)
        return torch.where(stats.max > -INF, values, -INF).to(torch.float32)

    ids, values = pad_logprobs(ids, values_of(ids), metadata.per_row("logprobs"))
    given_ids = None if metadata.given_ids is None else metadata.per_row("logprob_token_ids")
    given_values = None
    if given_ids is not None:
        is_given = (given_ids >= 0) & (given_ids < logits.shape[-1])
        given_values = values_of(torch.where(is_given, given_ids, 0).to(torch.int64))
        given_values = given_values.masked_fill(~is_given, PAD_LOGPROB)
        given_ids = given_ids.to(torch.int64).masked_fill(~is_given, PAD_TOKEN_ID)
    return LogprobsTensors(ids, values, torch.cat(ranks) if has_ranks else None, given_ids, given_values)


def entropy(logits: Tensor, stats: RowStats, params: RowParameters, mode: LogprobsMode) -> Tensor:
    """Return the entropy of the softmax that a mode shows, [rows] float32, as ``ScoreOutput.entropy`` has it."""
    row, normalised = _masses(stats), _NORMALISED_MODES.get(mode, mode)

    def chunk_entropy(rows: slice, _: Buffers) -> Tensor:
        part = row.chunk(rows)
        values = mode_values(clean(logits[rows]), part, params.chunk(rows).inverse_temperature, normalised)
        return -(values.exp() * values).nan_to_num_(nan=0.0).sum(-1, keepdim=True)

    found = torch.cat(map_chunks(chunk_entropy, len(logits), logits)).clamp_(min=0.0)
    if params.greedy is not None and not mode.startswith("raw"):
        found = torch.where(params.greedy, 0.0, found)
    return torch.where(stats.max > -INF, found, torch.nan).squeeze(-1).to(torch.float32)


def _masses(stats: RowStats) -> RowMasses:
    assert stats.mass is not None  # see ``row_stats(masses=True)``
    assert stats.raw_mass is not None
    kept_mass = stats.tile_weights.sum(-1, keepdim=True)
    return RowMasses(stats.max, stats.threshold, kept_mass, stats.mass, stats.raw_mass, stats.ceiling)

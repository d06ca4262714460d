"""Draws a token for each row from logits on several ranks: the order of computing and exchanging.

The bytes of a rank's messages for each kind of batch stand in ``docs/vocab-parallel.md``.

On a CPU the host reads whether a nucleus lies among the largest values. On other devices nothing depends on values, so
that nothing waits for the device; but ranks do not read again the values of rows with a nucleus found.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import philox
from tokendraw.backends.description.capabilities import LogprobsMode, Need
from tokendraw.kept_set import KeptExtremes, kept_extremes, threshold_between
from tokendraw.logprobs import RowMasses, best_places, least_shown, mode_values, pad_logprobs
from tokendraw.output import LogprobsTensors, SamplerOutput
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.vocab_parallel.local import Bounds, LocalLogits
from tokendraw.vocab_parallel.merging import Merged, Merging, TorchMerging
from tokendraw.vocab_parallel.messages import Transport, Wait, exchange
from tokendraw.vocab_parallel.parameters import Parameters, RowSeeds
from tokendraw.vocab_parallel.radix import Histograms
from tokendraw.vocab_parallel.shard import VocabShard
from tokendraw.vocab_parallel.thresholds import ThresholdPlan

_INF = float("inf")


def sample_shard(
    local: LocalLogits,
    params: Parameters,
    metadata: SamplingMetadata,
    shard: VocabShard,
    need: Need,
    merging: Merging | None = None,
) -> SamplerOutput:
    """Draw a token for each row, the same on every rank.

    :param local: this rank's columns.
    :param params: the parameters of their rows.
    :param shard: with the agreement of the ranks: the argument of a sampler's ``sample``.
    :param merging: merges the messages about rows without logprobs; None: plain torch.
    """
    transport, layout = shard.agreement
    in_torch = TorchMerging(params, layout, need.gumbel_dtype)
    merging = merging or in_torch
    facts = metadata.facts
    if facts.all_greedy and facts.max_logprobs is None:
        greedy = merging.greedy(exchange(transport, local.argmax()))
        least_kept = _least_kept(local, transport, None, params) if need.threshold else None
        return SamplerOutput(*greedy, threshold=least_kept)
    rows, device = len(local.logits), local.logits.device
    # Every rank draws fresh seeds, so that equally seeded generators stay equal; rank 0's are used.
    fresh = None if philox.has_every_seed(metadata) else philox.fresh_seeds(rows, device).unsqueeze(-1)
    bounds: Bounds | None = None
    wait: Wait | None = None
    if facts.any_top_k or facts.any_top_p or facts.any_min_p or facts.any_filters:
        plan = ThresholdPlan.of(facts, params, layout.vocab_size, device)
        received = exchange(transport, local.largest(plan.values, plan.masses, fresh, plan.sums))
        bounds, fresh = merging.thresholds(received, plan, Histograms(local, transport))
    elif fresh is not None and not facts.all_greedy:
        wait = transport.broadcast_from_first(fresh)
    seeds = None if facts.all_greedy else RowSeeds(metadata, local.logits, fresh, wait)
    width = facts.logprobs_width(layout.vocab_size)
    columns = None if width is None else min(width, layout.most_columns)
    draws = exchange(transport, local.draw(bounds, seeds, best=columns))
    least_kept = _least_kept(local, transport, bounds, params) if need.threshold else None
    if width is None and seeds is not None:
        return SamplerOutput(*merging.token(draws, bounds, seeds), threshold=least_kept)
    drawn, candidates = in_torch.merge(draws, bounds, seeds), draws.tensors()
    token, valid = drawn.token.squeeze(-1), drawn.valid.squeeze(-1)
    if width is None or drawn.sums is None or candidates.best_x is None or candidates.best_ids is None:
        return SamplerOutput(token, valid, threshold=least_kept)
    ranks = None
    if need.logprob_ranks and drawn.x is not None:
        ranks = local.count(drawn.x)
        transport.all_sum(ranks)
    threshold = torch.full_like(drawn.max, -_INF) if bounds is None else bounds.threshold
    row, num_best = RowMasses(drawn.max, threshold, *drawn.sums), metadata.per_row("logprobs")
    best = candidates.best_x, candidates.best_ids
    row_logprobs = _logprobs(drawn, row, best, width, num_best, params, need.logprobs_mode, ranks)
    return SamplerOutput(token, valid, row_logprobs, _log_kept_mass(row, params), least_kept)


def _least_kept(
    local: LocalLogits, transport: Transport, bounds: Bounds | None, params: Parameters
) -> Tensor:
    """Return the least kept value of each row, [B] float32: one more message, of 12 bytes a row."""
    logits, greedy = local.logits, None if params.greedy is None else params.greedy.squeeze(-1)
    bound = torch.full((len(logits),), -_INF, device=logits.device, dtype=torch.float32)
    if bounds is not None:
        bound = bounds.threshold.squeeze(-1)
    if greedy is not None:
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
    drawn: Merged,
    row: RowMasses,
    best: tuple[Tensor, Tensor],
    width: int,
    num_best: Tensor | None,
    params: Parameters,
    mode: LogprobsMode,
    ranks: Tensor | None,
) -> LogprobsTensors:
    """Compute the values of the drawn token and of the N = ``width`` best tokens.

    :param best: [R, B, m] each: the largest values of every rank, float32, and their ids, int32; -inf and V behind the
        last.
    :param num_best: [B] integer, number of best tokens of each row (-1: all), or None for all N.
    """
    assert drawn.x is not None
    x, ids = (column.transpose(0, 1).flatten(1) for column in best)
    places = best_places(x, ids.to(torch.int64), width)
    x, ids = _shown(x.gather(-1, places), ids.gather(-1, places).to(torch.int64), drawn, row, params, mode)
    ids, x = torch.cat((drawn.token, ids), -1), torch.cat((drawn.x, x), -1)
    values = mode_values(x, row, params.inverse_temperature, mode)
    if params.greedy is not None and not mode.startswith("raw"):
        values = torch.where(params.greedy, torch.where(ids == drawn.token, 0.0, -_INF), values)
        if ranks is not None:  # no other token is shown, but where the row is empty
            ranks = torch.where((params.greedy & (row.max > -_INF)).squeeze(-1), 1, ranks)
    values = torch.where(row.max > -_INF, values, -_INF).to(torch.float32)
    return LogprobsTensors(*pad_logprobs(ids, values, num_best), ranks)


def _log_kept_mass(row: RowMasses, params: Parameters) -> Tensor:
    """Return the log of the kept share of the temperature-scaled mass, [B] float32, at most 0; 0 in greedy rows."""
    share = (row.kept.log() - row.mass.log()).clamp_(max=0.0)
    if params.greedy is not None:
        share = torch.where(params.greedy, 0.0, share)
    return share.squeeze(-1).to(torch.float32)


def _shown(
    x: Tensor, ids: Tensor, drawn: Merged, row: RowMasses, params: Parameters, mode: LogprobsMode
) -> tuple[Tensor, Tensor]:
    """Replace values shown as -inf by the lowest ids among the tokens shown as -inf."""
    is_shown = x >= least_shown(row, params.temperature, mode)
    if params.greedy is not None and not mode.startswith("raw"):
        is_shown &= ~params.greedy | (ids == drawn.token)
    width = ids.shape[-1]
    is_taken = torch.zeros_like(pad(is_shown, (0, 1)))  # [B, N + 1]: of the ids below N, and any above
    is_taken.scatter_(-1, torch.where(is_shown, ids, width).clamp(max=width), value=True)
    free = is_taken[:, :width].to(torch.int32).argsort(dim=-1, stable=True)
    index = torch.arange(width, device=ids.device) - is_shown.sum(-1, keepdim=True)
    filled = free.gather(-1, index.clamp(min=0))
    return torch.where(is_shown, x, -_INF), torch.where(is_shown, ids, filled)

"""Draws a token for each row from logits on several ranks: the order of computing and exchanging.

=============================  =======================================================================
rows of the batch              collectives, with the bytes of a row and rank
=============================  =======================================================================
greedy alone                   a gather of 12
without filters                a gather of 40; for rows without a seed a broadcast of 8 beside the first pass
min-p, top-k up to K = 1,024   a gather of 4 K + 4, where a seed takes 8 more; then the 40
top-p alone                    a gather of 1,036, four sums of 2,048, the 40. For bfloat16 two sums, for
                               float16 three. On a CPU a gather of 3,076, and mostly no sum follows; else
                               one less than those
top-p of what min-p keeps      a gather of 1,036 and as many sums on a CPU, too, if any
top-k above K or unknown       a gather of 8, four sums of 2,048, the 40; top-p of what it keeps as many again
logprobs, N best               36 + 8 N more in the last gather, and a sum of 8 for ranks
=============================  =======================================================================

On a CPU the host reads whether a nucleus lies among the largest values. On other devices nothing depends on values, so
that nothing waits for the device; but ranks do not read again the values of rows with a nucleus found.
"""

from __future__ import annotations

import torch

from tokendraw import philox
from tokendraw.backends.description.capabilities import Need
from tokendraw.logprobs import RowMasses
from tokendraw.output import SamplerOutput
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.row_parameters import FilterPresence
from tokendraw.vocab_parallel.local import Bounds, LocalLogits
from tokendraw.vocab_parallel.logprobs import log_kept_mass, logprobs
from tokendraw.vocab_parallel.merging import Merging, TorchMerging
from tokendraw.vocab_parallel.messages import exchange
from tokendraw.vocab_parallel.parameters import Parameters
from tokendraw.vocab_parallel.radix import Histograms
from tokendraw.vocab_parallel.seeds import RowSeeds
from tokendraw.vocab_parallel.shard import VocabShard
from tokendraw.vocab_parallel.thresholds import Plan
from tokendraw.vocab_parallel.transport import Wait


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
    if metadata.facts.all_greedy and metadata.facts.max_logprobs is None:
        return SamplerOutput(*merging.greedy(exchange(transport, local.argmax())))
    rows, device = len(local.logits), local.logits.device
    # Every rank draws fresh seeds, so that equally seeded generators stay equal; rank 0's are used.
    fresh = None if philox.has_every_seed(metadata) else philox.fresh_seeds(rows, device).unsqueeze(-1)
    is_drawn = not metadata.facts.all_greedy
    filters = FilterPresence.of(metadata)
    bounds: Bounds | None = None
    wait: Wait = _at_once
    if filters.top_k or filters.top_p or filters.min_p:
        of_survivors = metadata.facts.any_top_k_first
        plan = Plan.of(filters, params, layout.vocab_size, device, of_survivors=of_survivors)
        received = exchange(transport, local.largest(plan.values, plan.masses, fresh))
        bounds, fresh = merging.thresholds(received, plan, Histograms(local, transport))
    elif fresh is not None and is_drawn:
        wait = transport.broadcast_from_first(fresh)
    seeds = RowSeeds(metadata, local.logits, fresh, wait) if is_drawn else None
    width = metadata.facts.logprobs_width(layout.vocab_size)
    columns = None if width is None else min(width, layout.most_columns)
    draws = exchange(transport, local.draw(bounds, seeds, best=columns))
    if width is None and seeds is not None:
        return SamplerOutput(*merging.token(draws, bounds, seeds))
    drawn, candidates = in_torch.merge(draws, bounds, seeds), draws.tensors()
    token, valid = drawn.token.squeeze(-1), drawn.valid.squeeze(-1)
    if width is None or drawn.sums is None or candidates.best_x is None or candidates.best_ids is None:
        return SamplerOutput(token, valid)
    ranks = None
    if need.logprob_ranks and drawn.x is not None:
        ranks = local.count(drawn.x)
        transport.all_sum(ranks)
    threshold = torch.full_like(drawn.max, -float("inf")) if bounds is None else bounds.threshold
    row, num_best = RowMasses(drawn.max, threshold, *drawn.sums), metadata.per_row("logprobs")
    best = candidates.best_x, candidates.best_ids
    row_logprobs = logprobs(drawn, row, best, width, num_best, params, need.logprobs_mode, ranks)
    return SamplerOutput(token, valid, row_logprobs, log_kept_mass(row, params))


def _at_once() -> None:
    """Wait for nothing."""

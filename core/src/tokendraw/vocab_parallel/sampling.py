"""One token a row from logits that lie on several ranks: the order in which they compute and talk.

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

On a CPU the host looks whether a nucleus lies among the largest values. Elsewhere nothing depends on what the host does
not know, so that nothing waits for the device; but in rows where it does, no rank reads its values again.
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
from tokendraw.vocab_parallel.messages import exchanged
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
    """Draw one token a row, the same on every rank.

    :param local: this rank's columns.
    :param params: the parameters of their rows.
    :param shard: one on which the ranks agreed: what a sampler's ``sample`` is given.
    :param merging: merges what the ranks say of rows without logprobs; None: plain torch does.
    """
    talk, layout = shard.agreement
    in_torch = TorchMerging(params, layout, need.gumbel_dtype)
    merging = merging or in_torch
    if metadata.facts.all_greedy and metadata.facts.max_logprobs is None:
        return SamplerOutput(*merging.greedy(exchanged(talk, local.argmax())))
    rows, device = len(local.logits), local.logits.device
    # Every rank draws them, so that generators that were seeded alike stay alike; those of rank 0 count.
    fresh = None if philox.has_every_seed(metadata) else philox.fresh_seeds(rows, device).unsqueeze(-1)
    is_drawn = not metadata.facts.all_greedy
    filters = FilterPresence.of(metadata)
    bounds: Bounds | None = None
    wait: Wait = _at_once
    if filters.top_k or filters.top_p or filters.min_p:
        of_survivors = metadata.facts.any_top_k_first
        plan = Plan.of(filters, params, layout.vocab_size, device, of_survivors=of_survivors)
        heard = exchanged(talk, local.largest(plan.values, plan.masses, fresh))
        bounds, fresh = merging.thresholds(heard, plan, Histograms(local, talk))
    elif fresh is not None and is_drawn:
        wait = talk.broadcast_from_first(fresh)
    seeds = RowSeeds(metadata, local.logits, fresh, wait) if is_drawn else None
    width = metadata.facts.logprobs_width(layout.vocab_size)
    columns = None if width is None else min(width, layout.most_columns)
    draws = exchanged(talk, local.draw(bounds, seeds, best=columns))
    if width is None and seeds is not None:
        return SamplerOutput(*merging.token(draws, bounds, seeds))
    drawn, told = in_torch.merged(draws, bounds, seeds), draws.tensors()
    token, valid = drawn.token.squeeze(-1), drawn.valid.squeeze(-1)
    if width is None or drawn.sums is None or told.best_x is None or told.best_ids is None:
        return SamplerOutput(token, valid)
    ranks = None
    if need.logprob_ranks and drawn.x is not None:
        ranks = local.count(drawn.x)
        talk.all_sum(ranks)
    threshold = torch.full_like(drawn.max, -float("inf")) if bounds is None else bounds.threshold
    row, asked = RowMasses(drawn.max, threshold, *drawn.sums), metadata.per_row("logprobs")
    best = told.best_x, told.best_ids
    shown = logprobs(drawn, row, best, width, asked, params, need.logprobs_mode, ranks)
    return SamplerOutput(token, valid, shown, log_kept_mass(row, params))


def _at_once() -> None:
    """Wait for nothing."""

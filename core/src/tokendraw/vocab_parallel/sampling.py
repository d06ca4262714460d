"""One token a row from logits that lie on several ranks: the order in which they compute and talk.

=============================  =======================================================================
rows of the batch              collectives, with the bytes of a row and rank
=============================  =======================================================================
greedy alone                   a gather of 12
without filters                a gather of 40; for rows without a seed a broadcast of 8 beside the first pass
min-p, top-k up to K = 1,024   a gather of 4 K + 4, where a seed takes 8 more; then the 40
top-p alone                    a gather of 2,056, three sums of 2,048, the 40. For bfloat16 one sum, for
                               float16 two. On a CPU the first has 1,020 more, and mostly no sum follows
top-p of what min-p keeps      likewise, but a sum more in place of 2,048 bytes of the first gather
top-k above K or unknown       a gather of 8, four sums of 2,048, the 40; top-p of what it keeps as many again
logprobs, N best               36 + 8 N more in the last gather, and a sum of 8 for ranks
=============================  =======================================================================

On a CPU the host looks whether a nucleus lies among the largest values. Elsewhere nothing depends on what the host does
not know, so that nothing waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw import philox
from tokendraw._exchange.capabilities import Need
from tokendraw._exchange.logprobs import RowMasses
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._exchange.output import SamplerOutput
from tokendraw.vocab_parallel.local import Bounds, LocalLogits, Seeds
from tokendraw.vocab_parallel.logprobs import log_kept_mass, logprobs
from tokendraw.vocab_parallel.merging import greedy_token, merged
from tokendraw.vocab_parallel.messages import gathered
from tokendraw.vocab_parallel.parameters import RowParameters
from tokendraw.vocab_parallel.shard import VocabShard
from tokendraw.vocab_parallel.thresholds import thresholds
from tokendraw.vocab_parallel.transport import Wait


class _Argmax(NamedTuple):
    max: Tensor
    has_nan: Tensor
    ids: Tensor


def sample_shard(
    local: LocalLogits,
    params: RowParameters,
    metadata: SamplingMetadata,
    shard: VocabShard,
    need: Need,
) -> SamplerOutput:
    """Draw one token a row, the same on every rank.

    :param local: this rank's columns.
    :param params: the parameters of their rows.
    :param shard: one on which the ranks agreed: what a sampler's ``sample`` is given.
    """
    talk, layout = shard.agreement
    if metadata.facts.all_greedy and metadata.facts.max_logprobs is None:
        found = gathered(talk, _Argmax(*local.argmax()))
        token, top = greedy_token(found.max, found.ids)
        valid = (found.has_nan.amax(0) == 0) & (top > -float("inf"))
        return SamplerOutput(token.where(top > -float("inf"), 0).squeeze(-1), valid.squeeze(-1))
    rows, device = len(params.temperature), params.temperature.device
    # Every rank draws them, so that generators that were seeded alike stay alike; those of rank 0 count.
    fresh = None if philox.has_every_seed(metadata) else philox.fresh_seeds(rows, device).unsqueeze(-1)
    is_drawn = not metadata.facts.all_greedy
    bounds: Bounds | None = None
    wait: Wait = _at_once
    if params.top_k is not None or params.top_p is not None or params.min_p is not None:
        of_survivors = metadata.facts.any_top_k_first
        bounds, fresh = thresholds(local, talk, layout, params, fresh, of_survivors=of_survivors)
    elif fresh is not None and is_drawn:
        wait = talk.broadcast_from_first(fresh)

    def seeds() -> Seeds:
        wait()
        found = philox.seeds_and_positions(
            metadata, rows, device, None if fresh is None else fresh.squeeze(-1)
        )
        return Seeds(*(column.unsqueeze(-1) for column in found))

    width = metadata.facts.logprobs_width(layout.vocab_size)
    columns = None if width is None else min(width, layout.most_columns)
    draws = gathered(talk, local.draw(bounds, seeds if is_drawn else None, best=columns))
    drawn = merged(draws, bounds, layout, params, seeds() if is_drawn else None, need.gumbel_dtype)
    token, valid = drawn.token.squeeze(-1), drawn.valid.squeeze(-1)
    if width is None or drawn.sums is None or draws.best_x is None or draws.best_ids is None:
        return SamplerOutput(token, valid)
    ranks = None
    if need.logprob_ranks and drawn.x is not None:
        ranks = local.count(drawn.x)
        talk.all_sum(ranks)
    threshold = torch.full_like(drawn.max, -float("inf")) if bounds is None else bounds.threshold
    row, asked = RowMasses(drawn.max, threshold, *drawn.sums), metadata.per_row("logprobs")
    best = draws.best_x, draws.best_ids
    shown = logprobs(drawn, row, best, width, asked, params, need.logprobs_mode, ranks)
    return SamplerOutput(token, valid, shown, log_kept_mass(row, params))


def _at_once() -> None:
    """Wait for nothing."""

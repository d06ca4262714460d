"""Metadata from every constructor, and draws of ranks with it."""

from itertools import pairwise

import torch

import tokendraw
from shard_cases import cuts, logits_of, params_of
from tokendraw import BatchFacts, RequestSlots, SamplingMetadata, SamplingParams, VocabShard

V, ROWS = 2600, 40


def from_params():
    """Return metadata of a request for each row."""
    return SamplingMetadata.from_params(params_of(ROWS, V, "mixed", 3), positions=range(ROWS))


def by_slot():
    """Several rows a request."""
    params = params_of(9, V, "mixed", 4)
    return SamplingMetadata.from_params(
        params, positions=range(ROWS), row_index=[(7 * row) % 9 for row in range(ROWS)]
    )


def moved():
    """Take the same requests one step on."""
    return from_params().with_positions([row + 1 for row in range(ROWS)])


def ready_tensors():
    """Tensors of which the host knows nothing, with values out of range."""
    rng = torch.Generator().manual_seed(1)

    def some(values, dtype):
        return torch.tensor(values, dtype=dtype)[torch.randint(len(values), (ROWS,), generator=rng)]

    return SamplingMetadata(
        temperature=some([0.0, 0.7, 1.0, -1.0, float("nan")], torch.float32),
        top_k=some([0, -3, 1, 50, 1200, V, 10**6], torch.int32),
        top_p=some([0.9, 1.0, 0.0, -1.0, float("nan"), 2.0], torch.float32),
        min_p=some([0.0, 0.1, -1.0, float("nan")], torch.float32),
        joint=some([True, False], torch.bool),
        seed=torch.arange(ROWS),
        seeded=some([True, False], torch.bool),
        positions=torch.arange(ROWS, dtype=torch.int32),
    )


def ready_top_k():
    """Tensors of a top-k whose largest the host knows."""
    k = torch.arange(ROWS, dtype=torch.int64) + 1
    facts = BatchFacts(max_top_k=ROWS, all_top_k=True)
    return SamplingMetadata(
        top_k=k,
        top_p=torch.full((ROWS,), 0.8),
        seed=k,
        positions=torch.zeros(ROWS, dtype=torch.int64),
        facts=facts,
    )


def no_tensors():
    """What fits any batch: every row unseeded, at temperature 1."""
    return SamplingMetadata()


def request_slots():
    """The metadata of an engine's slots."""
    slots = RequestSlots(8, 64, V)
    for slot, params in enumerate(params_of(8, V, "mixed", 6)):
        slots.add(slot, params, [1, 2, 3][: slot % 4])
    return slots.metadata([(5 * row) % 8 for row in range(ROWS)], positions=range(ROWS))


MADE = {
    made.__name__: made
    for made in (from_params, by_slot, moved, ready_tensors, ready_top_k, no_tensors, request_slots)
}


def drawn(rank, size, name):
    """The tokens of one device, and of this rank."""
    sampler = tokendraw.load_sampler("native", device="cpu")
    logits = logits_of(ROWS, V, 2, torch.float32)
    lo, hi = list(pairwise(cuts(size, V, 1)))[rank]
    metadata = MADE[name]()
    torch.manual_seed(3)
    alone = sampler.sample(logits, metadata)
    torch.manual_seed(3)
    out = sampler.sample(logits[:, lo:hi], metadata, shard=VocabShard(lo, V))
    return alone.token_ids.tolist(), out.token_ids.tolist()


def unseeded(rank, size, params, calls, logits):
    """The tokens of many calls without seeds, all ranks' generators seeded differently."""
    sampler = tokendraw.load_sampler("native", device="cpu")
    lo, hi = list(pairwise(cuts(size, len(logits), 1)))[rank]
    shard = VocabShard(lo, len(logits))
    batch = torch.tensor(logits).expand(calls, -1)
    metadata = SamplingMetadata.from_params([SamplingParams(**params)] * calls)
    torch.manual_seed(rank)
    return sampler.sample(batch[:, lo:hi], metadata, shard=shard).token_ids.tolist()

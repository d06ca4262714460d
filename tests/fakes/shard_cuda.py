"""Runs on ranks that have a GPU each, in a world of NCCL: see :mod:`gloo_world`."""

import gc
from dataclasses import replace
from itertools import pairwise

import torch

import shard_cases
import tokendraw
from shard_cases import cuts, logits_of, params_of
from tokendraw import Need, SamplingMetadata, SamplingParams, VocabShard
from tokendraw_testing.kit.device import capture, require_no_wait
from tokendraw_testing.kit.trial import Trial

V, ROWS = 20_011, 96
TOLERANCE = 2e-5
"""Of log-probabilities, whose sums are float32 where a kernel makes them."""


def load(name, device):
    need = Need(vocab_parallel=True, logprobs_mode="processed_logprobs")
    return tokendraw.load_sampler(name, device=device, need=need, logprobs_mode="processed_logprobs")


def tokens(rank, size, name, batches, rows):
    """Run :func:`shard_cases.tokens` on a GPU."""
    return shard_cases.tokens(rank, size, batches, rows, name=name, device=f"cuda:{rank}")


def logprobs(rank, size, name, mode, batches, rows):
    """Run :func:`shard_cases.logprobs` on a GPU."""
    return shard_cases.logprobs(
        rank, size, mode, batches, rows, name=name, device=f"cuda:{rank}", tolerance=TOLERANCE
    )


def batch(rank, size, family, dtype, width=None):
    """Make the ids of a rank, whole logits, its own in memory that stays, and metadata with a seed in every row."""
    device = f"cuda:{rank}"
    lo, hi = list(pairwise(cuts(size, V, 1)))[rank]
    params = [
        replace(each, seed=row, logprobs=width) for row, each in enumerate(params_of(ROWS, V, family, 1))
    ]
    metadata = SamplingMetadata.from_params(params, device=device, positions=range(ROWS))
    logits = logits_of(ROWS, V, 1, getattr(torch, dtype)).to(device)
    return VocabShard(lo, V), logits, logits[:, lo:hi].contiguous(), metadata


def replayed(rank, size, name, family, dtype, width=None):
    """Count the rows of three replays of a captured call that differ from a single device."""
    sampler, differ = load(name, f"cuda:{rank}"), []
    shard, logits, own, metadata = batch(rank, size, family, dtype, width)
    sampler.sample(own, metadata, shard=shard)
    replay, out = capture(lambda: sampler.sample(own, metadata, shard=shard))
    for step in range(3):
        logits.copy_(logits_of(ROWS, V, 10 + step, logits.dtype))
        own.copy_(logits[:, shard.start :][:, : own.shape[1]])
        metadata.positions.add_(step)
        metadata.seed.mul_(3)
        metadata.temperature.mul_(1.1)
        replay()
        alone = sampler.sample(logits, metadata)
        same = out.token_ids == alone.token_ids
        assert torch.equal(out.valid, alone.valid)
        differ.append(int((~same).sum()))
        if width is not None:
            result, expected = out.logprobs.logprobs[same], alone.logprobs.logprobs[same]
            torch.testing.assert_close(result, expected, rtol=TOLERANCE, atol=TOLERANCE)
    del replay, out
    gc.collect()
    return differ


def drawn_anew(rank, size, name):
    """Replay a captured call of flat rows without seeds."""
    device = f"cuda:{rank}"
    sampler, (lo, hi) = load(name, device), list(pairwise(cuts(size, V, 1)))[rank]
    shard, own = VocabShard(lo, V), torch.zeros(ROWS, hi - lo, device=device)
    metadata = SamplingMetadata.from_params([SamplingParams()] * ROWS, device=device)
    torch.manual_seed(rank)
    sampler.sample(own, metadata, shard=shard)
    replay, out = capture(lambda: sampler.sample(own, metadata, shard=shard))
    result = []
    for _ in range(3):
        replay()
        result.append(out.token_ids.tolist())
    del replay, out
    gc.collect()
    return result


def waits(rank, size, name, family, dtype, width):
    """Require that a call never waits, by torch's check and by a stopwatch."""
    sampler = load(name, f"cuda:{rank}")
    shard, _, own, metadata = batch(rank, size, family, dtype, width)
    require_no_wait(Trial("sample", 0), family, lambda: sampler.sample(own, metadata, shard=shard))

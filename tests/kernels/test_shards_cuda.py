"""Draws over ranks by triton-gumbel on one CUDA device, with threads as ranks: compared with draws without ranks."""

from dataclasses import replace
from itertools import cycle, pairwise, product

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import shard_surveys
import tokendraw
from shard_cases import DTYPES, FAMILIES, MODES, EchoingRank, cuts, logits_of, params_of
from tokendraw import Need, SamplingMetadata, SamplingParams, VocabShard
from tokendraw_testing.kit.device import capture, require_no_wait
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.shards.thread_ranks import on_ranks

pytestmark = pytest.mark.gpu

ROWS = 160
BATCHES = [
    (family, dtype, size)
    for (family, size), dtype in zip(product(FAMILIES, (1, 7, 1024, 20_011)), cycle(DTYPES), strict=False)
]
"""5,120 rows."""
CLOSE = 2e-5
"""Of log-probabilities, whose sums are float32."""
WIDE = {
    "plain": SamplingParams(temperature=0.8),
    "top-k, top-p": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    "top-p": SamplingParams(temperature=0.8, top_p=0.9),
}


def load(mode="raw_logprobs", **need):
    wanted = Need(vocab_parallel=True, logprobs_mode=mode, **need)
    return tokendraw.load_sampler("triton-gumbel", device="cuda", need=wanted, logprobs_mode=mode)


def on_one_and_on(size, sampler, logits, metadata, seed):
    """Draw on a single device, and on ``size`` ranks; return the output of the device, and of each rank."""
    bounds = list(pairwise(cuts(size, logits.shape[1], seed)))
    torch.manual_seed(seed)
    alone = sampler.sample(logits, metadata)

    def work(rank):
        lo, hi = bounds[rank.rank]
        shard, own = VocabShard(lo, logits.shape[1], rank), logits[:, lo:hi]
        sampler.sample(own, metadata, shard=shard)  # agrees, whereby other ranks get their turn
        rank.gather_objects(None)
        torch.manual_seed(seed + rank.rank)  # rank 0 decides
        return sampler.sample(own, metadata, shard=shard)

    return alone, on_ranks(size, work, seconds=300)


def same_tokens(alone, result):
    """Return a mask of the rows whose token equals the single device's; ranks agree on all tokens and flags."""
    for out in result:
        assert torch.equal(out.valid, alone.valid)
        assert torch.equal(out.token_ids, result[0].token_ids)
    return result[0].token_ids == alone.token_ids


@pytest.mark.parametrize("gumbel_dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_rows_of_every_kind_get_the_tokens_of_one_device_on_every_rank(size, gumbel_dtype):
    sampler, differ = load(gumbel_dtype=gumbel_dtype), []
    for seed, (family, dtype, vocab_size) in enumerate(BATCHES):
        logits = logits_of(ROWS, vocab_size, seed, getattr(torch, dtype)).cuda()
        params = params_of(ROWS, vocab_size, family, seed)
        metadata = SamplingMetadata.from_params(params, device="cuda", positions=range(ROWS))
        same = same_tokens(*on_one_and_on(size, sampler, logits, metadata, seed))
        differ += [
            (family, dtype, vocab_size, row, params[row]) for row in (~same).nonzero().flatten().tolist()
        ]
    print(f"{size} ranks: {ROWS * len(BATCHES)} rows, {len(differ)} differ")
    assert len(differ) <= 1, differ[:5]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", WIDE)
def test_wide_batches_get_the_tokens_of_one_device(kind, dtype):
    rows, vocab_size, differ = 256, 151_936, 0
    sampler, rng = load(), torch.Generator("cuda").manual_seed(5)
    for scale in (1.0, 3.0, 12.0):
        logits = (scale * torch.randn(rows, vocab_size, generator=rng, device="cuda")).to(
            getattr(torch, dtype)
        )
        params = [replace(WIDE[kind], seed=row) for row in range(rows)]
        metadata = SamplingMetadata.from_params(params, device="cuda", positions=range(rows))
        for size in (2, 8):
            differ += int((~same_tokens(*on_one_and_on(size, sampler, logits, metadata, size))).sum())
    print(f"{kind} {dtype}: {6 * rows} rows, {differ} differ")
    assert differ <= 1


@pytest.mark.parametrize("mode", MODES)
def test_logprobs_ranks_and_the_kept_mass_equal_a_single_device(mode):
    sampler, differ = load(mode), 0
    for seed, (family, size) in enumerate(product(FAMILIES, (7, 2100))):
        widths = (-1, 2) if size < 10 else (None, 0, 3, 20)
        params = params_of(24, size, family, seed)
        params = [replace(each, logprobs=widths[i % len(widths)]) for i, each in enumerate(params)]
        metadata = SamplingMetadata.from_params(params, device="cuda", positions=range(24))
        logits = logits_of(24, size, seed, torch.float32).cuda()
        alone, result = on_one_and_on(3, sampler, logits, metadata, seed)
        same = same_tokens(alone, result)
        differ += int((~same).sum())
        own, other = result[1].logprobs, alone.logprobs
        assert torch.equal(own.token_ids[same], other.token_ids[same]), (family, size)
        assert torch.equal(own.ranks[same], other.ranks[same])
        torch.testing.assert_close(own.logprobs[same], other.logprobs[same], rtol=CLOSE, atol=CLOSE)
        torch.testing.assert_close(result[1].log_kept_mass, alone.log_kept_mass, rtol=CLOSE, atol=CLOSE)
    assert differ <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_values_ties_masses_and_histograms_are_those_of_native(dtype):
    result = shard_surveys.compared(getattr(torch, dtype), torch.device("cuda", torch.cuda.current_device()))
    assert result == {"judged": 410, "wrong": []}


def alone_on_a_rank(family, dtype):
    """Return the logits, metadata and shard of a capturable group with a single rank."""
    vocab_size = 20_011
    params = [replace(each, seed=row) for row, each in enumerate(params_of(ROWS, vocab_size, family, 1))]
    metadata = SamplingMetadata.from_params(params, device="cuda", positions=range(ROWS))
    logits = logits_of(ROWS, vocab_size, 1, getattr(torch, dtype)).cuda()
    return logits, metadata, VocabShard(0, vocab_size, EchoingRank(0, 1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", ["plain", "top-k, top-p", "top-p", "mixed"])
def test_a_captured_call_follows_changed_inputs_between_replays(family, dtype):
    sampler, (logits, metadata, shard) = load(), alone_on_a_rank(family, dtype)
    sampler.sample(logits, metadata, shard=shard)
    replay, out = capture(lambda: sampler.sample(logits, metadata, shard=shard))
    for step in range(3):
        logits.copy_(logits_of(*logits.shape, 10 + step, logits.dtype))
        metadata.positions.add_(step)
        metadata.temperature.mul_(1.1)
        replay()
        alone = sampler.sample(logits, metadata)
        assert torch.equal(out.valid, alone.valid)
        assert int((out.token_ids != alone.token_ids).sum()) <= 1


@pytest.mark.parametrize("family", ["plain", "top-k, top-p", "top-p", "mixed"])
def test_no_call_waits_for_the_device(family):
    sampler, (logits, metadata, shard) = load(), alone_on_a_rank(family, "bfloat16")
    require_no_wait(Trial("sample", 0), family, lambda: sampler.sample(logits, metadata, shard=shard))

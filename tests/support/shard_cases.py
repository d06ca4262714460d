"""Batches whose columns lie on several ranks, and what each rank of a :mod:`gloo_world` does with its own."""

import random
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch

import tokendraw
from tokendraw import SamplingMetadata, SamplingParams, VocabShard
from tokendraw.vocab_parallel import thresholds

MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits", "temperature_logprobs")
NAN, INF = float("nan"), float("inf")
DTYPES = ("float32", "bfloat16", "float16")
FAMILIES = ("mixed", "plain", "greedy", "top-k, top-p", "top-p", "min-p", "large k", "joint")


def cuts(size, vocab_size, seed):
    """Borders of ``size`` shards of a vocabulary: odd ones, some in one tile, some without any id."""
    rng = random.Random(f"{size} {vocab_size} {seed}")
    inner = [rng.randint(0, vocab_size) for _ in range(size - 1)]
    if size > 2 and seed % 2:
        inner[0] = inner[1]  # nobody home
    if size > 3 and seed % 3 == 0:
        inner[2] = min(vocab_size, inner[1] + 5)
    return [0, *sorted(inner), vocab_size]


def logits_of(rows, vocab_size, seed, dtype):
    """Gaussian rows of several widths; some with ties, NaN and infinities."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, vocab_size, generator=rng)
    x *= torch.tensor([1.0, 3.0, 8.0])[torch.arange(rows) % 3].unsqueeze(-1)
    tied = torch.arange(rows) % 5 == 4
    x[tied] = x[tied].round()
    x[0] = x[0].masked_fill(torch.rand(vocab_size, generator=rng) < 0.01, NAN)
    x[1], x[2], x[3] = -INF, 0.5, NAN
    x[4] = x[4].masked_fill(torch.rand(vocab_size, generator=rng) < 0.01, INF)
    x[5, vocab_size // 2 :] = -INF
    return x.to(dtype)


def params_of(rows, vocab_size, family, seed):
    """One request a row."""
    rng = random.Random(seed)
    return [_request(rng, row, vocab_size, family) for row in range(rows)]


def _request(rng, row, vocab_size, family):
    plain = SamplingParams(
        temperature=rng.choice([0.5, 1.0, 1.7]), seed=rng.randrange(2**63) if row % 3 else None
    )
    if family == "greedy":
        return replace(plain, temperature=0.0)
    if family == "top-k, top-p":
        return replace(plain, top_k=rng.choice([1, 20, 50]), top_p=rng.choice([0.5, 0.9, 1.0]))
    if family == "top-p":
        return replace(plain, top_p=rng.choice([0.3, 0.9, 0.99]))
    if family == "min-p":
        return replace(plain, min_p=rng.choice([0.5, 0.01]))
    if family == "large k":
        return replace(plain, top_k=rng.choice([1, 40, 1500]), top_p=rng.choice([0.7, 1.0]))
    if family == "joint":
        return replace(plain, top_k=50, top_p=rng.choice([0.5, 0.9]), filter_order="joint")
    if family == "mixed":
        return replace(
            plain,
            temperature=rng.choice([0.0, 0.5, 1.0, 2.0]),
            top_k=rng.choice([0, 0, 1, 5, 50, 300, vocab_size]),
            top_p=rng.choice([1.0, 1.0, 0.1, 0.9, 0.99]),
            min_p=rng.choice([0.0, 0.0, 0.05, 0.5]),
            filter_order=rng.choice(["top_k_first", "joint"]),
        )
    return plain


def both(rank, size, sampler, logits, metadata, seed, group=None):
    """The outputs of one device, on rank 0 alone, and of this rank for its columns."""
    lo, hi = list(pairwise(cuts(size, logits.shape[1], seed)))[rank]
    torch.manual_seed(seed)
    alone = sampler.sample(logits, metadata) if rank == 0 else None
    torch.manual_seed(seed if rank == 0 else seed + 1000 + rank)  # rank 0 decides
    own = logits[:, lo:hi].contiguous() if seed % 2 else logits[:, lo:hi]
    return alone, sampler.sample(own, metadata, shard=VocabShard(lo, logits.shape[1], group))


def tokens(rank, size, batches, rows, gumbel_dtype="fp32", *, name="native", device="cpu"):
    """The tokens that this rank got, and on rank 0 the rows in which they differ from one device's.

    ``batches`` are triples of a family, a dtype and a vocabulary.
    """
    need = tokendraw.Need(gumbel_dtype=gumbel_dtype, vocab_parallel=True)
    sampler = tokendraw.load_sampler(name, device=device, need=need)
    drawn, differ = [], []
    for seed, (family, dtype, vocab_size) in enumerate(batches):
        logits = logits_of(rows, vocab_size, seed, getattr(torch, dtype)).to(device)
        params = params_of(rows, vocab_size, family, seed)
        metadata = SamplingMetadata.from_params(params, device=device, positions=range(rows))
        alone, out = both(rank, size, sampler, logits, metadata, seed)
        drawn += out.token_ids.tolist()
        if alone is not None:
            assert torch.equal(out.valid, alone.valid), (family, dtype, vocab_size)
            wrong = (out.token_ids != alone.token_ids).nonzero().flatten().tolist()
            differ += [(family, dtype, vocab_size, row, params[row]) for row in wrong]
    return drawn, differ


def logprobs(rank, size, mode, batches, rows, ranks=True, *, name="native", device="cpu", tolerance=2e-6):
    """Hold all that comes with logprobs against one device's: how many rows have its token, and how many there are."""
    need = tokendraw.Need(logprobs_mode=mode, logprob_ranks=ranks)
    sampler = tokendraw.load_sampler(name, device=device, need=need, logprobs_mode=mode)
    equal = 0
    for seed, (family, dtype, vocab_size) in enumerate(batches):
        widths = (-1, 2) if vocab_size < 10 else (None, 0, 3, 20)
        params = params_of(rows, vocab_size, family, seed)
        params = [replace(p, logprobs=widths[i % len(widths)]) for i, p in enumerate(params)]
        metadata = SamplingMetadata.from_params(params, device=device, positions=range(rows))
        logits = logits_of(rows, vocab_size, seed, getattr(torch, dtype)).to(device)
        alone, out = both(rank, size, sampler, logits, metadata, seed)
        if alone is None:
            continue
        same = out.token_ids == alone.token_ids
        equal += int(same.sum())
        found, expected = out.logprobs, alone.logprobs
        assert torch.equal(found.token_ids[same], expected.token_ids[same]), (family, dtype, vocab_size)
        assert (found.ranks is None) == (not ranks)
        assert not ranks or torch.equal(found.ranks[same], expected.ranks[same])
        close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
        close(found.logprobs[same], expected.logprobs[same])
        close(out.log_kept_mass, alone.log_kept_mass)
    return equal, rows * len(batches)


def tokens_as_on_a_gpu(rank, size, batches, rows):
    """Return what :func:`tokens` does, where the host looks at no value."""
    looking, thresholds.may_read_values = thresholds.may_read_values, lambda device: False
    try:
        return tokens(rank, size, batches, rows)
    finally:
        thresholds.may_read_values = looking

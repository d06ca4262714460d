"""Batches with columns on several ranks, and the calls of each rank of a :mod:`gloo_world`."""

import random
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch

import tokendraw
from calling import provider_of
from fake_candidates import EVERYTHING
from tokendraw import SamplingMetadata, SamplingParams, VocabShard
from tokendraw.vocab_parallel import Layout, Span, thresholds
from tokendraw.vocab_parallel.shard import Agreement
from tokendraw.vocab_parallel.transport import TorchDistributed

MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits", "temperature_logprobs")
NAN, INF = float("nan"), float("inf")
DTYPES = ("float32", "bfloat16", "float16")
FAMILIES = ("mixed", "plain", "greedy", "top-k, top-p", "top-p", "min-p", "large k", "joint")


def cuts(size, vocab_size, seed):
    """Return borders of ``size`` shards: odd, within a tile, or empty."""
    rng = random.Random(f"{size} {vocab_size} {seed}")
    inner = [rng.randint(0, vocab_size) for _ in range(size - 1)]
    if size > 2 and seed % 2:
        inner[0] = inner[1]  # nobody home
    if size > 3 and seed % 3 == 0:
        inner[2] = min(vocab_size, inner[1] + 5)
    return [0, *sorted(inner), vocab_size]


def logits_of(rows, vocab_size, seed, dtype):
    """Return Gaussian rows of several widths, with ties, NaN and infinities."""
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
    """Return a request for each row."""
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
    """Return the output of a single device, on rank 0 alone, and of this rank."""
    lo, hi = list(pairwise(cuts(size, logits.shape[1], seed)))[rank]
    torch.manual_seed(seed)
    alone = sampler.sample(logits, metadata) if rank == 0 else None
    torch.manual_seed(seed if rank == 0 else seed + 1000 + rank)  # rank 0 decides
    own = logits[:, lo:hi].contiguous() if seed % 2 else logits[:, lo:hi]
    return alone, sampler.sample(own, metadata, shard=VocabShard(lo, logits.shape[1], group))


def tokens(rank, size, batches, rows, gumbel_dtype="fp32", *, name="native", device="cpu"):
    """Return the tokens of this rank, and on rank 0 the rows that differ from a single device.

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
    """Compare logprobs with a single device; return the number of equal tokens and of rows."""
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
    """Run :func:`tokens` while the host may read no value."""
    looking, thresholds.may_read_values = thresholds.may_read_values, lambda device: False
    try:
        return tokens(rank, size, batches, rows)
    finally:
        thresholds.may_read_values = looking


# Ranks that disagree, and the traffic between ranks.


VOCAB_SIZE = 3000


class Counting:
    """The default group, with a note of each collective and of the sent bytes."""

    def __init__(self):
        self.talk = TorchDistributed(None)
        self.rank, self.size = self.talk.rank, self.talk.size
        self.notes = []
        self.sums = []

    def all_gather(self, tensor):
        self.notes.append(("gather", tensor.nbytes))
        return self.talk.all_gather(tensor)

    def all_sum(self, tensor):
        self.notes.append(("sum", tensor.nbytes))
        self.talk.all_sum(tensor)
        self.sums.append(int(tensor.sum()))

    def broadcast_from_first(self, tensor):
        self.notes.append(("broadcast", tensor.nbytes))
        return self.talk.broadcast_from_first(tensor)

    def gather_objects(self, value):
        self.notes.append(("objects", 0))
        return self.talk.gather_objects(value)


def said(rank, size, params, dtype, scale, rows, need):
    """Return the collectives of a call with bytes a row."""
    sampler = tokendraw.load_sampler("native", device="cpu", need=need, logprobs_mode=need.logprobs_mode)
    lo, hi = list(pairwise(cuts(size, VOCAB_SIZE, 0)))[rank]
    metadata = SamplingMetadata.from_params([params] * rows, positions=range(rows))
    logits = scale * torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    group = Counting()
    shard = VocabShard(lo, VOCAB_SIZE, group)
    for _ in range(2):
        sampler.sample(logits[:, lo:hi].to(getattr(torch, dtype)), metadata, shard=shard)
    assert group.notes[0] == ("objects", 0)
    half = len(group.notes) // 2
    assert group.notes[1 : half + 1] == group.notes[half + 1 :]  # ranks agree once
    return [(name, given / rows) for name, given in group.notes[half + 1 :]]


def said_as_on_a_gpu(*arguments):
    """Run :func:`said` while the host may read no value."""
    looking, thresholds.may_read_values = thresholds.may_read_values, lambda device: False
    try:
        return said(*arguments)
    finally:
        thresholds.may_read_values = looking


def weighed_as_on_a_gpu(rank, size, params, scale, rows):
    """Return the weights in each round of a search while the host may read no value."""
    looking, thresholds.may_read_values = thresholds.may_read_values, lambda device: False
    try:
        lo, hi = list(pairwise(cuts(size, VOCAB_SIZE, 0)))[rank]
        logits, group = (
            scale * torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)),
            Counting(),
        )
        metadata = SamplingMetadata.from_params([params] * rows, positions=range(rows))
        sampler = tokendraw.load_sampler("native", device="cpu")
        sampler.sample(logits[:, lo:hi], metadata, shard=VocabShard(lo, VOCAB_SIZE, group))
        return group.sums
    finally:
        thresholds.may_read_values = looking


def refused(rank, size, wrong, odd):
    """Return the errors of two calls with a shard, while rank ``odd`` disagrees."""
    sampler = tokendraw.load_sampler("native", device="cpu")
    borders = [0, 1000, 1000, VOCAB_SIZE] if size == 3 else [0, VOCAB_SIZE]
    lo, hi = list(pairwise(borders))[rank]
    rows, total, params, device, dtype = 2, VOCAB_SIZE, SamplingParams(seed=1), "cpu", torch.float32
    if wrong == "holds padding everywhere":
        hi = hi + 8 if rank == size - 1 else hi
    elif rank == odd:
        if wrong == "starts later":
            lo, hi = lo + 1, hi + 1
        elif wrong == "starts earlier":
            lo, hi = lo - 1, hi - 1
        elif wrong == "another V":
            total -= 1
        elif wrong == "holds padding":
            hi += 8
        elif wrong == "other rows":
            rows = 3
        elif wrong == "other temperatures":
            params = SamplingParams(seed=1, temperature=0.5)
        elif wrong == "other seeds":
            params = SamplingParams(seed=2)
        elif wrong == "another filter":
            params = SamplingParams(seed=1, top_k=5)
        elif wrong == "another dtype":
            dtype = torch.bfloat16
        elif wrong == "integers":
            dtype = torch.int32
        elif wrong == "another device":
            device = "meta"
    metadata = SamplingMetadata.from_params([params] * rows, positions=range(rows))
    logits = torch.zeros(rows, hi - lo, dtype=dtype, device=device)
    if wrong == "a sampler without shards" and rank == odd:
        sampler = provider_of("sample", None, replace(EVERYTHING, vocab_parallel=False))
    shard, errors = VocabShard(lo, total), []
    for _ in range(2):
        try:
            sampler.sample(logits, metadata, shard=shard)
            errors.append(None)
        except (ValueError, tokendraw.SamplerUnavailableError) as error:
            errors.append((type(error).__name__, str(error)))
    return errors


def after_an_agreement(rank, size):
    """Change rows and dtype in later calls with a shard, then the number of columns."""
    sampler = tokendraw.load_sampler("native", device="cpu")
    lo, hi = list(pairwise(cuts(size, VOCAB_SIZE, 1)))[rank]
    shard, found = VocabShard(lo, VOCAB_SIZE), []
    for rows, dtype in ((4, "float32"), (0, "float32"), (7, "bfloat16"), (1, "float16")):
        metadata = SamplingMetadata.from_params(
            [SamplingParams(seed=3, top_p=0.9, logprobs=2)] * rows, positions=range(rows)
        )
        logits = logits_of(8, VOCAB_SIZE, 5, getattr(torch, dtype))[:rows]
        out = sampler.sample(logits[:, lo:hi], metadata, shard=shard)
        assert torch.equal(out.token_ids, sampler.sample(logits, metadata).token_ids)
        found.append(tuple(out.logprobs.token_ids.shape) if rows else out.logprobs)
    try:
        sampler.sample(
            torch.zeros(1, hi - lo + 1), SamplingMetadata.from_params([SamplingParams()]), shard=shard
        )
    except ValueError as error:
        return found, str(error)
    return found, ""


def in_a_group_of_two(rank, size):
    """Compare the tokens of a group of ranks 1 and 2 with a single device; return the error of rank 0."""
    import torch.distributed as dist

    group = dist.new_group([1, 2])
    sampler = tokendraw.load_sampler("native", device="cpu")
    logits = logits_of(8, VOCAB_SIZE, 5, torch.float32)
    metadata = SamplingMetadata.from_params([SamplingParams(top_p=0.9)] * 8)
    lo, hi = ((0, 0), (0, 1700), (1700, VOCAB_SIZE))[rank]
    torch.manual_seed(4)
    alone = sampler.sample(logits, metadata).token_ids.tolist()
    torch.manual_seed(4 if rank == 1 else 5)  # the group's first rank decides
    try:
        out = sampler.sample(logits[:, lo:hi], metadata, shard=VocabShard(lo, VOCAB_SIZE, group))
    except ValueError as error:
        return str(error)
    return out.token_ids.tolist() == alone


# A rank whose group echoes its messages, for tests of launches.


@dataclass
class EchoingRank:
    rank: int
    size: int

    def all_gather(self, tensor):
        return torch.stack([tensor] * self.size)

    def all_sum(self, tensor):
        tensor *= self.size

    def broadcast_from_first(self, tensor):
        return lambda: None

    def gather_objects(self, value):
        return [value] * self.size


def agreed_shard(bounds, rank):
    """Return an agreed shard of the rank's ids.

    :param bounds: [R + 1]: the first ids of the ranks, and the end of the last.
    """
    spans = [Span(*ids) for ids in pairwise(bounds)]
    talk = EchoingRank(rank, len(spans))
    shard = VocabShard(bounds[rank], bounds[-1], talk)
    shard.agreed.by_all = Agreement(talk, Layout.of(spans, rank, bounds[-1], torch.device("cpu")))
    return shard

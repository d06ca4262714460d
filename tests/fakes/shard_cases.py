"""Batches with columns on several ranks, and the calls of each rank of a :mod:`gloo_world`."""

import random
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from unittest import mock

import torch

import tokendraw
from calling import provider_of
from fake_candidates import EVERYTHING
from tokendraw import BatchFacts, RequestSlots, SamplingMetadata, SamplingParams, VocabShard
from tokendraw.vocab_parallel import Layout, Span, thresholds
from tokendraw.vocab_parallel.messages import _TorchDistributed
from tokendraw.vocab_parallel.shard import Agreement

MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits", "temperature_logprobs")
NAN, INF = float("nan"), float("inf")
DTYPES = ("float32", "bfloat16", "float16")
FAMILIES = ("mixed", "plain", "greedy", "top-k, top-p", "top-p", "min-p", "large k", "joint", "filters")
FILTERS = {"top_n_sigma": 1.3, "epsilon_cutoff": 2e-3, "eta_cutoff": 5e-3, "p_less": 1.0}


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
    if family == "filters":
        names = rng.sample([*FILTERS], rng.choice([0, 1, 1, 2]))
        return replace(
            plain,
            filters={name: FILTERS[name] for name in names},
            top_k=rng.choice([0, 0, 40]),
            top_p=rng.choice([1.0, 0.9]),
            filter_order=rng.choice(["top_k_first", "joint"]),
        )
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
        result, expected = out.logprobs, alone.logprobs
        assert torch.equal(result.token_ids[same], expected.token_ids[same]), (family, dtype, vocab_size)
        assert (result.ranks is None) == (not ranks)
        assert not ranks or torch.equal(result.ranks[same], expected.ranks[same])
        close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
        close(result.logprobs[same], expected.logprobs[same])
        close(out.log_kept_mass, alone.log_kept_mass)
    return equal, rows * len(batches)


def values_hidden_from_the_host():
    """Let the host read no value, as on a GPU."""
    return mock.patch.object(thresholds, "may_read_values", return_value=False)


def tokens_as_on_a_gpu(rank, size, batches, rows):
    """Run :func:`tokens` while the host may read no value."""
    with values_hidden_from_the_host():
        return tokens(rank, size, batches, rows)


# Ranks that disagree, and the traffic between ranks.


VOCAB_SIZE = 3000


class Counting:
    """The default group, with a note of each collective and of the sent bytes."""

    def __init__(self):
        self.talk = _TorchDistributed(None)
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


def noise_logits(scale, rows):
    return scale * torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))


def said(rank, size, params, dtype, scale, rows, need):
    """Return the collectives of a call with bytes a row."""
    sampler = tokendraw.load_sampler("native", device="cpu", need=need, logprobs_mode=need.logprobs_mode)
    lo, hi = list(pairwise(cuts(size, VOCAB_SIZE, 0)))[rank]
    metadata = SamplingMetadata.from_params([params] * rows, positions=range(rows))
    logits = noise_logits(scale, rows)
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
    with values_hidden_from_the_host():
        return said(*arguments)


def weighed_as_on_a_gpu(rank, size, params, scale, rows):
    """Return the weights in each round of a search while the host may read no value."""
    lo, hi = list(pairwise(cuts(size, VOCAB_SIZE, 0)))[rank]
    logits, group = noise_logits(scale, rows), Counting()
    metadata = SamplingMetadata.from_params([params] * rows, positions=range(rows))
    sampler = tokendraw.load_sampler("native", device="cpu")
    with values_hidden_from_the_host():
        sampler.sample(logits[:, lo:hi], metadata, shard=VocabShard(lo, VOCAB_SIZE, group))
    return group.sums


DISAGREEMENTS = {
    "starts later": lambda lo, hi: {"lo": lo + 1, "hi": hi + 1},
    "starts earlier": lambda lo, hi: {"lo": lo - 1, "hi": hi - 1},
    "another V": lambda lo, hi: {"total": VOCAB_SIZE - 1},
    "holds padding": lambda lo, hi: {"hi": hi + 8},
    "other rows": lambda lo, hi: {"rows": 3},
    "other temperatures": lambda lo, hi: {"params": SamplingParams(seed=1, temperature=0.5)},
    "other seeds": lambda lo, hi: {"params": SamplingParams(seed=2)},
    "another filter": lambda lo, hi: {"params": SamplingParams(seed=1, top_k=5)},
    "another dtype": lambda lo, hi: {"dtype": torch.bfloat16},
    "integers": lambda lo, hi: {"dtype": torch.int32},
    "another device": lambda lo, hi: {"device": "meta"},
    "a sampler without shards": lambda lo, hi: {
        "sampler": provider_of("sample", None, replace(EVERYTHING, vocab_parallel=False))
    },
}
"""Changes to the call of a rank, by the ids of the rank."""


def refused(rank, size, wrong, odd):
    """Return the errors of two calls with a shard, while rank ``odd`` disagrees."""
    borders = [0, 1000, 1000, VOCAB_SIZE] if size == 3 else [0, VOCAB_SIZE]
    lo, hi = list(pairwise(borders))[rank]
    call = {"lo": lo, "hi": hi, "total": VOCAB_SIZE, "rows": 2, "params": SamplingParams(seed=1)}
    call |= {"device": "cpu", "dtype": torch.float32}
    if wrong == "holds padding everywhere":
        call["hi"] += 8 * (rank == size - 1)
    elif rank == odd:
        call |= DISAGREEMENTS[wrong](lo, hi)
    sampler = call.get("sampler") or tokendraw.load_sampler("native", device="cpu")
    metadata = SamplingMetadata.from_params([call["params"]] * call["rows"], positions=range(call["rows"]))
    logits = torch.zeros(call["rows"], call["hi"] - call["lo"], dtype=call["dtype"], device=call["device"])
    shard, errors = VocabShard(call["lo"], call["total"]), []
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
    shard, result = VocabShard(lo, VOCAB_SIZE), []
    for rows, dtype in ((4, "float32"), (0, "float32"), (7, "bfloat16"), (1, "float16")):
        metadata = SamplingMetadata.from_params(
            [SamplingParams(seed=3, top_p=0.9, logprobs=2)] * rows, positions=range(rows)
        )
        logits = logits_of(8, VOCAB_SIZE, 5, getattr(torch, dtype))[:rows]
        out = sampler.sample(logits[:, lo:hi], metadata, shard=shard)
        assert torch.equal(out.token_ids, sampler.sample(logits, metadata).token_ids)
        result.append(tuple(out.logprobs.token_ids.shape) if rows else out.logprobs)
    try:
        sampler.sample(
            torch.zeros(1, hi - lo + 1), SamplingMetadata.from_params([SamplingParams()]), shard=shard
        )
    except ValueError as error:
        return result, str(error)
    return result, ""


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


# Metadata from every constructor.


METADATA_VOCAB_SIZE, METADATA_ROWS = 2600, 40


def from_params():
    """Return metadata of a request for each row."""
    return SamplingMetadata.from_params(
        params_of(METADATA_ROWS, METADATA_VOCAB_SIZE, "mixed", 3), positions=range(METADATA_ROWS)
    )


def by_slot():
    """Several rows a request."""
    params = params_of(9, METADATA_VOCAB_SIZE, "mixed", 4)
    return SamplingMetadata.from_params(
        params, positions=range(METADATA_ROWS), row_index=[(7 * row) % 9 for row in range(METADATA_ROWS)]
    )


def moved():
    """Take the same requests one step on."""
    return from_params().with_positions([row + 1 for row in range(METADATA_ROWS)])


def ready_tensors():
    """Tensors of which the host knows nothing, with values out of range."""
    rng = torch.Generator().manual_seed(1)

    def some(values, dtype):
        return torch.tensor(values, dtype=dtype)[torch.randint(len(values), (METADATA_ROWS,), generator=rng)]

    return SamplingMetadata(
        temperature=some([0.0, 0.7, 1.0, -1.0, float("nan")], torch.float32),
        top_k=some([0, -3, 1, 50, 1200, METADATA_VOCAB_SIZE, 10**6], torch.int32),
        top_p=some([0.9, 1.0, 0.0, -1.0, float("nan"), 2.0], torch.float32),
        min_p=some([0.0, 0.1, -1.0, float("nan")], torch.float32),
        joint=some([True, False], torch.bool),
        seed=torch.arange(METADATA_ROWS),
        seeded=some([True, False], torch.bool),
        positions=torch.arange(METADATA_ROWS, dtype=torch.int32),
    )


def ready_top_k():
    """Tensors of a top-k whose largest the host knows."""
    k = torch.arange(METADATA_ROWS, dtype=torch.int64) + 1
    facts = BatchFacts(max_top_k=METADATA_ROWS, all_top_k=True)
    return SamplingMetadata(
        top_k=k,
        top_p=torch.full((METADATA_ROWS,), 0.8),
        seed=k,
        positions=torch.zeros(METADATA_ROWS, dtype=torch.int64),
        facts=facts,
    )


def no_tensors():
    """What fits any batch: every row unseeded, at temperature 1."""
    return SamplingMetadata()


def request_slots():
    """The metadata of an engine's slots."""
    slots = RequestSlots(8, 64, METADATA_VOCAB_SIZE)
    for slot, params in enumerate(params_of(8, METADATA_VOCAB_SIZE, "mixed", 6)):
        slots.add(slot, params, [1, 2, 3][: slot % 4])
    return slots.metadata([(5 * row) % 8 for row in range(METADATA_ROWS)], positions=range(METADATA_ROWS))


MADE = {
    made.__name__: made
    for made in (from_params, by_slot, moved, ready_tensors, ready_top_k, no_tensors, request_slots)
}


def drawn_with_metadata(rank, size, name):
    """The tokens of one device, and of this rank."""
    sampler = tokendraw.load_sampler("native", device="cpu")
    logits = logits_of(METADATA_ROWS, METADATA_VOCAB_SIZE, 2, torch.float32)
    lo, hi = list(pairwise(cuts(size, METADATA_VOCAB_SIZE, 1)))[rank]
    metadata = MADE[name]()
    torch.manual_seed(3)
    alone = sampler.sample(logits, metadata)
    torch.manual_seed(3)
    out = sampler.sample(logits[:, lo:hi], metadata, shard=VocabShard(lo, METADATA_VOCAB_SIZE))
    return alone.token_ids.tolist(), out.token_ids.tolist()


def unseeded_tokens(rank, size, params, calls, logits):
    """The tokens of many calls without seeds, all ranks' generators seeded differently."""
    sampler = tokendraw.load_sampler("native", device="cpu")
    lo, hi = list(pairwise(cuts(size, len(logits), 1)))[rank]
    shard = VocabShard(lo, len(logits))
    batch = torch.tensor(logits).expand(calls, -1)
    metadata = SamplingMetadata.from_params([SamplingParams(**params)] * calls)
    torch.manual_seed(rank)
    return sampler.sample(batch[:, lo:hi], metadata, shard=shard).token_ids.tolist()

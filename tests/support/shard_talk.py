"""Runs on ranks that do not agree, and counts what ranks say to each other."""

from dataclasses import replace
from itertools import pairwise

import torch

import tokendraw
from fake_candidates import EVERYTHING
from provided import provider_of
from shard_cases import cuts, logits_of
from tokendraw import SamplingMetadata, SamplingParams, VocabShard
from tokendraw.vocab_parallel import thresholds
from tokendraw.vocab_parallel.messages import _TorchDistributed

V = 3000


class Counting:
    """The ranks of the default group, with a note of each collective and the bytes that this rank gave it."""

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


def said(rank, size, params, dtype, scale, rows, need):
    """The collectives of two calls, each with its bytes a row."""
    sampler = tokendraw.load_sampler("native", device="cpu", need=need, logprobs_mode=need.logprobs_mode)
    lo, hi = list(pairwise(cuts(size, V, 0)))[rank]
    metadata = SamplingMetadata.from_params([params] * rows, positions=range(rows))
    logits = scale * torch.randn(rows, V, generator=torch.Generator().manual_seed(0))
    group = Counting()
    shard = VocabShard(lo, V, group)
    for _ in range(2):
        sampler.sample(logits[:, lo:hi].to(getattr(torch, dtype)), metadata, shard=shard)
    assert group.notes[0] == ("objects", 0)
    half = len(group.notes) // 2
    assert group.notes[1 : half + 1] == group.notes[half + 1 :]  # ranks agree once
    return [(name, given / rows) for name, given in group.notes[half + 1 :]]


def said_as_on_a_gpu(*arguments):
    """The same where the host looks at no value."""
    looking, thresholds.may_read_values = thresholds.may_read_values, lambda device: False
    try:
        return said(*arguments)
    finally:
        thresholds.may_read_values = looking


def weighed_as_on_a_gpu(rank, size, params, scale, rows):
    """What values weigh in each round of a search where the host looks at none."""
    looking, thresholds.may_read_values = thresholds.may_read_values, lambda device: False
    try:
        lo, hi = list(pairwise(cuts(size, V, 0)))[rank]
        logits, group = scale * torch.randn(rows, V, generator=torch.Generator().manual_seed(0)), Counting()
        metadata = SamplingMetadata.from_params([params] * rows, positions=range(rows))
        sampler = tokendraw.load_sampler("native", device="cpu")
        sampler.sample(logits[:, lo:hi], metadata, shard=VocabShard(lo, V, group))
        return group.sums
    finally:
        thresholds.may_read_values = looking


def refused(rank, size, wrong, odd):
    """The errors of two calls with one shard, in which rank ``odd`` does something else than the others."""
    sampler = tokendraw.load_sampler("native", device="cpu")
    borders = [0, 1000, 1000, V] if size == 3 else [0, V]
    lo, hi = list(pairwise(borders))[rank]
    rows, total, params, device, dtype = 2, V, SamplingParams(seed=1), "cpu", torch.float32
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
    """Other rows and dtypes in later calls of one shard, then another number of columns."""
    sampler = tokendraw.load_sampler("native", device="cpu")
    lo, hi = list(pairwise(cuts(size, V, 1)))[rank]
    shard, found = VocabShard(lo, V), []
    for rows, dtype in ((4, "float32"), (0, "float32"), (7, "bfloat16"), (1, "float16")):
        metadata = SamplingMetadata.from_params(
            [SamplingParams(seed=3, top_p=0.9, logprobs=2)] * rows, positions=range(rows)
        )
        logits = logits_of(8, V, 5, getattr(torch, dtype))[:rows]
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
    """The tokens of ranks 1 and 2, which are a group of their own, beside one device's; of rank 0 its error."""
    import torch.distributed as dist

    group = dist.new_group([1, 2])
    sampler = tokendraw.load_sampler("native", device="cpu")
    logits = logits_of(8, V, 5, torch.float32)
    metadata = SamplingMetadata.from_params([SamplingParams(top_p=0.9)] * 8)
    lo, hi = ((0, 0), (0, 1700), (1700, V))[rank]
    torch.manual_seed(4)
    alone = sampler.sample(logits, metadata).token_ids.tolist()
    torch.manual_seed(4 if rank == 1 else 5)  # the group's first rank decides
    try:
        out = sampler.sample(logits[:, lo:hi], metadata, shard=VocabShard(lo, V, group))
    except ValueError as error:
        return str(error)
    return out.token_ids.tolist() == alone

"""A checked combination of metadata, shard and layout of logits is trusted later, and nothing else is."""

import gc
import weakref

import pytest
import torch

from calling import provider_of, selected
from fake_candidates import EVERYTHING
from tokendraw import InvalidInputError, SamplerOutput, SamplingMetadata, SamplingParams, VocabShard
from tokendraw.calls import input_checks
from tokendraw_testing.shards.thread_ranks import on_ranks

V = 8


class Backend:
    """Returns zeros, or raises a given error."""

    error = None

    def sample(self, logits, metadata, *, shard):
        if self.error is not None:
            raise self.error
        return SamplerOutput(torch.zeros(len(logits)).long(), torch.ones(len(logits)) > 0)


@pytest.fixture
def looked(monkeypatch):
    """Return the logits checked against metadata."""
    found, original = [], input_checks.check_batch

    def check_batch(name, logits, *others):
        found.append(logits)
        original(name, logits, *others)

    monkeypatch.setattr(input_checks, "check_batch", check_batch)
    return found


def alone(work):
    """Run as the only rank of a world."""
    on_ranks(1, lambda rank: work(provider_of("sample", Backend(), EVERYTHING), VocabShard(0, V, rank)))


def requests(**settings):
    return SamplingMetadata.from_params([SamplingParams(**settings)] * 2, positions=[3, 4])


def test_the_same_metadata_and_shard_are_looked_at_once(looked):
    def work(provider, shard):
        metadata = requests(seed=1)
        for step in range(3):
            provider.sample(torch.zeros(2, V), metadata, shard=shard)
            provider.sample(torch.zeros(2, V), metadata.with_positions(torch.tensor([step, 9])), shard=shard)

    alone(work)
    assert len(looked) == 1


def test_other_metadata_another_dtype_and_a_call_without_a_shard_are_looked_at(looked):
    def work(provider, shard):
        metadata = requests()
        for _ in range(2):
            provider.sample(torch.zeros(2, V), metadata, shard=shard)
        provider.sample(torch.zeros(2, V), requests(), shard=shard)
        provider.sample(torch.zeros(2, V, dtype=torch.bfloat16), metadata, shard=shard)
        with pytest.raises(TypeError):  # this backend draws with shards alone
            provider.sample(torch.zeros(2, V), metadata)

    alone(work)
    assert len(looked) == 4


def test_the_ranks_of_another_shard_agree_first():
    def work(provider, shard):
        metadata = requests()
        provider.sample(torch.zeros(2, V), metadata, shard=shard)
        gap = VocabShard(1, V, shard.group)
        for _ in range(2):
            with pytest.raises(InvalidInputError, match="'start' of the shard on rank 0 needs to be 0"):
                provider.sample(torch.zeros(2, V - 1), metadata, shard=gap)
            with pytest.raises(InvalidInputError, match="found 7 on rank 0: a gap"):
                provider.sample(torch.zeros(2, V - 1), metadata, shard=VocabShard(0, V, shard.group))
            with pytest.raises(InvalidInputError, match="needs 8 columns, as this shard had"):
                provider.sample(torch.zeros(2, V - 1), metadata, shard=shard)

    alone(work)


def test_what_a_remembered_call_raises_is_raised_and_nobody_takes_over():
    def work(provider, shard):
        metadata, backend = requests(), selected(provider).backend.object
        provider.sample(torch.zeros(2, V), metadata, shard=shard)
        backend.error = RuntimeError("out of order")
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"^out of order$"):
                provider.sample(torch.zeros(2, V), metadata, shard=shard)
        backend.error = None
        provider.sample(torch.zeros(2, V), metadata, shard=shard)

    alone(work)


@pytest.mark.slow
def test_metadata_keep_no_shard_alive():
    metadata, shards = requests(), []

    def work(provider, shard):
        provider.sample(torch.zeros(2, V), metadata, shard=shard)
        shards.append(weakref.ref(shard.agreed))

    alone(work)
    gc.collect()
    assert shards[0]() is None

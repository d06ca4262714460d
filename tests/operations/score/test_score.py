"""``Sampler.score``: log-probabilities, ranks and entropies of given tokens."""

import pytest
import torch

import tokendraw
from calling import refused
from fake_dists import plugin
from tokendraw import (
    InvalidInputError,
    Need,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
)

LOGITS = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
PLAIN = SamplingMetadata.from_params([SamplingParams()] * 4)


@pytest.fixture(scope="module")
def native():
    return tokendraw.load_sampler("native", device="cpu")


def test_best_and_given_tokens_stand_beside(native):
    requests = [SamplingParams(logprobs=2), SamplingParams(logprob_token_ids=[1, 2]), *[SamplingParams()] * 2]
    scored = native.score(LOGITS, torch.tensor([0, 1, 2, 3]), SamplingMetadata.from_params(requests))
    assert scored.logprobs.token_ids[0, 1:].tolist() == LOGITS[0].topk(2).indices.tolist()
    assert scored.logprobs.given_token_ids[1].tolist() == [1, 2]
    assert scored.logprobs.given_logprobs[1, 0] == scored.logprobs.logprobs[1, 0]
    assert len(scored.logprobs.row(3)) == 1


def test_thresholds_come_where_they_are_needed():
    sampler = tokendraw.load_sampler("native", device="cpu", need=Need(threshold=True))
    metadata = SamplingMetadata.from_params([SamplingParams(top_k=3)] * 4)
    assert torch.equal(
        sampler.score(LOGITS, torch.zeros(4, dtype=torch.int64), metadata).threshold,
        sampler.sample(LOGITS, metadata).threshold,
    )


def test_seeds_are_ignored(native):
    ids = torch.tensor([3, 0, 49, 7])
    seeded = SamplingMetadata.from_params([SamplingParams(seed=i) for i in range(4)], positions=range(4))
    assert torch.equal(
        native.score(LOGITS, ids, seeded).logprobs.logprobs,
        native.score(LOGITS, ids, PLAIN).logprobs.logprobs,
    )
    assert native.stats() == {}


def test_the_rank_of_a_dropped_token_counts_all_of_the_vocabulary():
    """Its value is -inf, and every other is at least that."""
    sampler = tokendraw.load_sampler("native", device="cpu", logprobs_mode="processed_logprobs")
    metadata = SamplingMetadata.from_params(
        [SamplingParams(top_k=3)] * 2 + [SamplingParams(temperature=0.0)] * 2
    )
    second, fourth = LOGITS[0].topk(4).indices[1::2]
    ids = torch.stack([second, fourth, LOGITS[0].argmax(), second])
    assert sampler.score(LOGITS[:1].expand(4, -1), ids, metadata).logprobs.ranks.tolist() == [2, 50, 1, 50]


WRONG = [
    (
        [1, 2, 3, 4],
        "'token_ids' needs a torch.Tensor, found list. Pass torch.tensor(token_ids, device=logits.device).",
    ),
    (torch.zeros(4), "'token_ids' needs an integer dtype, found torch.float32."),
    (torch.zeros(4, 1, dtype=torch.int64), "'token_ids' needs one dimension, found shape [4, 1]."),
    (torch.zeros(3, dtype=torch.int64), "'token_ids' needs as many ids as 'logits' has rows, 4, found 3."),
    (
        torch.zeros(4, dtype=torch.int64, device="meta"),
        "'token_ids' needs the device of 'logits', cpu, found meta. Pass token_ids.to(logits.device).",
    ),
]


@pytest.mark.parametrize(("ids", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_tokens_are_refused(native, ids, message):
    refused(message, InvalidInputError, lambda: native.score(LOGITS, ids, PLAIN))


def test_a_sampler_that_scores_nothing_is_refused_in_words(dists):
    dists.add_plugin("acme", plugin("acme"))
    sampler = tokendraw.load_sampler("acme", device="cpu")
    with pytest.raises(SamplerUnavailableError, match="the operation score"):
        sampler.score(LOGITS, torch.zeros(4, dtype=torch.int64), PLAIN)


def test_the_operation_can_be_loaded_alone():
    scorer = tokendraw.load("score", device="cpu")
    assert scorer.name == "native"
    assert scorer.score(LOGITS, torch.zeros(4, dtype=torch.int64), PLAIN).entropy.shape == (4,)

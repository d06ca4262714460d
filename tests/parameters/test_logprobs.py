"""Logprobs: the list of a request, ids that a request names, and what plugins arrange them with."""

import math

import pytest
import torch

import tokendraw
from tokendraw import (
    BatchFacts,
    Drafts,
    LogprobsTensors,
    RequestSlots,
    SamplingMetadata,
    SamplingParams,
    TokenLogprob,
)
from tokendraw.plugin import (
    RowMasses,
    logprobs_by_step,
    mode_values,
)

INF = float("inf")
SHARES = (0.4, 0.1, 0.3, 0.2)
ORDER = [(0, 1), (2, 2), (3, 3), (1, 4)]
"""Ids and ranks of the four tokens, the best first."""


@pytest.fixture(scope="module")
def native():
    return tokendraw.load_sampler("native", device="cpu")


def batch(*requests):
    return SamplingMetadata.from_params(requests, positions=range(len(requests)))


def logits_of(rows):
    return torch.tensor([SHARES] * rows).log()


# A request's list


def test_a_row_is_the_drawn_token_then_its_own_best(native):
    wanted = [2, 0, None, -1]
    out = native.sample(
        logits_of(4), batch(*[SamplingParams(seed=i, logprobs=n) for i, n in enumerate(wanted)])
    )
    best = out.logprobs.cpu()
    for i, n in enumerate((2, 0, 0, 4)):
        drawn, *others = best.row(i)
        assert (drawn.token_id, drawn.rank) == (out.token_ids[i], dict(ORDER)[drawn.token_id])
        assert [(one.token_id, one.rank) for one in others] == ORDER[:n]
        for one in (drawn, *others):
            assert one.logprob == pytest.approx(math.log(SHARES[one.token_id]), abs=1e-6)
    assert best.row(-1) == best.row(3)
    with pytest.raises(IndexError):
        best.row(4)
    tied = native.sample(torch.zeros(1, 3), batch(SamplingParams(seed=1, logprobs=3))).logprobs.cpu().row(0)
    assert [one.rank for one in tied] == [
        3,
        1,
        2,
        3,
    ]  # all three have a value at least that of the drawn token
    unranked = LogprobsTensors(torch.tensor([[5, 7, -1]]), torch.tensor([[-1.0, -0.5, -INF]]), None).cpu()
    assert unranked.row(0) == [TokenLogprob(5, -1.0, None), TokenLogprob(7, -0.5, 1)]


def test_of_a_verification_a_row_is_one_token_of_a_request(native):
    requests = [SamplingParams(temperature=0.0, logprobs=1), SamplingParams(temperature=0.0)]
    out = native.verify(
        logits_of(5), Drafts.from_lists([[0, 1], [2]]), SamplingMetadata.from_params(requests)
    )
    assert out.token_ids.tolist() == [[0, 0, -1], [0, -1, -1]]
    best, first = out.logprobs.cpu(), TokenLogprob(0, pytest.approx(math.log(0.4), abs=1e-6), 1)
    assert [best.row(0, step) for step in range(3)] == [[first, first], [first, first], []]
    assert best.row(1, 0) == [first]


# Ids that a request names


V = 50
GIVEN, NONE = SamplingParams(logprob_token_ids=[3, 7, 1], seed=5), SamplingParams(top_k=4)
LOGITS = torch.randn(2, V, generator=torch.Generator().manual_seed(0))


def test_the_given_ids_come_back_in_their_order_and_other_rows_are_padded(native):
    found = native.sample(LOGITS, batch(GIVEN, NONE)).logprobs.cpu()
    assert found.given_token_ids.tolist() == [[3, 7, 1], [-1] * 3]
    assert torch.allclose(found.given_logprobs[0], LOGITS.log_softmax(-1)[0, [3, 7, 1]], atol=1e-6)
    assert (found.given_logprobs[1] == -torch.inf).all()
    values = found.given_logprobs[0].tolist()
    assert found.row(0)[1:] == [
        TokenLogprob(i, value, None) for i, value in zip((3, 7, 1), values, strict=True)
    ]
    assert [entry.token_id for entry in found.row(1)] == [int(found.token_ids[1, 0])]
    ruled_out = BatchFacts(max_logprobs=0, max_logprob_token_id=-1)
    ready = SamplingMetadata(logprob_token_ids=torch.tensor([[1], [2]]), facts=ruled_out)
    for metadata in (batch(NONE, SamplingParams(logprobs=2)), ready):
        assert native.sample(LOGITS, metadata).logprobs.given_token_ids is None


def test_slots_keep_their_requests_ids_and_the_result_is_as_wide_as_the_widest(native):
    slots = RequestSlots(4, 16, V, max_logprob_token_ids=5)
    before = slots.num_bytes
    slots.add(1, GIVEN)
    slots.add(2, NONE)
    assert slots.num_bytes == before + 4 * 5 * 8
    found = native.sample(LOGITS, slots.metadata([2, 1], [1, 0])).logprobs
    assert found.given_token_ids.tolist() == [[-1] * 3, [3, 7, 1]]
    assert torch.equal(
        found.given_logprobs, native.sample(LOGITS, batch(NONE, GIVEN)).logprobs.given_logprobs
    )
    ids = slots.metadata([1], [0]).logprob_token_ids
    slots.add(0, SamplingParams(logprob_token_ids=range(5)))
    assert slots.metadata([1, 0], [0, 0]).logprob_token_ids.shape == (4, 5)
    slots.remove(0)
    assert slots.metadata([1], [0]).logprob_token_ids.tolist() == [[-1] * 3, [3, 7, 1], [-1] * 3, [-1] * 3]
    assert slots.metadata([1], [0]).logprob_token_ids.data_ptr() == ids.data_ptr()
    slots.remove(1)
    assert slots.metadata([2]).logprob_token_ids is None


# Helpers of plugins


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "temperature_logprobs"])
def test_no_log_probability_exceeds_0_however_the_masses_were_rounded(mode):
    one = torch.ones(1, 1, dtype=torch.float64)
    too_small = one * (1 - 2**-24)
    row = RowMasses(one.float(), one.float() - 1, too_small, too_small, too_small)
    below = pytest.approx(-1 - math.log(1 - 2**-24))
    assert mode_values(torch.tensor([[1.0, 0.0]]), row, one, mode).tolist() == [[0.0, below]]


def test_ranks_behind_the_last_token_of_a_request_are_0():
    rows = LogprobsTensors(torch.zeros(4, 1).long(), torch.zeros(4, 1), torch.tensor([1, 2, 3, 4]))
    found = logprobs_by_step(rows, torch.tensor([0, 3, 4]), torch.tensor([1, 0]), 2)
    assert found.ranks.tolist() == [[1, 2, 0], [4, 0, 0]]

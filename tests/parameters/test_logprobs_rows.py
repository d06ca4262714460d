"""``LogprobsTensors.row``: the list of a request, from the host copy."""

import math

import numpy as np
import pytest
import torch

import tokendraw
from calling import call, refused
from tokendraw import (
    Drafts,
    InvalidInputError,
    LogprobsTensors,
    SamplingMetadata,
    SamplingParams,
    TokenLogprob,
)

PROBABILITIES = np.array([0.4, 0.1, 0.3, 0.2])


def test_a_row_is_the_drawn_token_then_its_own_best(sampler, device):
    logits = np.tile(np.log(PROBABILITIES).astype(np.float32), (4, 1))
    wanted = [2, 0, None, -1]
    out = call(sampler, logits, [SamplingParams(seed=i, logprobs=n) for i, n in enumerate(wanted)])
    best = out.logprobs.cpu()
    order = [(0, 1), (2, 2), (3, 3), (1, 4)]
    for i, n in enumerate((2, 0, 0, 4)):
        drawn, *others = best.row(i)
        token = int(out.token_ids[i])
        rank = dict(order)[token]
        assert (drawn.token_id, drawn.rank) == (token, rank)
        assert drawn.logprob == pytest.approx(math.log(PROBABILITIES[token]), abs=1e-6)
        assert [(one.token_id, one.rank) for one in others] == order[:n]
        assert [one.logprob for one in others] == pytest.approx(
            [math.log(PROBABILITIES[token]) for token, _ in order[:n]], abs=1e-6
        )
    assert best.row(-1) == best.row(3)
    with pytest.raises(IndexError):
        best.row(4)


def test_equal_tokens_rank_by_their_ids_among_the_best(sampler):
    out = call(sampler, np.zeros((1, 3), np.float32), SamplingParams(seed=1, logprobs=3))
    drawn, *others = out.logprobs.cpu().row(0)
    assert drawn.rank == 3  # all three have a value at least its own
    assert [(one.token_id, one.rank) for one in others] == [(0, 1), (1, 2), (2, 3)]


def test_ranks_that_were_not_counted_are_none():
    best = LogprobsTensors(torch.tensor([[5, 7, -1]]), torch.tensor([[-1.0, -0.5, -math.inf]]), None)
    assert best.row(0) == [TokenLogprob(5, -1.0, None), TokenLogprob(7, -0.5, 1)]
    assert best.cpu().ranks is None


def test_of_a_verification_a_row_is_one_token_of_a_request():
    native = tokendraw.load_sampler("native", device="cpu")
    target = torch.from_numpy(np.tile(np.log(PROBABILITIES).astype(np.float32), (5, 1)))
    metadata = SamplingMetadata.from_params(
        [SamplingParams(temperature=0.0, logprobs=1), SamplingParams(temperature=0.0)]
    )
    drafts = Drafts.from_lists([[0, 1], [2]])
    out = native.verify(target, drafts, metadata)
    assert out.token_ids.tolist() == [[0, 0, -1], [0, -1, -1]]
    best = out.logprobs.cpu()
    first = TokenLogprob(0, pytest.approx(math.log(0.4), abs=1e-6), 1)
    assert best.row(0, 0) == [first, first]
    assert best.row(0, 1) == [first, first]
    assert best.row(0, 2) == []
    assert best.row(1, 0) == [first]
    refused(
        "'row' needs a step, since these logprobs are of a verification, found None. Call row(i, step).",
        InvalidInputError,
        lambda: best.row(0),
    )


def test_rows_are_not_read_one_by_one_from_a_device():
    there = LogprobsTensors(
        torch.empty(2, 3, dtype=torch.int64, device="meta"), torch.empty(2, 3, device="meta"), None
    )
    refused(
        "'row' needs logprobs on the host, found them on meta. Call .cpu() once, and row() on what it returns.",
        InvalidInputError,
        lambda: there.row(0),
    )


def test_a_step_of_what_has_none_is_refused():
    best = LogprobsTensors(torch.tensor([[5]]), torch.tensor([[-1.0]]), torch.tensor([1]))
    refused("'row' needs no step, found 0. Call row(i).", InvalidInputError, lambda: best.row(0, 0))

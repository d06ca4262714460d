"""Helpers for plugins: best tokens, padding by row, and fresh seeds."""

import math

import pytest
import torch

from tokendraw import SamplingMetadata, philox
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID, RowMasses, best_token_ids, mode_values, pad_logprobs

INF = float("inf")


@pytest.mark.parametrize(
    ("row", "best"),
    [
        ([1.0, 3.0, 2.0], [1, 2, 0]),
        ([0.5, -0.5, 0.5, -INF, 0.5], [0, 2, 4, 1, 3]),
        ([-0.0, 0.0, -0.0], [0, 1, 2]),
        ([-INF, INF, -1e-45, 1e-45, INF], [1, 4, 3, 2, 0]),
        ([-3.0, -2.0, -2.0, -1.0], [3, 1, 2, 0]),
    ],
)
def test_the_best_come_in_descending_order_and_the_lowest_id_first_on_a_tie(row, best):
    for n in range(len(row) + 1):
        assert best_token_ids(torch.tensor([row]), n).tolist() == [best[:n]]


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "temperature_logprobs"])
def test_no_log_probability_exceeds_0_however_the_masses_were_rounded(mode):
    one = torch.ones(1, 1, dtype=torch.float64)
    too_small = one * (1 - 2**-24)
    row = RowMasses(one.float(), one.float() - 1, too_small, too_small, too_small)
    assert mode_values(torch.tensor([[1.0, 0.0]]), row, one, mode).tolist() == [
        [0.0, pytest.approx(-1 - math.log(1 - 2**-24))]
    ]


def test_columns_beyond_what_a_row_asked_for_are_padding():
    ids, values = torch.arange(12).view(3, 4), torch.zeros(3, 4)
    found = pad_logprobs(ids, values, torch.tensor([0, 2, -1]))
    pad = PAD_TOKEN_ID
    assert found[0].tolist() == [[0, pad, pad, pad], [4, 5, 6, pad], [8, 9, 10, 11]]
    assert (found[1] == PAD_LOGPROB).tolist() == (found[0] == pad).tolist()
    assert pad_logprobs(ids, values, None) == (ids, values)


def test_rows_without_a_seed_get_a_fresh_one_that_torch_reproduces():
    metadata = SamplingMetadata(
        seed=torch.tensor([5, 6], dtype=torch.int32),
        seeded=torch.tensor([True, False]),
        positions=torch.tensor([3, 4]),
    )
    torch.manual_seed(1)
    fresh = philox.fresh_seeds(2, torch.device("cpu"))
    torch.manual_seed(1)
    seed, position = philox.seeds_and_positions(metadata, 2, torch.device("cpu"))
    assert (seed.tolist(), seed.dtype) == ([5, int(fresh[1])], torch.int64)
    assert position.tolist() == [3, 4]


def test_without_positions_every_row_is_at_position_0():
    torch.manual_seed(1)
    seed, position = philox.seeds_and_positions(SamplingMetadata(), 3, torch.device("cpu"))
    assert position.tolist() == [0, 0, 0]
    assert len(set(seed.tolist())) == 3

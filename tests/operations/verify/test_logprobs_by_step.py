"""Logprobs and kept masses of rows are arranged by request and step."""

import torch

from tokendraw import LogprobsTensors
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID, log_kept_mass_by_step, logprobs_by_step


def test_logprobs_of_rows_are_arranged_by_request_and_step():
    rows = LogprobsTensors(
        torch.tensor([[10], [11], [12], [13]]), torch.zeros(4, 1), torch.tensor([1, 2, 3, 4])
    )
    found = logprobs_by_step(rows, torch.tensor([0, 3, 4]), torch.tensor([1, 0]), 2)
    pad = PAD_TOKEN_ID
    assert found.token_ids.squeeze(-1).tolist() == [[10, 11, pad], [13, pad, pad]]
    assert found.logprobs.squeeze(-1).tolist() == [[0, 0, PAD_LOGPROB], [0, PAD_LOGPROB, PAD_LOGPROB]]
    assert found.ranks.tolist() == [[1, 2, 0], [4, 0, 0]]


def test_logprobs_of_no_request_are_empty():
    rows = LogprobsTensors(torch.empty(0, 6, dtype=torch.int64), torch.empty(0, 6), None)
    found = logprobs_by_step(rows, torch.tensor([0]), torch.empty(0, dtype=torch.int32), 4)
    assert list(found.token_ids.shape) == list(found.logprobs.shape) == [0, 5, 6]
    assert found.ranks is None


def test_kept_masses_of_rows_are_arranged_by_request_and_step():
    masses = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    found = log_kept_mass_by_step(masses, torch.tensor([0, 3, 4]), torch.tensor([1, 0]), 2)
    assert found.tolist() == [[-1.0, -2.0, PAD_LOGPROB], [-4.0, PAD_LOGPROB, PAD_LOGPROB]]
    none = log_kept_mass_by_step(masses[:0], torch.tensor([0]), torch.empty(0, dtype=torch.int32), 4)
    assert (list(none.shape), none.dtype) == ([0, 5], torch.float32)

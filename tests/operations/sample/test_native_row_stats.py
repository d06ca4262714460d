"""native's reads of rows: an expanded row once, and several rows in torch's order of sorting."""

import dataclasses

import pytest
import torch

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw.row_parameters import RowParameters
from tokendraw_native import logprobs, row_stats, threshold_search

CPU = torch.device("cpu")
ALIKE = [SamplingParams(temperature=0.7, top_p=0.8)] * 3
APART = [*ALIKE[:2], SamplingParams(temperature=0.7, top_p=0.3)]


@pytest.mark.parametrize(("requests", "read"), [(ALIKE, 1), (APART, 3)], ids=["alike", "apart"])
def test_an_expanded_row_is_read_once_for_equal_requests_and_says_what_its_copies_say(
    monkeypatch, requests, read
):
    row = torch.randn(2500, generator=torch.Generator().manual_seed(1))
    params = RowParameters.of(SamplingMetadata.from_params(requests, device="cpu"), 3, CPU)
    expected = row_stats.row_stats(row.repeat(3, 1), params, masses=True)
    looked, load = [], row_stats.load

    def counting(logits, buffers):
        looked.append(len(logits))
        return load(logits, buffers)

    monkeypatch.setattr(row_stats, "load", counting)
    found = row_stats.row_stats(row.expand(3, -1), params, masses=True)
    assert looked == [read]
    for field in dataclasses.fields(found):
        own, same = getattr(found, field.name), getattr(expected, field.name)
        assert torch.equal(own, same) if isinstance(own, torch.Tensor) else own == same


@pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "torch"])
def test_rows_are_sorted_by_value_with_and_without_numpy(monkeypatch, numpy):
    monkeypatch.setattr(threshold_search, "numpy_is_usable", lambda: numpy)
    x = torch.randn(5, 1025, generator=torch.Generator().manual_seed(2)).mul_(20).round_()
    x[0, :4] = torch.tensor([float("inf"), -float("inf"), 0.0, -0.0])
    order = threshold_search.descending_order(x)
    assert torch.equal(x.gather(-1, order), x.sort(-1, descending=True).values)
    assert torch.equal(order.sort(-1).values, torch.arange(1025).expand(5, -1))


def test_no_kept_mass_exceeds_0_however_the_masses_were_rounded():
    params = RowParameters.of(SamplingMetadata.from_params(ALIKE, device="cpu"), 3, CPU)
    stats = row_stats.row_stats(torch.ones(3, 50), params, masses=True)
    too_small = dataclasses.replace(stats, mass=stats.mass * (1 - 2**-24))
    assert logprobs.log_kept_mass(too_small, params).tolist() == [0.0] * 3

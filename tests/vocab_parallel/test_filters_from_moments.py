"""Filters from moments over ranks: the floors, tokens and errors of a single device, on every rank."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import shard_cases
import tokendraw
from calling import provider_of
from fake_candidates import EVERYTHING
from tokendraw import Need, SamplerUnavailableError, SamplingMetadata, SamplingParams, VocabShard
from tokendraw.filters import FilterError
from tokendraw.plugin import MOMENTS
from tokendraw.vocab_parallel import combined_sums, moments_of_sums, required_sums
from tokendraw_testing.shards.thread_ranks import on_ranks

V, ROWS = 2500, 42
BORDERS = ((0, V), (0, 1100, V), (0, 0, 7, 1500, V))
SHIPPED = [{name: value} for name, value in shard_cases.FILTERS.items()]


def load():
    need = Need(vocab_parallel=True, threshold=True)
    return tokendraw.load_sampler("native", device="cpu", need=need, logprobs_mode="processed_logprobs")


def batch(*filters, **params):
    requests = [
        SamplingParams(
            seed=row, temperature=(1.0, 0.4, 3.0)[row % 3], filters=filters[row % len(filters)], **params
        )
        for row in range(ROWS)
    ]
    return SamplingMetadata.from_params(requests, positions=range(ROWS))


def on_each(borders, logits, metadata):
    """Return the output of each rank, or its error."""
    sampler, outcomes = load(), {}

    def work(rank):
        lo, hi = borders[rank.rank : rank.rank + 2]
        try:
            outcomes[rank.rank] = sampler.sample(logits[:, lo:hi], metadata, shard=VocabShard(lo, V, rank))
        except FilterError as error:
            outcomes[rank.rank] = str(error)

    on_ranks(len(borders) - 1, work)
    return [outcomes[rank] for rank in range(len(borders) - 1)]


def require_one_device(metadata):
    """Require a single device's tokens, thresholds and log-probabilities on 1, 2 and 4 ranks; return the output."""
    logits = shard_cases.logits_of(ROWS, V, 5, torch.float32)
    alone = load().sample(logits, metadata)
    for borders in BORDERS:
        for out in on_each(borders, logits, metadata):
            assert torch.equal(out.token_ids, alone.token_ids)
            torch.testing.assert_close(out.threshold, alone.threshold, rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(out.logprobs.logprobs, alone.logprobs.logprobs, rtol=2e-6, atol=2e-6)
    return alone


@pytest.mark.parametrize("params", [{}, {"top_p": 0.7}, {"top_k": 30, "top_p": 0.9, "filter_order": "joint"}])
def test_every_rank_has_the_tokens_thresholds_and_logprobs_of_one_device(params):
    require_one_device(batch(*SHIPPED, None, logprobs=2, **params))


@pytest.mark.parametrize(
    ("moments", "floor"),
    [
        ("'mean', 'count'", "return moments.mean * value + moments.count.log() / 8"),
        ("", "return -0.5 * value"),
    ],
    ids=["of mean and count", "of the value alone"],
)
def test_so_has_a_filter_that_anyone_adds(dists, moments, floor):
    dists.add_filter(floor, moments=moments)
    found = require_one_device(batch({"acme": 0.5}, None, logprobs=2))
    assert (found.threshold[6::2] > -torch.inf).all()
    assert (found.threshold[7::2] == -torch.inf).all()


@pytest.mark.parametrize(
    ("floor", "reason"),
    [
        ("raise OSError('no disk')", "its floor raised OSError: no disk"),
        (
            "return value[:1]",
            "its floor needs shape [42], torch.float32 on cpu, found [1], torch.float32 on cpu",
        ),
    ],
)
def test_a_filter_that_fails_is_the_same_error_on_every_rank(dists, floor, reason):
    dists.add_filter(floor)
    found = on_each(BORDERS[-1], torch.zeros(ROWS, V), batch({"acme": 1.0}))
    assert found == [found[0]] * 4
    assert found[0].startswith(f"The filter 'acme' failed, so nothing was drawn: {reason}")


def test_a_sampler_without_the_moments_is_no_sampler_for_these_rows_over_ranks():
    sampler = provider_of("sample", None, replace(EVERYTHING, row_moments=("std",)))
    shard = VocabShard(0, V, shard_cases.EchoingRank(0, 1))
    with pytest.raises(
        SamplerUnavailableError,
        match=r"'acme' cannot serve filters from moments, and no companion serves a part of a call",
    ):
        sampler.sample(torch.zeros(ROWS, V), batch({"p_less": 1.0}), shard=shard)


def test_ranks_agree_on_the_values_and_the_code_of_filters(dists):
    dists.add_filter("return -value")
    described = []

    class Rank(shard_cases.EchoingRank):
        def gather_objects(self, value):
            described.append(value.alike)
            return super().gather_objects(value)

    for value in (1.0, 2.0):
        metadata = batch({"acme": value}, None)
        load().sample(torch.zeros(ROWS, V), metadata, shard=VocabShard(0, V, Rank(0, 1)))
    names = [name for name in described[0] if described[0][name] != described[1][name]]
    assert names == ["'filters' of the metadata"]
    assert described[0]["the filter 'acme'"] == "filter_acme_0:Acme of acme-filters 1.0"


def test_moments_of_parts_far_apart_are_those_of_all_columns():
    """In float64, of parts whose maxima lie up to 1e4 below the largest, and of one without a logit."""
    rng = np.random.default_rng(2)
    parts = [rng.normal(shift, 3.0, 40) for shift in (0.0, -20.0, -1e4)]
    inverse = 1 / 0.7
    sums = {name: [] for name in required_sums(MOMENTS)}
    for part in [*parts, np.array([])]:
        y = (part - part.max(initial=-np.inf)) if len(part) else part
        weight = np.exp(y * inverse)
        mean = y.mean() if len(y) else 0.0
        found = {
            "count": len(y),
            "mean": mean,
            "squares": ((y - mean) ** 2).sum(),
            "mass": weight.sum(),
            "entropy": (weight * y * inverse).sum(),
            "collision": (weight**2).sum(),
        }
        for name, column in sums.items():
            column.append(found[name])
    columns = {name: torch.tensor(column).double().view(4, 1, 1) for name, column in sums.items()}
    tops = torch.tensor([*(part.max() for part in parts), -np.inf]).float().view(4, 1, 1)
    inverse_temperature = torch.tensor([[inverse]], dtype=torch.float64)
    combined = combined_sums(columns, tops, tops.amax(0), inverse_temperature)
    moments = moments_of_sums(combined, MOMENTS, inverse_temperature)
    every = np.concatenate(parts)
    y = (every - every.max()) * inverse
    p = np.exp(y) / np.exp(y).sum()
    expected = {
        "count": len(y),
        "mean": y.mean(),
        "std": y.std(),
        "log_mass": np.log(np.exp(y).sum()),
        "entropy": -(p * np.log(p, where=p > 0, out=np.zeros_like(p))).sum(),
        "collision": (p**2).sum(),
    }
    for name in MOMENTS:
        assert getattr(moments, name).item() == pytest.approx(expected[name], rel=2e-6), name

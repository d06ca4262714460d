"""Drafting is routed as sampling is: rows not served by the verifier go to its companion alone."""

from dataclasses import dataclass, field, replace

import pytest
import torch

from calling import CPU, Recorded, assert_same_rows, drafting, substitute
from fake_candidates import EVERYTHING, PER_ROW
from tokendraw import Need, SamplerOutput, SamplerUnavailableError, SamplingMetadata, SamplingParams
from tokendraw.plugin import Capabilities
from tokendraw_native.sampler import NativeSampler

FILTERS_ONLY = Capabilities(filters=PER_ROW, filter_orders=("top_k_first", "joint"))
PLAIN = SamplingParams(temperature=0.7, top_k=3, top_p=0.9)
GREEDY = SamplingParams(temperature=0.0)
ROWS, V = 20, 50


@dataclass
class Drafter:
    """Draws the same token for all drafts, and counts its rows. It samples nothing."""

    token: int
    rows: list[int] = field(default_factory=list)

    def sample(self, logits, metadata, *, draft):
        assert draft is True
        self.rows.append(len(logits))
        rows = len(logits)
        return SamplerOutput(torch.full((rows,), self.token), torch.ones(rows, dtype=torch.bool))


def logits_of(rows=ROWS):
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(rows)).mul_(3)


def batch(others, rows=ROWS):
    params = [others.get(row, PLAIN) for row in range(rows)]
    return SamplingMetadata.from_params(params, positions=range(rows))


@pytest.mark.parametrize("wanted", [None, 2])
def test_the_drafts_of_two_are_those_of_one(wanted):
    """Both backends are native, and every row is seeded, so that only routing could make a difference."""
    requests = [
        SamplingParams(seed=row, temperature=0.0 if row % 5 == 3 else 0.8, top_k=row % 3, logprobs=wanted)
        for row in range(30)
    ]
    metadata = SamplingMetadata.from_params(requests, positions=range(30))
    logits, native = logits_of(30), NativeSampler(CPU, Need())
    sampler = drafting(replace(EVERYTHING, greedy=False))
    drafted = sampler.draft(logits, metadata)
    assert sampler.stats() == {"acme": 24, "native": 6}
    assert_same_rows(native.sample(logits, metadata, draft=True), drafted)
    assert drafted.token_ids.tolist() != native.sample(logits, metadata).token_ids.tolist()


def test_who_samples_has_no_part_in_it():
    """The sampler serves the batch, and the verifier does not."""
    sampler = drafting(FILTERS_ONLY, Drafter(1), companion_capabilities=None)
    substitute(sampler, Recorded(7))
    assert sampler.sample(logits_of(2), batch({0: GREEDY}, 2)).token_ids.tolist() == [7, 7]
    assert sampler.draft(logits_of(2), batch({}, 2)).token_ids.tolist() == [1, 1]
    with pytest.raises(SamplerUnavailableError, match="'acme' cannot serve greedy rows"):
        sampler.draft(logits_of(2), batch({0: GREEDY}, 2))

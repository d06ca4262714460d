"""The chosen sampler, the companion or neither serves a batch, by the facts about the rows."""

from dataclasses import replace

import pytest
import torch

from calling import loaded, selection_of
from tokendraw import (
    Need,
    SamplerOutput,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
)
from tokendraw.calls.negotiator import Negotiator
from tokendraw.calls.row_requirements import RowGroup
from tokendraw.plugin import Capabilities
from tokendraw.providers.sampler import Sampler


def unsupported(capabilities, facts, vocab_size=0):
    return loaded("acme", None, capabilities).reason_against(RowGroup(facts, vocab_size))


PLAIN = SamplingMetadata.from_params([SamplingParams()]).facts


@pytest.mark.parametrize(
    ("facts", "lacking"),
    [
        ({}, None),
        ({"any_greedy": True}, "greedy rows"),
        ({"any_seeded": True}, "seeded rows"),
        ({"max_top_k": 5}, "top_k per row"),
        ({"max_top_k": None}, "top_k per row"),
        ({"any_top_p": True}, "top_p per row"),
        ({"any_min_p": True}, "min_p per row"),
        ({"any_typical_p": True}, "typical_p per row"),
        ({"any_xtc": True}, "xtc per row"),
        ({"any_joint": True}, "filter order joint"),
        ({"any_temperature_last": True}, "filter order temperature_last"),
        ({"max_logprobs": 0}, "rows with logprobs"),
    ],
)
def test_a_sampler_that_promises_nothing_serves_plain_rows_alone(facts, lacking):
    assert unsupported(Capabilities(), replace(PLAIN, **facts)) == lacking


@pytest.mark.parametrize(("largest", "lacking"), [(8, None), (9, "top_k above 8"), (None, "top_k above 8")])
def test_a_limit_on_top_k_holds_for_the_largest_that_the_batch_may_hold(largest, lacking):
    capabilities = Capabilities(filters=(("top_k", "per_row"),), max_top_k=8)
    assert unsupported(capabilities, replace(PLAIN, max_top_k=largest)) == lacking


class Drawing:
    """Draws the same token in all rows, by which a test recognises the sampler."""

    def __init__(self, token):
        self.token = token

    def sample(self, logits, metadata):
        rows = len(logits)
        return SamplerOutput(torch.full((rows,), self.token), torch.ones(rows, dtype=torch.bool))


ACME, NATIVE = Drawing(1), Drawing(2)


def who_draws(both, *given):
    (token,) = both.sample(*given).token_ids.tolist()
    return {ACME.token: "acme", NATIVE.token: "native"}[token]


def sampler(companion, capabilities=None):
    other = companion and loaded(*companion)
    return Sampler(
        Negotiator(
            torch.device("cpu"),
            Need(),
            selected=[selection_of(loaded("acme", ACME, capabilities or Capabilities()), other)],
        )
    )


def test_without_a_companion_such_a_batch_is_refused():
    with pytest.raises(SamplerUnavailableError) as refused:
        sampler(None).sample(torch.zeros(1, 4), SamplingMetadata(temperature=torch.zeros(1)))
    assert str(refused.value) == (
        "'acme' cannot serve greedy rows, which this batch may hold, and has no companion. Install one that can "
        "(`pip install ./plugins/native` in tokendraw's checkout), or, if the batch holds none, say so in "
        "SamplingMetadata.facts."
    )


@pytest.mark.parametrize(
    ("settings", "lacking"),
    [
        ({"top_k": 5, "top_p": 0.9}, "filter order top_k_first"),
        ({"min_p": 0.1, "top_p": 0.9}, "filter order top_k_first"),
        ({"top_k": 5, "top_p": 0.9, "filter_order": "joint"}, None),
        ({"top_k": 5}, None),
        ({"top_p": 0.9}, None),
        ({"top_k": 5, "min_p": 0.1}, None),
    ],
    ids=str,
)
def test_a_joint_sampler_serves_the_other_order_only_where_both_keep_the_same(settings, lacking):
    joint = Capabilities(
        filters=(("top_k", "per_row"), ("top_p", "per_row"), ("min_p", "per_row")), filter_orders=("joint",)
    )
    facts = SamplingMetadata.from_params([SamplingParams(), SamplingParams(**settings)]).facts
    assert unsupported(joint, facts) == lacking


def test_a_limit_on_the_vocabulary_holds_for_every_call():
    limited = replace(Capabilities(), max_vocab_size=1000)
    assert unsupported(limited, PLAIN, 1000) is None
    assert unsupported(limited, PLAIN, 1001) == "rows of a vocabulary above 1000"
    both = sampler(("native", NATIVE), limited)
    plain = SamplingMetadata(facts=PLAIN)
    assert [who_draws(both, torch.zeros(1, size), plain) for size in (1000, 1001)] == ["acme", "native"]

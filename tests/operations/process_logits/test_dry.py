"""DRY: the token that would prolong a repetition costs more with each repeated token before it."""

import numpy as np
import torch

import tokendraw
from tokendraw import Drafts, RequestSlots, SamplingParams

V = 12


def costs(tokens, drafts=None, dtype=torch.float32, **fields):
    """Return what native subtracts from logits of 0, for a prompt of two tokens and the others as output."""
    slots = RequestSlots(2, max(len(tokens), 8), V)
    slots.add(1, SamplingParams(**{"dry_multiplier": 1.0, "dry_base": 2.0} | fields), tokens[:2], tokens[2:])
    processor = tokendraw.load("process_logits", "native", device="cpu")
    rows = 1 + len(drafts or ())
    layout = None if drafts is None else Drafts.from_lists([drafts])
    logits = processor.process(torch.zeros(rows, V, dtype=dtype), slots, torch.tensor([1]), None, layout)
    found = [{i: -x for i, x in enumerate(row) if x} for row in logits.tolist()]
    return found if drafts is not None else found[0]


def test_the_cost_grows_with_the_length_of_the_match():
    repeated = [5, 1, 2, 3, 4, 6]
    assert costs([*repeated, 9, 3]) == {}
    assert costs([*repeated, 9, 2, 3]) == {4: 1}
    assert costs([*repeated, 9, 1, 2, 3]) == {4: 2}
    assert costs([*repeated, 9, 5, 1, 2, 3]) == {4: 4}
    assert costs([*repeated, 9, 5, 1, 2, 3], dry_multiplier=0.75, dry_base=3.0) == {4: 0.75 * 9}


def test_of_several_matches_before_the_same_token_the_longest_counts():
    assert costs([2, 3, 4, 8, 1, 2, 3, 4, 9, 2, 3, 7, 1, 2, 3]) == {4: 2, 7: 1}


def test_a_match_may_overlap_the_end_of_the_history():
    assert costs([8, 7, 7, 7, 7, 7]) == {7: 4}
    assert costs([8, 1, 2, 1, 2, 1, 2]) == {1: 4}


def test_a_token_without_a_match_costs_by_an_allowed_length_of_0():
    assert costs([1, 2, 3, 2], dry_allowed_length=0) == {1: 1, 2: 1, 3: 2}
    assert costs([1, 2, 3, 2], dry_allowed_length=1) == {3: 1}


def test_no_match_reaches_across_a_breaker_and_a_breaker_costs_nothing():
    tokens = [1, 2, 3, 4, 9, 1, 2, 3]
    assert costs(tokens) == {4: 2}
    assert costs(tokens, dry_sequence_breakers=[1]) == {4: 1}
    assert costs(tokens, dry_sequence_breakers=[2]) == {}
    assert costs(tokens, dry_sequence_breakers=[2], dry_allowed_length=1) == {4: 1}
    assert costs(tokens, dry_sequence_breakers=[4]) == {}


def test_a_placeholder_equals_nothing():
    assert costs([1, V, 3, 4, 9, 1, V, 3], dry_allowed_length=1) == {4: 1}
    assert costs([1, 2, 3, V, 9, 1, 2, 3]) == {}


def test_tokens_before_the_last_n_are_not_searched():
    tokens = [1, 2, 3, 4, 9, 1, 2, 3]
    assert costs(tokens, dry_penalty_last_n=8) == {4: 2}
    assert costs(tokens, dry_penalty_last_n=7) == {4: 1}
    assert costs(tokens, dry_penalty_last_n=6) == {}


def test_rows_of_a_verification_count_the_drafts_before_them():
    assert costs([1, 2, 3, 4, 9, 1], [2, 3, 4]) == [{}, {3: 1}, {4: 2}, {9: 4}]


def test_a_long_match_costs_no_more_than_the_largest_power_that_is_finite():
    repeated = [7] * 200
    (cost,) = costs(repeated, dry_base=2.0, dry_multiplier=0.5).values()
    assert cost == 2.0**126
    (cost,) = costs(repeated, dry_base=2.0, dry_multiplier=3.0).values()
    assert cost == float("inf")
    (cost,) = costs(repeated, dry_base=1.0).values()
    assert cost == 1.0


def test_an_infinite_logit_stays_infinite():
    slots = RequestSlots(1, 300, V)
    slots.add(0, SamplingParams(dry_multiplier=3.0), [7] * 300)
    logits = torch.full((1, V), torch.inf)
    tokendraw.load("process_logits", "native", device="cpu").process(logits, slots, torch.tensor([0]))
    assert logits.isposinf().all()


def test_the_cost_is_subtracted_behind_the_penalties_and_rounded_with_them_once():
    slots = RequestSlots(1, 8, V)
    slots.add(0, SamplingParams(dry_multiplier=0.001, repetition_penalty=1.001), [1, 2, 3, 1, 2])
    logits = torch.full((1, V), 8.0, dtype=torch.bfloat16)
    tokendraw.load("process_logits", "native", device="cpu").process(logits, slots, torch.tensor([0]))
    exact = np.float32(8) / np.float32(1.001) - np.float32(0.001)
    assert logits[0, 3] == torch.tensor(exact).to(torch.bfloat16)


def test_requests_that_do_not_ask_cost_nothing():
    for fields in ({"dry_multiplier": 0.0}, {"dry_multiplier": 1.0, "dry_penalty_last_n": 0}):
        slots = RequestSlots(1, 8, V)
        slots.add(0, SamplingParams(**fields), [1, 2])
        assert slots.edits == ()
        assert not slots.facts.any_edit

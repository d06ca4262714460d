"""Metadata over slots draws the tokens of metadata by ``from_params``, and is made once."""

import random
from dataclasses import replace

import pytest
import torch

import tokendraw
from request_slots_model import random_params
from tokendraw import (
    BatchFacts,
    Drafts,
    InvalidInputError,
    RequestSlots,
    RowKinds,
    SamplingMetadata,
    SamplingParams,
)
from tokendraw.plugin import EditFacts

V = 40
KINDS = {
    5: SamplingParams(temperature=0.7, top_k=5, seed=1, logprobs=2),
    0: SamplingParams(temperature=0.0, top_p=0.5),
    3: SamplingParams(min_p=0.2, top_p=0.9, seed=2**64 - 1, filter_order="joint"),
    2: SamplingParams(seed=-4, logprobs=-1),
    1: SamplingParams(
        temperature=0.7,
        min_p=0.1,
        seed=3,
        filter_order="temperature_last",
        typical_p=0.7,
        xtc_probability=0.9,
        xtc_threshold=0.05,
    ),
}
NOTHING = EditFacts.of(())


def has_penalty(p):
    penalties = p.repetition_penalty, p.frequency_penalty, p.presence_penalty
    return penalties != (1, 0, 0) and p.penalty_last_n != 0


def filled(kinds=KINDS, device="cpu"):
    slots = RequestSlots(8, 16, V, device=device)
    for slot, params in kinds.items():
        slots.add(slot, params, [1, 2])
    return slots


@pytest.mark.parametrize("of_rows", [torch.tensor, list], ids=["tensors", "lists"])
def test_rows_draw_what_their_requests_ask_for(of_rows):
    sampler, slots = tokendraw.load_sampler("native", device="cpu"), filled()
    rows, positions = [3, 5, 2, 0, 1], [9, 8, 7, 6, 5]
    logits = torch.randn(5, V, generator=torch.Generator().manual_seed(0))
    found = sampler.sample(logits, slots.metadata(of_rows(rows), of_rows(positions)))
    expected = sampler.sample(
        logits, SamplingMetadata.from_params([KINDS[slot] for slot in rows], positions=positions)
    )
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert torch.equal(found.logprobs.logprobs, expected.logprobs.logprobs)


def test_a_verification_takes_one_entry_a_request():
    verifier, slots = tokendraw.load("verify", "native", device="cpu"), filled()
    drafts = Drafts.from_lists([[1, 2], [], [3]])
    target = torch.randn(6, V, generator=torch.Generator().manual_seed(0))
    rows, positions = torch.tensor([3, 0, 5]), torch.tensor([10, 20, 30])
    found = verifier.verify(target, drafts, slots.metadata(rows, positions))
    own = SamplingMetadata.from_params([KINDS[slot] for slot in (3, 0, 5)], positions=positions)
    assert found.token_ids.tolist() == verifier.verify(target, drafts, own).token_ids.tolist()


def test_steps_share_what_was_concluded_once_until_other_requests_come():
    slots = filled()
    first, second = slots.metadata([5, 0], [1, 2]), slots.metadata([3, 2], [2, 3])
    assert first.memo is second.memo
    assert (first.num_rows, second.row_index.tolist(), second.positions.tolist()) == (2, [3, 2], [2, 3])
    assert slots.metadata([5], [1]).memo is not first.memo
    slots.add(7, KINDS[5], [1])  # of a kind that is there
    assert slots.metadata([5, 7], [1, 2]).memo is first.memo
    slots.add(6, SamplingParams(top_k=9), [1])
    assert slots.metadata([5, 0], [1, 2]).memo is not first.memo
    assert slots.metadata([5, 0], [1, 2]).facts.max_top_k == 9


def test_it_is_the_very_object_of_parameters_that_slots_keep():
    slots = filled()
    metadata = slots.metadata([5], [1])
    slots.remove(5)
    slots.add(5, SamplingParams(temperature=0.25, top_k=7), [])
    assert float(metadata.per_row("temperature")) == 0.25
    assert int(slots.metadata([5], [1]).per_row("top_k")) == 7


def test_forms_that_do_not_fit_are_refused_also_after_others_fitted():
    slots = filled()
    for _ in range(2):
        slots.metadata([5, 0], [1, 2])
        with pytest.raises(InvalidInputError, match="the tensors need one length"):
            slots.metadata([5, 0], [1])


def test_requests_without_seeds_need_no_positions():
    metadata = filled({1: SamplingParams(top_k=3)}).metadata([1])
    assert (metadata.positions, metadata.seed, metadata.facts.any_seeded) == (None, None, False)


def test_facts_count_the_requests_that_are_there():
    rng, slots, held = random.Random(0), RequestSlots(8, 16, V), {}
    for _ in range(200):
        slot = rng.randrange(8)
        if slot in held:
            slots.remove(slot)
            del held[slot]
        else:
            held[slot] = random_params(rng, V)
            slots.add(slot, held[slot], [1])
        facts = RowKinds.of(held.values()).facts
        known = None if facts.any_logprob_token_ids else -1
        needed = replace(facts, max_logprob_token_id=known)
        assert slots.metadata([*held], [0] * len(held)).facts == needed
        asked = held.values()
        assert slots.facts == EditFacts(
            any_penalty=any(map(has_penalty, asked)),
            any_penalty_last_n=any(has_penalty(p) and p.penalty_last_n > 0 for p in asked),
            any_bias=any(v for p in asked for v in (p.logit_bias or {}).values()),
            any_allowed=any(p.allowed_token_ids for p in asked),
            any_bad_words=any(p.bad_words for p in asked),
            any_min_tokens=any(p.min_tokens and p.stop_token_ids for p in asked),
            any_dry=any(p.dry_multiplier and p.dry_penalty_last_n for p in asked),
            any_thinking_budget=any(p.thinking_budget for p in asked),
        )


def test_without_requests_nothing_is_asked_for():
    slots = RequestSlots(2, 4, 10)
    assert slots.facts == NOTHING
    assert not slots.facts.any_edit
    assert EditFacts().any_edit
    assert slots.metadata([], []).facts == BatchFacts.of_kinds(())

"""Slots refuse values out of range, in words, and a refusal changes nothing."""

import pytest
import torch

import call_tables
from request_slots_model import Held, assert_holds
from tokendraw import InvalidParameterError, RequestSlots, SamplingParams, VerifyOutput

S, M, V = 4, 6, 50
HELD = {
    1: Held(SamplingParams(repetition_penalty=1.2, bad_words=[[4, 5]]), [3, 3, 9]),
    2: Held(SamplingParams(seed=7), [1, 2, 3, 4]),
}
SIZES = {"max_bias": 2, "max_stop_ids": 2, "max_bad_words": 2, "max_bad_word_len": 3}
SIZES |= {"max_dry_breakers": 2, "max_thinking_ids": 2}


def filled():
    slots = RequestSlots(S, M, V, **SIZES)
    for slot, held in HELD.items():
        slots.add(slot, held.params, prompt_token_ids=held.prompt)
    return slots


def chains(*rows):
    ids = torch.tensor(rows)
    return VerifyOutput(ids, ids, ids)


def names():
    """New slots, and their methods; after a refusal the slots are what they were."""
    slots = filled()
    facts = slots.facts

    def unchanged(method):
        def call(*given):
            try:
                return method(*given)
            finally:
                assert_holds(slots, HELD)
                assert slots.facts == facts
                slots.append([1, 2], [5, 6])  # its room is what it was

        return call

    def sized(**sizes):
        return RequestSlots(**{"num_slots": S, "max_tokens": M, "vocab_size": V} | sizes)

    methods = ("add", "remove", "append", "append_verified", "metadata")
    own = {name: unchanged(getattr(slots, name)) for name in methods}
    return own | {"P": SamplingParams, "torch": torch, "chains": chains, "slots": sized}


def test_what_is_refused_with_which_words_and_changes_nothing():
    table = call_tables.Table(__file__, "refusals.txt")
    assert table.found(names) == table.text
    with pytest.raises(AttributeError):  # nor may the sizes of slots change
        filled().num_slots = 1


def test_rows_that_only_the_device_knows_may_be_of_any_request():
    """The host counts their tokens for all requests, and reads lengths once the fullest might be full."""
    slots = filled()
    first, second, one = torch.tensor([1]), torch.tensor([2]), torch.tensor([[5]])
    for _ in range(3):  # slot 2 has room for two
        slots._append(None, first, one)
    assert slots.tables.num_tokens.tolist() == [0, 6, 4, 0]
    for _ in range(2):
        slots._append(None, second, one)
    with pytest.raises(InvalidParameterError, match="needs room for 1 in slot 2, found 6 tokens"):
        slots._append(None, second, one)
    slots.remove(1)
    slots.remove(2)
    slots.add(1, SamplingParams(), [])
    for _ in range(M):
        slots._append(None, first, one)
    with pytest.raises(InvalidParameterError, match="needs room for 1 in slot 1"):
        slots._append(None, first, one)

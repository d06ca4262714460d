"""Placeholders, tokens without an id, are counted and matched by no edit, and keep their places."""

import pytest
import torch

from tokendraw import Drafts, RequestSlots, SamplingParams, VerifyOutput
from tokendraw_native.logits_processing import NativeProcessor

V = 10


def row(params, prompt, output=(), drafts=()):
    """Edit a row of ones behind some tokens."""
    slots = RequestSlots(1, 12, V)
    slots.add(0, params, prompt, output_token_ids=output)
    logits = torch.ones(len(drafts) + 1, V)
    given = Drafts.from_lists([list(drafts)], device="cpu") if drafts else None
    NativeProcessor().process(logits, slots, torch.tensor([0]), None, given)
    return logits[-1].tolist()


def forbidden(values):
    return [token for token, value in enumerate(values) if value == float("-inf")]


@pytest.mark.parametrize("placeholder", [V, V + 5, 2**31 - 1])
def test_add_append_append_verified_and_drafts_treat_a_placeholder_alike(placeholder):
    """``min_tokens`` counts the placeholder, bad words end before it, penalties pass over it."""
    params = SamplingParams(
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        min_tokens=3,
        stop_token_ids=[0],
        bad_words=[[5, 6, 8], [6, 9]],
    )
    assert forbidden(row(params, [1], [5, 6])) == [0, 8, 9]
    added = row(params, [1], [5, placeholder, 6])
    assert forbidden(added) == [9]
    assert [added[token] for token in range(V) if token not in (1, 5, 6, 9)] == [1.0] * 6

    slots = RequestSlots(3, 12, V)
    for slot in range(3):
        slots.add(slot, params, [1])
    for token in (5, placeholder, 6):
        slots.append([0], [token])
        slots.append(torch.tensor([1]), torch.tensor([token]))
    chain = torch.tensor([[5, placeholder, 6, -1]])
    slots.append_verified([2], VerifyOutput(chain, chain, chain))
    logits = torch.ones(3, V)
    NativeProcessor().process(logits, slots, torch.arange(3))
    assert logits.tolist() == [added] * 3
    assert row(params, [1], [5], [placeholder, 6]) == added
    assert slots.tables.history[:, :4].tolist() == [[1, 5, placeholder, 6]] * 3


def test_negative_placeholders_of_an_output_and_of_drafts_count_alike():
    params = SamplingParams(min_tokens=3, stop_token_ids=[0], bad_words=[[5, 6, 8]])
    assert forbidden(row(params, [1], [5, -1, 6])) == forbidden(row(params, [1], [5], [-1, 6])) == []


def test_a_vocabulary_of_one_id_has_placeholders_too():
    slots = RequestSlots(1, 6, 1)
    slots.add(0, SamplingParams(frequency_penalty=1.0), [-1, 1, 0])
    slots.append([0], [1])
    slots.append([0], [0])
    assert slots.tables.counts.tolist() == [[17]]
    assert slots.tables.num_distinct.tolist() == [1]

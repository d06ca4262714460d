"""Penalties that count the last tokens alone: what leaves the window is no longer penalized."""

import torch

import tokendraw
from tokendraw import Drafts, RequestSlots, SamplingParams

V = 8
PENALTIES = {"repetition_penalty": 2.0, "frequency_penalty": 0.5, "presence_penalty": 0.25}


def edited(slots, drafts=None):
    """Edit rows of eights for slot 1."""
    processor = tokendraw.load("process_logits", "native", device="cpu")
    rows = 1 + (len(drafts) if drafts else 0)
    layout = None if drafts is None else Drafts.from_lists([drafts])
    return processor.process(torch.full((rows, V), 8.0), slots, torch.tensor([1]), None, layout).tolist()


def slots_with(**fields):
    slots = RequestSlots(2, 16, V)
    slots.add(1, SamplingParams(**fields), [0, 1])
    return slots


def test_a_token_leaves_the_window_step_by_step():
    slots, rows = slots_with(**PENALTIES, penalty_last_n=3), []
    for token in (2, 2, 3, 4, 5):
        rows += edited(slots)
        slots.append([1], [token])
    rows += edited(slots)
    in_prompt, once, twice = 4.0, 4 - 0.75, 4 - 1.25
    assert rows == [
        [in_prompt, in_prompt, 8, 8, 8, 8, 8, 8],
        [in_prompt, in_prompt, once, 8, 8, 8, 8, 8],
        [8, in_prompt, twice, 8, 8, 8, 8, 8],
        [8, 8, twice, once, 8, 8, 8, 8],
        [8, 8, once, once, once, 8, 8, 8],
        [8, 8, 8, once, once, once, 8, 8],
    ]


def test_drafts_before_a_row_push_tokens_out_of_the_window_and_placeholders_do_too():
    slots = slots_with(presence_penalty=1.0, penalty_last_n=2)
    slots.append([1], [2])
    assert edited(slots, [3, V, 2]) == [
        [8, 8, 7, 8, 8, 8, 8, 8],
        [8, 8, 7, 7, 8, 8, 8, 8],
        [8, 8, 8, 7, 8, 8, 8, 8],
        [8, 8, 7, 8, 8, 8, 8, 8],
    ]


def test_an_empty_window_is_no_edit():
    slots = slots_with(**PENALTIES, penalty_last_n=0)
    assert slots.edits == ()
    assert not slots.facts.any_edit

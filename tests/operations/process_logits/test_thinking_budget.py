"""A thinking budget: once it is spent, the ids of the end come one by one, whatever else would be allowed."""

import torch

import tokendraw
from tokendraw import Drafts, RequestSlots, SamplingParams

V = 12
START, END = (1, 2), (8, 9, 10)


def allowed(slots, drafts=None, bitmask=None):
    """Return the ids that rows of slot 1 may draw."""
    processor = tokendraw.load("process_logits", "native", device="cpu")
    rows = 1 + len(drafts or ())
    layout = None if drafts is None else Drafts.from_lists([drafts])
    logits = processor.process(torch.zeros(rows, V), slots, torch.tensor([1]), bitmask, layout)
    found = [row.isfinite().nonzero().flatten().tolist() for row in logits]
    return found if drafts is not None else found[0]


def slots_with(prompt=(), output=(), budget=3, end=END, **fields):
    slots = RequestSlots(2, 40, V)
    slots.add(1, SamplingParams(thinking_budget=(budget, START, end), **fields), prompt, output)
    return slots


EVERY_ID = [*range(V)]


def test_a_greedy_model_that_never_stops_thinking_is_brought_to_the_end_and_goes_on():
    slots = slots_with([0, *START])
    tokens = []
    for _ in range(9):
        tokens.append(allowed(slots)[-4 if len(allowed(slots)) == V else 0])  # id 8 where all are allowed
        slots.append([1], tokens[-1:])
    assert tokens == [8, 8, 8, 9, 10, 8, 8, 8, 8]
    assert allowed(slots) == EVERY_ID


def test_tokens_are_counted_from_the_newest_start_and_those_of_the_prompt_are_not():
    assert allowed(slots_with([*START, 5, 5, 5, 5], [6, 6])) == EVERY_ID
    assert allowed(slots_with([*START, 5, 5, 5, 5], [6, 6, 6])) == [8]
    assert allowed(slots_with([*START, 5], [6, 6, *START, 6, 6])) == EVERY_ID
    assert allowed(slots_with([], [*START, 6, 6, 6])) == [8]
    assert allowed(slots_with([], [1, 6, 2, 6, 6, 6])) == EVERY_ID


def test_thinking_ends_with_the_whole_end_behind_the_start():
    assert allowed(slots_with([*START], [*END, 6, 6, 6])) == EVERY_ID
    assert allowed(slots_with([*END, *START], [6, 6, 6])) == [8]
    assert allowed(slots_with([*START], [8, 9, 6, 6])) == [8]


def test_an_end_that_the_model_began_is_continued():
    assert allowed(slots_with([*START], [6, 6, 8])) == [9]
    assert allowed(slots_with([*START], [6, 8, 9])) == [10]
    assert allowed(slots_with([*START], [6, 4, 4, 5], end=(4, 4, 5, 4, 4, 7))) == [4]
    assert allowed(slots_with([*START], [4, 4, 5, 4, 4, 5], end=(4, 4, 5, 4, 4, 7))) == [4]


def test_an_id_of_the_start_is_none_of_the_end():
    assert allowed(slots_with([*START], budget=0, end=(2, 3))) == [2]
    assert allowed(slots_with([*START], [2], budget=0, end=(2, 3))) == [3]


def test_placeholders_count_as_drawn_tokens():
    assert allowed(slots_with([*START], [6, V, 6])) == [8]


def test_rows_of_a_verification_count_the_drafts_before_them():
    assert allowed(slots_with([*START], [6]), drafts=[6, 6, 8, 9, 10]) == [
        EVERY_ID,
        EVERY_ID,
        [8],
        [9],
        [10],
        EVERY_ID,
    ]


def test_masks_are_set_aside_for_the_end_alone():
    no_end = torch.full((1, 1), 0b0000_1111_1111, dtype=torch.int32)
    masked = {
        "allowed_token_ids": [5],
        "bad_words": [[8]],
        "min_tokens": 20,
        "stop_token_ids": [8],
    }
    assert allowed(slots_with([*START], [6, 6, 6], **masked), bitmask=no_end) == [8]
    assert allowed(slots_with([*START], [6, 6], **masked), bitmask=no_end) == [5]


def test_biases_and_penalties_change_the_logit_of_the_forced_id():
    slots = slots_with([*START], [8, 6, 6], logit_bias={8: 2.0, 3: 5.0}, presence_penalty=0.5)
    logits = torch.zeros(1, V)
    tokendraw.load("process_logits", "native", device="cpu").process(logits, slots, torch.tensor([1]))
    assert logits[0, 8] == 1.5
    assert logits.isfinite().sum() == 1


def test_a_row_without_a_request_keeps_its_bitmask():
    slots, mask = slots_with([*START], [6, 6, 6]), torch.ones(2, 1, dtype=torch.int32)
    logits = torch.zeros(2, V)
    processor = tokendraw.load("process_logits", "native", device="cpu")
    processor.process(logits, slots, torch.tensor([1, 0]), mask)
    assert [row.isfinite().nonzero().flatten().tolist() for row in logits] == [[8], [0]]

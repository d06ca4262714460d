"""A preemption changes no bit of a request's edits."""

import torch

import edit_model
import tokendraw
from tokendraw import RequestSlots, SamplingParams
from tokendraw_native.logits_processing import NativeProcessor


def bits(logits):
    return logits.view(torch.int32)


def test_a_preemption_at_every_step_changes_no_bit_of_the_edits(device):
    """With all edits, placeholders in prompt, output and drafts, and rows of samples and verifications."""
    processor = tokendraw.load("process_logits", device=device)
    before, after = edit_model.rows_of_twins(processor, device)
    assert torch.equal(bits(after[:, 1]), bits(after[:, 0]))
    assert torch.equal(bits(after[:, 0]), bits(edit_model.expected(before)))


def test_an_output_passed_as_prompt_is_edited_otherwise():
    wanted = {
        "frequency_penalty": SamplingParams(frequency_penalty=1.0),
        "presence_penalty": SamplingParams(presence_penalty=1.0),
        "min_tokens": SamplingParams(min_tokens=2, stop_token_ids=[1]),
        "bad_words": SamplingParams(bad_words=[[5, 6, 2]]),
    }
    for name, params in wanted.items():
        slots = RequestSlots(2, 8, 10)
        slots.add(0, params, [1, 2], output_token_ids=[5, 6])
        slots.add(1, params, [1, 2, 5, 6])
        logits = torch.ones(2, 10)
        NativeProcessor().process(logits, slots, torch.arange(2))
        assert not torch.equal(logits[0], logits[1]), name


def test_an_output_takes_room_and_goes_with_its_request():
    slots = RequestSlots(1, 5, 10)
    slots.add(0, SamplingParams(frequency_penalty=1.0), [1, 2], output_token_ids=torch.tensor([5, 5]))
    assert slots.tables.counts[0].tolist() == [0, 1, 1, 0, 0, 32, 0, 0, 0, 0]
    assert (slots.tables.num_prompt.tolist(), slots.tables.num_tokens.tolist()) == ([2], [4])
    slots.append([0], [5])
    assert slots.tables.counts[0, 5] == 48
    slots.remove(0)
    assert int(slots.tables.counts.count_nonzero()) == 0

"""Edits by native change no bits of a NaN, and a preemption changes none of the edits."""

import pytest
import torch

import edit_model
import tokendraw
from tokendraw import RequestSlots, SamplingParams
from tokendraw_native.logits_processing import NativeProcessor


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_nan_that_nobody_edits_keeps_its_bits_beside_ids_that_are_edited(dtype):
    """The list is long enough for torch's vectorized copy, which changes the bits of every NaN."""
    vocab_size, prompt = 40, list(range(40))
    slots = RequestSlots(3, 60, vocab_size, device="cpu")
    for slot in range(3):
        slots.add(slot, SamplingParams(presence_penalty=1.0, logit_bias={1: 1.0}), prompt_token_ids=prompt)
        slots.append([slot], [2])
    logits = torch.full((3, vocab_size), float("nan"), dtype=dtype)
    before = logits.view(torch.int16).clone()
    NativeProcessor().process(logits, slots, torch.arange(3))
    assert torch.equal(logits.view(torch.int16), before)


def bits(logits):
    return logits.view(torch.int32)


def test_a_preemption_at_every_step_changes_no_bit_of_the_edits(device):
    """With all edits, placeholders in prompt, output and drafts, and rows of samples and verifications."""
    processor = tokendraw.load("process_logits", device=device)
    before, after = edit_model.rows_of_twins(processor, device)
    assert torch.equal(bits(after[:, 1]), bits(after[:, 0]))
    assert torch.equal(bits(after[:, 0]), bits(edit_model.expected(before)))

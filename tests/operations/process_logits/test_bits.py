"""Edits by native change no bits of a NaN."""

import pytest
import torch

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

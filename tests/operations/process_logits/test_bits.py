"""native's edits have the bits of a plain float32 model, the reference of every provider."""

import numpy as np
import pytest
import torch

import edit_model
from tokendraw import RequestSlots, SamplingParams
from tokendraw_native.logits_processing import NativeProcessor

MOST_TOKENS = 60


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("drafted", [None, "listed", "padded"])
@pytest.mark.fast_first
def test_every_edit_has_the_bits_of_float32_arithmetic(dtype, drafted):
    rng, processor = np.random.default_rng(1), NativeProcessor()
    for vocab_size in (1, 97, 500):
        for masked in (False, True):
            for listed in (False, True):
                requests = [
                    edit_model.random_request(rng, vocab_size, MOST_TOKENS - 10, listed=listed)
                    for _ in range(5)
                ]
                slots = edit_model.slots_of(requests, MOST_TOKENS, vocab_size, "cpu")
                batch = edit_model.batch(
                    rng, requests, vocab_size, dtype, "cpu", drafted=drafted, masked=masked
                )
                processor.process(batch.logits, slots, batch.row_index, batch.bitmask, batch.drafts)
                assert batch.wrong() == 0, (vocab_size, masked, listed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_nan_that_nobody_edits_keeps_its_bits_beside_ids_that_are_edited(dtype):
    """The list is long enough for torch's vectorized copy, which changes the bits of every NaN."""
    vocab_size, prompt = 40, list(range(40))
    slots = RequestSlots(3, MOST_TOKENS, vocab_size, device="cpu")
    for slot in range(3):
        slots.add(slot, SamplingParams(presence_penalty=1.0, logit_bias={1: 1.0}), prompt_token_ids=prompt)
        slots.append([slot], [2])
    logits = torch.full((3, vocab_size), float("nan"), dtype=dtype)
    before = logits.view(torch.int16).clone()
    NativeProcessor().process(logits, slots, torch.arange(3))
    assert torch.equal(logits.view(torch.int16), before)

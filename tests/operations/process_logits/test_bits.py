"""native's edits have the bits of a plain model in float32, of which other providers take theirs."""

import numpy as np
import pytest
import torch

import edit_model
from tokendraw_native.logits_processing import NativeProcessor

MOST_TOKENS = 60


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("drafted", [None, "listed", "padded"])
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

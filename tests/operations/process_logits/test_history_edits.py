"""Edits that read the history of a request, in native: no wait on a device, and nothing done where nobody asks."""

import pytest
import torch

from cuda_batches import NoWait
from tokendraw import Drafts, RequestSlots, SamplingParams
from tokendraw_native import logits_processing
from tokendraw_native.logits_processing import NativeProcessor

V = 60
PARAMS = SamplingParams(
    repetition_penalty=1.5,
    penalty_last_n=6,
    logit_bias={3: 1.0},
    dry_multiplier=0.8,
    dry_sequence_breakers=[7],
    thinking_budget=(9, [1, 2], [3, 4]),
)


def batch(params, device, *, drafted):
    slots = RequestSlots(2, 16, V, device=device)
    for slot in range(2):
        slots.add(slot, params, [1, 2, 3, 4, 1], output_token_ids=[2, 3])
    drafts, rows = None, 2
    if drafted:
        ids = torch.tensor([1, 2, 3]).to(device)
        offsets = torch.tensor([0, 3, 5]).to(device)
        drafts, rows = Drafts(draft_token_ids=ids, cu_num_logits=offsets, max_drafts=2), 5
    bitmask = torch.full((rows, 2), -1, dtype=torch.int32, device=device)
    return torch.zeros(rows, V, device=device), slots, torch.tensor([1, 0]).to(device), bitmask, drafts


@pytest.mark.parametrize("drafted", [False, True])
def test_no_edit_waits_for_the_device(drafted):
    arguments = batch(PARAMS, "meta", drafted=drafted)
    with NoWait("meta"):
        NativeProcessor().process(*arguments)


def test_a_batch_in_which_no_request_asks_reads_no_history(monkeypatch):
    def read(*arguments):
        raise AssertionError("the history was read")

    monkeypatch.setattr(logits_processing, "recent_tokens", read)
    plain = SamplingParams(repetition_penalty=1.5, presence_penalty=1.0, logit_bias={3: 1.0})
    NativeProcessor().process(*batch(plain, "cpu", drafted=True))
    with pytest.raises(AssertionError, match="the history was read"):
        NativeProcessor().process(*batch(PARAMS, "cpu", drafted=True))

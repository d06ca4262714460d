"""Impossible edits are refused with argument, needed and found, before anything runs or a logit changes."""

import numpy as np
import pytest
import torch

import tokendraw
from tokendraw import Drafts, InvalidInputError, InvalidParameterError, RequestSlots, SamplingParams

VOCAB_SIZE = 70
LOGITS = torch.zeros(3, VOCAB_SIZE)
INDEX = torch.tensor([2, 0, 1])
MASK = torch.zeros(3, 3, dtype=torch.int32)
RETURNED = "Pass logits.contiguous(), and use what is returned."
INPUTS = {
    "'logits' needs a torch.Tensor, found list. Pass torch.as_tensor(logits), of shape [B, V].": {
        "logits": [[0.0]]
    },
    "'logits' needs shape [B, V] with V >= 1, found [70].": {"logits": LOGITS[0]},
    "'logits' needs dtype float32, bfloat16, float16, found torch.float64.": {"logits": LOGITS.double()},
    "'logits' needs device cpu, where the processor was built, found meta. Move the logits, or load a processor for "
    "meta.": {"logits": LOGITS.to("meta")},
    "'logits' needs to be free of gradients, since it is edited in place, found requires_grad. Pass "
    "logits.detach().": {"logits": LOGITS.clone().requires_grad_()},
    f"'logits' needs the ids of a row one behind the other, found stride 3. {RETURNED}": {
        "logits": torch.zeros(VOCAB_SIZE, 3).T
    },
    "'logits' needs rows with memory of their own, since it is edited in place, found row stride 0 of 70 ids. "
    f"{RETURNED}": {"logits": LOGITS[:1].expand(3, VOCAB_SIZE)},
    "'logits' needs rows with memory of their own, since it is edited in place, found row stride 69 of 70 ids. "
    f"{RETURNED}": {"logits": torch.zeros(300).as_strided((3, VOCAB_SIZE), (VOCAB_SIZE - 1, 1))},
    "'logits' needs the vocabulary of 'slots', 70, found 64. Pass slots that were made with the vocab_size of the "
    "logits.": {"logits": LOGITS[:, :64].contiguous()},
    "'slots' needs a tokendraw.RequestSlots, found tokendraw.SamplingParams. Pass the one that the requests were added "
    "to.": {"slots": SamplingParams()},
    "'slots' needs the device of 'logits', cpu, found meta. Make the slots with device= of the logits.": {
        "slots": RequestSlots(4, 8, VOCAB_SIZE, device="meta")
    },
    "'row_index' needs a torch.Tensor, found list. Pass a tensor of slots on the device of the logits.": {
        "row_index": [2, 0, 1]
    },
    "'row_index' needs one dimension, found shape [3, 1].": {"row_index": INDEX.view(3, 1)},
    "'row_index' needs an integer dtype, found torch.float32.": {"row_index": INDEX.float()},
    "'row_index' needs one slot for each row, 3, found 2.": {"row_index": INDEX[:2]},
    "'row_index' needs the device of 'logits', cpu, found meta. Pass row_index.to('cpu').": {
        "row_index": INDEX.to("meta")
    },
    "'row_index' needs one slot for each request, 2, found 3.": {"drafts": Drafts.from_lists([[5], []])},
    "'bitmask' needs a torch.Tensor, found numpy.ndarray. Pass a tensor of int32 words, or None.": {
        "bitmask": np.zeros((3, 3), "i4")
    },
    "'bitmask' needs shape [3, 3], one bit for each of 70 ids, found [3, 70].": {
        "bitmask": torch.ones(3, VOCAB_SIZE, dtype=torch.bool)
    },
    "'bitmask' needs shape [3, 3], one bit for each of 70 ids, found [2, 3].": {"bitmask": MASK[:2]},
    "'bitmask' needs dtype torch.int32, found torch.int64. Pass 32 ids a word, as xgrammar does.": {
        "bitmask": MASK.long()
    },
    "'bitmask' needs the device of 'logits', cpu, found meta. Pass bitmask.to('cpu').": {
        "bitmask": MASK.to("meta")
    },
    "'bitmask' needs the words of a row one behind the other, found stride 3. Pass bitmask.contiguous().": {
        "bitmask": MASK.T
    },
    "'drafts' needs a tokendraw.Drafts or None, found list. Pass Drafts.from_lists(draft_token_ids, device=...).": {
        "drafts": [[5], []]
    },
    "'logits' needs 4 rows, one for each draft and one more for each of the 2 requests, found 3.": {
        "drafts": Drafts.from_lists([[5], [6]])
    },
}
VALUES = {
    "'row_index' of row 2 needs an integer in [0, 3], found 4.": torch.tensor([2, 0, 4]),
    "'row_index' of row 0 needs an integer in [0, 3], found -1.": torch.tensor([-1, 0, 1]),
}


@pytest.fixture(scope="module")
def processor():
    return tokendraw.load("process_logits", "native", device="cpu")


@pytest.fixture
def asked():
    slots = RequestSlots(num_slots=4, max_tokens=8, vocab_size=VOCAB_SIZE, device="cpu")
    for slot in range(3):
        slots.add(slot, SamplingParams(logit_bias={1: 1.0}), prompt_token_ids=[1])
    return {"logits": LOGITS.clone(), "slots": slots, "row_index": INDEX, "bitmask": MASK, "drafts": None}


@pytest.mark.parametrize("message", INPUTS)
def test_what_cannot_be_edited_is_refused(processor, asked, message):
    with pytest.raises(InvalidInputError) as refused:
        processor.process(**asked | INPUTS[message])
    assert str(refused.value) == message
    assert isinstance(refused.value, ValueError)
    assert torch.equal(asked["logits"], LOGITS)


@pytest.mark.parametrize("message", VALUES)
def test_slots_that_there_are_not_are_refused_where_the_host_sees_them(processor, asked, message):
    with pytest.raises(InvalidParameterError) as refused:
        processor.process(**asked | {"row_index": VALUES[message]})
    assert str(refused.value) == message
    assert torch.equal(asked["logits"], LOGITS)

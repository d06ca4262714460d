"""Edits by native change no bits of a NaN, and a preemption changes none of the edits."""

import pytest
import torch

import tokendraw
from tokendraw import Drafts, RequestSlots, SamplingParams, VerifyOutput
from tokendraw_native.logits_processing import NativeProcessor
from tokendraw_testing.reference_edits import edit


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


# Requests with and without preemption.


VOCAB_SIZE = 60
STEPS = 16
PROMPT = [3, VOCAB_SIZE, 9, -1, 3, 5]
"""With two placeholders, as of images."""
OUTPUT = [5, 9, 3, 3, VOCAB_SIZE + 7, 9, 7, 5, 9, 3, 3, 9, 8, 5, 9, 7, 3, 9, 9, 5, 3, 7, 8, 9]
PARAMS = SamplingParams(
    repetition_penalty=1.3,
    frequency_penalty=0.7,
    presence_penalty=-0.4,
    logit_bias={3: 2.5, 11: -1.0},
    allowed_token_ids=list(range(50)),
    bad_words=[[5, 9, 20], [3, 3, 9, 21], [3, 9, 22], [9, 23], [5, 5, 24], [25]],
    min_tokens=9,
    stop_token_ids=[1, 9],
)
DRAFTS = [5, 9, VOCAB_SIZE, 3]


def rows_of_twins(processor, device):
    """Edit a row and five rows of a verification for both requests, at every step.

    :returns: logits [steps, 2, 6, V] before and after the edits; slice 0 without preemption, slice 1 with.
    """
    slots = RequestSlots(4, 40, VOCAB_SIZE, device=device)
    slots.add(0, PARAMS, PROMPT)
    generator, output = torch.Generator().manual_seed(1), []
    before, after = [], []
    for step in range(STEPS):
        slot = 1 + step % 3  # another slot than before
        slots.add(slot, PARAMS, PROMPT, output_token_ids=output)
        logits = torch.randn(6, VOCAB_SIZE, generator=generator) * 4
        before.append(logits.expand(2, -1, -1).clone())
        after.append(torch.stack([_edited(processor, slots, twin, logits) for twin in (0, slot)]))
        slots.remove(slot)
        drawn = OUTPUT[len(output) : len(output) + 1 + step % 2]
        output += drawn
        _append(slots, drawn)
    return torch.stack(before), torch.stack(after)


def expected(before):
    """Edit the rows of the request by the kit's reference."""
    result, output = [], []
    for step, rows in enumerate(before[:, 0]):
        histories = [output, *([*output, *DRAFTS[:j]] for j in range(len(rows) - 1))]
        edited = [
            edit(row.numpy(), PARAMS, PROMPT, ids).values for row, ids in zip(rows, histories, strict=True)
        ]
        result.append(torch.stack([torch.from_numpy(row) for row in edited]))
        output += OUTPUT[len(output) : len(output) + 1 + step % 2]
    return torch.stack(result)


def _edited(processor, slots, slot, logits):
    row_index = torch.tensor([slot], device=slots.device)
    edited = logits.to(slots.device, copy=True)
    processor.process(edited[:1], slots, row_index)
    processor.process(edited[1:], slots, row_index, None, Drafts.from_lists([DRAFTS], device=slots.device))
    return edited.cpu()


def _append(slots, drawn):
    """Append a token like a step, or several tokens like a verification."""
    rows = torch.tensor([0], device=slots.device)
    if len(drawn) == 1:
        slots.append(rows, drawn)
        return
    chain = torch.tensor([[*drawn, -1]], device=slots.device)
    slots.append_verified(rows, VerifyOutput(chain, chain, chain))


def bits(logits):
    return logits.view(torch.int32)


def test_a_preemption_at_every_step_changes_no_bit_of_the_edits(device):
    """With all edits, placeholders in prompt, output and drafts, and rows of samples and verifications."""
    processor = tokendraw.load("process_logits", device=device)
    before, after = rows_of_twins(processor, device)
    assert torch.equal(bits(after[:, 1]), bits(after[:, 0]))
    assert torch.equal(bits(after[:, 0]), bits(expected(before)))

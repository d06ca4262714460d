"""Edits the rows of a request without preemption, and of the same request with a preemption at every step."""

import torch

import edit_model
from tokendraw import Drafts, RequestSlots, SamplingParams, VerifyOutput

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
    allowed_token_ids=range(50),
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
    """Edit the rows of the request by the plain model."""
    found, output = [], []
    request = edit_model.Request(PROMPT, output, **_FIELDS)
    for step, rows in enumerate(before[:, 0]):
        edited = [edit_model.edit(rows[0].numpy(), request)]
        edited += [edit_model.edit(row.numpy(), request, DRAFTS[:j]) for j, row in enumerate(rows[1:])]
        found.append(torch.stack([torch.from_numpy(row) for row in edited]))
        output += OUTPUT[len(output) : len(output) + 1 + step % 2]
    return torch.stack(found)


_FIELDS = {
    "repetition": PARAMS.repetition_penalty,
    "frequency": PARAMS.frequency_penalty,
    "presence": PARAMS.presence_penalty,
    "bias": PARAMS.logit_bias,
    "allowed": list(PARAMS.allowed_token_ids),
    "bad_words": PARAMS.bad_words,
    "min_tokens": PARAMS.min_tokens,
    "stop_ids": PARAMS.stop_token_ids,
}


def _edited(processor, slots, slot, logits):
    row_index = torch.tensor([slot], device=slots.device)
    edited = logits.to(slots.device, copy=True)
    processor.process(edited[:1], slots, row_index)
    processor.process(edited[1:], slots, row_index, None, Drafts.from_lists([DRAFTS], device=slots.device))
    return edited.cpu()


def _append(slots, drawn):
    """Append one token like a step, or several like a verification."""
    rows = torch.tensor([0], device=slots.device)
    if len(drawn) == 1:
        slots.append(rows, drawn)
        return
    chain = torch.tensor([[*drawn, -1]], device=slots.device)
    slots.append_verified(rows, VerifyOutput(chain, chain, chain))

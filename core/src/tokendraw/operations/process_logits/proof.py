"""Proves a processor by edits whose outcome is known."""

from __future__ import annotations

import torch

from tokendraw._exchange.params import SamplingParams
from tokendraw._exchange.request_slots.slots import RequestSlots
from tokendraw._messages.errors import PluginError
from tokendraw.operations.process_logits.backend import LogitsProcessorBackend
from tokendraw.operations.process_logits.capabilities import ProcessCapabilities, ProcessNeed

_VOCAB_SIZE = 40
_OFF = float("-inf")
_EDITS = {
    "repetition_penalty": 2.0,
    "presence_penalty": 1.0,
    "frequency_penalty": 0.5,
    "logit_bias": {3: 4.0},
    "bad_words": [[1, 2]],
}


def prove(
    backend: LogitsProcessorBackend,
    capabilities: ProcessCapabilities,
    device: torch.device,
    need: ProcessNeed,
) -> None:
    """Edit one row of 40 logits of 8, whose request has the prompt 0 and the output 1, with a bitmask of two words.

    :raises PluginError: the logits are not what they have to be.
    """
    dtype = getattr(torch, need.dtype or (*capabilities.dtypes, "float32")[0])
    slots = RequestSlots(num_slots=2, max_tokens=4, vocab_size=_VOCAB_SIZE, device=device)
    slots.add(1, SamplingParams(**_EDITS), prompt_token_ids=[0])  # type: ignore[arg-type]
    row_index = torch.ones(1, dtype=torch.int64, device=device)
    slots.append(row_index, row_index)
    logits = torch.full((1, _VOCAB_SIZE), 8.0, dtype=dtype, device=device)
    bitmask = torch.full((1, 2), -1, dtype=torch.int32, device=device)
    bitmask[:, 1:] = ~(1 << 7)  # id 39
    output = backend.process(logits, slots, row_index, bitmask)
    if output is not logits:
        raise PluginError(f"the proof call needs the logits that it was given, found {type(output).__name__}")
    needed = [4.0, 2.5, _OFF, 12.0, *[8.0] * 35, _OFF]
    for i, (want, got) in enumerate(zip(needed, logits[0].tolist(), strict=True)):
        if got != want:
            raise PluginError(f"the proof call needs {want} as logit {i}, found {got}")

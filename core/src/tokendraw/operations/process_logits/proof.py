"""Proves a processor by edits of known outcome."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from tokendraw.errors.exceptions import PluginError
from tokendraw.operations.process_logits.capabilities import (
    LogitsProcessorBackend,
    ProcessCapabilities,
    ProcessNeed,
)
from tokendraw.parameters.edits import Edit
from tokendraw.parameters.params import SamplingParams
from tokendraw.request_slots.slots import RequestSlots

_VOCAB_SIZE = 40
_OFF = float("-inf")
_EDITS: dict[Edit, dict[str, Any]] = {
    "allowed_token_ids": {"allowed_token_ids": [i for i in range(_VOCAB_SIZE) if i != 4]},
    "bad_words": {"bad_words": [[1, 2]]},
    "min_tokens": {"min_tokens": 2, "stop_token_ids": [5]},
    "logit_bias": {"logit_bias": {3: 4.0}},
    "repetition_penalty": {"repetition_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "presence_penalty": {"presence_penalty": 1.0},
}


def prove(
    backend: LogitsProcessorBackend,
    capabilities: ProcessCapabilities,
    device: torch.device,
    need: ProcessNeed,
) -> None:
    """Edit a row of 40 logits of 8, for a request with prompt 0 and output 1, with a bitmask of two words.

    Of all edits those that are advertised are asked for.

    :raises PluginError: the logits are not what they have to be.
    """
    dtype = getattr(torch, need.dtype or (*capabilities.dtypes, "float32")[0])
    slots = RequestSlots(num_slots=2, max_tokens=4, vocab_size=_VOCAB_SIZE, device=device)
    served = capabilities.edits
    params = {
        name: value for edit, fields in _EDITS.items() if edit in served for name, value in fields.items()
    }
    slots.add(1, SamplingParams(**params), prompt_token_ids=[0])
    row_index = torch.ones(1, dtype=torch.int64, device=device)
    slots.append(row_index, row_index)
    logits = torch.full((1, _VOCAB_SIZE), 8.0, dtype=dtype, device=device)
    bitmask = None
    if "bitmask" in served:
        bitmask = torch.full((1, 2), -1, dtype=torch.int32, device=device)
        bitmask[:, 1:] = ~(1 << 7)  # id 39
    output = backend.process(logits, slots, row_index, bitmask)
    if output is not logits:
        raise PluginError(f"the proof call needs the logits that it was given, found {type(output).__name__}")
    needed = _needed(served)
    for i, (want, got) in enumerate(zip(needed, logits[0].tolist(), strict=True)):
        if got != want:
            raise PluginError(f"the proof call needs {want} as logit {i}, found {got}")


def _needed(served: Collection[Edit]) -> list[float]:
    """Compute the expected logits of the row of eights."""
    needed = [8.0] * _VOCAB_SIZE
    if "logit_bias" in served:
        needed[3] += 4.0
    if "repetition_penalty" in served:
        needed[0], needed[1] = 4.0, 4.0
    needed[1] -= 0.5 * ("frequency_penalty" in served) + 1.0 * ("presence_penalty" in served)
    forbidden: dict[int, Edit] = {2: "bad_words", 4: "allowed_token_ids", 5: "min_tokens", 39: "bitmask"}
    for token, edit in forbidden.items():
        if edit in served:
            needed[token] = _OFF
    return needed

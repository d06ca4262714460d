"""Requests in slots with edits of their logits, as an engine adds, extends and removes them, and random ones."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator

from tokendraw import RequestSlots, SamplingParams
from tokendraw.plugin import EDITS, Edit
from tokendraw_testing.reference import Array

MAX_TOKENS: Final = 64
_PLAIN_PARAMS: Final = SamplingParams()


@dataclass
class EditRequest:
    """Parameters, prompt and output of a request in a slot."""

    params: SamplingParams
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)


@dataclass
class Engine:
    """Slots and their requests."""

    slots: RequestSlots
    requests: dict[int, EditRequest]
    edits: Collection[Edit] = EDITS
    """Names of the edits that requests may ask for."""

    def add(self, requests: Mapping[int, EditRequest]) -> None:
        """Add requests to empty slots, limited to :attr:`edits`; append their outputs token by token."""
        outputs = {}
        for slot, request in requests.items():
            disabled_edits: dict[str, Any] = {
                name: getattr(_PLAIN_PARAMS, name) for name in EDITS[1:] if name not in self.edits
            }
            request.params = replace(request.params, **disabled_edits)
            self.slots.add(slot, request.params, prompt_token_ids=request.prompt)
            self.requests[slot] = request
            outputs[slot], request.output = request.output, []
        for tokens in itertools.zip_longest(*outputs.values()):
            pairs = zip(outputs, tokens, strict=True)
            self.append({slot: token for slot, token in pairs if token is not None})

    def append(self, tokens: Mapping[int, int]) -> None:
        """Append a token to each of some slots."""
        device = self.slots.device
        row_index = torch.tensor(list(tokens), dtype=torch.int64, device=device)
        self.slots.append(row_index, torch.tensor(list(tokens.values()), dtype=torch.int64, device=device))
        for slot, token in tokens.items():
            self.requests[slot].output.append(token)

    def remove(self, slot: int) -> None:
        """Remove a request."""
        self.slots.remove(slot)
        del self.requests[slot]


def random_request(rng: Generator, vocab_size: int) -> EditRequest:
    """Draw a request of no, some or all edits, with common or separate ids.

    Its prompt ends with placeholders.
    """
    pool = rng.integers(0, vocab_size, int(rng.integers(1, 20)))

    def ids(most: int, least: int = 0) -> list[int]:
        return rng.choice(pool, int(rng.integers(least, most + 1))).tolist()  # type: ignore[no-any-return]

    def penalty() -> float:
        return float(rng.choice([0.0, 2.0, -2.0, rng.uniform(-2.0, 2.0)]))

    fields: dict[str, Any] = {
        "repetition_penalty": float(rng.choice([1.0, 1e-3, 3e4, rng.uniform(0.3, 3.0)])),
        "frequency_penalty": penalty(),
        "presence_penalty": penalty(),
        "logit_bias": {token: float(rng.choice([100.0, -100.0, rng.normal(0.0, 5.0)])) for token in ids(8)},
        "allowed_token_ids": sorted(
            {*ids(8, 1), *rng.integers(0, vocab_size, int(rng.integers(40))).tolist()}
        ),
        "bad_words": [ids(4, 1) for _ in range(rng.integers(1, 5))],
        "min_tokens": int(rng.integers(0, 30)),
        "stop_token_ids": sorted(set(ids(4))),
        "dry_multiplier": float(rng.uniform(0.0, 5.0)),
        "penalty_last_n": int(rng.choice([0, 1, 2, int(rng.integers(MAX_TOKENS))])),
    }
    share = rng.choice([0.1, 0.5, 0.9])
    chosen_fields = {name: value for name, value in fields.items() if rng.random() < share}
    if "min_tokens" in chosen_fields:
        chosen_fields["stop_token_ids"] = fields["stop_token_ids"]
    if "dry_multiplier" in chosen_fields:
        chosen_fields |= {
            "dry_base": float(rng.choice([1.0, 1.75, rng.uniform(1.0, 4.0), 1e20])),
            "dry_allowed_length": int(rng.integers(0, 4)),
            "dry_penalty_last_n": int(rng.choice([-1, -1, 0, 1, int(rng.integers(MAX_TOKENS))])),
            "dry_sequence_breakers": ids(2),
        }
    if rng.random() < share / 3:
        chosen_fields["thinking_budget"] = (int(rng.integers(0, 20)), ids(2, 1), ids(3, 1))
    half = MAX_TOKENS // 3
    return EditRequest(SamplingParams(**chosen_fields), [*ids(half), -1, vocab_size], ids(half))


def pack_bitmask(allowed: Array) -> Any:
    """Pack [rows, V] bool into words [rows, ceil(V / 32)] int32; every second row sets the bits behind the last id."""
    rows, vocab_size = allowed.shape
    bits = np.zeros((rows, -(-vocab_size // 32) * 32), bool)
    bits[::2] = True
    bits[:, :vocab_size] = allowed
    return np.packbits(bits, axis=1, bitorder="little").view("<i4")

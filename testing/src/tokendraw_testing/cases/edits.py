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
PENALTIES: Final[tuple[Edit, ...]] = "repetition_penalty", "frequency_penalty", "presence_penalty"
_PLAIN_PARAMS: Final = SamplingParams()


@dataclass
class EditRequest:
    """Parameters, prompt and output of a request in a slot."""

    params: SamplingParams = _PLAIN_PARAMS
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)


def limited(params: SamplingParams, edits: Collection[Edit]) -> SamplingParams:
    """Return a request without the edits that are none of ``edits``."""
    off: dict[str, Any] = {name: getattr(_PLAIN_PARAMS, name) for name in EDITS[1:] if name not in edits}
    return replace(params, **off)


class Engine:
    """Slots and their requests, which ask for nothing but ``edits``."""

    def __init__(
        self, num_slots: int, vocab_size: int, device: torch.device, edits: Collection[Edit] = EDITS
    ) -> None:
        self.slots = RequestSlots(num_slots, MAX_TOKENS, vocab_size, device=device)
        self.requests: dict[int, EditRequest] = {}
        self.edits = edits

    def add(self, requests: Mapping[int, EditRequest]) -> None:
        """Add requests to empty slots, and append their outputs token by token."""
        for slot, request in requests.items():
            params = limited(request.params, self.edits)
            self.slots.add(slot, params, prompt_token_ids=request.prompt)
            self.requests[slot] = EditRequest(params, request.prompt)
        for tokens in itertools.zip_longest(*(request.output for request in requests.values())):
            pairs = zip(requests, tokens, strict=True)
            self.append({slot: token for slot, token in pairs if token is not None})

    def append(self, tokens: Mapping[int, int]) -> None:
        columns = torch.tensor([[*tokens], [*tokens.values()]], dtype=torch.int64, device=self.slots.device)
        self.slots.append(*columns)
        for slot, token in tokens.items():
            self.requests[slot].output.append(token)

    def remove(self, slot: int) -> None:
        self.slots.remove(slot)
        del self.requests[slot]


def random_request(rng: Generator, vocab_size: int, only: Edit | None = None) -> EditRequest:
    """Draw a request of some edits, with common or separate ids; its prompt ends with placeholders.

    :param only: the edit that it asks for, beside those that it shows in; None: none, some or all.
    """
    pool = rng.integers(0, vocab_size, int(rng.integers(1, 20)))

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    def ids(most: int, least: int = 0) -> list[int]:
        return rng.choice(pool, int(rng.integers(least, most + 1))).tolist()  # type: ignore[no-any-return]

    prompt, output = [*ids(MAX_TOKENS // 3), -1, vocab_size], ids(MAX_TOKENS // 3)
    start = output[(at := int(rng.integers(len(output) + 1))) : at + int(rng.integers(1, 3))] or ids(2, 1)
    num_tokens = int(one_of(len(output) - 1, len(output), len(output) + 1, rng.integers(30)))
    fields: dict[Edit, dict[str, Any]] = {
        "repetition_penalty": {"repetition_penalty": one_of(1e-3, 3e4, rng.uniform(0.3, 3.0))},
        "frequency_penalty": {"frequency_penalty": one_of(2.0, -2.0, rng.uniform(-2.0, 2.0))},
        "presence_penalty": {"presence_penalty": one_of(2.0, -2.0, rng.uniform(-2.0, 2.0))},
        "logit_bias": {
            "logit_bias": {x: float(one_of(100.0, -100.0, rng.normal(0.0, 5.0))) for x in ids(8, 1)}
        },
        "allowed_token_ids": {
            "allowed_token_ids": sorted({*ids(8, 1), *rng.integers(0, vocab_size, rng.integers(40)).tolist()})
        },
        "bad_words": {"bad_words": [[*output[-rng.integers(1, 4) :], *ids(1, 1)], ids(4, 1), ids(2, 1)]},
        "min_tokens": {"min_tokens": max(1, num_tokens), "stop_token_ids": sorted(set(ids(4, 1)))},
        "dry_multiplier": {
            "dry_multiplier": rng.uniform(0.1, 5.0),
            "dry_base": one_of(1.0, 1.75, rng.uniform(1.0, 4.0), 1e20),
            "dry_allowed_length": int(rng.integers(0, 4)),
            "dry_penalty_last_n": int(one_of(-1, -1, 0, 1, rng.integers(MAX_TOKENS))),
            "dry_sequence_breakers": ids(2),
        },
        "penalty_last_n": {"penalty_last_n": int(one_of(0, 1, 2, rng.integers(MAX_TOKENS)))},
        "thinking_budget": {"thinking_budget": (int(one_of(0, 1, 2, rng.integers(20))), start, ids(3, 1))},
    }
    shown = {"penalty_last_n": PENALTIES, "thinking_budget": ("logit_bias",)}
    chosen = {only, *shown.get(only or "", ())}
    if only is None:
        share = one_of(0.1, 0.5, 0.9)
        chosen = {name for name in fields if rng.random() < share / (3 if name == "thinking_budget" else 1)}
    asked = {name: value for edit in fields if edit in chosen for name, value in fields[edit].items()}
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in asked.items()}
    return EditRequest(SamplingParams(**plain), prompt, output)


def random_allowed(rng: Generator, rows: int, vocab_size: int) -> Array:
    """Draw bitmasks [rows, V] bool, of all ids, none, or a share of them."""
    return rng.random((rows, vocab_size)) < rng.choice([0.0, 0.01, 0.5, 0.99, 1.0, 1.0, 1.0], (rows, 1))


def pack_bitmask(allowed: Array) -> Any:
    """Pack [rows, V] bool into words [rows, ceil(V / 32)] int32; every second row sets the bits behind the last id."""
    rows, vocab_size = allowed.shape
    bits = np.zeros((rows, -(-vocab_size // 32) * 32), bool)
    bits[::2] = True
    bits[:, :vocab_size] = allowed
    return np.packbits(bits, axis=1, bitorder="little").view("<i4")

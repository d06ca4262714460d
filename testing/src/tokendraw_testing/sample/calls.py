"""The contract of a call: unmodified inputs, any stride, shared slots."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Final

import numpy as np
import torch

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_testing.kit.inputs import require_unmodified
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import FAMILIES, gaussian
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.dtypes import round_in_turn
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.requests import batches, combinations
from tokendraw_testing.rows.subjects import SampleSubject

properties = Properties("sample")

_STRIDED_SIZE: Final = 1100
"""Vocabulary in which rows of any stride have every request."""


@properties.required("inputs unmodified")
def inputs_unmodified(subject: SampleSubject, trial: Trial) -> str:
    """Logits keep every bit, and so do the tensors of the request, in calls of every kind."""
    size = 1500
    rng = trial.generator("rows")
    rows = np.stack([family(rng, size) for family in FAMILIES.values()] + [np.full(size, np.nan, np.float32)])
    modes = (None, *subject.capabilities.logprobs_modes)
    requests = combinations(subject.capabilities, size)
    for mode in modes:
        chosen_requests = requests[:: 1 if mode is None else max(1, len(requests) // 5)]
        made = batches(subject, chosen_requests, len(rows))
        for turn, batch in enumerate(made[-1:] if mode is not None and subject.effort.mixed else made):
            logits = round_in_turn(subject, turn, rows)[0].to(subject.device)
            params_list = [replace(params, logprobs=None if mode is None else 3) for params in batch]
            metadata = SamplingMetadata.from_params(params_list, device=subject.device)
            with require_unmodified(trial, logits=logits, metadata=metadata):
                subject.call(logits, metadata, mode=mode)
    return f"{len(requests)} requests, {len(modes) - 1} logprobs modes"


@properties.required("strides")
def strides(subject: SampleSubject, trial: Trial) -> str:
    """Rows of any stride, with +inf between them, and expanded rows draw what contiguous ones draw."""
    limit = subject.capabilities.max_vocab_size
    sizes = (_STRIDED_SIZE, 3, 1000, 4097, *[v for v in subject.effort.crossed_sizes if v > 1 << 16][:1])
    served_sizes = [size for size in sizes if size <= (limit or size)]
    for size in served_sizes[:: subject.effort.fewer]:
        _require_strides(subject, trial, size)
    return f"{len(served_sizes)} vocabularies in {len(subject.dtypes)} dtypes"


def _require_strides(subject: SampleSubject, trial: Trial, size: int) -> None:
    rows = subject.effort.rows(12, least=5) if size < 1 << 16 else 3
    rng = trial.generator(f"rows {size}")
    rows_of_logits = np.stack([gaussian(rng, size) for _ in range(rows)])
    rows_of_logits[np.arange(rows), rows_of_logits.argmax(1)] += (
        1  # so that top_k = 1 keeps one in a dtype of few bits
    )
    layouts = {
        f"{label} in {dtype}".replace("torch.", ""): pair
        for dtype in subject.dtypes
        for label, pair in _layouts(torch.from_numpy(rows_of_logits).to(subject.device, dtype)).items()
    }
    seeds, positions = random_seeds(rng, rows)
    counter = subject.capabilities.seeding == "counter"
    requests = [
        p for p in combinations(subject.capabilities, size) if counter or p.temperature == 0 or p.top_k == 1
    ]
    requests = requests or [SamplingParams()]
    chosen_requests = requests[:: max(1, len(requests) // (8 if size == _STRIDED_SIZE else 2))]
    for turn, (label, (contiguous, view)) in enumerate(layouts.items()):
        for batch in batches(subject, chosen_requests[turn % 2 :: 2] or chosen_requests, rows):
            pairs = zip(batch, seeds, strict=True)
            seeded = [replace(p, seed=s) if counter and p.temperature else p for p, s in pairs]
            torch.manual_seed(3)
            expected = subject.tokens(contiguous, seeded, positions)
            torch.manual_seed(3)
            output = subject.sample(view, seeded, positions)
            found_tokens = output.token_ids.cpu().numpy()
            trial.require(output.valid.all(), f"{label} need valid rows, found {output.valid.tolist()}")
            is_settled = [counter or p.temperature == 0 or p.top_k == 1 for p in batch]
            trial.require(
                (expected == found_tokens)[is_settled].all(),
                f"{label} need the tokens of contiguous rows, found others",
            )
            for x, params, token in zip(view.float().cpu().numpy(), batch, found_tokens, strict=True):
                possible = expect(x, params, subject.capabilities.tie_rule).possible
                trial.require(possible[token], f"{label} need tokens that are kept, found {token}")


def _layouts(logits: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return contiguous rows [B, V] and views with the same values, by layout."""
    rows, size = logits.shape
    buffer, interleaved = logits.new_full((rows, size + 37), inf), logits.new_full((2 * rows, size), inf)
    buffer[:, 5 : 5 + size], interleaved[::2] = logits, logits
    expanded = logits[:1].expand(rows, size)
    return {
        "rows of a wider buffer": (logits, buffer[:, 5 : 5 + size]),
        "every other row": (logits, interleaved[::2]),
        "one row expanded": (expanded.contiguous(), expanded),
    }


@properties.required("rows of shared slots")
def shared_slots(subject: SampleSubject, trial: Trial) -> str:
    """row_index maps logits rows to the parameters of their request."""
    size = 200
    rng = trial.generator("row")
    row = gaussian(rng, size)
    likeliest_token = int(row.argmax())
    row[likeliest_token] += 1  # no other is its equal in a dtype of few bits
    slots = 300  # more than a byte can number
    temperatures = np.where(rng.random(slots) < 0.5, 1e-6, 50.0)
    index = rng.integers(0, slots, 6 * subject.effort.rows(50, least=6)).tolist()
    requests = [SamplingParams(temperature=t) for t in temperatures.tolist()]
    seed_torch(rng)
    logits, _ = round_in_turn(subject, 1, row)
    tokens = subject.tokens(logits.repeat(len(index), 1), requests, row_index=index)
    is_cold = temperatures[index] < 1
    trial.require(
        (tokens[is_cold] == likeliest_token).all(),
        f"rows of a cold request need token {likeliest_token}, found others",
    )
    hits = int((tokens[~is_cold] == likeliest_token).sum())
    trial.require(
        hits < len(index) // 6,
        f"rows of a hot request need tokens of all kinds, found the likeliest {hits} times of {(~is_cold).sum()}",
    )
    return f"{len(index)} rows of {slots} requests"

"""Before any statistics: ids in range and in the kept set, for any shape of the batch and any values."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.refusals import require_refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import FAMILIES, flat, gaussian, tied, zipf
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.dtypes import round_in_turn, round_rows
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.requests import combinations, describe, tokens_of
from tokendraw_testing.rows.subjects import SampleSubject, row_refusal

properties = Properties("sample")

_DISTINCT_ROWS = 6
"""Distinct rows of logits in a batch; further rows repeat them with fresh noise."""


@properties.required("output")
def output(subject: SampleSubject, trial: Trial) -> str:
    """token_ids are [B] int64 and valid [B] bool on the device of the logits, for empty batches and V = 1 too."""
    limit = subject.capabilities.max_vocab_size or 5000
    for rows, size in ((0, 50), (1, 1), (5, 1), (3, 50), (0, min(5000, limit))):
        output = subject.sample(torch.zeros(rows, size), SamplingParams())
        trial.require(
            size > 1 or not output.token_ids.any(), f"V = 1 needs token 0, found {output.token_ids.tolist()}"
        )
    return "5 shapes"


@properties.required("range and support")
def range_and_support(subject: SampleSubject, trial: Trial) -> str:
    """Every id lies in [0, V) and in the float64 kept set, over vocabularies and batch sizes."""
    pairs = [
        (v, b)
        for v, b in subject.effort.pairs()
        if subject.capabilities.max_vocab_size is None or v <= subject.capabilities.max_vocab_size
    ]
    for turn, (size, rows) in enumerate(pairs):
        rng = trial.generator(f"{size} x {rows}")
        seed_torch(rng)
        logits = np.stack([family(rng, size) for family in (zipf, flat, tied, gaussian, zipf, gaussian)])
        params = combinations(subject.capabilities, size)
        distinct_params = [params[i] for i in rng.integers(0, len(params), _DISTINCT_ROWS)]
        source_rows = np.arange(rows) % _DISTINCT_ROWS
        rounded_logits, values = round_in_turn(subject, turn, logits)
        tokens = _draw_tokens(
            subject,
            rounded_logits[torch.from_numpy(source_rows)],
            [distinct_params[i] for i in source_rows],
            rng,
        )
        for i in range(min(rows, _DISTINCT_ROWS)):
            possible = expect(values[i], distinct_params[i], subject.capabilities.tie_rule).possible
            misses = np.flatnonzero((source_rows == i) & ~possible[tokens])
            trial.require(
                not len(misses),
                f"V = {size}, B = {rows}: {describe(distinct_params[i])} needs one of {possible.sum()} kept tokens, "
                f"found {tokens[misses[0]] if len(misses) else 0}",
            )
    return f"{len(pairs)} shapes up to V = {max(v for v, _ in pairs)} and B = {max(b for _, b in pairs)}"


@properties.required("padding is never read")
def padding(subject: SampleSubject, trial: Trial) -> str:
    """Storage behind the V logits of a row never wins, whatever the row stride."""
    limit = subject.capabilities.max_vocab_size
    wide_shapes = [(v, v + 9) for v in subject.effort.crossed_sizes if v > 1 << 16]
    all_shapes = [(3, 8), (1000, 1024), (1025, 2048), (4097, 4097 + 31), *wide_shapes[:1]]
    shapes = [shape for shape in all_shapes if limit is None or shape[0] <= limit]
    for (size, stride), dtype in itertools.product(shapes, subject.dtypes):
        rng = trial.generator(f"{size}")
        rows = subject.effort.rows(16, least=3) if size < 1 << 16 else 3
        storage = torch.full((rows, stride), float("inf"), dtype=dtype)
        values = np.stack([gaussian(rng, size) - 50 for _ in range(rows)])
        storage[:, :size] = torch.from_numpy(values).to(dtype)
        seed_torch(rng)
        logits = storage.to(subject.device)[:, :size]
        counter = subject.capabilities.seeding == "counter"
        params = [SamplingParams(seed=i if counter else None) for i in range(rows)]
        output = subject.sample(logits, params)
        trial.require(
            output.valid.all(),
            f"V = {size} in rows of {stride} needs valid rows, found {output.valid.tolist()}",
        )
        if counter:
            contiguous_output = subject.sample(logits.contiguous(), params)
            trial.require(
                torch.equal(output.token_ids, contiguous_output.token_ids),
                f"V = {size} in rows of {stride} needs the tokens of rows with nothing behind them, found others",
            )
    return f"{len(shapes)} strides in {len(subject.dtypes)} dtypes, +inf behind every row"


@properties.advertised("greedy rows", lambda c: c.greedy, row_refusal(SamplingParams(temperature=0.0)))
def greedy(subject: SampleSubject, trial: Trial) -> str:
    """Temperature 0 takes the argmax, the lowest id on a tie, beside rows that draw."""
    sizes = [v for v in (1, 2, 31, 1025, 5000) if v <= (subject.capabilities.max_vocab_size or v)]
    copies = subject.effort.rows(4)
    for size, dtype in itertools.product(sizes, subject.dtypes):
        rng = trial.generator(f"{size}")
        logits = np.stack([family(rng, size) for family in FAMILIES.values() for _ in range(copies)])
        params = [SamplingParams(temperature=float(i % 2)) for i in range(len(logits))]
        seed_torch(rng)
        rounded_logits, values = round_rows(logits, dtype)
        tokens = _draw_tokens(subject, rounded_logits, params, rng)
        for i in range(0, len(logits), 2):
            best = int(values[i].argmax())
            trial.require(
                tokens[i] == best, f"V = {size}: a greedy row needs token {best}, found {tokens[i]}"
            )
    return f"{len(sizes)} vocabularies, {len(FAMILIES)} families"


@properties.advertised("limits", lambda c: c.max_top_k is not None or c.max_vocab_size is not None)
def limits(subject: SampleSubject, trial: Trial) -> str:
    """Requests at the limits of top-k and of the vocabulary are served, requests beyond them refused."""
    k, size = subject.capabilities.max_top_k, subject.capabilities.max_vocab_size
    words = []
    if k is not None:
        _require_at_limit(subject, trial, SamplingParams(top_k=k), min(k + 100, size or k + 100))
        words.append(require_refusal(subject, row_refusal(SamplingParams(top_k=k + 1))))
    if size is not None:
        _require_at_limit(subject, trial, SamplingParams(), size)
        words.append(require_refusal(subject, Refusal({"vocab_size": size + 1})))
    return "beyond them: " + " ".join(words)


def _require_at_limit(subject: SampleSubject, trial: Trial, params: SamplingParams, size: int) -> None:
    row = gaussian(trial.generator(f"{params}"), size)
    possible = expect(row, params, subject.capabilities.tie_rule).possible
    tokens = subject.tokens(torch.from_numpy(row).repeat(subject.effort.limit_rows, 1), params)
    misses = tokens[~possible[tokens]]
    trial.require(not len(misses), f"V = {size}, {describe(params)} needs a kept token, found {misses[:1]}")


def _draw_tokens(
    subject: SampleSubject, logits: torch.Tensor, params: list[SamplingParams], rng: Generator
) -> NDArray[Any]:
    """Draw tokens of rows, every second row with a seed if the subject serves seeds."""
    if subject.capabilities.seeding != "counter":
        return tokens_of(subject, logits, params)
    seeds, positions = random_seeds(rng, len(params))
    pairs = enumerate(zip(params, seeds, strict=True))
    params = [replace(p, seed=seed) if i % 2 else p for i, (p, seed) in pairs]
    return tokens_of(subject, logits, params, positions)

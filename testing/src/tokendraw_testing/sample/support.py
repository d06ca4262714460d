"""Before any statistics: ids in range, inside the kept set, whatever the shape of the batch and the values in it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw_testing.kit.property import Ask, Properties
from tokendraw_testing.kit.refusals import refused
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import FAMILIES, flat, gaussian, tied, zipf
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.dtypes import dtypes_of, in_turn, rounded
from tokendraw_testing.rows.expected import expect
from tokendraw_testing.rows.requests import combinations, described, tokens_of
from tokendraw_testing.rows.sampling import Sampling, row_ask

properties = Properties("sample")

_DISTINCT = 6
"""Rows of logits that differ in one batch; the others repeat them with noise of their own."""


@properties.required("output")
def output(subject: Sampling, trial: Trial) -> str:
    """token_ids are [B] int64 and valid [B] bool on the device of the logits, for empty batches and V = 1 too."""
    limit = subject.capabilities.max_vocab_size or 5000
    for rows, size in ((0, 50), (1, 1), (5, 1), (3, 50), (0, min(5000, limit))):
        found = subject.sample(torch.zeros(rows, size), SamplingParams())
        trial.require(
            size > 1 or not found.token_ids.any(), f"V = 1 needs token 0, found {found.token_ids.tolist()}"
        )
    return "5 shapes"


@properties.required("range and support")
def range_and_support(subject: Sampling, trial: Trial) -> str:
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
        chosen = [params[i] for i in rng.integers(0, len(params), _DISTINCT)]
        which = np.arange(rows) % _DISTINCT
        given, exact = in_turn(subject, turn, logits)
        found = _tokens(subject, given[torch.from_numpy(which)], [chosen[i] for i in which], rng)
        for i in range(min(rows, _DISTINCT)):
            possible = expect(exact[i], chosen[i], subject.capabilities.tie_rule).possible
            wrong = np.flatnonzero((which == i) & ~possible[found])
            trial.require(
                not len(wrong),
                f"V = {size}, B = {rows}: {described(chosen[i])} needs one of {possible.sum()} kept tokens, "
                f"found {found[wrong[0]] if len(wrong) else 0}",
            )
    return f"{len(pairs)} shapes up to V = {max(v for v, _ in pairs)} and B = {max(b for _, b in pairs)}"


@properties.required("extremes")
def extremes(subject: Sampling, trial: Trial) -> str:
    """Temperatures down to 1e-40, logits of 3e38, subnormal probabilities, k of 2**30, p of 1 - 2**-24."""
    size = 1500
    rng = trial.generator("rows")
    base = gaussian(rng, size)
    steep = np.where(np.arange(size) % 3 == 0, np.float32(3e38), np.float32(-3e38))
    steep[[4, 901]] = 3.3e38
    faint = np.full(size, np.float32(-100.0))  # exp(-100) is subnormal in float32
    faint[700] = 0.0
    subject_rows: list[tuple[NDArray[Any], SamplingParams]] = [
        (base, SamplingParams(temperature=1e-40)),
        (base, SamplingParams(temperature=1e-6)),
        (base, SamplingParams(temperature=1e30)),
        (steep, SamplingParams()),
        (steep, SamplingParams(temperature=1e-40)),
        (np.full(size, np.finfo(np.float32).min), SamplingParams()),
        (faint, SamplingParams()),
        (np.full(size, np.float32(1e-45)), SamplingParams()),
    ]
    if subject.has("top_k") and subject.capabilities.max_top_k is None:
        subject_rows += [(x, SamplingParams(top_k=2**30)) for x in (base, steep, faint)]
    if subject.has("top_p"):
        nearly = 1 - 2.0**-24
        subject_rows += [
            (x, SamplingParams(top_p=p)) for x in (base, faint) for p in (nearly, 1.0, 1e-30, 0.5)
        ]
    if subject.has("min_p"):
        subject_rows += [(x, SamplingParams(min_p=p)) for x in (base, steep) for p in (1.0, 1e-45, 0.0)]
    orders = subject.capabilities.filter_orders or ("top_k_first",)
    subject_rows = [(x, replace(p, filter_order=orders[0])) for x, p in subject_rows]
    every = dtypes_of(subject)
    copies = max(1, subject.effort.rows(40) // len(every))
    logits = np.stack([x for x, _ in subject_rows for _ in range(copies)])
    params = [p for _, p in subject_rows for _ in range(copies)]
    seed_torch(rng)
    looked: list[tuple[NDArray[Any], SamplingParams, NDArray[Any]]] = []
    with np.errstate(over="ignore"):
        for dtype in every:
            given, exact = rounded(logits, dtype)
            found = _tokens(subject, given, params, rng).reshape(len(subject_rows), copies)
            own = exact[::copies]
            looked += [(x, p, drawn) for x, (_, p), drawn in zip(own, subject_rows, found, strict=True)]
    for x, p, drawn in looked:
        possible = expect(x, p, subject.capabilities.tie_rule).possible
        wrong = drawn[~possible[drawn]]
        trial.require(
            not len(wrong),
            f"{described(p)} on logits from {x.min():.3g} to {x.max():.3g} needs one of {possible.sum()} kept tokens, "
            f"found {wrong[0] if len(wrong) else 0}",
        )
    return f"{len(subject_rows)} kinds of rows, p = 1 beside p < 1"


@properties.required("padding is never read")
def padding(subject: Sampling, trial: Trial) -> str:
    """Storage behind the V logits of a row never wins, whatever the row stride."""
    limit = subject.capabilities.max_vocab_size
    wide = [(v, v + 9) for v in subject.effort.crossed_sizes if v > 1 << 16]
    every = [(3, 8), (1000, 1024), (1025, 2048), (4097, 4097 + 31), *wide[:1]]
    shapes = [shape for shape in every if limit is None or shape[0] <= limit]
    for (size, stride), dtype in itertools.product(shapes, dtypes_of(subject)):
        rng = trial.generator(f"{size}")
        rows = subject.effort.rows(16, least=3) if size < 1 << 16 else 3
        storage = torch.full((rows, stride), float("inf"), dtype=dtype)
        storage[:, :size] = torch.from_numpy(np.stack([gaussian(rng, size) - 50 for _ in range(rows)])).to(
            dtype
        )
        seed_torch(rng)
        logits = storage.to(subject.device)[:, :size]
        counter = subject.capabilities.seeding == "counter"
        params = [SamplingParams(seed=i if counter else None) for i in range(rows)]
        found = subject.sample(logits, params)
        trial.require(
            found.valid.all(),
            f"V = {size} in rows of {stride} needs valid rows, found {found.valid.tolist()}",
        )
        if counter:
            alone = subject.sample(logits.contiguous(), params)
            trial.require(
                torch.equal(found.token_ids, alone.token_ids),
                f"V = {size} in rows of {stride} needs the tokens of rows with nothing behind them, found others",
            )
    return f"{len(shapes)} strides in {len(dtypes_of(subject))} dtypes, +inf behind every row"


@properties.advertised("greedy rows", lambda c: c.greedy, row_ask(SamplingParams(temperature=0.0)))
def greedy(subject: Sampling, trial: Trial) -> str:
    """Temperature 0 takes the argmax, the lowest id on a tie, beside rows that draw."""
    sizes = [v for v in (1, 2, 31, 1025, 5000) if v <= (subject.capabilities.max_vocab_size or v)]
    copies = subject.effort.rows(4)
    for size, dtype in itertools.product(sizes, dtypes_of(subject)):
        rng = trial.generator(f"{size}")
        logits = np.stack([family(rng, size) for family in FAMILIES.values() for _ in range(copies)])
        params = [SamplingParams(temperature=float(i % 2)) for i in range(len(logits))]
        seed_torch(rng)
        given, exact = rounded(logits, dtype)
        found = _tokens(subject, given, params, rng)
        for i in range(0, len(logits), 2):
            best = int(exact[i].argmax())
            trial.require(found[i] == best, f"V = {size}: a greedy row needs token {best}, found {found[i]}")
    return f"{len(sizes)} vocabularies, {len(FAMILIES)} families"


@properties.advertised("limits", lambda c: c.max_top_k is not None or c.max_vocab_size is not None)
def limits(subject: Sampling, trial: Trial) -> str:
    """Requests at the limits of top-k and of the vocabulary are served, requests beyond them refused."""
    k, size = subject.capabilities.max_top_k, subject.capabilities.max_vocab_size
    words = []
    if k is not None:
        _at_limit(subject, trial, SamplingParams(top_k=k), min(k + 100, size or k + 100))
        words.append(refused(subject, row_ask(SamplingParams(top_k=k + 1))))
    if size is not None:
        _at_limit(subject, trial, SamplingParams(), size)
        words.append(refused(subject, Ask({"vocab_size": size + 1})))
    return "beyond them: " + " ".join(words)


def _at_limit(subject: Sampling, trial: Trial, params: SamplingParams, size: int) -> None:
    row = gaussian(trial.generator(f"{params}"), size)
    possible = expect(row, params, subject.capabilities.tie_rule).possible
    found = subject.tokens(torch.from_numpy(row).repeat(subject.effort.limit_rows, 1), params)
    wrong = found[~possible[found]]
    trial.require(not len(wrong), f"V = {size}, {described(params)} needs a kept token, found {wrong[:1]}")


def _tokens(
    subject: Sampling, logits: torch.Tensor, params: list[SamplingParams], rng: np.random.Generator
) -> NDArray[Any]:
    """Draw tokens of rows, every other with a seed where the subject serves seeds."""
    if subject.capabilities.seeding != "counter":
        return tokens_of(subject, logits, params)
    seeds, positions = random_seeds(rng, len(params))
    params = [
        replace(p, seed=seed) if i % 2 else p for i, (p, seed) in enumerate(zip(params, seeds, strict=True))
    ]
    return tokens_of(subject, logits, params, positions)

"""Seeds: the token of (seed, position, logits), in any batch."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import GumbelDtype, LogprobsMode
from tokendraw.tools import all_of
from tokendraw_testing import reference
from tokendraw_testing.crossing.comparison import CrossedRequest
from tokendraw_testing.crossing.factors import Site, sites
from tokendraw_testing.crossing.near_ties import telling_requests
from tokendraw_testing.crossing.rows import row_of
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows import noise_precision
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.dtypes import round_rows
from tokendraw_testing.rows.logprobs import TOLERANCE
from tokendraw_testing.rows.requests import assign_requests, combinations, has_counter, tokens_of
from tokendraw_testing.rows.subjects import SampleSubject
from tokendraw_testing.sample.crossed_calls import judge_call
from tokendraw_testing.sample.distribution import distribution

properties = Properties("sample")
Array = NDArray[Any]

_COLD_TEMPERATURE = 1e-4
"""Temperature of rows that draw their largest token."""
_NUM_BEST = 5
_EDGE_SEEDS = (0, 1, -1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 2**32 - 1, 2**32, -(2**32))
_EDGE_POSITIONS = (0, 1, 2**32 - 1, 2**32, 2**40 + 3, 2**63 - 1)


@properties.advertised("noise precision", lambda c: has_counter(c) or len(c.gumbel_dtypes) > 1)
def precision(subject: SampleSubject, trial: Trial) -> str:
    """Seeded rows with different tokens in 53-bit and 32-bit noise draw by the advertised precision."""
    dtypes = subject.noise_dtypes
    if not has_counter(subject.capabilities):
        details = distribution(subject.with_need(gumbel_dtype=dtypes[-1]), trial)
        return (
            f"{dtypes[-1]}, distribution of {details}; without seeds nothing tells float64 noise from float32"
        )
    num_rows = sum(_require_precision(subject, trial, dtype) for dtype in dtypes)
    if not num_rows:
        limit = subject.capabilities.max_vocab_size
        trial.skip(f"needs a vocabulary of {noise_precision.VOCAB_SIZE}, found a limit of {limit}")
    return f"{num_rows} rows that tell {all_of(dtypes)} noise"


def _require_precision(subject: SampleSubject, trial: Trial, dtype: GumbelDtype) -> int:
    """Require the tokens of this noise precision, and of lucky rows, impossible with less precision.

    Each row is alone in a call of the first dtype; of every dtype and vocabulary that holds them it is among few and
    among all of them.

    :returns: how many there were.
    """
    exact_sites = [Site(name, noise_precision.VOCAB_SIZE) for name in subject.capabilities.dtypes[:1]]
    size = noise_precision.VOCAB_SIZE
    wide_sites = [site for site in sites(subject.capabilities, subject.effort) if site.size > size]
    limit = subject.capabilities.max_vocab_size or noise_precision.VOCAB_SIZE
    num_rows = 0
    for site in (*exact_sites * (limit >= noise_precision.VOCAB_SIZE), *wide_sites):
        batch = telling_requests(subject, site, (reference.TOKEN, reference.TILE))
        single_calls = [[request] for request in batch] if site in exact_sites else []
        is_few = site.size < 1 << 14 and subject.effort.fewer == 1
        small_calls = [batch[i : i + 5] for i in range(0, len(batch), 5)] if is_few else []
        for call in (*single_calls, *small_calls, *[batch] * (site not in exact_sites)):
            judge_call(subject, trial, call, dtype)
        num_rows += len(batch)
    return num_rows


@properties.advertised("seeds at the edges", has_counter)
def seeds_at_the_edges(subject: SampleSubject, trial: Trial) -> str:
    """Seeds are taken modulo 2**64, from -2**63 to 2**64 - 1, and positions reach beyond 32 bits."""
    rng, capabilities, size = trial.generator("row"), subject.capabilities, 1500
    logits = gaussian(rng, min(size, capabilities.max_vocab_size or size))
    requests = [p for p in combinations(capabilities, len(logits)) if p.temperature > 0 and p.top_k != 1]
    for turn, position in enumerate(_EDGE_POSITIONS):
        site = Site(capabilities.dtypes[turn % len(capabilities.dtypes)], len(logits))
        params = requests[turn * 7 % len(requests)] if turn % 2 else SamplingParams()
        row = row_of(capabilities, site, "a row at the edges", logits, params)
        batch = [CrossedRequest(row, replace(params, seed=seed), position) for seed in _EDGE_SEEDS]
        judge_call(subject, trial, batch)
    return f"{len(_EDGE_SEEDS)} seeds, {len(_EDGE_POSITIONS)} positions"


@properties.advertised("batch invariance", lambda c: c.batch_invariant, Refusal({"batch_invariant": True}))
def batch_invariance(subject: SampleSubject, trial: Trial) -> str:
    """A row draws the same token alone, in any batch, at any row index, and beside any mates."""
    seeded, limit = has_counter(subject.capabilities), subject.capabilities.max_vocab_size
    rng, dtypes, size = trial.generator("rows"), subject.dtypes, min(1500, limit or 1500)
    sizes = [rows for rows in (2, 7, 64, 65, 1000) if rows <= max(subject.effort.batch_sizes)]
    count = max(5, subject.effort.rows(24) // (len(dtypes) if seeded else 1))
    logits = np.stack([gaussian(rng, size) for _ in range(count)])
    params, positions = _settled_requests(subject, rng, logits)
    modes = () if seeded else subject.capabilities.logprobs_modes
    seed_torch(rng)
    for dtype, mode in itertools.product(dtypes, (None, *modes)):
        rounded_logits, _ = round_rows(logits, dtype)
        if mode is not None:
            params = [replace(p, logprobs=_NUM_BEST) for p in params]

        def draw(
            rows: list[int],
            mode: LogprobsMode | None = mode,
            rounded_logits: torch.Tensor = rounded_logits,
            params: list[SamplingParams] = params,
        ) -> tuple[Array, Array]:
            requests, first = [params[i] for i in rows], [positions[i] for i in rows]
            if mode is None:
                tokens = tokens_of(subject, rounded_logits[rows], requests, first)[:, None]
                return tokens, np.zeros(tokens.shape, np.float32)
            logprobs = subject.sample(rounded_logits[rows], requests, mode=mode).logprobs
            assert logprobs is not None
            return logprobs.token_ids.cpu().numpy(), logprobs.logprobs.cpu().numpy()

        alone = [np.concatenate(column) for column in zip(*(draw([i]) for i in range(count)), strict=True)]
        for rows in sizes:
            indices = rng.permutation(np.arange(rows) % count)
            tokens, values = draw(indices.tolist())
            with np.errstate(invalid="ignore"):  # what a filter dropped is -inf in both
                is_far = np.abs(values - alone[1][indices]) > 2 * TOLERANCE
            rows_off = np.flatnonzero((tokens != alone[0][indices]).any(1) | is_far.any(1))
            trial.require(
                not len(rows_off),
                f"B = {rows}: row {rows_off[0] if len(rows_off) else 0} needs the {mode or 'token'} that it gets "
                f"alone, {len(rows_off)} rows differ",
            )
    kind = "seeded" if seeded else "greedy" if subject.capabilities.greedy else "cold"
    modes_text = f", {len(modes)} logprobs modes" if modes else ""
    return f"{count} {kind} rows{modes_text}, alone and in batches of {all_of(map(str, sizes))}"


def _settled_requests(
    subject: SampleSubject, rng: Generator, logits: Array
) -> tuple[list[SamplingParams], list[int]]:
    """Make requests whose tokens no other noise decides: with seeds, else greedy or cold rows of a largest token."""
    count = len(logits)
    seeds, positions = random_seeds(rng, count)
    if has_counter(subject.capabilities):
        requests = [p for p in combinations(subject.capabilities, logits.shape[1]) if p.temperature > 0]
        assigned_requests = assign_requests(subject.effort, requests, count)
        return [replace(p, seed=seed) for p, seed in zip(assigned_requests, seeds, strict=True)], positions
    logits[np.arange(count), logits.argmax(1)] += 1  # no other token is as large in a dtype of few bits
    temperature = 0.0 if subject.capabilities.greedy else _COLD_TEMPERATURE
    return [SamplingParams(temperature=temperature, filter_order=subject.filter_order)] * count, positions


@properties.advertised("torch.manual_seed", lambda c: c.seeding in ("counter", "launch"))
def manual_seed(subject: SampleSubject, trial: Trial) -> str:
    """torch.manual_seed reproduces the tokens of unseeded rows, and another seed gives others."""
    rows = subject.effort.rows(64)

    def run(seed: int, logits: torch.Tensor) -> list[Array]:
        torch.manual_seed(seed)
        return [subject.tokens(logits, SamplingParams()) for _ in range(3)]

    for dtype in subject.dtypes:
        logits = torch.zeros(rows, 1000, dtype=dtype)
        first, repeat, other_seed = run(123, logits), run(123, logits), run(124, logits)
        trial.require(
            all(map(np.array_equal, first, repeat)), "one seed needs the same tokens again, found others"
        )
        trial.require(
            not np.array_equal(first[0], other_seed[0]), "another seed needs other tokens, found the same"
        )
        trial.require(
            not np.array_equal(first[0], first[1]), "successive calls need other tokens, found the same"
        )
    return f"3 calls of {rows} rows in each dtype, repeated"

"""Seeds: the token of (seed, position, logits), in any batch."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplerOutput, SamplingParams
from tokendraw.plugin import GumbelDtype
from tokendraw.tools import all_of
from tokendraw_testing import reference
from tokendraw_testing.crossing.comparison import CrossedRequest
from tokendraw_testing.crossing.factors import Site, sites
from tokendraw_testing.crossing.rows import row_of
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import FAMILIES, gaussian
from tokendraw_testing.rows import noise_precision
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.dtypes import round_in_turn, round_rows
from tokendraw_testing.rows.expectation import LEAST_EQUAL_SHARE, expect
from tokendraw_testing.rows.logprobs import TOLERANCE
from tokendraw_testing.rows.requests import assign_requests, combinations, describe, has_counter, tokens_of
from tokendraw_testing.rows.subjects import SampleSubject, row_refusal
from tokendraw_testing.sample.crossed_calls import judge_call
from tokendraw_testing.sample.distribution import distribution

properties = Properties("sample")
Array = NDArray[Any]

_COLD_TEMPERATURE = 1e-4
"""Temperature of rows that draw their largest token."""
_EDGE_SEEDS = (0, 1, -1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 2**32 - 1, 2**32, -(2**32))


@properties.advertised("seeded draws", has_counter, row_refusal(SamplingParams(seed=1)))
def seeded_draws(subject: SampleSubject, trial: Trial) -> str:
    """Tokens equal the two-level draw of the random-number contract, 99.99 % of them and all that are no near tie."""
    return _require_reference(subject, trial, subject.gumbel_dtype)


@properties.advertised("fp64 noise", lambda c: "fp64" in c.gumbel_dtypes, Refusal({"gumbel_dtype": "fp64"}))
def fp64_noise(subject: SampleSubject, trial: Trial) -> str:
    """Seeded tokens equal those of the contract with 53-bit uniforms and float64; without seeds they follow it."""
    if not has_counter(subject.capabilities):
        details = distribution(subject.with_need(gumbel_dtype="fp64"), trial)
        return f"distribution of {details}; without seeds nothing tells float64 noise from float32"
    return _require_reference(subject, trial, "fp64")


def _require_reference(subject: SampleSubject, trial: Trial, dtype: GumbelDtype) -> str:
    num_draws = num_same = 0
    copies = subject.effort.rows(12, least=2)
    for turn, size in enumerate((2, 31, 1024, 1025, 5000)):
        if size > (subject.capabilities.max_vocab_size or size):
            continue
        rng = trial.generator(f"{dtype} {size}")
        requests = combinations(subject.capabilities, size)
        logits = np.stack([family(rng, size) for family in FAMILIES.values() for _ in range(copies)])
        seeds, positions = random_seeds(rng, len(logits))
        indices = rng.integers(0, len(requests), len(logits))
        params = [replace(requests[i], seed=seed) for i, seed in zip(indices, seeds, strict=True)]
        rounded_logits, values = round_in_turn(subject, turn, logits)
        tokens = tokens_of(subject, rounded_logits, params, positions, gumbel_dtype=dtype)
        rows = [reference.SortedLogits.of(row) for row in values]
        draws = [
            reference.drawing(reference.prepare(row, request), position)
            for row, request, position in zip(rows, params, positions, strict=True)
        ]
        answers = reference.together(draws, seeds, dtype)
        for row, request, position, token, (expected, lead) in zip(
            rows, params, positions, tokens, answers, strict=True
        ):
            expectation = expect(row, request, subject.capabilities.tie_rule)
            if not expectation.certain or expectation.in_part.any():
                continue
            num_draws, num_same = num_draws + 1, num_same + int(token == expected)
            trial.require(
                token == expected or lead < reference.NEAR_TIE,
                f"V = {size}, {describe(request)}, seed {request.seed}, position {position} needs token {expected}, "
                f"found {token}",
            )
    trial.require(
        num_same >= LEAST_EQUAL_SHARE * num_draws - 1,
        f"{num_draws} draws need {LEAST_EQUAL_SHARE:.2%} of the reference's tokens, found {num_same}",
    )
    num_precise = _require_precision(subject, trial, dtype)
    if not num_draws + num_precise:
        trial.skip(f"needs a vocabulary of 2, found a limit of {subject.capabilities.max_vocab_size}")
    precision_text = f"{num_precise} that tell {dtype} noise"
    return f"{num_draws} draws over mixed filters, {num_same} of them the reference's token; {precision_text}"


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
        batch = _telling_requests(subject, site)
        single_calls = [[request] for request in batch] if site in exact_sites else []
        is_few = site.size < 1 << 14 and subject.effort.fewer == 1
        small_calls = [batch[i : i + 5] for i in range(0, len(batch), 5)] if is_few else []
        for call in (*single_calls, *small_calls, *[batch] * (site not in exact_sites)):
            judge_call(subject, trial, call, dtype)
        num_rows += len(batch)
    return num_rows


def _telling_requests(subject: SampleSubject, site: Site) -> list[CrossedRequest]:
    capabilities, streams = subject.capabilities, (reference.TOKEN, reference.TILE)
    batch = []
    for row in (*noise_precision.telling_rows(*streams), *noise_precision.lucky_rows(*streams)):
        for k in (0, row.kept):
            if k and (not subject.has("top_k") or k > (capabilities.max_top_k or k)):
                continue
            params = SamplingParams(top_k=k, filter_order=subject.filter_order)
            logits = noise_precision.place_row(row, site.torch_dtype, site.size)
            crossed = row_of(capabilities, site, "a row that tells noise", logits, params)
            batch.append(CrossedRequest(crossed, replace(params, seed=row.seed), noise_precision.POSITION))
    return batch


@properties.advertised("seeds at the edges", has_counter)
def seeds_at_the_edges(subject: SampleSubject, trial: Trial) -> str:
    """Seeds are taken modulo 2**64, from -2**63 to 2**64 - 1, and positions reach beyond 32 bits."""
    rng = trial.generator("row")
    row = gaussian(rng, 1500)
    requests = [p for p in combinations(subject.capabilities, len(row)) if p.temperature > 0 and p.top_k != 1]
    for turn, position in enumerate((0, 1, 2**32 - 1, 2**32, 2**40 + 3, 2**63 - 1)):
        rounded_row, values = round_in_turn(subject, turn, row)
        request = requests[turn * 7 % len(requests)] if turn % 2 else SamplingParams()
        prepared = reference.prepare(values, request)
        if not expect(values, request, subject.capabilities.tie_rule).certain:
            continue
        params = [replace(request, seed=seed) for seed in _EDGE_SEEDS]
        tokens = subject.tokens(
            rounded_row.repeat(len(_EDGE_SEEDS), 1), params, [position] * len(_EDGE_SEEDS)
        )
        for seed, token in zip(_EDGE_SEEDS, tokens, strict=True):
            expected, lead = reference.draw(prepared, seed % 2**64, position, subject.gumbel_dtype)
            trial.require(
                token == expected or lead < reference.NEAR_TIE,
                f"seed {seed} at position {position} needs token {expected}, found {token}",
            )
    return f"{len(_EDGE_SEEDS)} seeds, 6 positions"


@properties.advertised("batch invariance", lambda c: c.batch_invariant, Refusal({"batch_invariant": True}))
def batch_invariance(subject: SampleSubject, trial: Trial) -> str:
    """A seeded row draws the same token alone, in any batch, at any row index, and beside any mates."""
    if not has_counter(subject.capabilities):
        return _require_invariant_without_seeds(subject, trial)
    size = 1500
    requests = [p for p in combinations(subject.capabilities, size) if p.temperature > 0]
    rng = trial.generator("rows")
    dtypes = subject.dtypes
    count = max(5, subject.effort.rows(24) // len(dtypes))
    sizes = [rows for rows in (2, 7, 64, 65, 1000) if rows <= max(subject.effort.batch_sizes)]
    logits = np.stack([gaussian(rng, size) for _ in range(count)])
    seeds, positions = random_seeds(rng, count)
    assigned_requests = assign_requests(subject.effort, requests, count)
    params = [replace(p, seed=seed) for p, seed in zip(assigned_requests, seeds, strict=True)]
    tokens_alone = {}
    for dtype, rows in itertools.product(dtypes, sizes):
        rounded_logits, _ = round_rows(logits, dtype)
        if dtype not in tokens_alone:
            single_rows = [
                tokens_of(subject, rounded_logits[i : i + 1], [params[i]], [positions[i]])
                for i in range(count)
            ]
            tokens_alone[dtype] = np.concatenate(single_rows)
        order = rng.permutation(np.arange(rows) % count)
        tokens = tokens_of(
            subject, rounded_logits[order], [params[i] for i in order], [positions[i] for i in order]
        )
        mismatches = np.flatnonzero(tokens != tokens_alone[dtype][order])
        trial.require(
            not len(mismatches),
            f"B = {rows}: row {mismatches[0] if len(mismatches) else 0} needs the token that it draws alone, "
            f"{len(mismatches)} rows differ",
        )
    return f"{count} rows in {len(dtypes)} dtypes, alone and in batches of {all_of(map(str, sizes))}"


def _require_invariant_without_seeds(subject: SampleSubject, trial: Trial) -> str:
    """Compare tokens independent of noise: greedy or cold rows, with their best tokens and logprobs."""
    rng, limit = trial.generator("rows without seeds"), subject.capabilities.max_vocab_size
    count, size, best = max(5, subject.effort.rows(24)), min(1500, limit or 1500), 5
    sizes = [rows for rows in (2, 7, 64, 65, 1000) if rows <= max(subject.effort.batch_sizes)]
    logits = np.stack([gaussian(rng, size) for _ in range(count)])
    logits[np.arange(count), logits.argmax(1)] += 1  # no other token is as large in a dtype of few bits
    order = subject.filter_order
    temperature = 0.0 if subject.capabilities.greedy else _COLD_TEMPERATURE
    plain_params = SamplingParams(temperature=temperature, filter_order=order)
    seed_torch(rng)
    for dtype, mode in itertools.product(subject.dtypes, (None, *subject.capabilities.logprobs_modes)):
        rounded_logits, _ = round_rows(logits, dtype)
        params = plain_params if mode is None else replace(plain_params, logprobs=best)
        single_rows = [
            _token_columns(subject.sample(rounded_logits[i : i + 1], params, mode=mode)) for i in range(count)
        ]
        columns_alone = [np.concatenate(column) for column in zip(*single_rows, strict=True)]
        for rows in sizes:
            indices = rng.permutation(np.arange(rows) % count)
            columns = _token_columns(subject.sample(rounded_logits[indices], params, mode=mode))
            is_same = (columns[0] == columns_alone[0][indices]).all(1)
            with np.errstate(invalid="ignore"):  # what a filter dropped is -inf in both
                distances = np.abs(columns[1] - columns_alone[1][indices])
            is_same &= ~(distances > 2 * TOLERANCE).any(1)
            rows_off = np.flatnonzero(~is_same)
            trial.require(
                not len(rows_off),
                f"B = {rows}: row {rows_off[0] if len(rows_off) else 0} needs the {mode or 'token'} that it gets "
                f"alone, {len(rows_off)} rows differ",
            )
    kind = "greedy" if subject.capabilities.greedy else "cold"
    modes = f", {len(subject.capabilities.logprobs_modes)} logprobs modes"
    return f"{count} {kind} rows without seeds{modes}, alone and in batches of {all_of(map(str, sizes))}"


def _token_columns(output: SamplerOutput) -> tuple[Array, Array]:
    """Return the drawn and the best tokens [B, 1 + N] and their values, on the host; N = 0 without logprobs."""
    if output.logprobs is None:
        tokens = output.token_ids.cpu().numpy()[:, None]
        return tokens, np.zeros(tokens.shape, np.float32)
    return output.logprobs.token_ids.cpu().numpy(), output.logprobs.logprobs.cpu().numpy()


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

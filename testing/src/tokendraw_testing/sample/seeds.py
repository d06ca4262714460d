"""Seeds: the token of (seed, position, logits), whatever the batch around it."""

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
from tokendraw_testing.crossing.comparison import Request
from tokendraw_testing.crossing.factors import Site, sites
from tokendraw_testing.crossing.rows import CrossedRow
from tokendraw_testing.kit.property import Ask, Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import FAMILIES, gaussian
from tokendraw_testing.rows import noise_precision
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.dtypes import dtypes_of, in_turn, rounded
from tokendraw_testing.rows.expected import SAME, expect
from tokendraw_testing.rows.logprobs import TOLERANCE
from tokendraw_testing.rows.requests import assigned, combinations, described, has_counter, tokens_of
from tokendraw_testing.rows.sampling import Sampling, row_ask
from tokendraw_testing.sample.crossed_calls import judge_call
from tokendraw_testing.sample.distribution import distribution

properties = Properties("sample")
Array = NDArray[Any]

_COLD = 1e-4
"""Temperature of rows that draw their largest token."""
_EDGES = (0, 1, -1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 2**32 - 1, 2**32, -(2**32))


@properties.advertised("seeded draws", has_counter, row_ask(SamplingParams(seed=1)))
def seeded_draws(subject: Sampling, trial: Trial) -> str:
    """Tokens equal the two-level draw of the random-number contract, 99.99 % of them and all that are no near tie."""
    return _equal_reference(subject, trial, subject.gumbel_dtype)


@properties.advertised("fp64 noise", lambda c: "fp64" in c.gumbel_dtypes, Ask({"gumbel_dtype": "fp64"}))
def fp64_noise(subject: Sampling, trial: Trial) -> str:
    """Seeded tokens equal those of the contract with 53-bit uniforms and float64; without seeds they follow it."""
    if not has_counter(subject.capabilities):
        looked = distribution(subject.with_need(gumbel_dtype="fp64"), trial)
        return f"distribution of {looked}; without seeds nothing tells float64 noise from float32"
    return _equal_reference(subject, trial, "fp64")


def _equal_reference(subject: Sampling, trial: Trial, dtype: GumbelDtype) -> str:
    judged = same = 0
    copies = subject.effort.rows(12, least=2)
    for turn, size in enumerate((2, 31, 1024, 1025, 5000)):
        if size > (subject.capabilities.max_vocab_size or size):
            continue
        rng = trial.generator(f"{dtype} {size}")
        requests = combinations(subject.capabilities, size)
        logits = np.stack([family(rng, size) for family in FAMILIES.values() for _ in range(copies)])
        seeds, positions = random_seeds(rng, len(logits))
        picked = rng.integers(0, len(requests), len(logits))
        params = [replace(requests[i], seed=seed) for i, seed in zip(picked, seeds, strict=True)]
        given, exact = in_turn(subject, turn, logits)
        found = tokens_of(subject, given, params, positions, gumbel_dtype=dtype)
        rows = [reference.Logits.of(row) for row in exact]
        draws = [
            reference.drawing(reference.prepare(row, request), position)
            for row, request, position in zip(rows, params, positions, strict=True)
        ]
        answers = reference.together(draws, seeds, dtype)
        for row, request, position, token, (expected, lead) in zip(
            rows, params, positions, found, answers, strict=True
        ):
            known = expect(row, request, subject.capabilities.tie_rule)
            if not known.certain or known.in_part.any():
                continue
            judged, same = judged + 1, same + int(token == expected)
            trial.require(
                token == expected or lead < reference.NEAR_TIE,
                f"V = {size}, {described(request)}, seed {request.seed}, position {position} needs token {expected}, "
                f"found {token}",
            )
    trial.require(
        same >= SAME * judged - 1, f"{judged} draws need {SAME:.2%} of the reference's tokens, found {same}"
    )
    told = _require_precision(subject, trial, dtype)
    if not judged + told:
        trial.skip(f"needs a vocabulary of 2, found a limit of {subject.capabilities.max_vocab_size}")
    return f"{judged} draws over mixed filters, {same} of them the reference's token; {told} that tell {dtype} noise"


def _require_precision(subject: Sampling, trial: Trial, dtype: GumbelDtype) -> int:
    """Demand the tokens that only noise of this precision draws, and rows of luck that less of it has not.

    Each row is alone in a call of the first dtype; of every dtype and vocabulary that holds them it is among few and
    among all of them.

    :returns: how many there were.
    """
    narrow = [Site(name, noise_precision.VOCAB_SIZE) for name in subject.capabilities.dtypes[:1]]
    wide = [s for s in sites(subject.capabilities, subject.effort) if s.size > noise_precision.VOCAB_SIZE]
    limit = subject.capabilities.max_vocab_size or noise_precision.VOCAB_SIZE
    told = 0
    for site in (*narrow * (limit >= noise_precision.VOCAB_SIZE), *wide):
        batch = _telling(subject, site)
        alone = [[request] for request in batch] if site in narrow else []
        is_few = site.size < 1 << 14 and subject.effort.fewer == 1
        few = [batch[i : i + 5] for i in range(0, len(batch), 5)] if is_few else []
        for call in (*alone, *few, *[batch] * (site not in narrow)):
            judge_call(subject, trial, call, dtype)
        told += len(batch)
    return told


def _telling(subject: Sampling, site: Site) -> list[Request]:
    offered, streams = subject.capabilities, (reference.TOKEN, reference.TILE)
    order = (*offered.filter_orders, "top_k_first")[0]
    batch = []
    for row in (*noise_precision.telling_rows(*streams), *noise_precision.lucky_rows(*streams)):
        for k in (0, row.kept):
            if k and (not subject.has("top_k") or k > (offered.max_top_k or k)):
                continue
            params = SamplingParams(top_k=k, filter_order=order)
            logits = noise_precision.placed(row, site.torch_dtype, site.size)
            crossed = CrossedRow(site, "a row that tells noise", logits, params, offered.tie_rule)
            batch.append(Request(crossed, replace(params, seed=row.seed), noise_precision.POSITION))
    return batch


@properties.advertised("seeds at the edges", has_counter)
def seeds_at_the_edges(subject: Sampling, trial: Trial) -> str:
    """Seeds are taken modulo 2**64, from -2**63 to 2**64 - 1, and positions reach beyond 32 bits."""
    rng = trial.generator("row")
    row = gaussian(rng, 1500)
    filtered = [p for p in combinations(subject.capabilities, len(row)) if p.temperature > 0 and p.top_k != 1]
    for turn, position in enumerate((0, 1, 2**32 - 1, 2**32, 2**40 + 3, 2**63 - 1)):
        given, exact = in_turn(subject, turn, row)
        request = filtered[turn * 7 % len(filtered)] if turn % 2 else SamplingParams()
        prepared = reference.prepare(exact, request)
        if not expect(exact, request, subject.capabilities.tie_rule).certain:
            continue
        params = [replace(request, seed=seed) for seed in _EDGES]
        found = subject.tokens(given.repeat(len(_EDGES), 1), params, [position] * len(_EDGES))
        for seed, token in zip(_EDGES, found, strict=True):
            expected, lead = reference.draw(prepared, seed % 2**64, position, subject.gumbel_dtype)
            trial.require(
                token == expected or lead < reference.NEAR_TIE,
                f"seed {seed} at position {position} needs token {expected}, found {token}",
            )
    return f"{len(_EDGES)} seeds, 6 positions"


@properties.advertised("batch invariance", lambda c: c.batch_invariant, Ask({"batch_invariant": True}))
def batch_invariance(subject: Sampling, trial: Trial) -> str:
    """A seeded row draws the same token alone, in any batch, at any row index, and beside any mates."""
    if not has_counter(subject.capabilities):
        return _invariant_without_seeds(subject, trial)
    size = 1500
    requests = [p for p in combinations(subject.capabilities, size) if p.temperature > 0]
    rng = trial.generator("rows")
    every = dtypes_of(subject)
    count = max(5, subject.effort.rows(24) // len(every))
    sizes = [rows for rows in (2, 7, 64, 65, 1000) if rows <= max(subject.effort.batch_sizes)]
    logits = np.stack([gaussian(rng, size) for _ in range(count)])
    seeds, positions = random_seeds(rng, count)
    chosen = assigned(subject.effort, requests, count)
    params = [replace(p, seed=seed) for p, seed in zip(chosen, seeds, strict=True)]
    alone = {}
    for dtype, rows in itertools.product(every, sizes):
        given, _ = rounded(logits, dtype)
        if dtype not in alone:
            ones = [tokens_of(subject, given[i : i + 1], [params[i]], [positions[i]]) for i in range(count)]
            alone[dtype] = np.concatenate(ones)
        order = rng.permutation(np.arange(rows) % count)
        found = tokens_of(subject, given[order], [params[i] for i in order], [positions[i] for i in order])
        apart = np.flatnonzero(found != alone[dtype][order])
        trial.require(
            not len(apart),
            f"B = {rows}: row {apart[0] if len(apart) else 0} needs the token that it draws alone, "
            f"{len(apart)} rows differ",
        )
    return f"{count} rows in {len(every)} dtypes, alone and in batches of {all_of(map(str, sizes))}"


def _invariant_without_seeds(subject: Sampling, trial: Trial) -> str:
    """Compare greedy tokens, or those of cold rows, and the best tokens with their logprobs: no noise decides them."""
    rng, limit = trial.generator("rows without seeds"), subject.capabilities.max_vocab_size
    count, size, best = max(5, subject.effort.rows(24)), min(1500, limit or 1500), 5
    sizes = [rows for rows in (2, 7, 64, 65, 1000) if rows <= max(subject.effort.batch_sizes)]
    logits = np.stack([gaussian(rng, size) for _ in range(count)])
    logits[np.arange(count), logits.argmax(1)] += 1  # no other token is as large in a dtype of few bits
    order = (*subject.capabilities.filter_orders, "top_k_first")[0]
    temperature = 0.0 if subject.capabilities.greedy else _COLD
    plain = SamplingParams(temperature=temperature, filter_order=order)
    seed_torch(rng)
    for dtype, mode in itertools.product(dtypes_of(subject), (None, *subject.capabilities.logprobs_modes)):
        given, _ = rounded(logits, dtype)
        params = plain if mode is None else replace(plain, logprobs=best)
        ones = [_shown(subject.sample(given[i : i + 1], params, mode=mode)) for i in range(count)]
        alone = [np.concatenate(column) for column in zip(*ones, strict=True)]
        for rows in sizes:
            picked = rng.permutation(np.arange(rows) % count)
            found = _shown(subject.sample(given[picked], params, mode=mode))
            same = (found[0] == alone[0][picked]).all(1)
            with np.errstate(invalid="ignore"):  # what a filter dropped is -inf in both
                apart = np.abs(found[1] - alone[1][picked])
            same &= ~(apart > 2 * TOLERANCE).any(1)
            wrong = np.flatnonzero(~same)
            trial.require(
                not len(wrong),
                f"B = {rows}: row {wrong[0] if len(wrong) else 0} needs the {mode or 'token'} that it gets alone, "
                f"{len(wrong)} rows differ",
            )
    kind = "greedy" if subject.capabilities.greedy else "cold"
    modes = f", {len(subject.capabilities.logprobs_modes)} logprobs modes"
    return f"{count} {kind} rows without seeds{modes}, alone and in batches of {all_of(map(str, sizes))}"


def _shown(output: SamplerOutput) -> tuple[Array, Array]:
    """Return the drawn and the best tokens [B, 1 + N] and their values, on the host; N = 0 without logprobs."""
    if output.logprobs is None:
        tokens = output.token_ids.cpu().numpy()[:, None]
        return tokens, np.zeros(tokens.shape, np.float32)
    return output.logprobs.token_ids.cpu().numpy(), output.logprobs.logprobs.cpu().numpy()


@properties.advertised("seeded beside unseeded", has_counter)
def seeded_beside_unseeded(subject: Sampling, trial: Trial) -> str:
    """Seeds hold for their own rows alone: rows without one draw anew in each call."""
    rows, size = subject.effort.rows(256, least=32), 1000
    params = [SamplingParams(seed=7) if i % 2 else SamplingParams() for i in range(rows)]
    seed_torch(trial.generator("torch"))
    first, second = (subject.tokens(torch.zeros(rows, size), params) for _ in range(2))
    trial.require((first[1::2] == second[1::2]).all(), "seeded rows need the same tokens in every call")
    again = int((first[::2] == second[::2]).sum())
    # 128 rows repeat a token of 1000 by chance 0.13 times; 8 or more happen once in 1e13.
    trial.require(
        again < 8, f"unseeded rows need new tokens in every call, found {again} of {rows // 2} repeated"
    )
    return f"{rows} rows, every other one seeded"


@properties.advertised("torch.manual_seed", lambda c: c.seeding in ("counter", "launch"))
def manual_seed(subject: Sampling, trial: Trial) -> str:
    """torch.manual_seed reproduces the tokens of unseeded rows, and another seed gives others."""
    rows = subject.effort.rows(64)

    def run(seed: int, logits: torch.Tensor) -> list[Array]:
        torch.manual_seed(seed)
        return [subject.tokens(logits, SamplingParams()) for _ in range(3)]

    for dtype in dtypes_of(subject):
        logits = torch.zeros(rows, 1000, dtype=dtype)
        first, again, other = run(123, logits), run(123, logits), run(124, logits)
        trial.require(
            all(map(np.array_equal, first, again)), "one seed needs the same tokens again, found others"
        )
        trial.require(
            not np.array_equal(first[0], other[0]), "another seed needs other tokens, found the same"
        )
        trial.require(
            not np.array_equal(first[0], first[1]), "successive calls need other tokens, found the same"
        )
    return f"3 calls of {rows} rows in each dtype, repeated"

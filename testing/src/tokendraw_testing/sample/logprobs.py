"""Log-probabilities: five modes, the N best, ranks and the kept mass, against float64 and their bound."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplerOutput, SamplingParams
from tokendraw.plugin import LOGPROBS_MODES, PAD_LOGPROB, PAD_TOKEN_ID, LogprobsMode
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import FAMILIES
from tokendraw_testing.rows.bounds import leading_rows, narrow_requests
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.dtypes import round_rows
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.logprobs import TOLERANCE, expected_values, require_values
from tokendraw_testing.rows.requests import combinations, describe, has_logprobs, has_mode, scalar_filters
from tokendraw_testing.rows.subjects import SampleSubject, row_refusal

properties = Properties("sample")
Array = NDArray[Any]


def _batches(
    subject: SampleSubject, trial: Trial, num_best: int, sizes: Sequence[int] = (1, 50, 1300)
) -> Iterator[tuple[torch.Tensor, Array, list[SamplingParams]]]:
    """Make a batch of every vocabulary in every dtype: rows [B, V], their float32 values, and their requests."""
    for size, dtype in itertools.product(sizes, subject.dtypes):
        yield _batch(subject, trial, size, num_best, dtype)


def _batch(
    subject: SampleSubject, trial: Trial, size: int, num_best: int, dtype: torch.dtype
) -> tuple[torch.Tensor, Array, list[SamplingParams]]:
    """Make some rows of every family, with requests of all kinds."""
    rng = trial.generator(f"{size} {num_best} {dtype}")
    requests = combinations(subject.capabilities, size)
    if scalar_filters(subject.capabilities):
        requests = requests[:1]
    copies = max(1, subject.effort.rows(6) // len(subject.capabilities.dtypes))
    logits = np.stack([family(rng, size) for family in FAMILIES.values() for _ in range(copies)])
    indices = rng.integers(0, len(requests), len(logits))
    seed_torch(rng)
    return *round_rows(logits, dtype), [replace(requests[i], logprobs=num_best) for i in indices]


def _logprob_arrays(output: SamplerOutput) -> tuple[Array, Array, Array]:
    """Return ids [B, 1 + N], values [B, 1 + N] and ranks [B] on the host."""
    logprobs = output.logprobs
    assert logprobs is not None
    assert logprobs.ranks is not None
    return logprobs.token_ids.cpu().numpy(), logprobs.logprobs.cpu().numpy(), logprobs.ranks.cpu().numpy()


def _register_mode(mode: LogprobsMode) -> None:
    ask = row_refusal(SamplingParams(logprobs=1), logprobs_mode=mode)

    @properties.advertised(f"{mode}", has_mode(mode), ask)
    def check(subject: SampleSubject, trial: Trial) -> str:
        """The values of all V tokens and of the drawn one agree with float64 to 1e-5, by id."""
        num_rows = 0
        for rows, logits, params in _batches(subject, trial, -1):
            size = rows.shape[1]
            output = subject.sample(rows, params, mode=mode)
            ids, values, _ = _logprob_arrays(output)
            tokens = output.token_ids.cpu().numpy()
            for i, request in enumerate(params):
                rule, token = subject.capabilities.tie_rule, int(tokens[i])
                expected = expected_values(logits[i], request, token, mode, rule)
                if expected is None:
                    continue
                num_rows += 1
                require_values(trial, f"V = {size}, {describe(request)}", ids[i], values[i], expected)
                trial.require(
                    ids[i][0] == tokens[i],
                    f"the drawn token {tokens[i]} needs to come first, found {ids[i][0]}",
                )
        return f"{num_rows} rows, all V values"


for _each in LOGPROBS_MODES:
    _register_mode(_each)


@properties.advertised("ranks", has_logprobs)
def ranks(subject: SampleSubject, trial: Trial) -> str:
    """The rank is the number of tokens whose value is at least the drawn one's, all ties counted."""
    num_rows = 0
    for rows, logits, params in _batches(subject, trial, 0):
        size = rows.shape[1]
        output = subject.sample(rows, params)
        ranks_found, tokens = _logprob_arrays(output)[2], output.token_ids.cpu().numpy()
        for x, token, rank in zip(logits, tokens, ranks_found, strict=True):
            expected = int((x >= x[token]).sum())
            num_rows += 1
            trial.require(rank == expected, f"V = {size}: token {token} needs rank {expected}, found {rank}")
    return f"{num_rows} rows, with ties"


@properties.advertised("N best", has_logprobs)
def n_best(subject: SampleSubject, trial: Trial) -> str:
    """The N best follow the drawn token, descending, lowest id first on a tie, at most all V; then padding."""
    modes = subject.capabilities.logprobs_modes
    mode = next((m for m in modes if m.startswith("raw")), modes[0])
    is_raw, size = mode.startswith("raw"), 1300
    counts = (0, 1, 20, 21, 33, size, 10 * size)
    for num_best, dtype in itertools.product(counts, subject.dtypes):
        rows, logits, params = _batch(subject, trial, size, num_best, dtype)
        if (
            not is_raw
        ):  # temperature and filters off: the order of the logits, but for what rounding makes equal
            params = [SamplingParams(logprobs=num_best, filter_order=p.filter_order) for p in params]
        ids, values, _ = _logprob_arrays(subject.sample(rows, params, mode=mode))
        for x, row, row_values in zip(logits, ids, values, strict=True):
            best = np.lexsort((np.arange(size), -x))[:num_best]
            if not is_raw:
                best = _match_within_rounding(x, best, row[1:], row_values[1:])
            places = np.flatnonzero(row[1:] != best)
            trial.require(
                not len(places),
                f"N = {num_best} needs token {best[places[:1]]} in place {places[:1] + 1}, found {row[1:][places[:1]]}",
            )
    requests = [SamplingParams(logprobs=n) for n in (None, 0, 2, 5)]
    ids, values, _ = _logprob_arrays(subject.sample(rows[:4], requests, mode=mode))
    for i, num_best in enumerate((0, 0, 2, 5)):
        is_padded = (ids[i, 1 + num_best :] == PAD_TOKEN_ID).all() and (
            values[i, 1 + num_best :] == PAD_LOGPROB
        ).all()
        trial.require(
            is_padded,
            f"a row that asked for {num_best} of 5 needs padding behind them, found {ids[i].tolist()}",
        )
    return f"N of 0, 1, 20, 21, 33, V = {size} and more, and rows that ask for less"


def _match_within_rounding(x: Array, best: Array, tokens: Array, values: Array) -> Array:
    """Return ``tokens`` in place of ``best`` if only logits within rounding differ."""
    ids, end = tokens[: len(best)], len(best)
    in_range = (ids >= 0) & (ids < len(x))
    if not in_range.all() or len(np.unique(ids)) < end or not (np.diff(values[:end]) <= 0).all():
        return best
    return ids if np.allclose(x[ids], x[best], rtol=TOLERANCE, atol=TOLERANCE) else best


@properties.advertised("log_kept_mass", has_logprobs)
def kept_mass(subject: SampleSubject, trial: Trial) -> str:
    """The log of the kept set's share of the temperature-scaled mass, to 1e-5."""
    num_rows = 0
    for rows, logits, params in _batches(subject, trial, 0):
        size = rows.shape[1]
        output = subject.sample(rows, params)
        assert output.log_kept_mass is not None
        masses = output.log_kept_mass.cpu().numpy()
        for x, request, mass in zip(logits, params, masses, strict=True):
            expected = expect(x, request, subject.capabilities.tie_rule)
            if not expected.certain:
                continue
            num_rows += 1
            trial.require(
                abs(float(mass) - expected.log_share) <= TOLERANCE,
                f"V = {size}, {describe(request)} needs log_kept_mass {expected.log_share:.6f}, found {mass:.6f}",
            )
    return f"{num_rows} rows"


@properties.advertised("logprob bounds", has_logprobs)
def bounds(subject: SampleSubject, trial: Trial) -> str:
    """No log-probability and no log_kept_mass lies above 0, where rounding brings them next to it."""
    sizes = [v for v in (1, 2, 33, 1300) if v <= (subject.capabilities.max_vocab_size or v)]
    num_rows = 0
    for size, dtype in itertools.product(sizes, subject.dtypes):
        rng = trial.generator(f"{size} {dtype}")
        rows, _ = round_rows(leading_rows(rng, size, subject.effort.rows(96, least=6)), dtype)
        requests = [replace(p, logprobs=min(size, 3)) for p in narrow_requests(subject.capabilities)]
        params = [requests[i] for i in rng.integers(0, len(requests), len(rows))]
        seed_torch(rng)
        for mode in subject.capabilities.logprobs_modes:
            subject.sample(rows, params, mode=mode)  # holds what is returned against the bound
            num_rows += len(rows)
    return f"{num_rows} rows: one token's, a few tokens', uniform"

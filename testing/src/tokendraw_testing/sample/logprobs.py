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
from tokendraw_testing.rows.dtypes import dtypes_of, rounded
from tokendraw_testing.rows.expected import expect
from tokendraw_testing.rows.logprobs import TOLERANCE, expected_values, require_values
from tokendraw_testing.rows.requests import combinations, described, has_logprobs, has_mode, scalar_filters
from tokendraw_testing.rows.sampling import Sampling, row_ask

properties = Properties("sample")
Array = NDArray[Any]


def _batches(
    subject: Sampling, trial: Trial, wanted: int, sizes: Sequence[int] = (1, 50, 1300)
) -> Iterator[tuple[torch.Tensor, Array, list[SamplingParams]]]:
    """Make a batch of every vocabulary in every dtype: rows [B, V], their float32 values, and their requests."""
    for size, dtype in itertools.product(sizes, dtypes_of(subject)):
        yield _batch(subject, trial, size, wanted, dtype)


def _batch(
    subject: Sampling, trial: Trial, size: int, wanted: int, dtype: torch.dtype
) -> tuple[torch.Tensor, Array, list[SamplingParams]]:
    """Make some rows of every family, with requests of all kinds."""
    rng = trial.generator(f"{size} {wanted} {dtype}")
    requests = combinations(subject.capabilities, size)
    if scalar_filters(subject.capabilities):
        requests = requests[:1]
    copies = max(1, subject.effort.rows(6) // len(subject.capabilities.dtypes))
    logits = np.stack([family(rng, size) for family in FAMILIES.values() for _ in range(copies)])
    picked = rng.integers(0, len(requests), len(logits))
    seed_torch(rng)
    return *rounded(logits, dtype), [replace(requests[i], logprobs=wanted) for i in picked]


def _shown(output: SamplerOutput) -> tuple[Array, Array, Array]:
    """Return ids [B, 1 + N], values [B, 1 + N] and ranks [B] on the host."""
    found = output.logprobs
    assert found is not None
    assert found.ranks is not None
    return found.token_ids.cpu().numpy(), found.logprobs.cpu().numpy(), found.ranks.cpu().numpy()


def _mode(mode: LogprobsMode) -> None:
    ask = row_ask(SamplingParams(logprobs=1), logprobs_mode=mode)

    @properties.advertised(f"{mode}", has_mode(mode), ask)
    def check(subject: Sampling, trial: Trial) -> str:
        """The values of all V tokens and of the drawn one agree with float64 to 1e-5, by id."""
        looked = 0
        for given, logits, params in _batches(subject, trial, -1):
            size = given.shape[1]
            output = subject.sample(given, params, mode=mode)
            ids, values, _ = _shown(output)
            drawn = output.token_ids.cpu().numpy()
            for i, request in enumerate(params):
                expected = expected_values(
                    logits[i], request, int(drawn[i]), mode, subject.capabilities.tie_rule
                )
                if expected is None:
                    continue
                looked += 1
                require_values(trial, f"V = {size}, {described(request)}", ids[i], values[i], expected)
                trial.require(
                    ids[i][0] == drawn[i],
                    f"the drawn token {drawn[i]} needs to come first, found {ids[i][0]}",
                )
        return f"{looked} rows, all V values"


for _each in LOGPROBS_MODES:
    _mode(_each)


@properties.advertised("ranks", has_logprobs)
def ranks(subject: Sampling, trial: Trial) -> str:
    """The rank is the number of tokens whose value is at least the drawn one's, all ties counted."""
    looked = 0
    for given, logits, params in _batches(subject, trial, 0):
        size = given.shape[1]
        output = subject.sample(given, params)
        found, drawn = _shown(output)[2], output.token_ids.cpu().numpy()
        for x, token, rank in zip(logits, drawn, found, strict=True):
            expected = int((x >= x[token]).sum())
            looked += 1
            trial.require(rank == expected, f"V = {size}: token {token} needs rank {expected}, found {rank}")
    return f"{looked} rows, with ties"


@properties.advertised("N best", has_logprobs)
def n_best(subject: Sampling, trial: Trial) -> str:
    """The N best follow the drawn token, descending, lowest id first on a tie, at most all V; then padding."""
    modes = subject.capabilities.logprobs_modes
    mode = next((m for m in modes if m.startswith("raw")), modes[0])
    is_raw, size = mode.startswith("raw"), 1300
    counts = (0, 1, 20, 21, 33, size, 10 * size)
    for wanted, dtype in itertools.product(counts, dtypes_of(subject)):
        given, logits, params = _batch(subject, trial, size, wanted, dtype)
        if (
            not is_raw
        ):  # temperature and filters off: the order of the logits, but for what rounding makes equal
            params = [SamplingParams(logprobs=wanted, filter_order=p.filter_order) for p in params]
        ids, values, _ = _shown(subject.sample(given, params, mode=mode))
        for x, row, shown in zip(logits, ids, values, strict=True):
            best = np.lexsort((np.arange(size), -x))[:wanted]
            if not is_raw:
                best = _equal_for_rounding(x, best, row[1:], shown[1:])
            apart = np.flatnonzero(row[1:] != best)
            trial.require(
                not len(apart),
                f"N = {wanted} needs token {best[apart[:1]]} in place {apart[:1] + 1}, found {row[1:][apart[:1]]}",
            )
    few = [SamplingParams(logprobs=n) for n in (None, 0, 2, 5)]
    ids, values, _ = _shown(subject.sample(given[:4], few, mode=mode))
    for i, wanted in enumerate((0, 0, 2, 5)):
        padded = (ids[i, 1 + wanted :] == PAD_TOKEN_ID).all() and (
            values[i, 1 + wanted :] == PAD_LOGPROB
        ).all()
        trial.require(
            padded, f"a row that asked for {wanted} of 5 needs padding behind them, found {ids[i].tolist()}"
        )
    return f"N of 0, 1, 20, 21, 33, V = {size} and more, and rows that ask for less"


def _equal_for_rounding(x: Array, best: Array, found: Array, values: Array) -> Array:
    """Return ``found`` in place of ``best`` where it is the same but for logits that one value cannot tell apart."""
    ids, end = found[: len(best)], len(best)
    in_range = (ids >= 0) & (ids < len(x))
    if not in_range.all() or len(np.unique(ids)) < end or not (np.diff(values[:end]) <= 0).all():
        return best
    return ids if np.allclose(x[ids], x[best], rtol=TOLERANCE, atol=TOLERANCE) else best


@properties.advertised("log_kept_mass", has_logprobs)
def kept_mass(subject: Sampling, trial: Trial) -> str:
    """The log of the kept set's share of the temperature-scaled mass, to 1e-5."""
    looked = 0
    for given, logits, params in _batches(subject, trial, 0):
        size = given.shape[1]
        output = subject.sample(given, params)
        assert output.log_kept_mass is not None
        found = output.log_kept_mass.cpu().numpy()
        for x, request, mass in zip(logits, params, found, strict=True):
            expected = expect(x, request, subject.capabilities.tie_rule)
            if not expected.certain:
                continue
            looked += 1
            trial.require(
                abs(float(mass) - expected.log_share) <= TOLERANCE,
                f"V = {size}, {described(request)} needs log_kept_mass {expected.log_share:.6f}, found {mass:.6f}",
            )
    return f"{looked} rows"


@properties.advertised("logprob bounds", has_logprobs)
def bounds(subject: Sampling, trial: Trial) -> str:
    """No log-probability and no log_kept_mass lies above 0, where rounding brings them next to it."""
    sizes = [v for v in (1, 2, 33, 1300) if v <= (subject.capabilities.max_vocab_size or v)]
    looked = 0
    for size, dtype in itertools.product(sizes, dtypes_of(subject)):
        rng = trial.generator(f"{size} {dtype}")
        given, _ = rounded(leading_rows(rng, size, subject.effort.rows(96, least=6)), dtype)
        requests = [replace(p, logprobs=min(size, 3)) for p in narrow_requests(subject.capabilities)]
        params = [requests[i] for i in rng.integers(0, len(requests), len(given))]
        seed_torch(rng)
        for mode in subject.capabilities.logprobs_modes:
            subject.sample(given, params, mode=mode)  # holds what is returned against the bound
            looked += len(given)
    return f"{looked} rows: one token's, a few tokens', uniform"

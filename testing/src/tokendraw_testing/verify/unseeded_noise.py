"""Requests without seeds: every use of noise around a verification is new, in any dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw.tools import all_of
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import fit, worst_distance
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.verify.subject import VerifySubject

properties = Properties("verify")
Array = NDArray[Any]

_NARROW_SIZE: Final = 257
_TILED_SIZE: Final = 2053
_WIDE_VOCAB_SIZES: Final = (65_543, 131_113)
_KEPT_TOKENS: Final = 64
_SURE_LOGIT: Final = 60.0
_SMALL_SIZE: Final = 4
_NUM_DRAFTS: Final = 15


@properties.required("verify shared noise")
def shared_noise(subject: VerifySubject, trial: Trial) -> str:
    """Drafts, recovered tokens and bonus tokens of successive calls coincide as often as independent draws do."""
    capabilities = subject.capabilities
    plain_params = SamplingParams(filter_order=subject.filter_order)
    is_filtered = ("top_k", "per_row") in capabilities.filters and (
        capabilities.max_top_k or _KEPT_TOKENS
    ) >= _KEPT_TOKENS
    most = subject.effort.draws_of(1100)
    looks = [(_NARROW_SIZE, most, plain_params)]
    if is_filtered:
        looks.append((_TILED_SIZE, most, replace(plain_params, top_k=_KEPT_TOKENS)))
    if not subject.effort.mixed:
        wide_sizes = _WIDE_VOCAB_SIZES[: 1 if subject.effort.quick else None]
        looks += [(size, 70, plain_params) for size in wide_sizes]
    served_looks = [look for look in looks if look[0] <= (capabilities.max_vocab_size or look[0])]
    if not served_looks:
        trial.skip(f"needs a vocabulary of {_NARROW_SIZE}, found a limit of {capabilities.max_vocab_size}")
    for dtype in capabilities.dtypes:
        for size, count, params in served_looks:
            _judge_tokens(subject, trial, dtype, size, count, params)
    return f"{most} requests and fewer of wide vocabularies, {all_of(capabilities.dtypes)}"


def _judge_tokens(
    subject: VerifySubject, trial: Trial, dtype: str, size: int, count: int, params: SamplingParams
) -> None:
    """Compare all pairs of tokens, each uniform over the same ids, of several calls."""
    kept = _KEPT_TOKENS if params.top_k else size - 1
    row = np.full(size, -30.0 if params.top_k else 0.0, np.float32)
    row[1 : kept + 1] = 0.0
    row[0] = -np.inf
    x = torch.from_numpy(row).to(getattr(torch, dtype)).to(subject.device)

    def experiment(rng: Generator, num_requests: int) -> Verdict:
        seed_torch(rng)
        tokens, requests = [], _mix_seeds(subject, rng, params, num_requests)
        for _ in range(2):
            metadata = _metadata(subject, requests, rng)
            tokens.append(subject.draft(x.expand(num_requests, -1), metadata).token_ids.cpu().numpy())
        kind = subject.capabilities.draft_kinds[-1]
        draft_row = torch.where(torch.arange(size, device=subject.device) == 0, _SURE_LOGIT, -_SURE_LOGIT)
        draft_row = (draft_row > 0).float() if kind == "probs" else draft_row.to(x.dtype)
        modes = subject.capabilities.verify_modes
        # One draft each, which the target cannot emit; and none: what is emitted then is a bonus token in any mode.
        for mode, n in [*((mode, 1) for mode in modes), *[(modes[0], 0)] * (not params.top_k)]:
            target, draft_rows = x.expand((n + 1) * num_requests, -1), draft_row.expand(n * num_requests, -1)
            ids, first = [[0] * n] * num_requests, rng.integers(0, 2**40, num_requests).tolist()
            output = subject.verify_ids(target, ids, (mode, kind), draft_rows, requests, first)
            tokens.append(output.token_ids[:, 0].cpu().numpy())
        return coincidences(np.concatenate(tokens) - 1, np.full(kept, 1 / kept), num_requests)

    label = f"V = {size}, {dtype}" + f", top_k = {_KEPT_TOKENS}" * bool(params.top_k)
    trial.judge(label, experiment, count)


def _mix_seeds(
    subject: VerifySubject, rng: Generator, params: SamplingParams, count: int
) -> list[SamplingParams]:
    """Make requests without seeds; a third of the filtered requests has seeds."""
    if not params.top_k or subject.capabilities.seeding != "counter":
        return [params] * count
    seeds, _ = random_seeds(rng, count)
    return [replace(params, seed=seed) if i % 3 == 1 else params for i, seed in enumerate(seeds)]


def _metadata(subject: VerifySubject, requests: Sequence[SamplingParams], rng: Generator) -> SamplingMetadata:
    positions = rng.integers(0, 2**40, len(requests)).tolist()
    return SamplingMetadata.from_params(requests, device=subject.device, positions=positions)


def coincidences(values: Array, probabilities: Array, count: int) -> Verdict:
    """Test draws of one distribution as independent, by the number of equal draws at each distance.

    :param values: [n] int64, groups of ``count`` one behind the other.
    :param probabilities: of the values; nearly uniform, so that coincidences at one distance are independent.
    """
    n, equal_share = len(values), float((probabilities**2).sum())
    pairs_p, distance, pairs = worst_distance(values, equal_share)
    calls, rows = divmod(distance, count)
    where = f"{rows} rows" + f" and {calls} calls" * bool(calls)
    text = f"values {where} apart equal {pairs} times, expected {(n - distance) * equal_share:.1f}"
    return Verdict(min(1.0, 2 * min(pairs_p, _spread_p(values, probabilities))), text, n)


def _spread_p(values: Array, probabilities: Array) -> float:
    """Return the p-value of how unevenly the values are spread, or of how few of them differ."""
    n, size = len(values), len(probabilities)
    if n < 2 * size:
        num_repeated = n - len(np.unique(values))
        return float(stats.poisson.sf(num_repeated - 1, n - size * (1 - (1 - 1 / size) ** n)))
    counts, expected = np.bincount(values, minlength=size), n * probabilities
    return float(stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), size - 1))


@properties.advertised("verify unseeded acceptance", lambda c: "rejection" in c.verify_modes)
def acceptance(subject: VerifySubject, trial: Trial) -> str:
    """Drafts of one request, of neighbours and of requests far apart are accepted independently."""
    capabilities = subject.capabilities
    most = subject.effort.draws_of(1100)
    if (capabilities.max_vocab_size or _SMALL_SIZE) < _SMALL_SIZE:
        trial.skip(f"needs a vocabulary of {_SMALL_SIZE}, found a limit of {capabilities.max_vocab_size}")
    looks = [(_SMALL_SIZE, most, _NUM_DRAFTS)]
    if not subject.effort.mixed:
        looks.append((_WIDE_VOCAB_SIZES[0], 40, 3))
    for dtype in capabilities.dtypes:
        for size, count, steps in looks:
            if size <= (capabilities.max_vocab_size or size):
                trial.judge(
                    f"V = {size}, {dtype}", _acceptance_experiment(subject, dtype, size, steps), count
                )
    return f"{most} requests of {_NUM_DRAFTS} drafts, {all_of(capabilities.dtypes)}"


def _acceptance_experiment(
    subject: VerifySubject, dtype: str, size: int, steps: int
) -> Callable[[Generator, int], Verdict]:
    """Make requests with about equally likely numbers of accepted drafts, 0 to ``steps``."""
    kind = next(kind for mode, kind in subject.ways if mode == "rejection")
    rates = (steps - np.arange(steps)) / (steps + 1 - np.arange(steps))
    rows = np.zeros((steps + 1, size), np.float32)
    rows[:-1, 0] = np.log(rates / (1 - rates) * (size - 1))
    target = subject.upload(rows, dtype)
    exact_rows = target[:-1].float().cpu().numpy()
    passed = np.cumprod([1.0, *(float(expect(x, SamplingParams()).probabilities[0]) for x in exact_rows)])
    probabilities = passed - np.append(passed[1:], 0.0)
    sure_row = np.where(np.arange(size) == 0, np.float32(_SURE_LOGIT), np.float32(-_SURE_LOGIT))
    sure_row = (sure_row > 0).astype(np.float32) if kind == "probs" else sure_row
    draft_row = subject.upload_draft(sure_row, dtype, kind)

    def experiment(rng: Generator, count: int) -> Verdict:
        seed_torch(rng)
        target_rows, draft_rows = target.repeat(count, 1), draft_row.expand(count * steps, -1)
        output = subject.verify_ids(target_rows, [[0] * steps] * count, ("rejection", kind), draft_rows)
        accepted = output.num_accepted.cpu().numpy().astype(np.int64)
        verdicts = fit(accepted, probabilities), coincidences(accepted, probabilities, count)
        worst = min(verdicts, key=lambda verdict: verdict.p_value)
        return replace(
            worst, p_value=min(1.0, 2 * worst.p_value), worst=f"of numbers of accepted drafts, {worst.worst}"
        )

    return experiment

"""Checks the filters by the kept tokens, as draws and processed logprobs show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import FilterOrder
from tokendraw_testing import reference
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import share
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.logits_families import FAMILIES
from tokendraw_testing.rows.draws import draw_many, judge_fit, seed_torch
from tokendraw_testing.rows.dtypes import round_in_turn, round_rows
from tokendraw_testing.rows.expectation import Expectation, expect, possible_tokens
from tokendraw_testing.rows.requests import batches, describe, has_filter
from tokendraw_testing.rows.subjects import SampleSubject, row_refusal

properties = Properties("sample")
Array = NDArray[Any]

_VOCAB_SIZE = 1200
_COPIES = 12


@properties.advertised("top_k", has_filter("top_k"), row_refusal(SamplingParams(top_k=2)))
def top_k(subject: SampleSubject, trial: Trial) -> str:
    """Keeps every token whose value is at least the k-th largest, and draws each of them."""
    limit = subject.capabilities.max_top_k or 2**30
    ks = [k for k in (1, 2, 7, 20, 39, 40, 41) if k <= limit]
    return _check_requests(subject, trial, [SamplingParams(top_k=k) for k in ks])


@properties.advertised("top_p", has_filter("top_p"), row_refusal(SamplingParams(top_p=0.5)))
def top_p(subject: SampleSubject, trial: Trial) -> str:
    """Keeps the smallest set of largest tokens with mass >= p, the one that crosses p included."""
    ps = (1e-6, 0.1, 0.33, 0.5, 0.77, 0.9, 0.96)
    return _check_requests(subject, trial, [SamplingParams(top_p=p) for p in ps])


@properties.advertised("min_p", has_filter("min_p"), row_refusal(SamplingParams(min_p=0.5)))
def min_p(subject: SampleSubject, trial: Trial) -> str:
    """Keeps tokens at least min_p times as likely as the likeliest."""
    ps = (1e-4, 0.05, 0.2, 0.5, 0.83, 1.0)
    return _check_requests(subject, trial, [SamplingParams(min_p=p) for p in ps])


@properties.advertised(
    "filter order top_k_first",
    lambda c: "top_k_first" in c.filter_orders and has_filter("top_p")(c) and has_filter("top_k")(c),
    row_refusal(SamplingParams(top_k=2, top_p=0.5), filter_orders=("top_k_first",)),
)
def top_k_first(subject: SampleSubject, trial: Trial) -> str:
    """top-p counts the mass that min-p and top-k left."""
    return _check_order(subject, trial, "top_k_first")


@properties.advertised(
    "filter order joint",
    lambda c: "joint" in c.filter_orders and has_filter("top_p")(c) and has_filter("top_k")(c),
    row_refusal(SamplingParams(top_k=2, top_p=0.5, filter_order="joint"), filter_orders=("joint",)),
)
def joint(subject: SampleSubject, trial: Trial) -> str:
    """top-k and top-p both count the unfiltered mass."""
    return _check_order(subject, trial, "joint")


def _check_order(subject: SampleSubject, trial: Trial, order: FilterOrder) -> str:
    requests = [
        SamplingParams(top_k=k, top_p=p, filter_order=order)
        for k, p in ((4, 0.82), (10, 0.5), (20, 0.3), (30, 0.9))
    ]
    if subject.has("min_p"):
        requests += [SamplingParams(min_p=0.4, top_p=0.5, filter_order=order)]
    probabilities_row = np.log([0.35, 0.25, 0.20, 0.05, 0.03, 0.03, 0.03, 0.03, 0.03]).astype(np.float32)
    _judge_draws(subject, trial, "a known row", probabilities_row, requests[0])
    return _check_requests(subject, trial, requests)


@properties.advertised("ties", lambda c: bool(c.filters))
def ties(subject: SampleSubject, trial: Trial) -> str:
    """Tokens tied with the last kept one: all of them stay (value), or as many as make k (exact_k)."""
    rng = trial.generator("row")
    size = 96
    row = np.log(np.repeat([0.3, 0.2, 0.15, 0.35], 24) / 24).astype(np.float32)[rng.permutation(size)]
    requests = []
    if subject.has("top_k"):
        limit = subject.capabilities.max_top_k or size
        requests += [SamplingParams(top_k=k) for k in (1, 30, 47) if k <= limit]
    if subject.has("min_p"):
        requests.append(SamplingParams(min_p=0.5))
    if subject.has("top_p"):
        requests += [SamplingParams(top_p=p) for p in (0.1, 0.5, 0.7)]
    requests = _with_filter_order(subject, requests)
    if subject.effort.mixed:
        requests = requests[:: max(1, len(requests) - 1)]
    for number, params in enumerate(requests):
        _judge_draws(subject, trial, describe(params), row, params, number)
    return f"tie rule {subject.capabilities.tie_rule}, groups of 24 equal logits"


def _check_requests(subject: SampleSubject, trial: Trial, requests: list[SamplingParams]) -> str:
    """Compare requests with float64, by draws from rows with visible edges, and by logprobs."""
    requests = _with_filter_order(subject, requests)
    drawn_requests = _pick_sharpest(subject, trial, requests) if subject.effort.mixed else requests
    dtypes = subject.dtypes
    for number, params in enumerate(drawn_requests):
        dtype = dtypes[number % len(dtypes)]
        row = _clear_row(trial, params, subject, dtype)
        draws = subject.effort.draws // 4
        expected = judge_fit(subject, trial, describe(params), row, params, draws, dtype=dtype)
        _judge_edge(subject, trial, torch.from_numpy(row).to(dtype), params, expected)
    _require_support(subject, trial, requests)
    logprobs_text = _require_kept_logprobs(subject, trial, requests)
    return f"{len(drawn_requests)} requests by draws{logprobs_text}"


def _pick_sharpest(
    subject: SampleSubject, trial: Trial, requests: list[SamplingParams]
) -> list[SamplingParams]:
    """Pick the two requests with the likeliest last kept token: few draws suffice to miss it."""

    def probability(params: SamplingParams) -> float:
        expected = expect(_clear_row(trial, params, subject), params, subject.capabilities.tie_rule)
        return float(expected.probabilities[expected.edge].sum())

    return sorted(requests, key=probability)[-2:]


def _require_support(subject: SampleSubject, trial: Trial, requests: list[SamplingParams]) -> None:
    """Draws from every family of logits stay inside the kept set."""
    for turn, (name, family) in enumerate(FAMILIES.items()):
        rng = trial.generator(name, 3)
        rows = np.stack([family(rng, _VOCAB_SIZE) for _ in range(subject.effort.rows(4))])
        rows = rows.repeat(subject.effort.rows(_COPIES, least=2), 0)
        for number, batch in enumerate(batches(subject, requests, len(rows), turn)):
            seed_torch(rng)
            logits, values = round_in_turn(subject, turn + number, rows)
            tokens = subject.tokens(logits, batch)
            for row, params, token in zip(values, batch, tokens, strict=True):
                possible = possible_tokens(row, params, subject.capabilities.tie_rule)
                trial.require(
                    possible[token],
                    f"{describe(params)} on {name} logits needs one of {possible.sum()} kept tokens, found {token}",
                )


def _with_filter_order(subject: SampleSubject, requests: list[SamplingParams]) -> list[SamplingParams]:
    """Return the requests with a filter order of the subject."""
    orders = subject.capabilities.filter_orders or ("top_k_first",)
    return [p if p.filter_order in orders else replace(p, filter_order=orders[0]) for p in requests]


def _clear_row(
    trial: Trial, params: SamplingParams, subject: SampleSubject, dtype: torch.dtype = torch.float32
) -> Array:
    """Make 60 logits of a dtype, none of them unlikely, and no decision within rounding of an edge."""
    for attempt in range(100):
        rng = trial.generator(f"{params}", 10 + attempt)
        row = rng.permutation(np.linspace(0, 2.2, 60) + rng.uniform(-0.01, 0.01, 60)).astype(np.float32)
        _, row = round_rows(row, dtype)
        if expect(row, params, subject.capabilities.tie_rule).certain:
            return row
    raise AssertionError(f"the kit found no clear row for {params}")


def _judge_edge(
    subject: SampleSubject, trial: Trial, row: torch.Tensor, params: SamplingParams, expected: Expectation
) -> None:
    """Judge the last kept token, in view of off-by-one mistakes."""
    probability = float(expected.probabilities[expected.edge].sum())

    def experiment(rng: Generator, draws: int) -> Verdict:
        tokens = draw_many(subject, row, params, draws, rng)
        if (~expected.possible[tokens]).any():
            return Verdict(0.0, f"dropped token {tokens[~expected.possible[tokens]][0]} was drawn", draws)
        return share(int(expected.edge[tokens].sum()), draws, probability, "the last kept token")

    draws = subject.effort.edge_draws(probability)
    trial.judge(f"{describe(params)}, last kept token", experiment, draws)


def _judge_draws(
    subject: SampleSubject, trial: Trial, label: str, row: Array, params: SamplingParams, turn: int = 0
) -> None:
    rounded_row, values = round_in_turn(subject, turn, row)
    judge_fit(subject, trial, label, values, params, subject.effort.draws // 2, dtype=rounded_row.dtype)


def _require_kept_logprobs(subject: SampleSubject, trial: Trial, requests: list[SamplingParams]) -> str:
    """Read kept sets from the processed values of all V tokens, over every family of logits."""
    mode = next((m for m in subject.capabilities.logprobs_modes if m.startswith("processed")), None)
    if mode is None:
        return ""
    num_sets = 0
    for turn, (name, family) in enumerate(FAMILIES.items()):
        rng = trial.generator(name)
        logits = np.stack([family(rng, _VOCAB_SIZE) for _ in range(subject.effort.rows(_COPIES, least=2))])
        rows_by_dtype: dict[torch.dtype, list[reference.SortedLogits]] = {}
        for number, batch in enumerate(batches(subject, requests, len(logits), turn)):
            params_list = [replace(params, logprobs=-1) for params in batch]
            rounded_logits, values = round_in_turn(subject, turn + number, logits)
            output = subject.sample(rounded_logits, params_list, mode=mode)
            assert output.logprobs is not None
            ids = output.logprobs.token_ids[:, 1:].cpu().numpy()
            is_finite = np.isfinite(output.logprobs.logprobs[:, 1:].cpu().numpy())
            if rounded_logits.dtype not in rows_by_dtype:
                rows_by_dtype[rounded_logits.dtype] = [reference.SortedLogits.of(row) for row in values]
            for row, params, row_ids, row_finite in zip(
                rows_by_dtype[rounded_logits.dtype], batch, ids, is_finite, strict=True
            ):
                expected = expect(row, params, subject.capabilities.tie_rule)
                if not expected.certain:
                    continue
                num_sets += 1
                _require_kept(trial, f"{describe(params)} on {name} logits", expected, row_ids[row_finite])
    return f", {num_sets} kept sets in {len(FAMILIES)} families as {mode} show them"


def _require_kept(trial: Trial, label: str, expected: Expectation, tokens: Array) -> None:
    extra_tokens = tokens[~expected.kept[tokens]]
    trial.require(
        not len(extra_tokens),
        f"{label}: token {extra_tokens[0] if len(extra_tokens) else 0} needs to be dropped, found it kept",
    )
    message = f"{label}: needs {expected.count} kept tokens, found {len(tokens)}"
    trial.require(len(tokens) == expected.count, message)

"""Shapes of batches, requests at the limits of the capabilities, and refusals beyond them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from tokendraw import SamplingParams
from tokendraw.plugin import INPUT_DTYPES, LOGPROBS_MODES, Capabilities, FilterOrder
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.refusals import offers, require_refusal, require_unadvertised
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.requests import describe, has_counter, has_filter
from tokendraw_testing.rows.subjects import SampleSubject, row_refusal

properties = Properties("sample")


def _has_order(order: FilterOrder) -> Callable[[Capabilities], bool]:
    return lambda c: order in c.filter_orders and has_filter("top_p")(c) and has_filter("top_k")(c)


_ORDERS: Final[tuple[FilterOrder, ...]] = ("top_k_first", "joint")
_FILTERS: Final = {"top_k": 2, "top_p": 0.5, "min_p": 0.5}
_REFUSALS: Final[tuple[tuple[Callable[[Capabilities], bool], Refusal], ...]] = (
    *((offers("dtypes", name), Refusal({"dtype": name})) for name in INPUT_DTYPES),
    *((has_filter(name), row_refusal(SamplingParams(**{name: value}))) for name, value in _FILTERS.items()),  # type: ignore[arg-type]
    *(
        (
            _has_order(order),
            row_refusal(SamplingParams(top_k=2, top_p=0.5, filter_order=order), filter_orders=(order,)),
        )
        for order in _ORDERS
    ),
    (lambda c: c.greedy, row_refusal(SamplingParams(temperature=0.0))),
    (has_counter, row_refusal(SamplingParams(seed=1))),
    (offers("gumbel_dtypes", "fp64"), Refusal({"gumbel_dtype": "fp64"})),
    (lambda c: c.valid_flag, Refusal({"valid_flag": True})),
    *(
        (offers("logprobs_modes", mode), row_refusal(SamplingParams(logprobs=1), logprobs_mode=mode))
        for mode in LOGPROBS_MODES
    ),
)
"""Capabilities, each with a request that has to be refused without it."""


@properties.required("output")
def output(subject: SampleSubject, trial: Trial) -> str:
    """token_ids [B] int64, valid [B] bool, for empty batches and V = 1 too; unadvertised requests are refused."""
    check_shapes(subject, trial)
    return "5 shapes" + require_unadvertised(subject, _REFUSALS)


def check_shapes(subject: SampleSubject, trial: Trial) -> None:
    """Call with batches of no row and of a few, in a vocabulary of one token and larger ones."""
    limit = subject.capabilities.max_vocab_size or 5000
    for rows, size in ((0, 50), (1, 1), (5, 1), (3, 50), (0, min(5000, limit))):
        output = subject.sample(torch.zeros(rows, size), SamplingParams())
        trial.require(
            size > 1 or not output.token_ids.any(), f"V = 1 needs token 0, found {output.token_ids.tolist()}"
        )


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

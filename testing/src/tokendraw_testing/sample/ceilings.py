"""The filters that drop tokens from above, typical-p and XTC, and the order in which the temperature comes last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator

from tokendraw import SamplingParams
from tokendraw.plugin import Capabilities, FilterOrder
from tokendraw_testing import reference
from tokendraw_testing.crossing.comparison import CrossedRequest
from tokendraw_testing.crossing.factors import Kind, Site, kinds
from tokendraw_testing.crossing.rows import row_of
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import fit_experiment, random_seeds
from tokendraw_testing.rows.subjects import SampleSubject, row_refusal
from tokendraw_testing.sample.filters_from_moments import designs, judge_batches

properties = Properties("sample")

Fields = Callable[[Generator], dict[str, Any]]
"""Makes the fields of a request that a line is about."""
Requests = Callable[[SampleSubject, Site, Generator], Iterator[CrossedRequest]]
_LAST: Final[FilterOrder] = "temperature_last"
_TEMPERATURES = (1.0, 0.7, 2.5, 0.004, 150.0)
_LAW: Final = np.array([0.4, 0.3, 0.2, 0.06, 0.04])
"""Probabilities of a row; at threshold 0.1 XTC leaves the last three tokens."""
_LAW_DRAWS = 20_000
_SEEDED_COPIES = 8
_NARROW_SIZE = 1 << 14
_NARROW_COPIES, _WIDE_COPIES = 6, 1
"""Rows of each design in narrow and in wider vocabularies."""


def _per_row(name: str) -> Callable[[Capabilities], bool]:
    return lambda capabilities: (name, "per_row") in capabilities.filters


def _typical_fields(rng: Generator) -> dict[str, Any]:
    return {"typical_p": float(rng.choice((0.05, 0.3, 0.6, 0.9, 0.999)))}


def _xtc_fields(rng: Generator) -> dict[str, Any]:
    threshold = float(rng.choice((0.5, 0.2, 0.1, 0.01, 1e-4)))
    return {"xtc_probability": float(rng.choice((0.5, 0.9, 1.0))), "xtc_threshold": threshold}


@properties.advertised("typical-p", _per_row("typical_p"), row_refusal(SamplingParams(typical_p=0.5)))
def typical_p(subject: SampleSubject, trial: Trial) -> str:
    """Rows keep the tokens whose -log p lies closest to the entropy of what earlier filters left, with all ties."""
    return _judge(subject, trial, _typical_fields)


@properties.advertised("XTC", _per_row("xtc"), row_refusal(SamplingParams(xtc_probability=0.5)))
def xtc(subject: SampleSubject, trial: Trial) -> str:
    """Rows whose uniform says so drop the likely tokens but the least likely of them."""
    words = _judge(subject, trial, _xtc_fields, more=_floors_within_nuclei)
    limit = subject.capabilities.max_vocab_size
    if limit is not None and limit < len(_LAW):
        return words
    share = 0.4
    kept = np.where(np.arange(len(_LAW)) >= 2, _LAW, 0.0)
    law = (1 - share) * _LAW + share * kept / kept.sum()
    logits = torch.from_numpy(np.log(_LAW)).to(subject.dtypes[0])
    params = SamplingParams(xtc_probability=share, filter_order=subject.filter_order)
    experiment = fit_experiment(subject, logits, params, law)
    trial.judge("rows without seeds", experiment, subject.effort.draws_of(_LAW_DRAWS))
    return words


@properties.advertised(
    "filter order temperature_last",
    lambda c: _LAST in c.filter_orders and len(c.filters) > 0,
    row_refusal(SamplingParams(temperature=0.5, top_k=2, filter_order=_LAST), filter_orders=(_LAST,)),
)
def temperature_last(subject: SampleSubject, trial: Trial) -> str:
    """Filters look at temperature 1, min-p behind top-p, and the draw is at the temperature of the row."""
    return _judge(subject, trial, lambda rng: {"filter_order": _LAST})


def _judge(subject: SampleSubject, trial: Trial, fields: Fields, more: Requests | None = None) -> str:
    """Judge rows with a filter or an order beside other filters.

    :param more: makes further requests of each batch.
    """

    def make_batch(site: Site, number: int, rng: Generator) -> list[CrossedRequest]:
        requests = list(_requests(subject, site, fields, rng))
        return requests if more is None else requests + list(more(subject, site, rng))

    return judge_batches(subject, trial, make_batch)


def _floors_within_nuclei(subject: SampleSubject, site: Site, rng: Generator) -> Iterator[CrossedRequest]:
    """Make rows where min-p leaves less mass than top-p asks for, in the order ``joint``: one a kind, more with seeds.

    The second token has 0.43 of the mass that min-p leaves and 0.32 of top-p: with a threshold of 0.37 XTC drops the
    first token, unless it takes the kept mass for top-p. Of the uniforms of the seeds half apply XTC.
    """
    joint = "joint" in subject.capabilities.filter_orders
    if not (joint and subject.has("min_p") and subject.has("top_p") and site.size >= len(_LAW)):
        return
    logits = torch.full((site.size,), -30.0, dtype=torch.float64)
    logits[torch.from_numpy(rng.permutation(site.size)[: len(_LAW)])] = torch.from_numpy(np.log(_LAW))
    params = SamplingParams(
        min_p=0.6, top_p=0.95, xtc_probability=0.5, xtc_threshold=0.37, filter_order="joint"
    )
    row_kinds = kinds(subject.capabilities)
    for kind in row_kinds + ["seeded"] * (_SEEDED_COPIES if "seeded" in row_kinds else 0):
        yield _request(subject, site, "law", logits.to(site.torch_dtype), params, kind, rng)


def _requests(subject: SampleSubject, site: Site, fields: Fields, rng: Generator) -> Iterator[CrossedRequest]:
    """Make some requests for each design of a row, with the kinds of rows and other filters in turn."""
    row_kinds, number = kinds(subject.capabilities), 0
    for _ in range(_WIDE_COPIES if site.size > _NARROW_SIZE else _NARROW_COPIES):
        for design, y in designs(rng, site.size).items():
            kind = row_kinds[(number + number // len(row_kinds)) % len(row_kinds)]
            params = _params(subject, number, fields, rng)
            logits = torch.from_numpy(y * _scale(params) + (0.0, -3.0, 20.0)[number % 3])
            yield _request(subject, site, design, logits.to(site.torch_dtype), params, kind, rng)
            number += 1


def _scale(params: SamplingParams) -> float:
    """Return the temperature at which the filters of a request look at a row."""
    return 1.0 if params.filter_order == _LAST else params.temperature


def _params(subject: SampleSubject, number: int, fields: Fields, rng: Generator) -> SamplingParams:
    """Make a request with the fields of a line and some others."""
    orders = subject.capabilities.filter_orders or ("top_k_first",)
    others: dict[str, Any] = {
        "top_k": min(int(rng.choice((3, 8, 40))), subject.capabilities.max_top_k or 40),
        "top_p": float(rng.choice((0.5, 0.8, 0.95))),
        "min_p": float(rng.choice((0.02, 0.1, 0.3))),
    }
    made = {name: value for name, value in others.items() if subject.has(name) and rng.random() < 0.4}  # type: ignore[arg-type]
    made |= _typical_fields(rng) if subject.has("typical_p") and rng.random() < 0.2 else {}
    made |= _xtc_fields(rng) if subject.has("xtc") and rng.random() < 0.2 else {}
    if subject.capabilities.row_moments and rng.random() < 0.2:
        made["filters"] = {"p_less": 1.0}
    if (
        subject.capabilities.tie_rule == "exact_k"
    ):  # the tied token that it keeps would decide what the others see
        made.pop("top_k", None)
    order = {"filter_order": orders[number % len(orders)]}
    return SamplingParams(
        temperature=_TEMPERATURES[number % len(_TEMPERATURES)], **(made | order | fields(rng))
    )


def _request(
    subject: SampleSubject,
    site: Site,
    design: str,
    logits: torch.Tensor,
    params: SamplingParams,
    kind: Kind,
    rng: Generator,
) -> CrossedRequest:
    """Make a request of a kind. Its row has XTC where the uniform of the seed applies it; without a seed always."""
    (seed,), (position,) = random_seeds(rng, 1)
    is_applied = params.xtc_probability > 0
    if is_applied and kind == "seeded":
        is_applied = reference.applies_xtc(params, seed, position, subject.gumbel_dtype)
    elif is_applied and kind == "unseeded":
        params = replace(params, xtc_probability=1.0)
    row = row_of(
        subject.capabilities, site, design, logits, replace(params, xtc_probability=float(is_applied))
    )
    if "greedy" in kind:
        params = replace(params, temperature=0.0)
    if "seed" in kind.replace("unseeded", ""):
        params = replace(params, seed=seed)
    return CrossedRequest(row, params, position)

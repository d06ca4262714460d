"""Lines about rows drawn by a sampler with a filter: kept sets, seeded tokens, distribution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplingMetadata, SamplingParams, kept_mask
from tokendraw.plugin import Filter as FilterName
from tokendraw_testing import reference
from tokendraw_testing.filters.filter_rows import FilterRow, make_rows, reference_floors_of
from tokendraw_testing.filters.floor_calls import place_of
from tokendraw_testing.filters.subject import FilterSubject
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import fit_experiment, random_seeds, seed_torch
from tokendraw_testing.rows.special_rows import special_rows
from tokendraw_testing.rows.subjects import SampleSubject
from tokendraw_testing.rows.thresholds import require_threshold

Array = NDArray[Any]
_SIZES = (33, 1025, 5003)
_WIDE_SIZES = (65_543, 131_113)
_OTHERS: tuple[tuple[FilterName, float], ...] = (("top_p", 0.8), ("top_k", 4), ("min_p", 0.02))


def kept_sets(subject: FilterSubject, sampler: SampleSubject, trial: Trial) -> str:
    """Rows keep what the floor from float64 moments keeps, whatever logits, dtype and temperature; the largest stay."""
    return _judge_rows(subject, sampler, trial, [{}])


def beside_others(subject: FilterSubject, sampler: SampleSubject, trial: Trial) -> str:
    """Floors come before top-k and top-p and beside min-p: the strictest decides."""
    others: list[dict[str, Any]] = [{name: value} for name, value in _OTHERS if sampler.has(name)]
    if not others:
        trial.skip("needs a sampler with top-p, top-k or min-p, found none")
    orders = sampler.capabilities.filter_orders or ("top_k_first",)
    return _judge_rows(
        subject, sampler, trial, [{**other, "filter_order": order} for other in others for order in orders]
    )


def off(subject: FilterSubject, sampler: SampleSubject, trial: Trial) -> str:
    """Rows with the value off, or NaN in ready tensors, draw as without the filter; their requests cost nothing."""
    rule, rng = subject.rule, trial.generator("rows")
    plain = SamplingMetadata.from_params([SamplingParams()] * 3, device=sampler.device)
    asked = SamplingMetadata.from_params([subject.params(rule.off)] * 3, device=sampler.device)
    trial.require(
        asked.filters is None and asked.facts == plain.facts,
        f"a request with {rule.name} = {rule.off:g} needs the tensors of a request without filters, found others",
    )
    logits = torch.from_numpy(rng.normal(0.0, 3.0, (6, 1025)).astype(np.float32)).to(sampler.device)
    view = _with_threshold(sampler)
    seeded = _seeded(sampler)
    params = [SamplingParams(seed=i if seeded else None) for i in range(6)]
    positions = torch.arange(6, device=sampler.device)
    bare = SamplingMetadata.from_params(params, device=sampler.device, positions=positions)
    values = torch.tensor([rule.off, np.nan] * 3, dtype=torch.float32, device=sampler.device)
    columns = replace(bare, filters={rule.name: values}, facts=replace(bare.facts, filters=(rule.name,)))
    needed, found = view.call(logits, bare), view.call(logits, columns)
    if seeded:
        trial.require(
            found.token_ids.tolist() == needed.token_ids.tolist(),
            f"rows with {rule.name} off need the tokens {needed.token_ids.tolist()}, found {found.token_ids.tolist()}",
        )
    if found.threshold is not None and needed.threshold is not None:
        trial.require(
            found.threshold.tolist() == needed.threshold.tolist(),
            f"rows with {rule.name} off need the thresholds {needed.threshold.tolist()}, "
            f"found {found.threshold.tolist()}",
        )
    return f"off = {rule.off:g}, and NaN"


def special(subject: FilterSubject, sampler: SampleSubject, trial: Trial) -> str:
    """Rows with +inf, or with at most one finite logit, are drawn and flagged as without the filter."""
    kinds = special_rows(trial.generator("rows"), 1100)
    view, seeded = _with_threshold(sampler), _seeded(sampler)
    for value in subject.telling_values:
        rows = {name: row for name, row in kinds.items() if not _has_effect(row.logits)}
        logits = torch.from_numpy(np.stack([row.logits for row in rows.values()]))
        seed = 3 if seeded else None
        needed, found = (
            view.sample(logits, p) for p in (SamplingParams(seed=seed), subject.params(value, seed=seed))
        )
        for i, name in enumerate(rows):
            pairs = [("the flag", needed.valid, found.valid)]
            if seeded:
                pairs.append(("token", needed.token_ids, found.token_ids))
            for what, left, right in pairs:
                if left is not None and right is not None:
                    trial.require(
                        left[i].item() == right[i].item(),
                        f"{name}, value {value:g} needs {what} {left[i].item()}, found {right[i].item()}",
                    )
    extremes = torch.tensor([[3e38, -3e38, 0.0, 3e38], [1e-38, 0.0, -1e-38, 1e-38]])
    for value in subject.telling_values:
        tokens = view.tokens(extremes, subject.params(value))
        trial.require(
            tokens[0] in (0, 3), f"logits up to 3e38, value {value:g} need token 0 or 3, found {tokens[0]}"
        )
    return f"{len(rows)} kinds of rows, logits up to 3e38"


def seeded_tokens(subject: FilterSubject, sampler: SampleSubject, trial: Trial) -> str:
    """Seeded rows draw the token of their seed: that of the reference, and native's."""
    if not _seeded(sampler):
        trial.skip("needs a sampler with seeds, found none")
    rng, named, compared = trial.generator("rows"), 0, 0
    for batch in _batches(make_rows(rng, _SIZES[:2], [torch.float32], subject.telling_values)):
        prepared = _prepared(subject, batch, [{}])
        seeds, positions = random_seeds(rng, len(batch))
        drawings = [
            reference.drawing(row, position) for row, position in zip(prepared, positions, strict=True)
        ]
        answers = reference.together(drawings, seeds, sampler.gumbel_dtype)
        params = [
            subject.params(row.value, temperature=row.temperature, seed=seed)
            for row, seed in zip(batch, seeds, strict=True)
        ]
        logits = torch.stack([row.logits for row in batch])
        tokens = sampler.tokens(logits, params, positions)
        for row, answer, ready, token in zip(batch, answers, prepared, tokens, strict=True):
            if ready.certain and answer[1] >= reference.NEAR_TIE:
                trial.require(token == answer[0], f"{row} needs token {answer[0]}, found {token}")
                named += 1
        if subject.native is not None and subject.native is not sampler:
            others = subject.native.tokens(logits, params, positions)
            clear = [r.certain and a[1] >= reference.NEAR_TIE for r, a in zip(prepared, answers, strict=True)]
            trial.require(
                (tokens == others)[clear].all(),
                f"needs native's tokens, found {(tokens != others).sum()} others",
            )
            compared += len(batch)
    return f"{named} tokens of the reference" + (f", {compared} rows beside native" if compared else "")


def distribution(subject: FilterSubject, sampler: SampleSubject, trial: Trial) -> str:
    """Kept tokens are drawn by their renormalised probabilities, all others never."""
    rng, draws = trial.generator("rows"), sampler.effort.tiled_draws
    count = 0
    for number, value in enumerate(subject.telling_values):
        for temperature in (1.0, 1.75):
            logits = torch.from_numpy(rng.normal(0.0, 1.5, 40).astype(np.float32))
            row = FilterRow("bell", logits, temperature, value)
            (ready,) = _prepared(subject, [row], [{}])
            if not ready.certain:
                continue
            probabilities = np.exp(ready.y) * ready.kept
            params = subject.params(value, temperature=temperature)
            is_seeded = bool(number % 2) and _seeded(sampler)
            experiment = fit_experiment(sampler, logits, params, probabilities, seeded=is_seeded)
            trial.judge(f"value {value:g}, temperature {temperature:g}", experiment, draws)
            count += 1
    return f"{count} rows of 40 tokens"


def _judge_rows(
    subject: FilterSubject, sampler: SampleSubject, trial: Trial, others: Sequence[dict[str, Any]]
) -> str:
    """Draw rows of every design, and compare thresholds, or at least tokens, with the reference."""
    rng, view = trial.generator("rows"), _with_threshold(sampler)
    sizes = _SIZES if sampler.effort.quick or others != [{}] else (*_SIZES, *_WIDE_SIZES)
    values = subject.telling_values
    rows = make_rows(rng, _within(sampler, sizes), sampler.dtypes, values)
    num_known = 0
    seed_torch(rng)
    for batch in _batches(rows):
        prepared = _prepared(subject, batch, others)
        params = [
            subject.params(row.value, temperature=row.temperature, **others[i % len(others)])
            for i, row in enumerate(batch)
        ]
        logits = torch.stack([row.logits for row in batch])
        output = view.sample(logits, params)
        tokens = output.token_ids.tolist()
        thresholds = [] if output.threshold is None else output.threshold.tolist()
        masks = None if output.threshold is None else kept_mask(logits, output.threshold.cpu()).numpy()
        for i, (row, ready, p) in enumerate(zip(batch, prepared, params, strict=True)):
            what = f"row {i} of {len(batch)}: {row}{_beside(p)}, {place_of(subject.rule)}"
            if masks is not None:
                trial.require(
                    masks[i][ready.y == 0].all(), f"{what} needs to keep the largest token, found it dropped"
                )
            if not ready.certain:
                continue
            num_known += 1
            trial.require(ready.kept[tokens[i]], f"{what} needs a kept token, found {tokens[i]}")
            if thresholds:
                require_threshold(trial, what, thresholds[i], ready)
    return f"{len(rows)} rows, the kept set of {num_known} of them named by the reference"


def _prepared(
    subject: FilterSubject, batch: Sequence[FilterRow], others: Sequence[dict[str, Any]]
) -> list[reference.ReferenceRow]:
    """Return the reference's state of each row, with the filter's own floor in float64."""
    beside = [others[i % len(others)] for i in range(len(batch))]
    found = reference_floors_of(
        subject.rule,
        [
            # The filters of this order look at logits before the temperature.
            replace(row, temperature=1.0) if other.get("filter_order") == "temperature_last" else row
            for row, other in zip(batch, beside, strict=True)
        ],
    )
    return [
        reference.prepare(row.levels, SamplingParams(temperature=row.temperature, **other), floor)
        for row, other, floor in zip(batch, beside, found, strict=True)
    ]


def _batches(rows: Iterable[FilterRow]) -> list[list[FilterRow]]:
    """Divide rows into batches of one width and dtype."""
    batches: dict[tuple[int, torch.dtype], list[FilterRow]] = {}
    for row in rows:
        batches.setdefault((len(row.logits), row.logits.dtype), []).append(row)
    return list(batches.values())


def _within(sampler: SampleSubject, sizes: Iterable[int]) -> list[int]:
    limit = sampler.capabilities.max_vocab_size
    return [size for size in sizes if limit is None or size <= limit]


def _with_threshold(sampler: SampleSubject) -> SampleSubject:
    return sampler.with_need(threshold=True) if sampler.capabilities.threshold else sampler


def _seeded(sampler: SampleSubject) -> bool:
    return sampler.capabilities.seeding == "counter"


def _has_effect(logits: Array) -> bool:
    """Whether a floor may drop tokens of a row: it has no +inf and several finite logits."""
    return bool(not (logits == np.inf).any() and np.isfinite(logits).sum() > 1)


def _beside(params: SamplingParams) -> str:
    words = [
        f"{name} {getattr(params, name):g}" for name, _ in _OTHERS if getattr(params, name) not in (0, 1.0)
    ]
    return f", beside {', '.join(words)}, {params.filter_order}" if words else ""

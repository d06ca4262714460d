"""Seeded verifications: the chain of (seed, position, logits, drafts), whatever the batch around it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw.plugin import GumbelDtype
from tokendraw.tools import all_of
from tokendraw_testing import reference
from tokendraw_testing.kit.property import Ask, Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.expected import SAME
from tokendraw_testing.rows.noise_precision import (
    KEPT,
    POSITION,
    VOCAB_SIZE,
    lucky_rows,
    placed,
    telling_rows,
)
from tokendraw_testing.rows.requests import described, has_counter
from tokendraw_testing.verify.drafting import (
    Batch,
    by_turns,
    chains,
    first_and_last_way,
    require_same,
    spread,
    ways,
)
from tokendraw_testing.verify.draws import markov
from tokendraw_testing.verify.speculation import judge
from tokendraw_testing.verify.telling_drafts import DRAFT, telling_batch
from tokendraw_testing.verify.verifying import Verifying, draft_ask

properties = Properties("verify")
_COLD: Final = 1e-4
"""Temperature of rows that draw their largest token."""
Array = NDArray[Any]


@properties.advertised("verify seeded chains", has_counter, draft_ask(params=SamplingParams(seed=1)))
def seeded_chains(subject: Verifying, trial: Trial) -> str:
    """Chains equal the walk of the contract, token by token, 99.99 % of them and all that are no near tie."""
    return _equal_walk(subject, trial, subject.gumbel_dtype)


@properties.advertised(
    "verify fp64 noise", lambda c: "fp64" in c.gumbel_dtypes, Ask({"gumbel_dtype": "fp64"})
)
def fp64_noise(subject: Verifying, trial: Trial) -> str:
    """Seeded chains equal those of the contract with 53-bit uniforms and float64; without seeds they follow it."""
    if not has_counter(subject.capabilities):
        view = subject.with_need(gumbel_dtype="fp64")
        for mode in subject.capabilities.verify_modes:
            case = markov(trial, subject.capabilities.draft_kinds[0], mode)
            judge(view, trial, f"Markov, {mode}", case, subject.effort.draws // 4, seeded=False)
        return "distribution; without seeds nothing tells float64 noise from float32"
    return _equal_walk(subject, trial, "fp64")


def _equal_walk(subject: Verifying, trial: Trial, dtype: GumbelDtype) -> str:
    judged = same = 0
    sizes = (2, 31, 1025, 2100) if dtype == subject.gumbel_dtype else (1025,)
    for own, size, count in spread(subject, sizes, 36):
        batch = Batch.of(subject, trial.generator(f"{dtype} {size} {own}"), count, size, dtype=own)
        certain = [i for i in range(len(batch)) if batch.is_certain(subject, i)]
        for mode, kind in ways(subject.capabilities):
            found = chains(batch.verify(subject, mode, kind, gumbel_dtype=dtype))
            for i, expected in zip(certain, batch.walks(mode, kind, dtype, certain), strict=True):
                tokens = found[i]
                judged, same = judged + 1, same + int(tokens == expected.tokens)
                trial.require(
                    tokens == expected.tokens or expected.lead < reference.NEAR_TIE,
                    f"V = {size}, {own}, {mode}, {kind}, {described(batch.params[i])}, seed {batch.params[i].seed}, "
                    f"from position {batch.first[i]}, drafts {batch.ids[i]}: needs {expected.tokens}, found {tokens}",
                )
    trial.require(
        same >= SAME * judged - 1, f"{judged} chains need {SAME:.2%} of the reference's, found {same}"
    )
    told = _require_precision(subject, trial, dtype)
    return (
        f"{judged} chains over mixed filters, {same} of them the reference's; {told} that tell {dtype} noise"
    )


def _require_precision(subject: Verifying, trial: Trial, dtype: GumbelDtype) -> int:
    """Demand the chains and the drafts that only noise of this precision draws; return how many there were."""
    offered, told = subject.capabilities, 0
    if (offered.max_vocab_size or VOCAB_SIZE) < VOCAB_SIZE:
        return told
    plain = SamplingParams(filter_order=(*offered.filter_orders, "top_k_first")[0])
    filters = ("top_k", "per_row") in offered.filters and (offered.max_top_k or max(KEPT)) >= max(KEPT)
    looks = [(name, filtered) for name in offered.dtypes for filtered in (False, True)[: 1 + filters]]
    for name, filtered in looks if not subject.effort.mixed else looks[:2]:
        some = ways(offered) if name == offered.dtypes[0] else first_and_last_way(offered)
        for (mode, kind), rows in itertools.product(some, (telling_rows, lucky_rows)):
            batch = telling_batch(plain, name, filtered=filtered, rows=rows)
            found = chains(batch.verify(subject, mode, kind, gumbel_dtype=dtype))
            expected = [answer.tokens for answer in batch.walks(mode, kind, dtype)]
            require_same(trial, expected, found, f"{name}, {mode}, {kind}: chains of {dtype} noise")
            told += len(batch)
        told += _require_drafts(subject, trial, dtype, plain, name, filtered=filtered)
    return told


def _require_drafts(
    subject: Verifying, trial: Trial, dtype: GumbelDtype, plain: SamplingParams, name: str, *, filtered: bool
) -> int:
    rows = [*telling_rows(*DRAFT), *lucky_rows(*DRAFT)]
    params = [replace(plain, seed=row.seed, top_k=row.kept if filtered else 0) for row in rows]
    metadata = SamplingMetadata.from_params(params, device=subject.device, positions=[POSITION] * len(rows))
    logits = torch.stack([placed(row, getattr(torch, name), VOCAB_SIZE) for row in rows])
    found = subject.draft(logits.to(subject.device), metadata, gumbel_dtype=dtype).token_ids.tolist()
    for x, request, token in zip(logits.float().numpy(), params, found, strict=True):
        assert request.seed is not None
        expected, _ = reference.draw(reference.prepare(x, request), request.seed, POSITION, dtype, DRAFT)
        trial.require(
            token == expected,
            f"{name}, {described(request)}, seed {request.seed}, position {POSITION} needs the draft {expected} of "
            f"{dtype} noise, found {token}",
        )
    return len(rows)


@properties.advertised("verify batch invariance", lambda c: c.batch_invariant, Ask({"batch_invariant": True}))
def batch_invariance(subject: Verifying, trial: Trial) -> str:
    """A seeded request gets the same chain alone, in any batch, in any place, and beside any mates."""
    counter = has_counter(subject.capabilities)
    count = subject.effort.rows(12, least=3)
    sizes = [n for n in (2, 9, 64) if n <= max(subject.effort.batch_sizes)]
    rng = trial.generator("rows")
    for (mode, kind), dtype in zip(ways(subject.capabilities), by_turns(subject), strict=False):
        batch = Batch.of(subject, rng, count, 1100, dtype=dtype)
        if not counter:
            _leave_nothing_to_chance(subject, batch)
        alone = [chains(batch.picked([i]).verify(subject, mode, kind))[0] for i in range(count)]
        for rows in sizes:
            order = rng.permutation(rows) % count
            found = chains(batch.picked(order).verify(subject, mode, kind))
            apart = [place for place, i in enumerate(order) if found[place] != alone[i]]
            trial.require(
                not apart,
                f"{mode}, {kind}, B = {rows}: request {apart[0] if apart else 0} needs the chain that it gets alone, "
                f"{len(apart)} requests differ",
            )
    what = "" if counter else " greedy" if subject.capabilities.greedy else " cold"
    return f"{count}{what} requests alone and in batches of {all_of(map(str, sizes))}"


def _leave_nothing_to_chance(subject: Verifying, batch: Batch) -> None:
    """Make all requests greedy, or so cold that each row has one token, with drafts that the target often takes."""
    temperature = 0.0 if subject.capabilities.greedy else _COLD
    for i, (rows, ids) in enumerate(zip(batch.target, batch.ids, strict=True)):
        batch.params[i] = replace(batch.params[i], temperature=temperature)
        best = rows.argmax(1)
        rows[np.arange(len(rows)), best] += 1  # no other token is as large in a dtype of few bits
        ids[::2] = best[: len(ids) : 2].tolist()

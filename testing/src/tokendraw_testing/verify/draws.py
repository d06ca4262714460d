"""Speculation cannot be told from plain sampling: every token, and pairs of them, follow the target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import DraftKind, VerifyCapabilities, VerifyMode
from tokendraw.tools import all_of
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.refusals import refused
from tokendraw_testing.kit.statistical_tests import fit
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.expected import expect
from tokendraw_testing.rows.requests import seedings
from tokendraw_testing.verify.drafting import (
    Batch,
    by_turns,
    chains,
    drafts_of,
    on,
    requests,
    rounded,
    row_metadata,
    spread,
)
from tokendraw_testing.verify.speculation import Case, judge
from tokendraw_testing.verify.verifying import Verifying, draft_ask

properties = Properties("verify")
Array = NDArray[Any]

# No two probabilities are equal, so that no rule for ties matters, and every filter below has its edge between them.
EIGHT: Final = np.log([0.30, 0.22, 0.17, 0.11, 0.08, 0.06, 0.04, 0.02])
NEAR_EIGHT: Final = np.log([0.09, 0.24, 0.06, 0.21, 0.16, 0.04, 0.13, 0.07])
_FEW: Final = np.log([0.10, 0.60, 0.30])
_FEWER: Final = np.log([0.50, 0.20, 0.30])
_FILTERS: Final = {
    "top_k": SamplingParams(top_k=3),
    "top_p": SamplingParams(top_p=0.75),
    "min_p": SamplingParams(min_p=0.3),
}


def markov(trial: Trial, kind: DraftKind, mode: VerifyMode, placeholders: tuple[int, ...] = ()) -> Case:
    """Make rows that depend on the token before; no probability is so small that its pairs are never seen."""
    target, draft = trial.generator("Markov").normal(size=(2, 5, 4)).clip(-1.5, 1.5)
    return Case(target=target, draft=draft, kind=kind, mode=mode, placeholders=placeholders)


@properties.required("verify draft")
def draft(subject: Verifying, trial: Trial) -> str:
    """``draft`` draws from the softmax after the filters, with seeds from streams of its own."""
    offered, dtypes = subject.capabilities, by_turns(subject)
    for name, own in {"no filter": SamplingParams(), **_served(offered)}.items():
        dtype = next(dtypes)
        row = rounded(NEAR_EIGHT, dtype)
        x, expected = on(subject, row, dtype), expect(row, own, offered.tie_rule).probabilities

        def experiment(
            rng: np.random.Generator,
            draws: int,
            params: SamplingParams = own,
            p: Array = expected,
            x: torch.Tensor = x,
        ) -> Verdict:
            seed_torch(rng)
            metadata = row_metadata(
                drafts_of(subject, [[]] * draws, len(x), "chosen"), [params] * draws, [3] * draws
            )
            return fit(subject.draft(x.repeat(draws, 1), metadata).token_ids.cpu().numpy(), p)

        trial.judge(f"{name}, {dtype}", experiment, subject.effort.tiled_draws)
    if offered.seeding != "counter":
        return "distribution"
    looked = sum(_require_drafts(subject, trial, *look) for look in spread(subject, [2500], 60))
    return f"distribution, and {looked} seeded drafts token by token"


def _require_drafts(subject: Verifying, trial: Trial, dtype: str, size: int, count: int) -> int:
    offered, rng, looked = subject.capabilities, trial.generator(f"rows {dtype}"), 0
    kinds = requests(offered, size)
    seeds, positions = random_seeds(rng, count)
    rows = rounded(np.stack([gaussian(rng, size) for _ in seeds]), dtype)
    params = [replace(kinds[int(rng.integers(len(kinds)))], seed=seed) for seed in seeds]
    given = drafts_of(subject, [[]] * len(rows), size, "chosen")
    metadata = row_metadata(given, params, positions)
    found = subject.draft(on(subject, rows, dtype), metadata).token_ids.tolist()
    streams = (reference_walk.DRAFT_TOKEN, reference_walk.DRAFT_TILE)
    for x, request, seed, position, token in zip(rows, params, seeds, positions, found, strict=True):
        if not expect(x, request, offered.tie_rule).certain:
            continue
        prepared = reference.prepare(x, request)
        expected_token, lead = reference.draw(prepared, seed, position, subject.gumbel_dtype, streams)
        looked += 1
        trial.require(
            token == expected_token or lead < reference.NEAR_TIE,
            f"{dtype}: a draft at seed {seed}, position {position} needs token {expected_token}, found {token}",
        )
    return looked


def _served(capabilities: VerifyCapabilities) -> dict[str, SamplingParams]:
    """Make a request for each filter that is applied per row."""
    order = (*capabilities.filter_orders, "top_k_first")[0]
    return {
        name: replace(params, filter_order=order)
        for name, params in _FILTERS.items()
        if (name, "per_row") in capabilities.filters
        and (name != "top_k" or (capabilities.max_top_k or params.top_k) >= params.top_k)
    }


@properties.advertised(
    "verify rejection", lambda c: "rejection" in c.verify_modes, draft_ask(mode="rejection")
)
def rejection(subject: Verifying, trial: Trial) -> str:
    """Every token, and the first two together, follow the target; drafts are accepted as often as sum of min(p, q)."""
    kind = subject.capabilities.draft_kinds[0]
    rng = trial.generator("rows")
    sixteen = rng.normal(size=16).clip(-1.5, 1.5)
    cases = {
        "one opposite draft": Case(target=sixteen, draft=-sixteen, drafts=1, kind=kind, mode="rejection"),
        "three opposite drafts": Case(target=sixteen, draft=-sixteen, drafts=3, kind=kind, mode="rejection"),
        "Markov": markov(trial, kind, "rejection"),
    }
    seeded = seedings(subject.capabilities)[-1]
    for label, case in cases.items():
        judge(subject, trial, label, case, subject.effort.draws // 4, seeded=seeded)
    for dtype in subject.capabilities.dtypes[not seeded :]:
        own = replace(cases["Markov"], dtype=dtype)
        judge(subject, trial, f"Markov, {dtype}", own, subject.effort.draws // 8, seeded=False)
    judge(subject, trial, "three tiles", _tiles(kind), subject.effort.tiled_draws // 4, seeded=seeded)
    return f"{all_of(cases)}; residuals of three tiles"


def _tiles(kind: DraftKind) -> Case:
    """Most of what the target has more of lies in tiles where the draft has next to nothing."""
    target, draft = np.full(2600, -12.0), np.full(2600, -12.0)
    target[[3, 1500, 2590]] = [0.0, 0.3, -0.5]
    draft[[3, 4, 2590]] = [1.0, 0.0, -2.0]
    return Case(target=target, draft=draft, drafts=1, kind=kind, mode="rejection")


@properties.advertised("verify coupled", lambda c: "coupled" in c.verify_modes, draft_ask(mode="coupled"))
def coupled(subject: Verifying, trial: Trial) -> str:
    """The tokens are those that ``sample`` draws at the same seeds and positions, drafts accepted while they are."""
    offered = subject.capabilities
    case = markov(trial, offered.draft_kinds[0], "coupled")
    if seedings(offered)[-1]:
        judge(subject, trial, "Markov", case, subject.effort.draws // 4, seeded=True)
    for dtype in offered.dtypes:
        for drafts, label in ((2, "Markov"), (1, "Markov, one draft")):  # its second token is a bonus token
            own_case = replace(case, dtype=dtype, drafts=drafts)
            judge(subject, trial, f"{label}, {dtype}", own_case, subject.effort.draws // 8, seeded=False)
    sampling = subject.seeded_sampling
    if sampling is None:
        return "distribution"
    looked = 0
    for dtype, size, count in spread(subject, (31, 1100), 60):
        batch = Batch.of(subject, trial.generator(f"{size} {dtype}"), count, size, dtype=dtype)
        own = batch.sampled(subject, sampling)
        for kind in offered.draft_kinds:
            for i, tokens in enumerate(chains(batch.verify(subject, "coupled", kind))):
                ids = [*batch.ids[i], -1]
                end = next(step for step, token in enumerate(ids) if token != own[i][step]) + 1
                looked += end
                trial.require(
                    tokens == own[i][:end],
                    f"{dtype}: drafts {ids[:-1]} where sample draws {own[i]} need {own[i][:end]}, found {tokens}",
                )
    return f"distribution, and {looked} tokens equal to those of sample"


def _kind(name: str, kind: DraftKind) -> None:
    @properties.advertised(name, lambda c: kind in c.draft_kinds, draft_ask(kind=kind))
    def check(subject: Verifying, trial: Trial) -> str:
        """Tokens follow the target where drafts are given so, and as many are accepted as can be."""
        mode: VerifyMode = (*subject.capabilities.verify_modes, "rejection")[0]
        cases = {
            "three tokens": Case(target=_FEW, draft=_FEWER, kind=kind, mode=mode),
            "Markov": markov(trial, kind, mode),
        }
        dtypes = by_turns(subject)
        for seeded in seedings(subject.capabilities):
            for label, own in cases.items():
                case = replace(own, dtype=next(dtypes))
                judge(subject, trial, label, case, subject.effort.draws // 4, seeded=seeded)
        return all_of(cases)


_kind("verify draft_probs", "probs")
_kind("verify draft_logits", "logits")
_kind("verify chosen drafts", "chosen")


def _some_filter(capabilities: VerifyCapabilities) -> bool:
    return any(how == "per_row" for _, how in capabilities.filters)


@properties.advertised("verify filters", _some_filter, draft_ask(params=SamplingParams(top_k=1)))
def filters(subject: Verifying, trial: Trial) -> str:
    """Tokens follow the filtered target, under every filter that is advertised; the others are refused."""
    offered = subject.capabilities
    served, dtypes = _served(offered), by_turns(subject)
    for mode, kind in [(mode, offered.draft_kinds[0]) for mode in offered.verify_modes]:
        for name, params in served.items():
            case = Case(
                target=EIGHT, draft=NEAR_EIGHT, kind=kind, mode=mode, params=params, dtype=next(dtypes)
            )
            seeded = seedings(offered)[-1]
            judge(subject, trial, f"{name}, {mode}", case, subject.effort.draws // 4, seeded=seeded)
        hot = Case(
            target=EIGHT, draft=NEAR_EIGHT, kind=kind, mode=mode, params=SamplingParams(temperature=1.7)
        )
        judge(subject, trial, f"temperature, {mode}", hot, subject.effort.draws // 4, seeded=False)
    for name, params in _FILTERS.items():
        if (name, "per_row") not in offered.filters:
            refused(subject, draft_ask(params=params))
    return f"{all_of(served)}, temperature 1.7"

"""Speculation cannot be told from plain sampling: every token, and pairs of them, follow the target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import DraftKind, VerifyCapabilities, VerifyMode
from tokendraw.tools import all_of
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.refusals import require_refusal
from tokendraw_testing.kit.statistical_tests import fit
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.requests import seedings
from tokendraw_testing.verify.draft_batch import DraftBatch, chains, requests, round_to_dtype
from tokendraw_testing.verify.speculation import Decoding, judge
from tokendraw_testing.verify.subject import VerifySubject, draft_refusal, row_metadata

properties = Properties("verify")
Array = NDArray[Any]

# No two probabilities are equal, so that no rule for ties matters, and every filter below has its edge between them.
EIGHT_LOGITS: Final = np.log([0.30, 0.22, 0.17, 0.11, 0.08, 0.06, 0.04, 0.02])
DRAFT_EIGHT_LOGITS: Final = np.log([0.09, 0.24, 0.06, 0.21, 0.16, 0.04, 0.13, 0.07])
_THREE_LOGITS: Final = np.log([0.10, 0.60, 0.30])
_DRAFT_THREE_LOGITS: Final = np.log([0.50, 0.20, 0.30])
_FILTERS: Final = {
    "top_k": SamplingParams(top_k=3),
    "top_p": SamplingParams(top_p=0.75),
    "min_p": SamplingParams(min_p=0.3),
}


def markov_case(
    trial: Trial, kind: DraftKind, mode: VerifyMode, placeholders: tuple[int, ...] = ()
) -> Decoding:
    """Make rows that depend on the token before, with every pair of tokens likely enough to be drawn."""
    target, draft = trial.generator("Markov").normal(size=(2, 5, 4)).clip(-1.5, 1.5)
    return Decoding(target=target, draft=draft, kind=kind, mode=mode, placeholders=placeholders)


@properties.required("verify draft")
def draft(subject: VerifySubject, trial: Trial) -> str:
    """``draft`` draws from the softmax after the filters, with seeds from streams of its own."""
    capabilities, dtypes = subject.capabilities, subject.cycle_dtypes()
    for name, filter_params in {"no filter": SamplingParams(), **_filter_requests(subject)}.items():
        dtype = next(dtypes)
        row = round_to_dtype(DRAFT_EIGHT_LOGITS, dtype)
        x = subject.upload(row, dtype)
        expected = expect(row, filter_params, capabilities.tie_rule).probabilities

        def experiment(
            rng: Generator,
            draws: int,
            params: SamplingParams = filter_params,
            p: Array = expected,
            x: torch.Tensor = x,
        ) -> Verdict:
            seed_torch(rng)
            drafts = subject.drafts([[]] * draws, len(x), "chosen")
            metadata = row_metadata(drafts, [params] * draws, [3] * draws)
            return fit(subject.draft(x.repeat(draws, 1), metadata).token_ids.cpu().numpy(), p)

        trial.judge(f"{name}, {dtype}", experiment, subject.effort.tiled_draws)
    if capabilities.seeding != "counter":
        return "distribution"
    num_drafts = sum(_require_drafts(subject, trial, *look) for look in subject.share_requests([2500], 60))
    return f"distribution, and {num_drafts} seeded drafts token by token"


def _require_drafts(subject: VerifySubject, trial: Trial, dtype: str, size: int, count: int) -> int:
    capabilities, rng, num_drafts = subject.capabilities, trial.generator(f"rows {dtype}"), 0
    request_kinds = requests(capabilities, size)
    seeds, positions = random_seeds(rng, count)
    rows = round_to_dtype(np.stack([gaussian(rng, size) for _ in seeds]), dtype)
    params = [replace(request_kinds[int(rng.integers(len(request_kinds)))], seed=seed) for seed in seeds]
    drafts = subject.drafts([[]] * len(rows), size, "chosen")
    metadata = row_metadata(drafts, params, positions)
    tokens = subject.draft(subject.upload(rows, dtype), metadata).token_ids.tolist()
    streams = (reference_walk.DRAFT_TOKEN, reference_walk.DRAFT_TILE)
    for x, request, seed, position, token in zip(rows, params, seeds, positions, tokens, strict=True):
        if not expect(x, request, capabilities.tie_rule).certain:
            continue
        prepared = reference.prepare(x, request)
        expected_token, lead = reference.draw(prepared, seed, position, subject.gumbel_dtype, streams)
        num_drafts += 1
        trial.require(
            token == expected_token or lead < reference.NEAR_TIE,
            f"{dtype}: a draft at seed {seed}, position {position} needs token {expected_token}, found {token}",
        )
    return num_drafts


def _filter_requests(subject: VerifySubject) -> dict[str, SamplingParams]:
    """Make a request for each filter applied per row."""
    capabilities = subject.capabilities
    return {
        name: replace(params, filter_order=subject.filter_order)
        for name, params in _FILTERS.items()
        if (name, "per_row") in capabilities.filters
        and (name != "top_k" or (capabilities.max_top_k or params.top_k) >= params.top_k)
    }


@properties.advertised(
    "verify rejection", lambda c: "rejection" in c.verify_modes, draft_refusal(mode="rejection")
)
def rejection(subject: VerifySubject, trial: Trial) -> str:
    """Every token, and the first two together, follow the target; drafts are accepted as often as sum of min(p, q)."""
    kind = subject.capabilities.draft_kinds[0]
    rng = trial.generator("rows")
    logits = rng.normal(size=16).clip(-1.5, 1.5)
    cases = {
        "one opposite draft": Decoding(target=logits, draft=-logits, drafts=1, kind=kind, mode="rejection"),
        "three opposite drafts": Decoding(
            target=logits, draft=-logits, drafts=3, kind=kind, mode="rejection"
        ),
        "Markov": markov_case(trial, kind, "rejection"),
    }
    seeded = seedings(subject.capabilities)[-1]
    for label, case in cases.items():
        judge(subject, trial, label, case, subject.effort.draws // 4, seeded=seeded)
    for dtype in subject.capabilities.dtypes[not seeded :]:
        dtype_case = replace(cases["Markov"], dtype=dtype)
        judge(subject, trial, f"Markov, {dtype}", dtype_case, subject.effort.draws // 8, seeded=False)
    judge(
        subject, trial, "three tiles", _three_tiles_case(kind), subject.effort.tiled_draws // 4, seeded=seeded
    )
    return f"{all_of(cases)}; residuals of three tiles"


def _three_tiles_case(kind: DraftKind) -> Decoding:
    """Make a target with most of its excess in tiles where the draft has next to nothing."""
    target, draft = np.full(2600, -12.0), np.full(2600, -12.0)
    target[[3, 1500, 2590]] = [0.0, 0.3, -0.5]
    draft[[3, 4, 2590]] = [1.0, 0.0, -2.0]
    return Decoding(target=target, draft=draft, drafts=1, kind=kind, mode="rejection")


@properties.advertised("verify coupled", lambda c: "coupled" in c.verify_modes, draft_refusal(mode="coupled"))
def coupled(subject: VerifySubject, trial: Trial) -> str:
    """The tokens are those that ``sample`` draws at the same seeds and positions, drafts accepted while they are."""
    capabilities = subject.capabilities
    case = markov_case(trial, capabilities.draft_kinds[0], "coupled")
    if seedings(capabilities)[-1]:
        judge(subject, trial, "Markov", case, subject.effort.draws // 4, seeded=True)
    for dtype in capabilities.dtypes:
        for drafts, label in ((2, "Markov"), (1, "Markov, one draft")):  # its second token is a bonus token
            dtype_case = replace(case, dtype=dtype, drafts=drafts)
            judge(subject, trial, f"{label}, {dtype}", dtype_case, subject.effort.draws // 8, seeded=False)
    sampling = subject.seeded_sampling
    if sampling is None:
        return "distribution"
    num_tokens = 0
    for dtype, size, count in subject.share_requests((31, 1100), 60):
        batch = DraftBatch.of(subject, trial.generator(f"{size} {dtype}"), count, size, dtype=dtype)
        chain = batch.sample_tokens(subject, sampling)
        for kind in capabilities.draft_kinds:
            for i, tokens in enumerate(chains(batch.verify(subject, "coupled", kind))):
                ids = [*batch.ids[i], -1]
                end = next(step for step, token in enumerate(ids) if token != chain[i][step]) + 1
                num_tokens += end
                trial.require(
                    tokens == chain[i][:end],
                    f"{dtype}: drafts {ids[:-1]} where sample draws {chain[i]} need {chain[i][:end]}, found {tokens}",
                )
    return f"distribution, and {num_tokens} tokens equal to those of sample"


def _register_kind(name: str, kind: DraftKind) -> None:
    @properties.advertised(name, lambda c: kind in c.draft_kinds, draft_refusal(kind=kind))
    def check(subject: VerifySubject, trial: Trial) -> str:
        """Tokens follow the target where drafts are given so, and as many are accepted as can be."""
        mode: VerifyMode = (*subject.capabilities.verify_modes, "rejection")[0]
        cases = {
            "three tokens": Decoding(target=_THREE_LOGITS, draft=_DRAFT_THREE_LOGITS, kind=kind, mode=mode),
            "Markov": markov_case(trial, kind, mode),
        }
        dtypes = subject.cycle_dtypes()
        for seeded in seedings(subject.capabilities):
            for label, base_case in cases.items():
                case = replace(base_case, dtype=next(dtypes))
                judge(subject, trial, label, case, subject.effort.draws // 4, seeded=seeded)
        return all_of(cases)


_register_kind("verify draft_probs", "probs")
_register_kind("verify draft_logits", "logits")
_register_kind("verify chosen drafts", "chosen")


@properties.advertised("verify after placeholders", lambda c: c.placeholder_drafts)
def after_placeholders(subject: VerifySubject, trial: Trial) -> str:
    """The token in place of a draft that was not made follows the target, and so do all others."""
    capabilities = subject.capabilities
    for mode in capabilities.verify_modes:
        for step in (0, 1):
            case = markov_case(trial, capabilities.draft_kinds[0], mode, (step,))
            label = f"{mode}, place {step + 1}"
            judge(subject, trial, label, case, subject.effort.draws // 4, seeded=False)
    return "in the first place and in the second"


def _has_row_filter(capabilities: VerifyCapabilities) -> bool:
    return any(how == "per_row" for _, how in capabilities.filters)


@properties.advertised("verify filters", _has_row_filter, draft_refusal(params=SamplingParams(top_k=1)))
def filters(subject: VerifySubject, trial: Trial) -> str:
    """Tokens follow the filtered target, under every filter that is advertised; the others are refused."""
    capabilities = subject.capabilities
    filter_params, dtypes = _filter_requests(subject), subject.cycle_dtypes()
    for mode, kind in [(mode, capabilities.draft_kinds[0]) for mode in capabilities.verify_modes]:
        for name, params in filter_params.items():
            case = Decoding(
                target=EIGHT_LOGITS,
                draft=DRAFT_EIGHT_LOGITS,
                kind=kind,
                mode=mode,
                params=params,
                dtype=next(dtypes),
            )
            seeded = seedings(capabilities)[-1]
            judge(subject, trial, f"{name}, {mode}", case, subject.effort.draws // 4, seeded=seeded)
        hot_case = Decoding(
            target=EIGHT_LOGITS,
            draft=DRAFT_EIGHT_LOGITS,
            kind=kind,
            mode=mode,
            params=SamplingParams(temperature=1.7),
        )
        judge(subject, trial, f"temperature, {mode}", hot_case, subject.effort.draws // 4, seeded=False)
    for name, params in _FILTERS.items():
        if (name, "per_row") not in capabilities.filters:
            require_refusal(subject, draft_refusal(params=params))
    return f"{all_of(filter_params)}, temperature 1.7"

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
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import fit
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.requests import seedings
from tokendraw_testing.verify.draft_batch import round_to_dtype
from tokendraw_testing.verify.lines import FILTERS
from tokendraw_testing.verify.speculation import Decoding, judge
from tokendraw_testing.verify.subject import VerifySubject, draft_refusal, row_metadata

properties = Properties("verify")
Array = NDArray[Any]

# No two probabilities are equal, so that no rule for ties matters, and every filter below has its edge between them.
EIGHT_LOGITS: Final = np.log([0.30, 0.22, 0.17, 0.11, 0.08, 0.06, 0.04, 0.02])
DRAFT_EIGHT_LOGITS: Final = np.log([0.09, 0.24, 0.06, 0.21, 0.16, 0.04, 0.13, 0.07])

# A draft that has more draft mass than target mass is often accepted as the last one, and the residual behind it has
# fewer tokens than p - q.
THREE_LOGITS: Final = np.log([0.5, 0.2, 0.3])
HEAVY_DRAFT_LOGITS: Final = np.log([0.1, 0.1, 0.8])


def markov_case(
    trial: Trial, kind: DraftKind, mode: VerifyMode, placeholders: tuple[int, ...] = ()
) -> Decoding:
    """Make rows that depend on the token before, with every pair of tokens likely enough to be drawn."""
    target, draft = trial.generator("Markov").normal(size=(2, 5, 4)).clip(-1.5, 1.5)
    return Decoding(target=target, draft=draft, kind=kind, mode=mode, placeholders=placeholders)


@properties.required("verify draft")
def draft(subject: VerifySubject, trial: Trial) -> str:
    """``draft`` draws from the softmax after the filters."""
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
    return all_of({"no filter", *_filter_requests(subject)})


def _filter_requests(subject: VerifySubject) -> dict[str, SamplingParams]:
    """Make a request for each filter applied per row."""
    capabilities = subject.capabilities
    return {
        name: replace(params, filter_order=subject.filter_order)
        for name, params in FILTERS.items()
        if (name, "per_row") in capabilities.filters
        and (name != "top_k" or (capabilities.max_top_k or params.top_k) >= params.top_k)
    }


@properties.advertised(
    "verify rejection", lambda c: "rejection" in c.verify_modes, draft_refusal(mode="rejection")
)
def rejection(subject: VerifySubject, trial: Trial) -> str:
    """Tokens, and the first two together, follow the target; drafts of any kind are accepted as often as they can."""
    return _judge_mode(subject, trial, "rejection")


@properties.advertised("verify block", lambda c: "block" in c.verify_modes, draft_refusal(mode="block"))
def block(subject: VerifySubject, trial: Trial) -> str:
    """Tokens, and the first two together, follow the target; as many drafts in a row are accepted as blocks allow."""
    return _judge_mode(subject, trial, "block")


def _judge_mode(subject: VerifySubject, trial: Trial, mode: VerifyMode) -> str:
    """Judge tokens, pairs and accepted drafts of a mode that looks at the distributions of drafts."""
    kind, *other_kinds = subject.capabilities.draft_kinds
    rng = trial.generator("rows")
    logits = rng.normal(size=16).clip(-1.5, 1.5)
    cases = {
        "one opposite draft": Decoding(target=logits, draft=-logits, drafts=1, kind=kind, mode=mode),
        "three opposite drafts": Decoding(target=logits, draft=-logits, drafts=3, kind=kind, mode=mode),
        "Markov": markov_case(trial, kind, mode),
        "Markov, one draft": replace(markov_case(trial, kind, mode), drafts=1),  # then a bonus token
    }
    if mode == "block":
        cases["three heavy drafts"] = Decoding(
            target=THREE_LOGITS, draft=HEAVY_DRAFT_LOGITS, drafts=3, kind=kind, mode=mode
        )
    seeded, dtypes = seedings(subject.capabilities)[-1], subject.cycle_dtypes()
    for label, case in cases.items():
        judge(subject, trial, label, case, subject.effort.draws // 4, seeded=seeded)
    for dtype in subject.capabilities.dtypes[not seeded :]:
        dtype_case = replace(cases["Markov"], dtype=dtype)
        judge(subject, trial, f"Markov, {dtype}", dtype_case, subject.effort.draws // 8, seeded=False)
    tiled_case = _three_tiles_case(kind, mode)
    judge(subject, trial, "three tiles", tiled_case, subject.effort.tiled_draws // 4, seeded=seeded)
    for other_kind in other_kinds:
        other_case, dtype = markov_case(trial, other_kind, mode), next(dtypes)
        for is_seeded in seedings(subject.capabilities):
            label = f"Markov, {other_kind}"
            case = replace(other_case, dtype=dtype)
            judge(subject, trial, label, case, subject.effort.draws // 4, seeded=is_seeded)
    return f"{all_of(cases)}; residuals of three tiles; {all_of(subject.capabilities.draft_kinds)}"


def _three_tiles_case(kind: DraftKind, mode: VerifyMode) -> Decoding:
    """Make a target with most of its excess in tiles where the draft has next to nothing."""
    target, draft = np.full(2600, -12.0), np.full(2600, -12.0)
    target[[3, 1500, 2590]] = [0.0, 0.3, -0.5]
    draft[[3, 4, 2590]] = [1.0, 0.0, -2.0]
    return Decoding(target=target, draft=draft, drafts=1, kind=kind, mode=mode)


@properties.advertised("verify coupled", lambda c: "coupled" in c.verify_modes, draft_refusal(mode="coupled"))
def coupled(subject: VerifySubject, trial: Trial) -> str:
    """Tokens, and the first two together, follow the target; a draft is accepted as often as it is drawn."""
    capabilities = subject.capabilities
    case = markov_case(trial, capabilities.draft_kinds[0], "coupled")
    if seedings(capabilities)[-1]:
        judge(subject, trial, "Markov", case, subject.effort.draws // 4, seeded=True)
    for dtype in capabilities.dtypes:
        for drafts, label in ((2, "Markov"), (1, "Markov, one draft")):  # its second token is a bonus token
            dtype_case = replace(case, dtype=dtype, drafts=drafts)
            judge(subject, trial, f"{label}, {dtype}", dtype_case, subject.effort.draws // 8, seeded=False)
    return "drafts of one and two places"


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


@properties.advertised("verify filters", _has_row_filter)
def filters(subject: VerifySubject, trial: Trial) -> str:
    """Tokens follow the filtered target, under every filter that is advertised."""
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
    return f"{all_of(filter_params)}, temperature 1.7"

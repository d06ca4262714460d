"""Tokens that no draft stands for: the one behind all drafts, and those in place of drafts that were not made."""

from __future__ import annotations

import itertools

import numpy as np

from tokendraw import SamplingParams
from tokendraw.plugin import VerifyMode
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import fit
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.expected import expect
from tokendraw_testing.rows.requests import seedings
from tokendraw_testing.verify.drafting import (
    Batch,
    chains,
    drafts_of,
    on,
    rounded,
    row_metadata,
    spread,
    ways,
)
from tokendraw_testing.verify.draws import EIGHT, markov
from tokendraw_testing.verify.speculation import judge
from tokendraw_testing.verify.verifying import Verifying

properties = Properties("verify")


@properties.required("verify bonus")
def bonus(subject: Verifying, trial: Trial) -> str:
    """Where all drafts are accepted, the bonus row gives one token more: the one that ``sample`` draws there."""
    offered, size = subject.capabilities, len(EIGHT)
    for mode, dtype in itertools.product(offered.verify_modes, offered.dtypes):

        def experiment(
            rng: np.random.Generator, draws: int, mode: VerifyMode = mode, dtype: str = dtype
        ) -> Verdict:
            seed_torch(rng)
            kind, last = offered.draft_kinds[0], rounded(EIGHT, dtype)
            sure = np.where(np.arange(size) == 7, np.float32(60), np.float32(0))
            target = on(subject, np.stack([sure, sure, last]), dtype).repeat(draws, 1)
            given = sure if kind == "logits" else (sure > 0).astype(np.float32)
            held = on(subject, given, dtype if kind == "logits" else "float32")
            drafts = drafts_of(subject, [[7, 7]] * draws, size, kind, held.repeat(2 * draws, 1))
            metadata = row_metadata(drafts, [SamplingParams()] * draws, [0] * draws)
            found = subject.verify(target, drafts, metadata, mode)
            trial.require(
                (found.num_accepted == 2).all(),
                f"{mode}, {dtype}, {kind}: drafts that the target is sure of need to be accepted",
            )
            return fit(found.token_ids[:, 2].cpu().numpy(), expect(last, SamplingParams()).probabilities)

        trial.judge(f"{mode}, {dtype}", experiment, subject.effort.tiled_draws // 2)
    sampling = subject.seeded_sampling
    if sampling is None:
        return "distribution"
    looked = 0
    for dtype, size, count in spread(subject, [1100], 60):
        batch = Batch.of(subject, trial.generator(f"requests {dtype}"), count, size, dtype=dtype)
        looked += _require_sampled(subject, trial, batch, batch.sampled(subject, sampling))
    return f"distribution, and {looked} tokens equal to those of sample"


def _require_sampled(subject: Verifying, trial: Trial, batch: Batch, own: list[list[int]]) -> int:
    """Demand the tokens of ``sample`` where all drafts were accepted; return how many such there were."""
    looked = 0
    for mode, kind in ways(subject.capabilities):
        for i, tokens in enumerate(chains(batch.verify(subject, mode, kind))):
            if len(tokens) == len(own[i]):
                looked += 1
                trial.require(
                    tokens[-1] == own[i][-1],
                    f"{batch.dtype}, {mode}, {kind}: a bonus token needs to be that of sample, {own[i][-1]}, found "
                    f"{tokens[-1]}",
                )
    return looked


@properties.advertised("verify after placeholders", lambda c: c.placeholder_drafts)
def after_placeholders(subject: Verifying, trial: Trial) -> str:
    """The token in place of a draft that was not made follows the target, and so do all others."""
    offered = subject.capabilities
    for mode in offered.verify_modes:
        for place in (0, 1):
            case = markov(trial, offered.draft_kinds[0], mode, (place,))
            label = f"{mode}, place {place + 1}"
            judge(subject, trial, label, case, subject.effort.draws // 4, seeded=seedings(offered)[-1])
    return "in the first place and in the second"

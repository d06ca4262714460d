"""Tokens that no draft stands for: the one behind all drafts, and those in place of drafts that were not made."""

from __future__ import annotations

import numpy as np
import torch

from tokendraw._exchange.capabilities import DraftKind
from tokendraw._exchange.params import SamplingParams
from tokendraw.operations.verify.capabilities import VerifyMode
from tokendraw.testing.kit.property import Properties
from tokendraw.testing.kit.statistical_tests import fit
from tokendraw.testing.kit.trial import Trial, Verdict
from tokendraw.testing.rows.draws import seed_torch
from tokendraw.testing.rows.expected import expect
from tokendraw.testing.rows.requests import seedings
from tokendraw.testing.verify.drafting import Batch, chains, drafts_of, row_metadata, ways
from tokendraw.testing.verify.draws import EIGHT, markov
from tokendraw.testing.verify.speculation import judge
from tokendraw.testing.verify.verifying import Verifying

properties = Properties("verify")


@properties.required("verify bonus")
def bonus(subject: Verifying, trial: Trial) -> str:
    """Where all drafts are accepted, the bonus row gives one token more: the one that ``sample`` draws there."""
    offered, last = subject.capabilities, EIGHT.astype(np.float32)
    size = len(last)
    expected = expect(last, SamplingParams()).probabilities
    for mode in offered.verify_modes:
        kind = offered.draft_kinds[0]

        def experiment(
            rng: np.random.Generator, draws: int, mode: VerifyMode = mode, kind: DraftKind = kind
        ) -> Verdict:
            seed_torch(rng)
            sure = np.where(np.arange(size) == 7, np.float32(60), np.float32(0))
            target = torch.from_numpy(np.stack([sure, sure, last])).to(subject.device).repeat(draws, 1)
            given = torch.from_numpy(sure if kind == "logits" else (sure > 0).astype(np.float32))
            drafts = drafts_of(
                subject, [[7, 7]] * draws, size, kind, given.to(subject.device).repeat(2 * draws, 1)
            )
            metadata = row_metadata(drafts, [SamplingParams()] * draws, [0] * draws)
            found = subject.verify(target, drafts, metadata, mode)
            trial.require(
                (found.num_accepted == 2).all(),
                f"{mode}, {kind}: drafts that the target is sure of need to be accepted",
            )
            return fit(found.token_ids[:, 2].cpu().numpy(), expected)

        trial.judge(mode, experiment, subject.effort.tiled_draws // 2)
    sampling = subject.seeded_sampling
    if sampling is None:
        return "distribution"
    looked = 0
    batch = Batch.of(subject, trial.generator("requests"), subject.effort.rows(60, least=4), 1100)
    own = batch.sampled(subject, sampling)
    for mode, kind in ways(offered):
        for i, tokens in enumerate(chains(batch.verify(subject, mode, kind))):
            if len(tokens) == len(own[i]):
                looked += 1
                trial.require(
                    tokens[-1] == own[i][-1],
                    f"{mode}, {kind}: a bonus token needs to be that of sample, {own[i][-1]}, found {tokens[-1]}",
                )
    return f"distribution, and {looked} tokens equal to those of sample"


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

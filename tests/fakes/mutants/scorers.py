"""Scorers with a bug in every call: native with a change before or after it."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from mutants import table
from mutants.corner_calls import INF
from mutants.samplers import FLAT_MASS, FLAT_P, cut_mass, halved_in_flat_rows, in_nucleus, native
from tokendraw_native import plugin

NATIVE = plugin.tokendraw_describe().operations["score"]


class ScorerMutant:
    """The native scorer, with hooks for its tokens and its output."""

    def __init__(self, need, device):
        self.need, self.device = need, device

    def score(self, logits, token_ids, metadata):
        scored = native(self.need, self.device).score(logits, self.tokens(token_ids, logits), metadata)
        return self.output(scored, logits, token_ids, metadata)

    def tokens(self, token_ids, logits):
        return token_ids

    def output(self, scored, logits, token_ids, metadata):
        return scored


class DrawingScorerMutant(ScorerMutant):
    """A scorer that also draws, as native does."""

    def sample(self, logits, metadata):
        return native(self.need, self.device).sample(logits, metadata)


def entropy(change):
    """Replace the entropies of an output: ``change(entropy, logits, metadata)``."""
    return {
        "output": lambda self, scored, logits, token_ids, metadata: replace(
            scored, entropy=change(scored.entropy, logits, metadata)
        )
    }


def logprobs(change):
    """Replace fields of the logprobs of an output: ``change(logprobs, logits, metadata)``."""
    return {
        "output": lambda self, scored, logits, token_ids, metadata: replace(
            scored, logprobs=replace(scored.logprobs, **change(scored.logprobs, logits, metadata))
        )
    }


def without_filters(self, scored, logits, token_ids, metadata):
    plain = replace(metadata, top_k=None, top_p=None, min_p=None, row_kinds=None)
    return replace(scored, entropy=native(self.need, self.device).score(logits, token_ids, plain).entropy)


def strict_ranks(best, logits, metadata):
    token = best.token_ids[:, :1].clamp(min=0)
    x = logits.float().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
    ranks = (x > x.gather(1, token)).sum(1) + 1
    return {"ranks": torch.where(best.token_ids[:, 0] >= 0, ranks, 0)}


# fmt: off
SCORERS = table("score", NATIVE, ScorerMutant, (
    (f"{FLAT_P}, in scores", "score kept sets", in_nucleus(ScorerMutant, "score", halved_in_flat_rows)),
    (f"{FLAT_MASS}, in scores", "score kept sets", in_nucleus(ScorerMutant, "score", cut_mass)),
    ("the token of the row before is scored", "scores",
     {"output": lambda self, scored, logits, token_ids, metadata: replace(scored, logprobs=replace(
         scored.logprobs, logprobs=torch.cat((scored.logprobs.logprobs[:, :1].roll(1, 0),
                                              scored.logprobs.logprobs[:, 1:]), 1)))}),
    ("padding counts as token 0", "score output", {"tokens": lambda self, token_ids, logits: torch.where(
        (token_ids >= 0) & (token_ids < logits.shape[1]), token_ids, 0)}),
    ("entropies in bits", "scores", entropy(lambda found, logits, metadata: found / math.log(2.0))),
    ("entropies without the filters", "scores", {"output": without_filters}),
    ("the entropy of a row of -inf is 0", "score output", entropy(
        lambda found, logits, metadata: found.nan_to_num(nan=0.0))),
    ("ranks count the tokens that are strictly larger", "scores", logprobs(strict_ranks)),
), options={"quick": True})
DRAWING_SCORERS = tuple(
    replace(mutant, capabilities=dict.fromkeys(("sample", "score"), NATIVE))
    for mutant in table("score", NATIVE, DrawingScorerMutant, (
        ("scores differ from those of draws in the last bit", "scores of draws", logprobs(
            lambda best, logits, metadata: {"logprobs": best.logprobs.nextafter(torch.tensor(-INF))})),
    ), options={"quick": True})
)
# fmt: on
MUTANTS = {"Scorers": SCORERS + DRAWING_SCORERS}

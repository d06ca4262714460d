"""Mistakes that a verification makes in some dtypes of logits and probabilities alone."""

from dataclasses import replace
from unittest import mock

import torch

import tokendraw_native.verify as pieces
from corner_bugs.call import INF
from corner_bugs.plugin import Verifies, bugs_of
from tokendraw_native.distributions import ProcessedLogits
from tokendraw_native.noise import Noise


def exchanged(**names):
    """Exchange functions that the native verification calls."""
    return mock.patch.dict(vars(pieces), names)


def other_draft(change):
    """Exchange what the drafts are taken to be drawn from."""
    own = pieces._draft_distribution

    def draft(*args):
        found, row = own(*args)
        return change(found), row

    return exchanged(_draft_distribution=draft)


class Mapped:
    """A distribution whose probabilities have been changed."""

    def __init__(self, inner, change):
        self.inner, self.change, self.valid = inner, change, inner.valid

    def probs_at(self, rows, ids):
        return self.change(self.inner.probs_at(rows, ids))

    def probs(self, rows):
        return self.change(self.inner.probs(rows))


class BfloatQ(Verifies):
    """bfloat16: q is rounded to bfloat16."""

    line = "verify crossing"

    dtype = "bfloat16"

    def patches(self):
        return [other_draft(lambda q: Mapped(q, lambda values: values.bfloat16().double()))]


class UnfilteredQ(Verifies):
    """bfloat16: q is the softmax of the draft's logits, without filters."""

    line = "verify crossing"

    dtype = "bfloat16"

    def which(self, call, drafts, mode):
        return drafts.draft_logits is not None and mode == "rejection"

    def patches(self):
        def plain(q):
            if not isinstance(q, ProcessedLogits):
                return q
            own = replace(q.params, top_k=None, top_p=None, min_p=None, joint=None)
            return ProcessedLogits(q.logits, pieces.row_stats(q.logits, own, masses=False), own)

        return [other_draft(plain)]


class QBeforeTemperature(Verifies):
    """float16: q is taken at T = 1."""

    line = "verify crossing"

    dtype = "float16"

    def which(self, call, drafts, mode):
        return drafts.draft_logits is not None and mode == "rejection"

    def patches(self):
        def plain(q):
            if not isinstance(q, ProcessedLogits):
                return q
            one = torch.ones_like(q.params.temperature)
            own = replace(q.params, temperature=one, inverse_temperature=one)
            return ProcessedLogits(q.logits, pieces.row_stats(q.logits, own, masses=False), own)

        return [other_draft(plain)]


class BfloatUniform(Verifies):
    """bfloat16: the uniform variate of the acceptance is rounded to bfloat16."""

    line = "verify crossing"

    dtype = "bfloat16"

    def patches(self):
        return [exchanged(accepts=lambda u, p, q: (q > 0) & (u.bfloat16().double() < p / q))]


class HalfResidual(Verifies):
    """float16: what p has more than q is formed in float16."""

    line = "verify near distributions"

    dtype = "float16"

    def patches(self):
        own = pieces.residual
        return [exchanged(residual=lambda p, q: own(p.half().double(), q.half().double()))]


class GreedyVerifyTakesTheLast(Verifies):
    """float16: the argmax of a greedy request is the highest id on a tie."""

    line = "verify crossing"

    dtype = "float16"

    def change(self, call, drafts):
        x = call.logits.float()
        last = call.size - 1 - x.flip(1).argmax(1, keepdim=True)
        ids = torch.arange(call.size, device=x.device)
        return call.rows(x.masked_fill(call.greedy.unsqueeze(1) & (ids != last), -INF)), drafts


class ChosenIsRecovered(Verifies):
    """bfloat16: a chosen draft that was rejected may be recovered."""

    line = "verify crossing"
    crossed_sizes = (33, 1025, 5003)

    dtype = "bfloat16"

    def which(self, call, drafts, mode):
        return drafts.draft_logits is None and drafts.draft_probs is None

    def patches(self):
        return [exchanged(residual=lambda p, q: p)]


class HalfProbabilitiesScaled(Verifies):
    """draft_probs in float16 or bfloat16: those below 0.0001 count as 0."""

    line = "verify crossing"
    crossed_sizes = (1025, 5003)
    all_dtypes = True

    def which(self, call, drafts, mode):
        q = drafts.draft_probs
        return q is not None and q.dtype in (torch.float16, torch.bfloat16)

    def patches(self):
        return [other_draft(lambda q: Mapped(q, lambda values: torch.where(values < 1e-4, 0.0, values)))]


class AcceptOf32BitsInFp64(Verifies):
    """bfloat16 and fp64 noise: the uniform variate of the acceptance has 32 bits."""

    line = "verify fp64 noise"

    dtype = "bfloat16"

    def patches(self):
        own = Noise.uniform
        return [mock.patch.object(Noise, "uniform", lambda self, stream, dtype: own(self, stream, "fp32"))]


BUGS = bugs_of(globals())

"""Mistakes that a verification makes in some dtypes and vocabularies alone."""

from dataclasses import replace
from unittest import mock

import torch

import tokendraw_native.verify as pieces
from corner_bugs.call import INF
from corner_bugs.plugin import Draws, Verifies, bugs_of, noise
from tokendraw_native.distributions import GivenProbs, ProcessedLogits
from tokendraw_native.row_params import Noise

WIDE = 1 << 16


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

    dtype = "bfloat16"

    def patches(self):
        return [other_draft(lambda q: Mapped(q, lambda values: values.bfloat16().double()))]


class UnfilteredQ(Verifies):
    """bfloat16: q is the softmax of the draft's logits, without filters."""

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

    dtype = "bfloat16"

    def patches(self):
        return [exchanged(accepts=lambda u, p, q: (q > 0) & (u.bfloat16().double() < p / q))]


class HalfResidual(Verifies):
    """float16: what p has more than q is formed in float16."""

    dtype = "float16"

    def patches(self):
        own = pieces.residual
        return [exchanged(residual=lambda p, q: own(p.half().double(), q.half().double()))]


class GreedyVerifyTakesTheLast(Verifies):
    """float16: the argmax of a greedy request is the highest id on a tie."""

    dtype = "float16"

    def change(self, call, drafts):
        x = call.logits.float()
        last = call.size - 1 - x.flip(1).argmax(1, keepdim=True)
        ids = torch.arange(call.size, device=x.device)
        return call.rows(x.masked_fill(call.greedy.unsqueeze(1) & (ids != last), -INF)), drafts


class ChosenIsRecovered(Verifies):
    """bfloat16: a chosen draft that was rejected may be recovered."""

    dtype = "bfloat16"

    def which(self, call, drafts, mode):
        return drafts.draft_logits is None and drafts.draft_probs is None

    def patches(self):
        return [exchanged(residual=lambda p, q: p)]


class HalfProbabilitiesScaled(Verifies):
    """draft_probs in float16 or bfloat16: those below 0.0001 count as 0."""

    def which(self, call, drafts, mode):
        q = drafts.draft_probs
        return q is not None and q.dtype in (torch.float16, torch.bfloat16)

    def patches(self):
        return [other_draft(lambda q: Mapped(q, lambda values: torch.where(values < 1e-4, 0.0, values)))]


class DraftStreamInBfloat(Draws):
    """bfloat16: a draft is drawn with the noise of tokens."""

    dtype, drafts = "bfloat16", True

    def patches(self):
        return [noise(stream=lambda own: own - 5)]


class DraftNoise24Bits(Draws):
    """float16: the noise of drafts has 24 bits."""

    dtype, drafts = "float16", True

    def patches(self):
        return [noise(bits=24)]


class DraftTopP(Draws):
    """bfloat16: drafts are drawn without top-p."""

    dtype, drafts = "bfloat16", True

    def where(self, call):
        return call.top_p < 1

    def change(self, call):
        return call.request(top_p=None)


class AcceptOf32BitsInFp64(Verifies):
    """bfloat16 and fp64 noise: the uniform variate of the acceptance has 32 bits."""

    dtype = "bfloat16"

    def patches(self):
        own = Noise.uniform
        return [mock.patch.object(Noise, "uniform", lambda self, stream, dtype: own(self, stream, "fp32"))]


class NarrowResidual(Verifies):
    """V > 65,536: a recovered token is drawn from the first 65,536 ids, where they have any residual."""

    above = WIDE

    def patches(self):
        own = pieces.residual

        def residual(p, q):
            found = own(p, q)
            first = found.clone()
            first[:, WIDE:] = 0
            return torch.where(first.amax(1, keepdim=True) > 0, first, found)

        return [exchanged(residual=residual)]


class ResidualTilesIn6Bits(Verifies):
    """V > 65,536: the residual's tiles 64 apart share noise."""

    above = WIDE

    def patches(self):
        own = Noise.gumbel

        def gumbel(self, index, stream, dtype):
            if isinstance(stream, int) or index.dim() != 1:
                return own(self, index, stream, dtype)
            return own(self, torch.where(stream == 4, index % 64, index), stream, dtype)

        return [mock.patch.object(Noise, "gumbel", gumbel)]


class QIn16Bits(Verifies):
    """V > 65,536: q of a draft above id 65,535 is looked up at its lower 16 bits."""

    above = WIDE

    def patches(self):
        own = GivenProbs.probs_at
        logits = ProcessedLogits.probs_at

        def at(found):
            if isinstance(found, GivenProbs):
                return Looked(found, lambda rows, ids: own(found, rows, ids % WIDE))
            if isinstance(found, ProcessedLogits):
                return Looked(found, lambda rows, ids: logits(found, rows, ids % WIDE))
            return found

        return [other_draft(at)]


class Looked(Mapped):
    """A distribution that is looked up in another way."""

    def __init__(self, inner, probs_at):
        super().__init__(inner, lambda values: values)
        self.probs_at = probs_at


class DraftIdsIn16Bits(Verifies):
    """V > 32,768: a draft above id 32,767 counts as negative, so as a placeholder."""

    above = 1 << 15

    def change(self, call, drafts):
        ids = drafts.draft_token_ids
        return call, replace(
            drafts, draft_token_ids=torch.where(ids >= 1 << 15, -1, ids), any_placeholder=True
        )


class LastIdsOfTheTarget(Verifies):
    """V > 65,536: the ids of the target behind the last full vector of 4 have no probability."""

    above = WIDE

    def change(self, call, drafts):
        x = call.logits.float().clone()
        x[:, call.size // 4 * 4 :] = -INF
        return call.rows(x), drafts


class VerifyNanFarOut(Verifies):
    """V > 65,536: a NaN of the target above id 65,535 leaves valid True."""

    above = WIDE

    def change(self, call, drafts):
        x = call.logits.float().clone()
        x[:, WIDE:] = x[:, WIDE:].nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        return call.rows(x), drafts


class DraftNanFarOut(Verifies):
    """V > 65,536: a NaN of a draft's row above id 65,535 leaves valid True."""

    above = WIDE

    def change(self, call, drafts):
        def cleaned(rows, to):
            if rows is None:
                return None
            rows = rows.float().clone()
            rows[:, WIDE:] = rows[:, WIDE:].nan_to_num(nan=to)
            return rows

        return call, replace(
            drafts,
            draft_probs=cleaned(drafts.draft_probs, 0.0),
            draft_logits=cleaned(drafts.draft_logits, -INF),
        )


BUGS = bugs_of(globals())

"""Mistakes that a verification makes in wide vocabularies alone."""

from dataclasses import replace
from unittest import mock

import torch

import tokendraw_native.verify as pieces
from corner_bugs.call import INF
from corner_bugs.plugin import Verifies, bugs_of
from corner_bugs.verify_dtypes import Mapped, exchanged, other_draft
from tokendraw_native.distributions import DraftProbs, ProcessedLogits
from tokendraw_native.noise import Noise

WIDE = 1 << 16


class NarrowResidual(Verifies):
    """V > 65,536: a recovered token is drawn from the first 65,536 ids, where they have any residual."""

    line = "verify crossing, wide"

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

    line = "verify crossing, wide"

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

    line = "verify crossing, wide"

    above = WIDE

    def patches(self):
        own = DraftProbs.probs_at
        logits = ProcessedLogits.probs_at

        def at(found):
            if isinstance(found, DraftProbs):
                return Looked(found, lambda rows, ids: own(found, rows, ids % WIDE))
            if isinstance(found, ProcessedLogits):
                return Looked(found, lambda rows, ids: logits(found, rows, ids % WIDE))
            return found

        return [other_draft(at)]


class DraftIdsIn16Bits(Verifies):
    """V > 32,768: a draft above id 32,767 counts as negative, so as a placeholder."""

    line = "verify near distributions"

    above = 1 << 15

    def change(self, call, drafts):
        ids = drafts.draft_token_ids
        return call, replace(
            drafts, draft_token_ids=torch.where(ids >= 1 << 15, -1, ids), any_placeholder=True
        )


class LastIdsOfTheTarget(Verifies):
    """V > 65,536: the ids of the target behind the last full vector of 4 have no probability."""

    line = "verify crossing, wide"

    above = WIDE

    def change(self, call, drafts):
        x = call.logits.float().clone()
        x[:, call.size // 4 * 4 :] = -INF
        return call.rows(x), drafts


class VerifyNanFarOut(Verifies):
    """V > 65,536: a NaN of the target above id 65,535 leaves valid True."""

    line = "verify crossing, wide"

    above = WIDE

    def change(self, call, drafts):
        x = call.logits.float().clone()
        x[:, WIDE:] = x[:, WIDE:].nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        return call.rows(x), drafts


class DraftNanFarOut(Verifies):
    """V > 65,536: a NaN of a draft's row above id 65,535 leaves valid True."""

    line = "verify crossing, wide"

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


class Looked(Mapped):
    """A distribution that is looked up in another way."""

    all_dtypes = True

    def __init__(self, inner, probs_at):
        super().__init__(inner, lambda values: values)
        self.probs_at = probs_at


BUGS = bugs_of(globals())

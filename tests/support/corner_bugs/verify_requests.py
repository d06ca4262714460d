"""Mistakes that a verification makes with some numbers of drafts and requests, and some parameters, alone."""

from dataclasses import replace
from unittest import mock

import torch

import tokendraw_native.verify as pieces
from corner_bugs.plugin import Verifies, bugs_of
from corner_bugs.verify_dtypes import exchanged
from tokendraw import philox, speculative
from tokendraw_native.noise import Noise


class LateBonus(Verifies):
    """Eight drafts or more: the bonus token is drawn from the row of the last draft."""

    line = "verify crossing"

    def which(self, call, drafts, mode):
        return self.counts(drafts) >= 8

    def change(self, call, drafts):
        rows = call.row
        bonus = speculative.bonus_rows(drafts.cu_num_logits)
        rows[bonus] = torch.where(self.counts(drafts) > 0, bonus - 1, bonus)
        return call.rows(call.logits[rows]), drafts


class LateBonusNoise(Verifies):
    """Eight drafts or more: the bonus token has the noise of the last draft's position."""

    line = "verify crossing"

    def which(self, call, drafts, mode):
        return self.counts(drafts) >= 8

    def change(self, call, drafts):
        positions = call.metadata.positions.clone()
        bonus = speculative.bonus_rows(drafts.cu_num_logits)
        positions[bonus] = positions[(bonus - 1).clamp(min=0)]
        return replace(call, metadata=replace(call.metadata, positions=positions)), drafts


class AcceptancesWrap(Verifies):
    """The acceptance of draft 8 and of all behind it has the noise of the draft 8 before it."""

    line = "verify crossing"

    def change(self, call, drafts):
        _, place = self.rows(call, drafts)
        self.shift = torch.where(place >= 8, 8, 0)
        return call, drafts

    def patches(self):
        def uniform(noise, stream, dtype):
            position = noise.position - self.shift.unsqueeze(1)
            return philox.uniform(noise.seed, position, torch.zeros_like(position), stream, dtype)

        return [mock.patch.object(Noise, "uniform", uniform)]


class SixteenthDraft(Verifies):
    """Sixteen drafts or more: the sixteenth is never accepted."""

    line = "verify crossing"

    def change(self, call, drafts):
        _, place = self.rows(call, drafts)
        self.late = place >= 15
        return call, drafts

    def patches(self):
        own = pieces.accepts
        return [exchanged(accepts=lambda u, p, q: own(u, p, q) & ~self.late)]


class RequestsWrap(Verifies):
    """Requests from 64 on have the parameters of request - 64."""

    line = "verify crossing"

    names = ("temperature", "top_k", "top_p", "min_p", "joint")
    period = 64

    def which(self, call, drafts, mode):
        return torch.arange(drafts.num_requests) >= self.period

    def change(self, call, drafts):
        request, _ = self.rows(call, drafts)
        row = drafts.cu_num_logits[:-1].long()[request % self.period]
        own = {name: getattr(call.metadata, name) for name in self.names}
        return call.request(**{name: None if c is None else c[row] for name, c in own.items()}), drafts


class RequestsPerBlock(Verifies):
    """B > 64: a request behind the last full block of 64 has its first draft rejected."""

    line = "verify crossing"

    def which(self, call, drafts, mode):
        count = drafts.num_requests
        return (torch.arange(count) >= count // 64 * 64) & (count > 64)

    def change(self, call, drafts):
        self.first = self.rows(call, drafts)[1] == 0
        return call, drafts

    def patches(self):
        own = pieces.accepts
        return [exchanged(accepts=lambda u, p, q: own(u, p, q) & ~self.first)]


class AcceptancesShared(Verifies):
    """Requests without a seed: all drafts of a request are accepted by one uniform variate."""

    line = "verify unseeded acceptance"

    unseeded = True

    def change(self, call, drafts):
        request, _ = self.rows(call, drafts)
        self.first = drafts.cu_num_logits.long()[request]
        return call, drafts

    def patches(self):
        own = Noise.uniform
        return [
            mock.patch.object(
                Noise, "uniform", lambda noise, stream, dtype: own(noise, stream, dtype)[self.first]
            )
        ]


class AcceptancesOfTheCall(AcceptancesShared):
    """Requests without a seed: drafts of different requests are accepted by one uniform variate."""

    line = "verify unseeded acceptance"

    def change(self, call, drafts):
        self.first = self.rows(call, drafts)[1]
        return call, drafts


class RecoveredByTheAcceptance(Verifies):
    """Requests without a seed: a residual is drawn with the noise that the first tokens of the draft had."""

    line = "verify rejection"

    unseeded = True

    def patches(self):
        def uniform(noise, stream, dtype):
            index = torch.zeros_like(noise.position)
            return philox.uniform(noise.seed, noise.position, index, philox.RESIDUAL_TOKEN, dtype)

        return [mock.patch.object(Noise, "uniform", uniform)]


class LatePlaceholders(Verifies):
    """A placeholder in the fifth place or later counts as a chosen token 0."""

    line = "verify crossing"

    def change(self, call, drafts):
        _, place = self.rows(call, drafts)
        ids, size = drafts.draft_token_ids, call.size
        judged = speculative.target_rows(drafts.cu_num_logits, len(call.logits) - drafts.num_requests)
        if ids.dim() > 1:
            return call, drafts
        late = (place[judged] >= 4) & ((ids[: len(judged)] < 0) | (ids[: len(judged)] >= size))
        return call, replace(drafts, draft_token_ids=torch.where(late, 0, ids[: len(judged)]))


class ManyRowsShareNoise(Verifies):
    """L > 512: rows 512 apart without a seed share their noise."""

    line = "verify shared noise"

    unseeded = True

    def which(self, call, drafts, mode):
        return len(call.logits) > 512

    def change(self, call, drafts):
        return call.sharing(call.row % 512), drafts


class ZeroDraftsBehindMany(Verifies):
    """A request without drafts, behind one with eight or more, draws from the row before its own."""

    line = "verify crossing"

    def which(self, call, drafts, mode):
        counts = self.counts(drafts)
        return (counts == 0) & (counts.roll(1) >= 8) & (torch.arange(len(counts)) > 0)

    def change(self, call, drafts):
        rows = call.row
        alone = drafts.cu_num_logits[:-1].long()[self.counts(drafts) == 0]
        rows[alone] = (alone - 1).clamp(min=0)
        return call.rows(call.logits[rows]), drafts


class CoupledBonusShared(Verifies):
    """Coupled, without a seed: the bonus token has the noise of the row before."""

    line = "verify coupled"

    unseeded = True

    def which(self, call, drafts, mode):
        return mode == "coupled"

    def change(self, call, drafts):
        bonus = speculative.bonus_rows(drafts.cu_num_logits)
        source = call.row
        source[bonus] = torch.where(self.counts(drafts) > 0, bonus - 1, bonus)
        return call.sharing(source), drafts


BUGS = bugs_of(globals())

"""Mistakes that a verification makes on paths of their own, for uniform batches and for some layouts of drafts."""

from dataclasses import replace
from unittest import mock

import torch

import tokendraw_native.verify as pieces
from corner_bugs.call import INF, places
from corner_bugs.plugin import Verifies, bugs_of
from corner_bugs.verify_dtypes import Mapped, exchanged, other_draft
from tokendraw import philox, speculative
from tokendraw_native.distributions import DraftProbs
from tokendraw_native.draw import SAMPLE
from tokendraw_native.noise import Noise


class ShortIds(Verifies):
    """Draft ids in int32, padded [B, K]: those of requests from 1 on are read one place too early."""

    line = "verify crossing"

    def change(self, call, drafts):
        ids = drafts.draft_token_ids
        if ids.dtype != torch.int32 or ids.dim() != 2 or ids.shape[1] < 2:
            return call, drafts
        moved = torch.cat((ids[:1], ids[1:].roll(1, 1)))
        return call, replace(drafts, draft_token_ids=moved, any_placeholder=True)


class TrailingRows(Verifies):
    """Rows behind the last request, which are nobody's, count as rows of its own: a NaN there makes it invalid."""

    line = "verify crossing"

    def shown(self, call, drafts, output):
        end = int(drafts.cu_num_logits[-1])
        wrong = call.logits[end:].isnan().any() if end < len(call.logits) else torch.tensor(False)
        valid = output.valid.clone()
        valid[-1] &= ~wrong
        return replace(output, valid=valid)


class NormalisedProbs(Verifies):
    """draft_probs are normalised, in place of taken as they are."""

    line = "verify crossing"
    all_dtypes = True
    crossed_sizes = (33, 1025, 5003)

    def which(self, call, drafts, mode):
        return drafts.draft_probs is not None

    def patches(self):
        def normalised(q):
            if not isinstance(q, DraftProbs):
                return q
            total = q.given.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0).sum(1)
            return Shares(q, total.clamp(min=1e-30))

        return [other_draft(normalised)]


class Shares(Mapped):
    """Probabilities relative to the sum of their row."""

    def __init__(self, inner, total):
        super().__init__(inner, None)
        self.total = total

    def probs_at(self, rows, ids):
        return self.inner.probs_at(rows, ids) / self.total[rows]

    def probs(self, rows):
        return self.inner.probs(rows) / self.total[rows].unsqueeze(1)


class OneDraftEach(Verifies):
    """bfloat16, every request with exactly one draft: the recovered token is drawn from p."""

    line = "verify near distributions"

    dtype = "bfloat16"

    def which(self, call, drafts, mode):
        return (self.counts(drafts) == 1).all()

    def patches(self):
        return [exchanged(residual=lambda p, q: p)]


class OneRequest(Verifies):
    """B = 1: the acceptance of a draft has the noise of the first one."""

    line = "verify crossing"
    all_dtypes = True

    def which(self, call, drafts, mode):
        return drafts.num_requests == 1

    def patches(self):
        own = Noise.uniform
        return [
            mock.patch.object(
                Noise, "uniform", lambda n, stream, dtype: own(n, stream, dtype)[:1].expand_as(n.seed)
            )
        ]


class OneRequestOfHalf(OneRequest):
    """float16, B = 1 and three drafts or more: the second draft is never accepted."""

    line = "verify crossing"

    dtype = "float16"

    def which(self, call, drafts, mode):
        return (drafts.num_requests == 1) & (self.counts(drafts) > 2)

    def patches(self):
        own = pieces.accepts

        def accepts(u, p, q):
            second = torch.arange(len(u)) == 1
            return own(u, p, q) & ~second

        return [exchanged(accepts=accepts)]


class AllGreedyOfBfloat(Verifies):
    """bfloat16, batches of greedy requests alone: a draft that ties with the argmax is accepted."""

    line = "verify crossing"

    dtype = "bfloat16"

    def which(self, call, drafts, mode):
        return call.metadata.facts.all_greedy & (drafts.draft_token_ids.dim() == 1)

    def change(self, call, drafts):
        x = call.logits.float().nan_to_num(nan=-INF)
        judged = speculative.target_rows(drafts.cu_num_logits, len(x) - drafts.num_requests)
        ids = drafts.draft_token_ids[: len(judged)].clamp(0, call.size - 1).unsqueeze(1)
        tied = x[judged].gather(1, ids) == x[judged].amax(1, keepdim=True)
        changed = x.clone()
        own = changed[judged]
        changed[judged] = torch.where(tied, own.scatter(1, ids, INF), own)
        return call.rows(changed), drafts


class UnseededBesideSeeded(Verifies):
    """A request without a seed, behind one that has a seed, accepts by the noise of that one."""

    line = "verify shared noise"

    unseeded = True

    def which(self, call, drafts, mode):
        first = drafts.cu_num_logits[:-1].long()
        seeded = ~call.unseeded[first]
        return seeded.roll(1) & (torch.arange(len(first)) > 0)

    def change(self, call, drafts):
        request, _ = self.rows(call, drafts)
        before = drafts.cu_num_logits.long()[(request - 1).clamp(min=0)]
        seed = torch.where(call.unseeded, call.metadata.seed[before], call.metadata.seed)
        positions = torch.where(call.unseeded, call.metadata.positions[before], call.metadata.positions)
        return replace(call, metadata=replace(call.metadata, seed=seed, positions=positions)), drafts


class CoupledOfBfloat(Verifies):
    """bfloat16, coupled: exactly k tokens of a target are kept, the lowest ids of those that tie."""

    line = "verify crossing"

    dtype = "bfloat16"

    def which(self, call, drafts, mode):
        return mode == "coupled"

    def change(self, call, drafts):
        k = call.top_k.unsqueeze(1)
        return call.only(call.kept() & ((places(call.logits) < k) | (k <= 0))), drafts


class CoupledResidualNoise(Verifies):
    """float16, coupled: the token in place of a rejected draft is drawn with the noise of residuals."""

    line = "verify crossing"

    dtype = "float16"

    def which(self, call, drafts, mode):
        return mode == "coupled"

    def patches(self):
        own = pieces.draw
        return [exchanged(draw=lambda *args: own(*args, pieces.RESIDUAL))]


class HighPositionsOfDrafts(Verifies):
    """The acceptance noise keeps 32 bits of a position."""

    line = "verify crossing"

    def patches(self):
        def uniform(noise, stream, dtype):
            position = noise.position & 0xFFFFFFFF
            return philox.uniform(noise.seed, position, torch.zeros_like(position), stream, dtype)

        return [mock.patch.object(Noise, "uniform", uniform)]


class ResidualOfLargeP(Verifies):
    """Residuals below 0.01 in all are drawn from p."""

    line = "verify near distributions"

    def patches(self):
        def residual(p, q):
            more = (p - q).clamp(min=0.0)
            return torch.where(more.sum(1, keepdim=True) > 0.01, more, p)

        return [exchanged(residual=residual)]


class FirstOfManyPlaceholders(Verifies):
    """Behind a placeholder at the first place the token is drawn with the noise of tokens, in float16."""

    line = "verify crossing"

    dtype = "float16"

    def which(self, call, drafts, mode):
        if mode == "coupled" or drafts.draft_token_ids.dim() != 1:
            return False
        first = drafts.cu_num_logits[:-1].long() - torch.arange(drafts.num_requests)
        ids = torch.cat((drafts.draft_token_ids, drafts.draft_token_ids.new_zeros(1)))
        return (ids[first] < 0) & (self.counts(drafts) > 0)

    def patches(self):
        return [mock.patch.dict(vars(pieces), {"RESIDUAL": SAMPLE})]


BUGS = bugs_of(globals())

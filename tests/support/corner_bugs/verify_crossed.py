"""Mistakes that a verification makes in one dtype, width, mode or kind of requests where it meets another, alone."""

from dataclasses import replace
from unittest import mock

import torch

import tokendraw_native.verify as pieces
from corner_bugs.call import INF, places
from corner_bugs.plugin import Draws, Verifies, bugs_of
from corner_bugs.verify_dtypes import exchanged, other_draft
from tokendraw import philox, speculative
from tokendraw_native.distributions import ProcessedLogits
from tokendraw_native.noise import Noise

WIDE, WIDER = 1 << 16, 1 << 17
FILTERS = ("temperature", "top_k", "top_p", "min_p", "joint")


class LateBonusUnseeded(Verifies):
    """bfloat16, no seed, eight drafts or more: the bonus token is drawn from the row of the last draft."""

    line = "verify crossing"

    dtype, unseeded = "bfloat16", True

    def which(self, call, drafts, mode):
        return self.counts(drafts) >= 8

    def change(self, call, drafts):
        rows, bonus = call.row, speculative.bonus_rows(drafts.cu_num_logits)
        rows[bonus] = torch.where(self.counts(drafts) > 0, bonus - 1, bonus)
        return call.rows(call.logits[rows]), drafts


class CoupledRequestsWrap(Verifies):
    """Coupled: requests from 64 on have the parameters of request - 64."""

    line = "verify crossing"

    def which(self, call, drafts, mode):
        return (torch.arange(drafts.num_requests) >= 64) & (mode == "coupled")

    def change(self, call, drafts):
        request, _ = self.rows(call, drafts)
        row = drafts.cu_num_logits[:-1].long()[request % 64]
        own = {name: getattr(call.metadata, name) for name in FILTERS}
        return call.request(**{name: None if c is None else c[row] for name, c in own.items()}), drafts


class NanInTheBonusRowOfHalf(Verifies):
    """float16, coupled: a NaN in the bonus row leaves valid True."""

    line = "verify crossing"

    dtype = "float16"

    def which(self, call, drafts, mode):
        return mode == "coupled"

    def change(self, call, drafts):
        x, bonus = call.logits.clone(), speculative.bonus_rows(drafts.cu_num_logits)
        x[bonus] = x[bonus].nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        return call.rows(x), drafts


class NarrowResidualOfHalf(Verifies):
    """float16, draft_logits, V > 131,072: a recovered token is one of the first 131,072 ids, if they have any."""

    line = "verify crossing, wide"
    all_cases = True
    crossed_sizes = (131_113,)

    dtype, above = "float16", WIDER

    def which(self, call, drafts, mode):
        return drafts.draft_logits is not None and mode == "rejection"

    def patches(self):
        own = pieces.residual

        def residual(p, q):
            found = own(p, q)
            first = found.clone()
            first[:, WIDER:] = 0
            return torch.where(first.amax(1, keepdim=True) > 0, first, found)

        return [exchanged(residual=residual)]


class BfloatVerifyLogprobs(Verifies):
    """bfloat16: the logprobs of a verification are rounded to bfloat16."""

    line = "verify crossing"

    dtype = "bfloat16"

    def shown(self, call, drafts, output):
        found = output.logprobs
        if found is None:
            return output
        return replace(output, logprobs=replace(found, logprobs=found.logprobs.bfloat16().float()))


class WideGreedyVerifyTies(Verifies):
    """bfloat16, V > 65,536: the argmax of a greedy request is the highest id on a tie."""

    line = "verify crossing, wide"

    dtype, above = "bfloat16", WIDE

    def change(self, call, drafts):
        x = call.logits.float()
        last = call.size - 1 - x.flip(1).argmax(1, keepdim=True)
        ids = torch.arange(call.size, device=x.device)
        return call.rows(x.masked_fill(call.greedy.unsqueeze(1) & (ids != last), -INF)), drafts


class QWithoutTopK(Verifies):
    """float16: q is taken without top-k."""

    line = "verify crossing"

    dtype = "float16"

    def which(self, call, drafts, mode):
        return drafts.draft_logits is not None and mode == "rejection"

    def patches(self):
        def plain(q):
            if not isinstance(q, ProcessedLogits):
                return q
            own = replace(q.params, top_k=None, max_top_k=0, all_top_k=False)
            return ProcessedLogits(q.logits, pieces.row_stats(q.logits, own, masses=False), own)

        return [other_draft(plain)]


class HotCoupled(Verifies):
    """Coupled, T > 10: T counts as 10."""

    line = "verify crossing"

    def which(self, call, drafts, mode):
        return ((call.temperature > 10) & (mode == "coupled"))[drafts.cu_num_logits[:-1].long()]

    def change(self, call, drafts):
        return call.request(temperature=call.temperature.clamp(max=10)), drafts


class ColdUnseededVerify(Verifies):
    """No seed, T < 0.01: T counts as 0.05."""

    line = "verify crossing"

    unseeded = True

    def which(self, call, drafts, mode):
        return ((call.temperature < 0.01) & ~call.greedy)[drafts.cu_num_logits[:-1].long()]

    def change(self, call, drafts):
        cold = (call.temperature < 0.01) & ~call.greedy
        return call.request(temperature=torch.where(cold, 0.05, call.temperature)), drafts


class LateDraftsShareNoise(Draws):
    """bfloat16, drafts without a seed: rows from 512 on have the noise of row - 512."""

    line = "verify draft"

    drafts, dtype, unseeded = True, "bfloat16", True

    def where(self, call):
        return call.row >= 512

    def change(self, call):
        return call.sharing(call.row % 512)


class WideDraftsOfK(Draws):
    """Drafts, V > 65,536: exactly k tokens are kept."""

    line = "verify crossed drafts"

    drafts, above = True, WIDE

    def where(self, call):
        return (call.top_k > 0) & (call.top_k < call.size) & ~call.greedy

    def change(self, call):
        return call.only(call.kept() & (places(call.logits) < call.top_k.unsqueeze(1)))


class VerifyMinPAtOne(Verifies):
    """float16: min-p of the target sees the probabilities at T = 1."""

    line = "verify crossing"

    dtype = "float16"

    def which(self, call, drafts, mode):
        return ((call.min_p > 0) & ~call.greedy)[drafts.cu_num_logits[:-1].long()]

    def change(self, call, drafts):
        others = call.request(min_p=None).kept()
        own = call.request(temperature=torch.ones_like(call.temperature), top_k=None, top_p=None).kept()
        first = drafts.cu_num_logits[:-1].long()
        del first
        return call.rows(
            call.logits.float().masked_fill(~(others & own) & ~call.logits.isnan(), -INF)
        ), drafts


class WideVerifyExactK(Verifies):
    """bfloat16, V > 65,536: a target keeps exactly k tokens."""

    line = "verify crossing, wide"

    dtype, above = "bfloat16", WIDE

    def which(self, call, drafts, mode):
        return ((call.top_k > 0) & (call.top_k < call.size))[drafts.cu_num_logits[:-1].long()]

    def change(self, call, drafts):
        k = call.top_k.unsqueeze(1)
        drop = (places(call.logits) >= k) & (k > 0) & (k < call.size) & ~call.greedy.unsqueeze(1)
        return call.rows(call.logits.float().masked_fill(drop & ~call.logits.isnan(), -INF)), drafts


class AcceptancesOfLateRequests(Verifies):
    """Seeded requests from 64 on accept by the noise of request - 64."""

    line = "verify crossing"

    unseeded = False

    def which(self, call, drafts, mode):
        return (torch.arange(drafts.num_requests) >= 64) & (mode == "rejection")

    def change(self, call, drafts):
        request, place = self.rows(call, drafts)
        first = drafts.cu_num_logits.long()
        self.source = torch.minimum(first[request % 64] + place, first[request % 64 + 1] - 1)
        return call, drafts

    def patches(self):
        own = Noise.uniform
        return [
            mock.patch.object(
                Noise, "uniform", lambda noise, stream, dtype: own(noise, stream, dtype)[self.source]
            )
        ]


class CoupledJoint(Verifies):
    """Coupled, order joint: top-p counts the mass that top-k left."""

    line = "verify crossing"
    crossed_sizes = (33, 1025, 5003)

    def which(self, call, drafts, mode):
        joint = call.metadata.joint
        if joint is None or mode != "coupled":
            return False
        return (joint & (call.top_p < 1))[drafts.cu_num_logits[:-1].long()]

    def change(self, call, drafts):
        return call.request(joint=None), drafts


class UnlikelyChosenDrafts(Verifies):
    """A chosen draft of p < 0.02 is never accepted."""

    line = "verify crossing"

    def which(self, call, drafts, mode):
        return drafts.draft_logits is None and drafts.draft_probs is None and mode == "rejection"

    def patches(self):
        return [exchanged(accepts=lambda u, p, q: (q > 0) & (u < p / q) & (p >= 0.02))]


class BestOfLateSteps(Verifies):
    """N > 20: behind the 20 best of the eighth token and of those behind it stands the 20th again."""

    line = "verify crossing"
    crossed_sizes = (33, 1025, 5003)

    def shown(self, call, drafts, output):
        found = output.logprobs
        if found is None or found.token_ids.shape[2] <= 21 or found.token_ids.shape[1] < 8:
            return output
        place = torch.arange(found.token_ids.shape[2]).clamp(max=20)
        late = (torch.arange(found.token_ids.shape[1]) >= 7)[None, :, None]
        ids = torch.where(late, found.token_ids[..., place], found.token_ids)
        return replace(output, logprobs=replace(found, token_ids=ids))


class OneWideRequest(Verifies):
    """B = 1 and V > 65,536: the second draft is never accepted."""

    line = "verify crossing, wide"

    above = WIDE

    def which(self, call, drafts, mode):
        return drafts.num_requests == 1

    def change(self, call, drafts):
        self.second = self.rows(call, drafts)[1] == 1
        return call, drafts

    def patches(self):
        own = pieces.accepts
        return [exchanged(accepts=lambda u, p, q: own(u, p, q) & ~self.second)]


class AcceptOf16Bits(Verifies):
    """bfloat16: the uniform variate of the acceptance has 16 bits."""

    line = "verify sure drafts"

    dtype = "bfloat16"

    def patches(self):
        own = Noise.uniform

        def uniform(noise, stream, dtype):
            u = own(noise, stream, dtype)
            return (u * 65536).floor() / 65536 + 1 / 131072 if stream == philox.ACCEPT else u

        return [mock.patch.object(Noise, "uniform", uniform)]


class NanOfDraftsInHalf(Verifies):
    """float16, draft_probs: a NaN counts as 0 and leaves valid True."""

    line = "verify crossing"

    dtype = "float16"

    def which(self, call, drafts, mode):
        return drafts.draft_probs is not None and mode == "rejection"

    def change(self, call, drafts):
        return call, replace(drafts, draft_probs=drafts.draft_probs.nan_to_num(nan=0.0))


class UnseededRecovered(Verifies):
    """bfloat16, no seed: a recovered token is drawn from the whole target."""

    line = "verify crossing"

    dtype, unseeded = "bfloat16", True

    def which(self, call, drafts, mode):
        return mode == "rejection"

    def patches(self):
        return [exchanged(residual=lambda p, q: p)]


BUGS = bugs_of(globals())

"""Mistakes that a verification makes with some numbers of drafts and requests, and some parameters, alone."""

from dataclasses import replace
from unittest import mock

import torch

import tokendraw_native.verify as pieces
from corner_bugs.plugin import Draws, Verifies, bugs_of
from corner_bugs.verify_dtypes import exchanged
from tokendraw import philox, speculative
from tokendraw_native.row_params import Noise


class LateBonus(Verifies):
    """Eight drafts or more: the bonus token is drawn from the row of the last draft."""

    def which(self, call, drafts, mode):
        return self.counts(drafts) >= 8

    def change(self, call, drafts):
        rows = call.row
        bonus = speculative.bonus_rows(drafts.cu_num_logits)
        rows[bonus] = torch.where(self.counts(drafts) > 0, bonus - 1, bonus)
        return call.rows(call.logits[rows]), drafts


class LateBonusNoise(Verifies):
    """Eight drafts or more: the bonus token has the noise of the last draft's position."""

    def which(self, call, drafts, mode):
        return self.counts(drafts) >= 8

    def change(self, call, drafts):
        positions = call.metadata.positions.clone()
        bonus = speculative.bonus_rows(drafts.cu_num_logits)
        positions[bonus] = positions[(bonus - 1).clamp(min=0)]
        return replace(call, metadata=replace(call.metadata, positions=positions)), drafts


class AcceptancesWrap(Verifies):
    """The acceptance of draft 8 and of all behind it has the noise of the draft 8 before it."""

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

    def change(self, call, drafts):
        _, place = self.rows(call, drafts)
        self.late = place >= 15
        return call, drafts

    def patches(self):
        own = pieces.accepts
        return [exchanged(accepts=lambda u, p, q: own(u, p, q) & ~self.late)]


class RequestsWrap(Verifies):
    """Requests from 64 on have the parameters of request - 64."""

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

    def change(self, call, drafts):
        self.first = self.rows(call, drafts)[1]
        return call, drafts


class RecoveredByTheAcceptance(Verifies):
    """Requests without a seed: a residual is drawn with the noise that the first tokens of the draft had."""

    unseeded = True

    def patches(self):
        def uniform(noise, stream, dtype):
            index = torch.zeros_like(noise.position)
            return philox.uniform(noise.seed, noise.position, index, philox.RESIDUAL_TOKEN, dtype)

        return [mock.patch.object(Noise, "uniform", uniform)]


class NanInTheBonusRow(Verifies):
    """A NaN in the bonus row leaves valid True."""

    def change(self, call, drafts):
        x = call.logits.clone()
        bonus = speculative.bonus_rows(drafts.cu_num_logits)
        x[bonus] = x[bonus].nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        return call.rows(x), drafts


class NanInALateRow(Verifies):
    """A NaN in the row of the fifth draft or a later one leaves valid True."""

    def change(self, call, drafts):
        _, place = self.rows(call, drafts)
        cleaned = call.logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        return call.rows(torch.where((place >= 4).unsqueeze(1), cleaned, call.logits)), drafts


class LatePlaceholders(Verifies):
    """A placeholder in the fifth place or later counts as a chosen token 0."""

    def change(self, call, drafts):
        _, place = self.rows(call, drafts)
        ids, size = drafts.draft_token_ids, call.size
        judged = speculative.target_rows(drafts.cu_num_logits, len(call.logits) - drafts.num_requests)
        if ids.dim() > 1:
            return call, drafts
        late = (place[judged] >= 4) & ((ids[: len(judged)] < 0) | (ids[: len(judged)] >= size))
        return call, replace(drafts, draft_token_ids=torch.where(late, 0, ids[: len(judged)]))


class LogprobsOfLateSteps(Verifies):
    """The logprobs of the ninth token and of those behind it are those of the token before."""

    def shown(self, call, drafts, output):
        found = output.logprobs
        if found is None or output.token_ids.shape[1] <= 8:
            return output
        step = torch.arange(output.token_ids.shape[1])
        before = torch.where(step >= 8, step - 1, step)
        emitted = step <= output.num_accepted.unsqueeze(1)
        values = torch.where(emitted.unsqueeze(2), found.logprobs[:, before], found.logprobs)
        return replace(output, logprobs=replace(found, logprobs=values))


class TenBestOfAVerification(Verifies):
    """N > 10: behind the 10 best tokens of a verification stands the tenth again."""

    def shown(self, call, drafts, output):
        found = output.logprobs
        if found is None or found.token_ids.shape[2] <= 11:
            return output
        place = torch.arange(found.token_ids.shape[2]).clamp(max=10)
        return replace(
            output,
            logprobs=replace(
                found, token_ids=found.token_ids[..., place], logprobs=found.logprobs[..., place]
            ),
        )


class RanksOfBonusTokens(Verifies):
    """float16: the rank of a bonus token counts the tokens that are strictly larger."""

    dtype = "float16"

    def shown(self, call, drafts, output):
        if output.logprobs is None or output.logprobs.ranks is None:
            return output
        count = output.num_accepted.long().unsqueeze(1)
        last = output.token_ids.gather(1, count)
        x = call.logits[speculative.bonus_rows(drafts.cu_num_logits)].float().nan_to_num(nan=-torch.inf)
        rank = (x > x.gather(1, last)).sum(1, keepdim=True) + 1
        ranks = output.logprobs.ranks.scatter(1, count, rank.to(output.logprobs.ranks.dtype))
        all_accepted = output.num_accepted == self.counts(drafts)
        ranks = torch.where(all_accepted.unsqueeze(1), ranks, output.logprobs.ranks)
        return replace(output, logprobs=replace(output.logprobs, ranks=ranks))


class ManyRowsShareNoise(Verifies):
    """L > 512: rows 512 apart without a seed share their noise."""

    unseeded = True

    def which(self, call, drafts, mode):
        return len(call.logits) > 512

    def change(self, call, drafts):
        return call.sharing(call.row % 512), drafts


class LargePUnfiltered(Verifies):
    """p >= 0.99: the target is verified without top-p."""

    def which(self, call, drafts, mode):
        first = drafts.cu_num_logits[:-1].long()
        return ((call.top_p < 1) & (call.top_p > 0.9899))[first]

    def change(self, call, drafts):
        return call.request(top_p=torch.where(call.top_p > 0.9899, 1.0, call.top_p.double())), drafts


class ColdVerifyIsGreedy(Verifies):
    """T < 0.01: a request counts as greedy."""

    def which(self, call, drafts, mode):
        return ((call.temperature < 0.01) & ~call.greedy)[drafts.cu_num_logits[:-1].long()]

    def change(self, call, drafts):
        return call.request(temperature=torch.where(call.temperature < 0.01, 0.0, call.temperature)), drafts


class LargeKOfAVerification(Verifies):
    """k > 256: the target is verified with the 256 largest tokens."""

    def which(self, call, drafts, mode):
        return ((call.top_k > 256) & (call.top_k < call.size))[drafts.cu_num_logits[:-1].long()]

    def change(self, call, drafts):
        return call.request(top_k=call.top_k.clamp(max=256)), drafts


class DraftsShareNoise(Draws):
    """Drafts without a seed: rows of one call 2 apart share their noise."""

    drafts, unseeded = True, True

    def change(self, call):
        return call.sharing(call.row % 2)


class DraftsOfLargeBatchesShareNoise(Draws):
    """Drafts without a seed: rows from 128 on have the noise of row - 128."""

    drafts, unseeded = True, True

    def where(self, call):
        return call.row >= 128

    def change(self, call):
        return call.sharing(call.row % 128)


class ZeroDraftsBehindMany(Verifies):
    """A request without drafts, behind one with eight or more, draws from the row before its own."""

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

    unseeded = True

    def which(self, call, drafts, mode):
        return mode == "coupled"

    def change(self, call, drafts):
        bonus = speculative.bonus_rows(drafts.cu_num_logits)
        source = call.row
        source[bonus] = torch.where(self.counts(drafts) > 0, bonus - 1, bonus)
        return call.sharing(source), drafts


class AcceptedWithoutQ(Verifies):
    """float16: a draft that q gives no probability is accepted by p alone."""

    dtype = "float16"

    def patches(self):
        return [exchanged(accepts=lambda u, p, q: torch.where(q > 0, u < p / q, u < p))]


class ZeroResidualOfEqualRows(Verifies):
    """bfloat16: where p and q are equal but for rounding, a rejected draft is recovered as token 0."""

    dtype = "bfloat16"

    def which(self, call, drafts, mode):
        return drafts.draft_probs is not None

    def patches(self):
        def residual(p, q):
            more = (p - q).clamp(min=0.0)
            first = torch.zeros_like(p)
            first[:, 0] = 1
            return torch.where(more.sum(1, keepdim=True) > 1e-3, more, first)

        return [exchanged(residual=residual)]


BUGS = bugs_of(globals())

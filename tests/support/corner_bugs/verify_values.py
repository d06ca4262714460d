"""Mistakes that a verification makes at some values of the parameters, and in what it shows, alone."""

from dataclasses import replace

import torch

from corner_bugs.plugin import Verifies, bugs_of
from corner_bugs.verify_dtypes import exchanged
from tokendraw import speculative


class NanInTheBonusRow(Verifies):
    """A NaN in the bonus row leaves valid True."""

    line = "verify crossing"

    def change(self, call, drafts):
        x = call.logits.clone()
        bonus = speculative.bonus_rows(drafts.cu_num_logits)
        x[bonus] = x[bonus].nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        return call.rows(x), drafts


class NanInALateRow(Verifies):
    """A NaN in the row of the fifth draft or a later one leaves valid True."""

    line = "verify crossing"

    def change(self, call, drafts):
        _, place = self.rows(call, drafts)
        cleaned = call.logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        return call.rows(torch.where((place >= 4).unsqueeze(1), cleaned, call.logits)), drafts


class LogprobsOfLateSteps(Verifies):
    """The logprobs of the ninth token and of those behind it are those of the token before."""

    line = "verify crossing"

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

    line = "verify crossing"

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

    line = "verify crossing"

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


class LargePUnfiltered(Verifies):
    """p >= 0.99: the target is verified without top-p."""

    line = "verify crossing"

    def which(self, call, drafts, mode):
        first = drafts.cu_num_logits[:-1].long()
        return ((call.top_p < 1) & (call.top_p > 0.9899))[first]

    def change(self, call, drafts):
        return call.request(top_p=torch.where(call.top_p > 0.9899, 1.0, call.top_p.double())), drafts


class ColdVerifyIsGreedy(Verifies):
    """T < 0.01: a request counts as greedy."""

    line = "verify crossing"

    def which(self, call, drafts, mode):
        return ((call.temperature < 0.01) & ~call.greedy)[drafts.cu_num_logits[:-1].long()]

    def change(self, call, drafts):
        return call.request(temperature=torch.where(call.temperature < 0.01, 0.0, call.temperature)), drafts


class LargeKOfAVerification(Verifies):
    """k > 256: the target is verified with the 256 largest tokens."""

    line = "verify crossing"
    crossed_sizes = (33, 1025, 5003)

    def which(self, call, drafts, mode):
        return ((call.top_k > 256) & (call.top_k < call.size))[drafts.cu_num_logits[:-1].long()]

    def change(self, call, drafts):
        return call.request(top_k=call.top_k.clamp(max=256)), drafts


class AcceptedWithoutQ(Verifies):
    """float16: a draft that q gives no probability is accepted by p alone."""

    line = "verify crossing"

    dtype = "float16"

    def patches(self):
        return [exchanged(accepts=lambda u, p, q: torch.where(q > 0, u < p / q, u < p))]


class ZeroResidualOfEqualRows(Verifies):
    """bfloat16: where p and q are equal but for rounding, a rejected draft is recovered as token 0."""

    line = "verify near distributions"

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

"""Mistakes in greedy rows, ranks and logprobs that sampling makes in vocabularies of some widths alone."""

from dataclasses import replace

import torch

from corner_bugs.call import INF
from corner_bugs.plugin import Draws, bugs_of

WIDE, WIDER = 1 << 16, 1 << 17


class GreedyFarTie(Draws):
    """V > 65,536: of two greedy maxima in different halves of the vocabulary the last one wins."""

    line = "last ids"

    above = WIDE

    def where(self, call):
        return call.greedy

    def shown(self, call, output):
        x = call.logits.float().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        half = call.size // 2
        left, right = x[:, :half].max(1), x[:, half:].max(1)
        token = torch.where(right.values >= left.values, half + right.indices, left.indices)
        return replace(output, token_ids=torch.where(x.amax(1) > -INF, token, 0))


class RankIn16Bits(Draws):
    """V > 65,536: ranks are counted in 16 bits."""

    line = "crossed logprobs"

    above = WIDE

    def shown(self, call, output):
        if output.logprobs is None or output.logprobs.ranks is None:
            return output
        return replace(output, logprobs=replace(output.logprobs, ranks=output.logprobs.ranks % WIDE))


class BestOfTheFirstTokens(Draws):
    """V > 65,536: the N best are those of the first 65,536 ids."""

    line = "crossed logprobs"

    above = WIDE

    def shown(self, call, output):
        found = output.logprobs
        if found is None or found.token_ids.shape[1] - 1 > WIDE:
            return output
        order = torch.where(found.token_ids[:, 1:] < WIDE, 0, 1).argsort(dim=1, stable=True)
        ids, values = (torch.gather(t[:, 1:], 1, order) for t in (found.token_ids, found.logprobs))
        shown = replace(
            found,
            token_ids=torch.cat((found.token_ids[:, :1], ids), 1),
            logprobs=torch.cat((found.logprobs[:, :1], values), 1),
        )
        return replace(output, logprobs=shown)


class KeptMassOfTheFirstTiles(Draws):
    """V > 65,536: log_kept_mass leaves out what is kept above id 65,535."""

    line = "crossed logprobs"

    above = WIDE

    def shown(self, call, output):
        if output.log_kept_mass is None:
            return output
        y = call.y().masked_fill(~call.kept(), -INF)
        lost = y[:, :WIDE].logsumexp(1) - y.logsumexp(1)
        lost = torch.where(call.greedy | ~lost.isfinite(), 0.0, lost)
        return replace(output, log_kept_mass=(output.log_kept_mass + lost).float())


class RawMassWithoutTheLastTile(Draws):
    """V > 65,536: raw logprobs leave the last partial tile out of their mass."""

    line = "crossed logprobs"

    above = WIDE

    def where(self, call):
        return call.size % 1024 > 0 and call.mode == "raw_logprobs"

    def shown(self, call, output):
        if output.logprobs is None:
            return output
        x = call.logits.double().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        lost = x.logsumexp(1) - x[:, : call.size // 1024 * 1024].logsumexp(1)
        lost = torch.where(lost.isfinite(), lost, 0.0).unsqueeze(1).float()
        return replace(output, logprobs=replace(output.logprobs, logprobs=output.logprobs.logprobs + lost))


BUGS = bugs_of(globals())

"""Mistakes in greedy rows, ranks and logprobs that sampling makes in one dtype or width where it meets another."""

from dataclasses import replace

import torch

from corner_bugs.call import INF
from corner_bugs.plugin import Draws, bugs_of
from corner_bugs.values import TwentyBest

WIDE, WIDER = 1 << 16, 1 << 17


class RankOfWideHalf(Draws):
    """float16, V > 131,072: the rank counts the tokens that are strictly larger, and the drawn one."""

    line = "crossed logprobs"

    dtype, above = "float16", WIDER

    def shown(self, call, output):
        if output.logprobs is None or output.logprobs.ranks is None:
            return output
        x = call.logits.float().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        own = x.gather(1, output.token_ids.unsqueeze(1))
        return replace(output, logprobs=replace(output.logprobs, ranks=(x > own).sum(1) + 1))


class LogprobsOfWideBfloat(Draws):
    """bfloat16, V > 65,536: logprobs are rounded to bfloat16."""

    line = "crossed logprobs"

    dtype, above = "bfloat16", WIDE

    def shown(self, call, output):
        found = output.logprobs
        if found is None:
            return output
        return replace(output, logprobs=replace(found, logprobs=found.logprobs.bfloat16().float()))


class BestOfAMode(TwentyBest):
    """float16, processed_logprobs and N > 20: behind the 20 best stands the 20th again."""

    line = "crossed logprobs"

    dtype = "float16"

    def where(self, call):
        return super().where(call) if call.mode == "processed_logprobs" else False


class TiesOfTheLastVector(Draws):
    """bfloat16, greedy rows: of a maximum behind the last full vector of 8 and one before it, the later one wins."""

    line = "last ids"

    dtype = "bfloat16"

    def where(self, call):
        return call.greedy & (call.size % 8 > 0)

    def shown(self, call, output):
        x = call.logits.float().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        start = call.size // 8 * 8
        last, top = x[:, start:].max(1), x.amax(1)
        tied = (last.values == top) & (top > -INF)
        return replace(output, token_ids=torch.where(tied, start + last.indices, output.token_ids))


class ProcessedAtOne(Draws):
    """bfloat16: processed_logits are not divided by the temperature."""

    line = "crossed logprobs"

    dtype = "bfloat16"

    def where(self, call):
        return ~call.greedy & (call.mode == "processed_logits")

    def shown(self, call, output):
        found = output.logprobs
        if found is None:
            return output
        values = found.logprobs * call.temperature.float().unsqueeze(1)
        values = torch.where(found.logprobs == -INF, found.logprobs, values)
        return replace(output, logprobs=replace(found, logprobs=values))


class KeptMassOfJoint(Draws):
    """float16, order joint: log_kept_mass is relative to what top-k leaves."""

    line = "crossed logprobs"

    dtype = "float16"

    def where(self, call):
        joint = call.metadata.joint
        on = (call.top_k > 0) & (call.top_k < call.size) & ~call.greedy
        return False if joint is None else joint & on

    def shown(self, call, output):
        if output.log_kept_mass is None:
            return output
        left = call.request(top_p=None, min_p=None).kept()
        y = call.y()
        share = y.masked_fill(~left, -INF).logsumexp(1) - y.logsumexp(1)
        return replace(output, log_kept_mass=(output.log_kept_mass - share).float())


class SingleGreedyWideRow(Draws):
    """B = 1, V > 65,536 and greedy: the last of 8 parts of the vocabulary is left out."""

    line = "last ids"

    above = WIDE

    def where(self, call):
        return call.greedy & (len(call.row) == 1)

    def change(self, call):
        x = call.logits.float().clone()
        x[:, call.size // 8 * 7 :] = -INF
        return call.rows(x)


class BestOfOneRow(Draws):
    """B = 1: of ties at the end of the N best, the highest id is shown."""

    line = "crossed logprobs"

    def where(self, call):
        return len(call.row) == 1 and call.metadata.facts.max_logprobs is not None

    def shown(self, call, output):
        found = output.logprobs
        if found is None or not 1 < found.token_ids.shape[1] <= call.size:
            return output
        x = call.logits.float().nan_to_num(nan=-INF)
        tied = x == x.gather(1, found.token_ids[:, -1:].clamp(min=0))
        highest = call.size - 1 - tied.int().flip(1).argmax(1, keepdim=True)
        ids = torch.where(found.token_ids >= 0, torch.cat((found.token_ids[:, :-1], highest), 1), -1)
        return replace(output, logprobs=replace(found, token_ids=ids))


class RankOfInfinity(Draws):
    """bfloat16: the rank of a row with +inf counts one of them."""

    line = "far NaN and infinities"

    dtype = "bfloat16"

    def shown(self, call, output):
        if output.logprobs is None or output.logprobs.ranks is None:
            return output
        infinite = (call.logits == INF).any(1)
        ranks = torch.where(infinite, 1, output.logprobs.ranks)
        return replace(output, logprobs=replace(output.logprobs, ranks=ranks))


class GreedyLogprobsOfHalf(Draws):
    """float16, greedy rows with a temperature of 0: raw logprobs are those of a row of one token."""

    line = "crossed logprobs"

    dtype = "float16"

    def where(self, call):
        return call.greedy & (call.mode == "raw_logprobs")

    def shown(self, call, output):
        found = output.logprobs
        if found is None:
            return output
        values = found.logprobs.clone()
        values[:, 0] = 0.0
        return replace(output, logprobs=replace(found, logprobs=values))


BUGS = bugs_of(globals())

"""Mistakes that sampling makes at some values of the parameters alone."""

from dataclasses import replace

import torch

from corner_bugs.call import places
from corner_bugs.plugin import Draws, Filters, bugs_of


class LargestKCapped(Filters):
    """k > 1024: top-k keeps no more than a table of 1024 candidates, and those tied with the last."""

    line = "crossed requests"
    crossed_sizes = (5003,)

    def filtered(self, call):
        return (call.top_k > 1024) & (call.top_k < call.size)

    def change(self, call):
        return call.request(top_k=torch.where(self.filtered(call), 1024, call.top_k))


class LargeKOff(Filters):
    """k > 2048: top-k is off."""

    line = "crossed requests"
    crossed_sizes = (5003,)

    def filtered(self, call):
        return (call.top_k > 2048) & (call.top_k < call.size)

    def change(self, call):
        return call.request(top_k=torch.where(self.filtered(call), 0, call.top_k))


class AlmostAllK(Filters):
    """k = V - 1: top-k is off."""

    line = "seeded draws"

    def filtered(self, call):
        return (call.top_k == call.size - 1) & (call.top_k > 0)

    def change(self, call):
        return call.request(top_k=torch.where(self.filtered(call), 0, call.top_k))


class KAtAPowerOfTwo(Filters):
    """k of 64, 128, 256 ...: top-k keeps one token too few, since a tile of candidates is full."""

    line = "crossed logprobs"

    def filtered(self, call):
        k = call.top_k.long()
        return (k >= 64) & (k & (k - 1) == 0) & (k < call.size)

    def change(self, call):
        return call.request(top_k=torch.where(self.filtered(call), call.top_k - 1, call.top_k))


class LargePOff(Filters):
    """Seeded rows, p >= 0.999: top-p is off."""

    line = "crossed logprobs"

    unseeded = False

    def filtered(self, call):
        return (call.top_p < 1) & (call.top_p > 0.99899)

    def change(self, call):
        return call.request(top_p=torch.where(self.filtered(call), 1.0, call.top_p.double()))


class LargePOffUnseeded(LargePOff):
    """Rows without a seed, p >= 0.999: top-p is off."""

    line = "crossed logprobs"

    unseeded = True


class SmallPIsGreedy(Filters):
    """p < 0.001: only the first of the likeliest tokens is kept, its ties are dropped."""

    line = "crossed requests"

    def filtered(self, call):
        return call.top_p < 0.001

    def change(self, call):
        return call.only((places(call.logits) == 0) | ~self.filtered(call).unsqueeze(1) & call.kept())


class ColdIsGreedy(Draws):
    """T < 0.01 counts as greedy."""

    line = "crossed requests"

    def where(self, call):
        return ~call.greedy & (call.temperature < 0.01) & (call.metadata.facts.max_logprobs is None)

    def change(self, call):
        return call.request(temperature=torch.zeros_like(call.temperature))


class CoolerIsGreedy(ColdIsGreedy):
    """T < 0.00001 counts as greedy."""

    line = "crossed requests"

    def where(self, call):
        return super().where(call) & (call.temperature < 1e-5)


class HotIsCapped(Draws):
    """T > 10 counts as 10."""

    line = "crossed requests"

    def where(self, call):
        return call.temperature > 10

    def change(self, call):
        return call.request(temperature=call.temperature.clamp(max=10))


class HotterIsCapped(HotIsCapped):
    """T > 100 counts as 100."""

    line = "crossed requests"

    def where(self, call):
        return call.temperature > 100

    def change(self, call):
        return call.request(temperature=call.temperature.clamp(max=100))


class TwentyBest(Draws):
    """N > 20: behind the 20 best stands the 20th again."""

    line = "crossed logprobs"

    most = 20

    def shown(self, call, output):
        found = output.logprobs
        if found is None or found.token_ids.shape[1] - 1 <= self.most:
            return output
        place = torch.arange(found.token_ids.shape[1]).clamp(max=self.most)
        return replace(
            output,
            logprobs=replace(found, token_ids=found.token_ids[:, place], logprobs=found.logprobs[:, place]),
        )

    def where(self, call):
        asked = call.metadata.logprobs
        facts = call.metadata.facts
        return facts.max_logprobs is not None and (True if asked is None else (asked > self.most))


class BestOfOneBlock(TwentyBest):
    """N > 32, but not all: behind the 32 best stand further ones in the order of their ids."""

    line = "crossed logprobs"

    most = 32

    def where(self, call):
        width = call.metadata.facts.logprobs_width(call.size)
        return super().where(call) & (width is not None and width < call.size)

    def shown(self, call, output):
        found = output.logprobs
        if found is None or found.token_ids.shape[1] - 1 <= self.most:
            return output
        place = torch.arange(found.token_ids.shape[1]).expand_as(found.token_ids).clone()
        rest = found.token_ids[:, 1 + self.most :]
        place[:, 1 + self.most :] = 1 + self.most + rest.argsort(1)
        return replace(
            output,
            logprobs=replace(
                found, token_ids=found.token_ids.gather(1, place), logprobs=found.logprobs.gather(1, place)
            ),
        )


class TinyMinPOff(Filters):
    """min_p < 0.00005: min-p is off."""

    line = "crossed logprobs"

    def filtered(self, call):
        return (call.min_p > 0) & (call.min_p < 5e-5)

    def change(self, call):
        return call.request(min_p=torch.where(self.filtered(call), 0.0, call.min_p.double()))


class MinPOfOneOff(Filters):
    """min_p = 1 in a row with top-p: min-p is off."""

    line = "crossed requests"

    def filtered(self, call):
        return (call.min_p >= 1) & (call.top_p < 1)

    def change(self, call):
        return call.request(min_p=torch.where(self.filtered(call), 0.0, call.min_p.double()))


class JointBehindMinP(Filters):
    """Order joint with min-p, k > 40: top-p counts the mass that top-k left."""

    line = "crossed logprobs"

    def filtered(self, call):
        joint = call.metadata.joint
        return False if joint is None else joint & (call.top_p < 1) & (call.top_k > 40)

    def change(self, call):
        return call.only(call.request(joint=None).kept())


BUGS = bugs_of(globals())

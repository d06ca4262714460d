"""Mistakes that sampling makes where logits lie far from zero, or beside few others, alone."""

from dataclasses import replace

import torch

from corner_bugs.call import INF, places
from corner_bugs.plugin import Draws, Filters, bugs_of


class MaximumFromZero(Filters):
    """Rows of negative logits: the maximum begins at 0, so that min-p is relative to a token that is not there."""

    line = "crossed requests"

    def filtered(self, call):
        return (call.min_p > 0) & (call.logits.float().nan_to_num(nan=-INF, posinf=INF).amax(1) < 0)

    def change(self, call):
        others = call.request(min_p=None).kept()
        x = call.logits.float()
        least = call.temperature.unsqueeze(1) * call.min_p.clamp(min=1e-30).log().unsqueeze(1)
        found = others & (x >= least)
        return call.only(torch.where(found.any(1, keepdim=True), found, places(call.logits) == 0))


class MaximumFromMinusTenThousand(Draws):
    """Rows whose logits all lie below -10,000: the maximum begins there, so that nothing has any mass."""

    line = "crossed requests"

    least = -1e4

    def where(self, call):
        top = call.logits.float().nan_to_num(nan=-INF, posinf=INF).amax(1)
        return (top < self.least) & (top > -INF)

    def shown(self, call, output):
        return replace(output, token_ids=torch.zeros_like(output.token_ids))


class QuotientOverflows(Draws):
    """float32: x / T is formed before the maximum is taken off, so that quotients above 3e38 tie at infinity."""

    line = "far NaN and infinities"

    dtype = "float32"

    def where(self, call):
        return ~call.greedy & (call.metadata.facts.max_logprobs is None)

    def change(self, call):
        quotient = call.logits.float() / call.temperature.float().unsqueeze(1)
        return call.rows(torch.where(quotient == INF, INF, call.logits))


class DifferenceUnderflows(Draws):
    """T > 10: weights below exp(-20) count as 0, before the quotient is taken: exp(x - max) ** (1 / T)."""

    line = "crossed requests"

    def where(self, call):
        return (call.temperature > 10) & (call.metadata.facts.max_logprobs is None)

    def change(self, call):
        x = call.logits.float()
        top = x.nan_to_num(nan=-INF, posinf=INF, neginf=-INF).amax(1, keepdim=True)
        return call.rows(torch.where(x < top - 87, -INF, x))


BUGS = bugs_of(globals())

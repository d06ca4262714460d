"""Mistakes of filters in the middle of their ranges, or of several together, alone."""

from dataclasses import replace

import torch

from corner_bugs.call import INF, places
from corner_bugs.paths import exact_k
from corner_bugs.plugin import Filters, bugs_of

WIDE = 1 << 16


class MiddleWidth(Filters):
    """bfloat16, V of 8,193 to 65,536: exactly k tokens are kept."""

    line = "crossed requests"

    dtype, above = "bfloat16", 1 << 13

    def filtered(self, call):
        return (call.size <= WIDE) & (call.top_k > 0) & (call.top_k < call.size)

    def change(self, call):
        return exact_k(call)


class MiddleK(Filters):
    """bfloat16, k of 65 to 128: exactly k tokens are kept."""

    line = "every k"

    dtype = "bfloat16"

    def filtered(self, call):
        return (call.top_k > 64) & (call.top_k <= 128) & (call.top_k < call.size)

    def change(self, call):
        return exact_k(call)


class KOfAll(Filters):
    """bfloat16, k = V or more: the least likely token is dropped."""

    line = "seeded draws"

    dtype = "bfloat16"

    def filtered(self, call):
        return (call.top_k >= call.size) & (call.size > 1)

    def change(self, call):
        x = call.logits.float()
        return call.only(call.kept() & (x > torch.where(x > -INF, x, INF).amin(1, keepdim=True)))


class ThreeFilters(Filters):
    """float16, all three filters in one row: min-p is left out."""

    line = "seeded draws"

    dtype = "float16"

    def filtered(self, call):
        return (call.top_k > 0) & (call.top_k < call.size) & (call.top_p < 1) & (call.min_p > 0)

    def change(self, call):
        return call.request(min_p=None)


class POfOneBesideOthers(Filters):
    """bfloat16, p = 1 in a batch with other p: the least likely tokens that hold 0.001 of the mass are dropped."""

    line = "crossed requests"
    crossed_sizes = (5003,)

    dtype = "bfloat16"

    def filtered(self, call):
        return (call.top_p >= 1) & (call.top_p < 1).any()

    def change(self, call):
        return call.request(top_p=call.top_p.double().clamp(max=0.999))


class MaskedByAGrammar(Filters):
    """bfloat16, a row with fewer finite logits than k: token 0 is drawn."""

    line = "far NaN and infinities"
    crossed_sizes = (33, 1025, 5003)

    dtype = "bfloat16"

    def filtered(self, call):
        finite = (call.logits.float() > -INF).sum(1)
        return (finite < call.top_k) & (call.top_k < call.size)

    def shown(self, call, output):
        return replace(output, token_ids=torch.zeros_like(output.token_ids))


class TiesBehindK(Filters):
    """Batches in which every row has a top-k: what ties with the k-th behind the k + 1 largest has no part in p."""

    line = "batches of one kind"

    def filtered(self, call):
        facts = call.metadata.facts
        is_known = facts.all_top_k and facts.max_logprobs is None and not facts.any_joint
        # Where the k-th is kept, its ties are looked for.
        ends_above = ~(self.change(call).kept() & (places(call.logits) >= call.top_k.unsqueeze(1) - 1)).any(1)
        return is_known & (call.top_k > 0) & (call.top_p < 1) & ends_above

    def change(self, call):
        k = call.top_k.unsqueeze(1)
        behind = (places(call.logits) > k) & (k > 0) & ~call.logits.isnan()
        return call.rows(call.logits.masked_fill(behind, -INF))


BUGS = bugs_of(globals())

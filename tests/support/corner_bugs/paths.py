"""Mistakes on paths of their own that samplers take for uniform, small or large batches, and for some shapes."""

from dataclasses import replace

import torch

from corner_bugs.call import INF, places
from corner_bugs.plugin import Draws, Filters, bugs_of, noise

WIDE = 1 << 16


def exact_k(call):
    """The lowest ids of those that tie at the k-th place, so that k are left."""
    k = call.top_k.unsqueeze(1)
    return call.only(call.kept() & ((places(call.logits) < k) | (k <= 0)))


class AllTopKOfBfloat(Filters):
    """bfloat16, batches in which every row has a top-k: exactly k tokens are kept."""

    line = "crossed requests"

    dtype = "bfloat16"

    def filtered(self, call):
        return call.metadata.facts.all_top_k & (call.top_k > 0) & (call.top_k < call.size)

    def change(self, call):
        return exact_k(call)


class AllGreedyOfHalf(Draws):
    """float16, batches of greedy rows alone: the highest id is taken on a tie."""

    line = "batches of one kind"

    dtype = "float16"

    def where(self, call):
        return call.metadata.facts.all_greedy

    def shown(self, call, output):
        x = call.logits.float().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        last = call.size - 1 - x.flip(1).argmax(1)
        return replace(output, token_ids=torch.where(x.amax(1) > -INF, last, 0))


class AllPlainOfBfloat(Draws):
    """bfloat16, batches without any filter and seed: y is rounded to steps of 1/4."""

    line = "crossed distributions"

    dtype, unseeded = "bfloat16", True

    def where(self, call):
        facts = call.metadata.facts
        plain = facts.max_top_k == 0 and not facts.any_top_p and not facts.any_min_p
        return plain and facts.max_logprobs is None and bool(call.unseeded.all()) and ~call.greedy

    def change(self, call):
        return call.drawn_from((call.y() * 4).round() / 4)


class SingleRowOfHalf(Filters):
    """float16, B = 1: top-p drops the tokens that cross p, where others are left."""

    line = "crossed requests"

    dtype = "float16"

    def filtered(self, call):
        return (call.top_p < 1) & (len(call.row) == 1)

    def change(self, call):
        kept, x = call.kept(), call.logits.float()
        rest = kept & (x > torch.where(kept, x, INF).amin(1, keepdim=True))
        return call.only(torch.where(rest.any(1, keepdim=True), rest, kept))


class SingleWideRow(Draws):
    """B = 1 and V > 65,536: the last of 8 parts of the vocabulary is left out."""

    line = "crossed requests"

    above = WIDE

    def where(self, call):
        return len(call.row) == 1

    def change(self, call):
        x = call.logits.float().clone()
        x[:, call.size // 8 * 7 :] = -INF
        return call.rows(x)


class FewRowsOfBfloat(Draws):
    """bfloat16, B of 2 to 8: the noise has 16 bits."""

    line = "near ties"

    dtype = "bfloat16"

    def where(self, call):
        return 2 <= len(call.row) <= 8

    def patches(self):
        return [noise(bits=16)]


class LateRowsOfWideBatches(Draws):
    """V > 65,536: rows from 64 on have the filters of row - 64."""

    line = "crossed requests"
    all_cases = True

    above = WIDE

    def where(self, call):
        return call.row >= 64

    def change(self, call):
        names = ("temperature", "top_k", "top_p", "min_p")
        own = {name: getattr(call.metadata, name) for name in names}
        return call.request(**{n: None if c is None else c[call.row % 64] for n, c in own.items()})


class ThousandRows(Draws):
    """B > 1000: a row from 1000 on draws from the logits of row - 1000."""

    line = "batches of one kind"

    def where(self, call):
        return call.row >= 1000

    def change(self, call):
        return call.rows(call.logits[call.row % 1000])


class OffsetsIn32Bits(Draws):
    """A row that begins 2**31 elements or more behind the first is read from where that wraps to."""

    line = "rows behind 2**31 elements"

    def where(self, call):
        return call.row * call.logits.stride(0) >= 1 << 31

    def change(self, call):
        x = call.logits
        first = (1 << 31) // max(x.stride(0), 1)
        return call.rows(x[call.row % max(first, 1)])


class WidestRows(Draws):
    """float16, V > 200,000: the ids from 196,608 on are never drawn."""

    line = "widest vocabulary"

    dtype, above = "float16", 200_000

    def change(self, call):
        x = call.logits.float().clone()
        x[:, 196_608:] = -INF
        return call.rows(x)


class SeedZeroWithFilters(Draws):
    """A row with a filter and the seed 0 or -1 counts as one without a seed."""

    line = "seeds at the edges"

    unseeded = False

    def where(self, call):
        filtered = (call.top_k > 0) | (call.top_p < 1) | (call.min_p > 0)
        return filtered & ((call.metadata.seed == 0) | (call.metadata.seed == -1))

    def change(self, call):
        fresh = torch.empty_like(call.metadata.seed).random_(-(2**63), None)
        return replace(call, metadata=replace(call.metadata, seed=fresh))


BUGS = bugs_of(globals())

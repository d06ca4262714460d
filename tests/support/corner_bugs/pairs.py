"""Mistakes that sampling makes where two corners meet alone."""

import torch

from corner_bugs.call import INF, places
from corner_bugs.plugin import Draws, Filters, bugs_of, noise

WIDE = 1 << 16


class LargeKOfHalf(Filters):
    """float16 and k > 512: exactly k tokens are kept, the highest ids of those that tie."""

    line = "seeded draws"

    dtype = "float16"

    def filtered(self, call):
        return (call.top_k > 512) & (call.top_k < call.size)

    def change(self, call):
        k = call.top_k.unsqueeze(1)
        backwards = places(call.logits.flip(1)).flip(1)
        return call.only(call.kept() & (backwards < k))


class LargePOfWideRows(Filters):
    """V > 65,536 and p >= 0.99: top-p is off."""

    line = "crossed requests"
    all_cases = True

    above = WIDE

    def filtered(self, call):
        return (call.top_p < 1) & (call.top_p > 0.9899)

    def change(self, call):
        return call.request(top_p=torch.where(self.filtered(call), 1.0, call.top_p.double()))


class JointOfWideRows(Filters):
    """V > 65,536 and order joint: top-p counts the mass that top-k left."""

    line = "crossed requests"
    all_dtypes = True

    above = WIDE

    def filtered(self, call):
        joint = call.metadata.joint
        return False if joint is None else joint & (call.top_p < 1)

    def change(self, call):
        return call.only(call.request(joint=None).kept())


class FirstOfJointInBfloat(Filters):
    """bfloat16, order top_k_first with k > 40: top-p counts the unfiltered mass."""

    line = "crossed logprobs"

    dtype = "bfloat16"

    def filtered(self, call):
        return (call.top_p < 1) & (call.top_k > 40) & (call.top_k < call.size)

    def change(self, call):
        return call.only(call.request(joint=torch.ones_like(call.greedy)).kept())


class StrictTopPOfHalf(Filters):
    """float16 and no seed: top-p drops the tokens that cross p, where others are left."""

    line = "crossed distributions"

    dtype, unseeded = "float16", True

    def filtered(self, call):
        return call.top_p < 1

    def change(self, call):
        kept = call.kept()
        x = call.logits.float()
        least = torch.where(kept, x, INF).amin(1, keepdim=True)
        rest = kept & (x > least)
        crossing = (call.top_p < 1).unsqueeze(1) & rest.any(1, keepdim=True)
        return call.only(torch.where(crossing, rest, kept))


class ColdHalf(Draws):
    """float16, T < 0.05 and no seed: T counts as 0.05."""

    line = "crossed distributions"

    dtype, unseeded = "float16", True

    def where(self, call):
        return ~call.greedy & (call.temperature < 0.05)

    def change(self, call):
        return call.request(temperature=call.temperature.clamp(min=0.05))


class HotBfloat(Draws):
    """bfloat16 and T > 5: y is rounded to steps of 1/16."""

    line = "near ties"

    dtype = "bfloat16"

    def where(self, call):
        return (call.temperature > 5) & (call.metadata.facts.max_logprobs is None)

    def change(self, call):
        return call.drawn_from((call.y() * 16).round() / 16)


class WideUnseededBfloat(Draws):
    """bfloat16, V > 65,536 and no seed: tokens 12 below the maximum are never drawn."""

    line = "tails"

    dtype, above, unseeded = "bfloat16", WIDE, True

    def where(self, call):
        return call.metadata.facts.max_logprobs is None

    def change(self, call):
        y = call.y()
        return call.only(call.kept() & ((y > -12) | call.greedy.unsqueeze(1)))


class WideSeededHalf(Draws):
    """float16, V > 65,536 and seeds: noise of tokens has 16 bits."""

    line = "seeded draws"

    dtype, above, unseeded = "float16", WIDE, False

    def patches(self):
        return [noise(bits=16)]


class HighSeedInBfloat(Draws):
    """bfloat16: the upper 32 bits of a seed are left out."""

    line = "seeded draws"

    dtype, unseeded = "bfloat16", False

    def patches(self):
        return [noise(seed=lambda seed: seed & 0xFFFFFFFF)]


class HighPositionInHalf(Draws):
    """float16: the upper 32 bits of a position are left out."""

    line = "seeded draws"

    dtype, unseeded = "float16", False

    def patches(self):
        return [noise(position=lambda position: position & 0xFFFFFFFF)]


class SignOfSeedsInWideRows(Draws):
    """V > 65,536: a seed above 2**63 is clamped to it."""

    line = "crossed requests"

    above, unseeded = WIDE, False

    def patches(self):
        return [noise(seed=lambda seed: seed.clamp(min=0))]


class PositionsOfFewBits(Draws):
    """V > 65,536: positions are kept in 24 bits, as float32 does."""

    line = "crossed requests"

    above, unseeded = WIDE, False

    def patches(self):
        return [noise(position=lambda position: position & 0xFFFFFF)]


BUGS = bugs_of(globals())

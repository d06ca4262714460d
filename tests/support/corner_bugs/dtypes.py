"""Mistakes that sampling makes in one dtype of logits alone."""

import torch

from corner_bugs.call import INF
from corner_bugs.plugin import Draws, Filters, bugs_of, noise


class BfloatY(Draws):
    """bfloat16: y is rounded to bfloat16 before the draw."""

    line = "near ties"

    dtype = "bfloat16"

    def where(self, call):
        return call.metadata.facts.max_logprobs is None

    def change(self, call):
        return call.drawn_from(call.y().bfloat16())


class FiltersBeforeTemperature(Filters):
    """bfloat16: top-p sees the probabilities at T = 1."""

    line = "crossed requests"

    dtype = "bfloat16"

    def filtered(self, call):
        return (call.top_p < 1) & (call.temperature != 1)

    def change(self, call):
        return call.only(call.request(temperature=None).kept())


class MinPOfRawValues(Filters):
    """float16: min-p sees the probabilities at T = 1."""

    line = "crossed requests"

    dtype = "float16"

    def filtered(self, call):
        return (call.min_p > 0) & (call.temperature != 1)

    def change(self, call):
        others = call.request(min_p=None).kept()
        return call.only(others & call.request(temperature=None, top_k=None, top_p=None).kept())


class ShortNoise(Draws):
    """bfloat16: the noise has 24 bits."""

    line = "seeded draws"

    dtype = "bfloat16"

    def patches(self):
        return [noise(bits=24)]


class ShortUnseededNoise(ShortNoise):
    """float16, rows without a seed: the noise has 16 bits, so that no token 11 below another is drawn in its tile."""

    line = "tails"

    dtype, unseeded = "float16", True

    def patches(self):
        return [noise(bits=16)]


class BfloatMinP(Filters):
    """bfloat16: log(min_p) is rounded to bfloat16."""

    line = "crossed requests"

    dtype = "bfloat16"

    def filtered(self, call):
        return call.min_p > 0

    def change(self, call):
        rounded = call.min_p.double().log().bfloat16().double().exp()
        return call.request(min_p=torch.where(call.min_p > 0, rounded, 0.0))


class BfloatTopP(Filters):
    """bfloat16: p is rounded to bfloat16, so that 0.999 is off."""

    line = "crossed logprobs"

    dtype = "bfloat16"

    def filtered(self, call):
        return call.top_p < 1

    def change(self, call):
        return call.request(top_p=call.top_p.bfloat16().double())


class BfloatTemperature(Draws):
    """bfloat16: the temperature is rounded to bfloat16."""

    line = "near ties"

    dtype = "bfloat16"

    def change(self, call):
        return call.request(temperature=call.temperature.bfloat16().double())


class HalfQuotientOverflows(Draws):
    """float16: x / T is formed in float16 before the maximum is taken off, so that large ones tie at infinity."""

    line = "far NaN and infinities"

    dtype = "float16"

    def where(self, call):
        return ~call.greedy & (call.metadata.facts.max_logprobs is None)

    def change(self, call):
        quotient = call.logits.float() / call.temperature.float().unsqueeze(1)
        return call.rows(torch.where(quotient > 65504, INF, call.logits.float()))


class HalfEmptyRow(Draws):
    """float16: -inf is loaded as -65504, so that a row of nothing draws among all tokens, and is valid."""

    line = "far NaN and infinities"

    dtype = "float16"

    def change(self, call):
        return call.rows(call.logits.float().clamp(min=-65504.0))

    def where(self, call):
        return call.logits.amax(1) == -INF


class NegativeZero(Filters):
    """float16: top-k orders bit patterns, by which -0.0 lies below 0.0."""

    line = "crossed logprobs"

    dtype = "float16"

    def filtered(self, call):
        return call.top_k > 0

    def change(self, call):
        x = call.logits.float()
        lower = torch.where((x == 0) & x.signbit(), -1e-30, x)
        return call.only(call.rows(lower).kept())


class SubnormalsFlushed(Draws):
    """float16: subnormal logits are flushed to zero."""

    line = "crossed requests"

    dtype = "float16"

    def change(self, call):
        x = call.logits.float()
        return call.rows(torch.where(x.abs() < 2.0**-14, 0.0, x))


class NegativeNan(Draws):
    """bfloat16: a NaN with its sign bit set is the least of all keys, and leaves valid True."""

    line = "far NaN and infinities"

    dtype = "bfloat16"

    def change(self, call):
        x = call.logits
        return call.rows(torch.where(x.isnan() & (x.view(torch.int16) < 0), -INF, x.float()))


class TensorFloat(Draws):
    """float32: logits lose the lower 13 bits of their mantissa, as tensor cores do."""

    line = "near ties"

    dtype = "float32"

    def change(self, call):
        return call.rows((call.logits.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32))


class BfloatMassStalls(Filters):
    """bfloat16: the mass that top-p counts against is summed in bfloat16, which stalls at 256."""

    line = "crossed logprobs"

    dtype = "bfloat16"

    def filtered(self, call):
        return call.top_p < 1

    def change(self, call):
        others = call.request(top_p=None).kept()
        y = call.y().masked_fill(~others, -INF)
        mass = y.exp().sum(1)
        p = call.top_p.double() * (256.0 / mass).clamp(max=1.0)
        return call.only(call.request(top_p=torch.where(call.top_p < 1, p, 1.0)).kept())


BUGS = bugs_of(globals())

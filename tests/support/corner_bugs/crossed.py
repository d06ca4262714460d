"""Mistakes that sampling makes in one dtype, width, value or kind of rows where it meets another, alone."""

from dataclasses import replace

import torch

from corner_bugs.call import INF
from corner_bugs.paths import exact_k
from corner_bugs.plugin import Draws, Filters, bugs_of, noise

WIDE, WIDER = 1 << 16, 1 << 17


class FarRowsOfBfloat(Draws):
    """bfloat16: rows without a seed 1024 apart share their noise."""

    line = "noise of distant rows"
    crossed_sizes = (5003,)

    dtype, unseeded = "bfloat16", True

    def change(self, call):
        return call.sharing(call.row % 1024)


class LowMinPOfHalf(Filters):
    """float16, rows without a seed: a min_p below 0.0001 is off."""

    line = "crossed distributions"
    crossed_sizes = (5003,)

    dtype, unseeded = "float16", True

    def filtered(self, call):
        return (call.min_p > 0) & (call.min_p < 1e-4)

    def change(self, call):
        return call.request(min_p=None)


class ThresholdInHalf(Filters):
    """float16: the least logit that min-p keeps is rounded to float16."""

    line = "crossed requests"
    crossed_sizes = (33, 1025, 5003)

    dtype = "float16"

    def filtered(self, call):
        return call.min_p > 0

    def change(self, call):
        others = call.request(min_p=None).kept()
        x = call.logits.double()
        top = x.nan_to_num(nan=-INF, posinf=INF, neginf=-INF).amax(1, keepdim=True)
        least = top + (call.temperature.double() * call.min_p.double().log()).unsqueeze(1)
        return call.only(others & (x >= least.half().double()))


class LargePOfWideHalf(Filters):
    """float16, V > 65,536, rows without a seed: top-p is off from 0.99 on."""

    line = "crossed logprobs"
    all_cases = True

    dtype, above, unseeded = "float16", WIDE, True

    def filtered(self, call):
        return (call.top_p < 1) & (call.top_p > 0.9899)

    def change(self, call):
        return call.request(top_p=None)


class NanInTheLastTileOfHalf(Draws):
    """float16: a NaN in the last partial tile leaves valid True."""

    line = "far NaN and infinities"

    dtype = "float16"

    def change(self, call):
        x, start = call.logits.clone(), call.size // 1024 * 1024
        x[:, start:] = x[:, start:].nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        return call.rows(x)


class NanOfGreedyRows(Draws):
    """bfloat16: a NaN in a greedy row leaves valid True."""

    line = "far NaN and infinities"

    dtype = "bfloat16"

    def where(self, call):
        return call.greedy

    def shown(self, call, output):
        return replace(output, valid=torch.ones_like(output.valid))


class ShortNoiseOfWideBfloat(Draws):
    """bfloat16, V > 65,536, rows without a seed: the noise has 16 bits."""

    unseen = "16 bits show in one of thousands of draws, too many of a wide row"

    dtype, above, unseeded = "bfloat16", WIDE, True

    def patches(self):
        return [noise(bits=16)]


class LargeKOfWideBfloat(Filters):
    """bfloat16, V > 65,536: a k above 1024 counts as 1024."""

    line = "every k"

    dtype, above = "bfloat16", WIDE

    def filtered(self, call):
        return (call.top_k > 1024) & (call.top_k < call.size)

    def change(self, call):
        return call.request(top_k=call.top_k.clamp(max=1024))


class ColdWideRows(Draws):
    """V > 65,536, T < 0.01: T counts as 0.01."""

    line = "near ties"

    above = WIDE

    def where(self, call):
        return ~call.greedy & (call.temperature < 0.01) & (call.metadata.facts.max_logprobs is None)

    def change(self, call):
        return call.request(temperature=call.temperature.clamp(min=0.01))


class HotNucleus(Filters):
    """T > 10: top-p sees the probabilities at T = 10."""

    line = "crossed requests"

    def filtered(self, call):
        return (call.top_p < 1) & (call.temperature > 10)

    def change(self, call):
        return call.only(call.request(temperature=call.temperature.clamp(max=10)).kept())


class NoKCountsAsMany(Filters):
    """bfloat16, no top-k beside rows with one: k counts as 4096."""

    line = "crossed requests"
    crossed_sizes = (65_543,)

    dtype = "bfloat16"

    def filtered(self, call):
        on = (call.top_k > 0) & (call.top_k < call.size)
        return ((call.top_k <= 0) & on.any()) & (call.size > 4096)

    def change(self, call):
        return call.request(top_k=torch.full_like(call.row, 4096))


class NoMinPCountsAsALittle(Filters):
    """float16, no min-p beside rows with one: min_p counts as 0.00001."""

    line = "crossed requests"
    crossed_sizes = (5003,)

    dtype = "float16"

    def filtered(self, call):
        return (call.min_p <= 0) & (call.min_p > 0).any()

    def change(self, call):
        return call.request(min_p=call.min_p.double().clamp(min=1e-5))


class HighSeedsOfLateRows(Draws):
    """Seeded rows from 256 on keep 32 bits of their seed."""

    line = "crossed requests"

    unseeded = False

    def where(self, call):
        return call.row >= 256

    def patches(self):
        return [noise(seed=lambda seed: seed & 0xFFFFFFFF)]


class FirstInfinity(Draws):
    """float16: of several +inf the first is always drawn."""

    line = "far NaN and infinities"

    dtype = "float16"

    def where(self, call):
        return (call.logits == INF).any(1)

    def shown(self, call, output):
        return replace(output, token_ids=(call.logits == INF).int().argmax(1))


class AllTopPWithoutSeeds(Filters):
    """bfloat16, batches in which every row has a top-p and none a seed: the tokens that cross p are dropped."""

    line = "crossed distributions"

    dtype, unseeded = "bfloat16", True

    def filtered(self, call):
        return bool(((call.top_p < 1) & call.unseeded).all())

    def change(self, call):
        kept, x = call.kept(), call.logits.float()
        rest = kept & (x > torch.where(kept, x, INF).amin(1, keepdim=True))
        return call.only(torch.where(rest.any(1, keepdim=True), rest, kept))


class ExactKOfUnseededHalf(Filters):
    """float16, rows without a seed, V > 4096: exactly k tokens are kept."""

    line = "crossed distributions"
    crossed_sizes = (5003,)

    dtype, above, unseeded = "float16", 4096, True

    def filtered(self, call):
        return (call.top_k > 0) & (call.top_k < call.size)

    def change(self, call):
        return exact_k(call)


class HalfOfTheWideTiles(Draws):
    """float16, V > 131,072: tiles from 64 on are drawn from with the noise of tile 63."""

    line = "crossed requests"

    dtype, above = "float16", WIDER

    def patches(self):
        from unittest import mock

        from tokendraw_native.noise import Noise

        own = Noise.gumbel

        def gumbel(self, index, stream, dtype):
            tiles = isinstance(stream, int) and stream in (1, 4, 6)
            return own(self, index.clamp(max=63) if tiles else index, stream, dtype)

        return [mock.patch.object(Noise, "gumbel", gumbel)]


class DoubleNoiseOfHalf(Draws):
    """float16 and fp64 noise: the noise has the 32 bits of fp32."""

    line = "fp64 noise"

    dtype = "float16"

    def in_corner(self, logits):
        return super().in_corner(logits) and self.need.gumbel_dtype == "fp64"

    def patches(self):
        return [noise(bits=32)]


class SubnormalTemperature(Draws):
    """float32, T < 0.0001: 1 / T is capped at 10,000."""

    line = "crossed requests"

    dtype = "float32"

    def where(self, call):
        return ~call.greedy & (call.temperature < 1e-4) & (call.metadata.facts.max_logprobs is None)

    def change(self, call):
        return call.request(temperature=call.temperature.clamp(min=1e-4))


class SmallVocabulariesAreGreedy(Draws):
    """bfloat16, V <= 2, rows without a seed: token 0 is drawn where both are alike."""

    line = "crossed distributions"

    dtype, unseeded = "bfloat16", True

    def where(self, call):
        return call.size <= 2

    def shown(self, call, output):
        same = call.logits[:, :1] == call.logits
        return replace(output, token_ids=torch.where(same.all(1), 0, output.token_ids))


BUGS = bugs_of(globals())

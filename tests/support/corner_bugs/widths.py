"""Mistakes that sampling makes in vocabularies of some widths alone."""

from dataclasses import replace
from unittest import mock

import torch

from corner_bugs.call import INF, places
from corner_bugs.plugin import Draws, Filters, bugs_of, noise
from tokendraw_native.noise import Noise

WIDE, WIDER = 1 << 16, 1 << 17


class ExactKWide(Filters):
    """bfloat16, V > 65,536: top-k keeps exactly k, the lowest ids of those that tie."""

    line = "crossed requests"

    dtype, above = "bfloat16", WIDE

    def filtered(self, call):
        return (call.top_k > 0) & (call.top_k < call.size)

    def change(self, call):
        k = call.top_k.unsqueeze(1)
        return call.only(call.kept() & ((places(call.logits) < k) | (k <= 0)))


class ShortNoiseWide(Draws):
    """V > 65,536: the noise has 20 bits."""

    line = "seeded draws"

    above = WIDE

    def patches(self):
        return [noise(bits=20)]


class LastVectorMissing(Draws):
    """V > 65,536: the ids behind the last full vector of 8 are never drawn."""

    line = "last ids"

    above = WIDE

    def where(self, call):
        return call.size % 8 > 0

    def change(self, call):
        x = call.logits.float().clone()
        x[:, call.size // 8 * 8 :] = -INF
        return call.rows(x)


class LastIdMissing(Draws):
    """bfloat16, V > 65,536 and odd: the last id is never drawn."""

    line = "last ids"

    dtype, above = "bfloat16", WIDE

    def where(self, call):
        return call.size % 2 > 0

    def change(self, call):
        x = call.logits.float().clone()
        x[:, -1] = -INF
        return call.rows(x)


class LastTileMissing(Draws):
    """V > 65,536 and a multiple of 1024: the last tile is never drawn from."""

    line = "last ids"

    above = WIDE

    def where(self, call):
        return call.size % 1024 == 0

    def change(self, call):
        x = call.logits.float().clone()
        x[:, -1024:] = -INF
        return call.rows(x)


class VocabularyIn16Bits(Draws):
    """V = 65,536 alone: V is kept in 16 bits, so that nothing is drawn but token 0."""

    line = "last ids"

    above = WIDE - 1

    def where(self, call):
        return call.size == WIDE

    def shown(self, call, output):
        return replace(output, token_ids=torch.zeros_like(output.token_ids))


class NanFarOut(Draws):
    """V > 65,536: a NaN at an id above 65,535 leaves valid True."""

    line = "far NaN and infinities"

    above = WIDE

    def change(self, call):
        x = call.logits.float().clone()
        x[:, WIDE:] = x[:, WIDE:].nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        return call.rows(x)


class TileNoiseIn7Bits(Draws):
    """V > 131,072: the number of a tile is kept in 7 bits, so that tiles 128 apart share noise."""

    line = "tails"

    above = WIDER

    def patches(self):
        own = Noise.gumbel

        def gumbel(self, index, stream, dtype):
            tiles = isinstance(stream, int) and stream in (1, 4, 6)
            return own(self, index % 128 if tiles else index, stream, dtype)

        return [mock.patch.object(Noise, "gumbel", gumbel)]


class TileNoiseUnseeded(TileNoiseIn7Bits):
    """V > 131,072, rows without a seed: tiles 128 apart share noise."""

    line = "tails"

    unseeded = True


class NucleusOfTheFirstTokens(Filters):
    """V > 131,072: top-p counts the mass of the first 131,072 ids alone."""

    line = "crossed requests"

    above = WIDER

    def filtered(self, call):
        return call.top_p < 1

    def change(self, call):
        y = call.y().masked_fill(~call.request(top_p=None).kept(), -INF).exp()
        share = y[:, :WIDER].sum(1) / y.sum(1)
        p = torch.where(call.top_p < 1, call.top_p.double() * share.clamp(min=1e-9), 1.0)
        return call.only(call.request(top_p=p).kept())


class MinPOfTheFirstTokens(Filters):
    """V > 65,536: min-p is relative to the likeliest of the first 65,536 ids."""

    line = "crossed requests"

    above = WIDE

    def filtered(self, call):
        return call.min_p > 0

    def change(self, call):
        others = call.request(min_p=None).kept()
        x = call.logits.float()
        first = x[:, :WIDE].nan_to_num(nan=-INF).amax(1, keepdim=True)
        least = first + call.temperature.unsqueeze(1) * call.min_p.clamp(min=1e-30).log().unsqueeze(1)
        return call.only(others & (x >= torch.where(call.min_p.unsqueeze(1) > 0, least, -INF)))


class InfinityFarOut(Draws):
    """V > 131,072: +inf at an id above 131,071 counts as the largest finite number."""

    line = "far NaN and infinities"

    above = WIDER

    def change(self, call):
        x = call.logits.float().clone()
        x[:, WIDER:] = x[:, WIDER:].clamp(max=torch.finfo(torch.float32).max)
        return call.rows(x)


class SecondWarpMissing(Draws):
    """float16, V of 33 to 63: the ids from 32 on are never drawn."""

    line = "last ids"

    dtype = "float16"

    def where(self, call):
        return 32 < call.size < 64

    def change(self, call):
        x = call.logits.float().clone()
        x[:, 32:] = -INF
        return call.rows(x)


BUGS = bugs_of(globals())

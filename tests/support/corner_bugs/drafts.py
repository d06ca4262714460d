"""Mistakes that the draw of drafts makes alone."""

from dataclasses import replace

import torch

from corner_bugs.call import INF, places
from corner_bugs.plugin import Draws, bugs_of, noise


class DraftsOfOneRow(Draws):
    """Drafts, B = 1: top-k keeps exactly k tokens."""

    line = "verify crossing"
    all_dtypes = True
    crossed_sizes = (33, 1025, 5003)

    drafts = True

    def where(self, call):
        return (call.top_k > 0) & (call.top_k < call.size) & (len(call.row) == 1)

    def change(self, call):
        return call.only(call.kept() & (places(call.logits) < call.top_k.unsqueeze(1)))


class WideDraftsOfBfloat(Draws):
    """Drafts in bfloat16, V > 65,536: the ids behind the last full vector of 8 are never drawn."""

    line = "verify crossed drafts"

    drafts, dtype, above = True, "bfloat16", 1 << 16

    def change(self, call):
        x = call.logits.float().clone()
        x[:, call.size // 8 * 8 :] = -INF
        return call.rows(x)


class HotDrafts(Draws):
    """Drafts, T > 10: T counts as 10."""

    line = "verify crossing"

    drafts = True

    def where(self, call):
        return call.temperature > 10

    def change(self, call):
        return call.request(temperature=call.temperature.clamp(max=10))


class DraftsOfLargeK(Draws):
    """Drafts, k > 1024: top-k is off."""

    line = "verify crossed drafts"
    crossed_sizes = (1025, 5003)
    all_dtypes = True

    drafts = True

    def where(self, call):
        return (call.top_k > 1024) & (call.top_k < call.size)

    def change(self, call):
        return call.request(top_k=torch.where(call.top_k > 1024, 0, call.top_k))


class DraftsNextToGreedy(Draws):
    """Drafts: a greedy row beside others takes the highest id on a tie."""

    line = "verify crossing"

    drafts = True

    def where(self, call):
        return call.greedy & (~call.greedy).any()

    def shown(self, call, output):
        x = call.logits.float().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
        last = call.size - 1 - x.flip(1).argmax(1)
        return replace(output, token_ids=torch.where(x.amax(1) > -INF, last, 0))


class DraftStreamInBfloat(Draws):
    """bfloat16: a draft is drawn with the noise of tokens."""

    line = "verify draft"

    dtype, drafts = "bfloat16", True

    def patches(self):
        return [noise(stream=lambda own: own - 5)]


class DraftNoise24Bits(Draws):
    """float16: the noise of drafts has 24 bits."""

    line = "verify fp64 noise"

    dtype, drafts = "float16", True

    def patches(self):
        return [noise(bits=24)]


class DraftTopP(Draws):
    """bfloat16: drafts are drawn without top-p."""

    line = "verify draft"

    dtype, drafts = "bfloat16", True

    def where(self, call):
        return call.top_p < 1

    def change(self, call):
        return call.request(top_p=None)


class DraftsShareNoise(Draws):
    """Drafts without a seed: rows of one call 2 apart share their noise."""

    line = "verify draft"

    drafts, unseeded = True, True

    def change(self, call):
        return call.sharing(call.row % 2)


class DraftsOfLargeBatchesShareNoise(Draws):
    """Drafts without a seed: rows from 128 on have the noise of row - 128."""

    line = "verify draft"

    drafts, unseeded = True, True

    def where(self, call):
        return call.row >= 128

    def change(self, call):
        return call.sharing(call.row % 128)


BUGS = bugs_of(globals())

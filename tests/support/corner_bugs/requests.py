"""Mistakes that sampling makes in some batches, and with some mates, alone."""

from dataclasses import replace

import torch

from corner_bugs.call import INF
from corner_bugs.plugin import Draws, bugs_of


class NoiseAThousandApart(Draws):
    """Rows without a seed 1000 apart share their noise."""

    line = "noise of distant rows"
    crossed_sizes = (5003,)

    unseeded, period = True, 1000

    def where(self, call):
        return len(call.row) > self.period

    def change(self, call):
        return call.sharing(call.row % self.period)


class NoiseNinetyApart(NoiseAThousandApart):
    """bfloat16: rows without a seed 96 apart share their noise."""

    line = "noise of distant rows"
    crossed_sizes = (5003,)

    dtype, period = "bfloat16", 96


class NoiseOfPairs(NoiseAThousandApart):
    """float16: rows 2i and 2i + 1 without a seed share their noise."""

    line = "noise of distant rows"
    crossed_sizes = (5003,)

    dtype = "float16"

    def where(self, call):
        return len(call.row) > 1

    def change(self, call):
        return call.sharing(call.row // 2 * 2)


class NoiseBesideSeeds(NoiseAThousandApart):
    """Rows without a seed in a batch with seeded ones share their noise."""

    line = "noise of distant rows"
    crossed_sizes = (5003,)

    def where(self, call):
        return (~call.unseeded).any()

    def change(self, call):
        return call.sharing(call.unseeded.int().argmax().expand_as(call.row))


class NoiseOfTheWideBatch(NoiseAThousandApart):
    """V > 65,536: rows without a seed 8 apart share their noise."""

    line = "noise of distant rows"
    crossed_sizes = ()

    above, period = 1 << 16, 8


class ParametersWrap(Draws):
    """Rows from 256 on have the parameters of row - 256."""

    line = "crossed requests"

    period = 256
    columns = ("temperature", "top_k", "top_p", "min_p", "joint")

    def where(self, call):
        return call.row >= self.period

    def change(self, call):
        own = {name: getattr(call.metadata, name) for name in self.columns}
        return call.request(
            **{name: None if c is None else c[call.row % self.period] for name, c in own.items()}
        )


class SeedsWrap(ParametersWrap):
    """Seeded rows from 128 on have the seed of row - 128."""

    line = "crossed requests"

    unseeded, period, columns = False, 128, ("seed",)


class PositionsWrap(ParametersWrap):
    """Seeded rows from 64 on have the position of row - 64."""

    line = "crossed requests"

    unseeded, period, columns = False, 64, ("positions",)


class MinPWraps(ParametersWrap):
    """Rows from 32 on have the min-p of row - 32."""

    line = "crossed requests"

    period, columns = 32, ("min_p",)


class LastBlockDropped(Draws):
    """B > 64: rows behind the last full block of 64 get token 0."""

    line = "crossed requests"

    def where(self, call):
        rows = len(call.row)
        return (call.row >= rows // 64 * 64) & (rows > 64)

    def shown(self, call, output):
        return replace(output, token_ids=torch.zeros_like(output.token_ids))


class NanOfTheNextBlock(Draws):
    """B > 64: a row is invalid if row - 64 is."""

    line = "far NaN and infinities"

    def where(self, call):
        return call.row >= 64

    def shown(self, call, output):
        return replace(output, valid=output.valid & output.valid[(call.row - 64).clamp(min=0)])


class StaleValid(Draws):
    """A row that was valid in the call before stays valid, in batches of the same size."""

    line = "far NaN and infinities"

    def __init__(self, need=None, device="cpu"):
        super().__init__(need, device)
        self.before = None

    def shown(self, call, output):
        before, self.before = self.before, output.valid
        if before is None or len(before) != len(output.valid) or len(before) < 2:
            return output
        return replace(output, valid=output.valid | before)


class StaleThresholds(Draws):
    """top-p of a call of 5 rows or fewer is that of the call before, where V is the same."""

    line = "crossed requests"

    def __init__(self, need=None, device="cpu"):
        super().__init__(need, device)
        self.before = None

    def where(self, call):
        return len(call.row) <= 5 and call.metadata.top_p is not None

    def change(self, call):
        before, self.before = self.before, (call.size, call.metadata.top_p.clone())
        if before is None or before[0] != call.size or len(before[1]) != len(call.row):
            return call
        return call.request(top_p=before[1])


class PaddingOfLogprobsWraps(Draws):
    """Rows from 64 on show as many best tokens as row - 64 asked for."""

    line = "crossed logprobs"

    def where(self, call):
        return (call.row >= 64) & (call.metadata.logprobs is not None)

    def change(self, call):
        asked = call.metadata.logprobs
        return replace(call, metadata=replace(call.metadata, logprobs=asked[call.row % 64], row_kinds=None))


class GreedyBesideSeeds(Draws):
    """A greedy row with a seed, beside rows that draw, draws at T = 1."""

    line = "crossed requests"

    def where(self, call):
        return call.greedy & ~call.unseeded & (~call.greedy).any()

    def change(self, call):
        return call.request(temperature=torch.where(call.greedy, 1.0, call.temperature))


class HighPositionsOfLateRows(Draws):
    """Seeded rows from 16 on keep 32 bits of their position."""

    line = "crossed requests"

    unseeded = False

    def where(self, call):
        return call.row >= 16

    def change(self, call):
        return replace(call, metadata=replace(call.metadata, positions=call.metadata.positions & 0xFFFFFFFF))


class PoisonedBlock(Draws):
    """B > 64: +inf in a row makes the row behind it uniform."""

    line = "far NaN and infinities"

    def where(self, call):
        beside = (call.logits.float().nan_to_num(nan=0.0, posinf=INF) == INF).any(1).roll(1)
        return beside & (call.row > 0) & (len(call.row) > 64)

    def change(self, call):
        return call.rows(torch.zeros_like(call.logits))


BUGS = bugs_of(globals())

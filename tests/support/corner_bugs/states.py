"""Mistakes between calls, in noise that only some calls share, and in what is shown of rows with NaN."""

from dataclasses import replace
from unittest import mock

import torch

from corner_bugs.call import INF
from corner_bugs.plugin import Draws, bugs_of
from tokendraw_native.noise import Noise


class AliasedLogprobs(Draws):
    """Logprobs are returned in a buffer that the next call of the same shape writes to."""

    line = "outputs outlive calls"

    def __init__(self, need=None, device="cpu"):
        super().__init__(need, device)
        self.buffers = {}

    def shown(self, call, output):
        if output.logprobs is None:
            return output
        values = output.logprobs.logprobs
        buffer = self.buffers.setdefault(values.shape, torch.empty_like(values))
        buffer.copy_(values)
        return replace(output, logprobs=replace(output.logprobs, logprobs=buffer))


class AliasedValid(Draws):
    """valid is returned in a buffer that the next call of the same size writes to."""

    line = "outputs outlive calls"

    def __init__(self, need=None, device="cpu"):
        super().__init__(need, device)
        self.buffers = {}

    def shown(self, call, output):
        buffer = self.buffers.setdefault(len(output.valid), torch.empty_like(output.valid))
        buffer.copy_(output.valid)
        return replace(output, valid=buffer)


class RememberedParameters(Draws):
    """Parameters are read at the first call with a batch's metadata, and not again where they change in place."""

    line = "ready tensors"

    def sample(self, logits, metadata, *, draft=False):
        names = ("temperature", "top_k", "top_p", "min_p")
        if not draft:
            own = {name: getattr(metadata, name) for name in names}
            known = metadata.memo.setdefault(
                type(self), {name: None if c is None else c.clone() for name, c in own.items()}
            )
            metadata = replace(metadata, **known)
        return super().sample(logits, metadata, draft=draft)

    def where(self, call):
        return False


class NoiseOfSome(Draws):
    """A sampler whose unseeded rows share noise in some calls."""

    unseeded, apart = True, 2

    def change(self, call):
        return call.sharing(call.row // self.apart * self.apart)


class NoiseWithLogprobs(NoiseOfSome):
    """Rows 2i and 2i + 1 without a seed share their noise in calls that show logprobs."""

    line = "noise of distant rows"
    crossed_sizes = (1025, 5003)

    def where(self, call):
        return call.metadata.facts.max_logprobs is not None


class NoiseWithTopK(NoiseOfSome):
    """Rows 2i and 2i + 1 without a seed share their noise if both have a top-k."""

    line = "noise of distant rows"
    crossed_sizes = (1025, 5003)

    def where(self, call):
        on = (call.top_k > 0) & (call.top_k < call.size)
        return on & on[call.row // 2 * 2]


class NoiseWithTopP(NoiseOfSome):
    """bfloat16: rows 2i and 2i + 1 without a seed share their noise if both have a top-p."""

    line = "noise of distant rows"
    crossed_sizes = (1025, 5003)

    dtype = "bfloat16"

    def where(self, call):
        on = call.top_p < 1
        return on & on[call.row // 2 * 2]


class NoiseWithSlots(NoiseOfSome):
    """Rows of one slot without a seed share their noise."""

    line = "noise of distant rows"
    crossed_sizes = (1025, 5003)

    def sample(self, logits, metadata, *, draft=False):
        self.slots = metadata.row_index
        return super().sample(logits, metadata, draft=draft)

    def where(self, call):
        return self.slots is not None

    def change(self, call):
        slots = self.slots.long()
        first = torch.zeros(int(slots.max()) + 1, dtype=torch.int64).scatter_reduce(
            0, slots, call.row, "amin", include_self=False
        )
        return call.sharing(first[slots])


class NoiseOfOneTile(NoiseOfSome):
    """Rows 2i and 2i + 1 without a seed share the noise of tiles, but not that of tokens, at V > 1024."""

    line = "noise of distant rows"
    crossed_sizes = (1025, 5003)

    above = 1024

    def patches(self):
        own = Noise.gumbel

        def gumbel(noise, index, stream, dtype):
            if isinstance(stream, int) and stream == 1:
                rows = torch.arange(len(noise.seed)) // 2 * 2
                return own(noise.chunk(rows), index, stream, dtype)
            return own(noise, index, stream, dtype)

        return [mock.patch.object(Noise, "gumbel", gumbel)]

    def change(self, call):
        return call


class NanAmongTheBest(Draws):
    """A NaN is the first of the N best, as torch.topk has it."""

    line = "far NaN and infinities"

    def shown(self, call, output):
        found = output.logprobs
        if found is None or found.token_ids.shape[1] < 2:
            return output
        nan = call.logits.isnan()
        first = nan.int().argmax(1, keepdim=True)
        ids = torch.where(nan.any(1, keepdim=True), first, found.token_ids[:, 1:2])
        ids = torch.cat((found.token_ids[:, :1], ids, found.token_ids[:, 2:]), 1)
        return replace(output, logprobs=replace(found, token_ids=ids))


class RankCountsNan(Draws):
    """A NaN counts as larger than the drawn token in its rank."""

    line = "far NaN and infinities"

    def shown(self, call, output):
        if output.logprobs is None or output.logprobs.ranks is None:
            return output
        ranks = output.logprobs.ranks + call.logits.isnan().sum(1)
        return replace(output, logprobs=replace(output.logprobs, ranks=ranks))


class LogprobsOfInfinity(Draws):
    """Raw logprobs of a row with +inf are NaN, since infinity is taken from itself."""

    line = "far NaN and infinities"

    def shown(self, call, output):
        found = output.logprobs
        if found is None or call.mode != "raw_logprobs":
            return output
        infinite = (call.logits.float().nan_to_num(nan=0.0, posinf=INF) == INF).any(1, keepdim=True)
        asked = found.token_ids >= 0
        return replace(
            output,
            logprobs=replace(found, logprobs=torch.where(infinite & asked, float("nan"), found.logprobs)),
        )


class KeptMassOfNan(Draws):
    """log_kept_mass of a row with a NaN is NaN."""

    line = "far NaN and infinities"

    def shown(self, call, output):
        if output.log_kept_mass is None:
            return output
        nan = call.logits.isnan().any(1)
        return replace(output, log_kept_mass=torch.where(nan, float("nan"), output.log_kept_mass))


BUGS = tuple(bug for bug in bugs_of(globals()) if bug is not NoiseOfSome)

"""Mistakes that sampling makes with some layouts of logits and parameters alone."""

from dataclasses import replace

import torch

from corner_bugs.call import INF
from corner_bugs.plugin import Draws, bugs_of


class PaddingOfHalf(Draws):
    """float16: the element behind the last id is read where V is odd and the rows of a buffer are wider."""

    line = "padding is never read"

    dtype = "float16"

    def change(self, call):
        x = call.logits
        rows, size = x.shape
        if not x.stride(0) > size or size % 2 == 0:
            return call
        behind = x.as_strided((rows, 1), x.stride(), x.storage_offset() + size).float()
        best = x.float().nan_to_num(nan=-INF).amax(1, keepdim=True)
        changed = x.float().clone()
        changed[:, -1:] = torch.where(behind > best, behind, changed[:, -1:])
        return call.rows(changed)


class PaddingOfWideRows(PaddingOfHalf):
    """V > 65,536: the element behind the last id is read where V is odd and the rows of a buffer are wider."""

    line = "padding is never read"

    dtype, above = None, 1 << 16


class UnalignedRows(Draws):
    """bfloat16: a view that begins at an odd element is read from the even one before."""

    line = "strides"

    dtype = "bfloat16"

    def where(self, call):
        return call.logits.storage_offset() % 2 == 1

    def change(self, call):
        x = call.logits
        return call.rows(x.as_strided(x.shape, x.stride(), x.storage_offset() - 1))


class ExpandedHalf(Draws):
    """float16: rows that share their memory share their noise, too."""

    line = "noise of distant rows"
    crossed_sizes = (5003,)

    dtype = "float16"

    def where(self, call):
        return call.logits.stride(0) == 0 and len(call.row) > 1

    def change(self, call):
        return call.sharing(torch.zeros_like(call.row))


class EveryOtherRowOfBfloat(Draws):
    """bfloat16: rows whose stride is larger than V + 1024 are read as if they lay side by side."""

    line = "strides"

    dtype = "bfloat16"

    def where(self, call):
        return call.logits.stride(0) > call.size + 1024

    def change(self, call):
        x = call.logits
        return call.rows(x.as_strided(x.shape, (call.size, 1), x.storage_offset()))


class Slots(Draws):
    """A sampler that goes wrong by the slots of its rows."""

    def sample(self, logits, metadata, *, draft=False):
        slots = metadata.row_index
        if slots is not None and not draft:
            metadata = replace(metadata, row_index=self.slot(slots), row_kinds=None)
        return super().sample(logits, metadata, draft=draft)

    def slot(self, slots):
        return slots

    def where(self, call):
        return False


class SlotsIn7Bits(Slots):
    """row_index: slots are kept in 7 bits."""

    line = "rows of shared slots"

    def slot(self, slots):
        return slots % 128


class ReadyTensors(Draws):
    """A sampler that goes wrong with values that nobody has checked."""


class NanTemperature(ReadyTensors):
    """Ready tensors: a temperature that is NaN or negative counts as 1."""

    line = "ready tensors"

    def where(self, call):
        t = call.temperature
        return t.isnan() | (t < 0)

    def change(self, call):
        return call.request(temperature=torch.where(call.temperature > 0, call.temperature, 1.0))


class NegativeK(ReadyTensors):
    """Ready tensors: a k below -1 counts as 1."""

    line = "ready tensors"

    def where(self, call):
        return call.top_k < -1

    def change(self, call):
        return call.request(top_k=torch.where(call.top_k < -1, 1, call.top_k))


class ZeroP(ReadyTensors):
    """Ready tensors: a p of 0 or less counts as off."""

    line = "ready tensors"

    def where(self, call):
        return call.top_p <= 0

    def change(self, call):
        return call.request(top_p=torch.where(call.top_p <= 0, 1.0, call.top_p.double()))


class SlicedParameters(ReadyTensors):
    """Ready tensors: parameters that are every other entry of a buffer are read one behind another."""

    line = "ready tensors"

    def sample(self, logits, metadata, *, draft=False):
        def dense(c):
            if c is None or c.dim() != 1 or len(c) < 2 or c.stride(0) == 1:
                return c
            return c.as_strided(c.shape, (1,), c.storage_offset())

        names = ("temperature", "top_k", "top_p", "min_p")
        metadata = replace(metadata, **{name: dense(getattr(metadata, name)) for name in names})
        return super().sample(logits, metadata, draft=draft)

    def where(self, call):
        return False


class ShortIntegers(ReadyTensors):
    """Ready tensors: positions in int32 are read as int64, so those of rows from 2 on are others."""

    line = "ready tensors"

    def sample(self, logits, metadata, *, draft=False):
        found = metadata.positions
        if found is not None and found.dtype == torch.int32 and len(found) > 2:
            metadata = replace(metadata, positions=found.roll(1))
        return super().sample(logits, metadata, draft=draft)

    def where(self, call):
        return False


BUGS = tuple(bug for bug in bugs_of(globals()) if bug not in (Slots, ReadyTensors))

"""Bit masks, and rows at any address that they are put on."""

from dataclasses import dataclass

import numpy as np
import torch

from tokendraw import RequestSlots, SamplingParams


def bitmask_of(mask, *, padding=True):
    """Return the words of masks [R, V] bool: [R, ceil(V / 32)] int32, with ``padding`` as the bits behind V."""
    rows, vocab_size = mask.shape
    bits = np.full((rows, -(-vocab_size // 32) * 32), padding)
    bits[:, :vocab_size] = mask
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32).copy())


ROWS = 3
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


@dataclass
class Case:
    """Rows of a dtype that begin ``offset`` elements behind an address aligned to 16 bytes."""

    dtype: torch.dtype
    vocab_size: int
    offset: int
    gap: int
    """Elements from the end of a row to the next."""

    def wrong(self, process, device, *, seed=0):
        """Count the elements of memory with wrong bits after a call, NaN included.

        Of the rows one is forbidden by coins, one in runs that end anywhere, and one wholly but for its last id. The
        second has a request with ``allowed_token_ids`` of its own.
        """
        torch.manual_seed(seed)
        size, stride, kind = self.vocab_size, self.vocab_size + self.gap, BITS[self.dtype]
        limits = torch.iinfo(kind)
        memory = torch.randint(limits.min, limits.max + 1, (ROWS * stride + self.offset + 8,)).to(kind)
        own = torch.rand(size) < 0.5
        own[0] = True
        mask = torch.rand(ROWS, size) < 0.5
        mask[1] = torch.rand(size).cumsum(0).div(20).long() % 2 == 0
        mask[2] = torch.arange(size) == size - 1
        expected = memory.clone()
        rows = expected.as_strided((ROWS, size), (stride, 1), self.offset)
        kept = mask.clone()
        kept[1] &= own
        rows.view(self.dtype).masked_fill_(~kept, -torch.inf)
        slots = RequestSlots(1, 4, size, device=device)
        slots.add(0, SamplingParams(allowed_token_ids=own.nonzero().flatten().tolist()))
        result = memory.to(device)
        logits = result.view(self.dtype).as_strided((ROWS, size), (stride, 1), self.offset)
        process(
            logits,
            slots,
            torch.tensor([-1, 0, -1], device=device),
            bitmask_of(mask.numpy(), padding=False).to(device),
        )
        return int((result.cpu() != expected).sum())


def cases(dtype, tile):
    """Cases of every alignment to 16 bytes, of even and odd strides, that end near the ends of words and tiles."""
    sizes = (1, 31, 32, 33, tile - 1, tile, tile + 1, 3 * tile, 3 * tile + 40, 3 * tile + 37)
    return [
        Case(dtype, size, offset, gap)
        for number, size in enumerate(sizes)
        for offset, gap in ((number % 9, 0), (0, -size % 32), (8, 32 - size % 8 + number % 2))
    ]

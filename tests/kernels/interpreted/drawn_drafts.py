"""The kernels of the adapter to vLLM for drawn drafts."""

import math

import torch

from tokendraw_vllm.v2 import draft_kernels as kernels

SLOTS, STEPS = 5, 3
SIZE = 2 * kernels._PROBS_BLOCK_SIZE + 77
"""Three blocks, the last one not full."""


def _cache(dtype):
    cache = torch.randn(SLOTS, STEPS, SIZE, generator=torch.Generator().manual_seed(3)).mul_(4.0).to(dtype)
    cache[1, 1, : kernels._PROBS_BLOCK_SIZE] = -math.inf
    cache[2, 0, 5] = math.nan
    cache[3, 2] = -math.inf
    cache[3, 1, -1] = math.inf
    return cache


def probabilities(dtype):
    """Return the largest error of a probability of rows without NaN, and how many rows have other NaN than torch's."""
    cache = _cache(getattr(torch, dtype))
    slot_of_row = torch.arange(SLOTS, dtype=torch.int32).repeat_interleave(STEPS + 1).flip(0)
    step_of_row = torch.arange(STEPS + 1).repeat(SLOTS)
    rows = torch.arange(len(slot_of_row)).view(SLOTS, -1)[:, :-1].flatten()
    temperature = torch.tensor([0.7, 1.3, 1.0, 2.0, 0.0])
    found = kernels.draft_probabilities(
        kernels.JudgedRows(rows, slot_of_row, step_of_row, temperature, cache)
    )
    slots, steps = slot_of_row[rows].long(), step_of_row[rows]
    divisors = torch.where(temperature == 0, 1.0, temperature)[slots, None].double()
    expected = (cache[slots, steps].double() / divisors).softmax(1)
    has_nan = expected.isnan().all(1)
    unequal = (found.isnan().all(1) != has_nan) | (found.isnan().any(1) != has_nan)
    error = ((found - expected).abs() / expected.clamp(min=1e-30))[~has_nan].max()
    return {"error": float(error), "nan": int(has_nan.sum()), "unequal": int(unequal.sum())}


def kept(dtype):
    """Return whether logits are kept for the slot and step of their row alone, and what noise is drawn from."""
    logits = _cache(getattr(torch, dtype))[:, 0]
    cache = torch.full((SLOTS, STEPS, SIZE), 7.0, dtype=logits.dtype)
    slots, steps = torch.tensor([4, -1, 0, 2, -1]), torch.tensor([1, 0, 2, 1, 0])
    rows = kernels.DraftRows(logits, slots, torch.arange(5) + 30, steps, cache)
    row_index, places = kernels.keep_logits(rows)
    expected = torch.full_like(cache, 7.0)
    for row in (0, 2, 3):
        expected[slots[row], steps[row]] = logits[row]
    return {
        "cache": torch.equal(cache.nan_to_num(1e4), expected.nan_to_num(1e4)),
        "rows": row_index.tolist(),
        "places": [divmod(place, 2**32) for place in places.tolist()],
    }

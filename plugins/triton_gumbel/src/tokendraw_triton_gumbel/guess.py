"""Where the threshold of a wide row lies, guessed from a sample: pivots for the pass that then proves it.

Reads 2048 logits a row. What a guess says is never taken for true: the worse it is, the more a row costs.
"""

from __future__ import annotations

import triton
import triton.language as tl

_RUNS = tl.constexpr(256)
_RUN = tl.constexpr(8)
_SAMPLES = tl.constexpr(2048)
_BINS = tl.constexpr(256)
_DEEPEST = tl.constexpr(87.0)
"""Powers of two below the largest logit: what lies lower weighs nothing."""
_NEAR = tl.constexpr(1.0)
_FAR = tl.constexpr(4.0)
"""Standard errors from the guess to the pivots."""


@triton.jit
def guess_pivots(base, vocab_size, top, scale, least, target, by_mass):
    """Four pivots [4], descending, around the value from which upwards the row weighs ``target``.

    A histogram of the sample says how much lies below each of 256 edges, and how far a sample of that size strays.

    :param target: mass relative to the largest logit's, if ``by_mass``: the mass below; otherwise a number of tokens.
    """
    sample = tl.arange(0, _SAMPLES)
    start = ((sample // _RUN).to(tl.int64) * vocab_size // _RUNS).to(tl.int32) & -16
    place = start + sample % _RUN
    x = tl.load(base + place, mask=place < vocab_size, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    some = x > float("-inf")
    depth = tl.minimum(_DEEPEST / scale, top - tl.min(tl.where(some, x, top), 0))
    depth = tl.maximum(tl.minimum(depth, 3e38), 1e-30)
    width = depth * 1.0001 / _BINS
    bin_of = tl.minimum(tl.maximum((top - tl.where(some, x, top)) / width, 0.0), _BINS - 1.0).to(tl.int32)
    hidden = tl.sum((some == 0).to(tl.int32), 0)  # counted in the first bin
    b = tl.arange(0, _BINS)
    number = (tl.histogram(bin_of, _BINS) - tl.where(b == 0, hidden, 0)).to(tl.float32)
    weight = vocab_size.to(tl.float32) / _SAMPLES
    weight *= tl.where(by_mass, tl.exp2(-(b.to(tl.float32) + 0.5) * width * scale), 1.0)
    added = number * weight
    # Summed from the end that is measured; a bin is crossed where the sum reaches the target within it.
    reached = tl.where(by_mass, tl.cumsum(added, 0, reverse=True), tl.cumsum(added, 0))
    strays = tl.where(by_mass, tl.cumsum(added * weight, 0, reverse=True), tl.cumsum(added * weight, 0))
    before = reached - added
    error = tl.sqrt(tl.max(tl.where(before < target, strays, 0.0), 0))
    j = tl.arange(0, 4)
    by = tl.where(j == 0, _FAR, tl.where(j == 1, _NEAR, tl.where(j == 2, -_NEAR, -_FAR)))
    targets = target + tl.where(by_mass, by, -by) * error
    crossed = (before[:, None] < targets[None, :]) & (reached[:, None] >= targets[None, :])
    within = (targets[None, :] - before[:, None]) / tl.maximum(added, 1e-30)[:, None]
    edge = b.to(tl.float32)[:, None]
    depths = tl.where(by_mass, edge + 1.0 - within, edge + within)
    met = tl.sum(crossed.to(tl.int32), 0) > 0
    beyond = tl.where(by_mass == (targets <= 0), _BINS + 0.0, 0.0)
    depths = tl.where(met, tl.max(tl.where(crossed, depths, 0.0), 0), beyond)
    return tl.minimum(tl.maximum(top - depths * width, least), top)

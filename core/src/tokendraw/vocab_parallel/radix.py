"""Searches a threshold in values on several ranks, by the bits of the values.

A float32 and the integer that its bits make are ordered alike once the bits of negative ones are inverted: its key. A
histogram of weights over the keys' upper 8 bits, summed over all ranks, says which digit the threshold has there; the
next histogram is of the values with that digit alone. Counts and weights are integers, so their sums are the same for
any number of ranks, and every rank decides alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from tokendraw.probabilities import first_reaching
from tokendraw.vocab_parallel.local import Digits, LocalLogits, Weighing
from tokendraw.vocab_parallel.messages import Transport

DIGIT_BITS: Final = 8
"""Bits of a digit."""
BINS: Final = 1 << DIGIT_BITS
"""Bins of a histogram: one for each value of a digit."""
KEY_BITS: Final = 32
"""Bits of a key."""
_DISTINCT_BITS: Final = {torch.bfloat16: 16, torch.float16: 24}
"""Upper bits of a key that tell the values of a dtype apart, in whole digits; all for float32."""


def keys(x: Tensor) -> Tensor:
    """Return the keys of float32 values without NaN: int64 in [0, 2^32), in the order of the values."""
    bits = (x + 0.0).view(torch.int32).to(torch.int64)  # -0.0 becomes 0.0
    return torch.where(bits < 0, ~bits, bits + (1 << 31))


def _value(prefix: Tensor, missing: int) -> Tensor:
    """Return the value of a key; the missing lower bits are common to every value of the dtype."""
    key = (prefix << missing) + torch.where(prefix >> (31 - missing) > 0, 0, (1 << missing) - 1)
    bits = torch.where(key < 1 << 31, ~key, key - (1 << 31))
    return bits.to(torch.int32).view(torch.float32)


class FirstDigit(NamedTuple):
    """A search with a known first digit: [B, 1] int64 each."""

    digit: Tensor
    target: Tensor
    """Part of the target that is left to reach among the values with that digit."""


def first_digit(masses: Tensor, target: Tensor, bits: int) -> FirstDigit:
    """Find the first digit from the mass of each digit's values, if known before the search.

    :param masses: [B, 256] in the widest float, the same on every rank, and ``target`` [B, 1] of them.
    :param bits: of the units in which the search goes on: :attr:`Weighing.bits`.
    """
    downwards = masses.flip(-1)
    from_above = downwards.cumsum(-1)
    index = first_reaching(from_above, target)
    rest = target - (from_above - downwards).gather(-1, index)
    return FirstDigit(BINS - 1 - index, (rest * 2.0**bits).ceil().to(torch.int64))


class Histograms:
    """Sums the weights of the values on all ranks by digits."""

    def __init__(self, local: LocalLogits, transport: Transport) -> None:
        self._local = local
        self._transport = transport
        self.missing_at_last: int = KEY_BITS - _DISTINCT_BITS.get(local.logits.dtype, KEY_BITS)
        """Number of lower bits of a key that no digit says, since they are the same in all values of the dtype."""

    def __call__(self, digits: Digits, weighing: Weighing | None) -> Tensor:
        """Return the histogram over all ranks, [B, 256] int64."""
        histogram = self._local.histogram(digits, weighing)
        self._transport.all_sum(histogram)
        return histogram


def search(
    histograms: Histograms,
    weighing: Weighing | None,
    target_of: Callable[[Tensor], Tensor],
    first: FirstDigit | None = None,
) -> Tensor:
    """Return the largest value v, [B, 1] float32, with a weight of ``x >= v`` on all ranks at least equal to a target.

    :param weighing: None: every value weighs 1.
    :param target_of: computes the target from the total, [B, 1] int64 both; below 1 it is the largest value, above the
        total the least that weighs anything.
    """
    prefix, target = (None, None) if first is None else first
    missing = KEY_BITS if first is None else KEY_BITS - DIGIT_BITS
    while missing > histograms.missing_at_last:
        missing -= DIGIT_BITS
        histogram = histograms(Digits(prefix, missing), weighing)
        downwards = histogram.flip(-1)
        from_above = downwards.cumsum(-1)
        target = target_of(from_above[:, -1:]) if target is None else target
        target = target.clamp(min=1).minimum(from_above[:, -1:])
        index = torch.searchsorted(from_above, target)
        target = target - (from_above - downwards).gather(-1, index)
        digit = BINS - 1 - index
        prefix = digit if prefix is None else (prefix << DIGIT_BITS) + digit
    assert prefix is not None
    return _value(prefix, missing)

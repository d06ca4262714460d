"""The next digit of a threshold from the summed histogram, defined by :mod:`tokendraw.vocab_parallel.radix`.

Reads 2,048 bytes a row, writes 16, and with the last digit 8 more. One program a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_params import load_filters, slot_of

_BINS = tl.constexpr(256)
_DIGIT_BITS = tl.constexpr(8)
_HALF = tl.constexpr(1 << 31)


@triton.jit(do_not_specialize=["step", "vocab_size", "flags"])
def next_digit(histogram, step, row_params, vocab_size, flags, search):
    """Each program finds the next digit of a row's threshold.

    :param histogram: [rows, 256] int64.
    :param step: :class:`~.argument_groups.DigitStep`.
    :param row_params: :class:`~..shared.argument_groups.RowParams`; ``flags`` say which of them are there.
    :param search: :class:`~.argument_groups.RowSearch`, brought up to date.
    """
    row = tl.program_id(0)
    slot = slot_of(row, flags, row_params)
    k, p, _, joint = load_filters(slot, vocab_size, flags, row_params)
    index = tl.arange(0, _BINS)
    units = tl.load(histogram + row.to(tl.int64) * _BINS + (_BINS - 1 - index))
    from_above = tl.cumsum(units, 0)
    total = tl.sum(units, 0)
    prefix = tl.load(search.prefix + row, mask=step.is_first == 0, other=0)
    target = tl.load(search.target + row, mask=step.is_first == 0, other=0)
    at_first = tl.where(step.of_nucleus > 0, tl.ceil(p * total.to(tl.float64)).to(tl.int64), k)
    target = tl.where(step.is_first > 0, at_first, target)
    target = tl.minimum(tl.maximum(target, 1), total)
    next_index = tl.min(tl.where(from_above >= target, index, _BINS - 1), 0)
    above = tl.sum(tl.where(index == next_index, from_above - units, 0), 0)
    prefix = (prefix << _DIGIT_BITS) + (_BINS - 1 - next_index)
    tl.store(search.prefix + row, prefix)
    tl.store(search.target + row, target - above)
    if step.is_last > 0:
        value = _value(prefix, step.missing)
        base = tl.load(search.threshold + row)
        # A row with a known nucleus gives no value any weight.
        is_open = (p < 1) & (tl.load(search.floor + row) < float("inf"))
        is_active = tl.where(step.of_nucleus > 0, is_open, k > 0)
        threshold = tl.minimum(tl.where(is_active, tl.maximum(base, value), base), tl.load(search.max + row))
        tl.store(search.threshold + row, threshold)
        counts_all = joint | (threshold == float("-inf"))
        tl.store(search.floor + row, tl.where(counts_all, float("-inf"), threshold))


@triton.jit
def _value(prefix, missing):
    """Return the value of a key, whose lower bits are equal for all values of its dtype."""
    ones = (tl.full((), 1, tl.int64) << missing) - 1
    key = (prefix << missing) + tl.where((prefix >> (31 - missing)) > 0, 0, ones)
    bits = tl.where(key < _HALF, -1 - key, key - _HALF)
    return bits.to(tl.int32).to(tl.float32, bitcast=True)

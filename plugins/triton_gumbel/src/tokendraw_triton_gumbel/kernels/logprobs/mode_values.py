"""Computes the values of a logprobs mode: logits themselves, or ``(x - max x) / T`` less the logarithm of a mass.

The mass comes from what the pass over the logits has left of the tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.float_keys import LARGEST
from tokendraw_triton_gumbel.kernels.shared.row_params import NORMALISED, PROCESSED, SCALED
from tokendraw_triton_gumbel.kernels.shared.temperature import mode_temperature
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E


@triton.jit
def lowest_visible(max_logit, temperature, flags):
    """Return the least logit whose ``(x - max x) / T`` float32 holds: lower logits have the value -inf."""
    lowest = (max_logit.to(tl.float64) - LARGEST * temperature).to(tl.float32)
    return tl.where((flags & SCALED) != 0, lowest, float("-inf"))


@triton.jit
def log_mass(maximum, weight, max_logit, inverse, flags):
    """Return the logarithm of the sum of ``exp((x - max x) / T)``; 0 where the mode does not normalise.

    :param maximum: [TILES] of the tiles, -inf beyond them; ``weight`` the sums relative to it, or less than 0.
    """
    distance = tl.where(maximum == max_logit, 0.0, maximum - max_logit)
    y = (distance.to(tl.float64) * inverse * LOG2_E).to(tl.float32)
    shift = tl.log(tl.sum(tl.abs(weight) * tl.exp2(y), 0))
    return tl.where((flags & NORMALISED) != 0, shift, 0.0)


@triton.jit
def row_scale(maximum, sums, draws, row, temperature, slot, flags):
    """Return a row's peak, 1 / T, what is subtracted, the least visible logit and whether it is greedy.

    The peak is the largest logit or, of shares of what is kept below a ceiling, the ceiling: from a larger logit a
    tiny T would leave no difference.

    :param maximum: [TILES] of the tiles, like ``sums``; ``draws`` :class:`.row_logprobs.RowDraws`.
    :param temperature: [slots] in memory, or None.
    """
    temperature, inverse, greedy = mode_temperature(temperature, slot, flags)
    peak = tl.max(maximum, 0)
    shift = log_mass(maximum, sums, peak, inverse, flags)
    if (flags & PROCESSED) != 0:
        shift += tl.where((flags & NORMALISED) != 0, tl.load(draws.log_kept + row), 0.0)
        if draws.ceiling is not None:
            ceiling = tl.load(draws.ceiling + row)
            if ceiling < peak:
                shift = tl.load(draws.log_masses + row)
                peak = ceiling
    lowest = lowest_visible(peak, temperature, flags)
    if (flags & PROCESSED) != 0:
        lowest = tl.maximum(lowest, tl.load(draws.threshold + row))
    return peak, inverse, shift, lowest, greedy


@triton.jit
def visible_value(x, max_logit, inverse, shift, lowest, flags):
    """Return ``(x - max x) / T - shift``, at most 0 and -inf below ``lowest``; or x itself."""
    y = tl.where(x == max_logit, 0.0, x.to(tl.float64) - max_logit.to(tl.float64)) * inverse - shift.to(
        tl.float64
    )
    y = tl.where(x >= lowest, tl.minimum(y, 0.0), float("-inf"))  # a rounded shift may lie below 0
    y = tl.where(max_logit > float("-inf"), y, float("-inf")).to(tl.float32)
    return tl.where((flags & SCALED) != 0, y, x)


@triton.jit
def visible_of_token(base, token, max_logit, inverse, shift, lowest, greedy, flags):
    """Return the drawn token's value in the logprobs mode: 0 in greedy rows."""
    x = tl.load(base + token).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    greedy_value = tl.where(max_logit > float("-inf"), 0.0, float("-inf"))
    return tl.where(greedy, greedy_value, visible_value(x, max_logit, inverse, shift, lowest, flags))

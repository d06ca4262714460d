"""Computes the log-probability of one given token a row, and the entropy of the row.

Reads 12 bytes a tile and one logit. Where a filter may drop tokens that the mode does not show, the tiles that hold a
kept logit are read once more, each in turn.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logprobs.mode_values import row_scale, visible_value
from tokendraw_triton_gumbel.kernels.shared.row_values import RowAddress
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, scaled

_LN_2 = tl.constexpr(0.6931471805599453)
_LARGEST_DISTANCE = tl.constexpr(3e38)


class Scores(NamedTuple):
    """The result."""

    ids: Any
    """[rows, ``width``] int64, like ``logprobs``, float32: the first column is written."""
    logprobs: Any
    width: Any
    entropy: Any
    """[rows] float32."""


@triton.jit(
    do_not_specialize=["tiles", "flags"],
    # Scalar reads and writes at addresses without alignment.
    do_not_specialize_on_alignment=["requested", "draws", "token_ids", "out"],
)
def score_rows(
    logits,
    tiles,
    requested,
    draws,
    token_ids,
    entropy_sums,
    out,
    flags,
    AT_ONCE: tl.constexpr,
    TILES: tl.constexpr,
):
    """Each program scores the token of one row. Grid (rows).

    :param logits: :class:`~..shared.argument_groups.Logits`.
    :param requested: :class:`.row_logprobs.RequestedLogprobs`; ``draws`` :class:`.row_logprobs.RowDraws`, whose
        token counts in greedy rows alone.
    :param token_ids: [rows] int64; an id outside [0, V) is padding.
    :param entropy_sums: [rows, tiles], as :class:`~..shared.argument_groups.TileStatistics` has them; None: the kept
        logits are read, ``AT_ONCE`` tiles at once.
    :param out: :class:`Scores`.
    :param flags: what the mode shows of logits: see :mod:`~..shared.row_params`.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = row
    if requested.row_index is not None:
        slot = tl.load(requested.row_index + row).to(tl.int64)
    source = RowAddress(logits.base + row * logits.row_stride, logits.vocab_size)
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    maximum = tl.load(draws.maxima + row * tiles + tile, mask=inside, other=float("-inf"))
    sums = tl.abs(tl.load(draws.sums + row * tiles + tile, mask=inside, other=0.0))
    max_logit, inverse, shift, lowest, greedy = row_scale(
        maximum, sums, draws, row, requested.temperature, slot, flags
    )
    has_tokens = max_logit > float("-inf")
    token = tl.load(token_ids + row)
    is_token = (token >= 0) & (token < source.vocab_size)
    x = tl.load(source.base + token, mask=is_token, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    value = visible_value(x, max_logit, inverse, shift, lowest, flags)
    of_argmax = tl.where(has_tokens, 0.0, float("-inf"))
    is_argmax = token == tl.load(draws.token_ids + row)
    value = tl.where(greedy, tl.where(is_argmax, of_argmax, float("-inf")), value)
    tl.store(out.ids + row * out.width, tl.where(is_token, token, -1))
    tl.store(out.logprobs + row * out.width, tl.where(is_token, value, float("-inf")))

    if entropy_sums is not None:
        distance = tl.where(maximum == max_logit, 0.0, maximum - max_logit)
        exponent = tl.maximum((distance.to(tl.float64) * inverse * LOG2_E).to(tl.float32), -_LARGEST_DISTANCE)
        weight = tl.exp2(exponent)
        entropies = tl.load(entropy_sums + row * tiles + tile, mask=inside, other=0.0)
        mass = tl.sum(sums * weight, 0)
        total = tl.sum(weight * entropies + (sums * weight) * exponent, 0)
    else:
        mass, total = _kept_sums(source, draws, row, tiles, max_logit, requested.temperature, slot, AT_ONCE)
    entropy = tl.maximum(tl.log(mass) - _LN_2 * (total / mass), 0.0)
    entropy = tl.where(greedy, 0.0, entropy)
    tl.store(out.entropy + row, tl.where(has_tokens, entropy, float("nan")))


@triton.jit
def _kept_sums(source, draws, row, tiles, max_logit, temperature, slot, AT_ONCE: tl.constexpr):
    """Return the sums of weights w and of ``w log2 w`` of the kept logits of a row, tile by tile."""
    inverse, _ = inverse_temperature(temperature, slot)
    threshold = tl.load(draws.threshold + row)
    masses = tl.zeros((AT_ONCE, TILE_SIZE), tl.float32)
    totals = tl.zeros((AT_ONCE, TILE_SIZE), tl.float32)
    start = tl.zeros((), tl.int32)
    while start < tiles:
        tile = start + tl.arange(0, AT_ONCE)
        maximum = tl.load(draws.maxima + row * tiles + tile, mask=tile < tiles, other=float("-inf"))
        is_read = (maximum >= threshold) & (maximum > float("-inf"))
        if tl.max(is_read.to(tl.int32), 0) > 0:
            ids = tile[:, None] * TILE_SIZE + tl.arange(0, TILE_SIZE)[None, :]
            is_inside = is_read[:, None] & (ids < source.vocab_size)
            x = tl.load(source.base + ids, mask=is_inside, other=float("-inf")).to(tl.float32)
            kept = (x >= threshold) & (x > float("-inf"))
            y = scaled(tl.where(kept, x, float("-inf")), max_logit, inverse, False) * LOG2_E
            y = tl.maximum(y, -_LARGEST_DISTANCE)
            weight = tl.exp2(y)
            masses += weight
            totals += weight * y
        start += AT_ONCE
    return tl.sum(tl.sum(masses, 1), 0), tl.sum(tl.sum(totals, 1), 0)

"""Computes the log-probability of one given token a row, and the entropy of the row.

Reads 12 bytes a tile and one logit. Where filters drop tokens that the mode does not show, the entropy is that of the
candidates that the draw has left; of a row without any, the tiles that reach the threshold are read again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logprobs.mode_values import row_scale, visible_value
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST
from tokendraw_triton_gumbel.kernels.shared.row_params import PROCESSED
from tokendraw_triton_gumbel.kernels.shared.row_values import RowAddress
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, scaled, steady

_LN_2 = tl.constexpr(0.6931471805599453)
_LARGEST_DISTANCE = tl.constexpr(3e38)


class RowCandidates(NamedTuple):
    """The candidates of each row that the draw has left; both None where the entropies of the tiles are summed up."""

    logits: Any = None
    """[rows, CANDIDATES] float32."""
    count: Any = None
    """[rows] int32: their number, -1 for none."""


class Scores(NamedTuple):
    """The result."""

    ids: Any
    """[rows, 1 + N] int64, like ``logprobs``, float32: the first column is written."""
    logprobs: Any
    ranks: Any
    """[rows] int64, as if every token were shown; written where not. None without ranks."""
    entropy: Any
    """[rows] float32."""
    least_kept: Any
    """[rows] float32, written where no row was drawn; else None."""


@triton.jit(
    do_not_specialize=["tiles", "width", "flags"],
    # Scalar reads and writes at addresses without alignment.
    do_not_specialize_on_alignment=["requested", "draws", "token_ids", "ceiling", "out"],
)
def score_rows(
    logits,
    tiles,
    requested,
    draws,
    token_ids,
    entropy_sums,
    candidates,
    ceiling,
    width,
    out,
    flags,
    AT_ONCE: tl.constexpr,
    CANDIDATES: tl.constexpr,
    TILES: tl.constexpr,
):
    """Each program scores the token of one row. Grid (rows).

    :param logits: :class:`~..shared.argument_groups.Logits`.
    :param requested: :class:`.row_logprobs.RequestedLogprobs`; ``draws`` :class:`.row_logprobs.RowDraws`, whose
        token counts in greedy rows alone.
    :param token_ids: [rows] int64; an id outside [0, V) is padding.
    :param entropy_sums: [rows, tiles], as :class:`~..shared.argument_groups.TileStatistics` has them; None: the kept
        logits are weighed, those of ``AT_ONCE`` tiles at once.
    :param candidates: :class:`RowCandidates`.
    :param ceiling: [rows] float32: the greatest kept logit, at least the largest one where XTC drops nothing; or None.
    :param width: 1 + N, columns of the result.
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
    peak = max_logit
    if ceiling is not None:
        greatest = tl.load(ceiling + row)
        peak = tl.where(greatest < max_logit, greatest, max_logit)  # NaN in a row without tokens
        value = tl.where((x > peak) & ((flags & PROCESSED) != 0), float("-inf"), value)
    of_argmax = tl.where(has_tokens, 0.0, float("-inf"))
    is_argmax = token == tl.load(draws.token_ids + row)
    value = tl.where(greedy, tl.where(is_argmax, of_argmax, float("-inf")), value)
    tl.store(out.ids + row * width, tl.where(is_token, token, -1))
    tl.store(out.logprobs + row * width, tl.where(is_token, value, float("-inf")))
    if out.ranks is not None:
        # Every value is at least one of -inf; a greedy row shows no other than its token's.
        rank = tl.where(value > float("-inf"), 1, source.vocab_size).to(tl.int64)
        tl.store(out.ranks + row, rank, mask=is_token & (greedy | (value == float("-inf"))))

    if entropy_sums is not None:
        distance = tl.where(maximum == max_logit, 0.0, maximum - max_logit)
        exponent = tl.maximum((distance.to(tl.float64) * inverse * LOG2_E).to(tl.float32), -_LARGEST_DISTANCE)
        weight = tl.exp2(exponent)
        entropies = tl.load(entropy_sums + row * tiles + tile, mask=inside, other=0.0)
        mass = tl.sum(sums * weight, 0)
        total = tl.sum(weight * entropies + (sums * weight) * exponent, 0)
    else:
        own_inverse, _ = inverse_temperature(requested.temperature, slot)
        threshold = tl.load(draws.threshold + row)
        num_candidates = tl.load(candidates.count + row)
        if num_candidates >= 0:
            listed = candidates.logits + row * CANDIDATES
            mass, total = _candidate_sums(listed, num_candidates, peak, threshold, own_inverse, CANDIDATES)
        else:
            mass, total = _kept_sums(
                source, draws.maxima + row * tiles, tiles, peak, threshold, own_inverse, AT_ONCE
            )
    entropy = tl.maximum(tl.log(mass) - _LN_2 * (total / mass), 0.0)
    entropy = tl.where(greedy, 0.0, entropy)
    tl.store(out.entropy + row, tl.where(has_tokens, entropy, float("nan")))
    if out.least_kept is not None:
        least = tl.where(max_logit < float("inf"), float("-inf"), float("inf"))
        tl.store(out.least_kept + row, tl.where(has_tokens, least, float("nan")))


@triton.jit
def _weights(x, peak, inverse):
    """Return the weights w of logits, and ``w log2 w``: 0 for -inf, and 1 and 0 for +inf."""
    y = tl.maximum(scaled(x, peak, inverse, False) * LOG2_E, -_LARGEST_DISTANCE)
    weight = tl.exp2(y)
    return weight, weight * y


@triton.jit
def _candidate_sums(listed, count, peak, threshold, inverse, CANDIDATES: tl.constexpr):
    """Return the sums of :func:`_kept_sums` from the list of a row's candidates."""
    i = tl.arange(0, CANDIDATES)
    x = tl.load(listed + i, mask=i < count, other=float("-inf"))
    weight, entropies = _weights(tl.where((x >= threshold) & (x <= peak), x, float("-inf")), peak, inverse)
    return tl.sum(weight, 0), tl.sum(entropies, 0)


@triton.jit
def _kept_sums(source, maxima, tiles, peak, threshold, inverse, AT_ONCE: tl.constexpr):
    """Return the sums of weights w and of ``w log2 w`` of the kept logits of a row, ``AT_ONCE`` tiles at once.

    :param maxima: [tiles] in memory.
    :param peak: the greatest kept logit; the weights are relative to it.
    """
    masses = tl.zeros((AT_ONCE, TILE_SIZE), tl.float32)
    totals = tl.zeros((AT_ONCE, TILE_SIZE), tl.float32)
    lowest = tl.maximum(threshold, LOWEST)
    is_steady = steady(peak, inverse * LOG2_E) * (peak < float("inf")).to(tl.int32)
    start = tl.zeros((), tl.int32)
    while start < tiles:
        tile = start + tl.arange(0, AT_ONCE)
        is_read = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf")) >= lowest
        if tl.max(is_read.to(tl.int32), 0) > 0:
            ids = tile[:, None] * TILE_SIZE + tl.arange(0, TILE_SIZE)[None, :]
            inside = is_read[:, None] & (ids < source.vocab_size)
            x = tl.load(source.base + ids, mask=inside, other=float("-inf")).to(tl.float32)
            kept = (x >= lowest) & (x <= peak)
            if is_steady > 0:
                y = (x - peak) * (inverse * LOG2_E)
                weight = tl.where(kept, tl.exp2(y), 0.0)
                masses += weight
                totals += tl.where(kept, weight * y, 0.0)
            else:
                weight, entropies = _weights(tl.where(kept, x, float("-inf")), peak, inverse)
                masses += weight
                totals += entropies
        start += AT_ONCE
    return tl.sum(tl.sum(masses, 1), 0), tl.sum(tl.sum(totals, 1), 0)

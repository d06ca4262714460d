"""Computes the log-probabilities of ids that requests give.

Reads 8 bytes a tile and one logit an id.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logprobs.mode_values import row_scale, visible_value
from tokendraw_triton_gumbel.kernels.shared.row_values import RowAddress


class GivenIds(NamedTuple):
    """The ids of each slot."""

    ids: Any
    """[slots, ``count``] integer, one id behind the other; an id outside [0, V) is padding."""
    row_stride: Any
    count: Any


@triton.jit(
    do_not_specialize=["tiles", "flags"],
    # Scalar reads, or reads and writes at addresses without alignment.
    do_not_specialize_on_alignment=["requested", "draws", "given", "out"],
)
def given_logprobs(
    logits, tiles, requested, draws, given, out, flags, IDS: tl.constexpr, TILES: tl.constexpr
):
    """Each program computes the log-probabilities of ``IDS`` ids of one row. Grid (rows, parts of the ids).

    :param logits: :class:`~..shared.argument_groups.Logits`.
    :param requested: :class:`.row_logprobs.RequestedLogprobs`; ``draws`` :class:`.row_logprobs.RowDraws`.
    :param given: :class:`GivenIds`.
    :param out: :class:`.row_logprobs.BestTokens` with ids and values [rows, ``count``], written.
    :param flags: what the mode shows of logits: see :mod:`~..shared.row_params`.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = row
    if requested.row_index is not None:
        slot = tl.load(requested.row_index + row).to(tl.int64)
    source = RowAddress(logits.base + row * logits.row_stride, logits.vocab_size)
    tile = tl.arange(0, TILES)
    maximum = tl.load(draws.maxima + row * tiles + tile, mask=tile < tiles, other=float("-inf"))
    sums = tl.load(draws.sums + row * tiles + tile, mask=tile < tiles, other=0.0)
    max_logit, inverse, shift, lowest, greedy = row_scale(
        maximum, sums, draws, row, requested.temperature, slot, flags
    )
    token = tl.load(draws.token_ids + row)
    place = tl.program_id(1) * IDS + tl.arange(0, IDS)
    inside = place < given.count
    given_id = tl.load(given.ids + slot * given.row_stride + place, mask=inside, other=-1).to(tl.int64)
    is_id = (given_id >= 0) & (given_id < source.vocab_size)
    x = tl.load(source.base + given_id, mask=is_id, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    value = visible_value(x, max_logit, inverse, shift, lowest, flags)
    of_token = tl.where(max_logit > float("-inf"), 0.0, float("-inf"))
    value = tl.where(greedy, tl.where(given_id == token, of_token, float("-inf")), value)
    index = row * given.count + place
    tl.store(out.ids + index, tl.where(is_id, given_id, -1), mask=inside)
    tl.store(out.logprobs + index, tl.where(is_id, value, float("-inf")), mask=inside)

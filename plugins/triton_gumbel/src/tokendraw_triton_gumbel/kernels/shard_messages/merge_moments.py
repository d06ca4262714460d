"""The moments of a row from the sums of all ranks, by :mod:`tokendraw.vocab_parallel.moment_sums`.

Reads 12 to 52 bytes a rank and row, and writes 4 bytes a row for each moment. One program a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shard_messages.words import distance, load_double, load_float, row_words
from tokendraw_triton_gumbel.kernels.shared.moment_bits import (
    COLLISION,
    COUNT,
    ENTROPY,
    MASS,
    MEAN,
    SQUARES,
)
from tokendraw_triton_gumbel.kernels.shared.row_params import TEMPERED, slot_of
from tokendraw_triton_gumbel.kernels.shared.temperature import mode_temperature


@triton.jit(do_not_specialize=["sizes", "fields", "flags"])
def merge_moments(words, sizes, fields, row_params, flags, out, config: tl.constexpr):
    """Each program combines the sums of a row. In rows with +inf, or with nothing above -inf, they are unspecified.

    :param words: [ranks, rows, width] int32.
    :param sizes: :class:`~.argument_groups.Sizes`; ``fields`` :class:`~.argument_groups.SurveyFields`.
    :param row_params: :class:`~..shared.argument_groups.RowParams`; ``flags`` say which of them are there.
    :param out: :class:`~..shared.argument_groups.MomentResults`, written.
    :param config: :class:`~..shared.configs.MomentConfig`.
    """
    SUMS: tl.constexpr = config.SUMS
    row = tl.program_id(0)
    _, inverse, _ = mode_temperature(row_params.temperature, slot_of(row, flags, row_params), TEMPERED)
    rank = tl.arange(0, config.RANKS)
    mask = rank < sizes.ranks
    pointers = row_words(words, sizes, rank, row)
    maximum = load_float(pointers + fields.x, mask)
    is_finite = maximum > float("-inf")
    below = tl.where(is_finite, distance(maximum, tl.max(maximum, 0), 1.0), 0.0)
    pointers += fields.sums
    if COUNT & SUMS:
        count = load_double(pointers, mask)
        pointers += 2
        total = tl.sum(count, 0)
        number = tl.maximum(total, 1.0)
        if out.number is not None:
            tl.store(out.number + row, total.to(tl.float32))
        if MEAN & SUMS:
            own_mean = tl.where(count > 0, load_double(pointers, mask) + below, 0.0)
            pointers += 2
            mean = tl.sum(count * own_mean, 0) / number
            if out.mean is not None:
                tl.store(out.mean + row, (mean * inverse).to(tl.float32))
            if SQUARES & SUMS:
                deviation = own_mean - mean
                squares = load_double(pointers, mask) + count * (deviation * deviation)
                pointers += 2
                tl.store(out.std + row, (tl.sqrt(tl.sum(squares, 0) / number) * inverse).to(tl.float32))
    if MASS & SUMS:
        y = below * inverse
        share = tl.where(is_finite, tl.exp(y), 0.0)
        own_mass = load_double(pointers, mask)
        pointers += 2
        mass = tl.sum(share * own_mass, 0)
        log_mass = tl.log(mass)
        if out.log_mass is not None:
            tl.store(out.log_mass + row, log_mass.to(tl.float32))
        if ENTROPY & SUMS:
            terms = share * (load_double(pointers, mask) + y * own_mass)
            pointers += 2
            # Where y is -inf, so far below the others, its product with a share of 0 would be NaN.
            total_terms = tl.sum(tl.where(share > 0, terms, 0.0), 0)
            tl.store(out.entropy + row, tl.maximum(log_mass - total_terms / mass, 0.0).to(tl.float32))
        if COLLISION & SUMS:
            collision = tl.sum(share * share * load_double(pointers, mask), 0)
            tl.store(out.collision + row, (collision / (mass * mass)).to(tl.float32))

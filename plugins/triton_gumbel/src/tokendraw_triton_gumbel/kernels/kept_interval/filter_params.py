"""The temperature and the min-p that the filters of each slot look at. 256 slots a program.

Reads and writes some numbers a slot.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_params import HAS_TOP_P

SLOTS_PER_PROGRAM = tl.constexpr(256)


@triton.jit(
    do_not_specialize=["slots", "flags"],
    do_not_specialize_on_alignment=["row_params", "temperature_last"],
)
def filter_params(row_params, temperature_last, out, slots, flags):
    """Write the parameters that the filters look at. Grid (slots / 256).

    A filter order of ``temperature_last`` has its min-p behind top-p. Without top-p the places give the same tokens,
    and min-p stays with the other filters.

    :param row_params: :class:`~..shared.argument_groups.RowParams`.
    :param temperature_last: [slots] bool.
    :param out: :class:`.FilterParams`.
    """
    slot = tl.program_id(0) * SLOTS_PER_PROGRAM + tl.arange(0, SLOTS_PER_PROGRAM)
    inside = slot < slots
    is_last = tl.load(temperature_last + slot, mask=inside, other=0).to(tl.int32) != 0
    if out.temperature is not None:
        temperature = tl.load(row_params.temperature + slot, mask=inside, other=0.0)
        is_separate = is_last & (temperature > 0)
        one = tl.full((), 1.0, tl.float32).to(temperature.dtype)
        tl.store(out.temperature + slot, tl.where(is_separate, one, temperature), mask=inside)
        if out.other_temperature is not None:
            tl.store(out.other_temperature + slot, tl.where(is_separate, temperature, one), mask=inside)
    if out.min_p is not None:
        min_p = tl.load(row_params.min_p + slot, mask=inside, other=0.0)
        top_p = tl.load(row_params.top_p + slot, mask=inside & ((flags & HAS_TOP_P) != 0), other=1.0)
        zero = tl.full((), 0.0, tl.float32).to(min_p.dtype)
        tl.store(out.min_p + slot, tl.where(is_last & (top_p < 1), zero, min_p), mask=inside)

"""The floors of a batch's filters from moments, computed between the pass over the logits and the draw."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw.filters import RowMoments, filter_floors
from tokendraw.plugin import MOMENTS, Moment
from tokendraw_triton_gumbel.dispatch.compiled_call import CompiledCall
from tokendraw_triton_gumbel.host.launch import group
from tokendraw_triton_gumbel.kernels.shared.argument_groups import Counts
from tokendraw_triton_gumbel.kernels.tile_pass.combine_floors import FilterFloors


class RowFloors:
    """Room for the moments of each row, and the floors that the filters compute from these."""

    __slots__ = ("_kept", "_moments", "_names", "_values", "results")

    def __init__(self, call: CompiledCall, m: SamplingMetadata, counts: Counts) -> None:
        values = m.filters_per_row()
        assert values is not None  # a batch without filters reads no moments
        self._names, self._values = values
        wanted = call.variant.moments
        moments = call.float32_proto.new_empty(len(wanted), counts.rows).unbind()
        self._moments: dict[Moment, Tensor] = dict(zip(wanted, moments, strict=True))
        target_rows = None
        if call.variant.draws_drafts:
            # A row of drafts that no request has is never drawn, and takes the values of the first row.
            target_rows = call.int64_proto.new_zeros(counts.rows)
        self.results: tuple[Tensor | None, ...] = (*map(self._moments.get, MOMENTS), target_rows)
        """The fields of :class:`.MomentResults`, which a kernel fills in."""
        self._kept: list[Tensor] = []
        """Tensors that have to live until kernels are launched on their addresses."""

    def compute(self, convert: Callable[[Sequence[Tensor]], Sequence[Any]]) -> Iterator[FilterFloors]:
        """Call the filters, and yield the arguments of a launch for each.

        :param convert: returns the arguments for tensors.
        :raises FilterError: a filter raised, or returned another form.
        """
        target_rows, values = self.results[-1], self._values
        if target_rows is not None:
            values = values.index_select(0, target_rows)
        for number, (floor, value, off) in enumerate(
            filter_floors(self._names, values, RowMoments(**self._moments))
        ):
            floors = floor.contiguous()
            self._kept += (floors, value)
            (off_bits,) = struct.unpack("i", struct.pack("f", off))
            yield group(FilterFloors, (*convert((floors, value)), value.stride(0), off_bits, int(not number)))

"""The floors of a batch's filters from moments, computed between the pass over the logits and the draw."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from tokendraw.filters import RowMoments, filter_floors
from tokendraw.plugin import MOMENTS, Moment
from tokendraw_triton_gumbel.host.launch import group
from tokendraw_triton_gumbel.kernels.tile_pass.combine_floors import FilterFloors


class RowFloors:
    """Room for the moments of each row, and the floors that the filters compute from these."""

    __slots__ = ("_kept", "_moments", "_names", "_values", "results")

    def __init__(
        self,
        names: Sequence[str],
        values: Tensor,
        moments: Tensor,
        wanted: Sequence[Moment],
        target_rows: Tensor | None = None,
    ) -> None:
        """Hold the arguments.

        :param names: of the F filters of the batch.
        :param values: [target rows, F] float32: their values.
        :param moments: [M, rows] float32, to be filled in.
        :param wanted: names of these M moments.
        :param target_rows: [rows] int64, to be filled in, where the rows are not those of ``values``.
        """
        self._names, self._values = names, values
        self._moments: dict[Moment, Tensor] = dict(zip(wanted, moments.unbind(), strict=True))
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

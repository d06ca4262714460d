"""The tensors of a call whose rows may ask for XTC or the filter order ``temperature_last``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw_triton_gumbel.host.compilation import ANY_INT, FLOAT32, Pointer
from tokendraw_triton_gumbel.host.launch import IntervalArguments, group
from tokendraw_triton_gumbel.host.params_layout import FIELDS, ParamTensors, interval_tensors
from tokendraw_triton_gumbel.host.variant import Variant
from tokendraw_triton_gumbel.kernels.kept_interval.argument_groups import FilterParams, IntervalParams

_TEMPERATURE, _MIN_P = FIELDS.index("temperature"), FIELDS.index("min_p")


class RowIntervals:
    """The parameters for kept intervals, and room for what launches write of slots and rows."""

    __slots__ = ("_params", "_written", "ceiling")

    def __init__(
        self, m: SamplingMetadata, variant: Variant, params: ParamTensors, proto: Tensor, rows: int
    ) -> None:
        """Allocate the room.

        :param params: of ``m``, contiguous.
        :param proto: an empty float32 tensor on the device; ``rows`` the number of rows.
        """
        self._params = interval_tensors(m)
        temperature, min_p = params[_TEMPERATURE], params[_MIN_P]
        self._written: tuple[Tensor | None, ...] = (None, None, None)
        if variant.is_tempered_last:
            other = (
                None if temperature is None or not variant.has_second_sums else torch.empty_like(temperature)
            )
            self._written = (_empty_like(temperature), other, _empty_like(min_p))
        self.ceiling = proto.new_empty(rows) if variant.has_ceiling else None
        """[rows] float32, filled by the last launch of the draw; None without XTC."""

    def arguments(self, convert: Callable[[Sequence[Tensor | None]], Sequence[Any]]) -> IntervalArguments:
        """Return the arguments of the launches.

        :param convert: returns the arguments for tensors, and None for None.
        """
        is_last, (ceiling,) = self._params[0], convert((self.ceiling,))
        params, written = (
            group(IntervalParams, convert(self._params)),
            group(FilterParams, convert(self._written)),
        )
        return IntervalArguments(params, written, 0 if is_last is None else len(is_last), ceiling)


def interval_placeholders(variant: Variant) -> IntervalArguments | None:
    """Return placeholders of the arguments for the compilation of a variant; None if no row may ask."""
    if variant.interval is None:
        return None
    params = IntervalParams(*[_placeholder(dtype) for dtype in variant.interval])
    temperature, min_p = (variant.param_dtypes[index] for index in (_TEMPERATURE, _MIN_P))
    written = FilterParams()
    if variant.is_tempered_last:
        other = temperature if variant.has_second_sums else None
        written = FilterParams(*[_placeholder(dtype) for dtype in (temperature, other, min_p)])
    return IntervalArguments(params, written, ANY_INT, FLOAT32 if variant.has_ceiling else None)


def _empty_like(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else torch.empty_like(tensor)


def _placeholder(dtype: torch.dtype | None) -> Pointer | None:
    return None if dtype is None else Pointer(dtype, aligned=False)

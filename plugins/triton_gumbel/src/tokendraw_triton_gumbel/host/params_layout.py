"""The parameters of a batch as kernels read them: contiguous tensors, with placeholders for absent parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw.filters import required_moments
from tokendraw.plugin import Moment
from tokendraw_triton_gumbel.host.compilation import Pointer
from tokendraw_triton_gumbel.kernels.shared import row_params
from tokendraw_triton_gumbel.kernels.shared.argument_groups import RowParams

FIELDS = (
    *("temperature", "row_index", "seed", "seeded", "positions"),
    *("top_k", "top_p", "min_p", "joint", "logprobs"),
)
"""Fields of the metadata, in the order of :data:`ParamTensors` and :data:`ParamDtypes`."""
ParamTensors = tuple[Tensor | None, ...]
ParamDtypes = Sequence[torch.dtype | None]
param_tensors: Callable[[SamplingMetadata], ParamTensors] = attrgetter(*FIELDS)
"""Returns the tensors of a batch's parameters."""
FRESH_SEEDS_INDEX = 4
"""Index of fresh seeds among the parameters of a kernel: in front of the positions."""
INTERVAL_FIELDS = ("temperature_last", "xtc_probability", "xtc_threshold")
"""Fields of the metadata for kept intervals, in the order of :class:`.IntervalParams`."""
_MEMO = "triton-gumbel: layout of parameters"
_PRESENCE_BITS = tuple(
    bit.value
    for bit in (
        row_params.HAS_INDEX,
        row_params.HAS_SEEDS,
        row_params.HAS_SEEDED,
        row_params.HAS_POSITIONS,
        row_params.HAS_TOP_K,
        row_params.HAS_TOP_P,
        row_params.HAS_MIN_P,
        row_params.HAS_JOINT,
    )
)
_LEAST_MOMENTS: tuple[Moment, ...] = ("log_mass",)
"""The moment that takes no further sums of tiles."""
_HAS_FRESH: int = row_params.HAS_FRESH.value


class ParamsLayout(NamedTuple):
    """The properties of a batch's parameters in the keys of compiled calls."""

    has_filters: bool
    """Whether a filter may be active."""
    max_logprobs: int | None
    """The largest number of logprobs; None: no row wants any."""
    all_seeded: bool
    is_contiguous: bool
    """Whether the tensors of slots are contiguous."""
    dtypes: tuple[torch.dtype | None, ...]
    """Dtypes of all tensors, in the order of :data:`FIELDS`."""
    given_dtype: torch.dtype | None
    """Dtype of ``logprob_token_ids``; None: no row gives any."""
    moments: tuple[Moment, ...]
    """The moments of rows that filters read; some moment if there are filters, even if these read none."""
    interval: tuple[torch.dtype | None, ...] | None
    """Dtypes of :data:`INTERVAL_FIELDS`; None: no row may ask for XTC or ``temperature_last``."""


def params_layout(m: SamplingMetadata) -> ParamsLayout:
    """Return the layout of a batch's parameters.

    It is derived once for all metadata that differs in positions alone, whose place in memory is not part of it.
    """
    layout: ParamsLayout | None = m.memo.get(_MEMO)
    if layout is None:
        layout = m.memo[_MEMO] = _derive_layout(m, param_tensors(m))
    return layout


def interval_tensors(m: SamplingMetadata) -> ParamTensors:
    """Return the tensors of :data:`INTERVAL_FIELDS` that rows may use, contiguous."""
    tensors = [getattr(m, name) if m.facts.may_use(name) else None for name in INTERVAL_FIELDS]
    return tuple([None if tensor is None else tensor.contiguous() for tensor in tensors])


def rows_are_contiguous(m: SamplingMetadata) -> bool:
    """Return whether positions and row index, not part of the layout, are contiguous."""
    positions, row_index = m.positions, m.row_index
    return (positions is None or positions.is_contiguous()) and (
        row_index is None or row_index.is_contiguous()
    )


def contiguous_params(m: SamplingMetadata) -> tuple[ParamTensors, ParamsLayout]:
    """Return the parameters as kernels can read them, copied where need be, and their layout."""
    tensors, layout = param_tensors(m), params_layout(m)
    if layout.is_contiguous and rows_are_contiguous(m):
        return tensors, layout
    copies = tuple([None if tensor is None else tensor.contiguous() for tensor in tensors])
    return copies, _derive_layout(m, copies)


def presence_flags(dtypes: ParamDtypes, *, has_fresh_seeds: bool) -> int:
    """Return the present parameters of a batch as bits for the kernels."""
    bits: int = sum(bit for bit, dtype in zip(_PRESENCE_BITS, dtypes[1:-1], strict=True) if dtype is not None)
    return bits + (_HAS_FRESH if has_fresh_seeds else 0)


def placeholders(dtypes: ParamDtypes) -> RowParams:
    """Return the placeholders of temperature, row_index, ..., joint, floor for compilation.

    Every kernel but that of a batch without temperatures reads all of them, so that one serves every kind of request:
    what is absent has a dtype too.
    """
    real, whole, truth = dtypes[0] or torch.float32, torch.int64, torch.bool
    defaults = (None, whole, whole, truth, whole, whole, real, real, truth)
    expected = [dtype or default for dtype, default in zip(dtypes[:-1], defaults, strict=True)]
    expected.insert(FRESH_SEEDS_INDEX, whole)
    expected.append(torch.float32)
    return RowParams(*[None if dtype is None else Pointer(dtype, aligned=False) for dtype in expected])


def _derive_layout(m: SamplingMetadata, tensors: ParamTensors) -> ParamsLayout:
    facts, ids = m.facts, m.given_ids
    has_interval = facts.any_xtc or facts.any_temperature_last
    has_filters = (
        facts.max_top_k != 0 or facts.any_top_p or facts.any_min_p or facts.any_filters or has_interval
    )
    temperature, _, seed, seeded, _, *others = tensors
    slots = (temperature, seed, seeded, *others)
    is_contiguous = False not in [tensor.is_contiguous() for tensor in slots if tensor is not None]
    dtypes = tuple([None if tensor is None else tensor.dtype for tensor in tensors])
    return ParamsLayout(
        has_filters,
        facts.max_logprobs,
        facts.all_seeded,
        is_contiguous,
        dtypes,
        None if ids is None else ids.dtype,
        (required_moments(facts.filters) or _LEAST_MOMENTS) if facts.filters else (),
        tuple([None if tensor is None else tensor.dtype for tensor in interval_tensors(m)])
        if has_interval
        else None,
    )

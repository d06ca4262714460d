"""The parameters of a batch as the kernels read them: one element behind the other, and stood in for where absent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw import BatchFacts, SamplingMetadata
from tokendraw_triton_gumbel.host.compilation import Pointer
from tokendraw_triton_gumbel.kernels.shared import row_params
from tokendraw_triton_gumbel.kernels.shared.argument_groups import RowParams

NAMES = (
    *("temperature", "row_index", "seed", "seeded", "positions"),
    *("top_k", "top_p", "min_p", "joint", "logprobs"),
)
"""Fields of the metadata, in the order in which they are kept here."""
MaybeTensors = tuple[Tensor | None, ...]
tensors_of: Callable[[SamplingMetadata], MaybeTensors] = attrgetter(*NAMES)
_MEMO = "triton-gumbel: kind of parameters"
FRESH = 4
"""Index of fresh seeds when a kernel is given all of them: in front of the positions."""
_BITS = tuple(
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
_HAS_FRESH: int = row_params.HAS_FRESH.value
_WHOLE, _TRUTH = torch.int64, torch.bool

Types = Sequence[torch.dtype | None]


class ParamsKind(NamedTuple):
    """The properties of a batch's parameters that decide how kernels read them."""

    filtered: bool
    """Whether a filter may be active."""
    max_logprobs: int | None
    """The largest number of logprobs; None: no row wants any."""
    all_seeded: bool
    dense: bool
    """Whether the tensors of slots lie one element behind the other."""
    types: tuple[torch.dtype | None, ...]
    """Layouts of all tensors, in the order of :data:`NAMES`."""


def readable(tensors: MaybeTensors) -> MaybeTensors:
    """Return parameters as kernels can read them: copies of those that do not lie one element behind the other."""
    return tuple([None if tensor is None else tensor.contiguous() for tensor in tensors])


def kind_of(m: SamplingMetadata) -> ParamsKind:
    """Return the kind of a batch's parameters.

    It is concluded once for all metadata that differs in positions alone, whose place in memory is not part of it.
    """
    found: ParamsKind | None = m.memo.get(_MEMO)
    if found is None:
        found = m.memo[_MEMO] = kind_by(m.facts, tensors_of(m))
    return found


def kind_by(facts: BatchFacts, tensors: MaybeTensors) -> ParamsKind:
    """Conclude it from what the batch may hold, and from its tensors."""
    filtered = facts.max_top_k != 0 or facts.any_top_p or facts.any_min_p
    temperature, _, seed, seeded, _, *others = tensors
    slots = (temperature, seed, seeded, *others)
    dense = False not in [tensor.is_contiguous() for tensor in slots if tensor is not None]
    types = tuple([None if tensor is None else tensor.dtype for tensor in tensors])
    return ParamsKind(filtered, facts.max_logprobs, facts.all_seeded, dense, types)


def are_placed_densely(m: SamplingMetadata) -> bool:
    """Return whether the tensors that metadata at other positions does not share lie one element behind the other."""
    positions, row_index = m.positions, m.row_index
    return (positions is None or positions.is_contiguous()) and (
        row_index is None or row_index.is_contiguous()
    )


def presence(types: Types, *, fresh: bool) -> int:
    """Return which parameters a batch has, as bits for the kernels.

    :param fresh: whether rows get fresh seeds.
    """
    bits: int = sum(bit for bit, dtype in zip(_BITS, types[1:-1], strict=True) if dtype is not None)
    return bits + (_HAS_FRESH if fresh else 0)


def stand_ins(types: Types) -> RowParams:
    """Return what stands for temperature, row_index, ..., joint where kernels are compiled.

    Every kernel but that of a batch without temperatures reads all of them, so that one serves every kind of request:
    what is absent has a type too.
    """
    real = types[0] or torch.float32
    usual = (None, _WHOLE, _WHOLE, _TRUTH, _WHOLE, _WHOLE, real, real, _TRUTH)
    found = [own or other for own, other in zip(types[:-1], usual, strict=True)]
    found.insert(FRESH, _WHOLE)
    return RowParams(*[None if dtype is None else Pointer(dtype, aligned=False) for dtype in found])

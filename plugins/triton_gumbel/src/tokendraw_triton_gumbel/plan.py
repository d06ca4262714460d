"""What the launches of a call depend on: tuning, variant, layouts of rows and parameters, grids, scratch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw.filters import required_moments
from tokendraw.plugin import Moment
from tokendraw_triton_gumbel.compilation import ANY_INT, Pointer, any_pointer
from tokendraw_triton_gumbel.kernels import rows as row_params
from tokendraw_triton_gumbel.kernels.rows import Counts, RowParams
from tokendraw_triton_gumbel.kernels.values import VECTORS

# A dictionary with a limited number of entries.

_K = TypeVar("_K")
_V = TypeVar("_V")


class BoundedCache(dict[_K, _V]):
    """A dictionary, emptied when full: entries in use come back soon."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def add(self, key: _K, value: _V) -> _V:
        if len(self) >= self.capacity:
            self.clear()
        self[key] = value
        return value


# Configurations of the launches, by architecture and batch size: read from a table, never tuned at run time.
#
# No configuration changes what is drawn: one warp reduces a tile, always in the same order. ``benchmarks/results/
# h200_triton_gumbel_tuning.md`` has the measurements behind the entries; the entry of AMD is not measured.


@dataclass(frozen=True, kw_only=True, eq=False)
class Configuration:
    """Warps, tiles, registers and programs of the launches; compared by identity, as a part of cache keys."""

    span_float32: int = 1
    """Tiles a program of the first pass, of float32 logits."""
    span_16_bit: int = 2
    """Tiles a program of the first pass, of bfloat16 and float16 logits."""
    tile_warps: int = 1
    """Warps a program of the first pass; at most as many as tiles."""
    raw_registers_float32: int | None = None
    """Limit of registers a thread of the first pass where it also sums at T = 1, of float32 logits. NVIDIA."""
    raw_registers_16_bit: int | None = None
    """The same limit, of bfloat16 and float16 logits."""
    row_warps: int = 4
    """Warps that draw a row. The same in all configurations of a kind of device: sums depend on it."""
    plain_row_warps: int = 4
    """Warps that draw a row without filters, where nothing is summed."""
    row_registers: int | None = None
    """Limit of registers a thread that draws a row; None: no limit. NVIDIA."""
    granules_at_once: int = 32
    """Granules that a row reads at once: more take registers, fewer take turns."""
    large_set_warps: int = 4
    """Warps a program of the launch for large sets, and tiles that it reads at once."""
    large_set_registers: int | None = None
    """Limit of registers a thread of the launch for large sets. NVIDIA."""
    large_set_programs: int = 4
    """Programs a multiprocessor of the launch for large sets."""
    large_set_exact_parts: int = 16
    """Parts of a row in its passes after the first, where thresholds are wanted."""

    def span(self, itemsize: int) -> int:
        """Return the tiles a program of the first pass, of logits of ``itemsize`` bytes."""
        return self.span_float32 if itemsize == 4 else self.span_16_bit

    def raw_registers(self, itemsize: int) -> int | None:
        """Return the limit of registers a thread of a first pass with sums at T = 1."""
        return self.raw_registers_float32 if itemsize == 4 else self.raw_registers_16_bit


TABLE = MappingProxyType(
    {
        "cuda": Configuration(
            raw_registers_float32=80,
            raw_registers_16_bit=96,
            row_registers=128,
            large_set_registers=128,
            large_set_exact_parts=4,
        ),
        "cuda, few rows": Configuration(
            span_16_bit=1,
            plain_row_warps=8,
            granules_at_once=64,
            large_set_warps=8,
            large_set_programs=2,
            large_set_registers=128,
        ),
        "hip": Configuration(span_float32=4, span_16_bit=4, tile_warps=4),
    }
)
"""The configurations by kind of device and, on NVIDIA, by batch size."""

SMALL_BATCH_ROWS = 128
"""Upper limit of rows of a small batch, where work once a row costs more than work once a tile."""

_override: ContextVar[Configuration | None] = ContextVar("_override", default=None)
current_override = _override.get
"""Returns the configuration that :func:`override` has set, or None."""


@contextlib.contextmanager
def override(configuration: Configuration) -> Iterator[None]:
    """Launch with ``configuration`` inside the context, whatever the device: for tests and measurements."""
    token = _override.set(configuration)
    try:
        yield
    finally:
        _override.reset(token)


def configuration_for(family: str, rows: int) -> Configuration:
    """Look up the configuration for a batch.

    :param family: ``cuda`` or ``hip``; ``cpu`` for the interpreter, which takes the one of ``cuda``.
    """
    overriding = current_override()
    if overriding is not None:
        return overriding
    if family == "hip":
        return TABLE["hip"]
    return TABLE["cuda, few rows" if rows <= SMALL_BATCH_ROWS else "cuda"]


# How kernels read the rows of a caller's tensor: dtype, alignment, stride and vectors.


def with_unit_stride(rows: Tensor) -> Tensor:
    """Return rows of neighbouring elements, whatever the row stride: a copy if need be."""
    return rows if rows.stride(1) == 1 else rows.contiguous()


class RowAccess(NamedTuple):
    """The properties of a tensor [rows, columns] in the compilation of a kernel."""

    dtype: torch.dtype
    is_aligned: bool
    """Whether every row begins at a multiple of 16 bytes: the address of the first says nothing by itself."""
    has_wide_stride: bool
    """Whether the row stride takes more than 31 bits."""

    @classmethod
    def of(cls, tensor: Tensor) -> RowAccess:
        stride = tensor.stride(0)
        return cls(tensor.dtype, stride % 16 == 0 and tensor.data_ptr() % 16 == 0, stride >> 31 > 0)

    @property
    def pointer(self) -> Pointer:
        return Pointer(self.dtype, self.is_aligned)

    @property
    def stride(self) -> int:
        """Return the placeholder for the row stride: a multiple of 16 is of use only where the rows are aligned."""
        return (1 << 32 if self.has_wide_stride else 0) + (16 if self.is_aligned else ANY_INT)

    @property
    def ulp_step(self) -> int:
        """Return the number of float32 keys from one value of the dtype to the next."""
        return 65536 if self.dtype == torch.bfloat16 else 1

    @property
    def vector(self) -> int:
        """Return the number of logits in 16 bytes."""
        vector: int = VECTORS[str(self.dtype).removeprefix("torch.")]
        return vector


# Scratch of a call: an allocation, cut into buffers by rows, requests or programs.

PER_CALL, PER_ROW, PER_REQUEST, PER_PROGRAM = range(4)
"""Indices of the counts that a buffer may grow with: 1, rows, requests, programs of the launch for large sets."""
_ALIGNMENT_BYTES = 256
_MAX_LAYOUTS = 256
"""Upper limit of cached layouts."""
_ABSENT = -1
"""Index of no buffer, where the arguments for all buffers end with None."""
Buffer = tuple[torch.dtype, int] | tuple[torch.dtype, int, int]
"""The arguments of :meth:`Scratch.reserve`."""


class Scratch:
    """The scratch buffers of a variant."""

    def __init__(self) -> None:
        self._dtypes: list[torch.dtype] = []
        self._sizes: list[tuple[int, int]] = []
        """Bytes for each of a count, and the index of the count."""
        self._offsets: BoundedCache[tuple[int, ...], list[int]] = BoundedCache(_MAX_LAYOUTS)

    def reserve(self, dtype: torch.dtype, elements: int = 1, per: int = PER_ROW) -> int:
        """Reserve a buffer of so many elements for each of the count number ``per``; return its index."""
        self._dtypes.append(dtype)
        self._sizes.append((elements * dtype.itemsize, per))
        return len(self._sizes) - 1

    def fields(self, *buffers: Buffer | int | None) -> Callable[[Sequence[Any]], Any]:
        """Return the function from the arguments for all buffers to the fields of a group of arguments.

        :param buffers: one a field: a new buffer, the index of an earlier one, or None.
        """
        return itemgetter(
            *[
                _ABSENT if each is None else each if isinstance(each, int) else self.reserve(*each)
                for each in buffers
            ]
        )

    def placeholders(self) -> list[Pointer | None]:
        """Return placeholders of all buffers, and None."""
        return [*map(Pointer, self._dtypes), None]

    def offsets(self, counts: tuple[int, ...]) -> list[int]:
        """Compute the offset of each buffer in an allocation, and at the end the bytes of the allocation."""
        offsets = self._offsets.get(counts)
        if offsets is None:
            sizes = [
                -(-nbytes * counts[per] // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for nbytes, per in self._sizes
            ]
            offsets = self._offsets.add(counts, list(accumulate(sizes, initial=0)))
        return offsets

    def buffer(self, index: int, memory: Tensor, offset: int, count: int) -> Tensor:
        """Return the first ``count`` parts of a buffer at an offset in ``memory`` [bytes] uint8: [elements]."""
        return memory[offset : offset + self._sizes[index][0] * count].view(self._dtypes[index])

    def buffers(self, memory: Tensor, counts: tuple[int, ...]) -> list[Tensor | None]:
        """Return all buffers, [elements] each, and None."""
        places = enumerate(zip(self.offsets(counts), self._sizes, strict=False))
        return [*[self.buffer(i, memory, offset, counts[per]) for i, (offset, (_, per)) in places], None]


# Variants of calls: the properties in the choice of kernels, without sizes and addresses.

CHOSEN, LOGITS, PROBS, COUPLED = (
    kind.value for kind in (row_params.CHOSEN, row_params.LOGITS, row_params.PROBS, row_params.COUPLED)
)
"""Kinds of drafts."""


class Target(NamedTuple):
    """The device of the launches, and the precision of their noise."""

    family: str
    """``cuda`` or ``hip``; ``cpu`` for the interpreter."""
    processors: int
    """Multiprocessors of the device."""
    fp64: bool
    """Whether the noise is float64."""

    @property
    def is_nvidia(self) -> bool:
        """Return whether kernels may use PTX."""
        return self.family == "cuda"

    def options(self, warps: int, registers: int | None = None) -> dict[str, int]:
        """Return compiler options: warps a program and, on NVIDIA, a limit of registers a thread."""
        return {"num_warps": warps} | ({"maxnreg": registers} if registers and self.is_nvidia else {})


class VerifyVariant(NamedTuple):
    """The properties of drafts in the choice of the kernels of a verification."""

    draft_kind: int
    is_block: bool
    """Whether the drafts of a request are judged together."""
    max_steps: int
    """A power of two above K, the upper limit of drafts a request."""
    is_padded: bool
    """Whether the ids of drafts are [requests, K], padded."""
    q: RowAccess | None
    """Logits or probabilities of the drafts, if they are known."""
    id_dtype: torch.dtype
    offset_dtype: torch.dtype


class Variant(NamedTuple):
    """The properties of a call in the choice of kernels and constants."""

    logits: RowAccess
    vocab_size: int
    params: ParamsLayout
    num_best: int | None
    """N of the logprobs, at most V; None: no row wants any."""
    wants_ranks: bool
    """Whether ranks of drawn tokens come with their logprobs."""
    wants_least_kept: bool
    """Whether the least kept logit of each row is wanted."""
    has_raw_sums: bool
    """Whether the mass at T = 1 is needed beside the mass at the row's temperature."""
    is_aligned: bool
    """Whether the rows of drafts, too, begin at multiples of 16 bytes where their logits are drawn from."""
    configuration: Configuration
    has_fresh_seeds: bool
    """Whether a row may have no seed of its own."""
    verify: VerifyVariant | None = None
    is_scored: bool = False
    """Whether tokens are given, to be scored."""
    is_drawn: bool = True
    """Whether the rows are drawn: for their tokens, for the argmax of greedy rows, or for the thresholds of filters."""
    has_entropy_sums: bool = False
    """Whether the pass over the logits sums up entropies too."""

    @property
    def has_logprobs(self) -> bool:
        """Return whether any row wants logprobs."""
        return self.num_best is not None

    @property
    def has_ceiling(self) -> bool:
        """Return whether a row may ask for XTC."""
        return self.params.interval is not None and self.params.interval[1] is not None

    @property
    def is_tempered_last(self) -> bool:
        """Return whether the filters of a row may look at another temperature than the draw."""
        return self.params.interval is not None and self.params.interval[0] is not None

    @property
    def has_second_sums(self) -> bool:
        """Return whether the pass sums up each tile at a second temperature."""
        has_temperature = self.params.dtypes[0] is not None
        return self.has_raw_sums or (self.is_tempered_last and self.has_logprobs and has_temperature)

    @property
    def draws_logprobs(self) -> bool:
        """Return whether the draw itself writes the logprobs of drawn tokens: N = 0 asks for no more."""
        return (
            self.num_best == 0 and not self.params.has_filters and self.verify is None and not self.is_scored
        )

    @property
    def weighs_kept(self) -> bool:
        """Return whether a score has the entropy of kept tokens, which the pass over the logits cannot sum up."""
        return self.is_scored and not self.has_entropy_sums

    @property
    def draws_drafts(self) -> bool:
        """Return whether rows of drafts follow those of the target."""
        return self.verify is not None and self.verify.draft_kind == LOGITS

    @property
    def needs_thresholds(self) -> bool:
        """Return whether exact thresholds and kept masses are needed, not just tokens."""
        return self.is_exact or self.params.interval is not None

    @property
    def is_exact(self) -> bool:
        """Return whether the exact thresholds and kept masses of all rows are needed."""
        judges_by_probs = self.verify is not None and self.verify.draft_kind != COUPLED
        return self.has_logprobs or self.wants_least_kept or judges_by_probs


class CallSize(NamedTuple):
    """The counts of rows, requests and drafts in a call."""

    rows: int
    """Number of rows of the target, or of the logits that are sampled."""
    requests: int = 0
    draft_rows: int = 0
    """Rows of logits or probabilities of drafts, if they are known."""
    max_drafts: int = 0
    """K."""


Grid = tuple[int, int, int]


class Geometry(NamedTuple):
    """The grids and the scratch layout of a variant at a size."""

    size: CallSize
    counts: Counts
    """Counts that kernels get."""
    scratch_counts: tuple[int, ...]
    """Counts that scratch is laid out for."""
    scratch_offsets: list[int]
    """Offsets of the buffers of scratch, and at the end its number of bytes."""
    tile_grid: Grid
    row_grid: Grid
    large_set_grid: Grid
    verify_grids: Sequence[Grid]
    """Of ``weigh_blocks`` and ``accept_drafts``."""


# The parameters of a batch as kernels read them: contiguous tensors, with placeholders for absent parameters.

_FLAG_OF_FIELD = {
    "temperature": 0,
    "row_index": row_params.HAS_INDEX.value,
    "seed": row_params.HAS_SEEDS.value,
    "seeded": row_params.HAS_SEEDED.value,
    "positions": row_params.HAS_POSITIONS.value,
    "top_k": row_params.HAS_TOP_K.value,
    "top_p": row_params.HAS_TOP_P.value,
    "min_p": row_params.HAS_MIN_P.value,
    "joint": row_params.HAS_JOINT.value,
    "logprobs": 0,
}
"""Fields of the metadata, and the bits by which kernels know that they are present."""
FIELDS = tuple(_FLAG_OF_FIELD)
"""The order of :data:`ParamTensors` and :data:`ParamDtypes`."""
ParamTensors = tuple[Tensor | None, ...]
ParamDtypes = Sequence[torch.dtype | None]
param_tensors: Callable[[SamplingMetadata], ParamTensors] = attrgetter(*FIELDS)
"""Returns the tensors of a batch's parameters."""
FRESH_SEEDS_INDEX = 4
"""Index of fresh seeds among the parameters of a kernel: in front of the positions."""
INTERVAL_FIELDS = ("temperature_last", "xtc_probability", "xtc_threshold")
"""Fields of the metadata for kept intervals, in the order of :class:`~.kernels.interval.IntervalParams`."""
_MEMO = "triton-gumbel: layout of parameters"
_LEAST_MOMENTS: tuple[Moment, ...] = ("log_mass",)
"""The moment that takes no further sums of tiles."""


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
    flags = zip(_FLAG_OF_FIELD.values(), dtypes, strict=True)
    bits: int = sum(flag for flag, dtype in flags if dtype is not None)
    return bits + (row_params.HAS_FRESH.value if has_fresh_seeds else 0)


def param_placeholders(dtypes: ParamDtypes) -> RowParams:
    """Return the placeholders of the parameters for compilation.

    Every kernel but that of a batch without temperatures reads all of them, so that one serves every kind of request:
    what is absent has a dtype too.
    """
    real, whole, truth = dtypes[0] or torch.float32, torch.int64, torch.bool
    defaults = (None, whole, whole, truth, whole, whole, real, real, truth, None)
    expected = [dtype or default for dtype, default in zip(dtypes, defaults, strict=True)]
    expected[-1] = torch.float32  # floors
    expected.insert(FRESH_SEEDS_INDEX, whole)
    return RowParams(*map(any_pointer, expected))


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

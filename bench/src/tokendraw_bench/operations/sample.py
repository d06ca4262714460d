"""Times the operation ``sample``: a token for each row of a buffer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import tokendraw
from tokendraw_bench.cells import BATCH, DTYPE, REQUESTS, VOCABULARY, Cell, logits_record
from tokendraw_bench.operation import Prepare, Preset

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw import Need, Sampler, SamplingMetadata
    from tokendraw_bench.timing import Draw

    _Part: TypeAlias = tuple[Cell, SamplingMetadata]

PRESETS = MappingProxyType(
    {
        "quick": Preset(
            shapes=((1, 32_000), (64, 32_000)),
            axes={"dtype": ("float32",), "family": ("peaked-30",), "filters": ("none", "both")},
        ),
        # The shapes that samplers for GPUs are held to. Top-k alone costs what it costs with top-p behind it.
        "design": Preset(
            shapes=((1024, 151_936), (256, 151_936), (64, 128_256), (1, 128_256)),
            axes={
                "dtype": ("float32", "bfloat16"),
                "family": ("peaked-7", "peaked-30", "gaussian", "flat"),
                "filters": ("none", "both", "top-p"),
            },
        ),
    }
)


def _make_logits(cell: Cell, device: torch.device, generator: torch.Generator) -> Tensor:
    import torch

    from tokendraw_bench.logits import make_rows, pad_rows

    rows = make_rows(cell.family, cell.num_rows, cell.vocab_size, device, generator)
    return pad_rows(rows.to(getattr(torch, cell.dtype)), cell.row_padding)


def _load(name: str, device: torch.device, need: Need) -> Sampler:
    return tokendraw.load_sampler(name, device=device, need=need, companion=False)


def _step(sampler: Sampler, cell: Cell, metadata: SamplingMetadata) -> Draw:
    return functools.partial(sampler.sample, metadata=metadata)


def split(cell: Any, device: torch.device) -> tuple[Tensor, _Part, _Part]:
    """Divide the special rows of a cell from the batch.

    :returns: the indices [special rows], the cell and metadata of the batch without special rows, and theirs.
    :raises SamplerUnavailableError: no row is special.
    """
    import torch

    from tokendraw import SamplerUnavailableError, SamplingMetadata
    from tokendraw_bench.logits import metadata_of

    if not cell.special_rows:
        raise SamplerUnavailableError("it needs rows for the companion, found none; add --special")
    common = replace(cell, special="none", seeded=False)
    params = [replace(cell.requests[row], seed=cell.seeds[row]) for row in cell.special_rows]
    metadata = SamplingMetadata.from_params(params, device=device, positions=cell.special_rows)
    rows = torch.tensor(cell.special_rows, device=device)
    return rows, (common, metadata_of(common, device)), (replace(cell, batch=len(rows)), metadata)


def _baselines() -> Mapping[str, Prepare]:
    from tokendraw_bench.baselines import flashinfer_draw, torch_sort

    return {
        "torch-sort": torch_sort,
        "flashinfer-direct": flashinfer_draw,
        "flashinfer-unfused": functools.partial(flashinfer_draw, may_fuse=False),
    }


BENCH = logits_record(
    name="sample",
    cell=Cell,
    axes=(BATCH, VOCABULARY, DTYPE, *REQUESTS),
    presets=PRESETS,
    make_inputs=_make_logits,
    step=_step,
    load=_load,
    baselines=_baselines,
)

"""Times the operation ``sample``: a token for each row of a buffer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import tokendraw
from tokendraw_bench.axes import BATCH, DTYPE, REQUESTS, VOCABULARY
from tokendraw_bench.cells import Cell
from tokendraw_bench.logits_record import logits_record
from tokendraw_bench.operation import Prepare, Preset

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw import Need, Sampler, SamplingMetadata
    from tokendraw_bench.timing.timer import Draw

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

    from tokendraw_bench.logits import make_rows

    rows = make_rows(cell.family, cell.num_rows, cell.vocab_size, device, generator)
    return rows.to(getattr(torch, cell.dtype))


def _load(name: str, device: torch.device, need: Need) -> Sampler:
    return tokendraw.load_sampler(name, device=device, need=need, companion=False)


def _step(sampler: Sampler, cell: Cell, metadata: SamplingMetadata) -> Draw:
    return functools.partial(sampler.sample, metadata=metadata)


def _baselines() -> Mapping[str, Prepare]:
    from tokendraw_bench.baselines import flashinfer
    from tokendraw_bench.baselines.torch_sort import torch_sort

    return {"torch-sort": torch_sort, "flashinfer-direct": flashinfer.prepare}


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

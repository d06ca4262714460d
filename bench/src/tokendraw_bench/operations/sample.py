"""Times the operation ``sample``: a token for each row of a buffer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from tokendraw_bench.cells import BATCH, DTYPE, REQUESTS, VOCABULARY, Cell, logits_record
from tokendraw_bench.operation import Prepare, Preset

if TYPE_CHECKING:
    import torch
    from torch import Tensor

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


def _baselines() -> Mapping[str, Prepare]:
    from tokendraw_bench.baselines import flashinfer_draw, torch_sort, vllm_draw

    return {
        "torch-sort": torch_sort,
        "flashinfer-direct": flashinfer_draw,
        "flashinfer-unfused": functools.partial(flashinfer_draw, may_fuse=False),
        "vllm-direct": vllm_draw,
    }


BENCH = logits_record(
    name="sample",
    cell=Cell,
    axes=(BATCH, VOCABULARY, DTYPE, *REQUESTS),
    presets=PRESETS,
    make_inputs=_make_logits,
    step=lambda sampler, cell, metadata: functools.partial(sampler.sample, metadata=metadata),
    baselines=_baselines,
)

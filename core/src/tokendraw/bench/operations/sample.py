"""Times the operation ``sample``: one token for each row of a buffer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import tokendraw
from tokendraw._exchange.capabilities import FILTER_ORDERS, Capabilities, Need
from tokendraw._exchange.row_limits import unserved
from tokendraw.bench.cells import FAMILIES, Cell
from tokendraw.bench.operation import BenchOperation, Prepare, Preset

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw._exchange.metadata import SamplingMetadata
    from tokendraw._loading.sampler import Sampler
    from tokendraw.bench.timing.timer import Draw

NEED = Need(filter_orders=FILTER_ORDERS)
"""Draw each cell in a filter order that the sampler has."""
PRESETS = MappingProxyType(
    {
        "quick": Preset(
            shapes=((1, 32_000), (64, 32_000)),
            dtypes=("float32",),
            filters=("none", "both"),
            families=("peaked-30",),
        ),
        # The shapes that samplers for GPUs are held to. Top-k alone costs what it costs with top-p behind it.
        "design": Preset(
            shapes=((1024, 151_936), (256, 151_936), (64, 128_256), (1, 128_256)),
            dtypes=("float32", "bfloat16"),
            filters=("none", "both", "top-p"),
            families=FAMILIES,
        ),
    }
)


def _make_buffer(cell: Cell, device: torch.device, generator: torch.Generator) -> Tensor:
    from tokendraw.bench.logits import make_rows

    return make_rows(cell.family, cell.num_rows, cell.vocab_size, device, generator)


def _load(name: str, device: torch.device, dtype: str, vocab_size: int) -> Sampler:
    """Load exactly one sampler, whichever order of filters it has."""
    need = replace(NEED, dtype=dtype, vocab_size=vocab_size)
    return tokendraw.load_sampler(name, device=device, need=need, companion=False)


def _lacking(capabilities: Capabilities, cell: Cell, metadata: SamplingMetadata) -> str | None:
    return unserved(capabilities, metadata.facts, cell.vocab_size)


def _step(sampler: Sampler, cell: Cell, metadata: SamplingMetadata) -> Draw:
    return functools.partial(sampler.sample, metadata=metadata)


def _baselines() -> Mapping[str, Prepare]:
    from tokendraw.bench.baselines import flashinfer
    from tokendraw.bench.baselines.torch_sort import torch_sort

    return {"torch-sort": torch_sort, "flashinfer-direct": flashinfer.prepare}


BENCH = BenchOperation(
    name="sample",
    cell=Cell,
    presets=PRESETS,
    need=NEED,
    make_buffer=_make_buffer,
    load=_load,
    lacking=_lacking,
    step=_step,
    baselines=_baselines,
)

"""Times the operation ``sample``: a token for each row of a buffer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from tokendraw import Need
from tokendraw.plugin import FILTER_ORDERS
from tokendraw_bench.cells import ADVERTISED, BATCH, DTYPE, REQUESTS, VOCABULARY, Cell
from tokendraw_bench.operation import BenchOperation, Prepare, Preset

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw import SamplingMetadata

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
        "flashinfer-unfused": partial(flashinfer_draw, may_fuse=False),
        "vllm-direct": vllm_draw,
    }


def _metadata(cell: Cell, device: torch.device) -> SamplingMetadata:
    from tokendraw_bench.logits import metadata_of

    return metadata_of(cell, device)


def _nucleus(cell: Cell, logits: Tensor) -> Mapping[str, float]:
    from tokendraw_bench.logits import mean_nucleus

    first = logits[: cell.batch]  # behind these may lie others, which draw nothing
    return {"nucleus": mean_nucleus(first, cell.temperature or 1.0, cell.top_p)}


def _renew(metadata: SamplingMetadata) -> None:
    """Advance seeded rows to their next positions."""
    if metadata.positions is not None:
        metadata.positions.add_(1)


def _need_of(cell: Cell | None) -> Need:
    """Return the need of a cell's draws, in any filter order; for None the need of every cell."""
    if cell is None:
        return Need(filter_orders=FILTER_ORDERS)
    return Need(
        filter_orders=FILTER_ORDERS,
        gumbel_dtype=cell.gumbel_dtype,
        dtype=cell.dtype,
        vocab_size=cell.vocab_size,
        tie_rule=None if cell.tie_rule == ADVERTISED else cell.tie_rule,
        logprobs_mode=cell.logprobs_mode,
        logprob_ranks=cell.logprob_ranks,
    )


def _head_of(cell: Cell) -> str:
    """Describe the parameters and noise of the rows of a run."""
    rows = "seeded" if cell.seeded and cell.special == "none" else "unseeded"
    ranks = "" if cell.logprob_ranks else ", no ranks"
    parameters = f"T = {cell.temperature:g}, k = {cell.top_k}, p = {cell.top_p:g}, min-p = {cell.min_p:g}"
    return f"{parameters}; {rows} rows, {_noise(cell)} noise{ranks}."


def _noise(cell: Cell) -> str:
    return cell.gumbel_dtype.replace("fp", "float")


logits_record = partial(
    BenchOperation,
    shape=("batch", "vocab_size"),
    arguments=_metadata,
    need=_need_of,
    measured=_nucleus,
    head=_head_of,
    renew=_renew,
)
"""Makes the record of an operation on the logits of a :class:`Cell`."""

BENCH = logits_record(
    name="sample",
    cell=Cell,
    axes=(BATCH, VOCABULARY, DTYPE, *REQUESTS),
    presets=PRESETS,
    make_inputs=_make_logits,
    step=lambda sampler, cell, metadata: partial(sampler.sample, metadata=metadata),
    baselines=_baselines,
)

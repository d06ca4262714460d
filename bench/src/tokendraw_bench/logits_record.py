"""Defaults of the records of operations on logits. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from tokendraw import Need
from tokendraw.plugin import FILTER_ORDERS
from tokendraw.tools import all_of
from tokendraw_bench.cells import MIN_P, TEMPERATURE, TOP_K, TOP_P, Cell
from tokendraw_bench.operation import BenchOperation

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw import SamplingMetadata


def _metadata(cell: Cell, device: torch.device) -> SamplingMetadata:
    from tokendraw_bench.logits import metadata_of

    return metadata_of(cell, device)


def _nucleus(cell: Cell, logits: Tensor) -> Mapping[str, float]:
    from tokendraw_bench.logits import mean_nucleus

    first = logits[: cell.batch]  # behind these may lie others, which draw nothing
    return {"nucleus": mean_nucleus(first)}


def _need_of(cell: Cell | None) -> Need:
    """Return the need of a cell's draws, in any filter order; for None the need of every cell."""
    if cell is None:
        return Need(filter_orders=FILTER_ORDERS)
    return Need(
        filter_orders=FILTER_ORDERS,
        gumbel_dtype=cell.gumbel_dtype,
        dtype=cell.dtype,
        vocab_size=cell.vocab_size,
    )


def _head_of(cell: Cell) -> str:
    """Describe the parameters and noise of the rows of a run."""
    rows = "seeded" if cell.seeded else "unseeded"
    return f"T = {TEMPERATURE}, k = {TOP_K}, p = {TOP_P}, min-p = {MIN_P}; {rows} rows, {_noise(cell)} noise."


def _baseline_noise(cell: Cell, names: Sequence[str]) -> str:
    if cell.gumbel_dtype == "fp32" or not names:
        return ""
    draw = "draws" if len(names) == 1 else "draw"
    return f"{all_of(names)} {draw} by another method, whose noise is not {_noise(cell)}."


def _noise(cell: Cell) -> str:
    return cell.gumbel_dtype.replace("fp", "float")


logits_record = partial(
    BenchOperation,
    shape=("batch", "vocab_size"),
    arguments=_metadata,
    need=_need_of,
    measured=_nucleus,
    head=_head_of,
    baseline_note=_baseline_noise,
    constants=MappingProxyType({"temperature": TEMPERATURE, "top_k": TOP_K, "top_p": TOP_P, "min_p": MIN_P}),
    has_picture=True,
)
"""Makes the record of an operation on the logits of a :class:`Cell`."""

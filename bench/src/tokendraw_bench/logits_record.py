"""Defaults of the records of operations on logits. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tokendraw import Need
from tokendraw.plugin import FILTER_ORDERS
from tokendraw.tools import all_of
from tokendraw_bench.cells import ADVERTISED, Cell
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
    renew=_renew,
)
"""Makes the record of an operation on the logits of a :class:`Cell`."""

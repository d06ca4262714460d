"""Baselines that need no plugin: the pipeline of sorts in plain torch, and FlashInfer called directly.

Their parameters are tensors by row, as in a batch of different requests. None of them waits for the device, and none
takes seeds by row: each draws with the noise of the launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tokendraw._discovery.installed import installed_version
from tokendraw._exchange.host import Host
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw.bench.cells import Cell
from tokendraw.bench.contenders import flashinfer as _flashinfer
from tokendraw.bench.contenders.parameters import Parameters
from tokendraw.bench.timing.timer import Call


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A contender that is no plugin, and what it needs to run."""

    name: str
    versions: Callable[[], dict[str, str]]
    """Finds the versions of what it needs, by distribution."""
    lacks: Callable[[Host], str | None]
    """Says what a machine lacks that it needs, in words, or None."""


def torch_sort(cell: Cell, metadata: SamplingMetadata) -> tuple[Call]:
    """Draw as engines do: divide by T, sort, mask, softmax, divide by exponential noise, argmax.

    The token is looked up in the sorted order, which is cheaper than to scatter the probabilities back. Without
    filters nothing is sorted.
    """
    rows = Parameters.of(cell, metadata)
    temperature = rows.temperature[:, None]
    kth = None if rows.top_k is None else rows.top_k[:, None] - 1
    mass = None if rows.top_p is None else rows.top_p[:, None].where(rows.top_p[:, None] < 1, torch.inf)
    depth = None if rows.min_p is None else rows.min_p[:, None].log()

    sorts = not (kth is None and mass is None and depth is None)

    def draw(logits: Tensor) -> Tensor:
        y = logits.float() / temperature
        if not sorts:
            return _race(y)
        y, order = y.sort(dim=-1, descending=True)
        if depth is not None:
            y = y.masked_fill(y < y[:, :1] + depth, -torch.inf)
        if kth is not None:
            y = y.masked_fill(y < y.gather(-1, kth), -torch.inf)
        if mass is not None:
            probability = y.softmax(-1)
            y = y.masked_fill(probability.cumsum(-1) - probability >= mass, -torch.inf)
        return order.gather(-1, _race(y)[:, None])[:, 0]

    return (Call(draw=draw),)


def _race(y: Tensor) -> Tensor:
    """Draw once a row: take the largest of the probabilities over exponential noise."""
    probability = y.softmax(-1)
    return probability.div_(torch.empty_like(probability).exponential_()).argmax(-1)


BASELINES = (
    Baseline(
        name="torch-sort",
        versions=lambda: {"torch": str(torch.__version__)},
        lacks=lambda host: None,
    ),
    Baseline(
        name="flashinfer-direct",
        versions=lambda: {_flashinfer.DISTRIBUTION: installed_version(_flashinfer.DISTRIBUTION) or ""},
        lacks=_flashinfer.lacks,
    ),
)
"""The operations say what each can do: :attr:`tokendraw.bench.operation.BenchOperation.baselines`."""

"""The pipeline of sorts in plain torch, with parameters by row. It does not wait for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw_bench.baselines.parameters import BaselineParameters
from tokendraw_bench.cells import Cell
from tokendraw_bench.timing.timer import TimedCall


def torch_sort(cell: Cell, metadata: SamplingMetadata) -> tuple[TimedCall]:
    """Draw as engines do: divide by T, sort, mask, softmax, divide by exponential noise, argmax.

    The token is looked up in the sorted order, which is cheaper than to scatter the probabilities back. Without
    filters nothing is sorted.
    """
    rows = BaselineParameters.of(cell, metadata)
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

    return (TimedCall(draw=draw),)


def _race(y: Tensor) -> Tensor:
    """Draw once a row: take the largest of the probabilities over exponential noise."""
    probability = y.softmax(-1)
    return probability.div_(torch.empty_like(probability).exponential_()).argmax(-1)

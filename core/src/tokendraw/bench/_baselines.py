"""Baselines that need no plugin: the pipeline of sorts in plain torch, and FlashInfer called directly.

Their parameters are tensors by row, as in a batch of different requests. None of them waits for the device, and none
takes seeds by row: each draws with the noise of the launch.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokendraw import _upstream
from tokendraw._capabilities import Host
from tokendraw._metadata import SamplingMetadata
from tokendraw.bench._cells import Cell
from tokendraw.bench._timing import Call

_FLASHINFER = "flashinfer-python"


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A contender that is no plugin."""

    name: str
    versions: Callable[[], dict[str, str]]
    """Of what it needs, by distribution."""
    lacks: Callable[[Host], str | None]
    """What a machine lacks that it needs, in words, or None."""
    prepare: Callable[[Cell, SamplingMetadata], Call]


@dataclass(frozen=True)
class _Rows:
    """What each row asks for, [B]; None where no row does."""

    temperature: Tensor
    top_k: Tensor | None
    """int64; V where it is off."""
    top_p: Tensor | None
    """float32; 1 where it is off."""
    min_p: Tensor | None
    """float32; 0 where it is off."""


def _rows(cell: Cell, metadata: SamplingMetadata) -> _Rows:
    facts, k, p, m = metadata.facts, metadata.top_k, metadata.top_p, metadata.min_p
    assert metadata.temperature is not None
    return _Rows(
        metadata.temperature.float(),
        torch.where(k > 0, k, cell.vocab_size) if k is not None and facts.max_top_k else None,
        p.float() if p is not None and facts.any_top_p else None,
        m.float() if m is not None and facts.any_min_p else None,
    )


def torch_sort(cell: Cell, metadata: SamplingMetadata) -> Call:
    """What engines write: divide by T, sort, mask, softmax, divide by exponential noise, argmax.

    The token is looked up in the sorted order, which is cheaper than to scatter the probabilities back. Without
    filters nothing is sorted.
    """
    rows = _rows(cell, metadata)
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

    return Call(draw=draw)


def _race(y: Tensor) -> Tensor:
    """One draw a row: the largest of the probabilities over exponential noise."""
    probability = y.softmax(-1)
    return probability.div_(torch.empty_like(probability).exponential_()).argmax(-1)


def flashinfer(cell: Cell, metadata: SamplingMetadata) -> Call:
    """FlashInfer's softmax, then its sampler for these filters; of mixed rows, its renormalisations one by one.

    It counts mixed rows' min-p after the other filters, which changes what is kept and not what it costs. A graph
    captures the seed of a launch by value, so it is given here; older versions cannot be given one.
    """
    sampling: Any = importlib.import_module("flashinfer.sampling")
    rows = _rows(cell, metadata)
    top_k = None if rows.top_k is None else rows.top_k.int()
    top_p, min_p = rows.top_p, rows.min_p
    takes_seed = {"seed", "offset"} <= inspect.signature(sampling.sampling_from_probs).parameters.keys()
    seed = {"seed": 1, "offset": 0} if takes_seed else {}

    def draw(logits: Tensor) -> object:
        probability = sampling.softmax(logits, temperature=rows.temperature)
        if min_p is not None:
            if top_k is not None:
                probability = sampling.top_k_renorm_probs(probability, top_k)
            if top_p is not None:
                probability = sampling.top_p_renorm_probs(probability, top_p)
            return sampling.min_p_sampling_from_probs(probability, min_p, **seed)
        if top_k is not None and top_p is not None:
            return sampling.top_k_top_p_sampling_from_probs(probability, top_k, top_p, **seed)
        if top_k is not None:
            return sampling.top_k_sampling_from_probs(probability, top_k, **seed)
        if top_p is not None:
            return sampling.top_p_sampling_from_probs(probability, top_p, **seed)
        return sampling.sampling_from_probs(probability, **seed)

    return Call(draw=draw, graph_safe=takes_seed)


def _lacks_flashinfer(host: Host) -> str | None:
    if host.device_type != "cuda":
        return f"needs an NVIDIA GPU, found {host.device_type}"
    if _upstream.installed_version(_FLASHINFER) is None:
        return f"needs {_FLASHINFER}, found it not installed; run `pip install {_FLASHINFER}`"
    return None


BASELINES = (
    Baseline(
        name="torch-sort",
        versions=lambda: {"torch": str(torch.__version__)},
        lacks=lambda host: None,
        prepare=torch_sort,
    ),
    Baseline(
        name="flashinfer-direct",
        versions=lambda: {_FLASHINFER: _upstream.installed_version(_FLASHINFER) or ""},
        lacks=_lacks_flashinfer,
        prepare=flashinfer,
    ),
)

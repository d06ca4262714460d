"""Logits of a family and the metadata of their rows, made on the device, and the size of the nucleus in them.

* ``peaked-7``, ``peaked-30`` and so on to ``peaked-2000``, like a language model's: probability falls as a power of the
  rank, with the power at which so many tokens make up ``TOP_P`` of the mass at ``TEMPERATURE``, in an order of its own
  in every row.
* ``mixed-nuclei``, peaked rows of different widths, as servers meet them: most nuclei have one to three tokens, a tenth
  100, one in fifty 3,200.
* ``gaussian``, of standard deviation 2.5: the nucleus holds about 3 % of a large vocabulary, so thousands.
* ``flat``, uniform in [0, 0.1): the nucleus holds nine tenths of the vocabulary.
* unusual ones: ``equal``; ``two-values``, a tenth of them 1 above the rest; ``ascending`` and ``descending``, sorted;
  ``cauchy``, with heavy tails; ``masked``, 99 % of them -inf.

The halves are rounded from float32, so that they hold ties as logits of a model do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw_bench.cells import TEMPERATURE, TOP_P, Cell, min_vocab_size, nucleus_of_row

_MEASURED_ROWS = 16
_MAX_POWER = 16.0


def make_rows(
    family: str, rows: int, vocab_size: int, device: torch.device, generator: torch.Generator
) -> Tensor:
    """Make logits of a family: [rows, V] float32.

    :raises ValueError: the vocabulary has no room for its nucleus.
    """
    if vocab_size < min_vocab_size(family):
        raise ValueError(
            f"{family} needs a vocabulary of {min_vocab_size(family)} or more, found {vocab_size}."
        )
    logits = torch.empty(rows, vocab_size, device=device)
    if family == "gaussian":
        return logits.normal_(0.0, 2.5, generator=generator)
    if family == "flat":
        return logits.uniform_(0.0, 0.1, generator=generator)
    if family in _UNUSUAL:
        return _UNUSUAL[family](logits, generator)
    log_ranks = torch.arange(1, vocab_size + 1, device=device).float().log()
    for index, row in enumerate(logits):
        steepness = power_of(nucleus_of_row(family, index), vocab_size)
        row.copy_(log_ranks[torch.randperm(vocab_size, generator=generator, device=device)])
        row.mul_(-steepness * TEMPERATURE)
    return logits


def pad_rows(logits: Tensor, padding: int) -> Tensor:
    """Move logits [rows, V] into a buffer with ``padding`` unused elements behind each row; 0: leave them."""
    return torch.nn.functional.pad(logits, (0, padding))[:, : logits.shape[1]] if padding else logits


def _spread_out(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Fill in Gaussian logits of standard deviation 3."""
    return logits.normal_(0.0, 3.0, generator=generator)


def _cauchy(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Fill in heavy tails, within the range of float16."""
    return logits.uniform_(generator=generator).sub_(0.5).mul_(torch.pi).tan_().clamp_(-60_000, 60_000)


def _masked(logits: Tensor, generator: torch.Generator) -> Tensor:
    dropped = torch.empty_like(logits).uniform_(generator=generator) < 0.99
    dropped[:, logits.shape[1] // 2] = False
    return _spread_out(logits, generator).masked_fill_(dropped, float("-inf"))


_UNUSUAL: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]] = MappingProxyType(
    {
        "equal": lambda x, generator: x.copy_(x[:, :1].uniform_(generator=generator).clone()),
        "two-values": lambda x, generator: (x.uniform_(generator=generator) < 0.1).float(),
        "ascending": lambda x, generator: _spread_out(x, generator).sort(-1).values,
        "descending": lambda x, generator: _spread_out(x, generator).sort(-1, descending=True).values,
        "cauchy": _cauchy,
        "masked": _masked,
    }
)


@functools.cache
def power_of(nucleus: int, vocab_size: int) -> float:
    """Find the s of a Zipf distribution, probability ~ rank ** -s, with ``nucleus`` tokens in the mass ``TOP_P``.

    ``TOP_P`` falls into the middle of the last token's mass, so that rounding does not change the nucleus.
    """
    log_ranks = torch.arange(1, vocab_size + 1, dtype=torch.float64).log()
    low, high = 0.0, _MAX_POWER
    for _ in range(50):
        middle = (low + high) / 2
        weights = (-middle * log_ranks).exp()
        inside = weights[: nucleus - 1].sum() + weights[nucleus - 1] / 2
        low, high = (middle, high) if inside < TOP_P * weights.sum() else (low, middle)
    return high


def mean_nucleus(logits: Tensor, temperature: float = TEMPERATURE, top_p: float = TOP_P) -> float:
    """Count the tokens of the nucleus of top-p alone, ties included: the mean over the first rows."""
    y = logits[:_MEASURED_ROWS].double() / temperature
    ranked = y.sort(dim=-1, descending=True).values
    probability = ranked.softmax(-1)
    inside = probability.cumsum(-1) - probability < top_p
    last = inside.sum(-1, keepdim=True) - 1
    return float((y >= ranked.gather(-1, last)).sum(-1).double().mean())


def metadata_of(cell: Cell, device: torch.device) -> SamplingMetadata:
    """Make the metadata of a cell; seeds and positions are different in every row."""
    requests, rows, seeds = cell.requests, cell.row_index, cell.seeds
    if not any(seed is not None for seed in seeds):
        return SamplingMetadata.from_params(requests, device=device, row_index=rows)
    requests = [replace(request, seed=seed) for request, seed in zip(requests, seeds, strict=True)]
    positions = range(len(requests if rows is None else rows))
    return SamplingMetadata.from_params(requests, device=device, positions=positions, row_index=rows)

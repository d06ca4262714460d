"""Logits of a family, made on the device, and the size of the nucleus that a sampler meets in them.

* ``peaked-7`` and ``peaked-30``, like a language model's: probability falls as a power of the rank, with the power at
  which 7 or 30 tokens make up ``TOP_P`` of the mass at ``TEMPERATURE``, in an order of its own in every row.
* ``gaussian``, of standard deviation 2.5: the nucleus holds about 3 % of a large vocabulary, so thousands.
* ``flat``, uniform in [0, 0.1): the nucleus holds nine tenths of the vocabulary.

The halves are rounded from float32, so that they hold ties as logits of a model do.

A draft's logits are those of the target at its row plus Gaussian noise of standard deviation 0.5. The draft itself is a
token that was drawn from them, but with the columns of both rows swapped so that its id depends on nothing but the row:
one tensor of ids fits every buffer. Rejection accepts about three drafts of four, of flat logits fewer; coupled accepts
fewer everywhere, since these drafts share no noise with the target.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from torch import Tensor

from tokendraw import speculative
from tokendraw.bench.cells import PEAKED, TEMPERATURE, TOP_K, TOP_P, Cell, VerifyCell

_DRAFT_NOISE = 0.5
_MEASURED_ROWS = 16
_STEEPEST = 16.0


def make(cell: Cell, device: torch.device, count: int) -> list[Tensor]:
    """``count`` buffers [rows, V] of different rows; the same in every run on a kind of device."""
    generator = torch.Generator(device).manual_seed(1)
    dtype = getattr(torch, cell.dtype)
    return [_buffer(cell, device, generator).to(dtype) for _ in range(count)]


def draft_ids(cell: VerifyCell, device: torch.device) -> Tensor:
    """The drafts of every buffer of a cell: [B * K] int64."""
    generator = torch.Generator(device).manual_seed(2)
    return torch.randint(
        cell.vocab_size, (cell.batch * cell.drafts,), generator=generator, device=device, dtype=torch.int64
    )


def _buffer(cell: Cell, device: torch.device, generator: torch.Generator) -> Tensor:
    """The rows of a cell; of a verification the target's, and below them the drafts' where the mode looks at them."""
    if not isinstance(cell, VerifyCell):
        return _rows(cell, device, generator)
    target = _rows(replace(cell, batch=cell.num_target_rows), device, generator)
    ids = draft_ids(cell, device).unsqueeze(-1)
    counts = torch.full((cell.batch,), cell.drafts, device=device)
    judging = speculative.target_rows(speculative.cu_num_logits(counts), len(ids))
    draft = target[judging]
    draft += _DRAFT_NOISE * torch.empty_like(draft).normal_(generator=generator)
    drawn = _drawn(draft, generator)
    for rows, at in (
        (target, judging.unsqueeze(-1)),
        (draft, torch.arange(len(ids), device=device)[:, None]),
    ):
        rows[at, drawn], rows[at, ids] = rows[at, ids], rows[at, drawn]
    return target if cell.mode == "coupled" else torch.cat([target, draft])


def _drawn(logits: Tensor, generator: torch.Generator) -> Tensor:
    """A token a row [rows, 1] that every filter keeps, so that it may have been drawn under any."""
    best, ids = logits.topk(TOP_K)
    probability = (best / TEMPERATURE).softmax(-1)
    probability = probability.where(probability.cumsum(-1) - probability < TOP_P, 0.0)
    return ids.gather(-1, probability.multinomial(1, generator=generator))


def _rows(cell: Cell, device: torch.device, generator: torch.Generator) -> Tensor:
    logits = torch.empty(cell.batch, cell.vocab_size, device=device)
    if cell.family == "gaussian":
        return logits.normal_(0.0, 2.5, generator=generator)
    if cell.family == "flat":
        return logits.uniform_(0.0, 0.1, generator=generator)
    steepness = power_of(PEAKED[cell.family], cell.vocab_size)
    ranked = -steepness * TEMPERATURE * torch.arange(1, cell.vocab_size + 1, device=device).float().log()
    for row in logits:
        row.copy_(ranked[torch.randperm(cell.vocab_size, generator=generator, device=device)])
    return logits


@functools.cache
def power_of(nucleus: int, vocab_size: int) -> float:
    """The s for which the ``nucleus`` likeliest tokens make up ``TOP_P``, where rank r has probability ~ r ** -s.

    The last of them is the one that crosses ``TOP_P``, half of it on either side, so that rounding moves nobody.
    """
    log_ranks = torch.arange(1, vocab_size + 1, dtype=torch.float64).log()
    low, high = 0.0, _STEEPEST
    for _ in range(50):
        middle = (low + high) / 2
        weights = (-middle * log_ranks).exp()
        inside = weights[: nucleus - 1].sum() + weights[nucleus - 1] / 2
        low, high = (middle, high) if inside < TOP_P * weights.sum() else (low, middle)
    return high


def mean_nucleus(logits: Tensor) -> float:
    """Tokens that top-p alone keeps at ``TEMPERATURE``, ties included: the mean over the first rows."""
    y = logits[:_MEASURED_ROWS].double() / TEMPERATURE
    ranked = y.sort(dim=-1, descending=True).values
    probability = ranked.softmax(-1)
    inside = probability.cumsum(-1) - probability < TOP_P
    last = inside.sum(-1, keepdim=True) - 1
    return float((y >= ranked.gather(-1, last)).sum(-1).double().mean())

"""Families of logits for comparisons, made on the device: rows [B, V] float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tokendraw_bench import make_rows

Family = Callable[[int, int, torch.Generator], Tensor]


def _normal(rows: int, size: int, g: torch.Generator) -> Tensor:
    return torch.randn(rows, size, generator=g, device=g.device)


def _uniform(rows: int, size: int, g: torch.Generator) -> Tensor:
    return torch.rand(rows, size, generator=g, device=g.device)


def _of_bench(family: str, rows: int, size: int, g: torch.Generator) -> Tensor:
    return make_rows(family, rows, size, g.device, g)


def _gaussian(rows: int, size: int, g: torch.Generator) -> Tensor:
    """Make independent Gaussian logits of standard deviation 3."""
    return _normal(rows, size, g).mul_(3)


def _zipf(rows: int, size: int, g: torch.Generator) -> Tensor:
    """Make logits peaked like a language model's, in a new order in every row."""
    ranks = _uniform(rows, size, g).argsort(-1).float().add_(1)
    return ranks.log_().mul_(-1.3).add_(12).add_(_normal(rows, size, g), alpha=0.05)


def _bimodal(rows: int, size: int, g: torch.Generator) -> Tensor:
    """Make logits with a tenth of them 18 above the rest."""
    return _of_bench("two-values", rows, size, g).mul_(18).sub_(9).add_(_normal(rows, size, g), alpha=0.5)


def _tied(rows: int, size: int, g: torch.Generator) -> Tensor:
    """Round logits to bfloat16, so that most values occur several times."""
    return _gaussian(rows, size, g).bfloat16().float()


AGREEMENT: dict[str, Family] = {
    "gaussian": _gaussian,
    "zipf": _zipf,
    "all equal": partial(_of_bench, "equal"),
    "bimodal": _bimodal,
    "cauchy": partial(_of_bench, "cauchy"),
    "tied": _tied,
    "ascending": partial(_of_bench, "ascending"),
    "descending": partial(_of_bench, "descending"),
    "99 % -inf": partial(_of_bench, "masked"),
}

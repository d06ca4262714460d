"""Logits that samplers meet or stumble over, made on the device: rows [B, V] float32 of one family."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Family = Callable[[int, int, torch.Generator], Tensor]
_INF = float("inf")


def _normal(rows: int, size: int, g: torch.Generator) -> Tensor:
    return torch.randn(rows, size, generator=g, device=g.device)


def _uniform(rows: int, size: int, g: torch.Generator) -> Tensor:
    return torch.rand(rows, size, generator=g, device=g.device)


def gaussian(rows: int, size: int, g: torch.Generator) -> Tensor:
    """Independent Gaussian logits of standard deviation 3."""
    return _normal(rows, size, g).mul_(3)


def zipf(rows: int, size: int, g: torch.Generator) -> Tensor:
    """Logits peaked like a language model's, in another order in every row."""
    ranks = _uniform(rows, size, g).argsort(-1).float().add_(1)
    return ranks.log_().mul_(-1.3).add_(12).add_(_normal(rows, size, g), alpha=0.05)


def equal(rows: int, size: int, g: torch.Generator) -> Tensor:
    """Equal logits."""
    return _uniform(rows, 1, g).expand(rows, size).contiguous()


def two_values(rows: int, size: int, g: torch.Generator) -> Tensor:
    """A tenth of the tokens 1 above the others: ties by the thousand."""
    return (_uniform(rows, size, g) < 0.1).float()


def bimodal(rows: int, size: int, g: torch.Generator) -> Tensor:
    """A tenth of the tokens 18 above the others."""
    return two_values(rows, size, g).mul_(18).sub_(9).add_(_normal(rows, size, g), alpha=0.5)


def cauchy(rows: int, size: int, g: torch.Generator) -> Tensor:
    """Heavy tails, within what float16 holds."""
    return _uniform(rows, size, g).sub_(0.5).mul_(torch.pi).tan_().clamp_(-60_000, 60_000)


def tied(rows: int, size: int, g: torch.Generator) -> Tensor:
    """Rounded to bfloat16, so that most values occur several times."""
    return gaussian(rows, size, g).bfloat16().float()


def ascending(rows: int, size: int, g: torch.Generator) -> Tensor:
    """Sorted, the largest last."""
    return gaussian(rows, size, g).sort(-1).values


def descending(rows: int, size: int, g: torch.Generator) -> Tensor:
    """Sorted, the largest first."""
    return gaussian(rows, size, g).sort(-1, descending=True).values


def mostly_dropped(rows: int, size: int, g: torch.Generator) -> Tensor:
    """99 % of the tokens -inf."""
    logits = gaussian(rows, size, g)
    dropped = _uniform(rows, size, g) < 0.99
    dropped[:, size // 2] = False
    return logits.masked_fill_(dropped, -_INF)


AGREEMENT: dict[str, Family] = {
    "gaussian": gaussian,
    "zipf": zipf,
    "all equal": equal,
    "bimodal": bimodal,
    "cauchy": cauchy,
    "tied": tied,
    "ascending": ascending,
    "descending": descending,
    "99 % -inf": mostly_dropped,
}
WORST: dict[str, Family] = {
    "all equal": equal,
    "two values": two_values,
    "ascending": ascending,
    "descending": descending,
    "cauchy": cauchy,
    "99 % -inf": mostly_dropped,
}

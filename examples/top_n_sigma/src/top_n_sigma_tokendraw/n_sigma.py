"""The filter: keep every token with a logit within n standard deviations of the largest.

Tang, Liu, Xu and Huang, "Top-n-sigma: Not All Logits Are You Need", 2024, arXiv 2411.07641. Most logits are noise,
roughly Gaussian; the few that matter stand out above it, and the distance from the maximum in units of the noise says
which these are. Maximum and deviation grow alike with 1 / T, so the kept set is the same at any temperature.

The deviation is that of the finite logits, divided by their number, as in llama.cpp: tokens that a grammar forbids
with -inf have no part in it. Implementations with ``torch.std`` divide by one less; at a vocabulary of
32,000 that widens the band by a factor of 1.000016.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kept_count(order: Tensor, n_sigma: Tensor) -> Tensor:
    """Count the kept tokens of each row, its largest values: [B, 1] int64, at least 1.

    :param order: [B, V] float32 in descending order, without NaN.
    :param n_sigma: [B, 1] floating point; a row with n <= 0 or NaN keeps all V.
    """
    x = order.to(n_sigma.dtype)
    finite = x.isfinite()
    number = finite.sum(-1, keepdim=True).clamp(min=1)
    mean = x.where(finite, 0.0).sum(-1, keepdim=True) / number
    variance = (x - mean).square().where(finite, 0.0).sum(-1, keepdim=True) / number
    largest = torch.finfo(x.dtype).max  # finite, so that it leaves an infinite maximum as it is
    band = (n_sigma.clamp(max=largest) * variance.sqrt()).clamp(max=largest)
    count = (x >= x[:, :1] - band).sum(-1, keepdim=True)
    return count.where(n_sigma > 0, order.shape[-1])

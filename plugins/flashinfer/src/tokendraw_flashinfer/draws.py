"""How each way of :mod:`tokendraw_flashinfer.ways` calls FlashInfer.

A batch comes with parameters that are in range and clean probabilities (:mod:`tokendraw.probabilities`). What its
kernels do, beyond what their documentation says:

* ``top_k_sampling_from_probs``, ``top_k_renorm_probs`` and the joint kernel take a k of V or more as off. With k = 0
  they keep nothing.
* The rejection kernels keep a token if what lies above it counts fewer than k and weighs less than p. So they keep all
  ties, and any p above the sum of a row is off.
* ``top_k_top_p_sampling_from_probs`` with ``top_k_first`` and a k for each row is ``top_k_renorm_probs`` followed by
  ``top_p_sampling_from_probs``, which are called here one by one. With one k for all rows it may choose k tokens among
  ties, from 0.7 on.
* ``top_p_renorm_probs`` keeps the same tokens as ``top_p_sampling_from_probs``, p being a share of the sum of the row.
  From 2048 tokens on it counts the last warp's buckets twice where p is not reached: of a flat row a p of 2 is reached
  as early as a p of 1, which may be before the last token. And it takes 65535 rows at most, a dimension of its grid;
  of more it draws up none, and says nothing.
* ``min_p_sampling_from_probs`` keeps ``probs >= min_p * max``, also tokens without any mass if that is 0.
* The fused sampler takes its seed from torch's generator on the host, and keeps k of the tokens tied with the k-th, the
  lowest ids first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Final, TypeAlias

import torch
from torch import Tensor

from tokendraw.probabilities import Filters, drop_below, top_p_of_kept
from tokendraw_flashinfer import ways
from tokendraw_flashinfer.ways import Kind, Way

OFF_IN_RENORM: Final = 1e30
"""A top-p with which ``top_p_renorm_probs`` keeps every token."""
MOST_ROWS_OF_RENORM: Final = 65535

Drawn: TypeAlias = tuple[Tensor, Tensor | None]
"""Token ids [rows] int32, and [rows] bool: which rows had a distribution to draw from, where the kernel tells."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows to be drawn, and the module ``flashinfer.sampling`` to draw them with."""

    sampling: ModuleType
    cake: ModuleType | None
    """The module ``flashinfer.cake_sampling``, where there is one."""
    probs: Tensor
    """[rows, V] float32, contiguous: at the temperatures of the rows. May be overwritten."""
    wanted: Filters
    largest_top_k: int
    """At least the largest k in ``wanted``."""
    seed: Tensor
    """[1] int64. One seed serves the launch: kernels up to 0.7.1 read no other element."""
    offset: Tensor
    """[1] int64."""

    @property
    def noise(self) -> dict[str, Tensor]:
        """Seed and offset as tensors: as numbers, a CUDA graph would keep those of its capture."""
        return {"seed": self.seed, "offset": self.offset}

    def filtered(self) -> tuple[Tensor, Tensor | None]:
        """Apply min-p, in place; also returns the top-p that then counts what its row wants counted."""
        probs, wanted = self.probs, self.wanted
        if wanted.min_p is None:
            return probs, wanted.top_p
        mass = drop_below(probs, wanted.min_p)
        if wanted.top_p is None or wanted.joint is None:
            return probs, wanted.top_p
        return probs, top_p_of_kept(wanted.top_p, wanted.joint, mass)


def kind_of(wanted: Filters) -> Kind:
    """What a batch may ask for."""
    if wanted.top_k is not None and wanted.top_p is not None:
        if wanted.joint is None:
            return "top_k_first"
        return "both orders" if wanted.any_top_k_first else "joint"
    if wanted.top_k is not None:
        return "top_k"
    if wanted.top_p is not None:
        return "top_p"
    return "none" if wanted.min_p is None else "min_p"


def _plain(batch: Batch) -> Drawn:
    probs, _ = batch.filtered()
    drawn: Drawn = batch.sampling.sampling_from_probs(probs, return_valid=True, **batch.noise)
    return drawn


def _min_p(batch: Batch) -> Drawn:
    assert batch.wanted.min_p is not None
    # Above 0 in every row, so that nothing without mass counts as kept.
    min_p = batch.wanted.min_p.clamp(min=1e-30)
    drawn: Drawn = batch.sampling.min_p_sampling_from_probs(
        batch.probs, min_p=min_p, return_valid=True, **batch.noise
    )
    return drawn


def _top_k(batch: Batch) -> Drawn:
    probs, _ = batch.filtered()
    drawn: Drawn = batch.sampling.top_k_sampling_from_probs(
        probs, top_k=batch.wanted.top_k, return_valid=True, **batch.noise
    )
    return drawn


def _top_p(batch: Batch) -> Drawn:
    probs, top_p = batch.filtered()
    return _nucleus(batch, probs, top_p)


def _top_k_renorm_top_p(batch: Batch) -> Drawn:
    return _nucleus(batch, *_top_k_renorm(batch))


def _joint(batch: Batch) -> Drawn:
    probs, top_p = batch.filtered()
    drawn: Drawn = batch.sampling.top_k_top_p_sampling_from_probs(
        probs,
        top_k=batch.wanted.top_k,
        top_p=top_p,
        filter_apply_order="joint",
        return_valid=True,
        **batch.noise,
    )
    return drawn


def _fused(batch: Batch) -> Drawn:
    assert batch.cake is not None
    probs, top_p = batch.filtered()
    tokens: Tensor = batch.cake.top_k_top_p_sampling_from_probs(
        probs,
        batch.wanted.top_k,
        1.0 if top_p is None else top_p.clamp(max=1.0),
        top_k_max=batch.largest_top_k,  # without it the device would be waited for
    )
    return tokens, None


def _top_k_renorm(batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Serves both orders: the top-p of joint rows is restated for what top-k left."""
    probs, top_p = batch.filtered()
    kept: Tensor = batch.sampling.top_k_renorm_probs(probs, batch.wanted.top_k)
    if top_p is not None and batch.wanted.joint is not None:
        top_p = top_p_of_kept(top_p, batch.wanted.joint, probs.amax(-1) / kept.amax(-1))
    return kept, top_p


def kept(batch: Batch) -> Tensor:
    """What every way draws from, [rows, V]: the probabilities of the tokens that the rows keep, the others 0."""
    probs, top_p = batch.filtered() if batch.wanted.top_k is None else _top_k_renorm(batch)
    if top_p is None:
        return probs
    renormalised: Tensor = batch.sampling.top_p_renorm_probs(
        probs, torch.where(top_p < 1, top_p, OFF_IN_RENORM), is_deterministic=True
    )
    return renormalised


def _nucleus(batch: Batch, probs: Tensor, top_p: Tensor | None) -> Drawn:
    drawn: Drawn = batch.sampling.top_p_sampling_from_probs(
        probs, top_p=top_p, return_valid=True, **batch.noise
    )
    return drawn


DRAWS: Mapping[Way, Callable[[Batch], Drawn]] = {
    ways.PLAIN: _plain,
    ways.MIN_P: _min_p,
    ways.TOP_K: _top_k,
    ways.TOP_P: _top_p,
    ways.TOP_K_RENORM_TOP_P: _top_k_renorm_top_p,
    ways.JOINT: _joint,
    ways.FUSED: _fused,
}

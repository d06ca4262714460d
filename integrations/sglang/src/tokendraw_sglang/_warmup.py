"""Makes up batches like SGLang's, so that kernels are compiled for their dtypes before any request."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import torch
from torch import Tensor

import tokendraw
from tokendraw_sglang._metadata import NO_SEED, metadata_of

BATCH_SIZES = (1, 64)
_OFF = 1 << 30
"""SGLang's ``top_k`` of a row that has none."""
_FILTERS = ((), ("top_k",), ("top_p",), ("min_p",), ("top_k", "top_p"), ("top_k", "top_p", "min_p"))


def warm_up(sampler: tokendraw.Sampler, logits: Tensor) -> None:
    """Draw from every kind of batch; torch's random state is left alone, and on a CPU nothing is drawn.

    :param logits: [B, V], whose shape, dtype, layout and device the batches to come have too. Not read.
    """
    sampler.warmup(
        logits.shape[1],
        dtypes=[logits.dtype],
        row_stride=max(logits.stride(0), logits.shape[1]),
        metadata=batches(logits.device, largest_k=logits.shape[1]),
        progress=False,
    )


def batches(device: torch.device, largest_k: int) -> Iterator[tokendraw.SamplingMetadata]:
    """Yield the metadata of every combination of filters, greedy rows and seeds from SGLang."""
    for rows in BATCH_SIZES:
        positions = torch.arange(rows, device=device)
        for filters in _FILTERS:
            for any_greedy in (False, True):
                for any_seeded in (False, True):
                    yield metadata_of(
                        _info(rows, device, filters, any_greedy, any_seeded, min(50, largest_k)), positions
                    )


def _info(
    rows: int, device: torch.device, filters: tuple[str, ...], any_greedy: bool, any_seeded: bool, k: int
) -> SimpleNamespace:
    """Fill in the fields for :func:`metadata_of`, in SGLang's dtypes; every second row is plain or greedy."""
    is_plain_row = torch.arange(rows, device=device) % 2 == 0
    top_ks = torch.full((rows,), k if "top_k" in filters else _OFF, dtype=torch.int32, device=device)
    return SimpleNamespace(
        temperatures=torch.full((rows, 1), 0.8, device=device),
        top_ks=top_ks.masked_fill(~is_plain_row, 1) if any_greedy else top_ks,
        top_ps=torch.full((rows,), 0.9 if "top_p" in filters else 1.0, device=device),
        min_ps=torch.full((rows,), 0.05 if "min_p" in filters else 0.0, device=device),
        sampling_seed=torch.where(is_plain_row, 7, NO_SEED) if any_seeded else None,
        is_any_greedy=any_greedy,
        need_top_k_sampling=any_greedy or "top_k" in filters,
        need_top_p_sampling="top_p" in filters,
        need_min_p_sampling="min_p" in filters,
        max_top_k=k if "top_k" in filters else None,
    )

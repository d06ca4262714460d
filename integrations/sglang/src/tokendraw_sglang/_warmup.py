"""Makes up batches like SGLang's, so that kernels are compiled for their dtypes before any request."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

import tokendraw
from tokendraw_sglang._engine import FILTERS, is_deterministic
from tokendraw_sglang._logprobs import LEAST_BEST, Scorer
from tokendraw_sglang._requests import ATTRIBUTE, NO_SEED, metadata_of, warmup_columns

BATCH_SIZES = (1, 64)
_FILTERS = ((), *((name,) for name in FILTERS), ("top_k", "top_p"), tuple(FILTERS))


def warm_up(
    sampler: tokendraw.Sampler,
    logits: Tensor,
    *,
    width: int = 1,
    mode: Literal["block", "rejection"] | None = None,
) -> None:
    """Draw from every kind of batch; torch's random state is left alone, and on a CPU nothing is drawn.

    :param logits: [B, V], whose shape, dtype, layout and device the batches to come have too. Not read.
    :param width: rows of each request in the verifications to come; 1: there will be none.
    :param mode: how they judge drafts by probabilities; None: they draw the token of each row.
    """
    device, vocab_size = logits.device, logits.shape[1]
    verified: dict[str, Any] = {}
    if mode is not None:
        verified = {"max_drafts": width - 1, "verify_modes": [mode], "draft_kinds": ["probs"]}
    sampler.warmup(
        vocab_size,
        dtypes=[logits.dtype],
        row_stride=max(logits.stride(0), vocab_size),
        metadata=batches(
            device,
            largest_k=vocab_size,
            width=1 if mode else width,
            seeds=mode is None or is_deterministic(),
        ),
        progress=False,
        **verified,
    )


def warm_up_scores(scores: Scorer, logits: Tensor, *, width: int = 1, has_temperature: bool = True) -> None:
    """Score the tokens of made-up rows, alone and beside few best tokens."""
    device, vocab_size = logits.device, logits.shape[1]
    stride = max(logits.stride(0), vocab_size)
    made = torch.zeros(max(BATCH_SIZES) * width, stride, dtype=logits.dtype, device=device)[:, :vocab_size]
    for requests, rows, count in product(BATCH_SIZES, sorted({1, width}), (0, LEAST_BEST)):
        temperatures = (
            torch.ones(requests, 1, device=device, dtype=torch.float32) if has_temperature else None
        )
        token_ids = torch.zeros(requests * rows, dtype=torch.int32, device=device)
        wanted = ([count] * requests, [None] * requests)
        scores.rows(made[: requests * rows], token_ids, temperatures, *wanted, rows)


def batches(
    device: torch.device, largest_k: int, *, width: int = 1, seeds: bool = True
) -> Iterator[tokendraw.SamplingMetadata]:
    """Yield the metadata of every combination of filters, greedy rows, seeds and named rules from SGLang.

    :param width: rows of each request where trees of drafts are walked; each combination comes with one row too.
    """
    for requests in BATCH_SIZES:
        seedings = (False, True) if seeds else (False,)
        forms = product(_FILTERS, (False, True), seedings, warmup_columns(requests, device))
        for filters, any_greedy, any_seeded, rules in forms:
            info = _info(requests, device, filters, any_greedy, any_seeded, largest_k)
            setattr(info, ATTRIBUTE, rules)
            for rows in sorted({1, width}):
                yield metadata_of(info, torch.arange(requests * rows, device=device), rows)


def _info(
    rows: int,
    device: torch.device,
    filters: tuple[str, ...],
    any_greedy: bool,
    any_seeded: bool,
    largest_k: int,
) -> SimpleNamespace:
    """Fill in the fields for :func:`metadata_of`, in SGLang's dtypes; every second row is plain or greedy."""
    is_plain_row = torch.arange(rows, device=device) % 2 == 0
    values = {name: each.example if name in filters else each.off for name, each in FILTERS.items()}
    if "top_k" in filters:
        values["top_k"] = min(values["top_k"], largest_k)
    dtypes = dict.fromkeys(FILTERS, torch.float32) | {"top_k": torch.int32}
    info = SimpleNamespace(
        temperatures=torch.full((rows, 1), 0.8, device=device, dtype=torch.float32),
        sampling_seed=torch.where(is_plain_row, 7, NO_SEED) if any_seeded else None,
        is_any_greedy=any_greedy,
        max_top_k=values["top_k"] if "top_k" in filters else None,
        **{
            each.column: torch.full((rows,), values[name], dtype=dtypes[name], device=device)
            for name, each in FILTERS.items()
        },
        **{each.flag: name in filters for name, each in FILTERS.items()},
    )
    if any_greedy:
        info.top_ks.masked_fill_(~is_plain_row, 1)
        info.need_top_k_sampling = True
    return info

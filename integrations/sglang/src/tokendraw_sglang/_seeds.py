"""Carries the seeds of requests to the sampler, by hooks on ``SamplingBatchInfo`` in SGLang's public ``HookRegistry``.

SGLang fills ``sampling_seed`` with ``--enable-deterministic-inference`` alone, which replaces the sampling backend too.
The first hook fills it for batches that tokendraw draws where a request has a seed; SGLang's own ``filter_batch`` and
``merge_batch`` carry it along. The second gives a batch without seeds a column before it is merged with one that has
seeds: SGLang joins columns only where both batches have them.

SGLang's own verification of drafts reads ``sampling_seed`` too and would draw with :data:`NO_SEED` as with a seed, as
would its draws of drafts, so speculative decoding gets seeds where tokendraw verifies and SGLang draws no drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tokendraw_sglang._metadata import NO_SEED
from tokendraw_sglang._verification import carries_seeds

_BATCH = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
_REPLACEMENT_SEED = 2**63 - 1


def hook_seeds() -> None:
    """Register the hooks; SGLang applies them after loading its plugins."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_BATCH}.from_schedule_batch", with_seeds, HookType.AROUND)
    HookRegistry.register(f"{_BATCH}.merge_batch", merge_seeds, HookType.AROUND)


def with_seeds(original: Callable[..., Any], cls: Any, batch: Any, vocab_size: int) -> Any:
    """Make SGLang's parameters of a batch, with the seeds of its requests.

    :param batch: the batch scheduled by SGLang; ``reqs[i].sampling_params.sampling_seed`` is an integer or None.
    """
    info = original(cls, batch, vocab_size)
    seeds = [request.sampling_params.sampling_seed for request in batch.reqs]
    if info.sampling_seed is None and any(seed is not None for seed in seeds) and _draws_here():
        info.sampling_seed = seed_column(seeds, info.temperatures.device)
    return info


def merge_seeds(original: Callable[..., None], info: Any, other: Any) -> None:
    """Merge two batches as SGLang does, after a column of seeds in either batch is matched by a column in the other."""
    for unseeded, seeded in ((info, other), (other, info)):
        if unseeded.sampling_seed is None and seeded.sampling_seed is not None:
            unseeded.sampling_seed = seeded.sampling_seed.new_full((len(unseeded),), NO_SEED)
    original(info, other)


def seed_column(seeds: Sequence[int | None], device: torch.device) -> Tensor:
    """Write seeds as [B] int64 on a device, ``NO_SEED`` for None, without waiting for the device."""
    entries = [NO_SEED if seed is None else _REPLACEMENT_SEED if seed == NO_SEED else seed for seed in seeds]
    column = torch.tensor(entries, dtype=torch.int64, pin_memory=device.type == "cuda", device="cpu")
    return column.to(device, non_blocking=True)


def _draws_here() -> bool:
    from sglang.srt.runtime_context import get_exec, get_spec

    from tokendraw_sglang._registration import BACKEND

    if get_exec().kernel.sampling_backend != BACKEND:
        return False
    return get_spec().speculative_algorithm is None or carries_seeds()

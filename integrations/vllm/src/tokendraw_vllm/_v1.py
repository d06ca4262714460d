"""The V1 runner: replaces ``TopKTopPSampler``, which draws after temperature and min-p, in every process."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from tokendraw import Need
from tokendraw_vllm import _log
from tokendraw_vllm._ranks import choose_for_all, names_or_reason
from tokendraw_vllm._replacement import Replacement, choose, load
from tokendraw_vllm._v1_rows import FilteredRows, metadata_of, unfiltered_seeded_rows

_PART = "V1 sampler"
_ATTRIBUTE = "_tokendraw"
MIN_CPU_VOCABULARY = 32_000
"""Least V that a compiled sampler draws on a CPU. With fewer tokens vLLM is quicker where a single request has top-k
alone, and the choice must not depend on the batch neighbours.
"""
MIN_REFERENCE_VOCABULARY = 100_000
"""The same for the reference in plain PyTorch, unless TOKENDRAW_SAMPLER names it."""


def install() -> None:
    """Have every ``TopKTopPSampler`` of this process draw through tokendraw, existing instances included."""
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    original = TopKTopPSampler.__call__
    if hasattr(original, _ATTRIBUTE):
        return

    @functools.wraps(original)
    def __call__(  # noqa: N807 (the name of the replaced method)
        self: Any, logits: Tensor, generators: dict[int, torch.Generator], k: Tensor | None, p: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        ids = _draw(self, logits, generators, k, p, original)
        return original(self, logits, generators, k, p) if ids is None else (ids, None)

    setattr(__call__, _ATTRIBUTE, True)
    TopKTopPSampler.__call__ = __call__


def _draw(
    sampler: Any,
    logits: Tensor,
    generators: dict[int, torch.Generator],
    k: Tensor | None,
    p: Tensor | None,
    original: Any,
) -> Tensor | None:
    """Draw a token in each row: ids [B] int64; None if vLLM has to.

    On a CPU vLLM draws from all tokens in C++, as quickly as plain PyTorch. Where this is tokendraw's sampler, vLLM
    draws batches without filters, and seeded rows without filters in every other batch, so that their tokens do not
    depend on batch neighbours. A specialised sampler draws all batches.
    """
    if logits.is_cpu and logits.shape[1] < MIN_CPU_VOCABULARY:
        _log.log_kept(
            f"a vocabulary of {logits.shape[1]} is below {MIN_CPU_VOCABULARY}, where vLLM's own may be quicker on a "
            "CPU",
            part=_PART,
        )
        return None
    replacement = _replacement(sampler, logits)
    if replacement is None:
        return None
    leaves_unfiltered = logits.is_cpu and not replacement.is_specialised
    if leaves_unfiltered and k is None and p is None:
        return None
    rows = unfiltered_seeded_rows(generators, k, p, logits.shape[1]) if leaves_unfiltered else []
    if not rows:
        return replacement.draw(logits, lambda: metadata_of(logits, generators, k, p))
    if len(rows) == logits.shape[0]:
        return None
    filtered = FilteredRows.excluding(rows, logits, generators, k, p)
    filtered_ids = replacement.draw(filtered.logits, filtered.metadata)
    if filtered_ids is None:
        return None
    seeded_generators = {index: generators[row] for index, row in enumerate(rows)}
    ids, _ = original(
        sampler, logits[torch.tensor(rows, dtype=torch.int64, device="cpu")], seeded_generators, None, None
    )
    return filtered.merge(filtered_ids, rows, ids.long())


def _replacement(sampler: Any, logits: Tensor) -> Replacement | None:
    """Return the sampler loaded at the first batch; None: vLLM draws."""
    if _ATTRIBUTE not in vars(sampler):
        vars(sampler)[_ATTRIBUTE] = _load(sampler, logits.device, logits.shape[1])
    replacement: Replacement | None = vars(sampler)[_ATTRIBUTE]
    return replacement


def _load(sampler: Any, device: torch.device, vocab_size: int) -> Replacement | None:
    import vllm.envs as envs
    from vllm.config.model import PROCESSED_LOGPROBS_MODES

    mode = sampler.logprobs_mode
    if mode in PROCESSED_LOGPROBS_MODES:
        _log.log_kept(
            f"logprobs_mode={mode!r} returns the filtered logits, which vLLM's own writes", part=_PART
        )
        return None
    need = Need(
        gumbel_dtype="fp64" if sampler.use_fp64_gumbel else "fp32",
        batch_invariant=bool(envs.VLLM_BATCH_INVARIANT),
    )
    reference_is_faster = device.type == "cpu" and vocab_size >= MIN_REFERENCE_VOCABULARY
    names = choose_for_all(  # all ranks draw the batch
        lambda: names_or_reason(lambda: choose(device, need, reference_is_faster=reference_is_faster))
    )
    return load(_PART, device, need, reference_is_faster=reference_is_faster, names=names)

"""Draws of drafts in the V2 runner: replaces ``gumbel_sample`` in the module of vLLM's speculators.

vLLM draws a draft at the temperature of its request and without filters, and keeps the logits for the verification. So
does tokendraw, in one draw and one further launch. The noise is that of drafts, which verifications do not use. It
depends on the step of a draft too, as that of vLLM 0.33.0 does: a position that is drafted again, by the verification
behind the one that rejected it, gets other noise. ``block`` needs this, since a rejection there tells of the drafts
behind the first rejected one; ``rejection`` looks at none of them, so it would do without.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tokendraw import BatchFacts, SamplingMetadata
from tokendraw.engines import changed_signature
from tokendraw_vllm import _log
from tokendraw_vllm._replacement import DRAFTING, Replacement
from tokendraw_vllm._v2_metadata import make_metadata

_ATTRIBUTE = "_tokendraw"
_SIGNATURE = (
    "logits",
    "expanded_idx_mapping",
    "temperature",
    "seed",
    "pos",
    "apply_temperature",
    "is_drafting",
    "logits_cache",
    "logits_cache_col",
    "use_fp64",
)
_FACTS = BatchFacts(max_top_k=0, any_top_p=False, any_min_p=False, any_joint=False, filters=())
_drafters: dict[torch.device, Drafter] = {}
"""By device: the draw that vLLM's speculators call has no other way to the sampler."""


def install(device: torch.device, vocab_size: int, wait_for_load: Callable[[], Replacement | None]) -> None:
    """Have the speculators of this process draw drafts through tokendraw.

    :param vocab_size: of the target. Drafts of a smaller vocabulary are vLLM's.
    :param wait_for_load: waits for the replacement of the sampler on the device; returns None if vLLM draws.
    """
    from vllm.v1.worker.gpu.spec_decode import speculator

    original = getattr(speculator, "gumbel_sample", None)
    reason = changed_signature("gumbel_sample", original, _SIGNATURE)
    if reason is not None:
        _log.log_kept(reason, part=DRAFTING)
        return
    _drafters[device] = Drafter(vocab_size, wait_for_load)
    if original is not None and not hasattr(original, _ATTRIBUTE):
        speculator.gumbel_sample = _wrapped(original)


def _wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def gumbel_sample(
        logits: Tensor,
        expanded_idx_mapping: Tensor,
        temperature: Tensor,
        seed: Tensor,
        pos: Tensor,
        apply_temperature: bool,
        is_drafting: bool,
        logits_cache: Tensor | None = None,
        logits_cache_col: Tensor | None = None,
        *positional: Any,
        **keywords: Any,
    ) -> Tensor:
        drafter = _drafters.get(logits.device)
        is_served = apply_temperature and is_drafting and keywords.keys() <= {"use_fp64"} and not positional
        if drafter is not None and is_served and logits_cache is not None and logits_cache_col is not None:
            drafts = drafter.draw(
                logits, expanded_idx_mapping, temperature, seed, pos, logits_cache, logits_cache_col
            )
            if drafts is not None:
                return drafts
        result: Tensor = original(
            logits,
            expanded_idx_mapping,
            temperature,
            seed,
            pos,
            apply_temperature,
            is_drafting,
            logits_cache,
            logits_cache_col,
            *positional,
            **keywords,
        )
        return result

    setattr(gumbel_sample, _ATTRIBUTE, True)
    return gumbel_sample


class Drafter:
    """Draws the drafts of a device."""

    def __init__(self, vocab_size: int, wait_for_load: Callable[[], Replacement | None]) -> None:
        self._vocab_size = vocab_size
        self._replacement = functools.cache(wait_for_load)
        self._metadata: SamplingMetadata | None = None

    def draw(
        self,
        logits: Tensor,
        slots: Tensor,
        temperature: Tensor,
        seeds: Tensor,
        positions: Tensor,
        cache: Tensor,
        steps: Tensor,
    ) -> Tensor | None:
        """Draw a draft in each row: [rows] int64; None where vLLM draws. Logits are kept in ``cache``.

        :param logits: [rows, V].
        :param slots: [rows] integer; -1 for padding, whose drafts are any.
        :param temperature: [slots] float32.
        :param seeds: [slots] int64.
        :param positions: [rows] integer: index of the token fed last.
        :param cache: [slots, K, V].
        :param steps: [] or [rows] integer: index of the draft among those of a verification.
        """
        replacement = self._replacement()
        if replacement is None or not replacement.draws_drafts:
            return None
        if (
            logits.shape[1] != self._vocab_size
            or cache.shape[2] < self._vocab_size
            or cache.dtype != logits.dtype
        ):
            return None

        def metadata() -> SamplingMetadata:
            from tokendraw_vllm._v2_draft_kernels import DraftRows, keep_logits

            located = keep_logits(DraftRows(logits, slots, positions, steps, cache))
            return self._of_slots(temperature, seeds).for_rows(*located)

        return replacement.draft(logits, metadata)

    def _of_slots(self, temperature: Tensor, seeds: Tensor) -> SamplingMetadata:
        """Describe the columns of the slots. vLLM keeps them, so that the samplers' caches hold."""
        kept = self._metadata
        if kept is None or kept.temperature is not temperature or kept.seed is not seeds:
            columns = {"temperature": temperature, "seeds": seeds}
            self._metadata = kept = make_metadata(columns, _FACTS, {"filters": None}, has_seeds=True)
        return kept

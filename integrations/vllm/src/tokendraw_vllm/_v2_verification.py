"""Verification of drafts in the V2 runner: replaces ``_verify`` of vLLM's ``RejectionSampler``.

Drafts that were chosen, by an argmax or an n-gram, are verified in the mode ``coupled``: it accepts as many as vLLM's
rule, and emits the tokens that plain steps draw at the same seeds and positions. Drafts that were drawn come from the
temperature of the request without its filters, and from logits that vLLM's cache keeps: see :mod:`._v2_drafting`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from tokendraw.plugin import VerifyMode
from tokendraw_vllm._v2_drafts import VerifiedRows
from tokendraw_vllm._v2_processed import drafts_need_processed
from tokendraw_vllm._v2_slots import ATTRIBUTE, Slots, Verified


def wrap_verify(original: Callable[..., Any]) -> Callable[..., Any]:
    """Have tokendraw verify where possible, and vLLM elsewhere."""

    def _verify(
        self: Any,
        logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        pos: Tensor,
        cu_num_logits: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: np.ndarray,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        seq_lens_upper_bound_np: np.ndarray,
        verify_draft_sampled: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        slots: Slots | None = getattr(self.sampler, ATTRIBUTE, None)
        if slots is not None and slots.can_draw():

            def verify() -> Verified | None:
                slots.catch_up(idx_mapping_np)
                if not slots.may_draw_raw(idx_mapping_np):
                    return None
                are_drawn = draft_logits is not None
                if slots.leaves_drafts(idx_mapping_np, logits.shape[0], are_drawn=are_drawn):
                    return None
                if not _is_supported(self, draft_logits, logits.shape[1]):
                    return None
                rows = VerifiedRows(
                    logits,
                    draft_logits,
                    draft_sampled,
                    pos,
                    cu_num_logits,
                    idx_mapping_np,
                    expanded_idx_mapping,
                    expanded_local_pos,
                    verify_draft_sampled,
                    getattr(self, "enable_adaptive_verification", False),
                )
                slots.needs_processed = drafts_need_processed(self.sampler, idx_mapping_np)
                return slots.verify(rows, self.num_speculative_steps, _verify_mode(self, draft_logits))

            verified = slots.attempt(verify, verifies=True)
            if verified is not None:
                processed, output = verified.processed, verified.output
                return (
                    logits if processed is None else processed,
                    output.token_ids,
                    output.num_accepted + 1,
                )
        if slots is not None:
            slots.log_unverified(idx_mapping_np)
        result: tuple[Tensor, Tensor, Tensor] = original(
            self,
            logits,
            draft_logits,
            draft_sampled,
            pos,
            cu_num_logits,
            idx_mapping,
            idx_mapping_np,
            expanded_idx_mapping,
            expanded_local_pos,
            seq_lens_upper_bound_np,
            verify_draft_sampled,
        )
        return result

    return _verify


def _is_supported(sampler: Any, draft_logits: Tensor | None, vocab_size: int) -> bool:
    """Return whether tokendraw has the way in which a ``RejectionSampler`` of vLLM judges drafts."""
    return (
        sampler.synthetic_conditional_rates is None
        and not getattr(sampler, "fly_window_size", 0)
        and sampler.watermark_key is None
        and (draft_logits is None or draft_logits.shape[-1] == vocab_size)
    )


def _verify_mode(sampler: Any, draft_logits: Tensor | None) -> VerifyMode:
    """Return the mode in which tokendraw verifies for a ``RejectionSampler`` of vLLM."""
    if draft_logits is None:
        return "coupled"
    return "block" if sampler.use_block_verification else "rejection"

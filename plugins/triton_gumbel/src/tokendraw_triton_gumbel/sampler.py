"""The sampler and verifier that the plugin builds."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import (
    Drafts,
    LogprobsTensors,
    Need,
    SamplerOutput,
    SamplingMetadata,
    ScoreOutput,
    VerifyOutput,
)
from tokendraw.plugin import VerifyMode, log_kept_mass_by_step, logprobs_by_step
from tokendraw_triton_gumbel.compiled_calls import (
    SAMPLED_SCORE,
    SCORE,
    CallCache,
    CompiledCall,
    LaunchContext,
    RowKind,
    logits_key,
)
from tokendraw_triton_gumbel.kernels import rows as row_params
from tokendraw_triton_gumbel.kernels.rows import CHOSEN, COUPLED, LOGITS, PROBS
from tokendraw_triton_gumbel.kernels.tile_pass import RankedTokens
from tokendraw_triton_gumbel.launch import LaunchDevice, group
from tokendraw_triton_gumbel.plan import (
    Target,
    VerifyVariant,
    contiguous_params,
    param_tensors,
    params_layout,
    row_layout,
    rows_are_contiguous,
    with_unit_stride,
)

# Outputs of batches without rows, drawn or scored, and of verifications without requests.


def empty_sampler_output(logits: Tensor, m: SamplingMetadata, need: Need) -> SamplerOutput:
    """Return the output of zero rows."""
    num_best, logprobs = m.facts.logprobs_width(logits.shape[1]), None
    if num_best is not None:
        logprobs = _empty_logprobs(logits, m, num_best, wants_ranks=need.logprob_ranks)
    return SamplerOutput(
        logits.new_empty(0, dtype=torch.int64),
        logits.new_empty(0, dtype=torch.bool),
        logprobs,
        None if logprobs is None else logits.new_empty(0, dtype=torch.float32),
        logits.new_empty(0, dtype=torch.float32) if need.threshold else None,
        logits.new_empty(0, dtype=torch.float32) if need.threshold and m.facts.any_xtc else None,
    )


def empty_score_output(logits: Tensor, m: SamplingMetadata, need: Need) -> ScoreOutput:
    """Return the scores of zero rows."""
    num_best = m.facts.logprobs_width(logits.shape[1]) or 0
    logprobs = _empty_logprobs(logits, m, num_best, wants_ranks=need.logprob_ranks)
    number = logits.new_empty(0, dtype=torch.float32)
    return ScoreOutput(
        logprobs,
        number,
        number,
        number if need.threshold else None,
        number if need.threshold and m.facts.any_xtc else None,
    )


def empty_verify_output(target: Tensor, drafts: Drafts, m: SamplingMetadata, need: Need) -> VerifyOutput:
    """Return the output of zero requests."""
    width, num_best, logprobs = drafts.max_drafts, m.facts.logprobs_width(target.shape[1]), None
    if num_best is not None:
        logprobs = _empty_logprobs(target, m, num_best, wants_ranks=need.logprob_ranks)
    num_accepted = target.new_empty(0, dtype=torch.int32)
    return VerifyOutput(
        target.new_empty(0, width + 1, dtype=torch.int64),
        num_accepted,
        target.new_empty(0, dtype=torch.bool),
        None if logprobs is None else logprobs_by_step(logprobs, drafts.cu_num_logits, num_accepted, width),
        None if logprobs is None else target.new_empty(0, width + 1, dtype=torch.float32),
        target.new_full((len(target),), float("nan"), dtype=torch.float32) if need.threshold else None,
        target.new_full((len(target),), float("nan"), dtype=torch.float32)
        if need.threshold and m.facts.any_xtc
        else None,
    )


def _empty_logprobs(
    logits: Tensor, m: SamplingMetadata, num_best: int, *, wants_ranks: bool
) -> LogprobsTensors:
    ids = m.given_ids
    return LogprobsTensors(
        logits.new_empty(0, 1 + num_best, dtype=torch.int64),
        logits.new_empty(0, 1 + num_best, dtype=torch.float32),
        logits.new_empty(0, dtype=torch.int64) if wants_ranks else None,
        None if ids is None else logits.new_empty(0, ids.shape[1], dtype=torch.int64),
        None if ids is None else logits.new_empty(0, ids.shape[1], dtype=torch.float32),
    )


# Target and drafts of a verification, converted to the layout of the kernels.

_PROBS_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def draft_inputs(target: Tensor, drafts: Drafts, *, is_coupled: bool) -> tuple[Tensor, Tensor | None, int]:
    """Return the target's logits, logits or probabilities of the drafts, and the kind of the drafts.

    The logits of both get one dtype: where they differ, float32, so that nothing is lost but time.
    """
    target = with_unit_stride(target)
    if is_coupled:
        return target, None, COUPLED
    probs, logits = drafts.draft_probs, drafts.draft_logits
    if probs is not None and len(probs) and len(target) > drafts.num_requests:
        if probs.dtype not in _PROBS_DTYPES:
            probs = probs.to(torch.float32)
        return target, with_unit_stride(probs), PROBS
    if logits is not None and len(logits) and len(target) > drafts.num_requests:
        if logits.dtype != target.dtype:
            target, logits = target.to(torch.float32), logits.to(torch.float32)
        return target, with_unit_stride(logits), LOGITS
    return target, None, CHOSEN


# The sampler: draws of tokens and of drafts, scores, and verification. A call waits for nothing.

_DRAFT: int = row_params.DRAFT.value


class TritonGumbelSampler:
    """Triton kernels for NVIDIA and AMD. Made by ``tokendraw.load_sampler("triton-gumbel")``."""

    def __init__(self, device: torch.device, need: Need) -> None:
        self._device = launch_device = LaunchDevice.of(device)
        self._current_index, self._converter = launch_device.current_index, launch_device.converter
        self._need = need
        self._target = Target(launch_device.family, launch_device.processors, need.gumbel_dtype == "fp64")
        self._cache = CallCache(need)

    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, draft: bool = False) -> SamplerOutput:
        """Draw one token a row; see :class:`tokendraw.plugin.VerifierBackend`."""
        return self._draw(logits, metadata, _DRAFT if draft else 0)

    def verify(
        self,
        target_logits: Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> VerifyOutput:
        """Verify the drafts of a batch.

        In the mode ``rejection`` a draft is accepted if u < p / q, and the first that is not gives way to a token from
        the residual max(p - q, 0); ``block`` judges the drafts of a request together; ``coupled`` accepts drafts while
        they are what :meth:`sample` draws. See :class:`tokendraw.Drafts` and :class:`tokendraw.VerifyOutput`.
        """
        return self._verify(target_logits, drafts, metadata, "coupled" if metadata.facts.all_greedy else mode)

    def score(self, logits: Tensor, token_ids: Tensor, metadata: SamplingMetadata) -> ScoreOutput:
        """Score the token of each row; see :class:`tokendraw.plugin.ScorerBackend`."""
        if logits.get_device() != self._current_index():
            with torch.cuda.device(logits.device):
                return self.score(logits, token_ids, metadata)
        rows = logits.shape[0]
        if not rows:
            return empty_score_output(logits, metadata, self._need)
        kind = SCORE if metadata.facts.any_greedy else SAMPLED_SCORE
        call, context = self._context(logits, metadata, kind)
        tokens, argmax = token_ids.to(torch.int64).contiguous(), call.int64_proto.new_empty(rows)
        valid, entropy = call.bool_proto.new_empty(rows), call.float32_proto.new_empty(rows)
        thresholds, log_kept = call.float32_proto.new_empty(rows), call.float32_proto.new_empty(rows)
        if not call.variant.is_drawn:  # what a draw leaves of rows without filters; any token is read
            argmax.zero_()
            thresholds.fill_(-torch.inf)
            log_kept.zero_()
        least_kept = call.float32_proto.new_empty(rows) if call.variant.wants_least_kept else None
        ranks, best = call.logprobs_out(rows)
        out = context.convert((argmax, valid, thresholds, log_kept, least_kept))
        ranked = RankedTokens()
        if ranks is not None and not call.counts_ranks:
            ranked = group(RankedTokens, context.convert((tokens, ranks)))
        context.launch(call.draw.steps(context.arguments, out, ranked=ranked))
        scored = tokens, entropy, None if call.variant.is_drawn else least_kept
        logprobs = context.logprobs(metadata, (argmax, thresholds, log_kept), ranks, best, scored)
        ceiling = context.ceiling if call.variant.wants_least_kept else None
        return ScoreOutput(logprobs, log_kept, entropy, least_kept, ceiling)

    def _draw(self, logits: Tensor, m: SamplingMetadata, flags: int) -> SamplerOutput:
        if logits.get_device() != self._current_index():
            with torch.cuda.device(logits.device):
                return self._draw(logits, m, flags)
        rows = logits.shape[0]
        if not rows:
            return empty_sampler_output(logits, m, self._need)
        call, context = self._context(logits, m, None, flags)
        token_ids, valid = call.int64_proto.new_empty(rows), call.bool_proto.new_empty(rows)
        if not call.variant.needs_thresholds:
            out = context.convert((token_ids, valid, None, None, None))
            context.launch(call.draw.steps(context.arguments, out))
            return SamplerOutput(token_ids, valid)
        thresholds, log_kept = call.float32_proto.new_empty(rows), call.float32_proto.new_empty(rows)
        least_kept = call.float32_proto.new_empty(rows) if call.variant.wants_least_kept else None
        ceiling = context.ceiling if call.variant.wants_least_kept else None
        if call.logprobs is None:
            out = context.convert((token_ids, valid, thresholds, log_kept, least_kept))
            context.launch(call.draw.steps(context.arguments, out))
            return SamplerOutput(token_ids, valid, threshold=least_kept, ceiling=ceiling)
        ranks, best = call.logprobs_out(rows)
        drawn_best = best if best is not None and call.variant.draws_logprobs else (None, None)
        out = context.convert((token_ids, valid, thresholds, log_kept, least_kept))
        logprobs_out = context.convert((ranks, *drawn_best))
        context.launch(call.draw.steps(context.arguments, out, logprobs_out=logprobs_out))
        logprobs = context.logprobs(m, (token_ids, thresholds, log_kept), ranks, best)
        return SamplerOutput(token_ids, valid, logprobs, log_kept, least_kept, ceiling)

    def _context(
        self, logits: Tensor, m: SamplingMetadata, kind: RowKind, flags: int = 0
    ) -> tuple[CompiledCall, LaunchContext]:
        """Return the compiled call of rows that are drawn or scored, and its context."""
        size, params = (logits.shape[0], 0, 0, 0), param_tensors(m)
        cached = self._cache.by_size.get(
            (size, kind, logits_key(logits), params_layout(m), rows_are_contiguous(m))
        )
        if cached is None:
            logits = with_unit_stride(logits)
            params, layout = contiguous_params(m)
            cached = self._cache.add(self._target, size, kind, logits, m.facts, layout)
        call, geometry = cached
        return call, LaunchContext(call, geometry, logits, m, params, self._converter, flags)

    def _verify(self, target: Tensor, drafts: Drafts, m: SamplingMetadata, mode: VerifyMode) -> VerifyOutput:
        if target.get_device() != self._current_index():
            with torch.cuda.device(target.device):
                return self._verify(target, drafts, m, mode)
        requests, width, rows = drafts.num_requests, drafts.max_drafts, target.shape[0]
        if not requests:
            return empty_verify_output(target, drafts, m, self._need)
        target, q, draft_kind = draft_inputs(target, drafts, is_coupled=mode == "coupled" or not width)
        ids, offsets = drafts.draft_token_ids.contiguous(), drafts.cu_num_logits.contiguous()
        draft_rows = 0 if q is None else min(len(q), rows - requests)
        size, params = (rows, requests, draft_rows, width), param_tensors(m)
        q_layout = None if q is None else row_layout(q)
        is_block = mode == "block" and draft_kind != COUPLED
        variant = VerifyVariant.of(draft_kind, is_block, width, ids.dim(), q_layout, ids.dtype, offsets.dtype)
        cached = self._cache.by_size.get(
            (size, variant, logits_key(target), params_layout(m), rows_are_contiguous(m))
        )
        if cached is None:
            params, layout = contiguous_params(m)
            cached = self._cache.add(self._target, size, variant, target, m.facts, layout)
        call, geometry = cached
        verify = call.verify
        assert verify is not None  # the variant is of a verification
        context = LaunchContext(call, geometry, target, m, params, self._converter)
        token_ids = call.int64_proto.new_empty(requests, width + 1)
        num_accepted = call.int64_proto.new_empty(requests, dtype=torch.int32)
        valid = call.bool_proto.new_empty(requests)
        token_per_row = None if call.logprobs is None else call.int64_proto.new_zeros(rows)
        ranks, best = call.logprobs_out(rows)
        least_kept = call.float32_proto.new_empty(rows) if call.variant.wants_least_kept else None
        out = (token_ids, num_accepted, valid, token_ids if token_per_row is None else token_per_row)
        q_in, ids_in, offsets_in, ranks_out, least_out = context.convert((q, ids, offsets, ranks, least_kept))
        context.launch(
            verify.steps(
                context.arguments,
                context.convert(out),
                drafts=(q_in, None if q is None else q.stride(0)),
                chain=(ids_in, ids.shape[-1], offsets_in),
                ranks=ranks_out,
                least_kept=least_out,
            )
        )
        ceiling = context.ceiling if call.variant.wants_least_kept else None
        if token_per_row is None:
            return VerifyOutput(token_ids, num_accepted, valid, threshold=least_kept, ceiling=ceiling)
        thresholds, log_kept = (context.row_buffer(index) for index in verify.row_facts[:2])
        logprobs = context.logprobs(m, (token_per_row, thresholds, log_kept), ranks, best)
        steps = offsets, num_accepted, width
        masses = log_kept_mass_by_step(log_kept, *steps)
        by_step = logprobs_by_step(logprobs, *steps)
        return VerifyOutput(token_ids, num_accepted, valid, by_step, masses, least_kept, ceiling)

"""The sampler: draws of tokens and of drafts, scores, and verification. A call waits for nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import Drafts, Need, SamplerOutput, SamplingMetadata, ScoreOutput, VerifyOutput
from tokendraw.plugin import VerifyMode, log_kept_mass_by_step, logprobs_by_step
from tokendraw_triton_gumbel.dispatch.call_cache import SAMPLED_SCORE, SCORE, CallCache, RowKind, logits_key
from tokendraw_triton_gumbel.dispatch.compiled_call import CompiledCall
from tokendraw_triton_gumbel.dispatch.draft_inputs import draft_inputs
from tokendraw_triton_gumbel.dispatch.empty_outputs import (
    empty_sampler_output,
    empty_score_output,
    empty_verify_output,
)
from tokendraw_triton_gumbel.dispatch.launch_context import LaunchContext
from tokendraw_triton_gumbel.host.device import LaunchDevice
from tokendraw_triton_gumbel.host.launch import group
from tokendraw_triton_gumbel.host.params_layout import (
    contiguous_params,
    param_tensors,
    params_layout,
    rows_are_contiguous,
)
from tokendraw_triton_gumbel.host.row_layout import row_layout, with_unit_stride
from tokendraw_triton_gumbel.host.variant import COUPLED, Target, VerifyVariant
from tokendraw_triton_gumbel.kernels.shared import row_params
from tokendraw_triton_gumbel.kernels.shared.argument_groups import RankedTokens

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

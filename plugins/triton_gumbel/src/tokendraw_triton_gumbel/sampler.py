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
from tokendraw_triton_gumbel.compiled_calls import SAMPLED_SCORE, SCORE, CallCache
from tokendraw_triton_gumbel.kernels import rows as row_params
from tokendraw_triton_gumbel.kernels.rows import DrawResults
from tokendraw_triton_gumbel.kernels.verify import VerifyArguments
from tokendraw_triton_gumbel.launch import LaunchDevice, group
from tokendraw_triton_gumbel.plan import (
    CHOSEN,
    COUPLED,
    LOGITS,
    PROBS,
    RowAccess,
    Target,
    VerifyVariant,
    with_unit_stride,
)

# Outputs of batches without rows, drawn or scored, and of verifications without requests.


def empty_score_output(logits: Tensor, m: SamplingMetadata, need: Need) -> ScoreOutput:
    columns, given = 1 + (m.facts.logprobs_width(logits.shape[1]) or 0), m.given_ids
    numbers, ids = logits.new_empty(0, dtype=torch.float32), logits.new_empty(0, dtype=torch.int64)
    logprobs = LogprobsTensors(
        ids.new_empty(0, columns),
        numbers.new_empty(0, columns),
        ids if need.logprob_ranks else None,
        None if given is None else ids.new_empty(0, given.shape[1]),
        None if given is None else numbers.new_empty(0, given.shape[1]),
    )
    bounds = numbers if need.threshold else None
    return ScoreOutput(logprobs, numbers, numbers, bounds, bounds if m.facts.any_xtc else None)


def empty_sampler_output(logits: Tensor, m: SamplingMetadata, need: Need) -> SamplerOutput:
    score = empty_score_output(logits, m, need)
    ids, valid = logits.new_empty(0, dtype=torch.int64), logits.new_empty(0, dtype=torch.bool)
    if m.facts.logprobs_width(logits.shape[1]) is None:
        return SamplerOutput(ids, valid, threshold=score.threshold, ceiling=score.ceiling)
    return SamplerOutput(ids, valid, score.logprobs, score.log_kept_mass, score.threshold, score.ceiling)


def empty_verify_output(target: Tensor, drafts: Drafts, m: SamplingMetadata, need: Need) -> VerifyOutput:
    rows, width = empty_sampler_output(target, m, need), drafts.max_drafts
    ids, num_accepted = rows.token_ids.new_empty(0, width + 1), rows.token_ids.to(torch.int32)
    logprobs = masses = None
    if rows.logprobs is not None:
        logprobs = logprobs_by_step(rows.logprobs, drafts.cu_num_logits, num_accepted, width)
        masses = target.new_empty(0, width + 1, dtype=torch.float32)
    bounds = [
        None if each is None else each.new_full((len(target),), float("nan"))
        for each in (rows.threshold, rows.ceiling)
    ]
    return VerifyOutput(ids, num_accepted, rows.valid, logprobs, masses, *bounds)


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
        launch_device = LaunchDevice.of(device)
        target = Target(launch_device.family, launch_device.processors, need.gumbel_dtype == "fp64")
        self._current_index, self._need = launch_device.current_index, need
        self._calls = CallCache(need, target, launch_device.converter)

    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, draft: bool = False) -> SamplerOutput:
        """Draw one token a row; see :class:`tokendraw.plugin.VerifierBackend`."""
        if logits.get_device() != self._current_index():
            with torch.cuda.device(logits.device):
                return self.sample(logits, metadata, draft=draft)
        rows = logits.shape[0]
        if not rows:
            return empty_sampler_output(logits, metadata, self._need)
        flags = _DRAFT if draft else 0
        call, context = self._calls.context(logits, metadata, None, (rows, 0, 0, 0), flags)
        results, logprobs, shown = context.new_results(rows), None, None
        if call.logprobs is not None:
            logprobs, shown = context.show(metadata, results, results.token_ids)
        context.launch(call.steps(context.arguments, context.convert(results), shown))
        token_ids, valid, _, log_kept, least_kept = results
        if logprobs is None and least_kept is None:
            return SamplerOutput(token_ids, valid)
        ceiling = None if least_kept is None else context.ceiling
        mass = None if logprobs is None else log_kept
        return SamplerOutput(token_ids, valid, logprobs, mass, least_kept, ceiling)

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
        if target_logits.get_device() != self._current_index():
            with torch.cuda.device(target_logits.device):
                return self.verify(target_logits, drafts, metadata, mode=mode)
        requests, width, rows = drafts.num_requests, drafts.max_drafts, target_logits.shape[0]
        if not requests:
            return empty_verify_output(target_logits, drafts, metadata, self._need)
        if metadata.facts.all_greedy:
            mode = "coupled"
        target, q, draft_kind = draft_inputs(target_logits, drafts, is_coupled=mode == "coupled" or not width)
        ids, offsets = drafts.draft_token_ids.contiguous(), drafts.cu_num_logits.contiguous()
        draft_rows = 0 if q is None else min(len(q), rows - requests)
        q_access, q_stride = (None, None) if q is None else (RowAccess.of(q), q.stride(0))
        is_block = mode == "block" and draft_kind != COUPLED
        steps, is_padded = max(8, 1 << width.bit_length()), ids.dim() == 2
        variant = VerifyVariant(draft_kind, is_block, steps, is_padded, q_access, ids.dtype, offsets.dtype)
        size = rows, requests, draft_rows, width
        call, context = self._calls.context(target, metadata, variant, size)
        token_ids = call.int64_proto.new_empty(requests, width + 1)
        num_accepted = call.int64_proto.new_empty(requests, dtype=torch.int32)
        valid = call.bool_proto.new_empty(requests)
        least_kept = call.float32_proto.new_empty(rows) if call.variant.wants_least_kept else None
        ceiling = None if least_kept is None else context.ceiling
        row_tokens, logprobs, shown, results = token_ids, None, None, None
        if call.logprobs is not None and call.verify is not None:
            row_tokens = call.int64_proto.new_zeros(rows)
            results = DrawResults(row_tokens, None, *map(context.row_buffer, call.verify.bounds))
            logprobs, shown = context.show(metadata, results, row_tokens)
        tensors = token_ids, num_accepted, valid, row_tokens, q, ids, offsets, least_kept
        verified = group(VerifyArguments, (*context.convert(tensors), q_stride, ids.shape[-1]))
        context.launch(call.steps(context.arguments, (), shown, verified))
        if logprobs is None or results is None:
            return VerifyOutput(token_ids, num_accepted, valid, threshold=least_kept, ceiling=ceiling)
        by_step = logprobs_by_step(logprobs, offsets, num_accepted, width)
        masses = log_kept_mass_by_step(results.log_kept, offsets, num_accepted, width)
        return VerifyOutput(token_ids, num_accepted, valid, by_step, masses, least_kept, ceiling)

    def score(self, logits: Tensor, token_ids: Tensor, metadata: SamplingMetadata) -> ScoreOutput:
        """Score the token of each row; see :class:`tokendraw.plugin.ScorerBackend`."""
        if logits.get_device() != self._current_index():
            with torch.cuda.device(logits.device):
                return self.score(logits, token_ids, metadata)
        rows = logits.shape[0]
        if not rows:
            return empty_score_output(logits, metadata, self._need)
        kind = SCORE if metadata.facts.any_greedy else SAMPLED_SCORE
        call, context = self._calls.context(logits, metadata, kind, (rows, 0, 0, 0))
        results = context.new_results(rows)
        argmax, _, threshold, log_kept, least_kept = results
        if not call.variant.is_drawn:  # what a draw leaves of rows without filters; any token is read
            argmax.zero_()
            threshold.fill_(-torch.inf)
            log_kept.zero_()
        tokens, entropy = token_ids.to(torch.int64).contiguous(), torch.empty_like(log_kept)
        logprobs, shown = context.show(metadata, results, tokens, entropy)
        context.launch(call.steps(context.arguments, context.convert(results), shown))
        ceiling = None if least_kept is None else context.ceiling
        return ScoreOutput(logprobs, log_kept, entropy, least_kept, ceiling)

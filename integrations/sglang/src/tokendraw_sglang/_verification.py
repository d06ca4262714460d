"""Verifies the drafts of speculative decoding, by a hook on SGLang's ``eagle_sample`` in its public ``HookRegistry``.

SGLang's default looks at no distribution of the drafts: it accepts a draft with the target's probability of it. Here
every row of the target draws its token, as a plain step does, and SGLang's walk of its greedy batches accepts the
drafts that equal these tokens: as many on average, also of trees that branch, and the text of a seeded request is its
text without drafts. With ``--speculative-use-rejection-sampling`` drafts are a chain with probabilities, which
``Sampler.verify`` judges. SGLang draws those drafts itself, within CUDA graphs that hold seeds in deterministic
inference alone, so their requests get none elsewhere.

For log-probabilities of the emitted tokens SGLang copies their rows, divides the copies and writes their log-softmax. A
hook on ``compute_spec_logprobs`` scores the rows where they lie.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tokendraw.engines import format_error, rank_error
from tokendraw_sglang._engine import (
    EDIT_FIELDS,
    OWN_VERIFICATION,
    PROCESS,
    log,
    mode_of,
    unserved,
    verification_misfits,
    without_seeds,
)

if TYPE_CHECKING:
    from tokendraw_sglang._sampler import TokendrawSampler, Walk

_TARGETS = (
    "sglang.srt.speculative.eagle_utils.eagle_sample",
    "sglang.srt.layers.logprob_processor.compute_spec_logprobs",
)


def hook_verification(sampler: TokendrawSampler) -> None:
    """Have a sampler verify the drafts of this process, where SGLang speculates; a line of the log says why not.

    Called again it does nothing: SGLang makes a sampler for its draft model too.
    """
    from sglang.srt.runtime_context import get_spec

    spec = get_spec()
    if spec.speculative_algorithm is None or PROCESS.verifier is not None:
        return
    names, unnamed = sampler.names, None
    if names is not None and mode_of(spec) is not None and "verify" not in names:
        unnamed = "no plugin verifies on the first rank"
    try:
        reason = unserved(spec) or next(verification_misfits(), None) or unnamed or _hook()
    except Exception as error:
        if names is not None:
            raise rank_error(error) from error
        reason = format_error(error).removesuffix(".")
    if reason is None:
        PROCESS.verifier = sampler
    else:
        log.warning(OWN_VERIFICATION, reason)


def verify_drafts(
    original: Callable[..., Walk],
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    *more: Any,
    **options: Any,
) -> Walk:
    """Edit the target's logits in place, and verify the drafts of a batch, as ``eagle_sample`` does.

    :returns: ``predict`` [B * n] int32, the token of each accepted node's row; the number of emitted tokens [B] int32;
        ``accept_index`` [B, depth] int32, the rows of the emitted tokens, then -1.
    """
    arguments = (verify_input, batch, logits_output)
    if _needs_sglang(batch, logits_output, options):
        with _for_sglang(batch):
            return original(*arguments, grammar_mask, *more, **options)
    sampler: TokendrawSampler = PROCESS.verifier
    logits = logits_output.next_token_logits
    _edit(logits, batch.sampling_info, verify_input.draft_token_num, grammar_mask)
    try:
        walk = sampler.verify(verify_input, batch, logits)
    except Exception as error:
        sampler.fall_back(error)
        with _for_sglang(batch, *EDIT_FIELDS):
            return original(*arguments, None, *more, **options)
    _broadcast(walk)  # a rank that has failed sends and receives the same tensors within SGLang's function
    predict, accept_index, num_accepted = walk
    return predict, num_accepted + 1, accept_index


@functools.cache
def _hook() -> str | None:
    """Apply the hooks; None, or why there are none."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative import eagle_utils

    unhooked = eagle_utils.eagle_sample
    HookRegistry.register(_TARGETS[0], verify_drafts, HookType.AROUND)
    HookRegistry.register(_TARGETS[1], score_drafts, HookType.AROUND)
    HookRegistry.apply_hooks()
    return None if eagle_utils.eagle_sample is not unhooked else "HookRegistry did not apply the hooks"


def _needs_sglang(batch: Any, logits_output: Any, options: dict[str, Any]) -> bool:
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative import spec_utils

    sampler, info = PROCESS.verifier, batch.sampling_info
    return (
        sampler is None
        or batch.forward_mode.is_idle()
        or not sampler.is_ready(logits_output.next_token_logits)
        or info.is_all_greedy
        or (options.get("watermark_state") is not None and info.has_watermark_candidates)
        or spec_utils.SIMULATE_ACC_LEN > 0
        or unserved(get_spec()) is not None  # the thresholds may be set while SGLang serves
    )


def _edit(logits: Tensor, info: Any, width: int, grammar_mask: Any) -> None:
    """Apply to each row the edits of its request, as ``eagle_sample`` does, without a copy of them for each row."""
    from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties
    from sglang.srt.utils.async_probe import sanitize_nan_logits

    sanitize_nan_logits(logits, "verify: target model logits")
    by_request = logits.view(-1, width, logits.shape[1])
    if info.acc_additive_penalties is not None:
        by_request.add_(info.acc_additive_penalties.unsqueeze(1))
    if info.acc_scaling_penalties is not None:
        apply_scaling_penalties(by_request, info.acc_scaling_penalties.unsqueeze(1))
    if info.logit_bias is not None:
        by_request.add_(info.logit_bias.unsqueeze(1))
    if grammar_mask is not None:
        grammar_mask.apply(logits)


def _broadcast(walk: Walk) -> None:
    """Have all ranks go on with the walk of rank 0, as ``eagle_sample`` does."""
    from sglang.srt.layers.dp_attention import is_dp_attention_enabled
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    group = parallel.attn_tp_group if is_dp_attention_enabled() else parallel.tp_group
    if group.world_size > 1:
        for tensor in walk:
            group.broadcast(tensor, src=0)


@contextlib.contextmanager
def _for_sglang(batch: Any, *applied: str) -> Iterator[None]:
    """Have a batch verified as without the adapter, apart from fields of its parameters that are applied already."""
    info = batch.sampling_info
    if info is not None:
        batch.sampling_info = without_seeds(info, *applied)
    try:
        yield
    finally:
        batch.sampling_info = info


def score_drafts(
    original: Callable[..., None],
    batch: Any,
    logits_output: Any,
    predict: Tensor,
    *,
    accept_index: Tensor | None = None,
    chain_stride: int | None = None,
) -> None:
    """Fill in the log-probabilities of a verified batch, as ``compute_spec_logprobs`` does.

    :param predict: [B * n] int32: the token of each row that emitted one, 0 in the others.
    :param accept_index: [B, depth] int32: rows of the emitted tokens, then -1, which stands for the last row; None: of
        another verification than ``eagle_sample``, which SGLang serves.
    """
    sampler, rows, requests = PROCESS.verifier, None, len(batch.seq_lens)
    top_nums = batch.top_logprobs_nums or [0] * requests
    given_ids = batch.token_ids_logprobs or [None] * requests
    if sampler is not None and accept_index is not None and requests:
        logits = logits_output.next_token_logits
        temperatures = sampler.logprob_temperatures(batch.sampling_info)
        rows = sampler.score(logits, predict, temperatures, top_nums, given_ids, len(logits) // requests)
    if rows is None or accept_index is None:
        original(batch, logits_output, predict, accept_index=accept_index, chain_stride=chain_stride)
        return
    depth = accept_index.shape[1]
    wanted = ([entry for entry in entries for _ in range(depth)] for entries in (top_nums, given_ids))
    fields = rows.at(accept_index.long().view(-1)).fields(*wanted)
    logits_output.next_token_logprobs = fields.pop("token_logprobs").view(requests, depth)
    for name, value in fields.items():
        setattr(logits_output, f"next_token_{name}", value)

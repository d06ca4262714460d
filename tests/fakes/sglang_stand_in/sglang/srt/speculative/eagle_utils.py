"""Stands in for SGLang's verification of drafts: edits in place, the argmax or a draw of each row, and the walk."""

import torch
from sglang.srt.runtime_context import get_spec
from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties
from sglang.srt.utils.async_probe import sanitize_nan_logits


def verify_tree_greedy_func(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    target_predict,
    topk=-1,
):
    raise NotImplementedError("a test gives it tokens to walk by")


def eagle_sample(
    verify_input,
    batch,
    logits_output,
    grammar_mask=None,
    uno_target_max_top_k=None,
    *,
    watermark_state=None,
    watermark_full_mask=True,
):
    if batch.forward_mode.is_idle():
        return (torch.empty(0, dtype=torch.int32),) * 3
    info, logits, width = batch.sampling_info, logits_output.next_token_logits, verify_input.draft_token_num
    sanitize_nan_logits(logits)
    if info.acc_additive_penalties is not None:
        logits.add_(info.acc_additive_penalties.repeat_interleave(width, 0))
    if info.acc_scaling_penalties is not None:
        apply_scaling_penalties(logits, info.acc_scaling_penalties.repeat_interleave(width, 0))
    if info.logit_bias is not None:
        logits.add_(info.logit_bias.repeat_interleave(width, 0))
    if grammar_mask is not None:
        grammar_mask.apply(logits)
    tokens = logits.argmax(-1)
    if not info.is_all_greedy:
        assert info.sampling_seed is None, "rows without a seed would draw with NO_SEED"
        if get_spec().speculative_use_rejection_sampling and verify_input.draft_probs is None:
            raise ValueError("Rejection sampling requires a target-vocab draft proposal distribution")
        probs = torch.softmax(logits / info.temperatures.repeat_interleave(width, 0), -1)
        tokens = torch.multinomial(probs, 1).view(-1)
    requests = len(info)
    predict, accept_index, num_accepted = verify_tree_greedy_func(
        predicts=torch.zeros(requests * width, dtype=torch.int32),
        accept_index=torch.full((requests, verify_input.max_tree_depth), -1, dtype=torch.int32),
        accept_token_num=torch.empty(requests, dtype=torch.int32),
        candidates=verify_input.draft_token.reshape(requests, width),
        retrieve_index=verify_input.retrieve_index,
        retrieve_next_token=verify_input.retrieve_next_token,
        retrieve_next_sibling=verify_input.retrieve_next_sibling,
        target_predict=tokens.view(requests, width),
        topk=verify_input.tree_topk,
    )
    return predict, num_accepted + 1, accept_index

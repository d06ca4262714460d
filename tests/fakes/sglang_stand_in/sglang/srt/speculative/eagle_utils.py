"""Stands in for SGLang's verification of drafts: edits in place, the argmax or a draw of each row, and the walk."""

import torch
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
    info, logits, width = batch.sampling_info, logits_output.next_token_logits, verify_input.draft_token_num
    sanitize_nan_logits(logits)
    if info.logit_bias is not None:
        logits.add_(info.logit_bias.repeat_interleave(width, 0))
    tokens = logits.argmax(-1)
    if not info.is_all_greedy:
        assert info.sampling_seed is None, "rows without a seed would draw with NO_SEED"
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

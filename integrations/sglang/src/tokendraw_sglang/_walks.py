"""Which drafts are accepted, and the tokens behind them, in the form of SGLang's ``eagle_sample``."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

import tokendraw
from tokendraw_sglang._metadata import LastMetadata

Walk = tuple[Tensor, Tensor, Tensor]
"""``predict`` [B * n], ``accept_index`` [B, depth] and the number of accepted drafts [B], all int32."""


def walk_tree(
    draws: tokendraw.Sampler, batches: LastMetadata, drafts: Any, info: Any, logits: Tensor
) -> Walk:
    """Draw the token of every node's row, and accept the drafts that equal the token of the row before them.

    :param batches: caches the metadata of verifications.
    :param drafts: SGLang's ``verify_input``.
    """
    from sglang.srt.speculative import eagle_utils

    requests, width = len(info), drafts.draft_token_num
    tokens = draws.sample(logits, batches.metadata(info, drafts.positions, width)).token_ids
    device = logits.device
    result: Walk = eagle_utils.verify_tree_greedy_func(
        predicts=torch.zeros(requests * width, dtype=torch.int32, device=device),
        accept_index=torch.full((requests, drafts.max_tree_depth), -1, dtype=torch.int32, device=device),
        accept_token_num=torch.empty(requests, dtype=torch.int32, device=device),
        candidates=drafts.draft_token.reshape(requests, width),
        retrieve_index=drafts.retrieve_index,
        retrieve_next_token=drafts.retrieve_next_token,
        retrieve_next_sibling=drafts.retrieve_next_sibling,
        target_predict=tokens.view(requests, width),
        topk=drafts.tree_topk,
    )
    return result


def judge_chain(
    draws: tokendraw.Sampler,
    batches: LastMetadata,
    drafts: Any,
    batch: Any,
    logits: Tensor,
    mode: Literal["rejection", "block"],
) -> Walk:
    """Verify chains of drafts with the probabilities that they were drawn by."""
    info, width = batch.sampling_info, drafts.draft_token_num
    requests, vocab_size = len(info), logits.shape[1]
    offsets = torch.arange(0, requests * width + 1, width, device=logits.device)
    chains = tokendraw.Drafts(
        draft_token_ids=drafts.draft_token.reshape(requests, width)[:, 1:],
        cu_num_logits=offsets,
        draft_probs=drafts.draft_probs.reshape(-1, vocab_size),
        num_drafts=(width - 1,) * requests,
    )
    output = draws.verify(logits, chains, batches.metadata(info, batch.seq_lens), mode=mode)
    step = torch.arange(width, device=logits.device)
    is_emitted = step <= output.num_accepted.unsqueeze(1)
    rows = (offsets[:-1].unsqueeze(1) + step).masked_fill(~is_emitted, -1)
    return output.token_ids.clamp(min=0).to(torch.int32).view(-1), rows.to(torch.int32), output.num_accepted

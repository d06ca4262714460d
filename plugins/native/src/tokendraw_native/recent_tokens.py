"""The tokens before rows of logits, newest first, and how often ids occur in the last of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw.plugin import RequestTables


class RecentTokens(NamedTuple):
    """Prompt, output, and the drafts before each row, in reverse order."""

    ids: Tensor
    """[R, N] int64: -1 for placeholders, and behind the first token of the prompt."""
    is_output: Tensor
    """[R, N] bool: whether a token is in the output, or a draft."""


def recent_tokens(tables: RequestTables, slot: Tensor, step: Tensor, drafted: Tensor) -> RecentTokens:
    """Read the histories of some rows. N is the length of the longest one on a CPU, their capacity elsewhere.

    :param slot: [R] int64, in range.
    :param step: [R, 1] int64: number of drafts before each row.
    :param drafted: [R, K] int64: these drafts, -1 for placeholders.
    """
    capacity, max_drafts = tables.history.shape[1], drafted.shape[1]
    num_tokens, num_prompt = (table[slot].unsqueeze(1) for table in (tables.num_tokens, tables.num_prompt))
    length = num_tokens + step
    width = max(1, int(length.max())) if length.is_cpu else capacity + max_drafts
    index = length - 1 - torch.arange(width, device=slot.device)
    ids = tables.history[slot.unsqueeze(1), index.clamp(0, capacity - 1)].to(torch.int64)
    if max_drafts:
        draft = index - num_tokens
        ids = torch.where(draft >= 0, drafted.gather(1, draft.clamp(0, max_drafts - 1)), ids)
    is_token = (index >= 0) & (ids >= 0) & (ids < tables.counts.shape[1])
    return RecentTokens(torch.where(is_token, ids, -1), index >= num_prompt)


def occurrences_within(recent: RecentTokens, last_n: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Count ids [R, C] among the last tokens of each row.

    :param last_n: [R, 1] int: the number of these tokens; negative: none.
    :returns: [R, C] int64 each: the occurrences in the output, and those in prompt and output.
    """
    place = torch.arange(recent.ids.shape[1], device=ids.device)
    keys = torch.where(place < last_n, 2 * recent.ids + recent.is_output, -1).sort(1).values
    first, first_of_output, end = (torch.searchsorted(keys, 2 * ids + bound) for bound in (0, 1, 2))
    return end - first_of_output, end - first

"""Thinking budgets: the id that alone is allowed where a request has spent its budget."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw.plugin import RequestTables
from tokendraw_native.recent_tokens import RecentTokens


def forced_ids(tables: RequestTables, slot: Tensor, recent: RecentTokens) -> Tensor:
    """Return the next id of the end [R, 1] int64 for requests with a spent budget, -1 for all others.

    :param slot: [R] int64, in range.
    """
    budget, num_start, num_end = (
        table[slot].unsqueeze(1)
        for table in (tables.thinking_budget, tables.num_thinking_start, tables.num_thinking_end)
    )
    end = tables.thinking_end[slot].to(torch.int64)
    since_start = _tokens_since(recent.ids, tables.thinking_start[slot].to(torch.int64), num_start)
    since_end = _tokens_since(recent.ids, end, num_end)
    num_drawn = torch.minimum(since_start, recent.is_output.sum(1, keepdim=True))
    is_spent = (budget >= 0) & (since_start < since_end) & (num_drawn >= budget)
    next_id = end.gather(1, _num_begun(recent.ids, end, torch.minimum(num_end - 1, since_start)))
    return torch.where(is_spent, next_id, -1)


def _tokens_since(ids: Tensor, pattern: Tensor, length: Tensor) -> Tensor:
    """Return the number of tokens behind the newest occurrence of each row's pattern [R, 1]; N if there is none.

    :param ids: [R, N] int64, newest first.
    :param pattern: [R, L] int64: the ids of the pattern, oldest first.
    :param length: [R, 1]: number of ids in the pattern.
    """
    width, longest = ids.shape[1], pattern.shape[1]
    padded = pad(ids, (0, longest), value=-1)
    is_last = (length > 0).expand(ids.shape)
    for back in range(longest):
        expected = pattern.gather(1, (length - 1 - back).clamp(min=0).to(torch.int64))
        is_last = is_last & ((padded[:, back : back + width] == expected) | (back >= length))
    return torch.where(is_last, torch.arange(width, device=ids.device), width).amin(1, keepdim=True)


def _num_begun(ids: Tensor, pattern: Tensor, most: Tensor) -> Tensor:
    """Return how many ids of its pattern, at most ``most`` [R, 1], end the tokens of each row: [R, 1] int64."""
    longest = pattern.shape[1]
    padded = pad(ids, (0, longest), value=-1)
    count = torch.zeros_like(ids[:, :1])
    for length in range(1, longest):
        is_begun = (padded[:, :length].flip(1) == pattern[:, :length]).all(1, keepdim=True)
        count = torch.where(is_begun & (length <= most), length, count)
    return count

"""DRY: the cost of each id that would prolong a repetition of the history's end.

A match at a place of the history is as long as the tokens in front of the place, read backwards, equal the last tokens
of the history. With the newest token first that is the longest common prefix of the history and its own part from some
index on, for all indices at once. Blocks of 1, 2, 4, ... tokens get numbers, the same one for equal blocks; a match
grows by the largest blocks first. That takes a few dozen operations, with no word from the device.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw.plugin import RequestTables
from tokendraw.row_parameters import widest_float
from tokendraw_native.recent_tokens import RecentTokens

_ID_SHIFT = 32
_LENGTH_MASK = (1 << _ID_SHIFT) - 1


def dry_costs(tables: RequestTables, slot: Tensor, recent: RecentTokens, ids: Tensor) -> Tensor:
    """Return the float32 costs [R, C] of ids [R, C]: 0 where there is none.

    :param slot: [R] int64, in range.
    """
    multiplier, base, allowed, max_match, last_n = (
        table[slot].unsqueeze(1)
        for table in (
            tables.dry_multiplier,
            tables.dry_base,
            tables.dry_allowed_length,
            tables.dry_max_match,
            tables.dry_last_n,
        )
    )
    width = recent.ids.shape[1]
    place = torch.arange(width, device=ids.device)
    tokens = torch.where(place < last_n, recent.ids, -1)
    is_breaker = _is_listed(tokens, tables.dry_breakers[slot])
    suffix = torch.where(is_breaker | (tokens < 0), place, width).amin(1, keepdim=True)
    length = torch.minimum(_matches(tokens), suffix).minimum(max_match)
    has_cost = (tokens >= 0) & ~is_breaker & (length >= allowed)
    keys = torch.where(has_cost, (tokens << _ID_SHIFT) | length, -1).sort(1).values
    longest = torch.searchsorted(keys, (ids + 1) << _ID_SHIFT) - 1
    key = keys.gather(1, longest.clamp(min=0))
    exponent = (key & _LENGTH_MASK) - allowed
    wide = widest_float(ids.device)
    cost = (multiplier.to(wide) * base.to(wide) ** exponent.to(wide)).to(torch.float32)
    return torch.where((longest >= 0) & (key >> _ID_SHIFT == ids), cost, 0.0)


def _is_listed(ids: Tensor, lists: Tensor) -> Tensor:
    """Whether each id [R, N] is in the list [R, D] of its row."""
    ordered = lists.to(torch.int64).sort(1).values
    place = torch.searchsorted(ordered, ids).clamp_(max=ordered.shape[1] - 1)
    return ordered.gather(1, place) == ids


def _matches(tokens: Tensor) -> Tensor:
    """Return the length [R, N] of the match in front of each token: entry i is that of the tokens from i + 1 on.

    :param tokens: [R, N] int64, newest first; -1 equals nothing.
    """
    count = tokens.shape[1]
    names = _block_names(tokens)
    start = torch.arange(1, count + 1, device=tokens.device)
    length = torch.zeros_like(tokens)
    for power in reversed(range(len(names))):
        end = start + length
        found = names[power].gather(1, end.clamp(max=count - 1))
        is_equal = (found == names[power].gather(1, length)) & (found >= 0) & (end < count)
        length += is_equal.to(torch.int64) << power
    return length


def _block_names(tokens: Tensor) -> list[Tensor]:
    """Number the blocks of 1, 2, 4, ... tokens, below N: [R, N] each, the number of the block from each index on.

    Equal blocks have equal numbers. Only blocks have one that equal a block at a multiple of their size, with which
    alone a match is extended; all others have -1.
    """
    names, size = [tokens], 1
    while 2 * size < tokens.shape[1]:
        left = names[-1]
        right = pad(left[:, size:], (0, size), value=-1)
        pairs = torch.where((left >= 0) & (right >= 0), (left << _ID_SHIFT) | right, -1)
        known = pairs[:, :: 2 * size].sort(1).values
        place = torch.searchsorted(known, pairs).clamp_(max=known.shape[1] - 1)
        names.append(torch.where((pairs >= 0) & (known.gather(1, place) == pairs), place, -1))
        size *= 2
    return names

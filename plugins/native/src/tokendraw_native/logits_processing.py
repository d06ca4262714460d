"""The native processor of logits: a few dozen operations of torch for each part of a batch, without a wait.

Masks are written over all ids of a row; everything else is computed for lists of ids alone, and scattered.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import Drafts, RequestSlots, speculative
from tokendraw.plugin import EditFacts, RequestTables
from tokendraw.row_parameters import widest_float
from tokendraw_native.row_threads import CHUNK_LOGITS, Buffers, map_steps, share_threads

_CHUNK_IDS = 1 << 23
"""Ids of all rows in a chunk on a GPU; an id takes about 40 bytes of memory."""
_MASK_IDS_PER_LIST_ID = 16
"""Ids of a mask that a CPU edits in the time of an id in a list."""
_NEG_INF = float("-inf")


class NativeProcessor:
    """Edits logits on their device."""

    @torch.inference_mode()  # only there may logits made in inference mode be written to
    def process(
        self,
        logits: Tensor,
        slots: RequestSlots,
        row_index: Tensor,
        bitmask: Tensor | None = None,
        drafts: Drafts | None = None,
    ) -> Tensor:
        """Edit the logits in place, part by part, as the requests of their rows ask."""
        tables, facts = slots.tables, slots.facts
        count, vocab_size = logits.shape
        with share_threads(logits):
            rows = _rows(tables, row_index, drafts, count) if facts.any_edit else None

            def edit(part: slice, _: Buffers) -> None:
                forbidden = None if bitmask is None else ~_bits(bitmask[part], vocab_size)
                if rows is not None:
                    part_rows = _Rows(*(tensor[part] for tensor in rows))
                    _edit(logits[part], tables, facts, part_rows, forbidden)
                elif forbidden is not None:
                    logits[part].masked_fill_(forbidden, _NEG_INF)

            step = _CHUNK_IDS // (vocab_size + tables.history.shape[1])
            if logits.is_cpu:
                has_masks = bitmask is not None or facts.any_allowed or facts.any_thinking_budget
                of_lists = _MASK_IDS_PER_LIST_ID * tables.history.shape[1]
                step = CHUNK_LOGITS // (vocab_size * has_masks + of_lists)
            map_steps(edit, count, step, logits.device)
        return logits


class _Rows(NamedTuple):
    """The request and the drafts of each row."""

    slot: Tensor
    """[R] int64, in range."""
    exists: Tensor
    """[R, 1] bool: whether the row has a slot."""
    step: Tensor
    """[R, 1] int64: drafts before the row."""
    drafted: Tensor
    """[R, K] int64: drafts before the row, -1 for placeholders and after the last draft."""


def _rows(tables: RequestTables, row_index: Tensor, drafts: Drafts | None, count: int) -> _Rows:
    """Find the slot of each row, and the drafts before the row."""
    num_slots, vocab_size = tables.counts.shape
    slot = row_index.to(torch.int64)
    if drafts is None:
        step = slot.new_zeros(count, 1)
        drafted, exists = step[:, :0], slot.new_ones(count, dtype=torch.bool)
    else:
        offsets, ids = drafts.cu_num_logits.to(torch.int64), drafts.draft_token_ids
        request, offset = speculative.rows_of_requests(offsets, count)
        slot, step = slot.index_select(0, request), offset.unsqueeze(1)
        exists = torch.arange(count, device=slot.device) < offsets[-1]
        column = torch.arange(drafts.max_drafts, device=slot.device)
        first = (offsets[:-1] - torch.arange(len(offsets) - 1, device=slot.device)).index_select(0, request)
        if ids.dim() == 2:
            drafted = ids.index_select(0, request)[:, : drafts.max_drafts]
        elif ids.numel():
            drafted = ids[(first.unsqueeze(1) + column).clamp_(max=ids.numel() - 1)]
        else:
            drafted = ids.new_zeros(count, 0)
        is_token = (column[: drafted.shape[1]] < step) & (drafted >= 0) & (drafted < vocab_size)
        drafted = torch.where(is_token, drafted.to(torch.int64), -1)
    exists = exists & (slot >= 0) & (slot < num_slots)
    return _Rows(slot.clamp(0, num_slots - 1), exists.unsqueeze(1), step, drafted)


def _edit(
    logits: Tensor, tables: RequestTables, facts: EditFacts, rows: _Rows, forbidden: Tensor | None
) -> None:
    """Edit some rows.

    :param forbidden: [R, V] bool: ids that a bitmask forbids; None without one.
    """
    recent = None
    if facts.any_penalty_last_n or facts.any_dry or facts.any_thinking_budget:
        recent = recent_tokens(tables, rows.slot, rows.step, rows.drafted)
    masked_rows = rows
    if facts.any_thinking_budget and recent is not None:
        forced = torch.where(rows.exists, forced_ids(tables, rows.slot, recent), -1)
        masked_rows = rows._replace(exists=rows.exists & (forced < 0))
        ids = torch.arange(logits.shape[1], device=logits.device)
        is_other = (forced >= 0) & (ids != forced)
        forbidden = is_other if forbidden is None else torch.where(forced >= 0, is_other, forbidden)
    if forbidden is not None:
        logits.masked_fill_(forbidden, _NEG_INF)
    _mask(logits, tables, facts, masked_rows)
    if facts.any_bias or facts.any_penalty or facts.any_dry:
        _add(logits, tables, facts, rows, recent)


def _mask(logits: Tensor, tables: RequestTables, facts: EditFacts, rows: _Rows) -> None:
    """Forbid ids that are not allowed, the ends of bad words, and stop ids before ``min_tokens``."""
    if facts.any_allowed:
        restricted = tables.is_restricted[rows.slot].unsqueeze(1) & rows.exists
        logits.masked_fill_(restricted & ~_bits(tables.allowed[rows.slot], logits.shape[1]), _NEG_INF)
    if facts.any_bad_words:
        words, ends = _bad_words(tables, rows)
        _write(logits, words[..., -1], None, ends)
    if facts.any_min_tokens:
        output = (tables.num_tokens - tables.num_prompt)[rows.slot].unsqueeze(1) + rows.step
        early = rows.exists & (output < tables.min_tokens[rows.slot].unsqueeze(1))
        early = early & _used_entries(tables.stop_ids, tables.num_stop, rows)
        _write(logits, tables.stop_ids[rows.slot], None, early)


def _bits(words: Tensor, vocab_size: int) -> Tensor:
    """Spread bit masks [R, ceil(V / 32)] int32 to [R, V] bool."""
    bit_position = torch.arange(8, dtype=torch.uint8, device=words.device)
    spread = (words.contiguous().view(torch.uint8).unsqueeze(-1) >> bit_position) & 1
    return spread.flatten(1)[:, :vocab_size].to(torch.bool)


def _used_entries(table: Tensor, length: Tensor, rows: _Rows) -> Tensor:
    """Return the used entries [R, C] of lists in ``table``."""
    return torch.arange(table.shape[1], device=table.device) < length[rows.slot].unsqueeze(1)


def _bad_words(tables: RequestTables, rows: _Rows) -> tuple[Tensor, Tensor]:
    """Find the bad words of which all ids but the last are already there.

    :returns: the words [R, NW, LW] of each row, and [R, NW] bool.
    """
    words, lengths = tables.bad_words[rows.slot], tables.bad_lens[rows.slot].unsqueeze(-1)
    width, history_width = words.shape[2], tables.history.shape[1]
    num_tokens, prompt = (table[rows.slot].unsqueeze(1) for table in (tables.num_tokens, tables.num_prompt))
    column = torch.arange(width - 1, device=words.device)
    position = num_tokens + rows.step - (width - 1) + column
    tail = tables.history[rows.slot.unsqueeze(1), position.clamp(0, history_width - 1)].to(torch.int64)
    if rows.drafted.shape[1]:
        draft_index = position - num_tokens
        ahead = rows.drafted.gather(1, draft_index.clamp(0, rows.drafted.shape[1] - 1))
        tail = torch.where(draft_index >= 0, ahead, tail)
    tail = tail.masked_fill(position < prompt, -1)
    equal = (words[..., :-1] == tail.unsqueeze(1)) | (column < width - lengths)
    return words, equal.all(-1) & _used_entries(tables.bad_words, tables.num_bad, rows) & rows.exists


def _add(
    logits: Tensor, tables: RequestTables, facts: EditFacts, rows: _Rows, recent: RecentTokens | None
) -> None:
    """Add the biases, subtract the penalties and the costs of DRY.

    An id with a bias stands in the list of biases alone.
    """
    slot, vocab_size = rows.slot.unsqueeze(1), logits.shape[1]
    penalties = tables.repetition, tables.frequency, tables.presence
    repetition, frequency, presence = (table[slot] for table in penalties)
    lists, masks = [], []
    if facts.any_penalty or facts.any_dry:
        distinct = tables.distinct[:, :vocab_size]
        penalized = (repetition != 1) | (frequency != 0) | (presence != 0)
        if facts.any_dry:
            penalized |= tables.dry_multiplier[slot] != 0
        penalized &= rows.exists
        lists += [distinct[rows.slot], rows.drafted]
        masks += [
            _used_entries(distinct, tables.num_distinct, rows) & penalized,
            (rows.drafted >= 0) & penalized,
        ]
    num_listed = sum(entries.shape[1] for entries in lists)
    if facts.any_bias:
        lists.append(tables.bias_ids[rows.slot])
        masks.append(_used_entries(tables.bias_ids, tables.num_bias, rows) & rows.exists)
    ids = torch.cat([entries.to(torch.int64) for entries in lists], 1).clamp_(0, vocab_size - 1)
    edited = torch.cat(masks, 1)
    counts = tables.counts[slot, ids]
    edited[:, :num_listed] &= (counts[:, :num_listed] & 2) == 0
    old = _as_integers(logits).gather(1, ids)
    x = old.view(logits.dtype).to(torch.float32)
    if facts.any_bias:
        x[:, num_listed:] += tables.bias[rows.slot]
    if facts.any_penalty:
        times = counts >> 4
        for draft in rows.drafted.unbind(1):
            times += ids == draft.unsqueeze(1)
        occurs = (times > 0) | ((counts & 1) != 0)
        if facts.any_penalty_last_n and recent is not None:
            last_n = tables.penalty_last_n[slot]
            in_output, in_all = occurrences_within(recent, last_n, ids)
            times = torch.where(last_n < 0, times, in_output)
            occurs = torch.where(last_n < 0, occurs, in_all > 0)
        factor = torch.where(occurs, repetition, 1.0)
        x = torch.where(x > 0, x / factor, x * factor)
        reduced = x - frequency * times.to(torch.float32)
        x = torch.where(times > 0, reduced - presence, x)  # an id of the prompt keeps the sign of its zero
    if facts.any_dry and recent is not None:
        x = x - dry_costs(tables, rows.slot, recent, ids)
    new = _as_integers(x.to(logits.dtype))
    _write(logits, ids, torch.where(x.isnan(), old, new), edited)


def _as_integers(values: Tensor) -> Tensor:
    """View floating point numbers as integers: moving a NaN as a number may change its bits."""
    return values.view(torch.int32 if values.element_size() == 4 else torch.int16)


def _write(logits: Tensor, ids: Tensor, values: Tensor | None, mask: Tensor) -> None:
    """Write values [R, C] at ids [R, C] where ``mask`` is True.

    Entries outside of the mask repeat the first write of their row. In a row without writes they repeat a logit.

    :param values: bits of the values; None: bits of -inf.
    """
    bits = _as_integers(logits)
    first = mask.to(torch.uint8).argmax(1, keepdim=True)
    ids = ids.to(torch.int64).clamp(0, logits.shape[1] - 1)
    ids = torch.where(mask, ids, ids.gather(1, first))
    new = logits.new_full((), _NEG_INF).view(bits.dtype)
    if values is not None:
        new = torch.where(mask, values, values.gather(1, first))
    bits.scatter_(1, ids, torch.where(mask.any(1, keepdim=True), new, bits.gather(1, ids)))


# The tokens before rows of logits, newest first.


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


# Thinking budgets.


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


# DRY. A match at a place of the history is as long as the tokens in front of the place, read backwards, equal the last
# tokens of the history. With the newest token first that is the longest common prefix of the history and its own part
# from some index on, for all indices at once. Blocks of 1, 2, 4, ... tokens get numbers, the same for equal blocks; a
# match grows by the largest blocks first. That takes a few dozen operations, with no word from the device.

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

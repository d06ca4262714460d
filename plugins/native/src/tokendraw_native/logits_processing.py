"""The native processor of logits: a few dozen operations of torch for each part of a batch, without a wait.

Masks are written over all ids of a row; everything else is computed for lists of ids alone, and scattered.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw import Drafts, RequestSlots, speculative
from tokendraw.plugin import EditFacts, RequestTables
from tokendraw_native.buffers import Buffers
from tokendraw_native.dry import dry_costs
from tokendraw_native.recent_tokens import RecentTokens, occurrences_within, recent_tokens
from tokendraw_native.row_threads import CHUNK_LOGITS, map_steps, share_threads
from tokendraw_native.thinking import forced_ids

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
                    _forbid(logits[part], forbidden)

            has_masks = bitmask is not None or facts.any_allowed or facts.any_thinking_budget
            map_steps(edit, count, _num_chunk_rows(logits, tables, has_masks=has_masks), logits.device)
        return logits


def _num_chunk_rows(logits: Tensor, tables: RequestTables, *, has_masks: bool) -> int:
    """Return how many rows are edited together."""
    vocab_size, history = logits.shape[1], tables.history.shape[1]
    if logits.device.type != "cpu":
        return _CHUNK_IDS // (vocab_size + history)
    return CHUNK_LOGITS // (vocab_size * has_masks + _MASK_IDS_PER_LIST_ID * history)


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
        _forbid(logits, forbidden)
    _mask(logits, tables, facts, masked_rows)
    if facts.any_bias or facts.any_penalty or facts.any_dry:
        _add(logits, tables, facts, rows, recent)


def _mask(logits: Tensor, tables: RequestTables, facts: EditFacts, rows: _Rows) -> None:
    """Forbid ids that are not allowed, the ends of bad words, and stop ids before ``min_tokens``."""
    if facts.any_allowed:
        restricted = tables.is_restricted[rows.slot].unsqueeze(1) & rows.exists
        _forbid(logits, restricted & ~_bits(tables.allowed[rows.slot], logits.shape[1]))
    if facts.any_bad_words:
        words, ends = _bad_words(tables, rows)
        _write(logits, words[..., -1], None, ends)
    if facts.any_min_tokens:
        output = (tables.num_tokens - tables.num_prompt)[rows.slot].unsqueeze(1) + rows.step
        early = rows.exists & (output < tables.min_tokens[rows.slot].unsqueeze(1))
        _write(
            logits,
            tables.stop_ids[rows.slot],
            None,
            _used_entries(tables.stop_ids, tables.num_stop, rows) & early,
        )


def _bits(words: Tensor, vocab_size: int) -> Tensor:
    """Spread bit masks [R, ceil(V / 32)] int32 to [R, V] bool."""
    bit_position = torch.arange(8, dtype=torch.uint8, device=words.device)
    spread = (words.contiguous().view(torch.uint8).unsqueeze(-1) >> bit_position) & 1
    return spread.flatten(1)[:, :vocab_size].to(torch.bool)


def _forbid(logits: Tensor, forbidden: Tensor) -> None:
    logits.masked_fill_(forbidden, _NEG_INF)


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
    repetition, frequency, presence = (
        table[slot] for table in (tables.repetition, tables.frequency, tables.presence)
    )
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

"""The native processor of logits: a few dozen operations of torch for each part of a batch, none of which waits.

Masks are written over all ids of a row; everything else is computed for lists of ids alone, and scattered.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw import Drafts, RequestSlots, speculative
from tokendraw.plugin import EditFacts, RequestTables
from tokendraw_native.buffers import Buffers
from tokendraw_native.row_threads import CHUNK_LOGITS, by_steps, sharing

_ELEMENTS = 1 << 23
"""Ids that are looked at together, of all rows: what lies in memory for each of them takes about 40 bytes."""
_MASK_IDS_OF_A_LIST_ID = 16
"""Ids of a mask that a CPU edits in the time of one id in a list."""
_OFF = float("-inf")


class NativeProcessor:
    """Edits logits on their device."""

    @torch.inference_mode()  # in which logits may be written to that were made in it
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
        with sharing(logits):
            rows = _rows(tables, row_index, drafts, count) if facts.any_edit else None

            def edit(part: slice, _: Buffers) -> None:
                if bitmask is not None:
                    _forbid(logits[part], ~_bits(bitmask[part], vocab_size))
                if rows is not None:
                    _edit(logits[part], tables, facts, _Rows(*(tensor[part] for tensor in rows)))

            has_masks = bitmask is not None or facts.any_allowed
            by_steps(edit, count, _rows_of_chunk(logits, tables, has_masks=has_masks), logits.device)
        return logits


def _rows_of_chunk(logits: Tensor, tables: RequestTables, *, has_masks: bool) -> int:
    """Return how many rows are edited together."""
    vocab_size, history = logits.shape[1], tables.history.shape[1]
    if logits.device.type != "cpu":
        return _ELEMENTS // (vocab_size + history)
    return CHUNK_LOGITS // (vocab_size * has_masks + _MASK_IDS_OF_A_LIST_ID * history)


class _Rows(NamedTuple):
    """The request and the drafts of each row."""

    slot: Tensor
    """[R] int64, in range."""
    exists: Tensor
    """[R, 1] bool: whether it has a slot at all."""
    step: Tensor
    """[R, 1] int64: drafts before it."""
    drafted: Tensor
    """[R, K] int64: the drafts before it, -1 in place of placeholders and behind the last."""


def _rows(tables: RequestTables, row_index: Tensor, drafts: Drafts | None, count: int) -> _Rows:
    """Find the slot of each row, and the drafts before it."""
    num_slots, vocab_size = tables.counts.shape
    slot = row_index.to(torch.int64)
    if drafts is None:
        step = slot.new_zeros(count, 1)
        drafted, exists = step[:, :0], slot.new_ones(count, dtype=torch.bool)
    else:
        offsets, ids = drafts.cu_num_logits.to(torch.int64), drafts.draft_token_ids
        request, place = speculative.rows_of_requests(offsets, count)
        slot, step = slot.index_select(0, request), place.unsqueeze(1)
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


def _edit(logits: Tensor, tables: RequestTables, facts: EditFacts, rows: _Rows) -> None:
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
            logits, tables.stop_ids[rows.slot], None, _filled(tables.stop_ids, tables.num_stop, rows) & early
        )
    if facts.any_bias or facts.any_penalty:
        _add(logits, tables, facts, rows)


def _bits(words: Tensor, vocab_size: int) -> Tensor:
    """Spread bit masks [R, ceil(V / 32)] int32 to [R, V] bool."""
    place = torch.arange(8, dtype=torch.uint8, device=words.device)
    spread = (words.contiguous().view(torch.uint8).unsqueeze(-1) >> place) & 1
    return spread.flatten(1)[:, :vocab_size].to(torch.bool)


def _forbid(logits: Tensor, forbidden: Tensor) -> None:
    logits.masked_fill_(forbidden, _OFF)


def _filled(table: Tensor, length: Tensor, rows: _Rows) -> Tensor:
    """Tell the entries [R, C] of lists in ``table`` from what lies behind them."""
    return torch.arange(table.shape[1], device=table.device) < length[rows.slot].unsqueeze(1)


def _bad_words(tables: RequestTables, rows: _Rows) -> tuple[Tensor, Tensor]:
    """Find the bad words whose last id comes next.

    :returns: the words [R, NW, LW] of each row, and [R, NW] bool.
    """
    words, lengths = tables.bad_words[rows.slot], tables.bad_lens[rows.slot].unsqueeze(-1)
    width, kept = words.shape[2], tables.history.shape[1]
    settled, prompt = (table[rows.slot].unsqueeze(1) for table in (tables.num_tokens, tables.num_prompt))
    column = torch.arange(width - 1, device=words.device)
    position = settled + rows.step - (width - 1) + column
    tail = tables.history[rows.slot.unsqueeze(1), position.clamp(0, kept - 1)].to(torch.int64)
    if rows.drafted.shape[1]:
        place = position - settled
        ahead = rows.drafted.gather(1, place.clamp(0, rows.drafted.shape[1] - 1))
        tail = torch.where(place >= 0, ahead, tail)
    tail = tail.masked_fill(position < prompt, -1)
    equal = (words[..., :-1] == tail.unsqueeze(1)) | (column < width - lengths)
    return words, equal.all(-1) & _filled(tables.bad_words, tables.num_bad, rows) & rows.exists


def _add(logits: Tensor, tables: RequestTables, facts: EditFacts, rows: _Rows) -> None:
    """Add the biases and subtract the penalties. An id with a bias stands in that list alone."""
    slot, vocab_size = rows.slot.unsqueeze(1), logits.shape[1]
    repetition, frequency, presence = (
        table[slot] for table in (tables.repetition, tables.frequency, tables.presence)
    )
    lists, wanted = [], []
    if facts.any_penalty:
        distinct = tables.distinct[:, :vocab_size]
        penalized = ((repetition != 1) | (frequency != 0) | (presence != 0)) & rows.exists
        lists += [distinct[rows.slot], rows.drafted]
        wanted += [_filled(distinct, tables.num_distinct, rows) & penalized, (rows.drafted >= 0) & penalized]
    occurring = sum(part.shape[1] for part in lists)
    if facts.any_bias:
        lists.append(tables.bias_ids[rows.slot])
        wanted.append(_filled(tables.bias_ids, tables.num_bias, rows) & rows.exists)
    ids = torch.cat([part.to(torch.int64) for part in lists], 1).clamp_(0, vocab_size - 1)
    edited = torch.cat(wanted, 1)
    counts = tables.counts[slot, ids]
    edited[:, :occurring] &= (counts[:, :occurring] & 2) == 0
    old = _as_integers(logits).gather(1, ids)
    x = old.view(logits.dtype).to(torch.float32)
    if facts.any_bias:
        x[:, occurring:] += tables.bias[rows.slot]
    if facts.any_penalty:
        times = counts >> 4
        for draft in rows.drafted.unbind(1):
            times += ids == draft.unsqueeze(1)
        factor = torch.where((times > 0) | ((counts & 1) != 0), repetition, 1.0)
        x = torch.where(x > 0, x / factor, x * factor)
        often = x - frequency * times.to(torch.float32)
        x = torch.where(times > 0, often - presence, x)  # an id of the prompt keeps the sign of its zero
    new = _as_integers(x.to(logits.dtype))
    _write(logits, ids, torch.where(x.isnan(), old, new), edited)


def _as_integers(values: Tensor) -> Tensor:
    """View the bits of floating point numbers: to move a NaN as a number may change it."""
    return values.view(torch.int32 if values.element_size() == 4 else torch.int16)


def _write(logits: Tensor, ids: Tensor, values: Tensor | None, wanted: Tensor) -> None:
    """Write values [R, C] at ids [R, C] where they are wanted.

    What is not wanted is written like the first of its row that is, and so to nowhere else; where none is, an old
    logit is written again.

    :param values: their bits; None: those of -inf.
    """
    bits = _as_integers(logits)
    first = wanted.to(torch.uint8).argmax(1, keepdim=True)
    ids = ids.to(torch.int64).clamp(0, logits.shape[1] - 1)
    ids = torch.where(wanted, ids, ids.gather(1, first))
    new = logits.new_full((), _OFF).view(bits.dtype)
    if values is not None:
        new = torch.where(wanted, values, values.gather(1, first))
    bits.scatter_(1, ids, torch.where(wanted.any(1, keepdim=True), new, bits.gather(1, ids)))

"""The processor of logits: a launch a call, or none where no request asks for an edit; a launch appends tokens."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from tokendraw import Drafts, RequestSlots
from tokendraw.plugin import RequestTables
from tokendraw_triton_gumbel.edit_launches import (
    DRY,
    LAST_N,
    LONG_EDITS,
    TABLES,
    THINKING,
    ProcessLaunches,
    ProcessVariant,
    edit_flags,
    table_groups,
)
from tokendraw_triton_gumbel.kernels import edits
from tokendraw_triton_gumbel.kernels.arguments import Logits
from tokendraw_triton_gumbel.kernels.edits import HistoryEnds, IdTables, SlotRows, StepDrafts, StepTokens
from tokendraw_triton_gumbel.launch import LaunchDevice, current_stream, group

_INDEX_DTYPES = (torch.int32, torch.int64)
_NO_DRAFTS = StepDrafts()
_OVERLAPS: int = edits.OVERLAPS.value


class TritonLogitsProcessor:
    """Edits of logits by one Triton kernel. Made by ``tokendraw.load("process_logits", "triton-gumbel")``."""

    def __init__(self, device: torch.device) -> None:
        launch_device = LaunchDevice.of(device)
        self._current_index, self._convert = launch_device.current_index, launch_device.converter.tensors
        self._launches = ProcessLaunches(launch_device.family, launch_device.processors)
        self._cached_groups: tuple[weakref.ref[RequestTables], tuple[Any, ...]] | None = None
        """The tables of the last call, which never move, and the groups of arguments for them."""

    def process(
        self,
        logits: Tensor,
        slots: RequestSlots,
        row_index: Tensor,
        bitmask: Tensor | None = None,
        drafts: Drafts | None = None,
    ) -> Tensor:
        """Edit logits in place, and return them; see :class:`tokendraw.plugin.LogitsProcessorBackend`."""
        device = logits.get_device()
        if device != self._current_index():
            with torch.cuda.device(device):
                return self.process(logits, slots, row_index, bitmask, drafts)
        flags = edit_flags(slots.facts, has_bitmask=bitmask is not None)
        rows, vocab_size = logits.shape
        if not flags or not rows or not vocab_size:
            return logits
        row_index, tables, ids_and_offsets = _readable(row_index), slots.tables, None
        if drafts is not None:
            ids_and_offsets = _readable(drafts.draft_token_ids), _readable(drafts.cu_num_logits)
        variant = ProcessVariant(
            logits.dtype,
            row_index.dtype,
            ids_and_offsets and (ids_and_offsets[0].dtype, ids_and_offsets[1].dtype),
            drafts is not None or flags & LONG_EDITS != 0,
        )
        launch = self._launches.of(variant)
        grid, division = self._launches.divide(
            rows, vocab_size, tables.history.shape[1], flags, has_drafts=drafts is not None
        )
        history, occurrences, penalties, bias, masks, stops, words, dry, thinking, _ = self._table_groups(
            tables
        )
        base, index, mask = self._convert((logits, row_index, bitmask))
        if bitmask is not None:
            masks = masks._replace(bitmask=mask, bitmask_stride=bitmask.stride(0))
        slot_rows = group(SlotRows, (index, slots.num_slots, None))
        logits_in = group(Logits, (base, logits.stride(0), vocab_size))
        step_drafts = _NO_DRAFTS if ids_and_offsets is None else self._step_drafts(*ids_and_offsets)
        stream = current_stream(device)
        searched = slot_rows, logits_in, history, step_drafts, stops
        forced_ids = history.tokens
        if flags & THINKING:
            forced = torch.empty(rows, dtype=torch.int32, device=logits.device)
            (forced_ids,) = self._convert((forced,))
            self._launches.searches.find_forced_ids(variant, rows, searched, (thinking, forced_ids), stream)
        id_tables = group(IdTables, (history.tokens, history.tokens, history.tokens, 0))
        if flags & (LAST_N | DRY):
            max_tokens = tables.history.shape[1] + (0 if drafts is None else drafts.max_drafts)
            room = min(2 * max_tokens, vocab_size)
            scratch = _table_scratch(rows, room, flags, logits.device)
            *table_parts, lengths, overlaps = self._convert(scratch)
            id_tables = group(IdTables, (*table_parts, room))
            settings = penalties, dry, id_tables, group(HistoryEnds, (lengths, overlaps))
            self._launches.searches.fill_tables(variant, flags, rows, searched, settings, stream)
        arguments = (
            flags,
            division,
            group(SlotRows, (index, slots.num_slots, forced_ids)),
            logits_in,
            occurrences,
            penalties,
            masks,
            history,
            step_drafts,
            bias,
            stops,
            words,
            dry,
            id_tables,
        )
        launch(grid, arguments, stream)
        return logits

    def append(self, tables: RequestTables, row_index: Tensor, token_ids: Tensor) -> None:
        """Append the tokens of a step; see :class:`tokendraw.plugin.LogitsProcessorBackend`."""
        device = token_ids.get_device()
        if device != self._current_index():
            with torch.cuda.device(device):
                return self.append(tables, row_index, token_ids)
        rows = token_ids.shape[0]
        if not token_ids.numel():
            return None
        row_index, ids = _readable(row_index), token_ids.to(torch.int64).contiguous()
        index, first_id = self._convert((row_index, ids))
        arguments = (
            group(SlotRows, (index, tables.num_tokens.shape[0], None)),
            group(StepTokens, (first_id, ids.numel() // rows)),
            self._table_groups(tables)[-1],
        )
        self._launches.append(row_index.dtype)((rows, 1, 1), arguments, current_stream(device))
        return None

    def _step_drafts(self, ids: Tensor, offsets: Tensor) -> StepDrafts:
        """Return the arguments for drafts [D] or [B, K] and the offsets [B + 1] of their requests."""
        width = ids.shape[1] if ids.dim() == 2 else 0
        ids_in, offsets_in = self._convert((ids, offsets))
        return group(StepDrafts, (ids_in, ids.numel(), width, offsets_in, len(offsets) - 1))

    def _table_groups(self, tables: RequestTables) -> tuple[Any, ...]:
        """Return the arguments for tables, cached for the tables of the last call."""
        cached = self._cached_groups
        if cached is not None and cached[0]() is tables:
            return cached[1]
        groups = table_groups(self._convert([getattr(tables, name) for name in TABLES]), tables)
        self._cached_groups = weakref.ref(tables), groups
        return groups


def _table_scratch(rows: int, room: int, flags: int, device: torch.device) -> list[Tensor]:
    """Allocate keys, counts and sizes of tables with ``room`` entries a row, and the ends of the rows' histories."""
    keys = torch.empty(rows, room, dtype=torch.int64, device=device)
    counts = torch.empty(rows, room if flags & LAST_N else 0, dtype=torch.int32, device=device)
    sizes, lengths = torch.empty(2, rows, dtype=torch.int32, device=device)
    overlaps = torch.empty(rows, _OVERLAPS, dtype=torch.int32, device=device)
    return [keys, counts, sizes, lengths, overlaps]


def _readable(integers: Tensor) -> Tensor:
    """Return contiguous int32 or int64 integers."""
    if integers.dtype not in _INDEX_DTYPES:
        integers = integers.to(torch.int64)
    return integers.contiguous()

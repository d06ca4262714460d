"""The processor of logits: a launch a call, or none where no request asks for an edit; a launch appends tokens."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from tokendraw import Drafts, RequestSlots
from tokendraw.plugin import RequestTables
from tokendraw_triton_gumbel.kernels.edits import (
    TABLES,
    Bitmask,
    GrowingHistory,
    ProcessLaunches,
    ProcessVariant,
    SlotRows,
    Slots,
    StepDrafts,
    StepTokens,
    edit_flags,
    slot_groups,
)
from tokendraw_triton_gumbel.kernels.rows import Logits
from tokendraw_triton_gumbel.launch import LaunchDevice, current_stream, group

_INDEX_DTYPES = (torch.int32, torch.int64)
_NO_DRAFTS = StepDrafts()


class TritonLogitsProcessor:
    """Edits of logits by one Triton kernel. Made by ``tokendraw.load("process_logits", "triton-gumbel")``."""

    def __init__(self, device: torch.device) -> None:
        launch_device = LaunchDevice.of(device)
        self._current_index, self._convert = launch_device.current_index, launch_device.converter.tensors
        self._launches = ProcessLaunches(launch_device.family, launch_device.processors)
        self._cached_groups: tuple[weakref.ref[RequestTables], tuple[Slots, GrowingHistory]] | None = None
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
        row_index, tables, step_drafts, drafted = _readable(row_index), slots.tables, _NO_DRAFTS, None
        if drafts is not None:
            ids, offsets = drafted = _readable(drafts.draft_token_ids), _readable(drafts.cu_num_logits)
            width = ids.shape[1] if ids.dim() == 2 else 0
            ids_in, offsets_in = self._convert(drafted)
            step_drafts = group(StepDrafts, (ids_in, ids.numel(), width, offsets_in, len(offsets) - 1))
        launch = self._launches.of(ProcessVariant.of(logits.dtype, row_index.dtype, drafted, flags))
        max_tokens = tables.history.shape[1]
        grid, division = self._launches.divide(
            rows, vocab_size, max_tokens, flags, has_drafts=drafts is not None
        )
        slots_in, _ = self._slot_groups(tables)
        base, index, words = self._convert((logits, row_index, bitmask))
        arguments = (
            flags,
            division,
            group(SlotRows, (index, slots.num_slots)),
            group(Logits, (base, logits.stride(0), vocab_size)),
            slots_in,
            # Without a bitmask nothing of it is read, so the allowed ids stand in.
            group(Bitmask, (slots_in.allowed, 0) if bitmask is None else (words, bitmask.stride(0))),
            step_drafts,
        )
        launch(grid, arguments, current_stream(device))
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
        _, growing = self._slot_groups(tables)
        arguments = (
            group(SlotRows, (index, tables.num_tokens.shape[0])),
            group(StepTokens, (first_id, ids.numel() // rows)),
            growing,
        )
        self._launches.append(row_index.dtype)((rows, 1, 1), arguments, current_stream(device))
        return None

    def _slot_groups(self, tables: RequestTables) -> tuple[Slots, GrowingHistory]:
        """Return the arguments for tables, cached for the tables of the last call."""
        cached = self._cached_groups
        if cached is not None and cached[0]() is tables:
            return cached[1]
        groups: tuple[Slots, GrowingHistory] = slot_groups(
            self._convert([getattr(tables, name) for name in TABLES]), tables
        )
        self._cached_groups = weakref.ref(tables), groups
        return groups


def _readable(integers: Tensor) -> Tensor:
    """Return contiguous int32 or int64 integers."""
    if integers.dtype not in _INDEX_DTYPES:
        integers = integers.to(torch.int64)
    return integers.contiguous()

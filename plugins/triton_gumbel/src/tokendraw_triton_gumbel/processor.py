"""The call of ``process_logits``: one launch, or none where nobody asks for anything."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from tokendraw import Drafts, RequestSlots
from tokendraw.plugin import RequestTables
from tokendraw_triton_gumbel.host.device import LaunchDevice
from tokendraw_triton_gumbel.host.launch import current_stream, group
from tokendraw_triton_gumbel.kernels.logits_processing.argument_groups import SlotRows, StepDrafts
from tokendraw_triton_gumbel.kernels.shared.argument_groups import Logits
from tokendraw_triton_gumbel.launches.logits_processing import (
    LISTED,
    TABLES,
    ProcessLaunches,
    Variant,
    flags_of,
    groups_of,
)

_INDEX_DTYPES = (torch.int32, torch.int64)
_NO_DRAFTS = StepDrafts()


class TritonLogitsProcessor:
    """Edits of logits by one Triton kernel. Made by ``tokendraw.load("process_logits", "triton-gumbel")``."""

    def __init__(self, device: torch.device) -> None:
        here = LaunchDevice.of(device)
        self._current_device, self._tensors = here.current, here.arguments.tensors
        self._launches = ProcessLaunches(here.family, here.processors)
        self._known: tuple[weakref.ref[RequestTables], tuple[Any, ...]] | None = None
        """The tables of the last call, which never move, and the arguments for them."""

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
        if device != self._current_device():
            with torch.cuda.device(device):
                return self.process(logits, slots, row_index, bitmask, drafts)
        flags = flags_of(slots.facts, has_bitmask=bitmask is not None)
        rows, vocab_size = logits.shape
        if not flags or not rows or not vocab_size:
            return logits
        row_index = _readable(row_index)
        given = (
            None if drafts is None else (_readable(drafts.draft_token_ids), _readable(drafts.cu_num_logits))
        )
        tables = slots.tables
        launch = self._launches.of(
            Variant(
                logits.dtype,
                row_index.dtype,
                given and (given[0].dtype, given[1].dtype),
                given is not None or flags & LISTED != 0,
            )
        )
        grid, division = self._launches.divide(
            rows, vocab_size, tables.history.shape[1], flags, has_drafts=drafts is not None
        )
        history, occurrences, penalties, bias, masks, stops, words = self._groups(tables)
        base, index, mask = self._tensors((logits, row_index, bitmask))
        if bitmask is not None:
            masks = masks._replace(bitmask=mask, bitmask_stride=bitmask.stride(0))
        arguments = (
            flags,
            division,
            group(SlotRows, (index, slots.num_slots)),
            group(Logits, (base, logits.stride(0), vocab_size)),
            occurrences,
            penalties,
            masks,
            history,
            _NO_DRAFTS if given is None else self._drafts(*given),
            bias,
            stops,
            words,
        )
        launch(grid, arguments, current_stream(device))
        return logits

    def _drafts(self, ids: Tensor, cu_num_logits: Tensor) -> StepDrafts:
        """Return what stands for drafts [D] or [B, K] and the offsets [B + 1] of their requests."""
        width = ids.shape[1] if ids.dim() == 2 else 0
        given, offsets = self._tensors((ids, cu_num_logits))
        return group(StepDrafts, (given, ids.numel(), width, offsets, len(cu_num_logits) - 1))

    def _groups(self, tables: RequestTables) -> tuple[Any, ...]:
        """Return the arguments for tables, which are looked at once."""
        known = self._known
        if known is not None and known[0]() is tables:
            return known[1]
        groups = groups_of(self._tensors([getattr(tables, name) for name in TABLES]), tables)
        self._known = weakref.ref(tables), groups
        return groups


def _readable(integers: Tensor) -> Tensor:
    """Return integers of a type that a kernel reads, one behind the other."""
    if integers.dtype not in _INDEX_DTYPES:
        integers = integers.to(torch.int64)
    return integers.contiguous()

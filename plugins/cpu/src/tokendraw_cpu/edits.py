"""The processor `cpu`: passes the addresses of requests and logits to the compiled library, which edits in place."""

from __future__ import annotations

import ctypes
import weakref

import torch
from torch import Tensor

from tokendraw import Drafts, RequestSlots
from tokendraw.plugin import EditFacts, RequestTables
from tokendraw_cpu.library import TABLES, Context, DraftArguments, EditArguments, TableArguments
from tokendraw_cpu.sampler import DTYPES, address, dense, logits_arguments, num_threads


class CpuProcessor:
    """The compiled processor of logits. Made by ``tokendraw.load("process_logits", "cpu")``."""

    def __init__(self, target: str | None = None) -> None:
        """Load the library.

        :param target: instruction set, of :func:`tokendraw_cpu.library.supported_targets`; None: the fastest.
        """
        self._context = Context(target)
        self._cached_tables: tuple[weakref.ref[RequestTables], TableArguments] | None = None
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
        facts = slots.facts
        tables = self._table_arguments(slots.tables) if facts.any_edit else None
        slot = dense(row_index, torch.int64, len(logits) if drafts is None else drafts.num_requests)
        offsets, ids = None, None
        if drafts is not None:
            offsets = dense(drafts.cu_num_logits, torch.int64, drafts.num_requests + 1)
            ids = dense(drafts.draft_token_ids, torch.int64, len(drafts.draft_token_ids))
        if bitmask is not None and (bitmask.dtype is not torch.int32 or bitmask.stride(1) != 1):
            bitmask = bitmask.to(torch.int32).contiguous()
        arguments = EditArguments(
            logits_arguments(logits),
            tables and ctypes.pointer(tables),
            slot.data_ptr(),
            address(bitmask),
            0 if bitmask is None else bitmask.stride(0),
            _draft_arguments(drafts, offsets, ids),
            _num_searched(tables, facts, drafts),
            DTYPES[logits.dtype],
            num_threads(logits),
        )
        self._context.edit(arguments)
        return logits

    def _table_arguments(self, tables: RequestTables) -> TableArguments:
        """Return the arguments for tables, cached for the tables of the last call."""
        cached = self._cached_tables
        if cached is not None and cached[0]() is tables:
            return cached[1]
        arguments = TableArguments(
            *tables.history.shape,
            tables.counts.shape[1],
            tables.bias_ids.shape[1],
            tables.stop_ids.shape[1],
            *tables.bad_words.shape[1:],
            tables.dry_breakers.shape[1],
            tables.thinking_start.shape[1],
            *(getattr(tables, name).data_ptr() for name in TABLES),
        )
        self._cached_tables = weakref.ref(tables), arguments
        return arguments


def _num_searched(tables: TableArguments | None, facts: EditFacts, drafts: Drafts | None) -> int:
    """Return how many ids a search for windows and repetitions may enter: tokens, drafts and breakers."""
    if tables is None or not (facts.any_penalty_last_n or facts.any_dry):
        return 0
    return int(tables.max_tokens + tables.max_breakers) + (0 if drafts is None else drafts.max_drafts)


def _draft_arguments(drafts: Drafts | None, offsets: Tensor | None, ids: Tensor | None) -> DraftArguments:
    if drafts is None or offsets is None or ids is None:
        return DraftArguments()
    width = ids.shape[1] if ids.dim() == 2 else 0
    requests, most = len(offsets) - 1, drafts.max_drafts
    return DraftArguments(offsets.data_ptr(), requests, most, ids.data_ptr(), ids.numel(), width)

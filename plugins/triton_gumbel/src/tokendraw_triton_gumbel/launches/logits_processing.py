"""The launches that edit logits and append tokens: variants, and the division of work among programs."""

from __future__ import annotations

import torch

from tokendraw_triton_gumbel.host.compilation import ANY_INT, INT32, INT64, Pointer
from tokendraw_triton_gumbel.host.geometry import Grid
from tokendraw_triton_gumbel.host.launch import Launch
from tokendraw_triton_gumbel.kernels.logits_processing import edited_row
from tokendraw_triton_gumbel.kernels.logits_processing.append_tokens import append_tokens
from tokendraw_triton_gumbel.kernels.logits_processing.argument_groups import (
    Division,
    GrowingHistory,
    SlotRows,
    StepTokens,
)
from tokendraw_triton_gumbel.kernels.logits_processing.process_logits import process_logits
from tokendraw_triton_gumbel.kernels.shared.configs import ProcessConfig
from tokendraw_triton_gumbel.launches.edit_arguments import (
    BITMASK,
    DRY,
    LIST_EDITS,
    THINKING,
    ProcessVariant,
    edit_placeholders,
)
from tokendraw_triton_gumbel.launches.history_searches import HistorySearches

CONFIG = ProcessConfig(IDS=64, WORDS=8, TILE=1024, REQUESTS=1024, TOKENS=128, LANES=32, PLACES=16)
_WARPS = 2
_PROGRAMS = 16
"""Upper limit of programs a multiprocessor that the ids which occur are divided among."""
_MASK_PROGRAMS = 64
"""Upper limit of programs a multiprocessor that masks are divided among."""
_SEARCH_PROGRAMS = 64
"""Upper limit of programs a multiprocessor that the histories of requests are divided among."""


class ProcessLaunches:
    """The launches over logits on a device."""

    def __init__(self, family: str, processors: int) -> None:
        """Set the limits of programs.

        :param family: ``cuda`` or ``hip``; ``cpu`` for the interpreter.
        :param processors: multiprocessors of the device.
        """
        self._is_nvidia = family == "cuda"
        self._max_programs, self._max_mask_programs = _PROGRAMS * processors, _MASK_PROGRAMS * processors
        self._launches: dict[ProcessVariant, Launch] = {}
        self.searches = HistorySearches(CONFIG, _SEARCH_PROGRAMS * processors)
        self._append_launches: dict[torch.dtype, Launch] = {}

    def append(self, row_index: torch.dtype) -> Launch:
        """Return the launch that appends tokens, compiled for the current device and a dtype of ``row_index``."""
        launch = self._append_launches.get(row_index)
        if launch is None:
            rows = SlotRows(Pointer(row_index, aligned=False), ANY_INT, None)
            slots = GrowingHistory(*[INT32] * 6, ANY_INT, ANY_INT)
            placeholders = rows, StepTokens(INT64, ANY_INT), slots
            launch = Launch.compiled(append_tokens, {}, {"num_warps": 1}, placeholders)
            self._append_launches[row_index] = launch
        return launch

    def of(self, variant: ProcessVariant) -> Launch:
        """Return the launch of a variant, compiled for the current device; its tokens can then be appended too."""
        launch = self._launches.get(variant)
        if launch is None:
            self.append(variant.row_index)
            config = CONFIG._replace(HAS_LISTS=variant.has_lists, IS_NVIDIA=self._is_nvidia)
            options = {"num_warps": _WARPS, "enable_fp_fusion": False}
            launch = Launch.compiled(process_logits, {"config": config}, options, edit_placeholders(variant))
            self._launches[variant] = launch
        return launch

    def divide(
        self, rows: int, vocab_size: int, max_tokens: int, flags: int, *, has_drafts: bool
    ) -> tuple[Grid, Division]:
        """Return the grid of a call, and the division of a row's work among programs."""
        id_programs = list_programs = mask_programs = 0
        if flags & (edited_row.PENALTIES.value | DRY):
            id_programs = max(1, min(-(-max_tokens // CONFIG.IDS), self._max_programs // rows))
            list_programs = int(has_drafts)
        if flags & LIST_EDITS:
            list_programs = 1
        if flags & (edited_row.ALLOWED.value | BITMASK | THINKING):
            mask_programs = max(1, min(-(-vocab_size // CONFIG.TILE), self._max_mask_programs // rows))
        division = Division(id_programs, list_programs, mask_programs)
        return (rows * sum(division), 1, 1), division

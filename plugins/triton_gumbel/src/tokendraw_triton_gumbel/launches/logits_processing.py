"""The launches over the logits and histories of requests: variants, and the division of work among programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch

from tokendraw.plugin import EditFacts, RequestTables
from tokendraw_triton_gumbel.host.compilation import (
    ANY_INT,
    ANY_STRIDE,
    BOOL,
    FLOAT32,
    INT32,
    INT64,
    Argument,
    Pointer,
    any_ints,
)
from tokendraw_triton_gumbel.host.geometry import Grid
from tokendraw_triton_gumbel.host.launch import Launch
from tokendraw_triton_gumbel.kernels.logits_processing import edited_row
from tokendraw_triton_gumbel.kernels.logits_processing.append_tokens import append_tokens
from tokendraw_triton_gumbel.kernels.logits_processing.argument_groups import (
    AllowedIds,
    BadWords,
    Bias,
    Division,
    Dry,
    GrowingHistory,
    History,
    Occurrences,
    Penalties,
    Repetitions,
    SlotRows,
    StepDrafts,
    StepTokens,
    StopIds,
    Thinking,
)
from tokendraw_triton_gumbel.kernels.logits_processing.find_forced_ids import find_forced_ids
from tokendraw_triton_gumbel.kernels.logits_processing.find_repetitions import find_repetitions
from tokendraw_triton_gumbel.kernels.logits_processing.process_logits import process_logits
from tokendraw_triton_gumbel.kernels.shared.argument_groups import Logits
from tokendraw_triton_gumbel.kernels.shared.configs import ProcessConfig

CONFIG = ProcessConfig(IDS=64, WORDS=8, TILE=1024, REQUESTS=1024)
_WARPS = 2
_PROGRAMS = 16
"""Upper limit of programs a multiprocessor that the ids which occur are divided among."""
_MASK_PROGRAMS = 64
"""Upper limit of programs a multiprocessor that masks are divided among."""
BITMASK: int = edited_row.BITMASK.value
_FLAGS = tuple(
    (name, flag.value)
    for name, flag in (
        ("any_penalty", edited_row.PENALTIES),
        ("any_penalty_last_n", edited_row.LAST_N),
        ("any_bias", edited_row.BIAS),
        ("any_allowed", edited_row.ALLOWED),
        ("any_bad_words", edited_row.BAD_WORDS),
        ("any_min_tokens", edited_row.MIN_TOKENS),
        ("any_dry", edited_row.DRY),
        ("any_thinking_budget", edited_row.THINKING),
    )
)
TABLES = tuple(field.name for field in fields(RequestTables))
"""The tensors of slots."""
LIST_EDITS: int = edited_row.BIAS.value | edited_row.BAD_WORDS.value | edited_row.MIN_TOKENS.value
"""Flags of the edits that come from lists."""
DRY: int = edited_row.DRY.value
THINKING: int = edited_row.THINKING.value
LONG_EDITS: int = LIST_EDITS | edited_row.LAST_N.value | DRY | THINKING
"""Flags of the edits that the short kernel lacks."""


class ProcessVariant(NamedTuple):
    """The dtypes in the compilation of a kernel."""

    logits: torch.dtype
    row_index: torch.dtype
    drafts: tuple[torch.dtype, torch.dtype] | None = None
    """Dtypes of the ids of drafts and of the offsets of their requests, where there are any."""
    has_lists: bool = True
    """Whether there may be drafts, or rows that ask for :data:`LONG_EDITS`; if not, the kernel is a short one."""


def edit_flags(facts: EditFacts, *, has_bitmask: bool) -> int:
    """Return the possible edits of a call as bits of :mod:`~.kernels.logits_processing.edited_row`."""
    flags: int = sum(flag for name, flag in _FLAGS if getattr(facts, name))
    return flags | BITMASK if has_bitmask else flags


def table_groups(arguments: Sequence[Any], tables: RequestTables) -> tuple[Any, ...]:
    """Return the groups of arguments for the tensors of slots.

    :param arguments: one for each of :data:`TABLES`.
    :param tables: the tensors, whose shapes are read.
    """
    by_name = dict(zip(TABLES, arguments, strict=True))
    max_tokens, longest_words = tables.history.shape[1], tables.bad_words.shape[2]
    max_biases, max_stops, max_words = (
        table.shape[1] for table in (tables.bias_ids, tables.stop_ids, tables.bad_words)
    )

    def named(*names: str) -> list[Any]:
        return [by_name[name] for name in names]

    return (
        History(*named("history", "num_prompt", "num_tokens"), max_tokens),
        Occurrences(*named("distinct", "num_distinct", "counts"), max_tokens),
        Penalties(*named("repetition", "frequency", "presence", "penalty_last_n")),
        Bias(*named("bias_ids", "bias", "num_bias"), max_biases),
        AllowedIds(by_name["allowed"], 0, *named("allowed", "is_restricted")),  # a bitmask is put in by calls
        StopIds(*named("stop_ids", "num_stop", "min_tokens"), max_stops),
        BadWords(*named("bad_words", "bad_lens", "num_bad"), max_words, longest_words),
        Dry(
            *named("dry_multiplier", "dry_base", "dry_allowed_length", "dry_max_match", "dry_last_n"),
            *named("dry_breakers", "num_dry_breakers"),
            tables.dry_breakers.shape[1],
        ),
        Thinking(
            *named("thinking_budget", "thinking_start", "num_thinking_start"),
            *named("thinking_end", "num_thinking_end"),
            tables.thinking_start.shape[1],
        ),
        GrowingHistory(*named(*GrowingHistory._fields[:-2]), max_tokens, tables.counts.shape[1]),
    )


_DRY = Dry(FLOAT32, FLOAT32, INT32, INT32, INT32, INT32, INT32, ANY_INT)
_THINKING = Thinking(INT32, INT32, INT32, INT32, INT32, ANY_INT)
_REPETITIONS = Repetitions(INT32, INT32, INT32, ANY_INT)


def _step_drafts(variant: ProcessVariant) -> StepDrafts:
    """Return the placeholders of the drafts of every call of a variant."""
    if variant.drafts is None:
        return StepDrafts()
    ids, offsets = (Pointer(dtype, aligned=False) for dtype in variant.drafts)
    return StepDrafts(ids, ANY_INT, ANY_INT, offsets, ANY_INT)


def _placeholders(variant: ProcessVariant) -> tuple[Argument, ...]:
    """Return the placeholders of the arguments of every call of a variant."""
    return (
        ANY_INT,
        any_ints(Division),
        SlotRows(Pointer(variant.row_index, aligned=False), ANY_INT, INT32),
        Logits(Pointer(variant.logits, aligned=False), ANY_STRIDE, ANY_INT),
        Occurrences(INT32, INT32, INT32, ANY_INT),
        Penalties(FLOAT32, FLOAT32, FLOAT32, INT32),
        AllowedIds(INT32, ANY_STRIDE, INT32, BOOL),
        History(INT32, INT32, INT32, ANY_INT),
        _step_drafts(variant),
        Bias(INT32, FLOAT32, INT32, ANY_INT),
        StopIds(INT32, INT32, INT32, ANY_INT),
        BadWords(INT32, INT32, INT32, ANY_INT, ANY_INT),
        _DRY,
        _REPETITIONS,
    )


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
        self._search_launches: dict[tuple[Any, ProcessVariant], Launch] = {}
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

    def repetitions(self, variant: ProcessVariant) -> Launch:
        """Return the launch that finds repetitions for a variant, compiled for the current device."""
        return self._search(find_repetitions, variant, (_DRY, _REPETITIONS))

    def forced_ids(self, variant: ProcessVariant) -> Launch:
        """Return the launch that finds forced ids for a variant, compiled for the current device."""
        return self._search(find_forced_ids, variant, (_THINKING, INT32))

    def _search(self, kernel: Any, variant: ProcessVariant, last: tuple[Argument, ...]) -> Launch:
        """Return a launch over the history of each row.

        :param last: placeholders of the arguments behind those of :func:`load_row`.
        """
        launch = self._search_launches.get((kernel, variant))
        if launch is None:
            placeholders = (
                SlotRows(Pointer(variant.row_index, aligned=False), ANY_INT, None),
                Logits(Pointer(variant.logits, aligned=False), ANY_STRIDE, ANY_INT),
                History(INT32, INT32, INT32, ANY_INT),
                _step_drafts(variant),
                StopIds(INT32, INT32, INT32, ANY_INT),
                *last,
            )
            launch = Launch.compiled(kernel, {"config": CONFIG}, {"num_warps": 4}, placeholders)
            self._search_launches[kernel, variant] = launch
        return launch

    def of(self, variant: ProcessVariant) -> Launch:
        """Return the launch of a variant, compiled for the current device; its tokens can then be appended too."""
        launch = self._launches.get(variant)
        if launch is None:
            self.append(variant.row_index)
            config = CONFIG._replace(HAS_LISTS=variant.has_lists, IS_NVIDIA=self._is_nvidia)
            options = {"num_warps": _WARPS, "enable_fp_fusion": False}
            launch = Launch.compiled(process_logits, {"config": config}, options, _placeholders(variant))
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

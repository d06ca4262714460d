"""The launches that edit logits: their arguments, the searches of histories, and the tables of slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch

from tokendraw.plugin import EditFacts, RequestTables
from tokendraw_triton_gumbel.compilation import (
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
from tokendraw_triton_gumbel.kernels import edits
from tokendraw_triton_gumbel.kernels.arguments import Logits, ProcessConfig
from tokendraw_triton_gumbel.kernels.edits import (
    ENTRIES,
    AllowedIds,
    BadWords,
    Bias,
    Division,
    Dry,
    GrowingHistory,
    History,
    HistoryEnds,
    IdTables,
    Occurrences,
    Penalties,
    SlotRows,
    StepDrafts,
    StepTokens,
    StopIds,
    Thinking,
    append_tokens,
    count_window,
    fill_tables,
    find_forced_ids,
    open_tables,
    process_logits,
)
from tokendraw_triton_gumbel.launch import Launch
from tokendraw_triton_gumbel.plan import Grid

# Arguments of the launches that edit logits: flags of edits, groups for the tensors of slots, placeholders.

BITMASK: int = edits.BITMASK.value
_FLAGS = tuple(
    (name, flag.value)
    for name, flag in (
        ("any_penalty", edits.PENALTIES),
        ("any_penalty_last_n", edits.LAST_N),
        ("any_bias", edits.BIAS),
        ("any_allowed", edits.ALLOWED),
        ("any_bad_words", edits.BAD_WORDS),
        ("any_min_tokens", edits.MIN_TOKENS),
        ("any_dry", edits.DRY),
        ("any_thinking_budget", edits.THINKING),
    )
)
TABLES = tuple(field.name for field in fields(RequestTables))
"""The tensors of slots."""
LIST_EDITS: int = edits.BIAS.value | edits.BAD_WORDS.value | edits.MIN_TOKENS.value
"""Flags of the edits that come from lists."""
DRY: int = edits.DRY.value
LAST_N: int = edits.LAST_N.value
THINKING: int = edits.THINKING.value
LONG_EDITS: int = LIST_EDITS | LAST_N | DRY | THINKING
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
    """Return the possible edits of a call as bits of :mod:`.kernels.edits`."""
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


PENALTIES = Penalties(FLOAT32, FLOAT32, FLOAT32, INT32)
DRY_SETTINGS = Dry(FLOAT32, FLOAT32, INT32, INT32, INT32, INT32, INT32, ANY_INT)
ID_TABLES = IdTables(INT64, INT32, INT32, ANY_INT)
"""Placeholders of groups."""


def step_drafts(variant: ProcessVariant) -> StepDrafts:
    """Return the placeholders of the drafts of every call of a variant."""
    if variant.drafts is None:
        return StepDrafts()
    ids, offsets = (Pointer(dtype, aligned=False) for dtype in variant.drafts)
    return StepDrafts(ids, ANY_INT, ANY_INT, offsets, ANY_INT)


def edit_placeholders(variant: ProcessVariant) -> tuple[Argument, ...]:
    """Return the placeholders of the arguments of every call of a variant."""
    return (
        ANY_INT,
        any_ints(Division),
        SlotRows(Pointer(variant.row_index, aligned=False), ANY_INT, INT32),
        Logits(Pointer(variant.logits, aligned=False), ANY_STRIDE, ANY_INT),
        Occurrences(INT32, INT32, INT32, ANY_INT),
        PENALTIES,
        AllowedIds(INT32, ANY_STRIDE, INT32, BOOL),
        History(INT32, INT32, INT32, ANY_INT),
        step_drafts(variant),
        Bias(INT32, FLOAT32, INT32, ANY_INT),
        StopIds(INT32, INT32, INT32, ANY_INT),
        BadWords(INT32, INT32, INT32, ANY_INT, ANY_INT),
        DRY_SETTINGS,
        ID_TABLES,
    )


# The launches over the histories of requests before logits are edited: tables of ids, and forced ids.

_THINKING = Thinking(INT32, INT32, INT32, INT32, INT32, ANY_INT)
_ENDS = HistoryEnds(INT32, INT32)
_OPEN_WARPS = _FORCED_WARPS = 4
_FILL_WARPS = 1
"""A program of one warp waits for none of the others when it asks whether a lane goes on."""


class HistorySearches:
    """The launches over histories on a device."""

    def __init__(self, config: ProcessConfig, max_programs: int) -> None:
        """Set the limit of programs that the rows of a call are divided among."""
        self._config, self._max_programs = config, max_programs
        self._launches: dict[tuple[Any, ProcessVariant], Launch] = {}

    def find_forced_ids(
        self,
        variant: ProcessVariant,
        rows: int,
        searched: tuple[Any, ...],
        last: tuple[Any, ...],
        stream: Any,
    ) -> None:
        """Write the forced id of each row.

        :param searched: the arguments of ``load_row``: rows, logits, history, drafts, stop ids.
        :param last: the other arguments: the thinking budgets, and the forced ids.
        """
        launch = self._launch(find_forced_ids, variant, (), (_THINKING, INT32), _FORCED_WARPS)
        launch((rows, 1, 1), (*searched, *last), stream)

    def fill_tables(
        self,
        variant: ProcessVariant,
        flags: int,
        rows: int,
        searched: tuple[Any, ...],
        settings: tuple[Penalties, Dry, IdTables, HistoryEnds],
        stream: Any,
    ) -> None:
        """Fill the tables of rows with a window of penalties or DRY: two launches, and one more for windows.

        :param searched: as for :meth:`find_forced_ids`.
        """
        penalties, _, tables, _ = settings
        placeholders = PENALTIES, DRY_SETTINGS, ID_TABLES, _ENDS
        opened, filled = (
            self._launch(kernel, variant, (ANY_INT, ANY_INT), placeholders, warps)
            for kernel, warps in ((open_tables, _OPEN_WARPS), (fill_tables, _FILL_WARPS))
        )
        parts = self._num_parts(rows, tables.room, ENTRIES.value)
        opened((rows * parts, 1, 1), (flags, parts, *searched, *settings), stream)
        parts = self._num_parts(rows, tables.room // 2, self._config.TOKENS)
        grid = rows * parts, 1, 1
        filled(grid, (flags, parts, *searched, *settings), stream)
        if flags & LAST_N:
            counted = self._launch(count_window, variant, (ANY_INT,), (PENALTIES, ID_TABLES), _FILL_WARPS)
            counted(grid, (parts, *searched, penalties, tables), stream)

    def _num_parts(self, rows: int, elements: int, at_once: int) -> int:
        """Return the number of programs of a row."""
        return max(1, min(-(-elements // at_once), self._max_programs // rows))

    def _launch(
        self,
        kernel: Any,
        variant: ProcessVariant,
        first: tuple[Argument, ...],
        last: tuple[Argument, ...],
        warps: int,
    ) -> Launch:
        """Return a launch for a variant, compiled for the current device.

        :param first: placeholders of the arguments in front of those of ``load_row``.
        :param last: placeholders of the arguments behind these.
        """
        launch = self._launches.get((kernel, variant))
        if launch is None:
            placeholders = (
                *first,
                SlotRows(Pointer(variant.row_index, aligned=False), ANY_INT, None),
                Logits(Pointer(variant.logits, aligned=False), ANY_STRIDE, ANY_INT),
                History(INT32, INT32, INT32, ANY_INT),
                step_drafts(variant),
                StopIds(INT32, INT32, INT32, ANY_INT),
                *last,
            )
            launch = Launch.compiled(kernel, {"config": self._config}, {"num_warps": warps}, placeholders)
            self._launches[kernel, variant] = launch
        return launch


# The launches that edit logits and append tokens: variants, and the division of work among programs.

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
        if flags & (edits.PENALTIES.value | DRY):
            id_programs = max(1, min(-(-max_tokens // CONFIG.IDS), self._max_programs // rows))
            list_programs = int(has_drafts)
        if flags & LIST_EDITS:
            list_programs = 1
        if flags & (edits.ALLOWED.value | BITMASK | THINKING):
            mask_programs = max(1, min(-(-vocab_size // CONFIG.TILE), self._max_mask_programs // rows))
        division = Division(id_programs, list_programs, mask_programs)
        return (rows * sum(division), 1, 1), division

"""Arguments of the launches that edit logits: flags of edits, groups for the tensors of slots, placeholders."""

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
from tokendraw_triton_gumbel.kernels.logits_processing import edited_row
from tokendraw_triton_gumbel.kernels.logits_processing.argument_groups import (
    AllowedIds,
    BadWords,
    Bias,
    Division,
    Dry,
    GrowingHistory,
    History,
    IdTables,
    Occurrences,
    Penalties,
    SlotRows,
    StepDrafts,
    StopIds,
    Thinking,
)
from tokendraw_triton_gumbel.kernels.shared.argument_groups import Logits

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
LAST_N: int = edited_row.LAST_N.value
THINKING: int = edited_row.THINKING.value
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

"""The launch over the logits of requests: what its programs are, and what is compiled for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch

from tokendraw.plugin import EditFacts, RequestTables
from tokendraw_triton_gumbel.kernels.logits_processing import row_edits
from tokendraw_triton_gumbel.kernels.logits_processing.argument_groups import (
    AllowedIds,
    BadWords,
    Bias,
    Division,
    History,
    Occurrences,
    Penalties,
    SlotRows,
    StepDrafts,
    StopIds,
)
from tokendraw_triton_gumbel.kernels.logits_processing.process_logits import process_logits
from tokendraw_triton_gumbel.kernels.shared.argument_groups import Logits
from tokendraw_triton_gumbel.kernels.shared.configs import ProcessConfig
from tokendraw_triton_gumbel.launches.compiled import Argument, Pointer, is_interpreted
from tokendraw_triton_gumbel.launches.geometry import Grid
from tokendraw_triton_gumbel.launches.launch import Launch

CONFIG = ProcessConfig(IDS=64, WORDS=8, TILE=1024, REQUESTS=1024)
_WARPS = 2
_PROGRAMS = 16
"""Programs a multiprocessor that the ids which occur are shared among, at most."""
_MASK_PROGRAMS = 64
"""Programs a multiprocessor that masks are shared among, at most.

A mask by coins of 256 x 151936 bfloat16 logits takes an H200 41.0 us with 64, and 43.3 with 32.
"""
_ANY_STRIDE = (1 << 32) + 3
"""Stand-in for every row stride: 64 bits, a multiple of nothing."""
BITMASK: int = row_edits.BITMASK.value
_FLAGS = tuple(
    (name, flag.value)
    for name, flag in (
        ("any_penalty", row_edits.PENALTIES),
        ("any_bias", row_edits.BIAS),
        ("any_allowed", row_edits.ALLOWED),
        ("any_bad_words", row_edits.BAD_WORDS),
        ("any_min_tokens", row_edits.MIN_TOKENS),
    )
)
TABLES = tuple(field.name for field in fields(RequestTables))
"""The tensors of slots."""
LISTED: int = row_edits.BIAS.value | row_edits.BAD_WORDS.value | row_edits.MIN_TOKENS.value
"""The edits that come from lists."""


class Variant(NamedTuple):
    """The types that a kernel is compiled for."""

    logits: torch.dtype
    row_index: torch.dtype
    drafts: tuple[torch.dtype, torch.dtype] | None = None
    """Dtypes of the ids of drafts and of the offsets of their requests, where there are any."""
    listed: bool = True
    """Whether there may be drafts, or rows that ask for what comes from lists."""


def flags_of(facts: EditFacts, *, has_bitmask: bool) -> int:
    """Return what the rows of a call may ask for, as bits of :mod:`~.kernels.logits_processing.row_edits`."""
    flags: int = sum(flag for name, flag in _FLAGS if getattr(facts, name))
    return flags | BITMASK if has_bitmask else flags


def groups_of(tables: Sequence[Any], sizes: RequestTables) -> tuple[Any, ...]:
    """Return the groups of what stands for the tensors of slots.

    :param tables: one for each of :data:`TABLES`.
    :param sizes: the tensors, whose shapes are read.
    """
    by_name = dict(zip(TABLES, tables, strict=True))
    max_tokens, longest = sizes.history.shape[1], sizes.bad_words.shape[2]
    rooms = (each.shape[1] for each in (sizes.bias_ids, sizes.stop_ids, sizes.bad_words))
    room_for_bias, room_for_stops, room_for_words = rooms

    def found(*names: str) -> list[Any]:
        return [by_name[name] for name in names]

    return (
        History(*found("history", "num_prompt", "num_tokens"), max_tokens),
        Occurrences(*found("distinct", "num_distinct", "counts"), max_tokens),
        Penalties(*found("repetition", "frequency", "presence")),
        Bias(*found("bias_ids", "bias", "num_bias"), room_for_bias),
        AllowedIds(by_name["allowed"], 0, *found("allowed", "is_restricted")),  # a bitmask is put in by calls
        StopIds(*found("stop_ids", "num_stop", "min_tokens"), room_for_stops),
        BadWords(*found("bad_words", "bad_lens", "num_bad"), room_for_words, longest),
    )


def _stand_ins(variant: Variant) -> tuple[Argument, ...]:
    """Return what stands for the arguments of every call of a variant."""
    whole, real, truth = (Pointer(dtype, aligned=False) for dtype in (torch.int32, torch.float32, torch.bool))
    drafts = StepDrafts()
    if variant.drafts is not None:
        ids, offsets = (Pointer(dtype, aligned=False) for dtype in variant.drafts)
        drafts = StepDrafts(ids, 3, 3, offsets, 3)
    return (
        3,
        Division(3, 3, 3),
        SlotRows(Pointer(variant.row_index, aligned=False), 3),
        Logits(Pointer(variant.logits, aligned=False), _ANY_STRIDE, 3),
        Occurrences(whole, whole, whole, 3),
        Penalties(real, real, real),
        AllowedIds(whole, _ANY_STRIDE, whole, truth),
        History(whole, whole, whole, 3),
        drafts,
        Bias(whole, real, whole, 3),
        StopIds(whole, whole, whole, 3),
        BadWords(whole, whole, whole, 3, 3),
    )


class ProcessLaunches:
    """The launches over logits on one device."""

    def __init__(self, family: str, processors: int) -> None:
        """Make them.

        :param family: ``cuda`` or ``hip``; ``cpu`` for the interpreter.
        :param processors: multiprocessors of the device.
        """
        self._is_nvidia = family == "cuda"
        self._programs, self._mask_programs = _PROGRAMS * processors, _MASK_PROGRAMS * processors
        self._launches: dict[Variant, Launch] = {}

    def of(self, variant: Variant) -> Launch:
        """Return the launch of a variant, compiled for the current device."""
        found = self._launches.get(variant)
        if found is None:
            config = CONFIG._replace(HAS_LISTS=variant.listed, IS_NVIDIA=self._is_nvidia)
            options = {"num_warps": _WARPS, "enable_fp_fusion": False}
            found = Launch(process_logits, {"config": config}, options)
            if not is_interpreted():
                found.compile(_stand_ins(variant))
            self._launches[variant] = found
        return found

    def divide(
        self, rows: int, vocab_size: int, max_tokens: int, flags: int, *, has_drafts: bool
    ) -> tuple[Grid, Division]:
        """Return the grid of a call, and how the programs of a row divide its work."""
        of_ids = of_lists = of_masks = 0
        if flags & row_edits.PENALTIES.value:
            of_ids = max(1, min(-(-max_tokens // CONFIG.IDS), self._programs // rows))
            of_lists = int(has_drafts)
        if flags & LISTED:
            of_lists = 1
        if flags & (row_edits.ALLOWED.value | BITMASK):
            of_masks = max(1, min(-(-vocab_size // CONFIG.TILE), self._mask_programs // rows))
        division = Division(of_ids, of_lists, of_masks)
        return (rows * sum(division), 1, 1), division

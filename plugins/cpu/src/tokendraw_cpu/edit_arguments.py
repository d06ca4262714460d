"""Describes the arguments of an edit (``cpp/edit_arguments.h``) to ctypes. Imports no torch."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_int32, c_int64, c_void_p
from typing import ClassVar

from tokendraw_cpu.library import LogitsArguments

TABLES = (
    *("history", "num_prompt", "num_tokens", "distinct", "num_distinct", "counts"),
    *("repetition", "frequency", "presence", "penalty_last_n"),
    *("bias_ids", "bias", "num_bias", "allowed", "is_restricted", "stop_ids", "num_stop", "min_tokens"),
    *("bad_words", "bad_lens", "num_bad"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_max_match", "dry_last_n"),
    *("dry_breakers", "num_dry_breakers"),
    *("thinking_budget", "thinking_start", "num_thinking_start", "thinking_end", "num_thinking_end"),
)
"""Tensors of ``tokendraw.plugin.RequestTables`` in the order of ``EditTables``."""


class TableArguments(Structure):
    """``EditTables`` of ``cpp/edit_arguments.h``."""

    _fields_: ClassVar = [
        *((name, c_int64) for name in ("slots", "max_tokens", "size", "max_bias", "max_stop")),
        *((name, c_int64) for name in ("max_words", "max_word", "max_breakers", "max_thinking")),
        *((name, c_void_p) for name in TABLES),
    ]


class DraftArguments(Structure):
    """``DraftArguments`` of ``cpp/edit_arguments.h``: addresses of int64, and the shape of the drafts."""

    _fields_: ClassVar = [
        ("offsets", c_void_p),
        *((name, c_int64) for name in ("requests", "most")),
        ("ids", c_void_p),
        *((name, c_int64) for name in ("count", "width")),
    ]


class EditArguments(Structure):
    """``EditArguments`` of ``cpp/edit_arguments.h``: logits to edit, and the int64 slot of each row or request."""

    _fields_: ClassVar = [
        ("logits", LogitsArguments),
        ("tables", POINTER(TableArguments)),
        *((name, c_void_p) for name in ("slot", "bitmask")),
        ("bitmask_stride", c_int64),
        ("drafts", DraftArguments),
        ("searched_tokens", c_int64),
        *((name, c_int32) for name in ("dtype", "threads")),
    ]

"""Finds and loads the compiled library, and describes its C interface (``cpp/api.cpp``) to ctypes. Imports no torch."""

from __future__ import annotations

import ctypes
import functools
import platform
import weakref
from collections import deque
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, ClassVar

INTERFACE_VERSION = 2
_FILE = Path(__file__).with_name("libtokendraw_cpu.so")
_REINSTALL = (
    "install a C++ compiler (g++ or clang++) and run `pip install ./plugins/cpu` in tokendraw's checkout"
)


class LibraryError(RuntimeError):
    """The compiled library is missing, or is not one for this machine or this package."""


class LogitsArguments(Structure):
    """``Logits`` of ``cpp/arguments.h``: address, B, V, and the distance of rows in elements."""

    _fields_: ClassVar = [("data", c_void_p), ("rows", c_int64), ("size", c_int64), ("stride", c_int64)]


class ParameterArguments(Structure):
    """``Parameters`` of ``cpp/arguments.h``: columns [B] float64, but for the last four."""

    _fields_: ClassVar = [
        (name, c_void_p)
        for name in (
            *("temperature", "top_p", "min_p", "xtc_probability", "xtc_threshold"),
            *("floor", "top_k", "joint", "temperature_last"),  # float32, int64, bool, bool
        )
    ]


class NoiseArguments(Structure):
    """``NoiseArguments`` of ``cpp/arguments.h``."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("seed", "position")),
        *((name, c_int32) for name in ("is_fp64", "token_stream", "tile_stream")),
    ]


class Logprobs(Structure):
    """``LogprobsArguments`` of ``cpp/arguments.h``."""

    _fields_: ClassVar = [
        ("width", c_int64),
        *((name, c_void_p) for name in ("asked", "token_ids", "logprobs", "ranks", "log_kept_mass")),
        ("given", c_int64),
        *((name, c_void_p) for name in ("given_ids", "given_token_ids", "given_logprobs")),
        ("mode", c_int32),
    ]


class SampleArguments(Structure):
    """``SampleArguments`` of ``cpp/arguments.h``."""

    _fields_: ClassVar = [
        ("logits", LogitsArguments),
        ("parameters", ParameterArguments),
        ("noise", NoiseArguments),
        ("logprobs", Logprobs),
        *((name, c_void_p) for name in ("scored_ids", "token_ids", "valid", "threshold", "ceiling")),
        *((name, c_int32) for name in ("dtype", "threads")),
    ]


class VerifyArguments(Structure):
    """``VerifyArguments`` of ``cpp/verify_arguments.h``."""

    _fields_: ClassVar = [
        ("logits", LogitsArguments),
        ("target", POINTER(SampleArguments)),
        *((name, c_void_p) for name in ("cu_num_logits", "ids")),
        *((name, c_int64) for name in ("ids_width", "max_drafts")),
        ("draft", LogitsArguments),
        *((name, c_void_p) for name in ("draft_floor", "token_ids", "num_accepted", "valid")),
        *((name, c_int32) for name in ("mode", "draft_kind", "draft_dtype", "threads")),
    ]


class MomentArguments(Structure):
    """``MomentArguments`` of ``cpp/arguments.h``."""

    _fields_: ClassVar = [
        ("logits", LogitsArguments),
        ("temperature", c_void_p),
        *((name, c_void_p) for name in ("count", "mean", "squares", "mass", "entropy", "collision")),
        *((name, c_int32) for name in ("dtype", "threads")),
    ]


def missing_library() -> str | None:
    """Say what is missing in place of the library, without loading it; None if its file is there."""
    if _FILE.exists():
        return None
    return f"needs its compiled library, found none in {str(_FILE.parent)!r}; {_REINSTALL}"


@functools.cache
def load_library() -> ctypes.CDLL:
    """Load the library.

    :raises LibraryError: there is none, or it is none for this machine or this package.
    """
    if reason := missing_library():
        raise LibraryError(reason)
    try:
        library = ctypes.CDLL(str(_FILE))
        version = library.tokendraw_cpu_version()
    except (OSError, AttributeError) as error:
        raise LibraryError(
            f"needs a library compiled for {platform.machine()}, found one that does not load: {error}; {_REINSTALL}"
        ) from error
    if version != INTERFACE_VERSION:
        raise LibraryError(f"needs a library of interface {INTERFACE_VERSION}, found {version}; {_REINSTALL}")
    library.tokendraw_cpu_target.argtypes, library.tokendraw_cpu_target.restype = [c_int32], c_char_p
    library.tokendraw_cpu_open.argtypes, library.tokendraw_cpu_open.restype = [c_char_p], c_void_p
    library.tokendraw_cpu_close.argtypes, library.tokendraw_cpu_close.restype = [c_void_p], None
    library.tokendraw_cpu_sample.argtypes = [c_void_p, POINTER(SampleArguments)]
    library.tokendraw_cpu_moments.argtypes = [c_void_p, POINTER(MomentArguments)]
    library.tokendraw_cpu_edit.argtypes = [c_void_p, c_void_p]
    library.tokendraw_cpu_verify.argtypes = [c_void_p, POINTER(VerifyArguments)]
    return library


def supported_targets() -> tuple[str, ...]:
    """Name the instruction sets of the library that this processor has, the fastest first."""
    names: list[str] = []
    while name := load_library().tokendraw_cpu_target(len(names)):
        names.append(name.decode())
    return tuple(names)


class Context:
    """The helper threads and buffers of a sampler or processor. Calls that overlap get some of their own.

    A forked process starts with new ones.
    """

    def __init__(self, target: str | None = None) -> None:
        """Open what the first call needs.

        :param target: one of :func:`supported_targets`; None: the fastest.
        """
        self._library = load_library()
        self._target = target or supported_targets()[0]
        self._idle: deque[int] = deque()
        """Handles that no call uses, the last used ones at the end: they are used in turn by single threads."""
        self._idle.append(self._open())

    def sample(self, arguments: SampleArguments) -> None:
        """Draw a token in each row."""
        self._call(self._library.tokendraw_cpu_sample, arguments)

    def moments(self, arguments: MomentArguments) -> None:
        """Compute sums over each row."""
        self._call(self._library.tokendraw_cpu_moments, arguments)

    def edit(self, arguments: EditArguments) -> None:
        """Edit each row in place."""
        self._call(self._library.tokendraw_cpu_edit, ctypes.byref(arguments))

    def verify(self, arguments: VerifyArguments) -> None:
        """Verify the drafts of each request."""
        self._call(self._library.tokendraw_cpu_verify, arguments)

    def _call(self, function: Callable[[int, Any], int], arguments: Any) -> None:
        try:
            handle = self._idle.pop()
        except IndexError:
            handle = self._open()
        failed = function(handle, arguments)
        self._idle.append(handle)
        if failed:
            raise MemoryError("no memory for the buffers of a row")

    def _open(self) -> int:
        handle: int | None = self._library.tokendraw_cpu_open(self._target.encode())
        if not handle:
            raise MemoryError(f"no memory for a context of the target {self._target!r}")
        # Not where Python ends: a daemon thread may still be in a call.
        weakref.finalize(self, self._library.tokendraw_cpu_close, handle).atexit = False
        return handle


# The arguments of an edit: ``cpp/edit_arguments.h``.

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

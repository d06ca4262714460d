"""Groups of arguments of the launches that edit logits and append tokens, like :mod:`..shared.argument_groups`.

S is the number of request slots, M the tokens of one, V the vocabulary. Tensors of slots are dense.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

_GROUPS = [
    *(
        "rows",
        "logits",
        "occurrences",
        "penalties",
        "masks",
        "history",
        "drafts",
        "bias",
        "stops",
        "words",
        "dry",
    ),
    *("tables", "ends", "thinking", "forced_ids"),
]
UNSPECIALIZED: Final = {
    "do_not_specialize": ["flags", "division", "parts", *_GROUPS],
    "do_not_specialize_on_alignment": _GROUPS,
}
"""Options of ``triton.jit``: one kernel serves each value of an argument, and ids and rows at each address."""


class SlotRows(NamedTuple):
    """The slots of the rows of logits, or of the requests of a verification."""

    row_index: Any
    """[rows or requests] integer. A row whose slot is none of the S has a bitmask at most."""
    num_slots: Any
    """S."""
    forced_ids: Any
    """[rows] int32: the id that a spent thinking budget forces, or -1; read if the flags say THINKING. None in other
    launches than ``process_logits``."""


class StepDrafts(NamedTuple):
    """The drafts of a verification: each row counts the drafts before it as output. All fields None without drafts."""

    ids: Any = None
    """[``count``] integer, request after request; or [requests, ``width``]."""
    count: Any = None
    """Number of drafts, with padding."""
    width: Any = None
    """0 without padding."""
    cu_num_logits: Any = None
    """[requests + 1] integer: the first row of each request."""
    requests: Any = None


class History(NamedTuple):
    """The tokens of each request."""

    tokens: Any
    """[S, M] int32: prompt, then output."""
    num_prompt: Any
    """[S] int32."""
    num_tokens: Any
    """[S] int32."""
    max_tokens: Any
    """M."""


class Occurrences(NamedTuple):
    """The ids in the prompt and output of each request."""

    ids: Any
    """[S, ``room``] int32: each once."""
    num_ids: Any
    """[S] int32."""
    counts: Any
    """[S, V] int32: 16 times how often an id is in the output, and the flags of :mod:`.edited_row`."""
    room: Any


class Penalties(NamedTuple):
    """The penalties of each request, [S] float32."""

    repetition: Any
    frequency: Any
    presence: Any
    last_n: Any
    """[S] int32: number of tokens that the penalties count, the last ones; -1: all."""


class Dry(NamedTuple):
    """The settings of DRY of each request, [S] but for the breakers."""

    multiplier: Any
    """float32; 0: off."""
    base: Any
    """float32."""
    allowed_length: Any
    """int32: length of the shortest match with a cost."""
    max_match: Any
    """int32: length that longer matches count as."""
    last_n: Any
    """int32: tokens that are searched."""
    breakers: Any
    """[S, ``room``] int32."""
    num_breakers: Any
    room: Any


class IdTables(NamedTuple):
    """A hash table of each row, if the flags say LAST_N or DRY: see :mod:`.id_table`."""

    keys: Any
    """[rows, ``room``] int64: id + 1, then 32 bits: 1 + the longest match of DRY, or 0. An empty entry is 0."""
    counts: Any
    """[rows, ``room``] int32: as in :class:`Occurrences`, in the window of penalties; read if the flags say LAST_N."""
    sizes: Any
    """[rows] int32: entries of the table in use; 0 for a row without a window and DRY."""
    room: Any


class HistoryEnds(NamedTuple):
    """The end of each row's tokens, with which DRY compares earlier tokens. Undefined where the flags say no DRY."""

    lengths: Any
    """[rows] int32: the length of the longest match that counts."""
    overlaps: Any
    """[rows, OVERLAPS of :mod:`.repetitions`] int32: number k says how many of the last tokens, read backwards, equal
    those k places before them. Undefined from the length on."""


class Thinking(NamedTuple):
    """The thinking budget of each request."""

    budget: Any
    """[S] int32; -1: off."""
    start: Any
    """[S, ``room``] int32."""
    num_start: Any
    """[S] int32."""
    end: Any
    """[S, ``room``] int32."""
    num_end: Any
    """[S] int32."""
    room: Any


class Bias(NamedTuple):
    """The biases of each request."""

    ids: Any
    """[S, ``room``] int32: each once."""
    added: Any
    """[S, ``room``] float32."""
    count: Any
    """[S] int32."""
    room: Any


class AllowedIds(NamedTuple):
    """Masks of ids: bit i % 32 of word i // 32 is set where id i is allowed."""

    bitmask: Any
    """[rows, ceil(V / 32)] int32, of the rows of this call; read if the flags say BITMASK."""
    bitmask_stride: Any
    allowed: Any
    """[S, ceil(V / 32)] int32, of requests."""
    is_restricted: Any
    """[S] bool: whether a request has a mask in ``allowed``."""


class StopIds(NamedTuple):
    """The stop ids of each request, forbidden until its output has ``min_tokens`` tokens."""

    ids: Any
    """[S, ``room``] int32."""
    count: Any
    """[S] int32."""
    min_tokens: Any
    """[S] int32: least output length for a stop id."""
    room: Any


class BadWords(NamedTuple):
    """The forbidden sequences of ids of each request: the last id is forbidden after all preceding ids."""

    ids: Any
    """[S, ``room``, ``longest``] int32: each at the right end of its row."""
    lengths: Any
    """[S, ``room``] int32."""
    count: Any
    """[S] int32."""
    room: Any
    longest: Any


class Division(NamedTuple):
    """Division of a row's work among its programs."""

    of_ids: Any
    """Number of programs for the occurring ids, in turns."""
    of_lists: Any
    """Number of programs for lists and drafts: 1 or 0."""
    of_masks: Any
    """Number of programs for tiles of the masks, in turns."""


class StepTokens(NamedTuple):
    """The tokens of a step."""

    ids: Any
    """[rows, ``width``] int64."""
    width: Any


class GrowingHistory(NamedTuple):
    """The tensors of slots that change with every token."""

    history: Any
    """[S, M] int32."""
    num_tokens: Any
    """[S] int32: tokens in ``history``."""
    limit: Any
    """[S] int32: the most tokens; 0 without a request."""
    distinct: Any
    """[S, M] int32: ids that occur in ``history``, each once."""
    num_distinct: Any
    """[S] int32: ids in ``distinct``."""
    counts: Any
    """[S, V] int32: as in :class:`Occurrences`."""
    max_tokens: Any
    """M."""
    vocab_size: Any
    """V."""

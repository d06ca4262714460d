"""The groups in which the launch over requests' logits takes its arguments, as :mod:`..shared.argument_groups` does.

S are the slots of requests, M the tokens that one holds, V the vocabulary. Tensors of slots are dense.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class SlotRows(NamedTuple):
    """The slots of the rows of logits, or of the requests of a verification."""

    row_index: Any
    """[rows or requests] integer. A row whose slot is none of the S has a bitmask at most."""
    num_slots: Any
    """S."""


class StepDrafts(NamedTuple):
    """The drafts of a verification, whose rows count those before them; all None where there are none."""

    ids: Any = None
    """[``count``] integer, one request behind the other; or [requests, ``width``]."""
    count: Any = None
    """How many there are, with padding."""
    width: Any = None
    """0 if they are not padded."""
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
    """The ids that occur in each request."""

    ids: Any
    """[S, ``room``] int32: each once."""
    num_ids: Any
    """[S] int32."""
    counts: Any
    """[S, V] int32: 16 times how often an id is in the output, and the flags of :mod:`.row_edits`."""
    room: Any


class Penalties(NamedTuple):
    """The penalties of each request, [S] float32."""

    repetition: Any
    frequency: Any
    presence: Any


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
    """[S] bool: whether a request has one."""


class StopIds(NamedTuple):
    """The ids that each request holds back until enough tokens are out."""

    ids: Any
    """[S, ``room``] int32."""
    count: Any
    """[S] int32."""
    min_tokens: Any
    """[S] int32: tokens in the output from which on they are allowed."""
    room: Any


class BadWords(NamedTuple):
    """The sequences of ids of which each request forbids the last, where the others end its output."""

    ids: Any
    """[S, ``room``, ``longest``] int32: each at the right end of its row."""
    lengths: Any
    """[S, ``room``] int32."""
    count: Any
    """[S] int32."""
    room: Any
    longest: Any


class Division(NamedTuple):
    """How the programs of a row divide its work."""

    of_ids: Any
    """Programs that take the ids that occur, in turns."""
    of_lists: Any
    """1 if a program takes the lists and drafts, else 0."""
    of_masks: Any
    """Programs that take tiles of the masks, in turns."""

"""Constants of each kernel, one group a kernel: with the types of the arguments they select its compilation."""

from __future__ import annotations

from typing import NamedTuple


class TileConfig(NamedTuple):
    """Constants of launch 1, the pass over the logits."""

    SPAN: int
    """Tiles a program."""
    VECTOR: int
    """Neighbouring logits a lane, 16 bytes."""
    IS_ALIGNED: bool
    """Whether every row begins at a multiple of 16 bytes."""
    IS_NVIDIA: bool
    """Whether PTX may be used; elsewhere nothing but Triton is."""
    IS_RAW: bool = False
    """Which entropies are wanted where every row has two temperatures: those at T = 1, or those at the other one."""


class RowConfig(NamedTuple):
    """Constants of launch 2, the draw of a row."""

    HAS_FILTERS: bool
    FP64: bool
    """Whether noise is float64."""
    TILES: int
    """A power of two from the number of tiles upwards."""
    VECTOR: int
    IS_ALIGNED: bool
    """Whether every row begins at a multiple of 16 bytes."""
    SMALL_CANDIDATES: int
    """Candidates compared all with all."""
    GRANULES_AT_ONCE: int
    """Granules read at once."""
    ULP_STEP: int
    """Float32 keys from one value of the logits' dtype to the next: 65536 of bfloat16, otherwise 1."""
    BY_FACTORS: bool
    """Whether to compare candidates by factors, with more registers. NVIDIA."""
    IS_NVIDIA: bool


class IntervalConfig(NamedTuple):
    """Constants of ``redraw_rows``, the draw of rows with XTC or ``temperature_last``."""

    FP64: bool
    TILES: int
    TILES_AT_ONCE: int
    """Tiles of a row with many tokens that are read at once."""
    VECTOR: int
    SMALL_CANDIDATES: int
    HAS_LOGPROBS: bool
    """Whether kept masses at the row's temperature are wanted."""


class LargeSetConfig(NamedTuple):
    """Constants of launch 3, the draw of large sets."""

    FP64: bool
    TILES: int
    EXACT_PARTS: int
    """Parts of a row in later passes if the flags say EXACT, at most 16."""
    WARPS: int
    """Warps of a program, and tiles read at once."""
    VECTOR: int
    IS_ALIGNED: bool
    """Whether every row begins at a multiple of 16 bytes."""
    ULP_STEP: int
    IS_NVIDIA: bool


class AcceptConfig(NamedTuple):
    """Constants of ``accept_drafts``, the verification of drafts, and of ``weigh_blocks`` before it."""

    DRAFT_KIND: int
    """Kind of the drafts: CHOSEN, LOGITS, PROBS or COUPLED; see :mod:`..verify.residual`."""
    IS_BLOCK: bool
    """Whether the drafts of a request are judged together."""
    STEPS: int
    """A power of two above the largest number of drafts a request."""
    FP64: bool
    TILES: int
    SMALL_CANDIDATES: int
    HAS_FILTERS: bool
    HAS_CEILING: bool
    """Whether a row of the target may drop its largest logits."""
    WARPS: int
    VECTOR: int
    IS_NVIDIA: bool


class LogprobsConfig(NamedTuple):
    """Constants of launch 4, the log-probabilities of a row."""

    VECTOR: int
    TILES: int
    MAXIMA: int
    """0: the maxima of the tiles bound the N-th value; else those of at most so many groups of granules do."""
    GRANULES: int
    """Granules a group."""
    WIDTH: int
    """Upper limit of N."""
    CANDIDATES: int
    """Room for candidates."""
    IS_SORTED: bool
    """Whether candidates are sorted; else they are compared all with all."""
    GRANULES_AT_ONCE: int
    """Granules read at once where candidates are sorted."""


class ProcessConfig(NamedTuple):
    """Constants of ``process_logits``, and of the launches over histories before it."""

    IDS: int
    """Ids edited at once, and bad words compared at once with the output."""
    WORDS: int
    """Bad words whose last ids are compared at once with a block of ids."""
    TILE: int
    """Ids of a mask applied at once."""
    REQUESTS: int
    """Offsets of requests read at once, to find a row's request."""
    TOKENS: int
    """Tokens of a window inserted or counted at once."""
    LANES: int
    """Lanes that look for matches of DRY at once."""
    PLACES: int
    """Neighbouring places of a lane, at least."""
    HAS_LISTS: bool = True
    """Whether the call may have more than masks and penalties of the whole history: other edits, or drafts."""
    IS_NVIDIA: bool = False
    """Whether PTX may be used."""

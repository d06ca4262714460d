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


class ShardDrawConfig(NamedTuple):
    """Constants of ``draw_shard``, the draw from the columns of one rank.

    A field of the message is its first word, or -1.
    """

    TILES: int
    FP64: bool
    MAY_SAMPLE: bool
    """Whether any row may be drawn with noise, not greedily."""
    WANTS_LOGPROBS: bool
    """Whether to compute logprobs."""
    PARTS: int
    """1: the token of a full tile alone; 3: also the tokens of the partial tiles at both ends."""
    SCORE_WORDS: int
    """Words of a score."""
    WIDTH: int
    """Words of a row. The following fields are the index of a field's first word, or -1."""
    MAX: int
    HAS_NAN: int
    SCORE: int
    IDS: int
    LOG_SUM: int
    KEY: int
    X: int
    KEPT: int
    MASS: int
    RAW: int


class SurveyConfig(NamedTuple):
    """Constants of ``survey_columns``, the survey of a rank's columns."""

    VECTOR: int
    TILES: int
    GRANULES: int
    """Granules a group, whose maximum bounds the K-th value."""
    MAXIMA: int
    """Number of groups, rounded up to a power of two."""
    CANDIDATES: int
    """Candidates compared all with all."""
    MASSES: int
    """Number of masses in the survey: 0, 1 for the row, or 256 by digit."""
    SUMS: int = 0
    """The sums behind moments in the survey, as bits of :mod:`.moment_bits`."""


class DigitConfig(NamedTuple):
    """Constants of ``add_by_digit``, histograms by a digit."""

    TILES: int
    """Number of tiles, rounded up to a power of two, to find the largest logit; 0 if the ranks have exchanged it."""
    BY_WEIGHT: bool
    """Whether to add ``exp(y)`` in units; otherwise 1 a value."""


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


class MergeConfig(NamedTuple):
    """Constants of ``merge_draws``, the token of a row from the draws of all ranks."""

    RANKS: int
    """Number of ranks, rounded up to a power of two."""
    SHARED_TILES: int
    """Number of tiles shared by several ranks, rounded up to a power of two; 0 without any."""
    PARTS: int
    """Parts of a shared tile, rounded up to a power of two."""
    MAY_SAMPLE: bool
    """Whether any row may be drawn with noise, not greedily."""
    FP64: bool


class ThresholdConfig(NamedTuple):
    """Constants of ``find_thresholds``, the threshold of a row from the surveys of all ranks."""

    N: int
    """Number of values of all ranks, rounded up to a power of two."""
    RANKS_AT_ONCE: int
    """Ranks whose masses and ties are read at once, a power of two."""
    MASSES: int
    """Number of masses in a rank's survey: 0, 1 for the row, or 256 by digit."""
    HAS_KTH: bool
    """Whether the gathered values contain the k-th value, for every k."""
    HAS_NUCLEUS: bool
    """Whether the gathered values may contain a row's nucleus."""
    MAY_MISS_NUCLEUS: bool
    """Whether the nucleus of a row may be absent from the gathered values."""


class MomentConfig(NamedTuple):
    """Constants of ``merge_moments``, the moments of a row from the sums of all ranks."""

    RANKS: int
    """Number of ranks, rounded up to a power of two."""
    SUMS: int
    """The sums of a rank, as bits of :mod:`.moment_bits`."""

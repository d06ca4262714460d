"""The constants that a kernel is compiled for, beside the types of its arguments: one group for each kernel."""

from __future__ import annotations

from typing import NamedTuple


class TileConfig(NamedTuple):
    """The pass over the logits."""

    SPAN: int
    """Tiles a program."""
    VECTOR: int
    """Neighbouring logits a lane, 16 bytes."""
    PAIRED: bool
    """Whether bfloat16 at even addresses is compared two at a time. NVIDIA."""
    IS_NVIDIA: bool
    """Whether PTX may be used; elsewhere nothing but Triton is."""


class RowConfig(NamedTuple):
    """The draw of a row."""

    FILTERED: bool
    FP64: bool
    """Whether noise is float64."""
    TILES: int
    """A power of two from the number of tiles upwards."""
    VECTOR: int
    SMALL_CANDIDATES: int
    """Candidates that are compared with each other."""
    LARGE_CANDIDATES: int
    """Candidates that are collected, at most."""
    GRANULES_AT_ONCE: int
    """Granules that are read at once."""
    ULP_STEP: int
    """Float32 keys from one value of the logits' dtype to the next: 65536 of bfloat16, otherwise 1."""
    BY_FACTORS: bool
    """Whether candidates are compared by factors, which takes more registers. NVIDIA."""
    IS_NVIDIA: bool


class LargeSetConfig(NamedTuple):
    """The draw of rows that keep many tokens."""

    FP64: bool
    TILES: int
    CAPACITY: int
    """Values among which a search of a whole row ends in registers."""
    EXACT_PARTS: int
    """Parts of a row in its later passes where thresholds are wanted, at most 16. A constant, so that what is collected
    is added in the same order whatever the batch."""
    WARPS: int
    """Warps of a program, and tiles that it reads at once."""
    VECTOR: int
    PAIRED: bool
    """Whether bfloat16 at even addresses is loaded two at a time."""
    ULP_STEP: int
    IS_NVIDIA: bool


class AcceptConfig(NamedTuple):
    """The verification of drafts."""

    KNOWN: int
    """Kind of the drafts: CHOSEN, LOGITS, PROBS or COUPLED; see :mod:`..verify.residual`."""
    STEPS: int
    """A power of two above the largest number of drafts a request."""
    FP64: bool
    TILES: int
    SMALL_CANDIDATES: int
    LARGE_CANDIDATES: int
    FILTERED: bool
    WARPS: int
    VECTOR: int
    IS_NVIDIA: bool


class LogprobsConfig(NamedTuple):
    """The description of a row's best tokens."""

    VECTOR: int
    TILES: int
    QUARTERS: int
    """0: the maxima of the tiles bound the N-th value; else those of at most so many quarters of tiles do."""
    CANDIDATES: int
    """Candidates that are compared with each other."""


class ShardDrawConfig(NamedTuple):
    """The draw from the columns of one rank."""

    TILES: int
    FP64: bool
    DRAWN: bool
    """Whether a row may not be greedy."""
    DESCRIBED: bool
    """Whether logprobs are wanted."""
    PARTS: int
    """1: the token of a whole tile alone; 3: those of the tiles at both ends, too."""
    REAL: int
    """Words of a score."""
    WIDTH: int
    """Words of a row, of which the others are the first that each field has; -1: it has none."""
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
    """The survey of a rank's columns, before it draws."""

    VECTOR: int
    TILES: int
    GRANULES: int
    """Granules whose maximum stands for them where the K-th value is bounded."""
    MAXIMA: int
    """A power of two from the number of such maxima upwards."""
    CANDIDATES: int
    """Candidates that are compared with each other."""
    MASSES: int
    """Masses that are told: none, that of the row, or 256."""


class DigitConfig(NamedTuple):
    """Histograms by a digit."""

    TILES: int
    """A power of two from the tiles of the row upwards, whose largest logit is found; 0 where ranks have told it."""
    WEIGHED: bool
    """Whether values weigh ``exp(y)`` in units, or count as 1."""


class PlanConfig(NamedTuple):
    """The page plan of a batch."""

    REQUESTS: int
    """Requests a program."""
    AT_ONCE: int
    """Lengths that a program reads at once."""
    COLUMNS: int
    """Entries of each of its requests that it copies at once."""


class ProcessConfig(NamedTuple):
    """The edits of logits before sampling."""

    IDS: int
    """Ids that a program edits at once, and bad words that one compares with the output."""
    WORDS: int
    """Bad words whose last ids it compares with those at once."""
    TILE: int
    """Ids of a mask that one program applies at once."""
    REQUESTS: int
    """Offsets of requests that it reads at once, to find that of a row."""
    LISTED: bool = True
    """Whether there may be more than penalties and masks: biases, bad words, ``min_tokens``, drafts."""
    IS_NVIDIA: bool = False
    """As above."""


class MergeConfig(NamedTuple):
    """The token of a row from what all ranks drew."""

    RANKS: int
    """A power of two from the number of ranks upwards."""
    SHARED: int
    """Likewise of tiles that lie on several ranks; 0 if there is none."""
    PARTS: int
    """Likewise of the parts of such a tile."""
    DRAWN: bool
    """Whether a row may not be greedy."""
    FP64: bool


class ThresholdConfig(NamedTuple):
    """The threshold of a row from the surveys of all ranks."""

    N: int
    """A power of two from the number of values of all ranks upwards."""
    RANKS_AT_ONCE: int
    """A power of two: ranks whose masses and ties are read at once."""
    MASSES: int
    """Masses that each rank tells: none, that of the row, or 256."""
    HAS_KTH: bool
    """Whether the k-th value is among them, for every k."""
    HAS_NUCLEUS: bool
    """Whether the nucleus may lie among them."""
    IS_WIDE: bool
    """Whether it may not."""

"""What kernels are given: arguments that travel together, which Triton flattens, and constants of compilation."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.language as tl

# Groups of arguments of the kernels.
#
# Triton flattens a NamedTuple when it launches a kernel, so a group costs nothing on the device. Arguments without a
# use in a call are None, which is a constant to the compiler. On the host the fields are addresses, numbers or None;
# in a kernel pointers and scalars; in the interpreter tensors and numbers. No field may be named ``values`` or
# ``type``: Triton's own tuples have fields of these names.


class Logits(NamedTuple):
    """Rows of logits in memory: of a batch, or of a verification's target."""

    base: Any
    """[rows, V], the elements of a row contiguous."""
    row_stride: Any
    """Elements from row to row."""
    vocab_size: Any


class DraftRows(NamedTuple):
    """Rows of logits or probabilities of the drafts of a verification; all None without drafts."""

    base: Any = None
    """[drafts, V]."""
    row_stride: Any = None
    cu_num_logits: Any = None
    """[requests + 1] integer: the first row of the target of each request."""


class Counts(NamedTuple):
    """Counts of a call."""

    rows: Any
    """Number of drawn rows: of the target, and then of the drafts if the call has their logits."""
    target_rows: Any
    tiles: Any
    """Tiles a row."""
    max_drafts: Any
    """Largest number of drafts a request."""
    requests: Any


class TileStatistics(NamedTuple):
    """The statistics of every tile, written by launch 1."""

    maxima: Any
    """[rows, tiles] float32; -inf where a tile has nothing above it. NaN counts as -inf."""
    sums: Any
    """[rows, tiles] float32: the sum of ``exp((x - maximum) / T)``; of a tile with +inf, how many there are.

    The sign bit is set where the tile holds NaN.
    """
    raw_sums: Any
    """[rows, tiles] float32: the same at T = 1, or at another temperature; or None."""
    granules: Any
    """[rows, tiles, 16] of the logits' dtype: the maxima of the granules of each tile; or None."""
    entropy_sums: Any
    """[rows, tiles] float32: the sum of ``w log2 w`` of the weights w at the temperature of the call's mode, which
    ``raw_sums`` add up, or without these ``sums``; or None."""


class MomentSums(NamedTuple):
    """Sums of every tile from which the moments of rows are computed; each None where no moment needs it."""

    counts: Any = None
    """[rows, tiles] float32: number of finite logits."""
    distances: Any = None
    """[rows, tiles] float32: the sum of ``x - maximum`` over the finite logits."""
    squares: Any = None
    """[rows, tiles] float32: the sum of their squares. Where squares overflow, ``distances`` and ``squares`` are of
    distances times 2 ** -72, and the sign of ``squares`` is negative; where they might vanish, of distances times
    2 ** 96, and the sign of ``distances`` is positive."""
    entropies: Any = None
    """[rows, tiles] float32: the sum of ``w log2 w`` of the weights w that ``sums`` adds up."""
    collisions: Any = None
    """[rows, tiles] float32: the sum of the squares of these weights."""


class MomentResults(NamedTuple):
    """Moments of y of each row, [rows] float32 as in ``tokendraw.filters.RowMoments``; each None if not wanted."""

    number: Any = None
    mean: Any = None
    std: Any = None
    log_mass: Any = None
    entropy: Any = None
    collision: Any = None
    target_rows: Any = None
    """[rows] int64: the row of the target with the parameters of each row; None without rows of drafts."""


class RowParams(NamedTuple):
    """The parameters of the requests. Flags say which of the tensors hold anything: see :mod:`.rows`."""

    temperature: Any
    """[slots] floating point; None where every temperature is 1."""
    row_index: Any
    """[rows] integer: the slot of each row."""
    seeds: Any
    """[slots] int64."""
    seeded: Any
    """[slots] bool: whether the slot has a seed."""
    fresh: Any
    """[rows] int64: seeds of rows without one."""
    positions: Any
    """[rows] integer."""
    top_k: Any
    """[slots] integer, and so on."""
    top_p: Any
    min_p: Any
    joint: Any
    """[slots] bool: whether top-p counts the mass of the whole row, whatever top-k and min-p keep."""
    floor: Any
    """[rows] float32: the least y that the filters from moments of each row keep."""


class CandidateLists(NamedTuple):
    """Scratch of the draw of a row, and its candidates for later launches; all None without filters."""

    granules: Any = None
    """[rows, SMALL_CANDIDATES] int32: the granules that may hold a candidate."""
    logits: Any = None
    """[rows, SMALL_CANDIDATES] float32: the logits of the candidates."""
    ids: Any = None
    """[rows, SMALL_CANDIDATES] int32."""


class WorkQueue(NamedTuple):
    """The passes of the launch for large sets: see :mod:`.large_set_passes`."""

    counters: Any = None
    """[128] int32."""
    announced: Any = None
    """[rows, ROUNDS] int32: 1 more than the row of each pass, in the order of announcement."""
    arrivals: Any = None
    """[rows] int32: parts of the current pass of a row that are done."""


class RowState(NamedTuple):
    """The state of each row of a large set: see :mod:`.large_set_passes`."""

    reals: Any = None
    """[rows, STATE_REALS] float32."""
    ints: Any = None
    """[rows, STATE_INTS] int32."""


class PassResults(NamedTuple):
    """Tensors written by the passes of launch 3."""

    columns: Any
    """[rows, SLOTS, tiles, COLUMNS] float32: the weight of each tile above each pivot."""
    collected: Any
    """[rows, MAX_COLLECTED] int32: ids of the logits in a bracket, in any order."""


class SearchScratch(NamedTuple):
    """Scratch of a program that searches a row for its threshold."""

    tiles: Any
    """[programs, TILES] int32: the tiles that reach the lower bound."""
    logits: Any
    """[programs, MAX_COLLECTED] float32: the logits in the bracket."""


class RankedTokens(NamedTuple):
    """Tokens that are known before the pass over the logits, which counts their ranks; both None elsewhere."""

    token_ids: Any = None
    """[rows] int64; an id outside [0, V) is padding."""
    ranks: Any = None
    """[rows] int64, 0 at first: increased by the number of logits that are at least the token's; V if that is -inf."""


class DrawResults(NamedTuple):
    """The results of the draw for each row."""

    token_ids: Any
    """[rows] int64."""
    valid: Any
    """[rows] bool."""
    threshold: Any
    """[rows] float32: logits from here upwards are kept. Written, like ``log_kept``, if the flags say EXACT."""
    log_kept: Any
    """[rows] float32: the logarithm of the kept share of the mass."""
    least_kept: Any = None
    """[target rows] float32, written if the flags say LEAST_KEPT: the least kept logit; -inf where every logit above
    -inf is kept, +inf in rows with +inf, and NaN in rows with nothing above -inf."""


class RowSummary(NamedTuple):
    """Largest logit and mass of each row, for a verification by probabilities; all None elsewhere."""

    max_logit: Any = None
    """[rows] float32: the largest logit."""
    total_weight: Any = None
    """[rows] float32: the sum of ``exp(y)`` before any filter; 1 where nothing is above -inf."""
    num_candidates: Any = None
    """[rows] int32: number of candidates in :class:`CandidateLists`, -1 for none. None without filters."""


class TokenLogprobs(NamedTuple):
    """The log-probability of the drawn token, written by the draw of rows without filters."""

    ranks: Any
    """[target rows] int64, set to 0 if the flags say RANKED."""
    sums: Any
    """[rows, tiles] float32: the sums of the tiles by which the logprobs mode normalises."""
    ids: Any
    """[rows] int64, written, like ``logprobs``, if the flags say OWN."""
    logprobs: Any
    """[rows] float32."""


class DraftTokens(NamedTuple):
    """The draft ids of a verification."""

    ids: Any
    """[``count``] integer, or [requests, ``count``] if ``padded``."""
    count: Any
    padded: Any
    """1 if each request has a row of ids, else 0."""
    last_id: Any
    """The largest valid id; logits beyond it are padding."""


class ResidualScratch(NamedTuple):
    """Scratch of a verification by probabilities."""

    counters: Any
    """[requests] int32 zeros, and then the results of the check of the drafts' probabilities."""
    weights: Any
    """[requests, 2, tiles] float32: of the residual behind a rejected draft, and of p. Of blocks [rows, 2, tiles]; of a
    row with few candidates the first number is the mass of the residual."""


class VerifyResults(NamedTuple):
    """The result of a verification."""

    token_ids: Any
    """[requests, max_drafts + 1] int64."""
    num_accepted: Any
    """[requests] int32."""
    valid: Any
    """[requests] bool."""
    row_tokens: Any
    """[target rows] int64: the token of each row with a token, written if the flags say SHOWN."""


# Constants of each kernel, one group a kernel: with the types of the arguments they select its compilation.


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
    """Kind of the drafts: CHOSEN, LOGITS, PROBS or COUPLED; see :mod:`.verify`."""
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


# The layout of the work queue's counters for large sets: launch 1 clears them, launches 2 and 3 use them.

QUEUE_COUNTERS = tl.constexpr(128)
"""Int32 counters; the first says how many rows launch 2 has left to launch 3."""
TICKETS = tl.constexpr(32)
DONE = tl.constexpr(64)
LATER = tl.constexpr(96)
"""More counters: tickets drawn, rows drawn, passes announced after the first of each row. Each has a cache line of its
own, since programs wait for one counter while another changes."""
ROUNDS = tl.constexpr(6)
"""Limit of passes of a row, before one program finds its threshold."""

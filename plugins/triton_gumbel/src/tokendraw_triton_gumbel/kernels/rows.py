"""What rows have in common: groups of arguments, and a row's address, parameters, temperature and noise.

Groups are NamedTuples, which Triton takes as arguments since 3.4. It flattens them at the launch, in the order of their
fields: the machine code is that of as many single arguments. On the host the fields are addresses, numbers or None,
which is a constant to the compiler; in a kernel pointers and scalars; in the interpreter tensors and numbers.

* No field may be named ``values`` or ``type``, which Triton's own tuples have. A parameter of an entry kernel must not
  be named ``params``, ``options`` or ``specialization``, which the code has that Triton makes of its signature.
* ``do_not_specialize`` of a parameter does not reach into a group in any version of Triton: ``compilation.py`` applies
  it to all fields, so what must not be specialised has a group of its own (:class:`Counts`).
* Up to Triton 3.6 a function cannot return a group of which a field is None.
* In a shape, a constant of ``config`` needs a name of its own: ``SPAN: tl.constexpr = config.SPAN``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


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


SMALL_CANDIDATES = 128
"""Candidates of a row compared all with all."""


class CandidateLists(NamedTuple):
    """Scratch of the draw of a row, and its candidates for later launches; all None without filters."""

    granules: Any = None
    """[rows, SMALL_CANDIDATES] int32: the granules that may hold a candidate."""
    logits: Any = None
    """[rows, SMALL_CANDIDATES] float32: the logits of the candidates."""
    ids: Any = None
    """[rows, SMALL_CANDIDATES] int32."""


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


# Kinds of drafts, by the known distribution q of their draw.

CHOSEN = tl.constexpr(0)
"""The drafts were chosen without a draw: q is 1 at the draft."""
LOGITS = tl.constexpr(1)
PROBS = tl.constexpr(2)
COUPLED = tl.constexpr(3)
"""Drafts are compared with the target's own tokens, without q."""

# Groups of scalars of one row, made in a kernel and passed to its helpers.


@triton.jit(do_not_specialize=["counts"])
def echo_counts(out, counts, ADDED: tl.constexpr):
    """Write the numbers of a group, each increased by a constant: the check of a launch, [5] int64."""
    tl.store(out, counts.rows + ADDED)
    tl.store(out + 1, counts.target_rows + ADDED)
    tl.store(out + 2, counts.tiles + ADDED)
    tl.store(out + 3, counts.max_drafts + ADDED)
    tl.store(out + 4, counts.requests + ADDED)


class RowAddress(NamedTuple):
    """Address and length of one row of logits in memory."""

    base: Any
    vocab_size: Any


class RowScale(NamedTuple):
    """Scale and origin of a row: a logit x weighs ``exp((x - max_logit) / T)``."""

    max_logit: Any
    """The largest logit; finite wherever a filter is at work."""
    scale: Any
    """``log2(e) / T``, as :func:`~.values.times` takes it."""
    inverse: Any
    """``1 / T``, likewise."""
    mass: Any
    """The sum of all weights of the row."""


class RowFilters(NamedTuple):
    """The filters of a row."""

    k: Any
    """k in [1, V), or 0 if top-k is off."""
    p: Any
    """float64; 1 if top-p is off."""
    floor: Any
    """The least logit that min-p and filters from moments keep; -inf if all are off."""
    joint: Any
    """Whether top-p counts the mass of the whole row, whatever the others keep."""


class NoiseKey(NamedTuple):
    """The arguments of a row's noise beside the token, int64 each."""

    seed: Any
    position: Any


# Numbers the rows of target and drafts as one batch: the address of a row, and the target row with its parameters.
#
# A verification with the logits of its drafts draws from the target's rows and, behind them, from the drafts' rows,
# in the same launches. Reads two numbers a row of the drafts; nothing without such rows.


@triton.jit
def row_of(index, drafts, counts):
    """Return (row of the batch, or -1 for none; target row with its parameters and noise).

    :param index: numbers the rows of the target, then ``max_drafts`` rows of drafts for each request.
    """
    row = index
    target_row = index
    if drafts.cu_num_logits is not None:
        if index >= counts.target_rows:
            draft_index = index - counts.target_rows
            request = draft_index // counts.max_drafts
            step = draft_index % counts.max_drafts
            is_request = request < counts.requests
            first_row = tl.load(drafts.cu_num_logits + request, mask=is_request, other=0).to(tl.int32)
            bonus = tl.load(drafts.cu_num_logits + request + 1, mask=is_request, other=0).to(tl.int32) - 1
            draft_row = counts.target_rows + first_row - request + step
            is_draft = is_request & (first_row + step < bonus) & (draft_row < counts.rows)
            row = tl.where(is_draft, draft_row, -1)
            target_row = tl.where(is_draft, first_row + step, counts.target_rows - 1)
    return row, target_row


@triton.jit
def row_logits(row, logits, drafts, counts):
    """Return the :class:`RowAddress` of a row: rows of the drafts follow the target's."""
    base = logits.base + row.to(tl.int64) * logits.row_stride
    if drafts.base is not None:
        if row >= counts.target_rows:
            base = drafts.base + (row - counts.target_rows).to(tl.int64) * drafts.row_stride
    return RowAddress(base, logits.vocab_size)


# Loads the parameters of a row in the program that draws the row: a few scalars.

HAS_INDEX = tl.constexpr(1)
HAS_SEEDS = tl.constexpr(2)
HAS_SEEDED = tl.constexpr(4)
HAS_FRESH = tl.constexpr(8)
HAS_POSITIONS = tl.constexpr(16)
HAS_TOP_K = tl.constexpr(32)
HAS_TOP_P = tl.constexpr(64)
HAS_MIN_P = tl.constexpr(128)
HAS_JOINT = tl.constexpr(256)
"""The tensors of :class:`RowParams` in the call."""
EXACT = tl.constexpr(512)
"""The draw writes thresholds and kept masses, not just tokens."""
DRAFT = tl.constexpr(1024)
"""The draw is for a draft: its noise comes from streams of its own."""
RANKED = tl.constexpr(2048)
"""The draw sets ranks to 0, for a later launch that counts."""
OWN = tl.constexpr(4096)
"""The draw writes the drawn token's value in the logprobs mode."""
SCALED = tl.constexpr(8192)
NORMALISED = tl.constexpr(16384)
TEMPERED = tl.constexpr(32768)
PROCESSED = tl.constexpr(65536)
"""Steps that a logprobs mode applies to logits: subtract the largest, subtract the logarithm of the mass, divide by the
temperature, drop what the filters drop."""
SHOWN = tl.constexpr(131072)
"""A verification writes the token of each row, for its logprobs."""

LEAST_KEPT = tl.constexpr(262144)
"""The draw writes the least kept logit of each row of the target, beside exact thresholds."""
HAS_FLOOR = tl.constexpr(524288)
"""Rows may have floors from moments."""
ROW_EXACT = tl.constexpr(1048576)
"""Rows may need exact thresholds for a later launch, though the call does not."""
MANY_EXACT = tl.constexpr(2097152)
"""Most rows of large sets are expected to need exact thresholds."""


@triton.jit
def slot_of(row, flags, params):
    """Return the parameter slot of a row of logits."""
    slot = tl.load(params.row_index + row, mask=(flags & HAS_INDEX) != 0, other=0).to(tl.int64)
    return tl.where((flags & HAS_INDEX) != 0, slot, row.to(tl.int64))


@triton.jit
def noise_key(row, slot, flags, params):
    """Return the seed and the position of a row, or of a block of rows."""
    position = tl.load(params.positions + row, mask=(flags & HAS_POSITIONS) != 0, other=0).to(tl.int64)
    seed = tl.load(params.seeds + slot, mask=(flags & HAS_SEEDS) != 0, other=0).to(tl.int64)
    is_seeded = tl.load(params.seeded + slot, mask=(flags & HAS_SEEDED) != 0, other=1).to(tl.int32)
    is_seeded *= ((flags & HAS_SEEDS) != 0).to(tl.int32)
    fresh_seed = tl.load(params.fresh + row, mask=(flags & HAS_FRESH) != 0, other=0)
    return NoiseKey(tl.where(is_seeded != 0, seed, fresh_seed), position)


@triton.jit
def has_noise(slot, flags, params):
    """Return 1 if a row has a seed, of its own or a fresh one; a score makes no fresh seeds."""
    is_seeded = tl.load(params.seeded + slot, mask=(flags & HAS_SEEDED) != 0, other=1).to(tl.int32)
    is_seeded *= ((flags & HAS_SEEDS) != 0).to(tl.int32)
    return tl.maximum((is_seeded != 0).to(tl.int32), ((flags & HAS_FRESH) != 0).to(tl.int32))


@triton.jit
def load_filters(slot, vocab_size, flags, params):
    """Return (k in [1, V) or 0; p or 1, float64; min-p or 0, float64; whether the order is joint).

    What is out of range is off.
    """
    k = tl.load(params.top_k + slot, mask=(flags & HAS_TOP_K) != 0, other=0).to(tl.int64)
    k = tl.where((k > 0) & (k < vocab_size), k, 0)
    p = tl.load(params.top_p + slot, mask=(flags & HAS_TOP_P) != 0, other=1).to(tl.float64)
    p = tl.where(p < 1, p, 1.0)  # NaN is off
    m = tl.load(params.min_p + slot, mask=(flags & HAS_MIN_P) != 0, other=0).to(tl.float64)
    is_joint = tl.load(params.joint + slot, mask=(flags & HAS_JOINT) != 0, other=0) != 0
    return k, p, tl.where(m > 0, m, 0.0), is_joint


# Computes the inverse of a temperature, in float32 and in float64: one rule for greedy rows, one Newton step.

_TINY = tl.constexpr(1e-37)
"""Below this temperature the inverse nears the end of float32."""
_TINY_FACTOR = tl.constexpr(18446744073709551616.0)
"""2 ** 64."""
_LARGEST_INVERSE = tl.constexpr(1e38)
_SMALLEST_INVERSE = tl.constexpr(1e-45)
_LARGEST_FP64 = tl.constexpr(1.7e308)
_NEWTON_MIN = tl.constexpr(1e-30)
_NEWTON_MAX = tl.constexpr(1e30)
"""Between these limits Newton's step may start from a float32 inverse."""


@triton.jit
def load_temperature(temperature, slot):
    """Return (T in float64, whether the row is greedy: T is 0, below, or NaN)."""
    value = tl.load(temperature + slot).to(tl.float64)
    return value, (value > 0) == 0


@triton.jit
def _newton(value, guess):
    """Return a better guess of ``1 / value``: a float64 division would cost more than all else in a short program."""
    return guess + guess * (1.0 - value * guess)


@triton.jit
def inverse_temperature(temperature, slot):
    """Return (1 / T as float32, positive and finite; whether the row is greedy).

    If the inverse of a tiny T nears the end of float32, the result is ``-2 ** -64 / T``: see :func:`~.values.times`.
    """
    if temperature is not None:
        value, greedy = load_temperature(temperature, slot)
        tiny = value < _TINY
        value = tl.where(greedy, 1.0, tl.where(tiny, value * _TINY_FACTOR, value))
        guess = 1.0 / value.to(tl.float32)
        refined = _newton(value, guess.to(tl.float64)).to(tl.float32)
        # Newton's step is NaN from 0, the inverse of an infinite T; so is 0 times an infinite difference of logits.
        smallest = tl.full((), _SMALLEST_INVERSE, tl.float32)
        refined = tl.where(refined > smallest, refined, smallest)
        inverse = tl.where(guess < _LARGEST_INVERSE, refined, _LARGEST_INVERSE)
        inverse = tl.where(tiny & (greedy == 0), -inverse, inverse)
    else:
        greedy = slot < 0
        inverse = tl.full((), 1.0, tl.float32)
    return inverse, greedy


@triton.jit
def mode_temperature(temperature, slot, flags):
    """Return (T, 1 / T, whether the row is greedy) for a logprobs mode: 1 and not greedy in raw modes.

    Both are float64, and finite so that 0 times 1 / T is 0.
    """
    if temperature is not None:
        value, greedy = load_temperature(temperature, slot)
        value = tl.where(greedy, 1.0, tl.minimum(value, _LARGEST_FP64))
        if (value > _NEWTON_MIN).to(tl.int32) * (value < _NEWTON_MAX).to(tl.int32) > 0:
            guess = (1.0 / value.to(tl.float32)).to(tl.float64)
            inverse = _newton(value, _newton(value, guess))
        else:
            inverse = tl.minimum(1.0 / value, _LARGEST_FP64)
    else:
        greedy = slot < 0
        value = tl.full((), 1.0, tl.float64)
        inverse = tl.full((), 1.0, tl.float64)
    tempered = (flags & TEMPERED) != 0
    return tl.where(tempered, value, 1.0), tl.where(tempered, inverse, 1.0), greedy & tempered


# The random numbers of the contract, inside a kernel: see :mod:`tokendraw.philox`.
#
# Reads and writes nothing. Philox comes from Triton itself; what follows it keeps every bit that decides a draw.

TOKEN = tl.constexpr(0)
TILE = tl.constexpr(1)
"""The streams of the draw."""
ACCEPT = tl.constexpr(2)
RESIDUAL_TOKEN = tl.constexpr(3)
RESIDUAL_TILE = tl.constexpr(4)
XTC = tl.constexpr(7)
_DRAFTS = tl.constexpr(5)
"""Offset from a stream of the draw to the same stream of the draft's draw."""
_HALF_32 = tl.constexpr(0x80000000)
_LAST_32 = tl.constexpr(0xFFFFFFFF)
_HALF_53 = tl.constexpr(1 << 52)
_LAST_53 = tl.constexpr((1 << 53) - 1)
_ULP_32 = tl.constexpr(2.3283064365386963e-10)
"""2 ** -32: from 32 random bits to a number below 1."""
_ULP_53 = tl.constexpr(1.1102230246251565e-16)
"""2 ** -53."""
_BELOW_ONE = tl.constexpr(0.9999999999999999)


@triton.jit
def streams_of(flags):
    """Return the streams of a draw: (for tokens, for tiles)."""
    first = ((flags & DRAFT) != 0).to(tl.int32) * _DRAFTS
    return first + TOKEN, first + TILE


@triton.jit
def _words(key, index, stream):
    c0 = index.to(tl.uint32, bitcast=True)
    zero = c0 * 0
    c1 = zero + key.position.to(tl.uint32)  # the low words: integers are cut, not saturated
    c2 = zero + (key.position >> 32).to(tl.uint32)
    c3 = zero + stream
    k0 = zero + key.seed.to(tl.uint32)
    k1 = zero + (key.seed >> 32).to(tl.uint32)
    w0, w1, _, _ = tl.philox_impl(c0, c1, c2, c3, k0, k1)
    return w0, w1


@triton.jit
def _bits_53(w0, w1):
    return (w0.to(tl.uint64) << 21) | (w1.to(tl.uint64) >> 11)


@triton.jit
def uniform(key, index, stream, FP64: tl.constexpr):
    """Return uniform variates in (0, 1) at (seed, position, index, stream): float64, from 32 bits or from 53."""
    w0, w1 = _words(key, index, stream)
    if FP64:
        u = (_bits_53(w0, w1).to(tl.float64) + 0.5) * _ULP_53
    else:
        u = (w0.to(tl.float64) + 0.5) * _ULP_32
    return tl.minimum(u, _BELOW_ONE)  # a sum with too many bits rounds up


@triton.jit
def gumbel(key, index, stream, FP64: tl.constexpr):
    """Return Gumbel variates at (seed, position, index, stream): float32, or float64 from 53 bits."""
    w0, w1 = _words(key, index, stream)
    if FP64:
        bits = _bits_53(w0, w1)
        lower = bits < _HALF_53
        distance = (tl.where(lower, bits, _LAST_53 - bits).to(tl.float64) + 0.5) * _ULP_53
    else:
        lower = w0 < _HALF_32
        distance = (tl.where(lower, w0, _LAST_32 - w0).to(tl.float32) + 0.5) * _ULP_32
    # u itself below one half, 1 - u above it: the exponential variate is -log1p(-u) there and -log(1 - u) here. Below,
    # log(w) * u / (1 - w) undoes the rounding of w = 1 - u, to a few ulp (Kahan).
    w = tl.where(lower, 1.0 - distance, distance)
    exponential = -tl.log(w)
    exponential *= tl.where(lower & (w < 1.0), distance / tl.where(lower & (w < 1.0), 1.0 - w, 1.0), 1.0)
    exponential = tl.where(w == 1.0, distance, exponential)
    return -tl.log(exponential)

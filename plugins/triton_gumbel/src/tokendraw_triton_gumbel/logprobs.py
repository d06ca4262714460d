"""Log-probabilities of the drawn token and of the N best, and the drawn token's rank, from what the draw left behind.

Two launches. The one over groups of tiles counts ranks: see :mod:`.ranks`. The one over rows reads 8 bytes a tile, the
maximum of every 64 logits, and the few logits that matter: see :mod:`.logprobs_row`. For an N above :data:`MOST`,
``torch.topk`` reads all of them, some rows at a time. The draw of rows without filters fills in the drawn token's
column itself, so that N = 0 takes a launch for its ranks alone.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from tokendraw import LogprobsTensors, SamplingMetadata
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID, LogprobsMode
from tokendraw_triton_gumbel import request
from tokendraw_triton_gumbel.launch import launch
from tokendraw_triton_gumbel.logprobs_row import FEW, row_logprobs
from tokendraw_triton_gumbel.ranks import SPAN, count_ranks

MOST = 64
"""The largest N that the kernel serves."""
WARPS = 4

_SCALED, _NORMALISED, _TEMPERED, _PROCESSED = (
    bit.value for bit in (request.SCALED, request.NORMALISED, request.TEMPERED, request.PROCESSED)
)
_LOGITS_AT_ONCE = 1 << 23
"""Of the rows that ``torch.topk`` gets: 40 bytes of scratch each, as measured on a CPU."""
_QUARTERS = 512
"""Of tiles that are fewer than 2 N: at most ``8 * MOST``."""
_INF = float("inf")
_LARGEST = torch.finfo(torch.float32).max


def describe(
    logits: Tensor,
    m: SamplingMetadata,
    token_ids: Tensor,
    maxima: Tensor,
    sums: Tensor,
    raw_sums: Tensor | None,
    granules: Tensor | None,
    floors: Tensor,
    log_kept_mass: Tensor,
    mode: LogprobsMode,
    *,
    ranks: Tensor | None,
    own: tuple[Tensor, Tensor] | None = None,
) -> LogprobsTensors:
    """Describe the drawn tokens [rows] int64 of logits [rows, V]. Waits for nothing.

    :param maxima: [rows, tiles] float32, of tiles of 1024 ids; NaN counts as -inf here and below.
    :param sums: [rows, tiles] float32: sum of ``exp((x - maximum) / T)``, or how many +inf; the sign says nothing.
    :param raw_sums: the same at T = 1; None: ``sums`` are at T = 1, or ``mode`` is not raw_logprobs.
    :param granules: [rows, tiles, 16] of the type of the logits: the maxima of the parts of each tile, in the order of
        :func:`~tokendraw_triton_gumbel.logprobs_row.load_granules`. None where neither a best token nor a rank is wanted.
    :param floors: [rows] float32: what is kept is ``x >= floor``.
    :param log_kept_mass: [rows] float32.
    :param ranks: [rows] int64, 0, to be filled in; None: nobody wants them.
    :param own: ids [rows, 1] and values [rows, 1] of N = 0, where the draw has filled them in.
    """
    logits = logits.detach()
    (rows, vocab_size), device = logits.shape, logits.device
    n = width_of(m, vocab_size)
    width = n if n <= MOST else 0
    if own is not None:
        ids, values = own
    else:
        ids = torch.empty(rows, 1 + width, dtype=torch.int64, device=device)
        values = torch.empty(rows, 1 + width, dtype=torch.float32, device=device)
    sums = sums if raw_sums is None else raw_sums
    tiles, vector = maxima.shape[1], 4 if logits.dtype == torch.float32 else 8
    if rows and ranks is not None:
        launch(
            count_ranks,
            (rows * -(-tiles // SPAN), 1, 1),
            logits,
            logits.stride(0),
            vocab_size,
            tiles,
            rows,
            token_ids,
            maxima,
            granules,
            ranks,
            SPAN=SPAN,
            VECTOR=vector,
            num_warps=WARPS,
        )
    if rows and own is None:
        few_tiles = tiles < 2 * width  # too few for their maxima to say much about the N-th value
        searched = rows if width else 0
        launch(
            row_logprobs,
            (rows, 1, 1),
            logits,
            logits.stride(0),
            vocab_size,
            tiles,
            width,
            token_ids,
            m.temperature,
            m.row_index,
            m.logprobs,
            maxima,
            sums,
            maxima if granules is None else granules,
            floors,
            log_kept_mass,
            torch.empty(searched, tiles * 16, dtype=torch.int32, device=device),
            torch.empty(searched, FEW, dtype=torch.int64, device=device),
            ids,
            values,
            how_shown(mode),
            VECTOR=vector,
            TILES=max(256, triton.next_power_of_2(tiles)),
            PROOF=_QUARTERS if few_tiles else 0,
            FEW=FEW,
            num_warps=WARPS,
        )
    if n > MOST:
        ids, values = _describe_many(logits, m, token_ids, maxima, sums, floors, log_kept_mass, mode, n)
    return LogprobsTensors(ids, values, ranks)


def how_shown(mode: LogprobsMode) -> int:
    """What a mode does to logits, as bits."""
    flags = 0 if mode == "raw_logits" else _SCALED
    flags += _NORMALISED if mode.endswith("logprobs") else 0
    flags += 0 if mode.startswith("raw") else _TEMPERED
    return flags + (_PROCESSED if mode.startswith("processed") else 0)


def width_of(m: SamplingMetadata, vocab_size: int) -> int:
    """N of a batch that asks for logprobs."""
    n = m.facts.logprobs_width(vocab_size)
    assert n is not None  # a batch without logprobs has no use for this
    return n


def _describe_many(
    logits: Tensor,
    m: SamplingMetadata,
    token_ids: Tensor,
    maxima: Tensor,
    sums: Tensor,
    floors: Tensor,
    log_kept_mass: Tensor,
    mode: LogprobsMode,
    n: int,
) -> tuple[Tensor, Tensor]:
    """Ids and values [rows, 1 + N] for any N, some rows at a time."""
    rows, vocab_size = logits.shape
    ids = torch.full((rows, 1 + n), PAD_TOKEN_ID, dtype=torch.int64, device=logits.device)
    values = torch.full((rows, 1 + n), PAD_LOGPROB, dtype=torch.float32, device=logits.device)
    temperature, wanted = m.per_row("temperature"), m.per_row("logprobs")
    if temperature is None or mode.startswith("raw"):
        temperature = torch.ones(rows, dtype=torch.float64, device=logits.device)
    width = 1 + n
    step = max(1, _LOGITS_AT_ONCE // vocab_size)
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        token, floor = token_ids[part, None], floors[part, None]
        degrees = temperature[part, None].to(torch.float64)
        greedy = ~(degrees > 0)
        inverse = torch.where(greedy, 1.0, degrees).clamp(max=1.7e308).reciprocal().clamp(max=1.7e308)
        x = torch.empty(logits[part].shape, dtype=torch.float32, device=logits.device).copy_(logits[part])
        x.nan_to_num_(nan=-_INF, posinf=_INF, neginf=-_INF)
        top = maxima[part].amax(-1, keepdim=True)
        drawn = x.gather(-1, token)
        if mode != "raw_logits":  # what float32 shows as -inf is -inf to the order, too
            least = top - _LARGEST * torch.where(greedy, 1.0, degrees)
            x = torch.where(x >= least.to(torch.float32), x, -_INF)
        if mode.startswith("processed"):
            x = torch.where(x >= floor, x, -_INF)
        x = torch.where(greedy, -_INF, x).scatter_(-1, token, drawn)
        best = _best(x, width - 1)
        chosen = torch.cat((token, best), -1)
        x = x.gather(-1, chosen)
        if mode != "raw_logits":
            y = _scaled(x, top, inverse)
            if mode.endswith("logprobs"):
                weights = sums[part].abs() * _scaled(maxima[part], top, inverse).exp()
                y -= weights.sum(-1, keepdim=True).log()
            if mode == "processed_logprobs":
                y -= log_kept_mass[part, None]
            x = torch.where(greedy & (chosen == token), 0.0, y)
        x = torch.where(top > -_INF, x, -_INF)
        if wanted is not None:
            asked = wanted[part, None]
            beyond = (torch.arange(width, device=x.device) > asked) & (asked >= 0)
            chosen, x = chosen.masked_fill(beyond, PAD_TOKEN_ID), x.masked_fill(beyond, PAD_LOGPROB)
        ids[part, :width] = chosen
        values[part, :width] = x
    return ids, values


def _scaled(x: Tensor, top: Tensor, inverse: Tensor) -> Tensor:
    """``(x - max x) / T`` in float64: 0 at the maximum, an infinite one too."""
    return torch.where(x == top, 0.0, (x.to(torch.float64) - top) * inverse)


def _best(x: Tensor, n: int) -> Tensor:
    """Ids [rows, n] of the largest values, descending, the lowest id first on a tie: ``topk`` promises only the first."""
    bits = (x + 0.0).view(torch.int32)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    last = x.shape[-1] - 1
    key = (ordered << 32) | (last - torch.arange(last + 1, device=x.device))
    return last - (key.topk(n).values & 0xFFFFFFFF)

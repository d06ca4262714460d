"""Statistics of each row that a draw needs: its maximum, its threshold, and the weight that each tile keeps.

:func:`row_stats` reads every logit, in chunks of rows, on any device. :func:`top_stats` reads only the largest values,
which is enough where every row keeps few. Whether it was enough depends on the values, and only a CPU can read those
without waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import philox
from tokendraw.probabilities import PerRow
from tokendraw_native.buffers import Buffers
from tokendraw_native.filters import MAX_TOP, thresholds
from tokendraw_native.largest import largest_of_rows
from tokendraw_native.row_params import RowParams
from tokendraw_native.row_threads import by_chunks
from tokendraw_native.rows import Rows, kept, known_finite, load, real_dtype, scaled

_TILE = philox.TILE_SIZE


@dataclass(frozen=True, slots=True)
class TopTokens(PerRow):
    """The largest values of each row [rows, n] in descending order, with every token that is kept among them."""

    ids: Tensor
    """int64."""
    tile: Tensor
    """int64: the tile of each token."""
    x: Tensor
    """float32."""
    y: Tensor
    """``(x - max x) / T``."""


@dataclass(frozen=True, slots=True)
class RowStats(PerRow):
    """The facts about each row that a draw needs. [rows, 1] where no shape is given."""

    max: Tensor
    """float32: the largest value."""
    valid: Tensor
    """bool."""
    threshold: Tensor
    """float32: a token is kept if its value is at least this."""
    tile_weights: Tensor
    """[rows, tiles]: the sum of ``exp(y)`` over the kept tokens of each tile."""
    finite: bool
    """Whether every maximum is known to be finite, as in :class:`~tokendraw_native.rows.Rows`."""
    mass: Tensor | None = None
    """Sum of ``exp(y)`` over the row, after temperature and before filters, if it was asked for."""
    raw_mass: Tensor | None = None
    """Sum of ``exp(y)`` over the row at T = 1."""
    top_tokens: TopTokens | None = None
    """The kept tokens themselves, if only the largest values were read."""


def row_stats(logits: Tensor, params: RowParams, *, masses: bool) -> RowStats:
    """Read every logit, but of a row that was expanded to a batch of equal requests only once.

    :param masses: whether log-probabilities will be asked for.
    """
    if _is_one_row(logits, params):
        only = row_stats(logits[:1], params.chunk(slice(1)), masses=masses)
        return only.chunk(torch.zeros(len(logits), dtype=torch.int64, device=logits.device))

    def chunk_stats(part: slice, buffers: Buffers) -> RowStats:
        chunk = logits[part]
        own = params if len(chunk) == len(logits) else params.chunk(part)
        return _chunk_stats(load(chunk, buffers), own, buffers, masses)

    parts = by_chunks(chunk_stats, len(logits), logits)
    return parts[0] if len(parts) == 1 else joined(parts)


def _is_one_row(logits: Tensor, params: RowParams) -> bool:
    """Return whether all rows are known to be the same. Only on a CPU can parameters be compared without waiting."""
    if logits.device.type != "cpu" or len(logits) < 2 or logits.stride(0) != 0:
        return False
    columns = [column for f in fields(params) if isinstance(column := getattr(params, f.name), Tensor)]
    return all(bool((column == column[:1]).all()) for column in columns)


def joined(parts: Sequence[RowStats]) -> RowStats:
    """Join the statistics of successive rows."""

    def column(name: str) -> Any:
        own = [getattr(part, name) for part in parts]
        return None if own[0] is None else torch.cat(own)

    tensors = {f.name: column(f.name) for f in fields(RowStats) if f.name not in ("finite", "top_tokens")}
    return RowStats(**tensors, finite=all(part.finite for part in parts))


def _chunk_stats(rows: Rows, params: RowParams, buffers: Buffers, masses: bool) -> RowStats:
    weight, padded = weights(rows, params, buffers)
    raw_mass = raw_masses(rows) if masses else None
    mass = padded_tile_sums(padded).sum(-1, keepdim=True) if masses else None
    threshold = thresholds(rows, weight, params, rows.x.shape[-1], buffers).kept
    if params.filters:
        weight *= kept(rows.x, threshold, buffers)
    return RowStats(rows.max, rows.valid, threshold, padded_tile_sums(padded), rows.finite, mass, raw_mass)


def weights(rows: Rows, params: RowParams, buffers: Buffers, lead: int = 0) -> tuple[Tensor, Tensor]:
    """Return ``exp(y)`` [rows, n], and the padded tensor of which it is a part: whole tiles, 0 around the weights.

    :param lead: columns before the first one in its tile, which lie elsewhere.
    """
    count, size = rows.x.shape
    end = lead + size
    width = end if end < _TILE else -(-end // _TILE) * _TILE
    padded = buffers.take("weight", count, width, real_dtype(rows.x.device))
    if lead:
        padded[:, :lead].zero_()
    if width > end:
        padded[:, end:].zero_()
    weight = padded[:, lead:end]
    scaled(rows.x, rows.max, params.inverse_temperature, out=weight, finite=rows.finite).exp_()
    return weight, padded


def raw_masses(rows: Rows) -> Tensor:
    """Return the sums of ``exp(x - max x)``, [rows, 1]."""
    one = torch.ones_like(rows.max, dtype=real_dtype(rows.x.device))
    return scaled(rows.x, rows.max, one, finite=rows.finite).exp_().sum(-1, keepdim=True)


def tile_sums(weight: Tensor) -> Tensor:
    """Add up the weights [rows, V] of all tokens by tile: [rows, tiles]."""
    vocab_size = weight.shape[-1]
    return padded_tile_sums(weight if vocab_size < _TILE else pad(weight, (0, -vocab_size % _TILE)))


def padded_tile_sums(padded: Tensor) -> Tensor:
    """Add up weights [rows, width] by tile, as :func:`weights` pads them: [rows, tiles]."""
    rows, width = padded.shape
    return padded.view(rows, -(-width // _TILE), min(width, _TILE)).sum(-1)


def _enough(top_k: int) -> int:
    """Return how many of the largest values to read, so that those tied with the k-th are hardly ever more."""
    return top_k + 8 + top_k // 4


def top_stats(logits: Tensor, params: RowParams) -> RowStats | None:
    """Read only the largest values; None if they cannot be enough, or turn out not to be."""
    vocab_size = logits.shape[-1]
    if not params.all_top_k or params.joint is not None or (params.max_top_k or 0) >= MAX_TOP:
        return None
    n = min(_enough(params.max_top_k or 0), vocab_size)
    values, ids = largest_of_rows(logits, n)
    x_max = values[:, :1].to(torch.float32)
    if not known_finite(x_max):  # NaN comes first
        return None
    x, buffers = values.to(torch.float32), Buffers(logits.device)
    y = scaled(x, x_max, params.inverse_temperature, finite=True)
    weight = y.exp()
    rows = Rows(x, x_max, torch.ones_like(x_max, dtype=torch.bool), finite=True, descending=True)
    survivors, threshold = thresholds(rows, weight, params, vocab_size, buffers)
    if n < vocab_size and not (survivors > x[:, -1:]).all():  # some that were not read may survive, as ties
        return None
    tile = ids // _TILE
    tile_weights = weight.new_zeros(logits.shape[0], -(-vocab_size // _TILE))
    tile_weights.scatter_add_(-1, tile, weight * kept(x, threshold, buffers))
    top_tokens = TopTokens(ids, tile, x, y)
    return RowStats(x_max, rows.valid, threshold, tile_weights, finite=True, top_tokens=top_tokens)

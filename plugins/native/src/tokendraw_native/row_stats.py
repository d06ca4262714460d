"""Statistics of each row for a draw: its maximum, its threshold, and the kept weight of each tile.

:func:`row_stats` reads every logit, in chunks of rows, on any device. :func:`top_stats` reads only the largest values,
which is enough where every row keeps a small number of tokens. The values tell whether it was enough, and only a CPU
reads them without waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import philox
from tokendraw.row_parameters import PerRow, RowParameters, widest_float
from tokendraw_native.filters import MAX_TOPK_VALUES, at_filters, thresholds
from tokendraw_native.row_threads import Buffers, map_chunks
from tokendraw_native.rows import INF, CleanedLogits, is_finite, keep_mask, load, scale
from tokendraw_native.search import topk_by_chunks

_TILE = philox.TILE_SIZE


@dataclass(frozen=True, slots=True)
class TopTokens(PerRow):
    """The largest values of each row [rows, n] in descending order, among them every kept token."""

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
    """Statistics of each row for a draw. [rows, 1] where no shape is given."""

    max: Tensor
    """float32: the largest value."""
    valid: Tensor
    """bool."""
    threshold: Tensor
    """float32: the least kept value."""
    tile_weights: Tensor
    """[rows, tiles]: the sum of ``exp((x - peak) / T)`` over the kept tokens of each tile."""
    finite: bool
    """Whether every maximum is known to be finite, as in :class:`~tokendraw_native.rows.CleanedLogits`."""
    mass: Tensor | None = None
    """Sum of ``exp(y)`` over the row, after temperature and before filters, for log-probabilities."""
    raw_mass: Tensor | None = None
    """Sum of ``exp(y)`` over the row at T = 1."""
    top_tokens: TopTokens | None = None
    """The kept tokens themselves, if only the largest values were read."""
    ceiling: Tensor | None = None
    """float32: the greatest kept value; None: every row keeps its largest value."""

    @property
    def peak(self) -> Tensor:
        """Return the greatest kept value of each row."""
        return self.max if self.ceiling is None else self.ceiling

    def drops(self, x: Tensor) -> Tensor:
        """Return the tokens of [rows, n] logits that the filters drop."""
        dropped = x < self.threshold
        return dropped if self.ceiling is None else dropped | (x > self.ceiling)


def row_stats(logits: Tensor, params: RowParameters, *, masses: bool) -> RowStats:
    """Read every logit; of a row expanded to a batch of equal requests, read the row once.

    :param masses: whether to compute the masses for log-probabilities.
    """
    if _is_expanded_row(logits, params):
        stats = row_stats(logits[:1], params.chunk(slice(1)), masses=masses)
        return stats.chunk(torch.zeros(len(logits), dtype=torch.int64, device=logits.device))

    def chunk_stats(part: slice, buffers: Buffers) -> RowStats:
        chunk = logits[part]
        chunk_params = params if len(chunk) == len(logits) else params.chunk(part)
        return _chunk_stats(load(chunk, buffers), chunk_params, buffers, masses)

    parts = map_chunks(chunk_stats, len(logits), logits)
    return parts[0] if len(parts) == 1 else join(parts)


def _is_expanded_row(logits: Tensor, params: RowParameters) -> bool:
    """Return whether all rows are known to be equal. Only on a CPU can parameters be compared without waiting."""
    if logits.device.type != "cpu" or len(logits) < 2 or logits.stride(0) != 0:
        return False
    columns = [column for f in fields(params) if isinstance(column := getattr(params, f.name), Tensor)]
    return all(bool((column == column[:1]).all()) for column in columns)


def join(parts: Sequence[RowStats]) -> RowStats:
    """Join the statistics of successive rows."""

    def column(name: str) -> Any:
        columns = [getattr(part, name) for part in parts]
        return None if columns[0] is None else torch.cat(columns)

    tensors = {f.name: column(f.name) for f in fields(RowStats) if f.name not in ("finite", "top_tokens")}
    return RowStats(**tensors, finite=all(part.finite for part in parts))


def _chunk_stats(rows: CleanedLogits, params: RowParameters, buffers: Buffers, masses: bool) -> RowStats:
    filter_params = at_filters(params)
    weight, padded = weights(rows, filter_params, buffers)
    raw_mass = None
    if masses:
        one = torch.ones_like(rows.max, dtype=widest_float(rows.x.device))
        raw_mass = scale(rows.x, rows.max, one, finite=rows.finite).exp_().sum(-1, keepdim=True)
    _, threshold, ceiling = thresholds(rows, weight, filter_params, rows.x.shape[-1], buffers)
    if params.temperature_last is not None:
        weight, padded = weights(rows, params, buffers)
    mass = padded_tile_sums(padded).sum(-1, keepdim=True) if masses else None
    if ceiling is not None:  # beside a token far above the ceiling, the weights of kept ones may be 0
        is_dropped = (rows.x < threshold) | (rows.x > ceiling)
        kept = replace(rows, x=rows.x.masked_fill(is_dropped, -INF), max=ceiling)
        weight, padded = weights(kept, params, buffers)
    elif params.may_drop_tokens:
        weight *= keep_mask(rows.x, threshold, buffers)
    tile_weights = padded_tile_sums(padded)
    return RowStats(
        rows.max, rows.valid, threshold, tile_weights, rows.finite, mass, raw_mass, ceiling=ceiling
    )


def weights(rows: CleanedLogits, params: RowParameters, buffers: Buffers) -> tuple[Tensor, Tensor]:
    """Return ``exp(y)`` [rows, n] as a view, and the tensor around it: full tiles, padded with 0."""
    count, size = rows.x.shape
    width = size if size < _TILE else -(-size // _TILE) * _TILE
    padded = buffers.take("weight", count, width, widest_float(rows.x.device))
    if width > size:
        padded[:, size:].zero_()
    weight = padded[:, :size]
    scale(rows.x, rows.max, params.inverse_temperature, out=weight, finite=rows.finite).exp_()
    return weight, padded


def tile_sums(weight: Tensor) -> Tensor:
    """Add up the weights [rows, V] of all tokens by tile: [rows, tiles]."""
    vocab_size = weight.shape[-1]
    return padded_tile_sums(weight if vocab_size < _TILE else pad(weight, (0, -vocab_size % _TILE)))


def padded_tile_sums(padded: Tensor) -> Tensor:
    """Add up weights [rows, width] by tile, as :func:`weights` pads them: [rows, tiles]."""
    rows, width = padded.shape
    return padded.view(rows, -(-width // _TILE), min(width, _TILE)).sum(-1)


# The largest values decide these. Any other parameter, one that is added later too, may need the whole row.
_OF_THE_LARGEST = ("temperature", "inverse_temperature", "greedy", "top_k", "top_p", "min_p")
_OF_THE_ROW = tuple(item.name for item in fields(RowParameters) if item.name not in _OF_THE_LARGEST)


def top_stats(logits: Tensor, params: RowParameters) -> RowStats | None:
    """Read only the largest values; None if some kept tokens are, or may be, outside of them."""
    vocab_size, top_k = logits.shape[-1], params.max_top_k or 0
    looks_further = any(isinstance(getattr(params, name), Tensor) for name in _OF_THE_ROW)
    if not params.all_top_k or top_k >= MAX_TOPK_VALUES or looks_further:
        return None
    n = min(top_k + 8 + top_k // 4, vocab_size)  # with room for values tied with the k-th
    values, ids = topk_by_chunks(logits, n)
    x_max = values[:, :1].to(torch.float32)
    if not is_finite(x_max):  # NaN comes first
        return None
    x, buffers = values.to(torch.float32), Buffers(logits.device)
    y = scale(x, x_max, params.inverse_temperature, finite=True)
    weight = y.exp()
    rows = CleanedLogits(x, x_max, torch.ones_like(x_max, dtype=torch.bool), finite=True, descending=True)
    before_top_p, threshold, _ = thresholds(rows, weight, params, vocab_size, buffers)
    if n < vocab_size and not (before_top_p > x[:, -1:]).all():  # values beyond may be ties
        return None
    tile = ids // _TILE
    tile_weights = weight.new_zeros(logits.shape[0], -(-vocab_size // _TILE))
    tile_weights.scatter_add_(-1, tile, weight * keep_mask(x, threshold, buffers))
    top_tokens = TopTokens(ids, tile, x, y)
    return RowStats(x_max, rows.valid, threshold, tile_weights, finite=True, top_tokens=top_tokens)

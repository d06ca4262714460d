"""The draw from the columns of a rank: the best of its full tiles, and the best token of its part of shared tiles."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import philox
from tokendraw.plugin import GumbelDtype
from tokendraw.row_parameters import RowParameters
from tokendraw.vocab_parallel import Draws, Layout, Span
from tokendraw_native.draw import scores, union
from tokendraw_native.noise import Noise
from tokendraw_native.row_stats import RowStats
from tokendraw_native.rows import INF, clean, scale

_TILE = philox.TILE_SIZE


class ShardDraw:
    """A draw from the columns [B, n] of a rank, n > 0."""

    def __init__(
        self,
        logits: Tensor,
        stats: RowStats,
        params: RowParameters,
        layout: Layout,
        dtype: GumbelDtype,
        *,
        has_filters: bool,
    ) -> None:
        """Prepare a draw.

        :param stats: of the columns; ``y`` is relative to its maxima.
        :param has_filters: whether a row may drop tokens.
        """
        self._logits = logits
        self._stats = stats
        self._params = params
        self._layout = layout
        self._dtype: GumbelDtype = dtype
        self._float_dtype = torch.float64 if dtype == "fp64" else torch.float32
        self._has_filters = has_filters

    def candidates(self, noise: Noise | None, *, values: bool) -> Draws:
        """Draw the candidates; the caller adds the rank's maxima and sums.

        :param noise: None: every row is greedy.
        :param values: whether to return the values of the tokens.
        """
        tiles, weights = self._layout.tiles, self._stats.tile_weights
        score, token, x = self._draw_full_tiles(noise)
        log_sums, keys, ids, xs = [], [], [token], [x]
        for part, weight in ((tiles.head, weights[:, :1]), (tiles.tail, weights[:, -1:])):
            key, token, x = (
                self._draw_columns(self._columns(part), None, noise) if part.size else self._no_candidate()
            )
            log_sums.append(weight.log() if part.size else key)
            keys.append(key)
            ids.append(token)
            xs.append(x)
        return Draws(
            max=self._stats.max,
            has_nan=token,
            score=score.to(self._float_dtype),
            ids=torch.cat(ids, -1).to(torch.int32),
            log_sum=torch.cat(log_sums, -1).to(self._float_dtype),
            key=torch.cat(keys, -1).to(self._float_dtype),
            x=torch.cat(xs, -1) if values else None,
        )

    def _draw_full_tiles(self, noise: Noise | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best score of a full tile, the token drawn in the tile, and the token's value."""
        full, device = self._layout.tiles.whole, self._logits.device
        if not full.size:
            return self._no_candidate()
        first, count = full.start // _TILE, -(-full.size // _TILE)
        before = first - self._layout.ids.start // _TILE
        score = self._stats.tile_weights[:, before : before + count].log()
        if noise is not None:
            score += noise.gumbel(torch.arange(first, first + count, device=device), philox.TILE, self._dtype)
        best, tile = score.max(-1, keepdim=True)  # the lowest id of a tie
        if full.size <= _TILE:
            return best, *self._draw_columns(self._columns(full), None, noise)[1:]
        columns = tile * _TILE + torch.arange(_TILE, device=device) + (full.start - self._layout.ids.start)
        outside = columns >= self._logits.shape[-1] if full.size % _TILE else None
        return best, *self._draw_columns(columns, outside, noise)[1:]

    def _draw_columns(
        self, columns: Tensor, outside: Tensor | None, noise: Noise | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best ``y + G`` among successive columns [B, m], its id and its value.

        :param outside: [B, m] bool: columns beyond the last; None: no column is.
        """
        last, params = self._logits.shape[-1] - 1, self._params
        x = clean(self._logits.gather(-1, columns if outside is None else columns.clamp(max=last)))
        y = scale(x, self._stats.max, params.inverse_temperature)
        ids = columns + self._layout.ids.start
        gumbel = None if noise is None else noise.gumbel(ids, philox.TOKEN, self._dtype)
        drop_mask = union(outside, x < self._stats.threshold if self._has_filters else None)
        best, best_column = scores(y, gumbel, drop_mask, params).max(
            -1, keepdim=True
        )  # the lowest id of a tie
        return best, ids.gather(-1, best_column), x.gather(-1, best_column)

    def _no_candidate(self) -> tuple[Tensor, Tensor, Tensor]:
        score = torch.full_like(self._stats.max, -INF)
        return score, torch.full_like(score, self._layout.vocab_size, dtype=torch.int64), score

    def _columns(self, span: Span) -> Tensor:
        start = span.start - self._layout.ids.start
        columns = torch.arange(start, start + span.size, device=self._logits.device)
        return columns.expand(len(self._logits), -1)

"""The draw from the columns of one rank: the best of its whole tiles, and the best token of its part of shared ones."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import philox
from tokendraw.plugin import GumbelDtype
from tokendraw.vocab_parallel import Draws, Layout, Span
from tokendraw_native.draw import either, scores
from tokendraw_native.row_params import Noise, RowParams
from tokendraw_native.row_stats import RowStats
from tokendraw_native.rows import INF, clean, scaled

_TILE = philox.TILE_SIZE


class ShardDraw:
    """One draw from the columns [B, n] of a rank, n > 0."""

    def __init__(
        self,
        logits: Tensor,
        stats: RowStats,
        params: RowParams,
        layout: Layout,
        dtype: GumbelDtype,
        *,
        filtered: bool,
    ) -> None:
        """Prepare a draw.

        :param stats: of the columns; its maxima are those that ``y`` is relative to.
        :param filtered: whether a row may drop tokens.
        """
        self._logits = logits
        self._stats = stats
        self._params = params
        self._layout = layout
        self._dtype: GumbelDtype = dtype
        self._real = torch.float64 if dtype == "fp64" else torch.float32
        self._filtered = filtered

    def candidates(self, noise: Noise | None, *, values: bool) -> Draws:
        """Draw the candidates; who asks adds the rank's maxima and sums.

        :param noise: None: every row is greedy.
        :param values: whether the values of the tokens are wanted.
        """
        tiles, weights = self._layout.tiles, self._stats.tile_weights
        score, token, x = self._of_whole_tiles(noise)
        log_sums, keys, ids, xs = [], [], [token], [x]
        for part, weight in ((tiles.head, weights[:, :1]), (tiles.tail, weights[:, -1:])):
            key, token, x = (
                self._of_columns(self._columns(part), None, noise) if part.size else self._nobody()
            )
            log_sums.append(weight.log() if part.size else key)
            keys.append(key)
            ids.append(token)
            xs.append(x)
        return Draws(
            max=self._stats.max,
            has_nan=token,
            score=score.to(self._real),
            ids=torch.cat(ids, -1).to(torch.int32),
            log_sum=torch.cat(log_sums, -1).to(self._real),
            key=torch.cat(keys, -1).to(self._real),
            x=torch.cat(xs, -1) if values else None,
        )

    def _of_whole_tiles(self, noise: Noise | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best score of a whole tile, the token drawn in it, and its value."""
        whole, device = self._layout.tiles.whole, self._logits.device
        if not whole.size:
            return self._nobody()
        first, count = whole.start // _TILE, -(-whole.size // _TILE)
        before = first - self._layout.ids.start // _TILE
        score = self._stats.tile_weights[:, before : before + count].log()
        if noise is not None:
            score += noise.gumbel(torch.arange(first, first + count, device=device), philox.TILE, self._dtype)
        best, tile = score.max(-1, keepdim=True)  # of equal ones the first
        if whole.size <= _TILE:
            return best, *self._of_columns(self._columns(whole), None, noise)[1:]
        columns = tile * _TILE + torch.arange(_TILE, device=device) + (whole.start - self._layout.ids.start)
        outside = columns >= self._logits.shape[-1] if whole.size % _TILE else None
        return best, *self._of_columns(columns, outside, noise)[1:]

    def _of_columns(
        self, columns: Tensor, outside: Tensor | None, noise: Noise | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best ``y + G`` among successive columns [B, m], its id and its value.

        :param outside: [B, m] bool: columns behind the last one; None: there is none.
        """
        last, params = self._logits.shape[-1] - 1, self._params
        x = clean(self._logits.gather(-1, columns if outside is None else columns.clamp(max=last)))
        y = scaled(x, self._stats.max, params.inverse_temperature)
        ids = columns + self._layout.ids.start
        gumbel = None if noise is None else noise.gumbel(ids, philox.TOKEN, self._dtype)
        dropped = either(outside, x < self._stats.threshold if self._filtered else None)
        best, place = scores(y, gumbel, dropped, params).max(-1, keepdim=True)  # of equal ones the first
        return best, ids.gather(-1, place), x.gather(-1, place)

    def _nobody(self) -> tuple[Tensor, Tensor, Tensor]:
        score = torch.full_like(self._stats.max, -INF)
        return score, torch.full_like(score, self._layout.vocab_size, dtype=torch.int64), score

    def _columns(self, span: Span) -> Tensor:
        start = span.start - self._layout.ids.start
        own = torch.arange(start, start + span.size, device=self._logits.device)
        return own.expand(len(self._logits), -1)

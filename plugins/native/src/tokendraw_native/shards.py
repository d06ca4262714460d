"""What the native sampler computes of the columns that one rank of several holds.

It reads them in chunks of rows as :mod:`tokendraw_native.row_stats` does, and draws in the two levels of
:mod:`tokendraw_native.draw` from the tiles that are whole here. Of the tiles at both ends, which other ranks hold parts
of, it finds what their own columns weigh and the best token among these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from tokendraw.plugin import GumbelDtype
from tokendraw.vocab_parallel import AwaitSeeds, Bounds, Draws, Layout
from tokendraw_native.buffers import Buffers
from tokendraw_native.largest import first_largest
from tokendraw_native.row_params import Noise, RowParams
from tokendraw_native.row_stats import RowStats, chunks, joined, padded_tile_sums, raw_masses, weights
from tokendraw_native.rows import INF, Rows, kept, known_finite, load
from tokendraw_native.shard_draw import ShardDraw


class LocalColumns:
    """The columns [B, n] of a rank: see :class:`tokendraw.vocab_parallel.LocalLogits`."""

    def __init__(self, logits: Tensor, params: RowParams, layout: Layout, dtype: GumbelDtype) -> None:
        # No columns draw as one of -inf does: never.
        self._logits = logits if logits.shape[1] else logits.new_full((len(logits), 1), -INF)
        self._params = params
        self._layout = layout
        self._dtype: GumbelDtype = dtype

    def argmax(self) -> tuple[Tensor, Tensor, Tensor]:
        """Find the largest value of each row."""
        found = [(rows.max, _has_nan(rows), self._argmax(rows)) for _, rows in self._rows()]
        x_max, has_nan, ids = (torch.cat(column) for column in zip(*found, strict=True))
        return x_max, has_nan, ids

    def draw(self, bounds: Bounds | None, seeds: AwaitSeeds | None, *, sums: bool) -> Draws:
        """Draw the candidates for the token of each row."""
        largest, stats = [], []
        buffers = Buffers(self._logits.device)
        for part, rows in self._rows():
            first = None if self._params.greedy is None else self._argmax(rows)
            largest.append((rows.max, _has_nan(rows), first))
            own = None if bounds is None else Bounds(*(column[part] for column in bounds))
            stats.append(self._stats(rows, self._params.chunk(part), own, buffers, sums))
        whole = joined(stats)
        draw = ShardDraw(
            self._logits, whole, self._params, self._layout, self._dtype, filtered=bounds is not None
        )
        drawn = draw.candidates(Noise(*seeds()) if seeds else None, values=sums)
        x_max, has_nan, ids = ([*column] for column in zip(*largest, strict=True))
        if self._params.greedy is not None:
            first_ids = torch.where(self._params.greedy, torch.cat(ids), drawn.ids[:, :1])
            drawn = drawn._replace(ids=torch.cat((first_ids, drawn.ids[:, 1:]), -1))
        if sums:
            kept_mass = whole.tile_weights.sum(-1, keepdim=True)
            drawn = drawn._replace(kept=kept_mass, mass=whole.mass, raw=whole.raw_mass)
        return drawn._replace(max=torch.cat(x_max), has_nan=torch.cat(has_nan))

    def _rows(self) -> Iterator[tuple[slice, Rows]]:
        buffers = Buffers(self._logits.device)
        for part, logits in chunks(self._logits):
            yield part, load(logits, buffers)

    def _argmax(self, rows: Rows) -> Tensor:
        return (first_largest(rows.x) + self._layout.ids.start).to(torch.int32).unsqueeze(-1)

    def _stats(
        self, rows: Rows, params: RowParams, bounds: Bounds | None, buffers: Buffers, masses: bool
    ) -> RowStats:
        threshold = torch.full_like(rows.max, -INF) if bounds is None else bounds.threshold
        if bounds is not None:
            rows = replace(rows, max=bounds.max, finite=rows.finite and known_finite(bounds.max))
        weight, padded = weights(rows, params, buffers, self._layout.lead)
        raw_mass = raw_masses(rows) if masses else None
        mass = padded_tile_sums(padded).sum(-1, keepdim=True) if masses else None
        if bounds is not None:
            weight *= kept(rows.x, threshold, buffers)
        tiles = padded_tile_sums(padded)
        return RowStats(rows.max, rows.valid, threshold, tiles, rows.finite, mass, raw_mass)


def _has_nan(rows: Rows) -> Tensor:
    return (
        torch.zeros_like(rows.max, dtype=torch.int32)
        if rows.has_nan is None
        else rows.has_nan.to(torch.int32)
    )

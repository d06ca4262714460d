"""Computes a rank's messages from its columns, in plain PyTorch.

The columns are read in chunks of rows as :mod:`tokendraw_native.row_stats` does, and drawn from in the two levels of
:mod:`tokendraw_native.draw` from the full tiles of the rank. The tiles at both ends are shared with other ranks: of
these it finds the weight of its columns and the best token among them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw.plugin import GumbelDtype, best_token_ids
from tokendraw.row_parameters import RowParameters
from tokendraw.vocab_parallel import (
    BINS,
    DIGIT_BITS,
    Argmax,
    Bounds,
    Digits,
    Draws,
    Layout,
    MomentSum,
    RowSeeds,
    Survey,
    Weighing,
    keys,
)
from tokendraw_native.buffers import Buffers
from tokendraw_native.moments import moment_sums
from tokendraw_native.noise import Noise
from tokendraw_native.row_stats import RowStats, join, padded_tile_sums, raw_masses, weights
from tokendraw_native.row_threads import map_chunks
from tokendraw_native.rows import INF, CleanedLogits, is_finite, keep_mask, load, scale
from tokendraw_native.shard_draw import ShardDraw
from tokendraw_native.topk import argmax, topk

_T = TypeVar("_T")


class LocalColumns:
    """The columns [B, n] of a rank: see :class:`tokendraw.vocab_parallel.LocalLogits`."""

    def __init__(self, logits: Tensor, params: RowParameters, layout: Layout, dtype: GumbelDtype) -> None:
        # Without columns, a column of -inf stands in: it is never drawn.
        self._logits = logits if logits.shape[1] else logits.new_full((len(logits), 1), -INF)
        self._params = params
        self._layout = layout
        self._dtype: GumbelDtype = dtype

    @property
    def logits(self) -> Tensor:
        """Return the logits."""
        return self._logits

    def argmax(self) -> Argmax:
        """Find the largest value of each row."""
        maxima = self._map_chunks(lambda _, rows, __: (rows.max, _has_nan(rows), self._argmax(rows)))
        return Argmax(*(torch.cat(column) for column in zip(*maxima, strict=True)))

    def largest(
        self, count: int, masses: int, fresh: Tensor | None, sums: tuple[MomentSum, ...] = ()
    ) -> Survey:
        """Find the largest values, how many more tie with the last, the mass of each row, and sums for moments."""

        def survey(
            part: slice, rows: CleanedLogits, buffers: Buffers
        ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
            x = rows.x
            values = topk(x, min(count, x.shape[-1]))[0]
            last = values[:, -1:]
            ties = (x == last).sum(-1, keepdim=True) - (values == last).sum(-1, keepdim=True)
            mass = row_sums = None
            if masses or sums:
                weight = weights(rows, self._params.chunk(part), buffers)[0]
            if masses:
                mass = weight.sum(-1, keepdim=True) if masses == 1 else _sum_by_digit(x, weight)
            if sums:
                found = moment_sums(rows, weight, sums, buffers)
                row_sums = torch.cat([found[name] for name in sums], -1)
            return (
                pad(values, (0, count - values.shape[-1]), value=-INF),
                ties.to(torch.int32),
                mass,
                row_sums,
            )

        values, ties, *optional = zip(*self._map_chunks(survey), strict=True)
        mass, row_sums = (None if parts[0] is None else torch.cat(parts) for parts in optional)
        return Survey(torch.cat(values), torch.cat(ties), mass, fresh, row_sums)

    def histogram(self, digits: Digits, weighing: Weighing | None) -> Tensor:
        """Add up the weights of values by a digit of their keys."""

        def chunk_histogram(part: slice, rows: CleanedLogits, _: Buffers) -> Tensor:
            digit = keys(rows.x) >> digits.shift
            if digits.prefix is not None:
                digit -= digits.prefix[part] << DIGIT_BITS
            digit = torch.where((digit >= 0) & (digit < BINS), digit, BINS)
            units = torch.ones_like(digit)
            if weighing is not None:
                y = scale(rows.x, weighing.max[part], self._params.chunk(part).inverse_temperature)
                units = y.exp_().mul_(2.0**weighing.bits).round_().to(torch.int64)
                units *= rows.x >= weighing.floor[part]
            histogram = torch.zeros(len(digit), BINS + 1, dtype=torch.int64, device=digit.device)
            return histogram.scatter_add_(-1, digit, units)[:, :BINS]

        return torch.cat(self._map_chunks(chunk_histogram))

    def draw(self, bounds: Bounds | None, seeds: RowSeeds | None, *, best: int | None) -> Draws:
        """Draw the candidates for the token of each row."""

        def chunk_stats(
            part: slice, rows: CleanedLogits, buffers: Buffers
        ) -> tuple[Tensor, Tensor, Tensor | None, RowStats]:
            argmax_ids = None if self._params.greedy is None else self._argmax(rows)
            chunk_bounds = None if bounds is None else Bounds(*(column[part] for column in bounds))
            stats = self._stats(rows, self._params.chunk(part), chunk_bounds, buffers, best is not None)
            return rows.max, _has_nan(rows), argmax_ids, stats

        x_max, has_nan, ids, stats = zip(*self._map_chunks(chunk_stats), strict=True)
        all_stats = join(stats)
        draw = ShardDraw(
            self._logits, all_stats, self._params, self._layout, self._dtype, has_filters=bounds is not None
        )
        candidates = draw.candidates(Noise(*seeds()) if seeds else None, values=best is not None)
        if self._params.greedy is not None:
            first_ids = torch.where(self._params.greedy, torch.cat(ids), candidates.ids[:, :1])
            candidates = candidates._replace(ids=torch.cat((first_ids, candidates.ids[:, 1:]), -1))
        if best is not None:
            kept_mass, (best_x, best_ids) = all_stats.tile_weights.sum(-1, keepdim=True), self._best(best)
            candidates = candidates._replace(kept=kept_mass, mass=all_stats.mass, raw=all_stats.raw_mass)
            candidates = candidates._replace(best_x=best_x, best_ids=best_ids)
        return candidates._replace(max=torch.cat(x_max), has_nan=torch.cat(has_nan))

    def count(self, least: Tensor) -> Tensor:
        """Count the values of at least ``least``."""
        if not self._layout.ids.size:
            return torch.zeros(len(least), dtype=torch.int64, device=least.device)
        return torch.cat(self._map_chunks(lambda part, rows, _: (rows.x >= least[part]).sum(-1)))

    def _best(self, count: int) -> tuple[Tensor, Tensor]:
        """Find the largest values and their ids."""
        local_ids = self._layout.ids
        missing = count - min(count, local_ids.size)

        def chunk_best(_: slice, rows: CleanedLogits, __: Buffers) -> tuple[Tensor, Tensor]:
            columns = best_token_ids(rows.x, count - missing)
            ids = pad(columns + local_ids.start, (0, missing), value=self._layout.vocab_size).to(torch.int32)
            return pad(rows.x.gather(-1, columns), (0, missing), value=-INF), ids

        x, ids = (torch.cat(column) for column in zip(*self._map_chunks(chunk_best), strict=True))
        return x, ids

    def _map_chunks(self, compute: Callable[[slice, CleanedLogits, Buffers], _T]) -> list[_T]:
        """Compute the results of successive chunks of rows, passing a slice of row numbers and the loaded rows."""

        def chunk(part: slice, buffers: Buffers) -> _T:
            return compute(part, load(self._logits[part], buffers), buffers)

        return map_chunks(chunk, len(self._logits), self._logits)

    def _argmax(self, rows: CleanedLogits) -> Tensor:
        return (argmax(rows.x) + self._layout.ids.start).to(torch.int32).unsqueeze(-1)

    def _stats(
        self,
        rows: CleanedLogits,
        params: RowParameters,
        bounds: Bounds | None,
        buffers: Buffers,
        masses: bool,
    ) -> RowStats:
        threshold = torch.full_like(rows.max, -INF) if bounds is None else bounds.threshold
        if bounds is not None:
            rows = replace(rows, max=bounds.max, finite=rows.finite and is_finite(bounds.max))
        weight, padded = weights(rows, params, buffers, self._layout.lead)
        raw_mass = raw_masses(rows) if masses else None
        mass = padded_tile_sums(padded).sum(-1, keepdim=True) if masses else None
        if bounds is not None:
            weight *= keep_mask(rows.x, threshold, buffers)
        tiles = padded_tile_sums(padded)
        return RowStats(rows.max, rows.valid, threshold, tiles, rows.finite, mass, raw_mass)


def _sum_by_digit(x: Tensor, weight: Tensor) -> Tensor:
    """Add up weights [rows, n] by the first digit of their values' keys."""
    return weight.new_zeros(len(x), BINS).scatter_add_(-1, keys(x) >> (32 - DIGIT_BITS), weight)


def _has_nan(rows: CleanedLogits) -> Tensor:
    return (
        torch.zeros_like(rows.max, dtype=torch.int32)
        if rows.has_nan is None
        else rows.has_nan.to(torch.int32)
    )

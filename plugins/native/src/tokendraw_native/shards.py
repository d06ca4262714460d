"""Computes of the columns of one rank what the messages of several need, in plain PyTorch.

It reads them in chunks of rows as :mod:`tokendraw_native.row_stats` does, and draws in the two levels of
:mod:`tokendraw_native.draw` from the tiles that are whole here. Of the tiles at both ends, which other ranks hold parts
of, it finds what their own columns weigh and the best token among these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw.plugin import GumbelDtype, best_token_ids
from tokendraw.vocab_parallel import (
    BINS,
    DIGIT_BITS,
    Argmax,
    Bounds,
    Digits,
    Draws,
    Layout,
    RowSeeds,
    Survey,
    Weighing,
    keys,
)
from tokendraw_native.buffers import Buffers
from tokendraw_native.largest import first_largest, largest
from tokendraw_native.row_params import Noise, RowParams
from tokendraw_native.row_stats import RowStats, chunks, joined, padded_tile_sums, raw_masses, weights
from tokendraw_native.rows import INF, Rows, kept, known_finite, load, scaled
from tokendraw_native.shard_draw import ShardDraw


class LocalColumns:
    """The columns [B, n] of a rank: see :class:`tokendraw.vocab_parallel.LocalLogits`."""

    def __init__(self, logits: Tensor, params: RowParams, layout: Layout, dtype: GumbelDtype) -> None:
        # No columns draw as one of -inf does: never.
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
        found = [(rows.max, _has_nan(rows), self._argmax(rows)) for _, rows in self._rows()]
        return Argmax(*(torch.cat(column) for column in zip(*found, strict=True)))

    def largest(self, count: int, masses: int, fresh: Tensor | None) -> Survey:
        """Find the largest values, how many more tie with the last, and the mass of each row."""
        buffers, found = Buffers(self._logits.device), []
        for part, rows in self._rows():
            x = rows.x
            values = largest(x, min(count, x.shape[-1]))[0]
            last = values[:, -1:]
            ties = (x == last).sum(-1, keepdim=True) - (values == last).sum(-1, keepdim=True)
            own = None
            if masses:
                own = weights(rows, self._params.chunk(part), buffers)[0]
                own = own.sum(-1, keepdim=True) if masses == 1 else _by_first_digit(x, own)
            found.append((pad(values, (0, count - values.shape[-1]), value=-INF), ties.to(torch.int32), own))
        best, times, weighed = ([*column] for column in zip(*found, strict=True))
        return Survey(torch.cat(best), torch.cat(times), torch.cat(weighed) if masses else None, fresh)

    def histogram(self, digits: Digits, weighing: Weighing | None) -> Tensor:
        """Add up what values weigh by a digit of their keys."""
        found = []
        for part, rows in self._rows():
            digit = keys(rows.x) >> digits.shift
            if digits.prefix is not None:
                digit -= digits.prefix[part] << DIGIT_BITS
            digit = torch.where((digit >= 0) & (digit < BINS), digit, BINS)
            units = torch.ones_like(digit)
            if weighing is not None:
                y = scaled(rows.x, weighing.max[part], self._params.chunk(part).inverse_temperature)
                units = y.exp_().mul_(2.0**weighing.bits).round_().to(torch.int64)
                units *= rows.x >= weighing.floor[part]
            histogram = torch.zeros(len(digit), BINS + 1, dtype=torch.int64, device=digit.device)
            found.append(histogram.scatter_add_(-1, digit, units)[:, :BINS])
        return torch.cat(found)

    def draw(self, bounds: Bounds | None, seeds: RowSeeds | None, *, best: int | None) -> Draws:
        """Draw the candidates for the token of each row."""
        maxima, stats = [], []
        buffers = Buffers(self._logits.device)
        for part, rows in self._rows():
            first = None if self._params.greedy is None else self._argmax(rows)
            maxima.append((rows.max, _has_nan(rows), first))
            own = None if bounds is None else Bounds(*(column[part] for column in bounds))
            stats.append(self._stats(rows, self._params.chunk(part), own, buffers, best is not None))
        whole = joined(stats)
        draw = ShardDraw(
            self._logits, whole, self._params, self._layout, self._dtype, filtered=bounds is not None
        )
        drawn = draw.candidates(Noise(*seeds()) if seeds else None, values=best is not None)
        x_max, has_nan, ids = ([*column] for column in zip(*maxima, strict=True))
        if self._params.greedy is not None:
            first_ids = torch.where(self._params.greedy, torch.cat(ids), drawn.ids[:, :1])
            drawn = drawn._replace(ids=torch.cat((first_ids, drawn.ids[:, 1:]), -1))
        if best is not None:
            kept_mass, (best_x, best_ids) = whole.tile_weights.sum(-1, keepdim=True), self._best(best)
            drawn = drawn._replace(kept=kept_mass, mass=whole.mass, raw=whole.raw_mass)
            drawn = drawn._replace(best_x=best_x, best_ids=best_ids)
        return drawn._replace(max=torch.cat(x_max), has_nan=torch.cat(has_nan))

    def count(self, least: Tensor) -> Tensor:
        """Count the values that are at least ``least``."""
        if not self._layout.ids.size:
            return torch.zeros(len(least), dtype=torch.int64, device=least.device)
        return torch.cat([(rows.x >= least[part]).sum(-1) for part, rows in self._rows()])

    def _best(self, count: int) -> tuple[Tensor, Tensor]:
        """Find the largest values and their ids."""
        ids_here, found = self._layout.ids, []
        missing = count - min(count, ids_here.size)
        for _, rows in self._rows():
            columns = best_token_ids(rows.x, count - missing)
            ids = pad(columns + ids_here.start, (0, missing), value=self._layout.vocab_size).to(torch.int32)
            found.append((pad(rows.x.gather(-1, columns), (0, missing), value=-INF), ids))
        x, ids = (torch.cat(column) for column in zip(*found, strict=True))
        return x, ids

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


def _by_first_digit(x: Tensor, weight: Tensor) -> Tensor:
    """Add up weights [rows, n] by the first digit of their values' keys."""
    return weight.new_zeros(len(x), BINS).scatter_add_(-1, keys(x) >> (32 - DIGIT_BITS), weight)


def _has_nan(rows: Rows) -> Tensor:
    return (
        torch.zeros_like(rows.max, dtype=torch.int32)
        if rows.has_nan is None
        else rows.has_nan.to(torch.int32)
    )

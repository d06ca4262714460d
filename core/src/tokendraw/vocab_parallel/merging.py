"""Merges the draws of all ranks into the token of a single device over all columns.

A complete tile has its score on a single rank. For a tile shared by several ranks, the weights of its parts are added,
its noise is added once, and the best key of any part is the tile's. A shift by ``(M_r - M) / T`` makes weights relative
to the row's maximum M from weights relative to a rank's maximum M_r.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import philox
from tokendraw.backends.description.capabilities import GumbelDtype
from tokendraw.vocab_parallel.local import Argmax, Bounds, Draws, Sums, Survey
from tokendraw.vocab_parallel.messages import Received
from tokendraw.vocab_parallel.parameters import Parameters, RowSeeds, Seeds
from tokendraw.vocab_parallel.radix import Histograms
from tokendraw.vocab_parallel.shard import Layout
from tokendraw.vocab_parallel.thresholds import ThresholdPlan, thresholds

_INF = float("inf")


class Merged(NamedTuple):
    """The draw from all columns: [B, 1] each."""

    token: Tensor
    """int64."""
    max: Tensor
    """float32."""
    valid: Tensor
    """bool."""
    x: Tensor | None
    """float32: value of the token, with logprobs."""
    sums: Sums | None
    """Over all columns, relative to ``max``, with logprobs."""


class Merging(Protocol):
    """Merges the messages of all ranks about the rows of a call, bit for bit the same on every rank.

    Implementations wait for nothing, and make the same sums of histograms on every rank, whatever the values.
    """

    def greedy(self, received: Received[Argmax]) -> tuple[Tensor, Tensor]:
        """Return the tokens [B] int64 of greedy rows, and the validity of each row, [B] bool."""

    def thresholds(
        self, received: Received[Survey], plan: ThresholdPlan, histograms: Histograms
    ) -> tuple[Bounds, Tensor | None]:
        """Return the thresholds of all filters, and the fresh seeds of rank 0, [B, 1] int64, if ranks sent any."""

    def token(
        self, received: Received[Draws], bounds: Bounds | None, seeds: RowSeeds
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens [B] int64, and the validity of each row, [B] bool."""


class TorchMerging:
    """The :class:`Merging` of plain torch."""

    def __init__(self, params: Parameters, layout: Layout, dtype: GumbelDtype) -> None:
        self._params = params
        self._layout = layout
        self._dtype: GumbelDtype = dtype

    def greedy(self, received: Received[Argmax]) -> tuple[Tensor, Tensor]:
        """Take the lowest id of the largest value."""
        ranks = received.tensors()
        token, top = _greedy_token(ranks.max, ranks.ids)
        valid = (ranks.has_nan.amax(0) == 0) & (top > -_INF)
        return token.where(top > -_INF, 0).squeeze(-1), valid.squeeze(-1)

    def thresholds(
        self, received: Received[Survey], plan: ThresholdPlan, histograms: Histograms
    ) -> tuple[Bounds, Tensor | None]:
        """Find them as :func:`tokendraw.vocab_parallel.thresholds.thresholds` does."""
        survey = received.tensors()
        fresh = None if survey.fresh is None else survey.fresh[0]
        return thresholds(survey, plan, self._params, histograms), fresh

    def token(
        self, received: Received[Draws], bounds: Bounds | None, seeds: RowSeeds
    ) -> tuple[Tensor, Tensor]:
        """Merge the candidates."""
        draw = self.merge(received, bounds, seeds)
        return draw.token.squeeze(-1), draw.valid.squeeze(-1)

    def merge(self, received: Received[Draws], bounds: Bounds | None, seeds: RowSeeds | None) -> Merged:
        """Merge the draws and the values for logprobs; without seeds every row is greedy."""
        draws, params, layout = received.tensors(), self._params, self._layout
        token, top = _greedy_token(draws.max, draws.ids[..., :1])
        valid = (draws.has_nan.amax(0) == 0) & (top > -_INF)
        shift = None if bounds else _shift(draws.max, top, params.inverse_temperature)
        x = None if draws.x is None else top
        if seeds is not None:
            drawn, drawn_x = _drawn(draws, shift, layout, seeds(), self._dtype)
            if params.greedy is not None:
                drawn = torch.where(params.greedy, token, drawn)
                drawn_x = None if drawn_x is None else torch.where(params.greedy, top, drawn_x)
            token, x = drawn, drawn_x
        sums = None
        if draws.kept is not None and draws.mass is not None and draws.raw is not None:
            ones = torch.ones_like(params.inverse_temperature)
            raw_shift = None if bounds else _shift(draws.max, top, ones)
            sums = Sums(_sum(draws.kept, shift), _sum(draws.mass, shift), _sum(draws.raw, raw_shift))
        token = torch.where(top > -_INF, token, 0).clamp(0, layout.vocab_size - 1)
        return Merged(token, top, valid, x, sums)


def _greedy_token(max_of: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest id of the largest value, [B, 1] int64, and the value, of each rank's [R, B, 1]."""
    top = max_of.amax(0)
    return _lowest(max_of == top, ids), top


def _drawn(
    draws: Draws, shift: Tensor | None, layout: Layout, seeds: Seeds, dtype: GumbelDtype
) -> tuple[Tensor, Tensor | None]:
    """Return the tokens drawn, [B, 1] int64, and their values."""

    def by_row(column: Tensor) -> Tensor:  # [R, B, n] to [B, R n], in rank order
        return column.transpose(0, 1).flatten(1)

    def shifted(column: Tensor) -> Tensor:
        return by_row(column if shift is None else column + shift)

    scores, ids = shifted(draws.score), by_row(draws.ids[..., :1])
    x = None if draws.x is None else by_row(draws.x[..., :1])
    if len(layout.shared_tiles):
        log_sums = _of_tiles(shifted(draws.log_sum), layout, -_INF)
        keys = _of_tiles(shifted(draws.key), layout, -_INF)
        noise = philox.gumbel(seeds.seed, seeds.position, layout.shared_tiles, philox.TILE, dtype)
        scores = torch.cat((scores, log_sums.logsumexp(-1) + noise), -1)
        best = keys.argmax(-1, keepdim=True)  # of equal ones the first, which is the lowest
        ids = torch.cat(
            (ids, _of_tiles(by_row(draws.ids[..., 1:]), layout, 0).gather(-1, best).squeeze(-1)), -1
        )
        if x is not None and draws.x is not None:
            part_x = _of_tiles(by_row(draws.x[..., 1:]), layout, -_INF)
            x = torch.cat((x, part_x.gather(-1, best).squeeze(-1)), -1)
    largest = scores.amax(-1, keepdim=True)
    token = _lowest((scores == largest).T.unsqueeze(-1), ids.T.unsqueeze(-1))
    if x is not None:
        x = torch.where(ids == token, x, -_INF).amax(-1, keepdim=True)
    return token, x


def _of_tiles(parts: Tensor, layout: Layout, none: float) -> Tensor:
    """Sort the values of heads and tails [B, 2 R] by their tiles: [B, S, m]."""
    return pad(parts, (0, 1), value=none)[:, layout.parts]


def _lowest(chosen: Tensor, ids: Tensor) -> Tensor:
    """Return the lowest of the chosen ids over the first dimension, [B, 1] int64."""
    return torch.where(chosen, ids.to(torch.int64), torch.iinfo(torch.int64).max).amin(0)


def _shift(max_of: Tensor, top: Tensor, inverse_temperature: Tensor) -> Tensor:
    """Return the shift of each rank's ``y`` to the row's maximum: [R, B, 1]."""
    below = (max_of.to(inverse_temperature.dtype) - top) * inverse_temperature
    return below.nan_to_num_(nan=0.0, neginf=-_INF)  # infinity minus itself


def _sum(weights: Tensor, shift: Tensor | None) -> Tensor:
    return (weights if shift is None else weights * shift.exp()).sum(0)

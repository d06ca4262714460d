"""The columns of a rank in PyTorch's operators, on any device: what a rank says of them, and the draw from them.

Tiles are those of the whole vocabulary. Those that lie on this rank alone are whole; of the tiles at both ends other
ranks may hold the rest, and of these it finds the weight of its own part and the best token in it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import Need, SamplingMetadata, philox
from tokendraw.plugin import best_token_ids
from tokendraw.row_parameters import MetadataParameters, widest_float
from tokendraw_ranks.messages import Message, Wait
from tokendraw_ranks.moments import row_sums, sum_groups
from tokendraw_ranks.shard import TILE, Layout
from tokendraw_ranks.thresholds import BINS, Bounds, Plan, Survey, keys, listed_bounds

_INF = float("inf")
_Fields = dict[str, tuple[tuple[int, ...], torch.dtype]]
_CHUNK_LOGITS = {"cpu": 1 << 19, "cuda": 1 << 24}
"""Logits of the rows looked at together: temporary tensors are several times as large."""
GREEDY = 1e300
"""Stands for 1 / 0: times a distance of float32 values it leaves nothing but the largest."""


class Rows(NamedTuple):
    """Some rows of a rank: x [rows, n] float32, -inf for NaN; its maxima [rows, 1]; 1 / T in the widest float."""

    part: slice
    x: Tensor
    max: Tensor
    has_nan: Tensor
    inverse: Tensor


class Columns:
    """The columns [B, n] of a rank, B and n > 0, with the parameters of the rows."""

    has_digits = True
    """Whether a survey can have the masses of each first digit."""

    def __init__(self, logits: Tensor, metadata: SamplingMetadata, layout: Layout, need: Need) -> None:
        # Without columns, one of -inf stands in: it is never drawn.
        self.logits = logits if logits.shape[1] else logits.new_full((len(logits), 1), -_INF)
        self.metadata, self.layout, self.need = metadata, layout, need
        self.params = MetadataParameters(metadata, len(logits), logits.device)
        self.real = torch.float64 if need.gumbel_dtype == "fp64" else torch.float32
        self.wide = widest_float(logits.device)

    def survey_message(self, plan: Plan, fresh: Tensor | None) -> Message:
        """Allocate the fields of a :class:`.thresholds.Survey`."""
        rows, groups = len(self.logits), sum_groups(plan.moments)
        fields: _Fields = {"x": ((rows, plan.values), torch.float32), "ties": ((rows, 1), torch.int32)}
        if plan.masses:
            fields["mass"] = (rows, plan.masses), self.wide
        if groups:
            fields["sums"] = (rows, 6 if groups == 3 else 3), self.wide
        if fresh is not None:
            fields["fresh"] = (rows, 1), torch.int64
        return Message(self.logits.device, fields)

    def draw_message(self, num_best: int | None) -> Message:
        """Allocate the fields of a draw: of 40 bytes a row with noise in float32, and those for logprobs."""
        rows = len(self.logits)
        fields: _Fields = {"real": ((7, rows), self.real), "ids": ((3, rows), torch.int32)}
        if num_best is not None:
            fields |= {"x": ((3, rows), torch.float32), "sums": ((3, rows), self.wide)}
            fields |= {
                "best_x": ((rows, num_best), torch.float32),
                "best_ids": ((rows, num_best), torch.int32),
            }
        return Message(self.logits.device, fields)

    def survey(self, plan: Plan, fresh: Tensor | None) -> Message:
        """Find the largest values, how many more tie with the last, masses, and sums for moments."""
        message, groups = self.survey_message(plan, fresh), sum_groups(plan.moments)
        fields = message.views()
        if fresh is not None:
            fields["fresh"].copy_(fresh.unsqueeze(-1))
        for rows in self._chunks():
            x, part = rows.x, rows.part
            values = x.topk(min(plan.values, x.shape[-1])).values
            last = values[:, -1:]
            fields["x"][part] = pad(values, (0, plan.values - values.shape[-1]), value=-_INF)
            fields["ties"][part] = (x == last).sum(-1, keepdim=True) - (values == last).sum(-1, keepdim=True)
            if plan.masses or groups:
                weight = _relative(x, rows.max, rows.inverse).exp_()
            if plan.masses == 1:
                fields["mass"][part] = weight.sum(-1, keepdim=True)
            elif plan.masses:
                by_digit = weight.new_zeros(len(x), BINS)
                fields["mass"][part] = by_digit.scatter_add_(-1, keys(x) >> 24, weight)
            if groups:
                fields["sums"][part] = row_sums(x, rows.max, weight, groups)
        return message

    def listed(self, survey: Survey, plan: Plan) -> tuple[Bounds, Tensor | None]:
        """Find what the listed values of all ranks say of each row, and the seeds of rank 0."""
        fresh = None if survey.fresh is None else survey.fresh[0].flatten()
        return listed_bounds(survey, plan, self.params), fresh

    def histogram(self, prefix: Tensor | None, shift: int, weighing: Bounds | None, bits: int) -> Tensor:
        """Add up the weights of values by 8 bits of their keys: [B, 256] int64.

        :param prefix: [B, 1] int64: the bits above these, which a value needs to be counted; None: any.
        :param shift: number of bits below these.
        :param weighing: the origin of ``exp(y)`` and the least value that counts; None: every value weighs 1.
        :param bits: a weight of 1 is 2 to so many units. Weights are rounded to the nearest unit.
        """
        parts = []
        for rows in self._chunks():
            digit = keys(rows.x) >> shift
            if prefix is not None:
                digit -= prefix[rows.part] << 8
            digit = torch.where((digit >= 0) & (digit < BINS), digit, BINS)
            units = torch.ones_like(digit)
            if weighing is not None:
                y = _relative(rows.x, weighing.max[rows.part], rows.inverse)
                units = y.exp_().mul_(2.0**bits).round_().to(torch.int64)
                units *= rows.x >= weighing.floor[rows.part]
            histogram = torch.zeros(len(digit), BINS + 1, dtype=torch.int64, device=digit.device)
            parts.append(histogram.scatter_add_(-1, digit, units)[:, :BINS])
        return torch.cat(parts)

    def draw(
        self, threshold: Tensor | None, fresh: Tensor | None, wait: Wait | None, message: Message
    ) -> Tensor:
        """Draw the candidates for the token of each row into a message.

        ``real`` [7, B] has this rank's largest value, to which all is relative; the scores of the head, the best whole
        tile and the tail, log W + G(TILE), of which W is this rank's part; and their keys, the largest y + G(TOKEN). In
        the place of the second key, which is compared with no other, stands 2 if the row has NaN, else 1 if it has any
        value, else 0. ``ids`` [3, B] are those of the best tokens, 0 where there is none. In greedy rows the second
        score is 0, and the second id the argmax.

        :param threshold: [B, 1] float32; None: no row has a filter.
        :param fresh: [B] int64: seeds of rows without one, which ``wait`` has to be called for.
        :returns: 1 / T of each row, [B] in the widest float, :data:`GREEDY` in greedy rows.
        """
        if wait is not None:
            wait()
        fields, device = message.views(), self.logits.device
        greedy, drawn = self.params.greedy, not self.metadata.facts.all_greedy
        inverse = self.params.inverse_temperature.expand(len(self.logits), 1)
        seeds = None
        if drawn:
            columns = philox.seeds_and_positions(self.metadata, len(self.logits), device, fresh)
            seeds = tuple(column.unsqueeze(-1) for column in columns)
        for rows in self._chunks():
            self._draw_rows(rows, threshold, seeds, fields)
        return (inverse if greedy is None else torch.where(greedy, GREEDY, inverse)).squeeze(-1).contiguous()

    def best(self, count: int) -> tuple[Tensor, Tensor]:
        """Find the largest values, [B, count], and their ids, the lowest first on a tie; -inf and V behind the last."""
        size, found = self.layout.size, []
        missing = count - min(count, size)
        for rows in self._chunks():
            columns = best_token_ids(rows.x, count - missing)
            ids = (columns + self.layout.start).to(torch.int32)
            x = pad(rows.x.gather(-1, columns), (0, missing), value=-_INF)
            found.append((x, pad(ids, (0, missing), value=self.layout.vocab_size)))
        x, ids = (torch.cat(column) for column in zip(*found, strict=True))
        return x, ids

    def count(self, least: Tensor) -> Tensor:
        """Count the values from ``least`` [B, 1] on: [B] int64. NaN counts as -inf, and a rank may hold no value."""
        counted = (self.logits >= least).sum(-1, keepdim=True)
        size = self.layout.size
        return (
            counted.where(least > -_INF, size).squeeze(-1) if size else torch.zeros_like(counted).squeeze(-1)
        )

    def _chunks(self) -> list[Rows]:
        rows, columns = self.logits.shape
        step = max(1, _CHUNK_LOGITS.get(self.logits.device.type, 1 << 22) // columns)
        return [self._rows(slice(start, start + step)) for start in range(0, rows, step)]

    def _rows(self, part: slice) -> Rows:
        logits = self.logits[part].to(torch.float32)
        has_nan = logits.isnan()
        x = torch.where(has_nan, -_INF, logits)
        inverse = self.params.inverse_temperature.expand(len(self.logits), 1)[part]
        return Rows(part, x, x.amax(-1, keepdim=True), has_nan.any(-1), inverse)

    def _draw_rows(
        self,
        rows: Rows,
        threshold: Tensor | None,
        seeds: tuple[Tensor, ...] | None,
        fields: dict[str, Tensor],
    ) -> None:
        part, x, layout = rows.part, rows.x, self.layout
        weight = _relative(x, rows.max, rows.inverse).exp_()
        if "sums" in fields:
            raw = _relative(x, rows.max, torch.ones_like(rows.inverse)).exp_()
            fields["sums"][1, part] = weight.sum(-1)
            fields["sums"][2, part] = raw.sum(-1)
        least = None if threshold is None else threshold[part]
        if least is not None:
            weight = weight * (x >= least)
        width = layout.tiles * TILE
        tile_weight = pad(weight, (layout.lead, width - layout.lead - x.shape[-1])).view(
            -1, layout.tiles, TILE
        )
        score = tile_weight.sum(-1).log_()
        if "sums" in fields:
            fields["sums"][0, part] = weight.sum(-1)
        tile = torch.arange(layout.tiles, device=x.device)
        own = None if seeds is None else tuple(column[part] for column in seeds)
        if own is not None:
            score = score + philox.gumbel(
                own[0], own[1], tile + layout.first_tile, philox.TILE, self.need.gumbel_dtype
            )
        greedy = None if self.params.greedy is None else self.params.greedy[part]
        is_whole = (tile >= layout.whole_first) & (tile < layout.whole_end)
        best = torch.where(is_whole, score, -_INF).argmax(-1, keepdim=True)  # the first of equal ones
        sides = (
            (torch.zeros_like(best), layout.whole_first > 0),
            (best, layout.whole_end > layout.whole_first),
            (torch.full_like(best, layout.tiles - 1), layout.whole_end < layout.tiles),
        )
        has_tokens = rows.max.squeeze(-1) > -_INF
        real, ids = fields["real"][:, part], fields["ids"][:, part]
        real[0] = rows.max.squeeze(-1)
        for side, (local, is_present) in enumerate(sides):
            real[1 + side], real[4 + side], ids[side] = -_INF, -_INF, 0
            if is_present and own is not None:
                key, column = self._best_token(rows, local, least, own)
                real[1 + side] = score.gather(-1, local).squeeze(-1)
                real[4 + side] = key
                ids[side] = torch.where(has_tokens, column + layout.start, 0)
                if "x" in fields:
                    fields["x"][side, part] = x.gather(-1, column.unsqueeze(-1)).squeeze(-1)
            elif "x" in fields:
                fields["x"][side, part] = -_INF
        real[5] = torch.where(rows.has_nan, 2.0, has_tokens.to(self.real))
        if greedy is not None:
            is_greedy, argmax = greedy.squeeze(-1), x.argmax(-1)
            real[1:4] = torch.where(
                is_greedy, torch.tensor([[-_INF], [0.0], [-_INF]], device=x.device), real[1:4]
            )
            ids[1] = torch.where(is_greedy, torch.where(has_tokens, argmax + layout.start, 0), ids[1])
            if "x" in fields:
                fields["x"][1, part] = torch.where(is_greedy, rows.max.squeeze(-1), fields["x"][1, part])

    def _best_token(
        self, rows: Rows, local: Tensor, least: Tensor | None, seeds: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """Return the largest ``y + G`` of the kept columns of a tile, [rows], and the column, the first on a tie."""
        size = rows.x.shape[-1]
        columns = local * TILE - self.layout.lead + torch.arange(TILE, device=local.device)
        inside = (columns >= 0) & (columns < size)
        columns = columns.clamp(0, size - 1)
        x = rows.x.gather(-1, columns)
        if least is not None:
            inside = inside & (x >= least)
        ids = columns + self.layout.start
        key = _relative(x, rows.max, rows.inverse)
        key = key + philox.gumbel(seeds[0], seeds[1], ids, philox.TOKEN, self.need.gumbel_dtype)
        key, place = torch.where(inside, key, -_INF).max(-1, keepdim=True)
        return key.squeeze(-1), columns.gather(-1, place).squeeze(-1)


def _relative(x: Tensor, x_max: Tensor, inverse: Tensor) -> Tensor:
    """Return ``(x - max) / T`` in the widest float: 0 at an infinite maximum, and -inf beside it."""
    return ((x.to(inverse.dtype) - x_max) * inverse).nan_to_num_(nan=0.0, neginf=-_INF)

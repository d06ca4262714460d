"""The columns of a rank where several ranks hold the vocabulary: :class:`tokendraw.vocab_parallel.LocalLogits`.

A call waits for nothing, and the kernels that it launches follow from what the host knows of the batch, so that a CUDA
graph can capture it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw.vocab_parallel import (
    BINS,
    DIGIT_BITS,
    KEY_BITS,
    Argmax,
    Bounds,
    Digits,
    Draws,
    Layout,
    MomentSum,
    RowSeeds,
    Survey,
    Weighing,
)
from tokendraw_triton_gumbel.host.arguments import ArgumentConverter
from tokendraw_triton_gumbel.host.launch import Step, current_stream
from tokendraw_triton_gumbel.host.params_layout import ParamTensors, presence_flags
from tokendraw_triton_gumbel.kernels.shards.argument_groups import Digit, DigitFilter, RowBounds
from tokendraw_triton_gumbel.ranks.best_tokens import best_tokens
from tokendraw_triton_gumbel.ranks.column_launches import ColumnLaunches
from tokendraw_triton_gumbel.ranks.message_layout import MessageLayout, sum_bits, survey_layout
from tokendraw_triton_gumbel.ranks.search_launches import MAX_VALUES, SearchLaunches
from tokendraw_triton_gumbel.ranks.shard_variant import ShardGeometry

_INF = float("inf")


class ShardColumns:
    """The columns [B, n] of a rank: see :class:`tokendraw.vocab_parallel.LocalLogits`."""

    def __init__(
        self,
        launches: ColumnLaunches,
        geometry: ShardGeometry,
        logits: Tensor,
        layout: Layout,
        params: ParamTensors,
        converter: ArgumentConverter,
    ) -> None:
        """Allocate scratch.

        :param logits: [B, n], n > 0: a rank without columns has one of -inf.
        :param params: contiguous.
        """
        self._launches, self._logits, self._layout, self._convert = (
            launches,
            logits,
            layout,
            converter.tensors,
        )
        self._stream = current_stream(logits.get_device())
        # Tensors whose addresses kernels are given have to live until they are launched.
        self._params = params
        self._memory = torch.empty(geometry.scratch_offsets[-1], dtype=torch.uint8, device=logits.device)
        self._arguments = launches.arguments(
            geometry,
            converter.tensor(logits),
            logits.stride(0),
            converter.params(params, None),
            converter.scratch(
                launches.scratch, self._memory, geometry.scratch_counts, geometry.scratch_offsets
            ),
        )
        self._has_statistics = False

    @property
    def logits(self) -> Tensor:
        """Return the logits."""
        return self._logits

    def argmax(self) -> Argmax:
        """Find the largest value of each row."""
        return Argmax(**self._draw_fields(None, None))

    def largest(
        self, count: int, masses: int, fresh: Tensor | None, sums: tuple[MomentSum, ...] = ()
    ) -> Survey:
        """Find the largest values, how many more tie with the last, the mass of each row, and sums for moments."""
        assert count <= MAX_VALUES
        self._compute_statistics()
        searches, unit_bits = self._searches(), self._unit_bits
        if masses == BINS:
            digit = Digit(KEY_BITS - DIGIT_BITS, unit_bits)
            self._launch(searches.add(self._arguments, digit, DigitFilter(), None))
        message = survey_layout(count, masses, len(sums), has_fresh_seeds=fresh is not None)
        words = self._new_message(message)
        seeds, out = self._convert((fresh, words))
        bits = sum_bits(sums)
        self._launch(searches.survey(self._arguments, message, count, unit_bits, bits, seeds, out))
        fields = message.views(words)
        optional = (fields.get(name) for name in ("mass", "fresh", "sums"))
        return Survey(fields["x"], fields["ties"], *optional)

    def histogram(self, digits: Digits, weighing: Weighing | None) -> Tensor:
        """Add up the weights of values by a digit of their keys."""
        self._compute_statistics()
        device = self._logits.device
        histogram = torch.zeros((len(self._logits), BINS), dtype=torch.int64, device=device)
        columns = (digits.prefix, *((None, None) if weighing is None else weighing[:2]))
        alive = [None if column is None else column.contiguous() for column in columns]
        *counted, out = self._convert((*alive, histogram))
        digit = Digit(digits.shift, 0 if weighing is None else weighing.bits)
        self._launch(self._searches().add(self._arguments, digit, DigitFilter(*counted), out))
        return histogram

    def draw(self, bounds: Bounds | None, seeds: RowSeeds | None, *, best: int | None) -> Draws:
        """Draw the candidates for the token of each row."""
        fields = self._draw_fields(bounds, seeds)
        if best is not None:
            fields["best_x"], fields["best_ids"] = best_tokens(self._logits, best, self._layout)
        return Draws(**fields)

    def count(self, least: Tensor) -> Tensor:
        """Count the values that are at least ``least``: NaN counts as -inf, and every value is at least -inf."""
        counted = (self._logits >= least).sum(-1, keepdim=True)
        return counted.where(least > -_INF, self._layout.ids.size).squeeze(-1)

    def _draw_fields(self, bounds: Bounds | None, seeds: RowSeeds | None) -> dict[str, Tensor]:
        launches = self._launches
        self._compute_statistics()
        words = self._new_message(launches.message)
        row_bounds = self._weigh_kept(bounds)
        fresh = None if seeds is None else seeds.fresh()  # they may be on their way while logits are read
        fresh = None if fresh is None else fresh.contiguous()
        flags = presence_flags(launches.variant.param_dtypes, has_fresh_seeds=fresh is not None)
        fresh_seeds, out = self._convert((fresh, words))
        self._launch(launches.draw(self._arguments, fresh_seeds, flags, row_bounds, out))
        return launches.message.views(words)

    def _weigh_kept(self, bounds: Bounds | None) -> RowBounds:
        """Weigh the kept tokens of each tile, where any row may drop tokens."""
        if bounds is None:
            return RowBounds()
        self._bounds = tuple(column.contiguous() for column in bounds)  # alive until the draw is launched
        row_bounds = self._launches.bounds(self._arguments, *self._convert(self._bounds))
        self._launch(self._launches.weigh(self._arguments, row_bounds))
        return row_bounds

    def _compute_statistics(self) -> None:
        """Read all logits, once a call."""
        if not self._has_statistics:
            self._launch(self._launches.statistics(self._arguments))
            self._has_statistics = True

    def _searches(self) -> SearchLaunches:
        searches = self._launches.searches
        assert searches is not None  # a batch without filters searches for nothing
        return searches

    @property
    def _unit_bits(self) -> int:
        """Return the bits of a weight of 1 in units, too few for a sum to overflow."""
        return 62 - self._layout.vocab_size.bit_length()

    def _new_message(self, message: MessageLayout) -> Tensor:
        shape = len(self._logits), message.width
        return torch.empty(shape, dtype=torch.int32, device=self._logits.device)

    def _launch(self, step: Step) -> None:
        launch, grid, arguments = step
        launch(grid, arguments, self._stream)

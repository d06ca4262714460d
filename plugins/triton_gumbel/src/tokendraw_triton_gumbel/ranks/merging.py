"""Merges the messages of the ranks of a split vocabulary by kernels, without a wait."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokendraw import Need
from tokendraw.row_parameters import MetadataParameters
from tokendraw.vocab_parallel import (
    DIGIT_BITS,
    KEY_BITS,
    Argmax,
    Bounds,
    Digits,
    Draws,
    Histograms,
    Layout,
    Received,
    RowSeeds,
    Survey,
    ThresholdPlan,
    TorchMerging,
    Weighing,
)
from tokendraw_triton_gumbel.dispatch.row_floors import RowFloors
from tokendraw_triton_gumbel.host.arguments import ArgumentConverter
from tokendraw_triton_gumbel.host.geometry import power_of_two
from tokendraw_triton_gumbel.host.launch import current_stream, group
from tokendraw_triton_gumbel.host.params_layout import ParamTensors, presence_flags
from tokendraw_triton_gumbel.kernels.shard_messages.argument_groups import (
    DigitStep,
    DrawFields,
    MergedDraws,
    RowSearch,
    SharedSizes,
    SharedTiles,
    Sizes,
    SurveyFields,
)
from tokendraw_triton_gumbel.kernels.shared import row_params
from tokendraw_triton_gumbel.kernels.shared.argument_groups import MomentResults
from tokendraw_triton_gumbel.kernels.shared.configs import MergeConfig, MomentConfig, ThresholdConfig
from tokendraw_triton_gumbel.kernels.tile_pass.combine_floors import ROWS_PER_PROGRAM
from tokendraw_triton_gumbel.ranks.merge_launches import MAX_VALUES, MergeLaunches, ranks_at_once
from tokendraw_triton_gumbel.ranks.message_layout import sum_bits

_MIN_VALUES = 16
_HAS_FLOOR: int = row_params.HAS_FLOOR.value
_NO_TILES = SharedTiles(None, None)


class KernelMerging:
    """The :class:`tokendraw.vocab_parallel.Merging` of a call."""

    def __init__(
        self,
        launches: MergeLaunches,
        converter: ArgumentConverter,
        layout: Layout,
        kernel_params: ParamTensors,
        params: MetadataParameters,
        need: Need,
    ) -> None:
        """Collect the parameters of a call.

        :param kernel_params: contiguous.
        :param params: the same for plain torch, which serves rows with more values than a kernel compares.
        """
        self._launches, self._converter, self._convert = launches, converter, converter.tensors
        self._layout, self._kernel_params = layout, kernel_params
        self._dtypes = tuple([None if tensor is None else tensor.dtype for tensor in kernel_params])
        self._params = params
        self._torch = TorchMerging(params, layout, need.gumbel_dtype)
        self._fp64 = need.gumbel_dtype == "fp64"

    def greedy(self, received: Received[Argmax]) -> tuple[Tensor, Tensor]:
        """Take the lowest id of the largest value."""
        x_max, has_nan, ids = received.offsets
        fields = group(DrawFields, (x_max, has_nan, -1, ids, -1, -1, 0))
        return self._merge(received.words, fields, None, is_drawn=False)

    def token(
        self, received: Received[Draws], bounds: Bounds | None, seeds: RowSeeds
    ) -> tuple[Tensor, Tensor]:
        """Draw from the candidates of all ranks."""
        fields = group(DrawFields, (*received.offsets[: len(DrawFields._fields) - 1], int(bounds is None)))
        return self._merge(received.words, fields, seeds.fresh(), is_drawn=True)

    def thresholds(
        self, received: Received[Survey], plan: ThresholdPlan, histograms: Histograms
    ) -> tuple[Bounds, Tensor | None]:
        """Find the thresholds of all filters by a launch, and a further launch for each digit of a search."""
        words = received.words
        ranks, rows, _ = words.shape
        values = power_of_two(ranks * plan.values, at_least=_MIN_VALUES)
        if values > MAX_VALUES or not rows:
            return self._torch.thresholds(received, plan, histograms)
        bounds = words.new_empty((3, rows, 1), dtype=torch.float32)
        nucleus, kth = (words.new_empty((2, rows, 1), dtype=torch.int64) for _ in range(2))
        has_fresh_seeds = received.sent.fresh is not None
        fresh = words.new_empty((rows, 1), dtype=torch.int64) if has_fresh_seeds else None
        config = ThresholdConfig(
            N=values,
            RANKS_AT_ONCE=ranks_at_once(ranks, values),
            MASSES=plan.masses,
            HAS_KTH=plan.facts.any_top_k and not plan.any_large_k,
            # The nucleus of what a large k keeps is searched for behind that k, whatever the host may look at.
            HAS_NUCLEUS=plan.has_nucleus and not plan.any_large_k,
            MAY_MISS_NUCLEUS=plan.any_wide,
        )
        launch = self._launches.thresholds(config, self._dtypes, has_fresh_seeds=has_fresh_seeds)
        fields = group(SurveyFields, (*received.offsets, plan.values, plan.unit_bits))
        params, flags = self._row_params(None)
        floor = self._floors(words, fields, plan)
        if floor is not None:
            params, flags = params._replace(floor=self._converter.tensor(floor)), flags | _HAS_FLOOR
        words_in, fresh_out = self._convert((words, fresh))
        search, sizes = self._search(bounds, nucleus), self._sizes(words)
        launch((rows, 1, 1), (words_in, sizes, fields, params, flags, search, fresh_out), self._stream(words))
        if plan.any_large_k:
            self._search_by_digits(histograms, None, bounds, kth, is_begun=False)
        if plan.any_wide:
            weighing = Weighing(bounds[0], bounds[2], plan.unit_bits)
            is_begun = plan.masses == 1 << DIGIT_BITS
            self._search_by_digits(histograms, weighing, bounds, nucleus, is_begun=is_begun)
        return Bounds(bounds[0], bounds[1]), fresh

    def _floors(self, words: Tensor, fields: SurveyFields, plan: ThresholdPlan) -> Tensor | None:
        """Return the floor of each row, [rows] float32; None where no row has filters from moments.

        :raises FilterError: a filter raised, or returned another form.
        """
        values = self._params.filters
        if values is None:
            return None
        (ranks, rows, _), stream = words.shape, self._stream(words)
        moments = words.new_empty((len(plan.moments), rows), dtype=torch.float32)
        floors = RowFloors(self._params.filter_names, values, moments, plan.moments)
        if plan.moments:
            config = MomentConfig(power_of_two(ranks), sum_bits(plan.sums))
            launch = self._launches.moments(config, plan.moments, self._dtypes)
            params, flags = self._row_params(None)
            words_in, *results = self._convert((words, *floors.results))
            out = group(MomentResults, results)
            launch((rows, 1, 1), (words_in, self._sizes(words), fields, params, flags, out), stream)
        highest = words.new_empty(rows, dtype=torch.float32)
        highest_in, launch = self._converter.tensor(highest), self._launches.floors()
        for of_filter in floors.compute(self._convert):
            launch((-(-rows // ROWS_PER_PROGRAM.value), 1, 1), (of_filter, highest_in, rows), stream)
        return highest

    def _search_by_digits(
        self,
        histograms: Histograms,
        weighing: Weighing | None,
        bounds: Tensor,
        prefixes: Tensor,
        *,
        is_begun: bool,
    ) -> None:
        """Search for a threshold digit by digit.

        :param weighing: None: for the k-th value.
        :param bounds: [3, rows, 1] float32: largest values, thresholds and floors; the latter two are written.
        :param prefixes: [2, rows, 1] int64: prefixes and targets, known if the search ``is_begun``.
        """
        missing = KEY_BITS - DIGIT_BITS if is_begun else KEY_BITS
        launch, (params, flags) = self._launches.digit(self._dtypes), self._row_params(None)
        search, stream = self._search(bounds, prefixes), self._stream(bounds)
        grid, vocab_size = (bounds.shape[1], 1, 1), self._layout.vocab_size
        while missing > histograms.missing_at_last:
            missing -= DIGIT_BITS
            histogram = histograms(Digits(prefixes[0] if is_begun else None, missing), weighing)
            is_last = missing <= histograms.missing_at_last
            step = group(DigitStep, (int(weighing is not None), int(not is_begun), int(is_last), missing))
            histogram_in = self._converter.tensor(histogram)
            launch(grid, (histogram_in, step, params, vocab_size, flags, search), stream)
            is_begun = True

    def _merge(
        self, words: Tensor, fields: DrawFields, fresh: Tensor | None, *, is_drawn: bool
    ) -> tuple[Tensor, Tensor]:
        ranks, rows, _ = words.shape
        token_ids = words.new_empty(rows, dtype=torch.int64)
        valid = words.new_empty(rows, dtype=torch.bool)
        if not rows:
            return token_ids, valid
        parts = self._layout.parts
        num_shared, max_parts = parts.shape if is_drawn else (0, 0)
        config = MergeConfig(
            RANKS=power_of_two(ranks),
            SHARED_TILES=power_of_two(num_shared),
            PARTS=power_of_two(max_parts),
            MAY_SAMPLE=is_drawn,
            FP64=self._fp64,
        )
        tiles = _NO_TILES
        if num_shared:
            tiles = group(SharedTiles, self._convert((self._layout.shared_tiles, parts)))
        params, flags = self._row_params(fresh)
        arguments = (
            self._converter.tensor(words),
            self._sizes(words),
            fields,
            tiles,
            group(SharedSizes, (num_shared, max_parts)),
            params,
            flags,
            group(MergedDraws, self._convert((token_ids, valid))),
        )
        self._launches.merge(config, self._dtypes)((rows, 1, 1), arguments, self._stream(words))
        return token_ids, valid

    def _row_params(self, fresh: Tensor | None) -> tuple[Any, int]:
        """Return the arguments for the parameters, and the flags of present parameters."""
        flags = presence_flags(self._dtypes, has_fresh_seeds=fresh is not None)
        return self._converter.params(self._kernel_params, fresh), flags

    def _search(self, bounds: Tensor, prefixes: Tensor) -> RowSearch:
        return group(RowSearch, self._convert((*bounds, *prefixes)))

    def _sizes(self, words: Tensor) -> Sizes:
        return group(Sizes, (*words.shape, self._layout.vocab_size))

    def _stream(self, tensor: Tensor) -> int | None:
        return current_stream(tensor.get_device())

"""Merges what the ranks of a split vocabulary told each other by kernels: one launch each, and nothing waits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokendraw import Need
from tokendraw.vocab_parallel import (
    DIGIT_BITS,
    KEY_BITS,
    Argmax,
    Bounds,
    Digits,
    Draws,
    Histograms,
    Layout,
    MetadataParameters,
    Plan,
    Received,
    RowSeeds,
    Survey,
    TorchMerging,
    Weighing,
)
from tokendraw_triton_gumbel.arguments import Arguments
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
from tokendraw_triton_gumbel.kernels.shared.configs import MergeConfig, ThresholdConfig
from tokendraw_triton_gumbel.launches import parameters
from tokendraw_triton_gumbel.launches.launch import current_stream, group
from tokendraw_triton_gumbel.launches.parameters import MaybeTensors
from tokendraw_triton_gumbel.launches.shard_messages import (
    MOST_VALUES,
    MessageLaunches,
    power_of_two,
    ranks_at_once,
)

_LEAST_VALUES = 16
_NO_TILES = SharedTiles(None, None)


class KernelMerging:
    """One call's :class:`tokendraw.vocab_parallel.Merging`."""

    def __init__(
        self,
        launches: MessageLaunches,
        arguments: Arguments,
        layout: Layout,
        given: MaybeTensors,
        params: MetadataParameters,
        need: Need,
    ) -> None:
        """Prepare a call.

        :param given: what :func:`.launches.parameters.readable` returned.
        :param params: the same for plain torch, which serves rows with more values than a kernel compares.
        """
        self._launches = launches
        self._arguments = arguments
        self._layout = layout
        self._given = given
        self._types = tuple([None if tensor is None else tensor.dtype for tensor in given])
        self._torch = TorchMerging(params, layout, need.gumbel_dtype)
        self._fp64 = need.gumbel_dtype == "fp64"

    def greedy(self, heard: Received[Argmax]) -> tuple[Tensor, Tensor]:
        """Take the lowest id of the largest value."""
        x_max, has_nan, ids = heard.offsets
        fields = group(DrawFields, (x_max, has_nan, -1, ids, -1, -1, 0))
        return self._merged(heard.words, fields, None, is_drawn=False)

    def token(self, heard: Received[Draws], bounds: Bounds | None, seeds: RowSeeds) -> tuple[Tensor, Tensor]:
        """Draw from the candidates of all ranks."""
        fields = group(DrawFields, (*heard.offsets[: len(DrawFields._fields) - 1], int(bounds is None)))
        return self._merged(heard.words, fields, seeds.fresh(), is_drawn=True)

    def thresholds(
        self, heard: Received[Survey], plan: Plan, histograms: Histograms
    ) -> tuple[Bounds, Tensor | None]:
        """Find the thresholds of all filters by one launch, and one more for each digit of a search."""
        ranks, rows, _ = heard.words.shape
        count = max(_LEAST_VALUES, power_of_two(ranks * plan.values))
        if count > MOST_VALUES or not rows:
            return self._torch.thresholds(heard, plan, histograms)
        words = heard.words
        real, long = words.new_empty((3, rows, 1), dtype=torch.float32), (2, rows, 1)
        nucleus, kth = words.new_empty(long, dtype=torch.int64), words.new_empty(long, dtype=torch.int64)
        has_fresh = heard.sent.fresh is not None
        fresh = words.new_empty((rows, 1), dtype=torch.int64) if has_fresh else None
        begins = plan.masses == 1 << DIGIT_BITS
        config = ThresholdConfig(
            N=count,
            RANKS_AT_ONCE=ranks_at_once(ranks, count),
            MASSES=plan.masses,
            HAS_KTH=plan.filters.top_k and not plan.any_large_k,
            # Of what a large k keeps it is searched for behind that k, whatever the host may look at.
            HAS_NUCLEUS=plan.has_nucleus and not plan.any_large_k,
            MAY_MISS_NUCLEUS=plan.any_wide,
        )
        launch = self._launches.thresholds(config, self._types, fresh=has_fresh)
        fields = group(SurveyFields, (*heard.offsets, plan.values, plan.unit_bits))
        params, flags = self._row_params(None)
        (its_words, its_fresh), search = self._arguments.tensors((words, fresh)), self._search(real, nucleus)
        sizes = self._sizes(words)
        launch(
            (rows, 1, 1), (its_words, sizes, fields, params, flags, search, its_fresh), self._stream(words)
        )
        if plan.any_large_k:
            self._follow(histograms, None, real, kth, begun=False)
        if plan.any_wide:
            weighing = Weighing(real[0], real[2], plan.unit_bits)
            self._follow(histograms, weighing, real, nucleus, begun=begins)
        return Bounds(real[0], real[1]), fresh

    def _follow(
        self, histograms: Histograms, weighing: Weighing | None, real: Tensor, found: Tensor, *, begun: bool
    ) -> None:
        """Search for a threshold digit by digit.

        :param weighing: None: for the k-th value.
        :param real: [3, rows, 1] float32: largest values, thresholds and floors; the latter two are written.
        :param found: [2, rows, 1] int64: prefixes and targets, known if the search is ``begun``.
        """
        missing = KEY_BITS - DIGIT_BITS if begun else KEY_BITS
        launch, (params, flags) = self._launches.digit(self._types), self._row_params(None)
        search, stream = self._search(real, found), self._stream(real)
        while missing > histograms.missing_at_last:
            missing -= DIGIT_BITS
            histogram = histograms(Digits(found[0] if begun else None, missing), weighing)
            is_last = missing <= histograms.missing_at_last
            step = group(DigitStep, (int(weighing is not None), int(not begun), int(is_last), missing))
            its_histogram = self._arguments.one(histogram)
            vocab_size = self._layout.vocab_size
            launch((real.shape[1], 1, 1), (its_histogram, step, params, vocab_size, flags, search), stream)
            begun = True

    def _merged(
        self, words: Tensor, fields: DrawFields, fresh: Tensor | None, *, is_drawn: bool
    ) -> tuple[Tensor, Tensor]:
        ranks, rows, _ = words.shape
        token_ids = words.new_empty(rows, dtype=torch.int64)
        valid = words.new_empty(rows, dtype=torch.bool)
        if not rows:
            return token_ids, valid
        parts = self._layout.parts
        shared, most = parts.shape if is_drawn else (0, 0)
        config = MergeConfig(
            RANKS=power_of_two(ranks),
            SHARED_TILES=power_of_two(shared),
            PARTS=power_of_two(most),
            MAY_SAMPLE=is_drawn,
            FP64=self._fp64,
        )
        tensors = self._arguments.tensors
        tiles = group(SharedTiles, tensors((self._layout.shared_tiles, parts))) if shared else _NO_TILES
        params, flags = self._row_params(fresh)
        out = group(MergedDraws, tensors((token_ids, valid)))
        launch = self._launches.merge(config, self._types)
        sizes, shared_sizes = self._sizes(words), group(SharedSizes, (shared, most))
        its_words = self._arguments.one(words)
        arguments = (its_words, sizes, fields, tiles, shared_sizes, params, flags, out)
        launch((rows, 1, 1), arguments, self._stream(words))
        return token_ids, valid

    def _row_params(self, fresh: Tensor | None) -> tuple[Any, int]:
        """Return what stands for the parameters, and which of them there are."""
        flags = parameters.presence(self._types, fresh=fresh is not None)
        return self._arguments.params(self._given, fresh), flags

    def _search(self, real: Tensor, found: Tensor) -> RowSearch:
        return group(RowSearch, self._arguments.tensors((*real, *found)))

    def _sizes(self, words: Tensor) -> Sizes:
        return group(Sizes, (*words.shape, self._layout.vocab_size))

    def _stream(self, tensor: Tensor) -> int | None:
        return current_stream(tensor.get_device())

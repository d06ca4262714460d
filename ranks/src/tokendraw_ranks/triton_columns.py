"""The columns of a rank on a GPU, where tokendraw-triton-gumbel is installed: one pass over all, and a few launches.

A call waits for nothing, and its launches follow from what the host knows of the batch, so that a CUDA graph can
capture it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import Need, SamplingMetadata
from tokendraw.filters import required_moments
from tokendraw_ranks import kernels
from tokendraw_ranks.columns import Columns
from tokendraw_ranks.messages import Message, Wait
from tokendraw_ranks.moments import sum_groups
from tokendraw_ranks.shard import Layout
from tokendraw_ranks.thresholds import Bounds, Plan, Survey, floors_of
from tokendraw_triton_gumbel import columns as tg

_MIN_TILES = 64
"""Kernels are compiled for a power of two of tiles, from this upwards."""
_MAX_LISTED = 2048
"""Values of all ranks that a program sorts; more are left to torch."""
_WARPS = 4


class TritonColumns(Columns):
    """The columns [B, n] of a rank, B > 0."""

    has_digits = False

    def __init__(self, logits: Tensor, metadata: SamplingMetadata, layout: Layout, need: Need) -> None:
        super().__init__(tg.with_unit_stride(logits), metadata, layout, need)
        logits, facts = self.logits, metadata.facts
        self._count, self._has_index = len(logits), metadata.row_index is not None
        self._max_tiles = tg.power_of_two(layout.tiles, at_least=_MIN_TILES)
        self._params, self._flags = tg.row_params(metadata, None, logits.device)
        self._place = (
            tg.Logits(logits, logits.stride(0), layout.lead + logits.shape[1]),
            layout.lead,
            kernels.Part(layout.first_tile, layout.tiles, layout.whole_first, layout.whole_end),
            self._count,
        )
        self._statistics, self._sums = tg.tile_statistics(  # the one read of all logits
            logits,
            layout.lead,
            self._params,
            has_row_index=self._has_index,
            has_granules=facts.any_top_k or facts.any_top_p or facts.any_min_p or bool(facts.any_filters),
            has_raw_sums=facts.max_logprobs is not None,
            moments=required_moments(facts.filters or ()),
        )
        self._common = *self._place, self._params, self._flags, self._statistics
        self._tile_grid = (-(-layout.tiles // kernels.TILES_AT_ONCE), *tg.row_grid(self._count))

    def survey(self, plan: Plan, fresh: Tensor | None) -> Message:
        """Find the largest values, how many more tie with the last, masses, and sums for moments."""
        message = self.survey_message(plan, fresh)
        fields, tiles, device = message.views(), self._max_tiles, self.logits.device
        candidates = 128 if plan.values <= 64 else 1024
        # A maximum stands for so many granules: fewer are compared sooner; fewer than some multiple of K say little.
        number = tiles * tg.GRANULES_PER_TILE.value
        granules = next((n for n in (16, 4) if number // n >= 2 * max(64, plan.values)), 1)
        while number // granules > _MAX_LISTED:
            granules *= 4
        kernels.survey_columns[(self._count,)](
            *self._common,
            self._sums,
            plan.values,
            torch.empty_like(self._statistics.granules, dtype=torch.int32),
            torch.empty(self._count, candidates, dtype=torch.int64, device=device),
            candidates,
            kernels.SurveyOut(*map(fields.get, ("x", "ties", "mass", "sums", "fresh")), fresh),
            VECTOR=16 // self.logits.element_size(),
            TILES=tiles,
            GRANULES=granules,
            MAXIMA=number // granules,
            CANDIDATES=candidates,
            MOMENTS=sum_groups(plan.moments),
            num_warps=_WARPS,
        )
        return message

    def listed(self, survey: Survey, plan: Plan) -> tuple[Bounds, Tensor | None]:
        """Find what the listed values of all ranks say of each row in one launch, and the seeds of rank 0."""
        ranks = len(survey.x)
        listed = tg.power_of_two(ranks * plan.values, at_least=16)
        if listed > _MAX_LISTED:
            return super().listed(survey, plan)
        bounds = torch.empty(3, self._count, 1, dtype=torch.float32, device=self.logits.device)
        fresh = None if survey.fresh is None else survey.fresh.new_empty(self._count)
        params, flags = self._params, self._flags
        floor = floors_of(survey, plan, self.params)
        if floor is not None:
            params, flags = params._replace(floor=floor), flags | tg.HAS_FLOOR.value
        kernels.find_thresholds[(self._count,)](
            kernels.Received(survey.x, survey.ties, survey.mass, survey.x.stride(0), ranks, plan.values),
            params,
            flags,
            self.layout.vocab_size,
            kernels.Found(*bounds),
            survey.fresh,
            fresh,
            N=listed,
            RANKS=tg.power_of_two(ranks),
            HAS_KTH=plan.has_kth,
            HAS_NUCLEUS=plan.has_nucleus,
            MAY_MISS_NUCLEUS=plan.any_wide,
            num_warps=_WARPS,
        )
        return Bounds(*bounds), fresh

    def histogram(self, prefix: Tensor | None, shift: int, weighing: Bounds | None, bits: int) -> Tensor:
        """Add up the weights of values by 8 bits of their keys: [B, 256] int64."""
        histogram = torch.zeros(self._count, 256, dtype=torch.int64, device=self.logits.device)
        max_logit, floor = (None, None) if weighing is None else (weighing.max, weighing.floor)
        counted = [column if column is None else column.contiguous() for column in (prefix, max_logit, floor)]
        kernels.add_by_digit[self._tile_grid](
            *self._common, shift, bits, *counted, histogram, HAS_INDEX=self._has_index, num_warps=1
        )
        return histogram

    def draw(
        self, threshold: Tensor | None, fresh: Tensor | None, wait: Wait | None, message: Message
    ) -> Tensor:
        """Draw the candidates for the token of each row into a message; see :class:`.columns.Columns`."""
        kept = None
        if threshold is not None:
            threshold, kept = threshold.contiguous(), torch.empty_like(self._statistics.maxima)
            kernels.weigh_kept[self._tile_grid](
                *self._common, threshold, kept, HAS_INDEX=self._has_index, num_warps=_WARPS
            )
        if wait is not None:
            wait()  # seeds may be on their way while logits are read
        fields, device = message.views(), self.logits.device
        inverse = torch.empty(self._count, dtype=torch.float64, device=device)
        kernels.draw_columns[(self._count,)](
            *self._place,
            *tg.row_params(self.metadata, fresh, device),
            self._statistics,
            threshold,
            kept,
            kernels.DrawOut(fields["real"], fields["ids"], inverse, fields.get("x"), fields.get("sums")),
            TILES=self._max_tiles,
            FP64=self.real == torch.float64,
            MAY_SAMPLE=not self.metadata.facts.all_greedy,
            num_warps=_WARPS,
        )
        return inverse

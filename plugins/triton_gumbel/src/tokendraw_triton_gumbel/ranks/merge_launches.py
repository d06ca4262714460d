"""The launches over the messages of all ranks: draws become tokens, surveys and histograms become thresholds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tokendraw.plugin import MOMENTS, Moment
from tokendraw_triton_gumbel.host import params_layout
from tokendraw_triton_gumbel.host.bounded_cache import BoundedCache
from tokendraw_triton_gumbel.host.compilation import (
    ANY_INT,
    BOOL,
    FLOAT32,
    INT32,
    INT64,
    Argument,
    any_ints,
)
from tokendraw_triton_gumbel.host.geometry import power_of_two
from tokendraw_triton_gumbel.host.launch import Launch
from tokendraw_triton_gumbel.host.params_layout import ParamDtypes
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
from tokendraw_triton_gumbel.kernels.shard_messages.find_thresholds import find_thresholds
from tokendraw_triton_gumbel.kernels.shard_messages.merge_draws import merge_draws
from tokendraw_triton_gumbel.kernels.shard_messages.merge_moments import merge_moments
from tokendraw_triton_gumbel.kernels.shard_messages.next_digit import next_digit
from tokendraw_triton_gumbel.kernels.shared.argument_groups import MomentResults
from tokendraw_triton_gumbel.kernels.shared.configs import MergeConfig, MomentConfig, ThresholdConfig
from tokendraw_triton_gumbel.kernels.tile_pass.combine_floors import FilterFloors, combine_floors

MAX_VALUES = 4096
"""Upper limit of values of all ranks among which a kernel finds a threshold."""
_RANKS_AT_ONCE = 4
_MAX_VALUES_OF_RANKS_AT_ONCE = 1024
"""Upper limit of values where several ranks are read at once: registers hold no more."""
_VALUES_A_WARP = 128
_MAX_WARPS = 8
_FLOOR_WARPS = 4
_MAX_LAUNCHES = 256
"""Upper limit of cached launches."""
_SEARCH = RowSearch(FLOAT32, FLOAT32, FLOAT32, INT64, INT64)


def ranks_at_once(ranks: int, values: int) -> int:
    """Return how many ranks a kernel reads together, by the number of values of all ranks."""
    return 1 if values > _MAX_VALUES_OF_RANKS_AT_ONCE else min(power_of_two(ranks), _RANKS_AT_ONCE)


class MergeLaunches:
    """The launches over messages, compiled when first needed. It holds no tensor of any call."""

    def __init__(self) -> None:
        self._cache: BoundedCache[object, Launch] = BoundedCache(_MAX_LAUNCHES)

    def merge(self, config: MergeConfig, dtypes: ParamDtypes) -> Launch:
        """Return the launch over the draws of all ranks.

        :param dtypes: of the parameters of the batch.
        """
        shared = SharedTiles(INT64, INT64) if config.SHARED_TILES else SharedTiles(None, None)
        placeholders = (
            INT32,
            any_ints(Sizes),
            any_ints(DrawFields),
            shared,
            any_ints(SharedSizes),
            params_layout.placeholders(dtypes),
            ANY_INT,
            MergedDraws(INT64, BOOL),
        )
        return self._of(merge_draws, config, 1, placeholders, dtypes)

    def thresholds(self, config: ThresholdConfig, dtypes: ParamDtypes, *, has_fresh_seeds: bool) -> Launch:
        """Return the launch over the surveys of all ranks.

        :param has_fresh_seeds: whether surveys bring fresh seeds.
        """
        placeholders = (
            INT32,
            any_ints(Sizes),
            any_ints(SurveyFields),
            params_layout.placeholders(dtypes),
            ANY_INT,
            _SEARCH,
            INT64 if has_fresh_seeds else None,
        )
        warps = max(1, min(_MAX_WARPS, max(config.N, config.MASSES) // _VALUES_A_WARP))
        return self._of(find_thresholds, config, warps, placeholders, (dtypes, has_fresh_seeds))

    def moments(self, config: MomentConfig, wanted: Collection[Moment], dtypes: ParamDtypes) -> Launch:
        """Return the launch over the sums of all ranks.

        :param wanted: names of the moments to compute.
        """
        placeholders = (
            INT32,
            any_ints(Sizes),
            any_ints(SurveyFields),
            params_layout.placeholders(dtypes),
            ANY_INT,
            MomentResults(*[FLOAT32 if name in wanted else None for name in MOMENTS]),
        )
        return self._of(merge_moments, config, 1, placeholders, (tuple(wanted), dtypes))

    def floors(self) -> Launch:
        """Return the launch over the floors of a filter."""
        placeholders = (FilterFloors(FLOAT32, FLOAT32, *[ANY_INT] * 3), FLOAT32, ANY_INT)
        return self._of(combine_floors, None, _FLOOR_WARPS, placeholders, None)

    def digit(self, dtypes: ParamDtypes) -> Launch:
        """Return the launch over a histogram of all ranks."""
        params = params_layout.placeholders(dtypes)
        placeholders = (INT64, any_ints(DigitStep), params, ANY_INT, ANY_INT, _SEARCH)
        return self._of(next_digit, None, 1, placeholders, dtypes)

    def _of(
        self, kernel: Any, config: object, warps: int, placeholders: Sequence[Argument], variant: object
    ) -> Launch:
        key = kernel, config, variant
        launch = self._cache.get(key)
        if launch is None:
            constants = {} if config is None else {"config": config}
            launch = Launch.compiled(kernel, constants, {"num_warps": warps}, placeholders)
            self._cache.add(key, launch)
        return launch

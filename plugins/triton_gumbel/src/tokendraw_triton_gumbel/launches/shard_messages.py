"""The launches that merge what ranks told each other: draws into tokens, surveys and histograms into thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

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
from tokendraw_triton_gumbel.kernels.shard_messages.next_digit import next_digit
from tokendraw_triton_gumbel.kernels.shared.configs import MergeConfig, ThresholdConfig
from tokendraw_triton_gumbel.launches import parameters
from tokendraw_triton_gumbel.launches.compiled import Argument, Pointer
from tokendraw_triton_gumbel.launches.launch import Launch
from tokendraw_triton_gumbel.launches.parameters import Types

MOST_VALUES = 4096
"""Most values of all ranks among which a kernel finds a threshold."""
_RANKS_AT_ONCE = 4
_MANY_VALUES = 1024
"""Beyond so many, ranks are looked at one by one: registers hold no more."""
_VALUES_A_WARP = 128
_MOST_WARPS = 8
_MOST_KINDS = 256
"""Most kinds of launches that are remembered."""
_REAL, _WHOLE, _LONG, _TRUTH = (
    Pointer(dtype, aligned=False) for dtype in (torch.float32, torch.int32, torch.int64, torch.bool)
)
_SEARCH = RowSearch(_REAL, _REAL, _REAL, _LONG, _LONG)


def _some(kind: Any) -> Any:
    """Return a group of numbers that stand for any."""
    return kind(*[3] * len(kind._fields))


def power_of_two(count: int) -> int:
    """Return the least power of two from a count upwards; 0 for none."""
    return 1 << (count - 1).bit_length() if count else 0


def ranks_at_once(ranks: int, count: int) -> int:
    """Return how many ranks a kernel looks at together which holds ``count`` values of all of them."""
    return 1 if count > _MANY_VALUES else min(power_of_two(ranks), _RANKS_AT_ONCE)


class MessageLaunches:
    """The kernels for messages, compiled when they are first needed. It remembers nothing of any call."""

    def __init__(self, *, is_interpreted: bool) -> None:
        self._is_interpreted = is_interpreted
        self._known: dict[object, Launch] = {}

    def merge(self, config: MergeConfig, types: Types) -> Launch:
        """Return the kernel for the draws of all ranks.

        :param types: of the parameters that the batch has.
        """
        shared = SharedTiles(_LONG, _LONG) if config.SHARED_TILES else SharedTiles(None, None)
        arguments = (
            _WHOLE,
            _some(Sizes),
            _some(DrawFields),
            shared,
            _some(SharedSizes),
            parameters.stand_ins(types),
            3,
            MergedDraws(_LONG, _TRUTH),
        )
        return self._of(merge_draws, config, 1, arguments, types)

    def thresholds(self, config: ThresholdConfig, types: Types, *, fresh: bool) -> Launch:
        """Return the kernel for the surveys of all ranks.

        :param fresh: whether they tell fresh seeds.
        """
        seeds = _LONG if fresh else None
        row_params = parameters.stand_ins(types)
        arguments = (_WHOLE, _some(Sizes), _some(SurveyFields), row_params, 3, _SEARCH, seeds)
        warps = max(1, min(_MOST_WARPS, max(config.N, config.MASSES) // _VALUES_A_WARP))
        return self._of(find_thresholds, config, warps, arguments, (types, fresh))

    def digit(self, types: Types) -> Launch:
        """Return the kernel for a histogram of all ranks."""
        arguments = (_LONG, _some(DigitStep), parameters.stand_ins(types), 3, 3, _SEARCH)
        return self._of(next_digit, None, 1, arguments, types)

    def _of(
        self, kernel: Any, config: object, warps: int, arguments: Sequence[Argument], kind: object
    ) -> Launch:
        key = kernel, config, kind
        found = self._known.get(key)
        if found is None:
            constants = {} if config is None else {"config": config}
            found = Launch(kernel, constants, {"num_warps": warps})
            if not self._is_interpreted:
                found.compile(arguments)
            if len(self._known) >= _MOST_KINDS:
                self._known.clear()
            self._known[key] = found
        return found

"""The launches that describe drawn tokens, from what the draw left behind.

The one over groups of tiles counts ranks. The one over rows reads 8 bytes a tile, the maximum of every 64 logits, and
the few logits that matter. The draw of rows without filters fills in the drawn token's column itself, so that N = 0
takes a launch for its ranks alone. An N above :data:`MOST_LOGPROBS` is left to ``torch.topk``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton

from tokendraw.plugin import LogprobsMode
from tokendraw_triton_gumbel.kernels.logprobs.ranks import RANK_SPAN, count_ranks
from tokendraw_triton_gumbel.kernels.logprobs.row_logprobs import (
    CANDIDATES,
    MOST_LOGPROBS,
    BestTokens,
    RequestedLogprobs,
    RowDraws,
    row_logprobs,
)
from tokendraw_triton_gumbel.kernels.logprobs.row_logprobs import Scratch as RowScratch
from tokendraw_triton_gumbel.kernels.shared import row_params
from tokendraw_triton_gumbel.kernels.shared.argument_groups import Logits
from tokendraw_triton_gumbel.kernels.shared.configs import LogprobsConfig
from tokendraw_triton_gumbel.launches.draw import DrawLaunches
from tokendraw_triton_gumbel.launches.launch import Launch, Operands, Step, group
from tokendraw_triton_gumbel.launches.scratch import ROWS, Scratch

_WARPS = 4
_LEAST_TILES = 256
_QUARTERS = 512
"""Quarters of tiles that are fewer than 2 N: at most ``8 * MOST_LOGPROBS``."""
_SCALED, _NORMALISED, _TEMPERED, _PROCESSED = (
    bit.value for bit in (row_params.SCALED, row_params.NORMALISED, row_params.TEMPERED, row_params.PROCESSED)
)


class LogprobsLaunches:
    """The launches that describe the tokens of one variant, and the scratch between them."""

    def __init__(self, draw: DrawLaunches, num_best: int, mode: LogprobsMode, scratch: Scratch) -> None:
        """Reserve scratch and say how the kernels are launched.

        :param num_best: N, at most V.
        """
        self._draw, self._flags = draw, mode_flags(mode)
        self.mode, self.num_best = mode, num_best
        self.by_kernel = num_best <= MOST_LOGPROBS
        """Whether the kernel finds the best tokens."""
        self.width = width = num_best if self.by_kernel else 0
        self._listed = scratch.reserve(torch.int32, draw.tiles * 16 if width else 0, ROWS)
        self._keys = scratch.reserve(torch.int64, CANDIDATES if width else 0, ROWS)
        few_tiles = draw.tiles < 2 * width  # too few for their maxima to say much about the N-th value
        self.count_ranks = Launch(
            count_ranks, {"SPAN": RANK_SPAN, "VECTOR": draw.vector}, {"num_warps": _WARPS}
        )
        self.row_logprobs = Launch(
            row_logprobs,
            {
                "config": LogprobsConfig(
                    VECTOR=draw.vector,
                    TILES=max(_LEAST_TILES, triton.next_power_of_2(draw.tiles)),
                    QUARTERS=_QUARTERS if few_tiles else 0,
                    CANDIDATES=CANDIDATES,
                )
            },
            {"num_warps": _WARPS},
        )

    def steps(
        self,
        operands: Operands,
        wanted: Any,
        drawn: Sequence[Any],
        *,
        ranks: Any,
        best: Sequence[Any] | None,
    ) -> Iterator[Step]:
        """Yield the launches.

        :param wanted: how many of the N each slot asks for; None: all of them.
        :param drawn: token ids [rows], floors [rows] and log_kept_mass [rows]: what is kept is ``x >= floor``.
        :param ranks: [rows] int64, 0, to be filled in; None: nobody wants them.
        :param best: ids and values [rows, 1 + N] to be filled in; None: others do.
        """
        draw, (geometry, head, params, _, pieces) = self._draw, operands
        rows = geometry.size.rows
        token_ids, floors, log_kept = drawn
        maxima = pieces[draw.maxima]
        sums = pieces[draw.sums if draw.raw_sums is None else draw.raw_sums]
        granules = None if draw.granules is None else pieces[draw.granules]
        logits = group(Logits, (*head, draw.vocab_size))
        if ranks is not None:
            grid = (rows * -(-draw.tiles // RANK_SPAN), 1, 1)
            yield self.count_ranks, grid, (logits, draw.tiles, rows, token_ids, maxima, granules, ranks)
        if best is not None:
            # Without best tokens no granule is read, so anything stands in.
            granules = maxima if granules is None else granules
            index = params.row_index if draw.indexed else None
            requested = group(RequestedLogprobs, (params.temperature, index, wanted))
            found = group(RowDraws, (token_ids, maxima, sums, floors, log_kept))
            kept = group(RowScratch, (pieces[self._listed], pieces[self._keys]))
            yield (
                self.row_logprobs,
                (rows, 1, 1),
                (
                    logits,
                    draw.tiles,
                    self.width,
                    requested,
                    found,
                    granules,
                    kept,
                    group(BestTokens, best),
                    self._flags,
                ),
            )


def mode_flags(mode: LogprobsMode) -> int:
    """Return what a mode does to logits, as bits for the kernels."""
    flags = 0 if mode == "raw_logits" else _SCALED
    flags += _NORMALISED if mode.endswith("logprobs") else 0
    flags += 0 if mode.startswith("raw") else _TEMPERED
    return flags + (_PROCESSED if mode.startswith("processed") else 0)

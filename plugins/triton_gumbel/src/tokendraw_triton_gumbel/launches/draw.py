"""The launches that draw rows: over the tiles of all rows, over the rows, and for rows that may keep many tokens.

The rows of drafts whose logits are known stand behind those of the target in all three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tokendraw_triton_gumbel.kernels.large_set.draw_large_set import draw_large_sets
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLUMNS,
    MAX_COLLECTED,
    SLOTS,
    STATE_INTS,
    STATE_REALS,
)
from tokendraw_triton_gumbel.kernels.large_set.search.threshold_search import CAPACITY
from tokendraw_triton_gumbel.kernels.row_draw.draw_rows import draw_rows
from tokendraw_triton_gumbel.kernels.row_draw.small_set import LARGE_CANDIDATES, SMALL_CANDIDATES
from tokendraw_triton_gumbel.kernels.shared.argument_groups import (
    CandidateLists,
    DraftRows,
    DrawResults,
    Logits,
    PassResults,
    RowState,
    RowSummary,
    SearchScratch,
    TileStatistics,
    TokenLogprobs,
    WorkQueue,
)
from tokendraw_triton_gumbel.kernels.shared.configs import LargeSetConfig, RowConfig, TileConfig
from tokendraw_triton_gumbel.kernels.shared.queue_layout import QUEUE_COUNTERS, ROUNDS
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE, TILE_SIZE, VECTORS
from tokendraw_triton_gumbel.kernels.tile_pass.tile_statistics import tile_statistics
from tokendraw_triton_gumbel.launches.geometry import span_of
from tokendraw_triton_gumbel.launches.launch import Launch, Operands, Step, group
from tokendraw_triton_gumbel.launches.scratch import CALL, PROGRAMS, ROWS, Scratch
from tokendraw_triton_gumbel.launches.variant import COUPLED, Target, Variant

_LEAST_TILES = 256
"""Kernels are compiled for a power of two of tiles: one does for all vocabularies up to 262,144."""
_REAL, _WHOLE = torch.float32, torch.int32
NO_DRAFTS = DraftRows()
_NO_FACTS, _NOTHING_SHOWN = RowSummary(), (None, None, None)
_NO_LISTS, _NO_QUEUE, _NO_STATE = CandidateLists(), WorkQueue(), RowState()


class DrawLaunches:
    """The launches of a draw of one variant, and the scratch that they leave results in."""

    def __init__(self, variant: Variant, target: Target, scratch: Scratch) -> None:
        how, dtype = variant.how, variant.logits.dtype
        self.vocab_size, self.tiles = variant.vocab_size, -(-variant.vocab_size // TILE_SIZE.value)
        self.indexed = variant.params[1] is not None
        self.vector = VECTORS[str(dtype)[6:]]
        self.fp64, self.most_tiles = target.fp64, self._reserve(variant, scratch)
        is_nvidia, is_single = target.family == "cuda", dtype == torch.float32
        ulp_step = 65536 if dtype == torch.bfloat16 else 1
        raw_registers = how.raw_registers if is_single else how.raw_registers_half

        def options(warps: int, registers: int | None) -> dict[str, int]:
            return {"num_warps": warps} | ({"maxnreg": registers} if registers and is_nvidia else {})

        tile_config = TileConfig(
            span_of(how, variant.logits), self.vector, variant.paired and is_nvidia, is_nvidia
        )
        row_config = RowConfig(
            HAS_FILTERS=variant.filtered,
            FP64=target.fp64,
            TILES=self.most_tiles,
            VECTOR=self.vector,
            SMALL_CANDIDATES=SMALL_CANDIDATES,
            LARGE_CANDIDATES=LARGE_CANDIDATES,
            GRANULES_AT_ONCE=how.granules_at_once,
            ULP_STEP=ulp_step,
            BY_FACTORS=is_nvidia and how.row_registers is None,
            IS_NVIDIA=is_nvidia,
        )
        large_set_config = LargeSetConfig(
            FP64=target.fp64,
            TILES=self.most_tiles,
            CAPACITY=CAPACITY,
            EXACT_PARTS=how.large_set_exact_parts,
            WARPS=how.large_set_warps,
            VECTOR=self.vector,
            LOADS_PAIRS=variant.paired,
            ULP_STEP=ulp_step,
            IS_NVIDIA=is_nvidia,
        )
        self.tile_pass = Launch(
            tile_statistics,
            {"config": tile_config},
            options(how.tile_warps, raw_registers if variant.raw else None),
        )
        self.row_draw = Launch(
            draw_rows,
            {"config": row_config},
            options(
                how.plain_row_warps if variant.only_draws else how.row_warps,
                how.row_registers if variant.filtered else None,
            ),
        )
        self.large_set_draw = Launch(
            draw_large_sets,
            {"config": large_set_config},
            options(how.large_set_warps, how.large_set_registers),
        )

    def _reserve(self, variant: Variant, scratch: Scratch) -> int:
        """Reserve scratch; returns the number of tiles that kernels are compiled for."""
        tiles, most_tiles = self.tiles, _LEAST_TILES
        while most_tiles < tiles:
            most_tiles *= 2
        located = variant.described and (variant.num_best != 0 or variant.ranked)
        exact = variant.described or (variant.verify is not None and variant.verify.known != COUPLED)
        self.maxima, self.sums = (scratch.reserve(_REAL, tiles, ROWS) for _ in range(2))
        self.raw_sums = scratch.reserve(_REAL, tiles, ROWS) if variant.raw else None
        self.granules = None
        if variant.filtered or located:
            self.granules = scratch.reserve(variant.logits.dtype, tiles * GRANULES_PER_TILE.value, ROWS)
        self.filtered = variant.filtered
        if variant.filtered:
            self.candidates = scratch.reserve_group(
                [(dtype, LARGE_CANDIDATES, ROWS) for dtype in (_WHOLE, _REAL, _WHOLE)]
            )
            self._queue = scratch.reserve_group(
                [(_WHOLE, QUEUE_COUNTERS.value, CALL), (_WHOLE, ROUNDS.value, ROWS), (_WHOLE, 1, ROWS)]
            )
            self._state = scratch.reserve_group(
                [(_REAL, STATE_REALS.value, ROWS), (_WHOLE, STATE_INTS.value, ROWS)]
            )
            self._search = scratch.reserve_group(
                [(_WHOLE, most_tiles, PROGRAMS), (_REAL, CAPACITY, PROGRAMS)]
            )
            self._results = scratch.reserve_group(
                [
                    (_REAL, SLOTS.value * tiles * COLUMNS.value, ROWS),
                    (_WHOLE, MAX_COLLECTED.value if exact else 0, ROWS),
                ]
            )
        return most_tiles

    def steps(
        self,
        operands: Operands,
        out: Sequence[Any],
        *,
        shown: Sequence[Any] = _NOTHING_SHOWN,
        drafts: DraftRows = NO_DRAFTS,
        facts: RowSummary = _NO_FACTS,
        counters: Any = None,
    ) -> Iterator[Step]:
        """Yield the launches.

        :param out: token ids, valid; floors and log_kept_mass, or None.
        :param shown: ranks to begin with, and ids and values of the drawn tokens to describe.
        :param drafts: the logits of drafts, their row stride, and the offsets of the requests.
        :param facts: of a verification, where the maxima, masses and numbers of candidates of the rows go.
        :param counters: of a verification, [rows], set to 0.
        """
        geometry, head, params, flags, pieces = operands
        token_ids, valid, floors, log_kept = out
        logits, counts = group(Logits, (*head, self.vocab_size)), geometry.numbers
        maxima, sums = pieces[self.maxima], pieces[self.sums]
        raw_sums = None if self.raw_sums is None else pieces[self.raw_sums]
        granules = None if self.granules is None else pieces[self.granules]
        statistics = group(TileStatistics, (maxima, sums, raw_sums, granules))
        lists, queue, state = _NO_LISTS, _NO_QUEUE, _NO_STATE
        # The draw has no use for what only the logprobs behind it read: so it is one kernel with them and without.
        weighed = group(TileStatistics, (maxima, sums, None, granules if self.filtered else None))
        if self.filtered:
            lists = group(CandidateLists, pieces[self.candidates])
            queue, state = group(WorkQueue, pieces[self._queue]), group(RowState, pieces[self._state])
        index = params.row_index if self.indexed else None
        yield (
            self.tile_pass,
            geometry.tile_grid,
            (logits, drafts, counts, params.temperature, index, statistics, queue, counters),
        )
        # What nobody wants is not written, so anything of its type stands in.
        details = (maxima, maxima) if floors is None else (floors, log_kept)
        drawn = group(DrawResults, (token_ids, valid, *details))
        ranks, own_ids, own_values = shown
        described = group(
            TokenLogprobs,
            (
                token_ids if ranks is None else ranks,
                sums if raw_sums is None else raw_sums,
                token_ids if own_ids is None else own_ids,
                maxima if own_values is None else own_values,
            ),
        )
        yield (
            self.row_draw,
            geometry.row_grid,
            (logits, drafts, counts, weighed, params, flags, lists, queue, state, drawn, facts, described),
        )
        if self.filtered:
            scratch = group(SearchScratch, pieces[self._search])
            results = group(PassResults, pieces[self._results])
            # One kernel, whether drafts are behind the target or not: where none are, the target's stand in.
            behind = head if drafts.base is None else drafts[:2]
            yield (
                self.large_set_draw,
                geometry.large_set_grid,
                (
                    logits,
                    group(DraftRows, (*behind, None)),
                    counts,
                    weighed,
                    flags,
                    scratch,
                    queue,
                    state,
                    results,
                    drawn,
                ),
            )

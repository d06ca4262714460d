"""The launches of a call, by its shape, and where their scratch lies.

Two launches, over the tiles of all rows and over the rows; a third where a row may keep many tokens; and one over the
requests of a verification, whose drafts' logits stand behind the target's in all others.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tokendraw_triton_gumbel import accept, residual
from tokendraw_triton_gumbel.accept import accept_drafts, check_probs
from tokendraw_triton_gumbel.configurations import Configuration
from tokendraw_triton_gumbel.draw import draw_rows
from tokendraw_triton_gumbel.few import LEAST_CANDIDATES, MOST_CANDIDATES
from tokendraw_triton_gumbel.launch import Launch, Layout
from tokendraw_triton_gumbel.passes import COLUMNS, NOTES, PLAN, SLOTS
from tokendraw_triton_gumbel.search import CAPACITY
from tokendraw_triton_gumbel.tiles import GRANULES, ROUNDS, TILE, VECTORS, tile_statistics
from tokendraw_triton_gumbel.wide import draw_wide

CHOSEN: int = residual.CHOSEN.value
LOGITS: int = residual.LOGITS.value
PROBS: int = residual.PROBS.value
COUPLED: int = accept.COUPLED.value
"""What a verification knows of the drafts' distribution."""
_MOST_ROWS_A_COLUMN = 32768
"""Of a grid."""
_QUEUE = 128
_ACCEPTING_WARPS = 4
_ACCEPTING_PROGRAMS = 4
"""A multiprocessor, at most, of the launch over the requests."""
_ACCEPTING_REGISTERS = 128
"""At most so many a thread there, so that they fit. NVIDIA."""
_REAL, _WHOLE = torch.float32, torch.int32


@dataclass(frozen=True, kw_only=True)
class Chains:
    """The shape of a verification."""

    requests: int
    width: int
    """K, the most drafts that a request may have."""
    drafts: int
    """Rows of logits or probabilities of drafts, if they are known."""
    known: int
    padded: bool
    """Whether the ids stand in a row for each request."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What decides how a call is launched."""

    rows: int
    """Of the target or of what is sampled from."""
    vocab_size: int
    dtype: torch.dtype
    filtered: bool
    described: bool
    raw: bool
    """Whether the mass at T = 1 is wanted beside the one at the row's temperature."""
    paired: bool
    how: Configuration
    chains: Chains | None = None


class Plan:
    """The launches of a shape, and where their scratch lies."""

    def __init__(self, shape: Shape, family: str, processors: int, *, fp64: bool) -> None:
        how, chains = shape.how, shape.chains
        self.split, self.chains = shape.rows, chains
        beside = chains is not None and chains.known == LOGITS
        self.rows = rows = shape.rows + (chains.drafts if chains is not None and beside else 0)
        self.tiles = tiles = -(-shape.vocab_size // TILE)
        widest = 256  # one shape for every vocabulary up to 262,144, so that another one compiles nothing
        while widest < tiles:
            widest *= 2
        is_single, is_nvidia = shape.dtype == torch.float32, family == "cuda"
        vector, span = VECTORS[str(shape.dtype)[6:]], how.span if is_single else how.span_half
        programs = min(rows * tiles, how.wide_programs * processors)
        self.layout = layout = Layout()
        self.maxima, self.sums = (layout.reserve(_REAL, rows * tiles) for _ in range(2))
        self.raw_sums = layout.reserve(_REAL, rows * tiles) if shape.raw else None
        self.granules = (
            layout.reserve(shape.dtype, rows * tiles * GRANULES)
            if shape.filtered or shape.described
            else None
        )
        self.collected: list[int] = []
        self.begun: list[int] = []
        self.wide: list[int] = []
        if shape.filtered:
            self.collected = [layout.reserve(d, rows * MOST_CANDIDATES) for d in (_WHOLE, _REAL, _WHOLE)]
            self.begun = [
                layout.reserve(_WHOLE, _QUEUE),
                layout.reserve(_WHOLE, rows * ROUNDS.value),
                layout.reserve(_WHOLE, rows),
                layout.reserve(_REAL, rows * PLAN.value),
                layout.reserve(_WHOLE, rows * NOTES.value),
            ]
            self.wide = [
                layout.reserve(_WHOLE, programs * widest),
                layout.reserve(_REAL, programs * CAPACITY),
                layout.reserve(_REAL, rows * SLOTS.value * tiles * COLUMNS.value),
            ]
        common = {"FP64": fp64, "TILES": widest}
        by = 65536 if shape.dtype == torch.bfloat16 else 1
        limited = {"maxnreg": how.row_registers} if how.row_registers and is_nvidia and shape.filtered else {}
        limited_wide = {"maxnreg": how.wide_registers} if how.wide_registers and is_nvidia else {}
        places = rows  # beside every request, room for as many drafts as it may have
        if chains is not None and beside:
            places = max(rows, shape.rows + chains.requests * chains.width)
        self.pass_over_tiles = Launch(
            kernel=tile_statistics,
            grid=(-(-tiles // span), min(places, _MOST_ROWS_A_COLUMN), -(-places // _MOST_ROWS_A_COLUMN)),
            constants={"SPAN": span, "VECTOR": vector, "PAIRED": shape.paired, "PTX": is_nvidia},
            options={"num_warps": how.tile_warps},
        )
        self.draw_rows = Launch(
            kernel=draw_rows,
            grid=(places, 1, 1),
            constants={"FILTERED": shape.filtered}
            | common
            | {
                "VECTOR": vector,
                "LESS": LEAST_CANDIDATES,
                "MOST": MOST_CANDIDATES,
                "GATHERED": how.granules_at_once,
                "BY": by,
            },
            options={"num_warps": how.row_warps} | limited,
        )
        self.draw_wide = Launch(
            kernel=draw_wide,
            grid=(programs, 1, 1),
            constants=common
            | {
                "CAPACITY": CAPACITY,
                "WARPS": how.wide_warps,
                "VECTOR": vector,
                "BY": by,
                "PTX": is_nvidia,
            },
            options={"num_warps": how.wide_warps} | limited_wide,
        )
        launches = [self.pass_over_tiles, self.draw_rows, *([self.draw_wide] if shape.filtered else [])]
        if chains is not None:
            launches += self._verify(shape, chains, vector, common, processors, is_nvidia=is_nvidia)
        self.launches = tuple(launches)

    def _verify(
        self,
        shape: Shape,
        chains: Chains,
        vector: int,
        common: dict[str, Any],
        processors: int,
        *,
        is_nvidia: bool,
    ) -> list[Launch]:
        """Reserve scratch and lay out the launches of a verification."""
        layout, requests, is_coupled = self.layout, chains.requests, chains.known == COUPLED
        self.tokens = layout.reserve(torch.int64, self.rows)
        self.valid = layout.reserve(torch.bool, self.rows)
        self.exactly = [
            layout.reserve(_REAL, self.rows)
            for _ in range(4 if not is_coupled else 2 if shape.described else 0)
        ]
        self.candidates = layout.reserve(_WHOLE, self.rows) if shape.filtered and not is_coupled else None
        self.counters = None if is_coupled else layout.reserve(_WHOLE, self.rows)
        self.weights = None if is_coupled else layout.reserve(_REAL, requests * 2 * self.tiles)
        parts = 1
        if not is_coupled:
            groups = -(-self.tiles // _ACCEPTING_WARPS)
            parts = max(1, min(groups, -(-_ACCEPTING_PROGRAMS * processors // requests)))
        steps = 8
        while steps <= chains.width:
            steps *= 2
        self.accept_drafts = Launch(
            kernel=accept_drafts,
            grid=(requests, parts, 1),
            constants={"KNOWN": chains.known, "PADDED": chains.padded, "STEPS": steps}
            | common
            | {
                "LESS": LEAST_CANDIDATES,
                "MOST": MOST_CANDIDATES,
                "FILTERED": shape.filtered,
                "WARPS": _ACCEPTING_WARPS,
                "VECTOR": vector,
                "PTX": is_nvidia,
            },
            options={"num_warps": _ACCEPTING_WARPS}
            | ({"maxnreg": _ACCEPTING_REGISTERS} if is_nvidia else {}),
        )
        self.check_probs = None
        if chains.known == PROBS:
            self.check_probs = Launch(
                kernel=check_probs,
                grid=(chains.drafts, -(-shape.vocab_size // accept.AT_ONCE), 1),
                constants={"AT_ONCE": accept.AT_ONCE},
                options={"num_warps": 4},
            )
        return [self.accept_drafts, *([self.check_probs] if self.check_probs is not None else [])]

    def draw(
        self,
        variant: Hashable,
        head: tuple[Any, int, int],
        asked: Sequence[Any],
        flags: int,
        pieces: Sequence[Any],
        out: Sequence[Any],
        *,
        indexed: bool,
        drafts: tuple[Any, int | None, Any] = (None, None, None),
    ) -> None:
        """Launch the draw of all rows.

        :param head: the logits, their row stride and vocabulary. They, ``asked``, ``pieces``, ``out`` (token ids,
            valid, floors, log_kept) and ``drafts`` are tensors, or all of them addresses; see :class:`Launch`.
        :param indexed: whether the slots of the rows are given.
        :param drafts: the logits of drafts, their row stride, and the offsets of the requests.
        """
        tiles, chains = self.tiles, self.chains
        token_ids, valid, floors, log_kept = out
        maxima, sums = pieces[self.maxima], pieces[self.sums]
        raw_sums = None if self.raw_sums is None else pieces[self.raw_sums]
        granules = None if self.granules is None else pieces[self.granules]
        collected: tuple[Any, ...] = (None,) * 3
        begun: tuple[Any, ...] = (None,) * 5
        if self.wide:
            collected = tuple(pieces[i] for i in self.collected)
            begun = tuple(pieces[i] for i in self.begun)
        # Where nobody wants them they are not written, so anything of their type stands in.
        details = (maxima, maxima) if floors is None else (floors, log_kept)
        stated: tuple[Any, ...] = (None,) * 3
        counters = None
        if chains is not None and self.counters is not None:
            candidates = None if self.candidates is None else pieces[self.candidates]
            stated = (*(pieces[i] for i in self.exactly[2:]), candidates)
            counters = pieces[self.counters]
        index = asked[1] if indexed else None
        places = (self.split, 0, 0) if chains is None else (self.split, chains.width, chains.requests)
        tail = (self.rows, tiles, *drafts, *places, counters)
        self.pass_over_tiles(
            variant, (*head, asked[0], index, maxima, sums, raw_sums, granules, *begun[:2], *tail)
        )
        ends = (token_ids, valid, *details, *stated, *drafts, self.rows, *places)
        self.draw_rows(
            variant, (*head, maxima, sums, granules, tiles, *asked, flags, *collected, *begun, *ends)
        )
        if self.wide:
            listed, values, partials = (pieces[i] for i in self.wide)
            results = (token_ids, *details, self.rows, *drafts[:2], self.split)
            scratch = (listed, values, *begun, partials)
            self.draw_wide(variant, (*head, maxima, sums, tiles, flags, *scratch, *results))

    def verify(
        self,
        variant: Hashable,
        head: tuple[Any, int, int],
        last_id: int,
        drafts: tuple[Any, int | None],
        chain: tuple[Any, int, Any],
        asked: Sequence[Any],
        flags: int,
        pieces: Sequence[Any],
        out: Sequence[Any],
        *,
        indexed: bool,
    ) -> None:
        """Launch the draw of all rows, and the verification.

        :param last_id: the largest id.
        :param drafts: logits or probabilities of drafts, and their row stride.
        :param chain: the ids of the drafts, how many (in a row, if padded), and the offsets of the requests.
        :param out: token ids, numbers of accepted drafts, valid; the tokens by row, or None.
        """
        chains = self.chains
        assert chains is not None
        tokens, valid = pieces[self.tokens], pieces[self.valid]
        floors = log_kept = tops = masses = candidates = counters = weights = None
        if self.counters is not None and self.weights is not None:
            tops, masses = (pieces[i] for i in self.exactly[2:])
            counters, weights = pieces[self.counters], pieces[self.weights]
        if self.exactly:
            floors, log_kept = (pieces[i] for i in self.exactly[:2])
        if self.candidates is not None:
            candidates = pieces[self.candidates]
        beside = (*drafts, chain[2]) if chains.known == LOGITS else (None, None, None)
        self.draw(
            variant,
            head,
            asked,
            flags,
            pieces,
            (tokens, valid, floors, log_kept),
            indexed=indexed,
            drafts=beside,
        )
        if self.check_probs is not None:
            self.check_probs(variant, (*drafts, head[2], counters, chains.requests))
        self.accept_drafts(
            variant,
            (
                *head,
                last_id,
                *drafts,
                *chain[:2],
                chain[2],
                chains.width,
                *asked[:6],
                flags,
                self.split,
                self.tiles,
                tokens,
                valid,
                floors,
                log_kept,
                tops,
                masses,
                candidates,
                pieces[self.maxima],
                *((pieces[i] for i in self.collected[1:]) if self.collected else (None, None)),
                counters,
                weights,
                *out,
            ),
        )

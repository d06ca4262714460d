"""The launches of a kind of call, and what a number of rows makes of them.

Two launches, over the tiles of all rows and over the rows; a third where a row may keep many tokens; and one over the
requests of a verification, whose drafts' logits stand behind the target's in all others. Kernels are of a kind of call;
of the number of rows are only grids and where scratch lies, so another one costs some microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokendraw_triton_gumbel import accept, residual
from tokendraw_triton_gumbel.accept import accept_drafts, check_probs
from tokendraw_triton_gumbel.configurations import Configuration
from tokendraw_triton_gumbel.draw import draw_rows
from tokendraw_triton_gumbel.few import LEAST_CANDIDATES, MOST_CANDIDATES
from tokendraw_triton_gumbel.launch import Launch, Layout, Pointer, Rows
from tokendraw_triton_gumbel.passes import COLUMNS, LATER_PARTS, NOTES, PLAN, SEGMENT, SLOTS
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
_MOST_SIZES = 1024
"""Of a kind that are remembered."""
_AT_ONCE = 8
"""Rows or requests more that there is scratch for, at once."""
_QUEUE = 128
_ACCEPTING_WARPS = 4
_ACCEPTING_PROGRAMS = 4
"""A multiprocessor, at most, of the launch over the requests."""
_ACCEPTING_REGISTERS = 128
"""At most so many a thread there, so that they fit. NVIDIA."""
_REAL, _WHOLE = torch.float32, torch.int32
_CALL, _ROWS, _REQUESTS, _PROGRAMS = range(4)
"""What there is scratch for."""

Step = tuple[Launch, tuple[int, int, int], tuple[Any, ...]]
"""What is launched, its grid, and its arguments."""


class Chains(NamedTuple):
    """The kind of a verification."""

    steps: int
    """A power of two above K, the most drafts that a request may have."""
    known: int
    """What is known of the distribution of the drafts."""
    padded: bool
    """Whether the ids stand in a row for each request."""
    q: Rows | None
    """Logits or probabilities of the drafts, if they are known."""
    ids: torch.dtype
    offsets: torch.dtype


class Kind(NamedTuple):
    """What decides which kernels a call is made of: all but how many rows there are."""

    logits: Rows
    vocab_size: int
    device: int | None
    """Its number: kernels are loaded into each."""
    filtered: bool
    described: bool
    located: bool
    """Whether the maxima of granules are wanted for log-probabilities: of best tokens, or for ranks."""
    raw: bool
    """Whether the mass at T = 1 is wanted beside the one at the row's temperature."""
    paired: bool
    how: Configuration
    indexed: bool
    """Whether the slots of the rows are given."""
    asked: tuple[torch.dtype | None, ...]
    """Types of the parameters."""
    chains: Chains | None = None


class Size(NamedTuple):
    """How many of everything there are in a call."""

    rows: int
    """Of the target or of what is sampled from."""
    requests: int = 0
    drafts: int = 0
    """Rows of logits or probabilities of drafts, if they are known."""
    width: int = 0
    """K."""


class Plan(NamedTuple):
    """What a size makes of a kind."""

    size: Size
    rows: int
    """Of all that is drawn from: with those of the drafts, if their logits are known."""
    counts: tuple[int, ...]
    """That there is scratch for,"""
    offsets: list[int]
    """where its pieces lie, and in the end how many bytes it takes."""
    tile_grid: tuple[int, int, int]
    row_grid: tuple[int, int, int]
    wide_grid: tuple[int, int, int]
    request_grid: tuple[int, int, int]
    probs_grid: tuple[int, int, int]


class Kernels:
    """The launches of a kind of call, and where their scratch lies."""

    def __init__(self, kind: Kind, family: str, processors: int, *, fp64: bool) -> None:
        how, chains, dtype = kind.how, kind.chains, kind.logits.dtype
        self.kind, self.tiles = kind, -(-kind.vocab_size // TILE)
        self._processors, self._most_programs = processors, how.wide_programs * processors
        self._plans: dict[Size, Plan] = {}
        tiles, widest = (
            self.tiles,
            256,
        )  # one for every vocabulary up to 262,144: another one compiles nothing
        while widest < tiles:
            widest *= 2
        is_single, is_nvidia = dtype == torch.float32, family == "cuda"
        vector = VECTORS[str(dtype)[6:]]
        self._span = how.span if is_single else how.span_half
        self.layout = layout = Layout()
        self.maxima, self.sums = (layout.reserve(_REAL, tiles, _ROWS) for _ in range(2))
        self.raw_sums = layout.reserve(_REAL, tiles, _ROWS) if kind.raw else None
        self.granules = (
            layout.reserve(dtype, tiles * GRANULES, _ROWS) if kind.filtered or kind.located else None
        )
        exact = kind.described or (chains is not None and chains.known != COUPLED)
        self.collected: list[int] = []
        self.begun: list[int] = []
        self.wide: list[int] = []
        if kind.filtered:
            self.collected = [layout.reserve(d, MOST_CANDIDATES, _ROWS) for d in (_WHOLE, _REAL, _WHOLE)]
            self.begun = [
                layout.reserve(_WHOLE, _QUEUE, _CALL),
                layout.reserve(_WHOLE, ROUNDS.value, _ROWS),
                layout.reserve(_WHOLE, 1, _ROWS),
                layout.reserve(_REAL, PLAN.value, _ROWS),
                layout.reserve(_WHOLE, NOTES.value, _ROWS),
            ]
            self.wide = [
                layout.reserve(_WHOLE, widest, _PROGRAMS),
                layout.reserve(_REAL, CAPACITY, _PROGRAMS),
                layout.reserve(_REAL, SLOTS.value * tiles * COLUMNS.value, _ROWS),
                layout.reserve(_WHOLE, LATER_PARTS.value * SEGMENT.value if exact else 0, _ROWS),
            ]
        common = {"FP64": fp64, "TILES": widest}
        by = 65536 if dtype == torch.bfloat16 else 1
        limited = {"maxnreg": how.row_registers} if how.row_registers and is_nvidia and kind.filtered else {}
        limited_wide = {"maxnreg": how.wide_registers} if how.wide_registers and is_nvidia else {}
        raw_registers = how.raw_registers if is_single else how.raw_registers_half
        limited_tiles = {"maxnreg": raw_registers} if raw_registers and is_nvidia and kind.raw else {}
        self.pass_over_tiles = Launch(
            kernel=tile_statistics,
            constants={"SPAN": self._span, "VECTOR": vector, "PAIRED": kind.paired, "PTX": is_nvidia},
            options={"num_warps": how.tile_warps} | limited_tiles,
        )
        self.draw_rows = Launch(
            kernel=draw_rows,
            constants={"FILTERED": kind.filtered}
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
        if chains is not None:
            self._prepare_verification(chains, vector, common, is_nvidia=is_nvidia)

    def _prepare_verification(
        self, chains: Chains, vector: int, common: dict[str, Any], *, is_nvidia: bool
    ) -> None:
        """Reserve scratch of a verification, and say how it is launched."""
        kind, layout, is_coupled = self.kind, self.layout, chains.known == COUPLED
        self.tokens = layout.reserve(torch.int64, 1, _ROWS)
        self.valid = layout.reserve(torch.bool, 1, _ROWS)
        exactly = 4 if not is_coupled else 2 if kind.described else 0
        self.exactly = [layout.reserve(_REAL, 1, _ROWS) for _ in range(exactly)]
        self.candidates = layout.reserve(_WHOLE, 1, _ROWS) if kind.filtered and not is_coupled else None
        self.counters = None if is_coupled else layout.reserve(_WHOLE, 1, _ROWS)
        self.weights = None if is_coupled else layout.reserve(_REAL, 2 * self.tiles, _REQUESTS)
        self.accept_drafts = Launch(
            kernel=accept_drafts,
            constants={"KNOWN": chains.known, "PADDED": chains.padded, "STEPS": chains.steps}
            | common
            | {
                "LESS": LEAST_CANDIDATES,
                "MOST": MOST_CANDIDATES,
                "FILTERED": kind.filtered,
                "WARPS": _ACCEPTING_WARPS,
                "VECTOR": vector,
                "PTX": is_nvidia,
            },
            options={"num_warps": _ACCEPTING_WARPS}
            | ({"maxnreg": _ACCEPTING_REGISTERS} if is_nvidia else {}),
        )
        self.check_probs = Launch(
            kernel=check_probs, constants={"AT_ONCE": accept.AT_ONCE}, options={"num_warps": 4}
        )

    def compile(self) -> None:
        """Compile all that is launched, unless that was done in this process."""
        kind, chains, scratch = self.kind, self.kind.chains, self.layout.pointers
        head = (kind.logits.pointer, kind.logits.stride)
        asked = [None if dtype is None else Pointer(dtype, aligned=False) for dtype in kind.asked]
        whole, real, truth = (Pointer(dtype) for dtype in (torch.int64, _REAL, torch.bool))
        if chains is None:
            out = (whole, truth, *((real, real) if kind.described else (None, None)))
            steps = self.draw(self.plan(Size(1)), head, asked, 0, scratch, out)
        else:
            q = (None, None) if chains.q is None else (chains.q.pointer, chains.q.stride)
            chain = (Pointer(chains.ids, aligned=False), 1, Pointer(chains.offsets, aligned=False))
            out = (whole, Pointer(_WHOLE), truth, whole if kind.described else None)
            plan = self.plan(Size(2, 1, 1, 1))
            steps = self.verify(plan, head, 0, q, chain, asked, 0, scratch, out)
        for launch, _, arguments in steps:
            launch.compile(arguments)

    def plan(self, size: Size) -> Plan:
        """What that size makes of it."""
        found = self._plans.get(size)
        if found is None:
            if len(self._plans) >= _MOST_SIZES:
                self._plans.clear()
            found = self._plans[size] = self._planned(size)
        return found

    def pieces(self, plan: Plan, memory: Tensor) -> list[Tensor]:
        """All scratch, each piece of one dimension."""
        layout, counts = self.layout, plan.counts
        places = enumerate(zip(plan.offsets, layout.of, strict=False))
        return [layout.tensor(i, memory, offset, counts[of]) for i, (offset, of) in places]

    def by_row(self, piece: int, plan: Plan, memory: Tensor, *shape: int) -> Tensor:
        """What a piece holds of the rows of the target, or of what is sampled from: [rows, ...]."""
        rows = plan.size.rows
        return self.layout.tensor(piece, memory, plan.offsets[piece], rows).view(rows, *shape)

    def _planned(self, size: Size) -> Plan:
        chains, tiles, (rows, requests, drafts, width) = self.kind.chains, self.tiles, size
        places = rows  # beside every request, room for as many drafts as it may have
        if chains is not None and chains.known == LOGITS:
            places = max(rows + drafts, rows + requests * width)
            rows += drafts
        programs = min(rows * tiles, self._most_programs)
        # Room for some more, so that most new sizes find scratch laid out already.
        room = -(-rows // _AT_ONCE) * _AT_ONCE
        counts = (1, room, -(-requests // _AT_ONCE) * _AT_ONCE, min(room * tiles, self._most_programs))
        offsets = self.layout.places(counts)
        parts = 1
        if chains is not None and chains.known != COUPLED:
            groups = -(-tiles // _ACCEPTING_WARPS)
            parts = max(1, min(groups, -(-_ACCEPTING_PROGRAMS * self._processors // requests)))
        return Plan(
            size,
            rows,
            counts,
            offsets,
            (-(-tiles // self._span), min(places, _MOST_ROWS_A_COLUMN), -(-places // _MOST_ROWS_A_COLUMN)),
            (places, 1, 1),
            (programs, 1, 1),
            (requests, parts, 1),
            (drafts, -(-self.kind.vocab_size // accept.AT_ONCE), 1),
        )

    def draw(
        self,
        plan: Plan,
        head: tuple[Any, int],
        asked: Sequence[Any],
        flags: int,
        pieces: Sequence[Any],
        out: Sequence[Any],
        drafts: tuple[Any, int | None, Any] = (None, None, None),
        shown: Sequence[Any] = (None, None, None),
    ) -> Iterator[Step]:
        """The launches that draw all rows.

        :param head: the logits and their row stride. They, ``asked``, ``pieces``, ``out`` (token ids, valid, floors,
            log_kept) and ``drafts`` are addresses, or what stands for tensors; in the interpreter, tensors.
        :param drafts: the logits of drafts, their row stride, and the offsets of the requests.
        :param shown: ranks to begin with, and ids and values of the drawn tokens to describe; None for what is not wanted.
        """
        kind, tiles, (split, requests, _, width) = self.kind, self.tiles, plan.size
        token_ids, valid, floors, log_kept = out
        logits = (*head, kind.vocab_size)
        maxima, sums = pieces[self.maxima], pieces[self.sums]
        raw_sums = None if self.raw_sums is None else pieces[self.raw_sums]
        granules = None if self.granules is None else pieces[self.granules]
        collected: tuple[Any, ...] = (None,) * 3
        begun: tuple[Any, ...] = (None,) * 5
        if self.wide:
            collected = tuple([pieces[i] for i in self.collected])
            begun = tuple([pieces[i] for i in self.begun])
        # Where nobody wants them they are not written, so anything of their type stands in.
        details = (maxima, maxima) if floors is None else (floors, log_kept)
        stated: tuple[Any, ...] = (None,) * 3
        counters = None
        if kind.chains is not None and self.counters is not None:
            candidates = None if self.candidates is None else pieces[self.candidates]
            stated = (*(pieces[i] for i in self.exactly[2:]), candidates)
            counters = pieces[self.counters]
        index = asked[1] if kind.indexed else None
        places = (split, width, requests)
        yield (
            self.pass_over_tiles,
            plan.tile_grid,
            (
                *logits,
                asked[0],
                index,
                maxima,
                sums,
                raw_sums,
                granules,
                *begun[:2],
                plan.rows,
                tiles,
                *drafts,
                *places,
                counters,
            ),
        )
        ranks, own_ids, own_values = shown
        own = (
            token_ids if ranks is None else ranks,
            sums if raw_sums is None else raw_sums,
            token_ids if own_ids is None else own_ids,
            maxima if own_values is None else own_values,
        )
        ends = (token_ids, valid, *details, *stated, *drafts, plan.rows, *places, *own)
        yield (
            self.draw_rows,
            plan.row_grid,
            (*logits, maxima, sums, granules, tiles, *asked, flags, *collected, *begun, *ends),
        )
        if self.wide:
            listed, values, partials, near = [pieces[i] for i in self.wide]
            results = (token_ids, *details, plan.rows, *drafts[:2], split)
            scratch = (listed, values, *begun, partials, near)
            yield (
                self.draw_wide,
                plan.wide_grid,
                (*logits, maxima, sums, tiles, flags, *scratch, *results),
            )

    def verify(
        self,
        plan: Plan,
        head: tuple[Any, int],
        last_id: int,
        drafts: tuple[Any, int | None],
        chain: tuple[Any, int, Any],
        asked: Sequence[Any],
        flags: int,
        pieces: Sequence[Any],
        out: Sequence[Any],
        ranks: Any = None,
    ) -> Iterator[Step]:
        """The launches that draw all rows, and the verification.

        :param last_id: the largest id.
        :param drafts: logits or probabilities of drafts, and their row stride.
        :param chain: the ids of the drafts, how many (in a row, if padded), and the offsets of the requests.
        :param out: token ids, numbers of accepted drafts, valid; the tokens by row, or None.
        """
        chains, vocab_size = self.kind.chains, self.kind.vocab_size
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
        drawn = (tokens, valid, floors, log_kept)
        yield from self.draw(plan, head, asked, flags, pieces, drawn, beside, (ranks, None, None))
        if chains.known == PROBS:
            yield (
                self.check_probs,
                plan.probs_grid,
                (*drafts, vocab_size, counters, plan.size.requests),
            )
        yield (
            self.accept_drafts,
            plan.request_grid,
            (
                *head,
                vocab_size,
                last_id,
                *drafts,
                *chain,
                plan.size.width,
                *asked[:6],
                flags,
                plan.size.rows,
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

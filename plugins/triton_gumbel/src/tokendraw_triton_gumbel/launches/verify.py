"""The launches of a verification: those that draw its rows, a check of probabilities, and one over the requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tokendraw_triton_gumbel.kernels.row_draw.small_set import LARGE_CANDIDATES, SMALL_CANDIDATES
from tokendraw_triton_gumbel.kernels.shared.argument_groups import (
    CandidateLists,
    DraftRows,
    DraftTokens,
    DrawResults,
    Logits,
    ResidualScratch,
    RowSummary,
    VerifyResults,
)
from tokendraw_triton_gumbel.kernels.shared.configs import AcceptConfig
from tokendraw_triton_gumbel.kernels.verify.accept_drafts import accept_drafts
from tokendraw_triton_gumbel.kernels.verify.check_probs import PROBS_AT_ONCE, check_probs
from tokendraw_triton_gumbel.launches.draw import NO_DRAFTS, DrawLaunches
from tokendraw_triton_gumbel.launches.geometry import ACCEPTING_WARPS
from tokendraw_triton_gumbel.launches.launch import Launch, Operands, Step, group
from tokendraw_triton_gumbel.launches.scratch import REQUESTS, ROWS, Scratch
from tokendraw_triton_gumbel.launches.variant import COUPLED, LOGITS, PROBS, Target, Variant, VerifyVariant

_ACCEPTING_REGISTERS = 128
"""Most registers a thread of the launch over the requests, so that its programs fit. NVIDIA."""
_REAL, _WHOLE = torch.float32, torch.int32


class VerifyLaunches:
    """The launches of a verification of one variant, and the scratch that they leave results in."""

    def __init__(
        self, variant: Variant, verify: VerifyVariant, draw: DrawLaunches, target: Target, scratch: Scratch
    ) -> None:
        is_coupled, is_nvidia = verify.known == COUPLED, target.family == "cuda"
        self.known, self._draw, self._padded = verify.known, draw, int(verify.padded)
        self.tokens = scratch.reserve(torch.int64, 1, ROWS)
        self.valid = scratch.reserve(torch.bool, 1, ROWS)
        exactly = 4 if not is_coupled else 2 if variant.described else 0
        self.exactly = [scratch.reserve(_REAL, 1, ROWS) for _ in range(exactly)]
        """Thresholds and kept masses of the rows, then maxima and masses."""
        self.num_candidates = None
        if variant.filtered and not is_coupled:
            self.num_candidates = scratch.reserve(_WHOLE, 1, ROWS)
        self.counters = None if is_coupled else scratch.reserve(_WHOLE, 1, ROWS)
        self.weights = None if is_coupled else scratch.reserve(_REAL, 2 * draw.tiles, REQUESTS)
        config = AcceptConfig(
            DRAFT_KIND=verify.known,
            STEPS=verify.steps,
            FP64=draw.fp64,
            TILES=draw.most_tiles,
            SMALL_CANDIDATES=SMALL_CANDIDATES,
            LARGE_CANDIDATES=LARGE_CANDIDATES,
            HAS_FILTERS=variant.filtered,
            WARPS=ACCEPTING_WARPS,
            VECTOR=draw.vector,
            IS_NVIDIA=is_nvidia,
        )
        self.accept_drafts = Launch(
            accept_drafts,
            {"config": config},
            {"num_warps": ACCEPTING_WARPS} | ({"maxnreg": _ACCEPTING_REGISTERS} if is_nvidia else {}),
        )
        self.check_probs = Launch(check_probs, {"AT_ONCE": PROBS_AT_ONCE}, {"num_warps": 4})

    def steps(
        self,
        operands: Operands,
        out: Sequence[Any],
        *,
        drafts: tuple[Any, int | None],
        chain: tuple[Any, int, Any],
        ranks: Any = None,
    ) -> Iterator[Step]:
        """Yield the launches.

        :param out: token ids, numbers of accepted drafts, valid; the tokens by row, written if the flags say SHOWN.
        :param drafts: logits or probabilities of drafts, and their row stride.
        :param chain: the ids of the drafts, how many (in a row, if padded), and the offsets of the requests.
        :param ranks: to begin with, or None.
        """
        geometry, head, params, flags, pieces = operands
        draw, size = self._draw, geometry.size

        def piece(number: int | None) -> Any:
            return None if number is None else pieces[number]

        tokens, valid, counters = pieces[self.tokens], pieces[self.valid], piece(self.counters)
        floors, log_kept, tops, masses = [pieces[i] for i in self.exactly] + [None] * (4 - len(self.exactly))
        facts = group(RowSummary, (tops, masses, piece(self.num_candidates)))
        rows = group(DraftRows, (*drafts, chain[2]))
        behind = rows if self.known == LOGITS else NO_DRAFTS
        drawn = group(DrawResults, (tokens, valid, floors, log_kept))
        yield from draw.steps(
            operands, drawn, shown=(ranks, None, None), drafts=behind, facts=facts, counters=counters
        )
        if self.known == PROBS:
            checked = (*drafts, draw.vocab_size, counters, size.requests)
            yield self.check_probs, geometry.probs_grid, checked
        judged = drawn if self.known != COUPLED else group(DrawResults, (tokens, valid, None, None))
        lists = CandidateLists(None, *(pieces[draw.candidates][1:] if draw.filtered else ()))
        yield (
            self.accept_drafts,
            geometry.request_grid,
            (
                group(Logits, (*head, draw.vocab_size)),
                rows,
                group(DraftTokens, (*chain[:2], self._padded, draw.vocab_size - 1)),
                geometry.numbers,
                params,
                flags,
                judged,
                facts,
                lists,
                group(ResidualScratch, (counters, piece(self.weights))),
                group(VerifyResults, out),
            ),
        )

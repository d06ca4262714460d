"""The launches that verify drafts, behind those of the draw from the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tokendraw_triton_gumbel.draw_launches import NO_DRAFTS, NO_MASSES, DrawLaunches
from tokendraw_triton_gumbel.kernels.arguments import (
    AcceptConfig,
    CandidateLists,
    DraftRows,
    DraftTokens,
    DrawResults,
    Logits,
    ResidualScratch,
    RowSummary,
    VerifyResults,
)
from tokendraw_triton_gumbel.kernels.interval import KeptMasses
from tokendraw_triton_gumbel.kernels.row_draw import SMALL_CANDIDATES
from tokendraw_triton_gumbel.kernels.verify import PROBS_AT_ONCE, accept_drafts, check_probs, weigh_blocks
from tokendraw_triton_gumbel.launch import Launch, LaunchArguments, Step, group
from tokendraw_triton_gumbel.plan import (
    ACCEPT_WARPS,
    COUPLED,
    LOGITS,
    PER_REQUEST,
    PER_ROW,
    PROBS,
    Scratch,
    Target,
    Variant,
    VerifyVariant,
)

_ACCEPT_REGISTERS = 128
"""Limit of registers a thread of the launch over the requests, so that its programs fit. NVIDIA."""
_CHECK_WARPS = 4


class VerifyLaunches:
    """The launches of a verification of a variant, and the scratch of the results."""

    def __init__(
        self, variant: Variant, verify: VerifyVariant, draw: DrawLaunches, target: Target, scratch: Scratch
    ) -> None:
        real, whole, is_coupled = torch.float32, torch.int32, verify.draft_kind == COUPLED
        self._draft_kind, self._draw, self._is_padded = verify.draft_kind, draw, int(verify.is_padded)
        self._tokens = scratch.reserve(torch.int64, 1, PER_ROW)
        self._valid = scratch.reserve(torch.bool, 1, PER_ROW)
        num_facts = 4 if not is_coupled else 2 if variant.needs_thresholds else 0
        self.row_facts = [scratch.reserve(real, 1, PER_ROW) for _ in range(num_facts)]
        """Thresholds and kept masses of the rows; then maxima and masses, or where rows may keep intervals their
        greatest kept logits and kept masses."""
        self._num_candidates = self._counters = self._weights = self._log_shares = None
        if not is_coupled:
            if variant.interval is not None and draw.summary is not None:
                # The draw's summary is of rows before XTC, and the last launch reads the kept masses.
                self._num_candidates = draw.summary[-1]
                self._log_shares = scratch.reserve(real, 1, PER_ROW)
            elif variant.has_filters:
                self._num_candidates = scratch.reserve(whole, 1, PER_ROW)
            self._counters = scratch.reserve(whole, 1, PER_ROW)
            self._weights = scratch.reserve(real, 2 * draw.tiles, PER_ROW if verify.is_block else PER_REQUEST)
        config = AcceptConfig(
            DRAFT_KIND=verify.draft_kind,
            IS_BLOCK=verify.is_block,
            STEPS=verify.max_steps,
            FP64=draw.fp64,
            TILES=draw.max_tiles,
            SMALL_CANDIDATES=SMALL_CANDIDATES,
            HAS_FILTERS=variant.has_filters,
            HAS_CEILING=variant.has_ceiling,
            WARPS=ACCEPT_WARPS,
            VECTOR=draw.vector,
            IS_NVIDIA=target.is_nvidia,
        )
        options = target.options(ACCEPT_WARPS, _ACCEPT_REGISTERS)
        self._weigh_blocks = Launch(weigh_blocks, {"config": config}, options) if verify.is_block else None
        self._accept_drafts = Launch(accept_drafts, {"config": config}, options)
        self._check_probs = Launch(check_probs, {"AT_ONCE": PROBS_AT_ONCE}, {"num_warps": _CHECK_WARPS})

    def steps(
        self,
        arguments: LaunchArguments,
        out: Sequence[Any],
        *,
        drafts: tuple[Any, int | None],
        chain: tuple[Any, int, Any],
        ranks: Any = None,
        least_kept: Any = None,
    ) -> Iterator[Step]:
        """Yield the launches.

        :param out: token ids, numbers of accepted drafts, valid; the tokens by row, written if the flags say so.
        :param drafts: logits or probabilities of drafts, and their row stride.
        :param chain: the ids of the drafts, how many (in a row, if padded), and the offsets of the requests.
        :param ranks: set to 0, or None.
        :param least_kept: the least kept logits of the target's rows, or None.
        """
        geometry, head, params, flags, scratch, *_ = arguments
        draw, size = self._draw, geometry.size

        def buffer(index: int | None) -> Any:
            return None if index is None else scratch[index]

        tokens, valid, counters = scratch[self._tokens], scratch[self._valid], buffer(self._counters)
        row_facts = [scratch[i] for i in self.row_facts] + [None] * (4 - len(self.row_facts))
        thresholds, log_kept, maxima, masses = row_facts
        kept, log_shares = NO_MASSES, log_kept
        if self._log_shares is not None:
            log_shares = scratch[self._log_shares]
            kept = group(KeptMasses, (maxima, masses, log_shares))
        facts = group(RowSummary, (maxima, masses, buffer(self._num_candidates)))
        rows = group(DraftRows, (*drafts, chain[2]))
        yield from draw.steps(
            arguments,
            (tokens, valid, thresholds, log_kept, least_kept),
            logprobs_out=(ranks, None, None),
            drafts=rows if self._draft_kind == LOGITS else NO_DRAFTS,
            facts=facts,
            counters=counters,
            kept=kept,
        )
        if self._draft_kind == PROBS:
            checked = (*drafts, draw.vocab_size, counters, size.requests)
            yield self._check_probs, geometry.probs_grid, checked
        bounds = (None, None) if self._draft_kind == COUPLED else (thresholds, log_shares)
        judged = group(DrawResults, (tokens, valid, *bounds, None))
        shared = (
            group(Logits, (*head, draw.vocab_size)),
            rows,
            group(DraftTokens, (*chain[:2], self._is_padded, draw.vocab_size - 1)),
            geometry.counts,
            params,
            flags,
            judged,
            facts,
            CandidateLists(None, *(scratch[draw.candidates][1:] if draw.has_filters else ())),
            group(ResidualScratch, (counters, buffer(self._weights))),
        )
        if self._weigh_blocks is not None:
            yield self._weigh_blocks, geometry.block_grid, shared
        yield self._accept_drafts, geometry.request_grid, (*shared, group(VerifyResults, out))

"""The calls: sampling, drafts, and their verification. They wait for nothing.

What is launched is in :mod:`.plan`; one launch more describes the tokens where logprobs are asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tokendraw import Drafts, LogprobsTensors, Need, SamplerOutput, SamplingMetadata, VerifyOutput
from tokendraw.plugin import VerifyMode
from tokendraw_triton_gumbel import configurations, request
from tokendraw_triton_gumbel.launch import Rows, is_interpreted
from tokendraw_triton_gumbel.logprobs import describe, how_shown, width_of
from tokendraw_triton_gumbel.plan import COUPLED, LOGITS, Chains, Kernels, Kind, Plan, Size
from tokendraw_triton_gumbel.tiles import GRANULES
from tokendraw_triton_gumbel.verification import by_step, one_behind_the_other, readable_alike

_MOST_KINDS = 256
"""Of calls that are remembered."""
_BITS = tuple(
    bit.value
    for bit in (
        request.HAS_INDEX,
        request.HAS_SEEDS,
        request.HAS_SEEDED,
        request.HAS_FRESH,
        request.HAS_POSITIONS,
        request.HAS_TOP_K,
        request.HAS_TOP_P,
        request.HAS_MIN_P,
        request.HAS_JOINT,
    )
)
_EXACT: int = request.EXACT.value
_DRAFT: int = request.DRAFT.value
_RANKED: int = request.RANKED.value
_OWN: int = request.OWN.value
_REAL = torch.float32


class TritonGumbelSampler:
    """Triton kernels for NVIDIA and AMD. Made by ``tokendraw.load_sampler("triton-gumbel")``."""

    def __init__(self, device: torch.device, need: Need) -> None:
        self._fp64 = need.gumbel_dtype == "fp64"
        self._mode = need.logprobs_mode
        self._ranked = need.logprob_ranks
        self._how_shown = _OWN + how_shown(need.logprobs_mode)
        self._kernels: dict[Kind, Kernels] = {}
        self._is_interpreted = is_interpreted()
        self._given: Callable[[Sequence[Tensor | None]], Sequence[Any]] = (
            list if self._is_interpreted else _addresses
        )
        self._family, self._processors = "cpu", 1
        if device.type == "cuda":
            self._processors = torch.cuda.get_device_properties(device).multi_processor_count
            self._family = "hip" if torch.version.hip else "cuda"

    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, draft: bool = False) -> SamplerOutput:
        """Draw one token a row; see :class:`tokendraw.plugin.VerifierBackend`."""
        with _current(logits.device):
            return self._draw(one_behind_the_other(logits), metadata, _DRAFT if draft else 0)

    def verify(
        self,
        target_logits: Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> VerifyOutput:
        """Verify the drafts of a batch.

        In the mode ``rejection`` a draft is accepted if u < p / q, and the first that is not gives way to a token from
        the residual max(p - q, 0); ``coupled`` accepts drafts while they are what :meth:`sample` draws. See
        :class:`tokendraw.Drafts` and :class:`tokendraw.VerifyOutput`.
        """
        with _current(target_logits.device):
            is_coupled = mode == "coupled" or metadata.facts.all_greedy
            return self._verify(target_logits, drafts, metadata, is_coupled=is_coupled)

    def _draw(self, logits: Tensor, m: SamplingMetadata, flags: int) -> SamplerOutput:
        rows, device = logits.shape[0], logits.device
        described = m.facts.max_logprobs is not None
        token_ids = torch.empty(rows, dtype=torch.int64, device=device)
        valid = torch.empty(rows, dtype=torch.bool, device=device)
        floors = log_kept = None
        if described:
            floors = torch.empty(rows, dtype=_REAL, device=device)
            log_kept = torch.empty(rows, dtype=_REAL, device=device)
        logprobs = None
        if rows:
            has, asked = _asked(m, rows, token_ids, valid)
            kernels = self._kernels_for(logits, m, rows, asked)
            plan = kernels.plan(Size(rows))
            memory = torch.empty(plan.offsets[-1], dtype=torch.uint8, device=device)
            ranks = self._room_for_ranks(rows, device) if described else None
            own: tuple[Tensor, Tensor] | None = None
            if m.facts.max_logprobs == 0 and not kernels.wide:
                ids = torch.empty(rows, 1, dtype=torch.int64, device=device)
                own = (ids, torch.empty(rows, 1, dtype=_REAL, device=device))
                has |= self._how_shown
            for launch, grid, arguments in kernels.draw(
                plan,
                (*self._given((logits,)), logits.stride(0)),
                self._given(asked),
                has | flags | (0 if ranks is None else _RANKED),
                self._scratch(kernels, plan, memory),
                self._given((token_ids, valid, floors, log_kept)),
                shown=self._given((ranks, *(own or (None, None)))),
            ):
                launch(grid, arguments)
            if floors is not None and log_kept is not None:
                drawn = (token_ids, floors, log_kept)
                logprobs = self._describe(kernels, plan, logits, m, memory, drawn, ranks, own)
        elif floors is not None and log_kept is not None:
            logprobs = self._describe_nothing(logits, m)
        return SamplerOutput(token_ids, valid, logprobs, log_kept)

    def _verify(
        self, target_logits: Tensor, drafts: Drafts, m: SamplingMetadata, *, is_coupled: bool
    ) -> VerifyOutput:
        device, requests, width = target_logits.device, drafts.num_requests, drafts.max_drafts
        rows, vocab_size = target_logits.shape
        token_ids = torch.empty(requests, width + 1, dtype=torch.int64, device=device)
        num_accepted = torch.empty(requests, dtype=torch.int32, device=device)
        valid = torch.empty(requests, dtype=torch.bool, device=device)
        described = m.facts.max_logprobs is not None
        shown = torch.zeros(rows, dtype=torch.int64, device=device) if described else None
        if not requests:
            best = self._describe_nothing(target_logits, m) if described else None
            if best is not None:
                best = by_step(best, drafts.cu_num_logits, num_accepted, width)
            return VerifyOutput(token_ids, num_accepted, valid, best)
        target, q, known = readable_alike(target_logits, drafts, is_coupled=is_coupled or not width)
        ids, offsets = drafts.draft_token_ids.contiguous(), drafts.cu_num_logits.contiguous()
        drafted = 0 if q is None else min(len(q), rows - requests)
        has, asked = _asked(m, rows, token_ids, valid)
        chains = Chains(
            steps=_more_than(width),
            known=known,
            padded=ids.dim() == 2,
            q=None if q is None else Rows.of(q),
            ids=ids.dtype,
            offsets=offsets.dtype,
        )
        all_rows = rows + (drafted if known == LOGITS else 0)
        kernels = self._kernels_for(target, m, all_rows, asked, chains, q if known == LOGITS else None)
        plan = kernels.plan(Size(rows, requests, drafted, width))
        memory = torch.empty(plan.offsets[-1], dtype=torch.uint8, device=device)
        ranks = self._room_for_ranks(rows, device) if described else None
        has |= (0 if known == COUPLED else _EXACT) | (0 if ranks is None else _RANKED)
        first, its_q, its_ids, its_offsets = self._given((target, q, ids, offsets))
        for launch, grid, arguments in kernels.verify(
            plan,
            (first, target.stride(0)),
            vocab_size - 1,
            (its_q, None if q is None else q.stride(0)),
            (its_ids, ids.shape[-1], its_offsets),
            self._given(asked),
            has,
            self._scratch(kernels, plan, memory),
            self._given((token_ids, num_accepted, valid, shown)),
            *self._given((ranks,)),
        ):
            launch(grid, arguments)
        best = None
        if shown is not None:
            floors, log_kept = (kernels.by_row(i, plan, memory) for i in kernels.exactly[:2])
            best = self._describe(kernels, plan, target, m, memory, (shown, floors, log_kept), ranks)
            best = by_step(best, offsets, num_accepted, width)
        return VerifyOutput(token_ids, num_accepted, valid, best)

    def _kernels_for(
        self,
        logits: Tensor,
        m: SamplingMetadata,
        all_rows: int,
        asked: Sequence[Tensor | None],
        chains: Chains | None = None,
        drafts: Tensor | None = None,
    ) -> Kernels:
        """The kernels of a call, compiled.

        :param all_rows: how many are drawn from, with those of ``drafts``.
        :param drafts: their logits, if these are known.
        """
        facts = m.facts
        described = facts.max_logprobs is not None
        kind = Kind(
            logits=Rows.of(logits),
            vocab_size=logits.shape[1],
            device=logits.device.index,
            filtered=facts.max_top_k != 0 or facts.any_top_p or facts.any_min_p,
            described=described,
            located=described and (facts.max_logprobs != 0 or self._ranked),
            raw=described and self._mode == "raw_logprobs" and m.temperature is not None,
            paired=self._family == "cuda" and _is_paired(logits) and (drafts is None or _is_paired(drafts)),
            how=configurations.chosen(self._family, all_rows),
            indexed=m.row_index is not None,
            asked=tuple([None if tensor is None else tensor.dtype for tensor in asked]),
            chains=chains,
        )
        kernels = self._kernels.get(kind)
        if kernels is None:
            kernels = Kernels(kind, self._family, self._processors, fp64=self._fp64)
            if not self._is_interpreted:
                kernels.compile()
            if len(self._kernels) >= _MOST_KINDS:
                self._kernels.clear()
            self._kernels[kind] = kernels
        return kernels

    def _scratch(self, kernels: Kernels, plan: Plan, memory: Tensor) -> Sequence[Any]:
        """The pieces of ``memory``, as :attr:`_given` gives tensors."""
        if self._is_interpreted:
            return kernels.pieces(plan, memory)
        base = memory.data_ptr()
        return [base + offset for offset in plan.offsets]

    def _describe(
        self,
        kernels: Kernels,
        plan: Plan,
        logits: Tensor,
        m: SamplingMetadata,
        memory: Tensor,
        drawn: tuple[Tensor, Tensor, Tensor],
        ranks: Tensor | None,
        own: tuple[Tensor, Tensor] | None = None,
    ) -> LogprobsTensors:
        tiles = kernels.tiles

        def of(piece: int, *shape: int) -> Tensor:
            return kernels.by_row(piece, plan, memory, *shape)

        token_ids, floors, log_kept = drawn
        return describe(
            logits,
            m,
            token_ids,
            of(kernels.maxima, tiles),
            of(kernels.sums, tiles),
            None if kernels.raw_sums is None else of(kernels.raw_sums, tiles),
            None if kernels.granules is None else of(kernels.granules, tiles, GRANULES),
            floors,
            log_kept,
            self._mode,
            ranks=ranks,
            own=own,
        )

    def _describe_nothing(self, logits: Tensor, m: SamplingMetadata) -> LogprobsTensors:
        """Empty logprobs for a batch of zero rows."""
        width, device = 1 + width_of(m, logits.shape[1]), logits.device
        ids = torch.empty(0, width, dtype=torch.int64, device=device)
        values = torch.empty(0, width, dtype=_REAL, device=device)
        return LogprobsTensors(ids, values, self._room_for_ranks(0, device))

    def _room_for_ranks(self, rows: int, device: torch.device) -> Tensor | None:
        """Room for ranks, if they are wanted."""
        return torch.empty(rows, dtype=torch.int64, device=device) if self._ranked else None


def _asked(
    m: SamplingMetadata, rows: int, integers: Tensor, truths: Tensor
) -> tuple[int, tuple[Tensor | None, ...]]:
    """(What is there, as bits; the parameters from temperature to joint).

    Tensors that are not there are stood in for, so that one kernel serves every kind of batch.
    """
    fresh = None
    if m.seed is None or not m.facts.all_seeded:
        fresh = torch.empty(rows, dtype=torch.int64, device=integers.device).random_(-(2**63), None)
    reals = m.temperature
    if reals is None and (m.top_p is None or m.min_p is None):
        reals = torch.empty(1, dtype=_REAL, device=integers.device)
    given = (
        (m.row_index, integers),
        (m.seed, integers),
        (m.seeded, truths),
        (fresh, integers),
        (m.positions, integers),
        (m.top_k, integers),
        (m.top_p, reals),
        (m.min_p, reals),
        (m.joint, truths),
    )
    flags = _EXACT if m.facts.max_logprobs is not None else 0
    asked = [None if m.temperature is None else _readable(m.temperature)]
    for bit, (tensor, stand_in) in zip(_BITS, given, strict=True):
        if tensor is None:
            asked.append(stand_in)
        else:
            flags += bit
            asked.append(_readable(tensor))
    return flags, tuple(asked)


def _addresses(tensors: Sequence[Tensor | None]) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def _more_than(width: int) -> int:
    """A power of two, at least 8."""
    return max(8, 1 << width.bit_length())


def _is_paired(logits: Tensor) -> bool:
    """Whether its bfloat16 stand at even addresses in every row."""
    return logits.dtype == torch.bfloat16 and logits.stride(0) % 2 == 0 and logits.data_ptr() % 4 == 0


def _readable(tensor: Tensor) -> Tensor:
    """One element behind the other, as the kernels read them."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make ``device`` the one that Triton launches on, if it is not already."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return contextlib.nullcontext()
    return torch.cuda.device(device)

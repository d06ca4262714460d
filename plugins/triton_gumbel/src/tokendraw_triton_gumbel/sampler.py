"""The calls: sampling, drafts, and their verification. They wait for nothing.

What is launched is in :mod:`.plan`; one launch more describes the tokens where logprobs are asked for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import Drafts, LogprobsTensors, Need, SamplerOutput, SamplingMetadata, VerifyOutput
from tokendraw._capabilities import VerifyMode
from tokendraw_triton_gumbel import configurations, request
from tokendraw_triton_gumbel.logprobs import describe
from tokendraw_triton_gumbel.plan import COUPLED, LOGITS, PROBS, Chains, Plan, Shape
from tokendraw_triton_gumbel.tiles import GRANULES
from tokendraw_triton_gumbel.verification import by_step, one_behind_the_other, readable_alike

_MOST_PLANS = 256
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
_REAL = torch.float32


class TritonGumbelSampler:
    """Triton kernels for NVIDIA and AMD. Made by ``tokendraw.load_sampler("triton-gumbel")``."""

    def __init__(self, device: torch.device, need: Need) -> None:
        self._fp64 = need.gumbel_dtype == "fp64"
        self._mode = need.logprobs_mode
        self._plans: dict[Shape, Plan] = {}
        self._is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        self._family, self._processors = "cpu", 1
        if device.type == "cuda":
            self._processors = torch.cuda.get_device_properties(device).multi_processor_count
            self._family = "hip" if torch.version.hip else "cuda"

    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, inplace: bool = False) -> SamplerOutput:
        """Draw one token a row; see :meth:`tokendraw.Sampler.sample`. ``inplace`` would gain nothing and is ignored."""
        with _current(logits.device):
            return self._draw(one_behind_the_other(logits), metadata, 0)

    def draft(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """As :meth:`sample`, with noise that no verification at the same seeds and positions uses."""
        with _current(logits.device):
            return self._draw(one_behind_the_other(logits), metadata, _DRAFT)

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
        facts, rows, device = m.facts, logits.shape[0], logits.device
        described = facts.max_logprobs is not None
        token_ids = torch.empty(rows, dtype=torch.int64, device=device)
        valid = torch.empty(rows, dtype=torch.bool, device=device)
        floors = log_kept = None
        if described:
            floors, log_kept = torch.empty(2, rows, dtype=_REAL, device=device).unbind()
        logprobs = None
        if rows:
            given = _padded(logits)
            plan = self._plan(self._shape(given, m))
            memory = torch.empty(plan.layout.size, dtype=torch.uint8, device=device)
            self._launch(plan, given, m, flags, memory, (token_ids, valid, floors, log_kept))
            if floors is not None and log_kept is not None:
                logprobs = self._describe(plan, logits, m, memory, token_ids, floors, log_kept)
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
        target, q = _padded(target), None if q is None else _padded(q, 0.0 if known == PROBS else -torch.inf)
        ids = drafts.draft_token_ids.contiguous()
        chains = Chains(
            requests=requests,
            width=width,
            drafts=0 if q is None else min(len(q), rows - requests),
            known=known,
            padded=ids.dim() == 2,
        )
        plan = self._plan(self._shape(target, m, chains, q if known == LOGITS else None))
        memory = torch.empty(plan.layout.size, dtype=torch.uint8, device=device)
        out = (token_ids, num_accepted, valid, shown)
        chain = (ids, ids.shape[-1], drafts.cu_num_logits.contiguous())
        self._launch_chains(plan, target, vocab_size - 1, q, chain, m, memory, out)
        best = None
        if shown is not None:
            pieces: list[Tensor] = plan.layout.tensors(memory)
            floors, log_kept = (pieces[i][:rows] for i in plan.exactly[:2])
            best = self._describe(plan, target[:, :vocab_size], m, memory, shown, floors, log_kept)
            best = by_step(best, chain[2], num_accepted, width)
        return VerifyOutput(token_ids, num_accepted, valid, best)

    def _shape(
        self, logits: Tensor, m: SamplingMetadata, chains: Chains | None = None, drafts: Tensor | None = None
    ) -> Shape:
        facts, rows = m.facts, logits.shape[0]
        described = facts.max_logprobs is not None
        all_rows = rows + (chains.drafts if chains is not None and drafts is not None else 0)
        return Shape(
            rows=rows,
            vocab_size=logits.shape[1],
            dtype=logits.dtype,
            filtered=facts.max_top_k != 0 or facts.any_top_p or facts.any_min_p,
            described=described,
            raw=described and self._mode == "raw_logprobs" and m.temperature is not None,
            paired=self._family == "cuda" and _is_paired(logits) and (drafts is None or _is_paired(drafts)),
            how=configurations.chosen(self._family, all_rows),
            chains=chains,
        )

    def _plan(self, shape: Shape) -> Plan:
        plan = self._plans.get(shape)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[shape] = Plan(shape, self._family, self._processors, fp64=self._fp64)
        return plan

    def _launch(
        self,
        plan: Plan,
        logits: Tensor,
        m: SamplingMetadata,
        flags: int,
        memory: Tensor,
        out: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    ) -> None:
        vocab_size, stride = logits.shape[1], logits.stride(0)
        token_ids, valid, *_ = out
        has, asked = _asked(m, logits.shape[0], token_ids, valid)
        variant = self._variant(m, (logits,), asked)
        indexed = m.row_index is not None
        if self._was_launched(plan, variant):
            head = (logits.data_ptr(), stride, vocab_size)
            given, results = _addresses(asked), _addresses(out)
            plan.draw(variant, head, given, has | flags, _places(plan, memory), results, indexed=indexed)
        else:
            pieces = plan.layout.tensors(memory)
            plan.draw(variant, (logits, stride, vocab_size), asked, has | flags, pieces, out, indexed=indexed)

    def _launch_chains(
        self,
        plan: Plan,
        target: Tensor,
        last_id: int,
        q: Tensor | None,
        chain: tuple[Tensor, int, Tensor],
        m: SamplingMetadata,
        memory: Tensor,
        out: tuple[Tensor, Tensor, Tensor, Tensor | None],
    ) -> None:
        vocab_size, stride = target.shape[1], target.stride(0)
        ids, id_count, offsets = chain
        has, asked = _asked(m, target.shape[0], out[0], out[2])
        if plan.chains is not None and plan.chains.known != COUPLED:
            has |= _EXACT
        variant = self._variant(m, (target, q), (*asked, offsets), (ids, out[3]))
        q_stride, indexed = None if q is None else q.stride(0), m.row_index is not None
        sizes = (stride, vocab_size)
        if self._was_launched(plan, variant):
            plan.verify(
                variant,
                (target.data_ptr(), *sizes),
                last_id,
                (_address(q), q_stride),
                (ids.data_ptr(), id_count, offsets.data_ptr()),
                _addresses(asked),
                has,
                _places(plan, memory),
                _addresses(out),
                indexed=indexed,
            )
        else:
            pieces = plan.layout.tensors(memory)
            plan.verify(
                variant,
                (target, *sizes),
                last_id,
                (q, q_stride),
                chain,
                asked,
                has,
                pieces,
                out,
                indexed=indexed,
            )

    def _was_launched(self, plan: Plan, variant: Hashable) -> bool:
        """Whether addresses will do; see :class:`~tokendraw_triton_gumbel.launch.Launch`."""
        return variant is not None and all(variant in launch.compiled for launch in plan.launches)

    def _variant(
        self,
        m: SamplingMetadata,
        rows: Sequence[Tensor | None],
        asked: Sequence[Tensor | None],
        others: Sequence[Tensor | None] = (),
    ) -> Hashable:
        """What Triton compiles another variant for; None: it is to find out by itself.

        :param rows: tensors of rows, of whatever stride; ``asked`` and ``others`` have none.
        """
        if self._is_interpreted or any(t is not None and t.data_ptr() % 16 for t in asked):
            return None
        sizes = tuple(
            None
            if t is None
            else (
                t.dtype,
                (stride := t.stride(0)) % 16 == 0,
                stride == 1,
                stride >> 31,
                t.shape[1] % 16 == 0,
                t.data_ptr() % 16 == 0,
            )
            for t in rows
        )
        dtypes = tuple(None if t is None else t.dtype for t in asked)
        more = tuple(None if t is None else (t.dtype, t.data_ptr() % 16 == 0) for t in others)
        return (sizes, m.row_index is None, dtypes, more)

    def _describe(
        self,
        plan: Plan,
        logits: Tensor,
        m: SamplingMetadata,
        memory: Tensor,
        token_ids: Tensor,
        floors: Tensor,
        log_kept: Tensor,
    ) -> LogprobsTensors:
        pieces: list[Tensor] = plan.layout.tensors(memory)
        rows, tiles = logits.shape[0], plan.tiles

        def of(piece: int, *shape: int) -> Tensor:
            return pieces[piece].view(-1, *shape)[:rows]

        assert plan.granules is not None  # always there with logprobs
        return describe(
            logits,
            m,
            token_ids,
            of(plan.maxima, tiles),
            of(plan.sums, tiles),
            None if plan.raw_sums is None else of(plan.raw_sums, tiles),
            of(plan.granules, tiles, GRANULES),
            floors,
            log_kept,
            self._mode,
        )

    def _describe_nothing(self, logits: Tensor, m: SamplingMetadata) -> LogprobsTensors:
        """Of no rows at all."""
        device = logits.device
        none = torch.empty(0, 1, dtype=_REAL, device=device)
        granules = torch.empty(0, 1, GRANULES, dtype=logits.dtype, device=device)
        token_ids = torch.empty(0, dtype=torch.int64, device=device)
        return describe(
            logits[:0], m, token_ids, none, none, None, granules, none[:, 0], none[:, 0], self._mode
        )


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


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _addresses(tensors: Sequence[Tensor | None]) -> list[int | None]:
    return [_address(tensor) for tensor in tensors]


def _places(plan: Plan, memory: Tensor) -> list[int]:
    """The addresses of all scratch."""
    base = memory.data_ptr()
    return [base + offset for offset in plan.layout.offsets]


def _is_paired(logits: Tensor) -> bool:
    """Whether its bfloat16 stand at even addresses in every row."""
    return logits.dtype == torch.bfloat16 and logits.stride(0) % 2 == 0 and logits.data_ptr() % 4 == 0


def _padded(rows: Tensor, value: float = -torch.inf) -> Tensor:
    """A vocabulary of 1 as one of 2: Triton takes a 1 for a constant, which is no argument of a function."""
    return pad(rows, (0, 1), value=value) if rows.shape[1] == 1 else rows


def _readable(tensor: Tensor) -> Tensor:
    """One element behind the other, as the kernels read them."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make ``device`` the one that Triton launches on, if it is not already."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return contextlib.nullcontext()
    return torch.cuda.device(device)

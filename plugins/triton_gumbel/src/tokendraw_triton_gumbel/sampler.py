"""The calls: sampling, drafts, and their verification. They wait for nothing.

What calls have in common is made once and kept in a :class:`.dispatch.compiled_call.Call`. Which one a call takes
depends on the types, strides and alignment of its tensors and on which parameters there are. Values and addresses are
read at each call, so that tensors may change in place or give way to others, and nothing of a call outlives it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from tokendraw import BatchFacts, Drafts, Need, SamplerOutput, SamplingMetadata, VerifyOutput, VocabShard
from tokendraw.plugin import VerifyMode, log_kept_mass_by_step, logprobs_by_step
from tokendraw_triton_gumbel.dispatch.compiled_call import Call
from tokendraw_triton_gumbel.dispatch.draft_inputs import one_behind_the_other, readable_alike
from tokendraw_triton_gumbel.dispatch.empty_outputs import nothing_drawn, nothing_verified
from tokendraw_triton_gumbel.dispatch.launch_context import Run
from tokendraw_triton_gumbel.host import params_layout, tuning
from tokendraw_triton_gumbel.host.device import LaunchDevice
from tokendraw_triton_gumbel.host.geometry import Geometry
from tokendraw_triton_gumbel.host.params_layout import ParamsKind
from tokendraw_triton_gumbel.host.tuning import Configuration
from tokendraw_triton_gumbel.host.variant import (
    LOGITS,
    Rows,
    Target,
    Variant,
    VerifyVariant,
    layout_of,
)
from tokendraw_triton_gumbel.kernels.shared import row_params

if TYPE_CHECKING:
    from tokendraw_triton_gumbel.ranks.sampler import ShardSampler

_MOST_CALLS, _MOST_SIZES = 256, 2048
"""Most kinds of calls that are remembered, and most sizes of all of them."""
_K = TypeVar("_K")
_V = TypeVar("_V")
_DRAFT: int = row_params.DRAFT.value


class TritonGumbelSampler:
    """Triton kernels for NVIDIA and AMD. Made by ``tokendraw.load_sampler("triton-gumbel")``."""

    def __init__(self, device: torch.device, need: Need) -> None:
        self._mode = need.logprobs_mode
        self._ranked = need.logprob_ranks
        self._calls: dict[object, Call] = {}
        self._prepared: dict[object, tuple[Call, Geometry]] = {}
        here = LaunchDevice.of(device)
        self._current_device, self._arguments = here.current, here.arguments
        self._is_interpreted = here.is_interpreted
        self._target = Target(here.family, here.processors, need.gumbel_dtype == "fp64")
        self._sharded = functools.cache(lambda: _shard_sampler(here, self._target, need))

    def sample(
        self,
        logits: Tensor,
        metadata: SamplingMetadata,
        *,
        draft: bool = False,
        shard: VocabShard | None = None,
    ) -> SamplerOutput:
        """Draw one token a row; see :class:`tokendraw.plugin.VerifierBackend`."""
        if shard is not None:
            return self._sharded().sample(logits, metadata, shard)
        return self._draw(logits, metadata, _DRAFT if draft else 0)

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
        is_coupled = mode == "coupled" or metadata.facts.all_greedy
        return self._verify(target_logits, drafts, metadata, is_coupled=is_coupled)

    def _draw(self, logits: Tensor, m: SamplingMetadata, flags: int) -> SamplerOutput:
        if logits.get_device() != self._current_device():
            with torch.cuda.device(logits.device):
                return self._draw(logits, m, flags)
        rows, params = logits.shape[0], params_layout.tensors_of(m)
        size = (rows, 0, 0, 0)
        asked, placed = params_layout.kind_of(m), params_layout.are_placed_densely(m)
        prepared = self._prepared.get((size, None, _kind(logits), asked, placed))
        if prepared is None:
            if not rows:
                return nothing_drawn(logits, m, ranked=self._ranked)
            logits = one_behind_the_other(logits)
            if not (asked.dense and placed):
                params = params_layout.readable(params)
                asked = params_layout.kind_by(m.facts, params)
            prepared = self._prepare(size, None, logits, m.facts, asked)
        call, geometry = prepared
        run = Run(call, geometry, logits, params, self._arguments, flags)
        token_ids, valid = call.whole.new_empty(rows), call.truth.new_empty(rows)
        if call.logprobs is None:
            run.launch(call.draw.steps(run.operands, (*run.given((token_ids, valid)), None, None)))
            return SamplerOutput(token_ids, valid)
        floors, log_kept = call.real.new_empty(rows), call.real.new_empty(rows)
        ranks, best = call.room_for_logprobs(rows)
        own = best if best is not None and call.describes_drawn else (None, None)
        out, shown = run.given((token_ids, valid, floors, log_kept)), run.given((ranks, *own))
        run.launch(call.draw.steps(run.operands, out, shown=shown))
        logprobs = run.describe(m, (token_ids, floors, log_kept), ranks, best)
        return SamplerOutput(token_ids, valid, logprobs, log_kept)

    def _verify(
        self, target: Tensor, drafts: Drafts, m: SamplingMetadata, *, is_coupled: bool
    ) -> VerifyOutput:
        if target.get_device() != self._current_device():
            with torch.cuda.device(target.device):
                return self._verify(target, drafts, m, is_coupled=is_coupled)
        requests, width, rows = drafts.num_requests, drafts.max_drafts, target.shape[0]
        if not requests:
            return nothing_verified(target, drafts, m, ranked=self._ranked)
        target, q, known = readable_alike(target, drafts, is_coupled=is_coupled or not width)
        ids, offsets = drafts.draft_token_ids.contiguous(), drafts.cu_num_logits.contiguous()
        drafted = 0 if q is None else min(len(q), rows - requests)
        size, params = (rows, requests, drafted, width), params_layout.tensors_of(m)
        read = None if q is None else layout_of(q)
        chain = VerifyVariant.of(known, width, ids.dim(), read, ids.dtype, offsets.dtype)
        asked, placed = params_layout.kind_of(m), params_layout.are_placed_densely(m)
        prepared = self._prepared.get((size, chain, _kind(target), asked, placed))
        if prepared is None:
            if not (asked.dense and placed):
                params = params_layout.readable(params)
                asked = params_layout.kind_by(m.facts, params)
            prepared = self._prepare(size, chain, target, m.facts, asked)
        call, geometry = prepared
        verify = call.verify
        assert verify is not None  # that is what was asked for
        run = Run(call, geometry, target, params, self._arguments)
        token_ids, valid = call.whole.new_empty(requests, width + 1), call.truth.new_empty(requests)
        num_accepted = call.whole.new_empty(requests, dtype=torch.int32)
        shown = None if call.logprobs is None else call.whole.new_zeros(rows)
        ranks, best = call.room_for_logprobs(rows)
        its_q, its_ids, its_offsets, its_ranks = run.given((q, ids, offsets, ranks))
        run.launch(
            verify.steps(
                run.operands,
                run.given((token_ids, num_accepted, valid, token_ids if shown is None else shown)),
                drafts=(its_q, None if q is None else q.stride(0)),
                chain=(its_ids, ids.shape[-1], its_offsets),
                ranks=its_ranks,
            )
        )
        if shown is None:
            return VerifyOutput(token_ids, num_accepted, valid)
        floors, log_kept = (run.by_row(piece) for piece in verify.exactly[:2])
        logprobs = run.describe(m, (shown, floors, log_kept), ranks, best)
        steps = offsets, num_accepted, width
        masses = log_kept_mass_by_step(log_kept, *steps)
        return VerifyOutput(token_ids, num_accepted, valid, logprobs_by_step(logprobs, *steps), masses)

    def _prepare(
        self,
        size: tuple[int, int, int, int],
        chain: VerifyVariant | None,
        logits: Tensor,
        facts: BatchFacts,
        asked: ParamsKind,
    ) -> tuple[Call, Geometry]:
        """Return what calls like this one have in common, and what those of its size have, and remember both.

        :param size: the numbers of :class:`.host.variant.Size`.
        """
        kind = chain, _kind(logits), asked, True
        rows, _, drafted, _ = size
        all_rows = rows + (drafted if chain is not None and chain.known == LOGITS else 0)
        how = tuning.chosen(self._target.family, all_rows)
        call = self._calls.get((how, *kind))
        if call is None:
            variant = self._variant(logits, facts, how, asked, chain)
            call = Call(variant, self._target, self._mode, logits.device)
            if not self._is_interpreted:
                call.compile()
            _remember(self._calls, (how, *kind), call, _MOST_CALLS)
        prepared = (call, call.geometry(size))
        _remember(self._prepared, (size, *kind), prepared, _MOST_SIZES)
        return prepared

    def _variant(
        self,
        logits: Tensor,
        facts: BatchFacts,
        how: Configuration,
        asked: ParamsKind,
        verify: VerifyVariant | None,
    ) -> Variant:
        read, vocab_size = Rows.of(layout_of(logits)), logits.shape[1]
        beside = verify.q if verify is not None and verify.known == LOGITS else None
        temperature, _, seed, *_ = asked.types
        return Variant(
            logits=read,
            vocab_size=vocab_size,
            filtered=asked.filtered,
            num_best=facts.logprobs_width(vocab_size),
            ranked=self._ranked,
            raw=asked.max_logprobs is not None and self._mode == "raw_logprobs" and temperature is not None,
            paired=read.paired and (beside is None or beside.paired),
            how=how,
            params=asked.types,
            fresh=seed is None or not asked.all_seeded,
            verify=verify,
        )


def _shard_sampler(here: LaunchDevice, target: Target, need: Need) -> ShardSampler:
    """Make what serves ranks: few callers need it, so that its modules are imported here."""
    from tokendraw_triton_gumbel.ranks.sampler import ShardSampler

    return ShardSampler(here, target, need)


def _kind(logits: Tensor) -> tuple[object, ...]:
    """Return what of logits decides how they are read, beside the number of rows."""
    vocab_size, address, device = logits.shape[1], logits.data_ptr() % 16, logits.get_device()
    return vocab_size, logits.stride(), logits.dtype, address, device, tuning.forced_here()


def _remember(memory: dict[_K, _V], key: _K, value: _V, most: int) -> None:
    """Keep a value; where there are too many, drop them all, since those in use come back soon."""
    if len(memory) >= most:
        memory.clear()
    memory[key] = value

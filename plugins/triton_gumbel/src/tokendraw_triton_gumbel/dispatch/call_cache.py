"""The compiled calls of a sampler, by variant, and their geometry, by batch size."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from tokendraw import BatchFacts, Need
from tokendraw_triton_gumbel.dispatch.compiled_call import CompiledCall
from tokendraw_triton_gumbel.host import tuning
from tokendraw_triton_gumbel.host.bounded_cache import BoundedCache
from tokendraw_triton_gumbel.host.geometry import Geometry
from tokendraw_triton_gumbel.host.params_layout import ParamsLayout
from tokendraw_triton_gumbel.host.row_layout import RowAccess, row_layout
from tokendraw_triton_gumbel.host.tuning import Configuration
from tokendraw_triton_gumbel.host.variant import LOGITS, Target, Variant, VerifyVariant

_MAX_CALLS, _MAX_SIZES = 256, 2048
"""Upper limits of cached variants, and of cached batch sizes of all variants."""
SCORE: Literal["score"] = "score"
SAMPLED_SCORE: Literal["sampled score"] = "sampled score"
"""Kinds of calls that score given tokens: where a row may be greedy, and where none is."""
RowKind = Literal["score", "sampled score"] | None
CallKind = VerifyVariant | RowKind
CallKey = tuple[object, ...]


def logits_key(logits: Tensor) -> tuple[object, ...]:
    """Return the part of a cache key that depends on logits, without the number of rows."""
    vocab_size, alignment, device = logits.shape[1], logits.data_ptr() % 16, logits.get_device()
    return vocab_size, logits.stride(), logits.dtype, alignment, device, tuning.current_override()


class CallCache:
    """The compiled calls of a sampler.

    Their keys are types, strides and alignment of the tensors of a batch and which parameters it has. Values and
    addresses are no part of a key, so tensors may change in place or be replaced.
    """

    def __init__(self, need: Need) -> None:
        self._need = need
        self.by_variant: BoundedCache[CallKey, CompiledCall] = BoundedCache(_MAX_CALLS)
        self.by_size: BoundedCache[CallKey, tuple[CompiledCall, Geometry]] = BoundedCache(_MAX_SIZES)
        """By (numbers of ``CallSize``, :data:`CallKind`, ``logits_key``, ``ParamsLayout``, True)."""

    def add(
        self,
        target: Target,
        size: tuple[int, int, int, int],
        kind: CallKind,
        logits: Tensor,
        facts: BatchFacts,
        layout: ParamsLayout,
    ) -> tuple[CompiledCall, Geometry]:
        """Look up or build, then cache, the compiled call of a variant and the geometry of a batch size.

        :param size: the numbers of :class:`.host.variant.CallSize`.
        :param kind: None for a draw.
        :param layout: of contiguous parameters.
        """
        key = kind, logits_key(logits), layout, True
        rows, _, draft_rows, _ = size
        if isinstance(kind, VerifyVariant) and kind.draft_kind == LOGITS:
            rows += draft_rows
        configuration = tuning.configuration_for(target.family, rows)
        call = self.by_variant.get((configuration, *key))
        if call is None:
            variant = self._variant(logits, facts, configuration, layout, kind)
            call = CompiledCall(variant, target, self._need.logprobs_mode, logits.device)
            self.by_variant.add((configuration, *key), call)
        return self.by_size.add((size, *key), (call, call.geometry(size)))

    def _variant(
        self,
        logits: Tensor,
        facts: BatchFacts,
        configuration: Configuration,
        layout: ParamsLayout,
        kind: CallKind,
    ) -> Variant:
        verify = kind if isinstance(kind, VerifyVariant) else None
        is_scored, mode = kind in (SCORE, SAMPLED_SCORE), self._need.logprobs_mode
        access, vocab_size = RowAccess.of(row_layout(logits)), logits.shape[1]
        draft_access = verify.q if verify is not None and verify.draft_kind == LOGITS else None
        temperature, _, seed, *_ = layout.dtypes
        num_best = facts.logprobs_width(vocab_size)
        # An entropy is that of a softmax, also in a mode that shows logits.
        normalises = mode == "raw_logprobs" or (is_scored and mode == "raw_logits")
        return Variant(
            logits=access,
            vocab_size=vocab_size,
            has_filters=layout.has_filters,
            num_best=num_best or 0 if is_scored else num_best,
            wants_ranks=self._need.logprob_ranks,
            given_dtype=layout.given_dtype,
            wants_least_kept=self._need.threshold,
            has_raw_sums=(layout.max_logprobs is not None or is_scored)
            and normalises
            and temperature is not None,
            is_aligned=access.is_aligned and (draft_access is None or draft_access.is_aligned),
            configuration=configuration,
            param_dtypes=layout.dtypes,
            has_fresh_seeds=not is_scored and (seed is None or not layout.all_seeded),
            verify=verify,
            is_scored=is_scored,
            is_drawn=kind != SAMPLED_SCORE or layout.has_filters,
            has_entropy_sums=is_scored and not (layout.has_filters and mode.startswith("processed")),
            moments=layout.moments,
            interval=layout.interval,
        )

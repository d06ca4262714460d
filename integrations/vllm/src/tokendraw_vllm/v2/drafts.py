"""Drafts of the V2 runner: laid out for a verification, and drawn in the place of ``gumbel_sample`` of the speculators.

vLLM draws a draft at the temperature of its request and without filters, and keeps the logits for the verification. So
does tokendraw, in one draw and one further launch. The noise is that of drafts, which verifications do not use. It
depends on the step of a draft too, as that of vLLM 0.33.0 does: a position that is drafted again, by the verification
behind the one that rejected it, gets other noise. ``block`` needs this, since a rejection there tells of the drafts
behind the first rejected one; ``rejection`` looks at none of them, so it would do without.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tokendraw import BatchFacts, Drafts, SamplingMetadata
from tokendraw.speculative import target_rows
from tokendraw_vllm import _parts
from tokendraw_vllm._replacement import Replacement
from tokendraw_vllm.v2.parameters import MAX_CACHED, make_metadata


class VerifiedRows(NamedTuple):
    """The arguments of a verification in vLLM: the rows of a request in succession, the bonus row last."""

    logits: Tensor
    """[L, V], of the target."""
    draft_logits: Tensor | None
    """[slots, K, V]: logits by slot and step that vLLM drew drafts from; None: the drafts were chosen."""
    fed: Tensor
    """[L] integer: the token fed at each row: a draft, but for the first row of a request; -1 for none."""
    positions: Tensor
    """[L] integer."""
    cu_num_logits: Tensor
    """[B + 1] integer: first row of each request."""
    requests: np.ndarray
    """[B]: slots of vLLM, on the host."""
    slot_of_row: Tensor
    """[L] integer."""
    step_of_row: Tensor
    """[L] integer: index of the row in its request."""
    judged: Tensor
    """[L] integer: ``fed``, but -1 for drafts that a grammar refuses."""
    may_compact: bool = False
    """Whether the device may have dropped drafts, so that rows from ``cu_num_logits[B]`` on belong to no request."""

    @property
    def refuses_none(self) -> bool:
        """Whether ``judged`` is ``fed``, as the host knows."""
        return self.judged.data_ptr() == self.fed.data_ptr()

    def drafts(self, most: int, temperature: Tensor, *, verifies: bool) -> Drafts:
        """Lay out the drafts for a verification, or for edits before it, without a value read on the host.

        Where every request has as many drafts, the host knows all offsets, so their tensors are kept between steps.

        :param temperature: [slots] float32.
        """
        fed = self.judged if verifies else self.fed
        count, requests = self.logits.shape[0], self.cu_num_logits.shape[0] - 1
        steps = count // requests
        is_uniform = count == steps * requests and (requests == 1 or steps == most + 1)
        if is_uniform and not self.may_compact:
            offsets, judging = _uniform(requests, steps, fed.device)
            ids = fed.reshape(requests, steps)[:, 1:].to(torch.int64).flatten()
        else:
            offsets = self.cu_num_logits.to(torch.int64)
            judging = target_rows(offsets, count - requests)
            ids = fed.index_select(0, judging + 1).to(torch.int64)
        probs = None
        if verifies and self.draft_logits is not None:
            probs = self._probabilities(self.draft_logits, judging, temperature)
        return Drafts(draft_token_ids=ids, cu_num_logits=offsets, draft_probs=probs, max_drafts=most)

    def _probabilities(self, draft_logits: Tensor, judging: Tensor, temperature: Tensor) -> Tensor:
        """Return the probabilities that drafts were drawn with: [D, V] float32.

        A greedy row accepts its argmax, whatever probability below 1 the draft has.
        """
        if draft_logits.device.type != "cpu":
            from tokendraw_vllm.v2.draft_kernels import JudgedRows, draft_probabilities

            judged = JudgedRows(judging, self.slot_of_row, self.step_of_row, temperature, draft_logits)
            probs: Tensor = draft_probabilities(judged)
            return probs
        slots = self.slot_of_row.index_select(0, judging)
        divisors = temperature.index_select(0, slots)
        divisors = torch.where(divisors == 0.0, 1.0, divisors).unsqueeze(1)
        logits = draft_logits[slots, self.step_of_row.index_select(0, judging).to(torch.int64)]
        return torch.softmax(logits.to(torch.float32).div_(divisors), 1)


@functools.lru_cache(MAX_CACHED)
def _uniform(requests: int, steps: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return offsets [B + 1] and judging rows [L - B] of requests with as many drafts each, whose tensors are kept."""
    rows = torch.arange(requests * steps + 1, device=device)
    return rows[::steps].contiguous(), rows[:-1].view(requests, steps)[:, :-1].flatten()


_FACTS = BatchFacts(max_top_k=0, any_top_p=False, any_min_p=False, any_joint=False, filters=())
_drafters: dict[torch.device, Drafter] = {}
"""By device: the draw that vLLM's speculators call has no other way to the sampler."""


def install(device: torch.device, vocab_size: int, wait_for_load: Callable[[], Replacement | None]) -> None:
    """Have the speculators of this process draw drafts through tokendraw, those of the target's vocabulary."""
    from vllm.v1.worker.gpu.spec_decode import speculator

    _drafters[device] = Drafter(vocab_size, wait_for_load)
    _parts.replace_once(speculator, "gumbel_sample", lambda original: _parts.served(original, Call, draw))


class Call(NamedTuple):
    """The arguments of ``gumbel_sample``."""

    logits: Tensor
    expanded_idx_mapping: Tensor
    temperature: Tensor
    seed: Tensor
    pos: Tensor
    apply_temperature: bool
    is_drafting: bool
    logits_cache: Tensor | None = None
    logits_cache_col: Tensor | None = None
    use_fp64: bool = False


def draw(call: Call) -> Tensor | None:
    drafter = _drafters.get(call.logits.device)
    return None if drafter is None else drafter.draw(call)


class Drafter:
    """Draws the drafts of a device."""

    def __init__(self, vocab_size: int, wait_for_load: Callable[[], Replacement | None]) -> None:
        self._vocab_size = vocab_size
        self._replacement = functools.cache(wait_for_load)
        self._metadata: SamplingMetadata | None = None

    def draw(self, call: Call) -> Tensor | None:
        """Draw a draft in each row: [rows] int64; None where vLLM draws."""
        replacement, logits = self._replacement(), call.logits
        cache, steps = call.logits_cache, call.logits_cache_col
        if replacement is None or _parts.DRAFTING not in replacement.serves or cache is None or steps is None:
            return None
        if not (call.apply_temperature and call.is_drafting) or logits.shape[1] != self._vocab_size:
            return None
        if cache.shape[2] < self._vocab_size or cache.dtype != logits.dtype:
            return None

        def draft() -> Tensor:
            from tokendraw_vllm.v2.draft_kernels import DraftRows, keep_logits

            located = keep_logits(DraftRows(logits, call.expanded_idx_mapping, call.pos, steps, cache))
            metadata = self._of_slots(call.temperature, call.seed).for_rows(*located)
            return replacement.sampler.draft(logits, metadata).token_ids

        return replacement.attempt(_parts.DRAFTING, draft)

    def _of_slots(self, temperature: Tensor, seeds: Tensor) -> SamplingMetadata:
        """Describe the columns of the slots. vLLM keeps them, so that the samplers' caches hold."""
        kept = self._metadata
        if kept is None or kept.temperature is not temperature or kept.seed is not seeds:
            columns = {"temperature": temperature, "seeds": seeds}
            self._metadata = kept = make_metadata(columns, _FACTS, {}, has_seeds=True)
        return kept

"""Verifies drafts by ``chain_speculative_sampling``: every request has K drafts, drawn from known distributions.

The probabilities p that ``sample`` would draw from are made in full, as are those of the drafts, q. One launch then
verifies every request: a draft x is accepted if ``u * q(x) < p(x)``, and the token after the accepted ones comes from
max(p - q, 0), or from p of the bonus row. The u of each step and the noise of that token are successive numbers of one
Philox sequence a request, so they are independent. Faults of all versions up to 0.7.2, and the remedies:

* u lies in (0, 1], so p(x) = q(x) is rejected where u is 1: p(x) is raised by 1e-6 of itself for the test. That much is
  rounding anyway, in a softmax of float32.
* q(x) = 0 is accepted if p(x) > 0, as is a negative q(x), and ids outside the vocabulary are read. For the test p(x)
  is -inf there, which no u passes.
* Where max(p - q, 0) is 0 throughout, the token is whatever shared memory held. A token with NaN in q is never
  recovered. Such tokens are drawn again by ``sampling_from_probs``, and so are those after a draft that was rejected
  for the reason above. Every call does that, since the host does not know whether there are any.
* ``output_accepted_token_num`` tests the rejected draft a second time. Only ``output_emitted_draft_token_num`` is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from tokendraw import BatchFacts, Drafts, Need, PluginError, SamplerOutput, SamplingMetadata, VerifyOutput
from tokendraw.plugin import PAD_TOKEN_ID, Filter, VerifyMode
from tokendraw.probabilities import MAX_ELEMENTS, Filters
from tokendraw_flashinfer.kernel_sequences import CHAIN, FROM_PROBS, RENORMS, VERIFY
from tokendraw_flashinfer.sampler import MAX_ROWS_OF_RENORM, FlashInferSampler, Functions, kept_probabilities
from tokendraw_flashinfer.signatures import EntryPoints

Noise: TypeAlias = Callable[[], dict[str, Tensor]]
"""Returns seed and offset of a launch, new ones at each call."""

_INF = float("inf")
_ROUNDING_MARGIN = 1 + 2.0**-20
_ALIGNMENT = 16
"""Bytes that a kernel loads at once."""


@dataclass(frozen=True, kw_only=True)
class Chains:
    """Requests with K >= 1 drafts each, and all inputs of a launch."""

    p: Tensor
    """[B, K + 1, V] float32, contiguous. Written to."""
    q: Tensor
    """[B, K, V] float32, contiguous, as the caller gave it."""
    ids: Tensor
    """[B, K] int64."""
    p_valid: Tensor
    """[B, K + 1] bool."""
    q_valid: Tensor
    """[B, K] bool."""

    def walk(self, functions: Functions, noise: Noise) -> VerifyOutput:
        """Walk the chains, by two launches."""
        vocab_size, max_drafts = self.p.shape[-1], self.ids.shape[-1]
        is_token = (self.ids >= 0) & (self.ids < vocab_size)
        ids = torch.where(is_token, self.ids, 0).unsqueeze(-1)
        judging = self.p[:, :-1]
        at_p, at_q = judging.gather(-1, ids), self.q.gather(-1, ids)
        is_possible = is_token & ((at_q > 0) & (at_q < _INF)).squeeze(-1)  # NaN is neither
        judging.scatter_(-1, ids, torch.where(is_possible.unsqueeze(-1), at_p * _ROUNDING_MARGIN, -_INF))
        tokens, _, count = functions[CHAIN.entry_point](self.q, ids.squeeze(-1).int(), self.p, **noise())
        judging.scatter_(-1, ids, at_p)

        tokens, count = tokens.long(), count.long()
        request, draft_index = torch.arange(len(count), device=count.device), count.clamp(max=max_drafts - 1)
        p = self.p[request, count]
        q = _clean(self.q[request, draft_index]).mul_(is_token[request, draft_index].unsqueeze(-1))
        last = tokens.gather(-1, count.unsqueeze(-1))
        in_vocab = (last >= 0) & (last < vocab_size)
        last = torch.where(in_vocab, last, 0)
        has_more = (p.gather(-1, last) > q.gather(-1, last)).squeeze(-1)
        recovered = (is_possible & self.q_valid)[request, draft_index] & has_more
        is_final = in_vocab.squeeze(-1) & (recovered | (count == max_drafts))
        redrawn = functions[FROM_PROBS.entry_point](_residual(p, q), **noise()).long()
        last = torch.where(is_final, last.squeeze(-1), redrawn)

        steps = torch.arange(max_drafts + 1, device=count.device)
        is_emitted = steps <= count.unsqueeze(-1)
        tokens = torch.where(is_emitted, tokens, PAD_TOKEN_ID)
        tokens = tokens.scatter_(-1, count.unsqueeze(-1), last.unsqueeze(-1))
        q_valid = (self.q_valid | ~is_token | ~is_emitted[:, :-1]).all(-1)
        return VerifyOutput(tokens, count.to(torch.int32), (self.p_valid | ~is_emitted).all(-1) & q_valid)


class FlashInferVerifier(FlashInferSampler):
    """Chain verification. Made by ``tokendraw.load_sampler("flashinfer").verify``.

    It keeps all ties whatever ``need`` allows, since the target's filters and the drafts' have to keep the same tokens.

    :raises PluginError: the installed FlashInfer cannot verify drafts.
    """

    def __init__(self, device: torch.device, need: Need, *, max_elements: int = MAX_ELEMENTS) -> None:
        entry_points = EntryPoints.installed()
        unsupported = entry_points.unsupported(*VERIFY)
        if unsupported is not None:
            raise PluginError(f"verification needs {unsupported}, found no such thing")
        renorms = {name: step for name, step in RENORMS.items() if entry_points.unsupported(step) is None}
        super().__init__(
            device,
            replace(need, tie_rule=None),
            max_elements=max_elements,
            steps=(*VERIFY, *renorms.values()),
        )
        self._warm_up_chains(device, renorms)

    @torch.no_grad()
    def verify(
        self,
        target_logits: Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> VerifyOutput:
        """Verify the drafts of a batch; see :meth:`tokendraw.Sampler.verify`.

        :raises PluginError: the batch needs more than what is advertised, as far as the host knows.
        """
        requests, max_drafts = drafts.num_requests, drafts.max_drafts
        is_unknown = drafts.kind == "chosen" and requests and max_drafts
        if mode != "rejection" or not drafts.is_uniform or is_unknown:
            needed = "the mode rejection and as many drafts of each request"
            raise PluginError(f"needs {needed}, with what they are from")
        logits = target_logits[: requests * (max_drafts + 1)]
        if requests == 0 or max_drafts == 0:
            return _without_drafts(self.sample(logits, metadata), max_drafts)
        vocab_size = logits.shape[-1]
        filters = Filters.of(metadata, vocab_size)
        rows = min(self._max_elements // vocab_size, MAX_ROWS_OF_RENORM)
        step = max(1, rows // (max_drafts + 1))
        ends = ((start, min(start + step, requests)) for start in range(0, requests, step))
        chains = (self._chains(logits, drafts, filters, start, end) for start, end in ends)
        parts = [each.walk(self._functions, self._noise) for each in chains]
        return VerifyOutput(
            torch.cat([part.token_ids for part in parts]),
            torch.cat([part.num_accepted for part in parts]),
            torch.cat([part.valid for part in parts]),
        )

    def _chains(self, logits: Tensor, drafts: Drafts, filters: Filters, first: int, end: int) -> Chains:
        """Return the part of the requests from ``first`` up to ``end``."""
        max_drafts, vocab_size = drafts.max_drafts, logits.shape[-1]
        judging = slice(first * (max_drafts + 1), end * (max_drafts + 1))
        judged = slice(first * max_drafts, end * max_drafts)
        ids = drafts.draft_token_ids
        ids = ids[first:end, :max_drafts] if ids.dim() == 2 else ids[judged].view(-1, max_drafts)
        chunk_filters = filters.chunk(judging)
        p, p_valid = self._kept(logits[judging], chunk_filters)
        if drafts.draft_logits is not None:
            rows = torch.arange(len(p), device=p.device).view(-1, max_drafts + 1)[:, :-1].flatten()
            q, q_valid = self._kept(drafts.draft_logits[judged], chunk_filters.chunk(rows))
        else:
            assert drafts.draft_probs is not None
            q = _align(drafts.draft_probs[judged].float().contiguous())
            least, largest = torch.aminmax(q, dim=-1)  # NaN where the row has one
            q_valid = (least >= 0) & (largest > 0) & (largest < _INF)
        return Chains(
            p=p.view(-1, max_drafts + 1, vocab_size),
            q=q.view(-1, max_drafts, vocab_size),
            ids=ids.long(),
            p_valid=p_valid.view(-1, max_drafts + 1),
            q_valid=q_valid.view(-1, max_drafts),
        )

    def _kept(self, logits: Tensor, filters: Filters) -> tuple[Tensor, Tensor]:
        """Return the probabilities of ``sample``, and the valid rows."""
        probs, valid = self._probabilities(logits, filters.temperature)
        return kept_probabilities(self._batch(probs, filters, logits.shape[-1])), valid

    def _warm_up_chains(self, device: torch.device, filters: Collection[Filter]) -> None:
        """Make the calls of a verification; see :meth:`_warm_up`."""
        probs = torch.full((2, 8), 1 / 8, device=device, dtype=torch.float32)
        drafts = Drafts.from_lists([[0], [1]], device=device, draft_probs=probs)
        one = torch.ones(4, dtype=torch.int32, device=device)
        metadata = SamplingMetadata(
            top_k=one if "top_k" in filters else None,
            top_p=one / 2 if "top_p" in filters else None,
            facts=BatchFacts(max_top_k=None if "top_k" in filters else 0, any_top_p="top_p" in filters),
        )
        self.verify(torch.zeros(4, 8, device=device, dtype=torch.float32), drafts, metadata)


def _without_drafts(output: SamplerOutput, max_drafts: int) -> VerifyOutput:
    tokens = output.token_ids.unsqueeze(-1)
    if not len(tokens):
        tokens = tokens.new_empty(0, max_drafts + 1)
    return VerifyOutput(tokens, torch.zeros_like(output.token_ids, dtype=torch.int32), output.valid)


def _residual(p: Tensor, q: Tensor) -> Tensor:
    """Return max(p - q, 0) [n, V] with a sum of 1; p in rows without a positive difference."""
    more = (p - q).clamp_(min=0.0)
    mass = more.sum(-1, keepdim=True)
    return torch.where(mass > 0, more.div_(mass), p)


def _clean(q: Tensor) -> Tensor:
    """Set NaN, negative and infinite probabilities to 0, in place."""
    return q.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).clamp_(min=0.0)


def _align(x: Tensor) -> Tensor:
    return x.clone() if x.data_ptr() % _ALIGNMENT else x

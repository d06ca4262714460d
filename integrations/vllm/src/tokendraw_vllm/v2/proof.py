"""A proof that a vLLM that was not tested means by its seams what tested ones mean, part by part, before a request.

A made-up batch goes through new states of vLLM's own classes. tokendraw's tokens are held against those of native, its
reference in plain PyTorch, on the same rows, and against the tokens that vLLM's own edits and filters keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import tokendraw
from tokendraw import Drafts, Need, Sampler, SamplingMetadata, SamplingParams
from tokendraw.engines import format_error
from tokendraw_vllm._engine import untested
from tokendraw_vllm._parts import (
    DRAFTING,
    EDITING,
    SAMPLER,
    SCORING,
    VERIFICATION,
    choose_for_all,
    log_kept,
    log_replaced,
)
from tokendraw_vllm._replacement import REFERENCE, Replacement
from tokendraw_vllm.v2 import logprobs

if TYPE_CHECKING:
    from tokendraw.plugin import VerifyMode
    from tokendraw_vllm.v2.loading import Setup

_PLAIN: Sequence[Mapping[str, Any]] = (
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 6},
    {"top_p": 0.9},
    {"temperature": 1.3, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 12, "top_p": 0.8, "min_p": 0.02},
    {},
)
_EDITED: Sequence[Mapping[str, Any]] = (
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 1.0},
    {"logit_bias": {3: 2.5, 9: -4.0}},
    {"allowed_token_ids": [1, 4, 9, 17], "min_tokens": 2, "stop_token_ids": [4]},
)
_PROMPT = [1, 2, 3, 3]
"""Repeated in the later requests, so that each has a position of its own."""
_HEAD = 32
"""Number of logits of a row that matter. They differ by 1/4, exact in every dtype: no tie stands at a filter's edge."""
_STEPS = 4


def prove(proof: Proof, replacement: Replacement) -> Replacement | None:
    """Leave to vLLM the parts that fail their proof, with a line in the log; None: all of them."""
    reasons = proof.failures()
    of_all = choose_for_all(lambda: reasons)
    if of_all is not None and of_all != reasons:
        raise RuntimeError(f"{untested()}, and ranks differ in what they prove: {of_all} and {reasons}")
    for part, reason in reasons.items():
        log_kept(f"{untested()}, and its proof failed: {reason}", part=part)
    if SAMPLER in reasons or SCORING in reasons:
        logprobs.forget_scorers()
    if EDITING in reasons:
        replacement.processor = None
    replacement.verifies &= reasons.keys().isdisjoint((SAMPLER, VERIFICATION))
    replacement.draws_drafts &= replacement.verifies and DRAFTING not in reasons
    if SAMPLER in reasons:
        return None
    log_replaced(SAMPLER, f"{replacement.by}, untested: its seams are whole and a proof passed")
    return replacement


class Proof:
    """The made-up batches of a sampler of vLLM."""

    def __init__(
        self, make: Callable[[int], tuple[Any, Any]], config: Any, setup: Setup, replacement: Replacement
    ) -> None:
        """Hold what the batches need.

        :param make: makes a sampler of vLLM with a number of slots, with tokendraw in it, and its ``RequestState``.
        :param config: vLLM's configuration.
        """
        self._make, self._config, self._setup, self._replacement = make, config, setup, replacement

    def failures(self) -> dict[str, str]:
        """Return the reason by part of vLLM, of those that tokendraw is about to replace."""
        served = self._replacement
        checks: dict[str, tuple[bool, Callable[[], str | None]]] = {
            SAMPLER: (True, lambda: self._draws(_PLAIN)),
            EDITING: (served.processor is not None, lambda: self._draws(_EDITED)),
            VERIFICATION: (served.verifies, self._verifies),
            DRAFTING: (served.draws_drafts, self._drafts),
            SCORING: (served.scores, self._scores),
        }
        found: dict[str, str] = {}
        for part, (is_served, check) in checks.items():
            if is_served and SAMPLER not in found:
                try:
                    reason = check()
                except Exception as error:  # of vLLM's too: what it needs has changed
                    reason = format_error(error)
                if reason is not None:
                    found[part] = reason
        return found

    def _draws(self, asked: Sequence[Mapping[str, Any]]) -> str | None:
        batch = _Batch(self._make, asked, 0, self._setup.device)
        for step in range(_STEPS):
            logits = self._logits(len(asked), step)
            tokens, _ = batch.sampler.sample(logits, *batch.layout)
            kept = batch.sampler.apply_sampling_params(logits, *batch.layout)
            rows, params = (kept, [{}] * len(asked)) if asked is _EDITED else (logits, asked)
            expected = self._native().sample(rows, batch.metadata(params)).token_ids
            reason = difference(tokens, expected, kept)
            if reason is not None:
                return reason
        return None

    def _verifies(self) -> str | None:
        """Verify drafts that native draws too, and in every second request others, which are refused."""
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

        drafts, device, count = self._setup.drafts, self._setup.device, len(_PLAIN)
        assert drafts is not None
        most = drafts.most
        batch = _Batch(self._make, _PLAIN, most, device)
        logits, native = self._logits(count * (most + 1), 0), self._native()
        each = [asked for asked in _PLAIN for _ in range(most + 1)]
        given = native.sample(logits, batch.metadata(each)).token_ids.view(count, -1)[:, :most].clone()
        given[1::2] = (given[1::2] + 1) % self._setup.vocab_size
        batch.fed[:, 1:] = given
        verifier = RejectionSampler(batch.sampler, self._config.speculative_config, device)
        mapping, requests, on_host, positions, fed, steps, lengths = batch.layout
        offsets = torch.arange(0, len(mapping) + 1, most + 1, dtype=torch.int32, device=device)
        kept = batch.sampler.apply_sampling_params(logits, *batch.layout)
        drawn = self._logits(count * most, 1).float().view(count, most, -1)
        divisors = torch.tensor([asked.get("temperature", 1.0) or 1.0 for asked in _PLAIN], device=device)
        modes: list[VerifyMode] = ["coupled"] if drafts.mode is None else ["coupled", drafts.mode]
        for mode in modes:
            by_slot = probs = None
            if mode != "coupled":
                by_slot = torch.empty_like(drawn).index_copy_(0, requests.long(), drawn)
                probs = (drawn / divisors[:, None, None]).softmax(-1).flatten(0, 1)
            _, tokens, counts = verifier._verify(
                logits, by_slot, fed, positions, offsets, requests, on_host, mapping, steps, lengths, fed
            )
            output = native.verify(
                logits,
                Drafts.from_lists(given.tolist(), draft_probs=probs, device=device),
                batch.metadata(_PLAIN, first_rows=True),
                mode=mode,
            )
            is_emitted = torch.arange(most + 1, device=device) < counts[:, None]
            needed, found = (output.num_accepted + 1).tolist(), counts.tolist()
            if needed != found:
                return f"needs {needed} tokens in the mode {mode!r}, found {found}"
            reason = difference(
                tokens[is_emitted], output.token_ids[is_emitted], kept.view(*is_emitted.shape, -1)[is_emitted]
            )
            if reason is not None:
                return reason
        return None

    def _drafts(self) -> str | None:
        from vllm.v1.worker.gpu.spec_decode import speculator

        setup, batch = self._setup, _Batch(self._make, _PLAIN, 0, self._setup.device)
        assert setup.drafts is not None
        logits, step, states = (
            self._logits(len(_PLAIN), 0),
            setup.drafts.most - 1,
            batch.sampler.sampling_states,
        )
        cache = logits.new_zeros(len(_PLAIN), step + 1, setup.vocab_size)
        tokens = speculator.gumbel_sample(
            logits,
            batch.layout[0],
            states.temperature.gpu,
            states.seeds.gpu,
            batch.layout[3],
            apply_temperature=True,
            is_drafting=True,
            logits_cache=cache,
            logits_cache_col=torch.tensor(step, device=setup.device),
            use_fp64=setup.use_fp64,
        )
        asked = [{"temperature": each.get("temperature", 1.0)} for each in _PLAIN]
        drafted = self._native().draft(logits, batch.metadata(asked, shift=step << 32))
        if not torch.equal(cache[batch.layout[1].long(), step], logits):
            return "the logits of drafts are not kept by slot and step"
        return difference(tokens, drafted.token_ids, logits)

    def _scores(self) -> str | None:
        from vllm.v1.worker.gpu.sample import sampler

        logits = self._logits(len(_PLAIN), 0)
        arguments = logits, 4, logits.topk(3).indices[:, 2].contiguous()
        named = {"logits_mode": self._setup.logprobs_mode.endswith("logits")}
        scored = getattr(sampler, logprobs.FUNCTION)
        mine, own = scored(*arguments, **named), scored.__wrapped__(*arguments, **named)
        for name, tolerance in (
            ("logprob_token_ids", 0.0),
            ("selected_token_ranks", 0.0),
            ("logprobs", 1e-3),
        ):
            if not torch.allclose(
                getattr(mine, name).double(), getattr(own, name).double(), rtol=0.0, atol=tolerance
            ):
                return f"{name} differ from those of vLLM's own"
        return None

    def _logits(self, rows: int, step: int) -> Tensor:
        return made_up_logits(rows, self._setup.vocab_size, self._setup.dtype, self._setup.device, step)

    def _native(self) -> Sampler:
        return reference(self._setup.device, use_fp64=self._setup.use_fp64)


class _Batch:
    """Requests in new states of vLLM's, with a row each, or K + 1."""

    def __init__(
        self,
        make: Callable[[int], tuple[Any, Any]],
        asked: Sequence[Mapping[str, Any]],
        most: int,
        device: torch.device,
    ) -> None:
        from vllm.sampling_params import SamplingParams as VllmParams

        self._asked, self._most, self._device = asked, most, device
        self.sampler, states = make(len(asked))
        slots, lengths = [], np.array([len(_PROMPT) * (i + 1) for i in range(len(asked))], dtype=np.int32)
        for i, parameters in enumerate(asked):
            states.add_request(str(i), int(lengths[i]), _PROMPT * (i + 1), 0, most + 1)
            slots.append(states.req_id_to_index[str(i)])
            self.sampler.add_request(slots[i], VllmParams(seed=i + 1, **parameters))
        states.apply_staged_writes()
        self.sampler.apply_staged_writes()
        rows = most + 1
        steps = np.tile(np.arange(rows), len(asked))
        self._positions = np.repeat(lengths - 1, rows) + steps
        self.fed = torch.full((len(asked), rows), _PROMPT[-1], dtype=torch.int32, device=device)
        on_device = [
            torch.tensor(values, dtype=torch.int32, device=device)
            for values in (np.repeat(slots, rows), slots, steps)
        ]
        positions = torch.tensor(self._positions, dtype=torch.int64, device=device)
        self.layout: tuple[Any, ...] = (
            *on_device[:2],
            np.array(slots),
            positions,
            self.fed.view(-1),
            on_device[2],
            lengths + most,
        )
        """Arguments of vLLM's methods behind the logits."""

    def metadata(
        self, asked: Sequence[Mapping[str, Any]], *, first_rows: bool = False, shift: int = 0
    ) -> SamplingMetadata:
        """Describe rows to native, with parameters for each; ``first_rows``: one of each request."""
        each = 1 if first_rows else self._most + 1
        params = [SamplingParams(seed=i // each + 1, **parameters) for i, parameters in enumerate(asked)]
        positions = self._positions[:: self._most + 1] if first_rows else self._positions
        return SamplingMetadata.from_params(
            params, positions=(positions + shift).tolist(), device=self._device
        )


def reference(device: torch.device, *, use_fp64: bool) -> Sampler:
    """Load native, the reference in plain PyTorch."""
    return tokendraw.load_sampler(
        REFERENCE, device=device, need=Need(gumbel_dtype="fp64" if use_fp64 else "fp32")
    )


def made_up_logits(
    rows: int, vocab_size: int, dtype: torch.dtype, device: torch.device, step: int = 0
) -> Tensor:
    """Make up logits [rows, V]: falling by 1/4 over a few ids, and far below them elsewhere."""
    generator, head = torch.Generator().manual_seed(step), min(_HEAD, vocab_size)
    logits = torch.full((rows, vocab_size), -12.0)
    for row in logits:
        row[torch.randperm(vocab_size, generator=generator)[:head]] = 8.0 - torch.arange(head) / 4
    return logits.to(device, dtype)


def difference(tokens: Tensor, expected: Tensor, kept: Tensor) -> str | None:
    """Say how drawn tokens differ from native's, or that vLLM drops one; None: they are right.

    :param tokens: [rows] integer; ``expected`` too.
    :param kept: [rows, V]: vLLM's logits, -inf where its edits and filters drop a token.
    """
    drawn, native = tokens.tolist(), expected.tolist()
    if drawn != native:
        return f"needs the tokens {native} that '{REFERENCE}' draws, found {drawn}"
    is_dropped = kept.gather(1, tokens[:, None].long()).squeeze(1) == -float("inf")
    return f"vLLM's own filters drop tokens of {drawn}" if is_dropped.any() else None

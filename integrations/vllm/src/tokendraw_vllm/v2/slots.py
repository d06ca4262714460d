"""The requests of the V2 runner's sampler, and the draws and verifications in its place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from tokendraw import SamplerOutput, VerifyOutput
from tokendraw.plugin import VerifyMode
from tokendraw_vllm import _parts
from tokendraw_vllm._replacement import Replacement
from tokendraw_vllm.v2.drafts import VerifiedRows
from tokendraw_vllm.v2.edits import Edits, have_notes
from tokendraw_vllm.v2.loading import Setup
from tokendraw_vllm.v2.logprobs import needs_processed, processed_logits
from tokendraw_vllm.v2.parameters import NOT_REPLACED, Batch, Batches, Rules

Result = TypeVar("Result")

MOST_PLAIN_ROWS = 256
"""Limit of logits rows of a verification that is left to vLLM, if no row has a filter, a seed or an edit."""

Drawn = tuple[Tensor, Tensor | None]
"""Token ids [rows] int64, and the logits [rows, V] float32, divided and filtered; None: vLLM does not read these."""


class Slots:
    """The parameters of all requests of a sampler of vLLM, and the draws in its place."""

    def __init__(
        self, sampler: Any, setup: Setup, wait_for_load: Callable[[], Replacement | None], *, is_plain: bool
    ) -> None:
        """Hold the states of a new sampler, without requests.

        :param is_plain: whether the sampler's class is vLLM's ``Sampler``. A subclass may do anything between the
            logits and its draw: it gets no filter order, and its edits come before tokendraw's draws.
        """
        self._sampler = sampler
        self._states = sampler.sampling_states
        kind: Any = type(sampler).__base__
        self._name = kind.__name__
        overriding = [each for each in kind.__mro__ if "_sample_random" in vars(each)]
        self._draws_itself = len(overriding) > 1
        """Whether the sampler is of a subclass with a draw of its own: that of watermarks, or one that is not known."""
        self._wait_for_load: Callable[[], Replacement | None] | None = wait_for_load
        self._replacement: Replacement | None = None
        self._raw = is_plain and not setup.need.batch_invariant
        """Whether batches may be drawn from the model's logits. Between these and edited logits the last bit may
        differ, so that a near tie may fall otherwise."""
        self._edits = Edits(sampler, setup.device)
        self._rules = Rules(self._states, setup.device, has_orders=is_plain)
        self._batches = Batches(self._states, self._edits, self._rules, setup.device)
        self._needs_processed = False
        """Whether vLLM reads the filtered logits of the step that it has begun."""
        have_notes([self._states, *self._edits.states])  # last: behind it the flags are filled in here

    def add_request(self, slot: int, sampling_params: Any, add: Callable[[], None]) -> None:
        """Note the parameters of a request, while vLLM's sampler adds the request.

        vLLM keeps one flag for edits and filters together, from which the states' part is withheld: it is added here.
        """
        self._edits.add_request(slot, sampling_params, add, self.can_draw)
        self._sampler.needs_logits_processing[slot] |= self._states.asked
        self._rules.add_request(slot, sampling_params)
        self._batches.forget()

    def can_draw(self) -> bool:
        """Return whether tokendraw draws; the first call waits for the load."""
        if self._wait_for_load is not None:
            self._replacement, self._wait_for_load = self._wait_for_load(), None
            if self._raw and self._replacement is not None and _parts.EDITING in self._replacement.serves:
                self._edits.open(self._replacement.processor)
        return self._replacement is not None and _parts.SAMPLER in self._replacement.serves

    def attempt(self, part: str, step: Callable[[], Result | None]) -> Result | None:
        """Return the result of a step; None if it raises, or if vLLM draws: see :meth:`Replacement.attempt`."""
        if not self.can_draw() or self._replacement is None:
            return None
        return self._replacement.attempt(part, step)

    def draw(
        self, logits: Tensor, given: Sequence[Any], returns_logprobs: bool
    ) -> tuple[Tensor, Tensor] | None:
        """Draw in the place of ``sample``, with its arguments and result; None where vLLM draws."""
        rows, _, requests, positions, input_ids, _, lengths = given
        self._needs_processed = needs_processed(self._sampler, lambda: returns_logprobs)
        batch = self._batches.of(requests)
        if self._edits.follow(batch.edited, input_ids, positions, lengths):
            batch = self._anew(batch)
        drawn = None
        if self._raw and batch.may_draw_raw:
            drawn = self._draw_raw(logits, rows, batch, positions)
        if drawn is None:
            has_order = self._rules.any_order(requests)
            if batch.facts.all_greedy or (self._needs_processed and has_order):
                return None  # vLLM would not have divided the logits that it reads
            if self._draws_itself and not self._is_without_watermark(requests):
                return None
            editor = self._sampler
            if has_order:
                self._batches.refresh()
                editor = self._rules.editor(self._sampler)
            logits = editor.apply_sampling_params(logits, *given, skip_top_k_top_p=True)
            drawn = self._draw(logits, rows, self._batches.of(requests), positions, raw=False)
        token_ids, processed = drawn
        return token_ids, logits if processed is None else processed

    def _anew(self, batch: Batch) -> Batch:
        """Look at a batch again, of which vLLM edits requests from now on that tokendraw edited."""
        self._batches.forget()
        return self._batches.of(batch.requests)

    def _is_without_watermark(self, requests: np.ndarray) -> bool:
        watermarking = getattr(self._sampler, "watermarking", None)
        return watermarking is not None and not watermarking.np[requests].any()

    def log_lost(self, requests: np.ndarray, *, verifies: bool = False) -> None:
        """Name the rules of a batch in the log that vLLM draws, or verifies; it draws greedy batches anyhow."""
        if not self._batches.of(requests).facts.all_greedy:
            reason = "vLLM verifies" if verifies else f"{self._name} of vLLM draws"
            self._rules.log_lost(requests, reason if self.can_draw() else NOT_REPLACED)

    def _draw_raw(self, logits: Tensor, slot_of_row: Tensor, batch: Batch, positions: Tensor) -> Drawn | None:
        """Draw from the model's logits [rows, V], those with edits from an edited copy of their rows.

        A row with edits is drawn beside the others too, without them, and that token is dropped: to leave the row out
        would copy all others.
        """
        edited = batch.edited
        if edited is None:
            return self._draw(logits, slot_of_row, batch, positions, raw=True)
        floats = self._edits.apply(logits, edited)
        if floats is None:
            self._batches.forget()
            return None
        if len(floats) == len(logits):
            return self._draw(floats, slot_of_row, batch, positions, raw=True)
        drawn = self._draw(logits, slot_of_row, batch, positions, raw=True)
        of_edited = self._batches.of(edited.requests)
        own = self._draw(floats, edited.slots, of_edited, edited.of(positions), raw=True)
        for target, values in zip(drawn, own, strict=True):
            if target is not None and values is not None:
                edited.put(target, values)
        return drawn

    def verify(self, verifier: Any, given: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor] | None:
        """Verify drafts in the place of ``_verify``, with its arguments and result; None where vLLM verifies."""
        logits, draft_logits, requests, judged = given[0], given[1], given[6], given[10]
        replacement, batch = self._replacement, self._batches.of(requests)
        if self._edits.catch_up(batch.edited):
            batch = self._anew(batch)
        if (
            replacement is None
            or _parts.VERIFICATION not in replacement.serves
            or not (self._raw and batch.may_draw_raw)
            or (draft_logits is not None and draft_logits.shape[-1] != logits.shape[1])
        ):
            return None
        # vLLM needs less time of the host for few rows without filters, and reads the logits of drawn drafts as they
        # are. Beside chosen drafts the texts of requests with a seed are those of a run without drafts.
        if batch.is_plain and (draft_logits is not None or len(logits) <= MOST_PLAIN_ROWS):
            return None
        self._needs_processed = needs_processed(
            self._sampler, lambda: self._sampler.get_logprobs_dims(requests) is not None
        )
        may_compact = getattr(verifier, "enable_adaptive_verification", False)
        rows = VerifiedRows._make((*given[:5], requests, *given[7:9], judged, may_compact))
        most = verifier.num_speculative_steps
        by_probabilities: VerifyMode = "block" if verifier.use_block_verification else "rejection"
        mode = "coupled" if draft_logits is None else by_probabilities
        metadata = self._batches.metadata(batch, raw=True, seeds_every_row=replacement.seeds_every_row)
        temperature = self._batches.columns["temperature"]  # as the metadata has brought it

        drafts = functools.cache(functools.partial(rows.drafts, most, temperature))
        if batch.edited is not None:
            # chosen drafts that no grammar refuses are laid out once
            is_shared = rows.refuses_none and draft_logits is None
            floats = self._edits.apply(logits, batch.edited, functools.partial(drafts, verifies=is_shared))
            if floats is None:
                self._batches.forget()
                return None
            logits = floats
        located = metadata.for_rows(rows.slot_of_row, rows.positions)
        output = replacement.sampler.verify(logits, drafts(verifies=True), located, mode=mode)
        processed = self._processed(logits, output, rows.slot_of_row, requests, raw=True)
        read = given[0] if processed is None else processed
        return read, output.token_ids, output.num_accepted + 1

    def _draw(
        self, logits: Tensor, slot_of_row: Tensor, batch: Batch, positions: Tensor, *, raw: bool
    ) -> Drawn:
        """Draw a token in each row of logits [rows, V]; ``raw``: temperature and min-p are still to be applied."""
        assert self._replacement is not None
        if not raw and logits.shape[0] == 1 and logits.stride(0) != logits.shape[1]:
            # vLLM's copy of a single row keeps the padding of the model's logits, a copy of several rows does not
            logits = logits[0].unsqueeze(0)
        seeds_every_row = self._replacement.seeds_every_row
        metadata = self._batches.metadata(batch, raw=raw, seeds_every_row=seeds_every_row)
        output = self._replacement.sampler.sample(logits, metadata.for_rows(slot_of_row, positions))
        return output.token_ids, self._processed(logits, output, slot_of_row, batch.requests, raw=raw)

    def _processed(
        self,
        logits: Tensor,
        output: SamplerOutput | VerifyOutput,
        slot_of_row: Tensor,
        requests: np.ndarray,
        *,
        raw: bool,
    ) -> Tensor | None:
        """Write the filtered logits [rows, V] of a draw or a verification, where vLLM reads them."""
        if not self._needs_processed:
            return None
        temperature = self._batches.columns["temperature"].index_select(0, slot_of_row)
        processed = processed_logits(logits, output, temperature)
        if raw:
            self._states.apply_temperature(processed, slot_of_row, requests)
        return processed

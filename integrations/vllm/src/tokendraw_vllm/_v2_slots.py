"""The requests of the V2 runner's sampler, as tokendraw takes them: one entry a slot, copied when a request comes.

vLLM keeps the parameters in pinned host memory that the device reads, in buffers that take turns. A copy in the memory
of the device changes only when a request is added, and lies where it lies, so that a step builds nothing anew but what
the host knows of its rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tokendraw import BatchFacts, SamplingMetadata
from tokendraw_vllm._drawing import Drawing

_DTYPES = {  # those that kernels are compiled for where a parameter is absent, so that its absence compiles nothing
    "temperature": torch.float32,
    "top_k": torch.int64,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "seeds": torch.int64,
}
_MOST_KEPT = 64
"""Number of batches that are kept, and of descriptions, one for each set of facts: mixed traffic may bring many."""


class _Batch(NamedTuple):
    """Holds what the host knows of the requests of a batch."""

    all_greedy: bool
    may_draw_raw: bool
    described: dict[bool, SamplingMetadata]
    """Descriptions without rows, by whether they are of the model's own logits."""


class Slots:
    """The parameters of all requests of one of vLLM's samplers, and the drawing in its place."""

    def __init__(
        self, sampler: Any, loaded: Callable[[], Drawing | None], device: torch.device, *, raw: bool
    ) -> None:
        """Hold the states of a sampler that was just made, without requests.

        :param sampler: vLLM's.
        :param loaded: waits for what draws in its place; returns None if vLLM is left alone.
        :param raw: whether batches may be drawn from the model's own logits. Between that way and the other one the
            last bit of a logit may differ, so that a near tie may fall otherwise.
        """
        self._sampler = sampler
        self._states = sampler.sampling_states
        self._loaded: Callable[[], Drawing | None] | None = loaded
        self._drawing: Drawing | None = None
        self._raw = raw
        requests = self._states.max_num_reqs
        self._columns = _empty(requests, device)
        self._edited = np.zeros(requests, dtype=bool)
        """Which requests edit their logits, by anything but temperature and filters."""
        self._applied = torch.zeros(requests, dtype=torch.float32, device=device)
        self._is_stale = True
        self._kept: dict[Hashable, SamplingMetadata] = {}
        self._batches: dict[bytes, _Batch] = {}
        """By the slots of their rows: steps of a running batch are alike until a request is added."""
        self._last: tuple[bytes, _Batch] | None = None
        """The last of them."""
        self._vllms_own_add = self._states.add_request

    def add_request(self, slot: int, add: Callable[[], None]) -> None:
        """Note whether a request edits its logits, while vLLM's sampler adds it.

        vLLM keeps one flag for edits and filters together. So the states' part of it is held back during the call and
        put in behind it.
        """
        filtered = []

        def without_flag(*arguments: Any) -> bool:
            filtered.append(bool(self._vllms_own_add(*arguments)))
            return False

        self._states.add_request = without_flag
        try:
            add()
        finally:
            del self._states.add_request
        flags = self._sampler.needs_logits_processing
        self._edited[slot] = flags[slot]
        flags[slot] |= any(filtered)
        self._is_stale = True
        self._batches.clear()
        self._last = None

    def can_draw(self) -> bool:
        """Whether tokendraw draws in the place of this sampler; the first call waits until that is loaded."""
        if self._loaded is not None:
            self._drawing, self._loaded = self._loaded(), None
        return self._drawing is not None

    def all_greedy(self, requests: np.ndarray) -> bool:
        """Whether every one of these requests is greedy: those batches are vLLM's own."""
        return self._batch(requests).all_greedy

    def may_draw_raw(self, requests: np.ndarray) -> bool:
        """Whether a batch of these requests can be drawn from the model's own logits."""
        return self._raw and self._batch(requests).may_draw_raw

    def _batch(self, requests: np.ndarray) -> _Batch:
        key = requests.tobytes()
        if self._last is not None and key == self._last[0]:  # to compare is quicker than to hash
            return self._last[1]
        found = self._batches.get(key)
        if found is None:
            all_greedy = bool((self._states.temperature.np[requests] == 0.0).all())
            found = _Batch(all_greedy, not (all_greedy or self._edited[requests].any()), {})
            if len(self._batches) >= _MOST_KEPT:
                self._batches.clear()
            self._batches[key] = found
        self._last = key, found
        return found

    def draw(
        self, logits: Tensor, slot_of_row: Tensor, requests: np.ndarray, positions: Tensor, *, raw: bool
    ) -> Tensor | None:
        """Draw one token a row: ids [rows] int64; None if that failed, now or before, or vLLM is left alone.

        :param logits: [rows, V].
        :param slot_of_row: [rows] integer, on the device.
        :param requests: their slots, on the host.
        :param positions: [rows] integer: index of the token that was fed last.
        :param raw: whether temperature and min-p are still to be applied.
        """
        drawing = self._drawing
        if drawing is None:
            return None
        if not raw and logits.shape[0] == 1 and logits.stride(0) != logits.shape[1]:
            # vLLM's copy of one row keeps the padding of the model's, that of several does not
            logits = logits[0].unsqueeze(0)

        def metadata() -> SamplingMetadata:
            if self._is_stale:
                self._refresh()
            described = self._batch(requests).described
            if raw not in described:
                described[raw] = self._described(requests, raw=raw, seeds_unasked=drawing.seeds_unasked)
            return described[raw].for_rows(slot_of_row, positions)

        return drawing.draw(logits, metadata)

    def _refresh(self) -> None:
        """Copy the parameters, behind the draws of the steps before, on the stream of this one."""
        for name, column in self._columns.items():
            column.copy_(getattr(self._states, name).gpu, non_blocking=True)
        # 0 where a row is greedy, else 1: what is left of a temperature that was applied
        torch.ne(self._columns["temperature"], 0.0, out=self._applied)
        self._is_stale = False

    def _described(self, requests: np.ndarray, *, raw: bool, seeds_unasked: bool) -> SamplingMetadata:
        """Describe a batch of these requests; those with equal facts share what samplers remember of them."""
        facts = self._facts(requests, min_p=raw)
        has_seeds = seeds_unasked or self._states.any_explicit_seed(requests)
        key = facts, raw, has_seeds
        if key not in self._kept:
            while len(self._kept) >= _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            divisors = self._columns["temperature"] if raw else self._applied
            self._kept[key] = _metadata(self._columns, divisors, facts, has_seeds=has_seeds)
        return self._kept[key]

    def _facts(self, requests: np.ndarray, *, min_p: bool) -> BatchFacts:
        """Collect what the host knows of these requests.

        :param min_p: whether min-p is still to be applied.
        """
        top_k = self._states.top_k.np[requests]
        active = top_k < self._states.vocab_size
        greedy = self._states.temperature.np[requests] == 0.0
        return BatchFacts(
            any_greedy=bool(greedy.any()),
            all_greedy=bool(greedy.all()),
            max_top_k=int(top_k[active].max()) if active.any() else 0,
            all_top_k=bool((active | greedy).all()),
            any_top_p=bool((self._states.top_p.np[requests] < 1.0).any()),
            any_min_p=min_p and bool((self._states.min_p.np[requests] > 0.0).any()),
            any_joint=False,
        )


def example_batches(
    max_requests: int, device: torch.device, *, seeds_unasked: bool
) -> list[SamplingMetadata]:
    """Make up batches of the forms that :class:`Slots` describes, to compile kernels for.

    :param max_requests: number of slots; there are batches of one row, and of as many, up to 256.
    :param seeds_unasked: whether every batch has seeds, or those alone whose users gave some.
    """
    columns = _empty(max_requests, device)
    for name, value in {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05}.items():
        columns[name].fill_(value)
    switches = itertools.product((False, True), (0, 50), (False, True), (False, True))
    forms = [
        _metadata(
            columns,
            columns["temperature"],
            BatchFacts(
                any_greedy=greedy,
                max_top_k=top_k,
                all_top_k=top_k > 0,
                any_top_p=top_p,
                any_min_p=min_p,
                any_joint=False,
            ),
            has_seeds=has_seeds,
        )
        for greedy, top_k, top_p, min_p in switches
        for has_seeds in ((True,) if seeds_unasked else (False, True))
    ]
    rows = [torch.arange(count, device=device) for count in sorted({1, min(max_requests, 256)})]
    return [form.for_rows(slots, slots) for form in forms for slots in rows]


def _empty(requests: int, device: torch.device) -> dict[str, Tensor]:
    return {name: torch.zeros(requests, dtype=dtype, device=device) for name, dtype in _DTYPES.items()}


def _metadata(
    columns: Mapping[str, Tensor], temperature: Tensor, facts: BatchFacts, *, has_seeds: bool
) -> SamplingMetadata:
    """Describe batches with these facts, until :meth:`SamplingMetadata.for_rows` says which rows there are."""
    nowhere = columns["seeds"].new_zeros(1)
    return SamplingMetadata(
        temperature=temperature,
        top_k=columns["top_k"] if facts.max_top_k else None,
        top_p=columns["top_p"] if facts.any_top_p else None,
        min_p=columns["min_p"] if facts.any_min_p else None,
        seed=columns["seeds"] if has_seeds else None,
        positions=nowhere,
        row_index=nowhere,
        facts=facts,
    )

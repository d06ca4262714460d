"""Warms up verification: verifies drafts of every kind sent by engines.

What a verification compiles depends, beside what a warmup of ``sample`` varies, on its mode, on what is known of the
drafts' distribution, on how their ids lie and, by powers of two, on the most drafts of a request. How ids lie and how
many there are has little to do with seeds, so but for one layout, none meets batches in which some rows have a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import DraftKind
from tokendraw.backends.description.operation import first_reason
from tokendraw.calls.routing import LoadedBackend, Selection, is_served
from tokendraw.calls.warmup import CallGroup
from tokendraw.calls.warmup_batches import Batches, checked_choices, checked_integer
from tokendraw.operations.records import DRAFT_KINDS, DRAFT_REQUIREMENTS, VERIFY_MODES, VerifyMode
from tokendraw.output import PAD_TOKEN_ID
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata

_STEPS = tuple(8 << n for n in range(8))
"""Numbers of steps for which kernels are compiled: a kernel serves any smaller number of drafts."""


class _DraftBatch(NamedTuple):
    """A batch and the numbers of its drafts, without mode and draft distribution."""

    metadata: SamplingMetadata
    num_drafts: tuple[int, ...]
    is_padded: bool
    is_required: bool


class VerifyWarmup:
    """Drafts and verifications of every batch, from checked arguments of :meth:`tokendraw.Sampler.warmup`."""

    def __init__(
        self,
        batches: Batches,
        max_drafts: int,
        verify_modes: Iterable[VerifyMode],
        draft_kinds: Iterable[DraftKind],
        *,
        draft: Callable[..., Any],
        verify: Callable[..., Any],
    ) -> None:
        self.draft, self.verify = draft, verify
        self.batches = batches
        self.max_drafts = checked_integer("max_drafts", max_drafts, 1)
        self.modes = checked_choices(
            "verify_modes", verify_modes, "modes", {mode: mode for mode in VERIFY_MODES}
        )
        self.kinds = checked_choices(
            "draft_kinds", draft_kinds, "kinds", {kind: kind for kind in DRAFT_KINDS}
        )

    def groups(self, selection: Selection, device: torch.device) -> Iterator[CallGroup]:
        """Make up the drafts and the verifications."""
        yield from self.batches.drawn_by("drafts", self.draft)(selection, device)
        yield CallGroup("verifications", self._verifications(selection, device), None)

    def _verifications(self, selection: Selection, device: torch.device) -> Iterator[Any]:
        draft_batches = list(self._draft_batches(device))
        most = max(sum(batch.num_drafts) for batch in draft_batches)
        rows = max(sum(batch.num_drafts) + len(batch.num_drafts) for batch in draft_batches)
        size = self.batches.vocab_size
        probs = torch.full(
            (most if "probs" in self.kinds else 0, size), 1 / size, device=device, dtype=torch.float32
        )
        draft_logits = self.batches.logits(most if "logits" in self.kinds else 0, device)
        for target, logits in zip(self.batches.logits(rows, device), draft_logits, strict=True):
            distributions = {"probs": probs, "logits": logits}
            for batch, mode in product(draft_batches, self.modes):
                # ``coupled`` reads no distribution, and an empty draft has none.
                kinds = self.kinds if mode != "coupled" else self.kinds[:1]
                for kind in kinds if any(batch.num_drafts) else ("chosen",):
                    drafts = _drafts(batch, kind, distributions.get(kind), device)
                    known = self.verify(target[: drafts.num_rows], drafts, batch.metadata, mode=mode)
                    if batch.is_required or is_served(selection, known):
                        yield known
                    vague = _vague(known, selection.backend)
                    if vague is not None and is_served(selection, vague):
                        yield vague

    def _draft_batches(self, device: torch.device) -> Iterator[_DraftBatch]:
        """Make batches with K drafts and fewer, with flat and with padded ids; last, without drafts."""
        most, seedings = self.max_drafts, self.batches.seedings
        widths = (most, *(steps - 1 for steps in _STEPS if steps <= most))
        for width, is_padded in (*product(widths, (False, True)), (0, False)):
            is_main = width == most and not is_padded  # with every seeding
            # Rows that are verified have a row_index in any case, so parameters by slot are no other kind.
            for rows, metadata, is_required in self.batches.each(
                device, seedings if is_main else dict.fromkeys((seedings[0], seedings[-1])), by_slot=False
            ):
                num_drafts, by_row = (width,) * rows, metadata.row_index is not None
                if by_row:  # as many requests as these rows make
                    requests, rest = divmod(rows, width + 1)
                    num_drafts = (width,) * requests + ((rest - 1,) if rest else ())
                yield _DraftBatch(metadata, num_drafts, is_padded, is_required and is_main and not by_row)


def _drafts(batch: _DraftBatch, kind: DraftKind, distribution: Tensor | None, device: torch.device) -> Drafts:
    """Make drafts with everything known to the host, from probabilities or logits of at least as many rows."""
    counts, total = torch.tensor(batch.num_drafts, dtype=torch.int64, device="cpu"), sum(batch.num_drafts)
    ids = torch.zeros(total, dtype=torch.int64, device="cpu")
    if batch.is_padded:
        steps = torch.arange(max(batch.num_drafts, default=0), device="cpu")
        ids = torch.where(steps < counts.unsqueeze(1), 0, PAD_TOKEN_ID)
    known = {} if distribution is None else {f"draft_{kind}": distribution[:total]}
    return Drafts.from_counts(ids.to(device), batch.num_drafts, any_placeholder=False, **known)


def _vague(call: Any, backend: LoadedBackend) -> Any:
    """Copy a call with little known to the host, if another backend has to verify the copy."""
    drafts = replace(call.drafts, num_drafts=None, any_placeholder=True)
    copy = type(call)(call.logits, drafts, call.metadata, call.mode)
    unsupported = tuple([each for each in backend.unsupported if each in DRAFT_REQUIREMENTS])
    known, vague = (first_reason(unsupported, each, backend.capabilities) for each in (call, copy))
    return None if known == vague else copy

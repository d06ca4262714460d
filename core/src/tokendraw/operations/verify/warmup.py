"""Verifications of every kind that an engine may ask for, made before its first.

What a verification compiles depends, beside what a warmup of ``sample`` varies, on its mode, on what is known of the
drafts' distribution, on how their ids lie and, by powers of two, on the most drafts of a request. How ids lie and how
many there are has little to do with seeds, so but for one layout, none meets batches in which some rows have a seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._exchange.output import PAD_TOKEN_ID
from tokendraw._loading.warmup import Plan
from tokendraw._serving.routing import Serving
from tokendraw.operations.verify.calls import unverified
from tokendraw.operations.verify.capabilities import DraftKind, VerifyMode
from tokendraw.operations.verify.drafts import Drafts
from tokendraw.operations.verify.limits import undrafted

_STEPS = tuple(8 << n for n in range(8))
"""Kernels have room for fewer drafts than one of these, and do not mind how many."""


@dataclass(frozen=True, slots=True, eq=False)
class Verification:
    """The arguments of one call."""

    target_logits: Tensor
    drafts: Drafts
    metadata: SamplingMetadata
    mode: VerifyMode


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layout:
    """How many drafts each request has, and how their ids lie."""

    width: int
    is_padded: bool = False
    is_main: bool = False
    """The one that meets every way to seed; its plain batch is verified in any case: whoever cannot says why."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Batch:
    """What is verified, but for the mode and what is known of the drafts."""

    layout: _Layout
    num_drafts: tuple[int, ...]
    metadata: SamplingMetadata
    is_plain: bool = False

    @property
    def num_rows(self) -> int:
        """Of the target."""
        return sum(self.num_drafts) + len(self.num_drafts)

    def drafts(self, kind: DraftKind, known: Tensor | None, device: torch.device) -> Drafts:
        """Drafts of which the host knows everything.

        :param known: their probabilities or logits, and maybe more rows.
        """
        counts, width = torch.tensor(self.num_drafts, dtype=torch.int64), self.layout.width
        ids = torch.zeros(sum(self.num_drafts), dtype=torch.int64)
        if self.layout.is_padded:
            ids = torch.where(torch.arange(width) < counts.unsqueeze(1), 0, PAD_TOKEN_ID)
        given = {} if known is None else {f"draft_{kind}": known[: sum(self.num_drafts)]}
        return Drafts.from_counts(ids.to(device), self.num_drafts, any_placeholder=False, **given)


def verifications(plan: Plan, serving: Serving, device: torch.device) -> Iterator[Verification]:
    """Every call; of the kinds of batches, those that somebody serves.

    :param plan: with ``max_drafts``.
    :param serving: those who verify.
    """
    batches = [batch for layout in _layouts(plan) for batch in _batches(plan, layout, device)]
    rows, most = (max(n) for n in zip(*((b.num_rows, sum(b.num_drafts)) for b in batches), strict=True))
    size, kinds = plan.vocab_size, plan.draft_kinds
    probs = torch.full((most if "probs" in kinds else 0, size), 1 / size, device=device)
    beside = plan.logits(most if "logits" in kinds else 0, device)
    for target, logits in zip(plan.logits(rows, device), beside, strict=True):
        known = {"probs": probs, "logits": logits}
        for batch in batches:
            for mode, kind in _ways(plan, batch.layout):
                whole = batch.drafts(kind, known.get(kind), device)
                for drafts in _told(whole, serving, mode):
                    is_plain = batch.is_plain and drafts is whole
                    if is_plain or not unverified(serving, drafts, batch.metadata.facts, size, mode):
                        yield Verification(target[: batch.num_rows], drafts, batch.metadata, mode)


def _layouts(plan: Plan) -> Iterator[_Layout]:
    """K drafts and fewer, their ids one behind the other and in padded rows; last, no drafts at all."""
    most = plan.max_drafts
    assert most is not None
    for width in (most, *(steps - 1 for steps in _STEPS if steps <= most)):
        yield _Layout(width=width, is_main=width == most)
        yield _Layout(width=width, is_padded=True)
    yield _Layout(width=0)


def _batches(plan: Plan, layout: _Layout, device: torch.device) -> Iterator[_Batch]:
    width = layout.width
    if plan.examples is None:
        ends = dict.fromkeys((plan.seedings[0], plan.seedings[-1]))
        seedings = plan.seedings if layout.is_main else tuple(ends)
        for requests in plan.batch_sizes:
            # Rows that are verified have a row_index in any case, so parameters by slot are no other kind.
            for i, metadata in enumerate(plan.kinds(requests, device, seedings, by_slot=False)):
                plain = layout.is_main and i == 0
                yield _Batch(layout=layout, num_drafts=(width,) * requests, metadata=metadata, is_plain=plain)
        return
    for example in plan.examples:
        own = example.num_rows
        if own is None or example.row_index is None:
            for requests in plan.batch_sizes if own is None else (own,):
                counts = (width,) * requests
                yield _Batch(layout=layout, num_drafts=counts, metadata=example, is_plain=layout.is_main)
        else:  # it speaks of rows: of as many requests as these make
            whole, rest = divmod(own, width + 1)
            counts = (width,) * whole + ((rest - 1,) if rest else ())
            yield _Batch(layout=layout, num_drafts=counts, metadata=example)


def _ways(plan: Plan, layout: _Layout) -> Iterator[tuple[VerifyMode, DraftKind]]:
    """Modes, and what is known of the drafts: ``coupled`` looks at none of it, and of no drafts nothing is known."""
    for mode in plan.verify_modes:
        kinds = plan.draft_kinds if mode == "rejection" else plan.draft_kinds[:1]
        for kind in kinds if layout.width else ("chosen",):
            yield mode, kind


def _told(drafts: Drafts, serving: Serving, mode: VerifyMode) -> Iterator[Drafts]:
    """Drafts, and the same ones of which the host knows next to nothing, if these are another one's to verify."""
    yield drafts
    vague = replace(drafts, num_drafts=None, any_placeholder=True)
    offered = serving.capabilities
    if offered is not None and undrafted(offered, vague, mode) != undrafted(offered, drafts, mode):
        yield vague

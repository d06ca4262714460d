"""Warms up verification: verifies drafts of every kind sent by engines.

What a verification compiles depends, beside what a warmup of ``sample`` varies, on its mode, on what is known of the
drafts' distribution, on how their ids lie and, by powers of two, on the most drafts of a request. How ids lie and how
many there are has little to do with seeds, so but for one layout, none meets batches in which some rows have a seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import DraftKind
from tokendraw.backends.description.requirement import first_reason
from tokendraw.calls.drawing import Draft
from tokendraw.calls.routing import is_served
from tokendraw.calls.selection import LoadedBackend, Selection
from tokendraw.calls.warmup import CallGroups
from tokendraw.calls.warmup_batches import Batches, some_of, whole
from tokendraw.operations.verify.calls import Verify
from tokendraw.operations.verify.capabilities import (
    DRAFT_KINDS,
    DRAFT_REQUIREMENTS,
    VERIFY_MODES,
    VerifyMode,
)
from tokendraw.output import PAD_TOKEN_ID
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata

_STEPS = tuple(8 << n for n in range(8))
"""Numbers of steps for which kernels are compiled: a kernel serves any smaller number of drafts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _DraftLayout:
    """Number of drafts of each request, and the layout of their ids."""

    width: int
    is_padded: bool = False
    is_main: bool = False
    """Whether to verify with every seeding; its plain batch is verified in any case, to report an unsupported one."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Verification:
    """A verification, without mode and draft distribution."""

    layout: _DraftLayout
    num_drafts: tuple[int, ...]
    metadata: SamplingMetadata
    is_plain: bool = False

    @property
    def num_rows(self) -> int:
        """Logits of the target."""
        return sum(self.num_drafts) + len(self.num_drafts)

    def drafts(self, kind: DraftKind, known: Tensor | None, device: torch.device) -> Drafts:
        """Make drafts with everything known to the host.

        :param known: their probabilities or logits, and maybe more rows.
        """
        counts, width = torch.tensor(self.num_drafts, dtype=torch.int64), self.layout.width
        ids = torch.zeros(sum(self.num_drafts), dtype=torch.int64)
        if self.layout.is_padded:
            ids = torch.where(torch.arange(width) < counts.unsqueeze(1), 0, PAD_TOKEN_ID)
        distribution = {} if known is None else {f"draft_{kind}": known[: sum(self.num_drafts)]}
        return Drafts.from_counts(ids.to(device), self.num_drafts, any_placeholder=False, **distribution)


@dataclass(frozen=True, kw_only=True)
class VerifyWarmup:
    """Drafts and verifies with every batch. Built by :meth:`of`, after checking its arguments."""

    batches: Batches
    max_drafts: int
    """K, the most drafts of a request."""
    modes: tuple[VerifyMode, ...]
    kinds: tuple[DraftKind, ...]

    @classmethod
    def of(
        cls,
        vocab_size: int,
        *,
        max_drafts: int,
        verify_modes: Iterable[VerifyMode] = ("rejection",),
        draft_kinds: Iterable[DraftKind] = ("logits",),
        **arguments: Any,
    ) -> Self:
        """Check the arguments of :meth:`tokendraw.Sampler.warmup`.

        :raises InvalidInputError: one of them cannot be verified; the message names it.
        """
        return cls.checked(Batches.of(vocab_size, **arguments), max_drafts, verify_modes, draft_kinds)

    @classmethod
    def checked(
        cls,
        batches: Batches,
        max_drafts: int,
        verify_modes: Iterable[VerifyMode],
        draft_kinds: Iterable[DraftKind],
    ) -> Self:
        """Check the arguments about drafts; see :meth:`of`."""
        return cls(
            batches=batches,
            max_drafts=whole("max_drafts", max_drafts, 1),
            modes=some_of("verify_modes", verify_modes, "modes", VERIFY_MODES),
            kinds=some_of("draft_kinds", draft_kinds, "kinds", DRAFT_KINDS),
        )

    def stages(self, selection: Selection, device: torch.device) -> Iterator[CallGroups]:
        """Make up the drafts and the verifications."""
        yield self.batches.stage("drafts", Draft, selection, device)
        yield CallGroups("verifications", [self._verifications(selection, device)], None)

    def _verifications(self, selection: Selection, device: torch.device) -> Iterator[Verify]:
        batches = [
            batch for layout in _layouts(self.max_drafts) for batch in _batches(self.batches, layout, device)
        ]
        rows, most = (max(n) for n in zip(*((b.num_rows, sum(b.num_drafts)) for b in batches), strict=True))
        size = self.batches.vocab_size
        probs = torch.full((most if "probs" in self.kinds else 0, size), 1 / size, device=device)
        draft_logits = self.batches.logits(most if "logits" in self.kinds else 0, device)
        for target, logits in zip(self.batches.logits(rows, device), draft_logits, strict=True):
            yield from self._of_target(target, {"probs": probs, "logits": logits}, batches, selection)

    def _of_target(
        self,
        target: Tensor,
        known: Mapping[str, Tensor],
        batches: Sequence[_Verification],
        selection: Selection,
    ) -> Iterator[Verify]:
        """Verify every batch with logits of the same dtype.

        :param known: of drafts, by kind.
        """
        for batch in batches:
            for mode, kind in self._modes_and_kinds(batch.layout):
                known_drafts = batch.drafts(kind, known.get(kind), target.device)
                known_call = Verify(target[: batch.num_rows], known_drafts, batch.metadata, mode=mode)
                for call in _known_and_vague(known_call, selection.backend):
                    if (batch.is_plain and call is known_call) or is_served(selection, call):
                        yield call

    def _modes_and_kinds(self, layout: _DraftLayout) -> Iterator[tuple[VerifyMode, DraftKind]]:
        """List pairs of mode and draft kind: ``coupled`` reads no distribution, and an empty draft has none."""
        for mode in self.modes:
            kinds = self.kinds if mode == "rejection" else self.kinds[:1]
            for kind in kinds if layout.width else ("chosen",):
                yield mode, kind


def _layouts(most: int) -> Iterator[_DraftLayout]:
    """List layouts of K drafts and fewer, with flat and with padded ids; last, no drafts at all."""
    for width in (most, *(steps - 1 for steps in _STEPS if steps <= most)):
        yield _DraftLayout(width=width, is_main=width == most)
        yield _DraftLayout(width=width, is_padded=True)
    yield _DraftLayout(width=0)


def _batches(plan: Batches, layout: _DraftLayout, device: torch.device) -> Iterator[_Verification]:
    width = layout.width
    if plan.examples is None:
        ends = dict.fromkeys((plan.seedings[0], plan.seedings[-1]))
        seedings = plan.seedings if layout.is_main else tuple(ends)
        for requests in plan.batch_sizes:
            # Rows that are verified have a row_index in any case, so parameters by slot are no other kind.
            for i, metadata in enumerate(plan.kinds(requests, device, seedings, by_slot=False)):
                plain = layout.is_main and i == 0
                yield _Verification(
                    layout=layout, num_drafts=(width,) * requests, metadata=metadata, is_plain=plain
                )
        return
    for example in plan.examples:
        rows = example.num_rows
        if rows is None or example.row_index is None:
            for requests in plan.batch_sizes if rows is None else (rows,):
                counts = (width,) * requests
                yield _Verification(
                    layout=layout, num_drafts=counts, metadata=example, is_plain=layout.is_main
                )
        else:  # it speaks of rows: of as many requests as these make
            requests, rest = divmod(rows, width + 1)
            counts = (width,) * requests + ((rest - 1,) if rest else ())
            yield _Verification(layout=layout, num_drafts=counts, metadata=example)


def _known_and_vague(call: Verify, backend: LoadedBackend) -> Iterator[Verify]:
    """Make a call, and a copy with little known to the host, if another backend has to verify the copy."""
    yield call
    vague = replace(call.drafts, num_drafts=None, any_placeholder=True)
    copy = Verify(call.target_logits, vague, call.metadata, mode=call.mode)
    unsupported = tuple([each for each in backend.unsupported if each in DRAFT_REQUIREMENTS])
    reasons = (first_reason(unsupported, each, backend.capabilities) for each in (call, copy))
    if len({*reasons}) > 1:
        yield copy

"""Warms up verification: verifies drafts of every kind sent by engines.

What a verification compiles depends, beside what a warmup of ``sample`` varies, on its mode, on what is known of the
drafts' distribution, on how their ids lie and, by powers of two, on the most drafts of a request. How ids lie and how
many there are has little to do with seeds, so but for one layout, none meets batches in which some rows have a seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Self

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import DraftKind
from tokendraw.backends.description.requirement import first_reason
from tokendraw.calls.drawing import Draft
from tokendraw.calls.routing import is_served
from tokendraw.calls.selection import LoadedBackend, Selection
from tokendraw.calls.warmup import CallGroups
from tokendraw.calls.warmup_batches import Batches, checked_integer, checked_words
from tokendraw.operations.verify import DRAFT_KINDS, DRAFT_REQUIREMENTS, VERIFY_MODES, VerifyMode
from tokendraw.operations.verify.calls import Verify
from tokendraw.output import PAD_TOKEN_ID
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata

_STEPS = tuple(8 << n for n in range(8))
"""Numbers of steps for which kernels are compiled: a kernel serves any smaller number of drafts."""


@dataclass(frozen=True, slots=True, eq=False)
class _Verification:
    """A verification, without mode and draft distribution."""

    metadata: SamplingMetadata
    num_drafts: tuple[int, ...]
    width: int
    """The most drafts of a request."""
    is_padded: bool
    is_plain: bool
    """Whether it is verified in any case, to report what no backend supports."""

    @property
    def num_rows(self) -> int:
        """Logits of the target."""
        return sum(self.num_drafts) + len(self.num_drafts)

    def drafts(self, kind: DraftKind, known: Tensor | None, device: torch.device) -> Drafts:
        """Make drafts with everything known to the host, from probabilities or logits of at least as many rows."""
        counts = torch.tensor(self.num_drafts, dtype=torch.int64)
        ids = torch.zeros(sum(self.num_drafts), dtype=torch.int64)
        if self.is_padded:
            ids = torch.where(torch.arange(self.width) < counts.unsqueeze(1), 0, PAD_TOKEN_ID)
        distribution = {} if known is None else {f"draft_{kind}": known[: sum(self.num_drafts)]}
        return Drafts.from_counts(ids.to(device), self.num_drafts, any_placeholder=False, **distribution)


@dataclass(frozen=True)
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
        batches: Batches,
        max_drafts: int,
        verify_modes: Iterable[VerifyMode],
        draft_kinds: Iterable[DraftKind],
    ) -> Self:
        """Check the arguments of :meth:`tokendraw.Sampler.warmup` about drafts."""
        return cls(
            batches,
            checked_integer("max_drafts", max_drafts, 1),
            checked_words("verify_modes", verify_modes, "modes", VERIFY_MODES),
            checked_words("draft_kinds", draft_kinds, "kinds", DRAFT_KINDS),
        )

    def stages(self, selection: Selection, device: torch.device) -> Iterator[CallGroups]:
        """Make up the drafts and the verifications."""
        yield from self.batches.drawn_by("drafts", Draft)(selection, device)
        yield CallGroups("verifications", [self._verifications(selection, device)], None)

    def _verifications(self, selection: Selection, device: torch.device) -> Iterator[Verify]:
        made_up = list(self._made_up(device))
        rows, most = (max(b.num_rows for b in made_up), max(sum(b.num_drafts) for b in made_up))
        size = self.batches.vocab_size
        probs = torch.full((most if "probs" in self.kinds else 0, size), 1 / size, device=device)
        draft_logits = self.batches.logits(most if "logits" in self.kinds else 0, device)
        for target, logits in zip(self.batches.logits(rows, device), draft_logits, strict=True):
            known = {"probs": probs, "logits": logits}
            for batch, (mode, kind) in [(b, way) for b in made_up for way in self._modes_and_kinds(b.width)]:
                drafts = batch.drafts(kind, known.get(kind), device)
                known_call = Verify(target[: batch.num_rows], drafts, batch.metadata, mode=mode)
                for call in _known_and_vague(known_call, selection.backend):
                    if (batch.is_plain and call is known_call) or is_served(selection, call):
                        yield call

    def _modes_and_kinds(self, width: int) -> Iterator[tuple[VerifyMode, DraftKind]]:
        """List pairs of mode and draft kind: ``coupled`` reads no distribution, and an empty draft has none."""
        for mode in self.modes:
            kinds = self.kinds if mode == "rejection" else self.kinds[:1]
            for kind in kinds if width else ("chosen",):
                yield mode, kind

    def _made_up(self, device: torch.device) -> Iterator[_Verification]:
        """Make up batches with K drafts and fewer, with flat and with padded ids; last, without drafts."""
        most, batches = self.max_drafts, self.batches
        widths = (most, *(steps - 1 for steps in _STEPS if steps <= most))
        for width, is_padded in (*product(widths, (False, True)), (0, False)):
            is_main = width == most and not is_padded  # with every seeding
            for example in batches.examples or ():
                rows = example.num_rows
                if rows is None or example.row_index is None:
                    for requests in batches.batch_sizes if rows is None else (rows,):
                        yield _Verification(example, (width,) * requests, width, is_padded, is_main)
                else:  # it speaks of rows: of as many requests as these make
                    requests, rest = divmod(rows, width + 1)
                    counts = (width,) * requests + ((rest - 1,) if rest else ())
                    yield _Verification(example, counts, width, is_padded, is_plain=False)
            if batches.examples is None:
                seedings = batches.seedings if is_main else (batches.seedings[0], batches.seedings[-1])
                # Rows that are verified have a row_index in any case, so parameters by slot are no other kind.
                for requests in batches.batch_sizes:
                    kinds = batches.kinds(requests, device, dict.fromkeys(seedings), by_slot=False)
                    for i, metadata in enumerate(kinds):
                        is_plain = is_main and i == 0
                        yield _Verification(metadata, (width,) * requests, width, is_padded, is_plain)


def _known_and_vague(call: Verify, backend: LoadedBackend) -> Iterator[Verify]:
    """Make a call, and a copy with little known to the host, if another backend has to verify the copy."""
    yield call
    vague = replace(call.drafts, num_drafts=None, any_placeholder=True)
    copy = Verify(call.logits, vague, call.metadata, mode=call.mode)
    unsupported = tuple([each for each in backend.unsupported if each in DRAFT_REQUIREMENTS])
    reasons = (first_reason(unsupported, each, backend.capabilities) for each in (call, copy))
    if len({*reasons}) > 1:
        yield copy

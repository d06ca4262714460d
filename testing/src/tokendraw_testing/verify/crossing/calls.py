"""Verifications of crossed requests, and the answers of the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import Drafts, SamplerOutput, SamplingMetadata, VerifyOutput
from tokendraw.plugin import LogprobsMode
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.verify.crossing.requests import DraftRequest, Form
from tokendraw_testing.verify.draft_batch import pad_ids
from tokendraw_testing.verify.subject import VerifySubject, row_metadata

Array = NDArray[Any]

LAYOUTS: Final = ("flat", "padded", "padded int32", "padded, rows behind")
"""Of the ids: [L - B], or [B, K] with more rows of logits than the requests have."""
_EXTRA_ROWS: Final = 3


@dataclass(frozen=True, kw_only=True)
class CrossedCall:
    """A verification of requests of one form; a request may occur several times."""

    form: Form
    requests: list[DraftRequest]
    order: list[int]
    """The request in each place of the batch."""
    logprobs_mode: LogprobsMode | None
    layout: str
    """How the ids are laid out, one of :data:`LAYOUTS`."""

    def __str__(self) -> str:
        form = self.form
        dtype_text = "" if form.kind == "chosen" else f" in {form.draft_dtype}"
        return (
            f"{form.site}, {form.mode}, {form.kind}{dtype_text}, {form.gumbel_dtype} noise, B = {len(self.order)}"
            + f", {self.layout} ids"
        )

    def of_most_drafts(self) -> CrossedCall:
        """Return the call of the request with the most drafts alone."""
        request_of_most = max(self.requests, key=lambda request: len(request.ids))
        return replace(self, requests=[request_of_most], order=[0])

    def verify(self, subject: VerifySubject) -> VerifyOutput:
        """Make the call."""
        form, batch = self.form, [self.requests[i] for i in self.order]
        ids = [request.ids for request in batch]
        draft = [row for request in batch for row in request.draft]
        draft_rows = self._on(subject, draft, form.draft_dtype) if form.kind != "chosen" else None
        flat = subject.drafts(ids, form.site.size, form.kind, draft_rows)
        target = self._on(subject, [row for request in batch for row in request.target], form.site.dtype)
        metadata = row_metadata(flat, [r.params for r in batch], [r.first for r in batch])
        drafts = flat if self.layout == "flat" else pad_ids(flat, ids, self.layout)
        if self.layout == "padded, rows behind":
            drafts, target, metadata = append_rows(drafts, target, metadata)
        return subject.verify(
            target,
            drafts,
            metadata,
            form.mode,
            logprobs_mode=self.logprobs_mode,
            gumbel_dtype=form.gumbel_dtype,
        )

    def _on(self, subject: VerifySubject, rows: list[Array], dtype: str) -> torch.Tensor:
        """Lay rows out on the device, in their own dtype."""
        array = np.stack(rows) if rows else np.zeros((0, self.form.site.size), np.float32)
        return subject.upload(array, dtype)

    def draft(self, subject: VerifySubject) -> SamplerOutput:
        """Draw a draft from the first row of each distinct request."""
        metadata = SamplingMetadata.from_params(
            [request.params for request in self.requests],
            device=subject.device,
            positions=[request.first for request in self.requests],
        )
        rows = self._on(subject, [request.target[0] for request in self.requests], self.form.site.dtype)
        return subject.draft(rows, metadata, gumbel_dtype=self.form.gumbel_dtype)

    def answers(self) -> list[reference_walk.Answer | None]:
        """Walk along the drafts of every seeded or greedy request; None for the rest."""
        form, walks, seeds = self.form, [], []
        flags = [r.params.seed is not None or not r.params.temperature > 0 for r in self.requests]
        for request, is_known in zip(self.requests, flags, strict=True):
            if is_known:
                walks.append(_walking(form, request))
                seeds.append(request.params.seed or 0)
        answers = iter(reference.together(walks, seeds, form.gumbel_dtype) if walks else [])
        return [next(answers) if is_known else None for is_known in flags]


def _walking(form: Form, request: DraftRequest) -> reference.Drawing[reference_walk.Answer]:
    return reference_walk.walking(
        request.rows,
        request.ids,
        request.params,
        range(request.first, request.first + len(request.rows)),
        probs=np.stack(request.draft) if form.kind == "probs" and request.draft else None,
        logits=request.draft_rows if form.kind == "logits" else None,
        mode=form.mode,
    )


def append_rows(
    drafts: Drafts, target: torch.Tensor, metadata: SamplingMetadata
) -> tuple[Drafts, torch.Tensor, SamplingMetadata]:
    """Append rows of NaN to the last request, as engines leave them in buffers of one size."""

    def longer(rows: torch.Tensor, value: float) -> torch.Tensor:
        return torch.cat((rows, rows.new_full((_EXTRA_ROWS, *rows.shape[1:]), value)))

    draft_tensors = {name: getattr(drafts, name) for name in ("draft_probs", "draft_logits")}
    longer_tensors = {
        name: longer(rows, float("nan")) for name, rows in draft_tensors.items() if rows is not None
    }
    assert metadata.positions is not None
    assert metadata.row_index is not None
    positions, row_index = longer(metadata.positions, 0), longer(metadata.row_index, 0)
    return (
        replace(drafts, **longer_tensors),  # type: ignore[arg-type]
        longer(target, float("nan")),
        replace(metadata, positions=positions, row_index=row_index),
    )

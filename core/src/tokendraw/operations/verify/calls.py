"""The call of a verification, always served whole."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import speculative
from tokendraw._torch.tensors import is_capturing
from tokendraw.backends.description.capabilities import Need
from tokendraw.calls import input_checks
from tokendraw.calls.call import OutputCheck
from tokendraw.calls.drawing import RowCall, logits_signature
from tokendraw.calls.output_checks import first_of
from tokendraw.errors.exceptions import InvalidInputError, InvalidParameterError
from tokendraw.errors.formatting import one_of
from tokendraw.operations.verify import VERIFY_MODES, VerifyMode
from tokendraw.output import PAD_TOKEN_ID, VerifyOutput
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata

_TENSORS = ("draft_token_ids", "cu_num_logits", "draft_probs", "draft_logits")
_CheckedCall: TypeAlias = tuple[dict[Hashable, Any], VerifyMode, input_checks.LogitsForm, OutputCheck]
"""State of a checked call, kept in the memo of its drafts; the first is the memo of its metadata."""
_Rows: TypeAlias = tuple[Tensor, Tensor, Tensor | None]


class Verify(RowCall):
    """Logits [L, V] of the target, the drafts to verify, and parameters, an entry a request or a row."""

    __slots__ = ("drafts", "mode")

    hint_field: ClassVar[str] = "SamplingMetadata.facts or Drafts"
    output_class: ClassVar[type[Any]] = VerifyOutput

    def __init__(
        self,
        target_logits: Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> None:
        self.logits = target_logits
        self.metadata = metadata
        self.drafts = drafts
        self.mode = mode

    def check(self, device: torch.device, need: Need) -> None:
        target_logits, drafts, metadata = self.logits, self.drafts, self.metadata
        input_checks.check_logits("target_logits", target_logits, device)
        mend = "Pass Drafts.from_lists(draft_token_ids, device=...)."
        input_checks.check_type("drafts", drafts, Drafts, mend)
        input_checks.check_metadata("target_logits", target_logits, metadata, need)
        if self.mode not in VERIFY_MODES:
            raise InvalidParameterError(
                f"'mode' needs {one_of(VERIFY_MODES)}, found {self.mode!r}. Pass one of these."
            )
        drafts.check(target_logits)
        rows, found = target_logits.shape[0], metadata.num_rows
        if found not in (None, rows, drafts.num_requests):
            raise InvalidInputError(
                f"'metadata' needs one entry a request, {drafts.num_requests}, or one a row of 'target_logits', "
                f"{rows}, found {found}."
            )

    def check_values(self) -> None:
        super().check_values()
        self.drafts.check_values()

    def tensors(self) -> dict[str, Tensor]:
        tensors = {"target_logits": self.logits}
        for name in _TENSORS:
            if (tensor := getattr(self.drafts, name)) is not None:
                tensors[name] = tensor
        return tensors

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        fields: dict[str, Any] = {name: tensors[name] for name in _TENSORS if name in tensors}
        drafts = replace(self.drafts, **fields)
        return type(self)(tensors["target_logits"], drafts, self.metadata, mode=self.mode)

    def signature(self) -> Hashable:
        drafts = self.drafts
        ids, offsets, logits = drafts.draft_token_ids, drafts.cu_num_logits, drafts.draft_logits
        return (
            logits_signature(self.logits, self.facts),
            self.mode,
            drafts.kind,
            ids.dim(),
            ids.dtype,
            offsets.dtype,
            None if logits is None else logits.dtype,
            drafts.max_drafts.bit_length(),
        )

    @property
    def tokens_shape(self) -> tuple[int, ...]:
        return self.drafts.num_requests, self.drafts.max_drafts + 1

    def cached_check(self, key: object) -> OutputCheck | None:
        if type(self.drafts) is not Drafts or type(self.metadata) is not SamplingMetadata:
            return None
        checked: _CheckedCall | None = self.drafts.memo.get(key)
        if checked is None or checked[0] is not self.metadata.memo or checked[1] != self.mode:
            return None
        return checked[3] if input_checks.has_form(self.logits, checked[2]) else None

    def cache_check(self, key: object, check: OutputCheck) -> None:
        drafts = self.drafts
        if drafts.num_rows is None and drafts.cu_num_logits.is_cpu:
            return  # their values are checked in every call
        drafts.memo[key] = self.metadata.memo, self.mode, input_checks.form_of(self.logits), check

    def run(self, backend: Any) -> Any:
        metadata = by_row(self.metadata, self.drafts, self.logits.shape[0])
        return backend.verify(self.logits, self.drafts, metadata, mode=self.mode)

    def wrong_tokens(self, output: VerifyOutput) -> str | None:
        return _wrong_chains(output, self.vocab_size, self.drafts)


def by_row(metadata: SamplingMetadata, drafts: Drafts, rows: int) -> SamplingMetadata:
    """Make metadata of rows, also from metadata of requests with the position of each request's first row."""
    if metadata.num_rows in (None, rows):
        return metadata
    request, offset, steps = _rows_of_requests(drafts, rows)
    positions = metadata.positions
    if positions is not None and steps is not None:
        positions = torch.add(positions.unsqueeze(1), steps).view(-1)  # one launch
    elif positions is not None:
        positions = positions.index_select(0, request)
        positions = (positions if positions.dtype is torch.int64 else positions.to(torch.int64)).add_(offset)
    slot = metadata.row_index
    return metadata.for_rows(request if slot is None else slot.index_select(0, request), positions)


def _rows_of_requests(drafts: Drafts, rows: int) -> _Rows:
    """Find the request of each row, and its index within the request: [L] each, computed once for unchanged offsets.

    Inside of a CUDA graph both are computed, so that replays follow changes of ``cu_num_logits``.

    :returns: and the steps of any request, [K + 1] int64, where all requests have K drafts.
    """
    offsets = drafts.cu_num_logits
    if is_capturing() or offsets.is_inference():  # torch does not count changes of inference tensors
        return *speculative.rows_of_requests(offsets, rows), None
    stream = torch.cuda.current_stream(offsets.device) if offsets.is_cuda else None
    state: Hashable = rows, offsets._version, stream
    known: tuple[Hashable, _Rows] | None = drafts.memo.get("rows of requests")
    if known is None or known[0] != state:
        width, steps = drafts.max_drafts + 1, None
        if drafts.is_uniform and rows == drafts.num_requests * width:
            steps = torch.arange(width, device=offsets.device)
        known = state, (*speculative.rows_of_requests(offsets, rows), steps)
        drafts.memo["rows of requests"] = known
    return known[1]


def _wrong_chains(output: VerifyOutput, vocab_size: int, drafts: Drafts) -> str | None:
    """Compare the tokens of a verification, of the right form, with the drafts."""
    requests, width = drafts.num_requests, drafts.max_drafts + 1
    tokens, accepted = output.token_ids.cpu(), output.num_accepted.cpu()
    draft_ids, counts = _by_step(drafts)
    for (b,) in first_of((accepted < 0) | (accepted > counts)):
        return (
            f"num_accepted in [0, {int(counts[b])}], found {int(accepted[b])} for request {b} of {requests}"
        )
    steps, num_accepted = torch.arange(width, device="cpu"), accepted.unsqueeze(1)
    for b, i in first_of((steps[:-1] < num_accepted) & (tokens[:, :-1] != draft_ids)):
        return f"the accepted drafts, found token {int(tokens[b, i])} for draft {int(draft_ids[b, i])} of request {b}"
    for b, i in first_of((steps <= num_accepted) & ((tokens < 0) | (tokens >= vocab_size))):
        return (
            f"token_ids in [0, {vocab_size}) up to the last token of a request, found {int(tokens[b, i])} as token "
            f"{i} of the {int(accepted[b]) + 1} of request {b}"
        )
    for b, i in first_of((steps > num_accepted) & (tokens != PAD_TOKEN_ID)):
        return (
            f"token_ids {PAD_TOKEN_ID} behind the last token of a request, found {int(tokens[b, i])} behind the "
            f"{int(accepted[b]) + 1} of request {b}"
        )
    return None


def _by_step(drafts: Drafts) -> tuple[Tensor, Tensor]:
    """Lay out the drafts of each request [B, K], and their numbers [B], on the host."""
    ids = drafts.draft_token_ids.cpu().to(torch.int64)
    first, most = drafts.cu_num_logits.cpu().to(torch.int64), drafts.max_drafts
    counts = first.diff() - 1
    if ids.dim() == 2:
        return pad(ids, (0, most), value=PAD_TOKEN_ID)[:, :most], counts
    indices = (first[:-1] - torch.arange(len(counts), device="cpu")).unsqueeze(1) + torch.arange(
        most, device="cpu"
    )
    return pad(ids, (0, 1), value=PAD_TOKEN_ID)[indices.clamp(0, len(ids))], counts

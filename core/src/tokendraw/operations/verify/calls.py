"""The call of a verification, always served whole."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor

from tokendraw import speculative
from tokendraw._torch.graphs import is_capturing
from tokendraw.backends.description.capabilities import Need
from tokendraw.calls import input_checks
from tokendraw.calls.call import OutputCheck, RowCall
from tokendraw.calls.drawing import logits_signature
from tokendraw.calls.output_checks import wrong_bounds
from tokendraw.errors.exceptions import InvalidInputError, InvalidParameterError
from tokendraw.errors.formatting import one_of, type_name
from tokendraw.operations.verify.capabilities import VERIFY_MODES, VerifyCapabilities, VerifyMode
from tokendraw.operations.verify.output import VerifyOutput
from tokendraw.operations.verify.output_checks import wrong_chains, wrong_verify_form
from tokendraw.parameters.batch_facts import BatchFacts
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata, plugin_class

_TENSORS = ("draft_token_ids", "cu_num_logits", "draft_probs", "draft_logits")


_CheckedCall: TypeAlias = tuple[dict[Hashable, Any], VerifyMode, input_checks.LogitsForm, OutputCheck]
"""State of a checked call, kept in the memo of its drafts; the first is the memo of its metadata."""


class Verify(RowCall):
    """Logits [L, V] of the target, the drafts to verify, and parameters, an entry a request or a row."""

    __slots__ = ("drafts", "metadata", "mode", "target_logits")

    hint_field: ClassVar[str] = "SamplingMetadata.facts or Drafts"

    def __init__(
        self,
        target_logits: Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> None:
        self.target_logits = target_logits
        self.drafts: Drafts = drafts
        self.metadata = metadata
        self.mode = mode

    def check(self, device: torch.device, need: Need) -> None:
        target_logits, drafts, metadata = self.target_logits, self.drafts, self.metadata
        input_checks.check_logits("target_logits", target_logits, device)
        if not isinstance(drafts, Drafts):
            raise InvalidInputError(
                f"'drafts' needs a tokendraw.Drafts, found {type_name(drafts)}. "
                "Pass Drafts.from_lists(draft_token_ids, device=...)."
            )
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
        self.metadata.check_values()
        self.drafts.check_values()

    def tensors(self) -> dict[str, Tensor]:
        tensors = {"target_logits": self.target_logits}
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
            logits_signature(self.target_logits, self.metadata.facts),
            self.mode,
            drafts.kind,
            ids.dim(),
            ids.dtype,
            offsets.dtype,
            None if logits is None else logits.dtype,
            drafts.max_drafts.bit_length(),
        )

    def undeclared_class(self, capabilities: VerifyCapabilities) -> str | None:
        name = plugin_class(self.metadata)
        return None if name in capabilities.metadata_classes else name

    @property
    def facts(self) -> BatchFacts:
        return self.metadata.facts

    @property
    def vocab_size(self) -> int:
        return self.target_logits.shape[1]

    def cached_check(self, key: object) -> OutputCheck | None:
        if type(self.drafts) is not Drafts or type(self.metadata) is not SamplingMetadata:
            return None
        checked: _CheckedCall | None = self.drafts.memo.get(key)
        if checked is None or checked[0] is not self.metadata.memo or checked[1] != self.mode:
            return None
        return checked[3] if input_checks.has_form(self.target_logits, checked[2]) else None

    def cache_check(self, key: object, check: OutputCheck) -> None:
        drafts = self.drafts
        if drafts.num_rows is None and drafts.cu_num_logits.is_cpu:
            return  # their values are checked in every call
        drafts.memo[key] = self.metadata.memo, self.mode, input_checks.form_of(self.target_logits), check

    def run(self, backend: Any) -> Any:
        metadata = by_row(self.metadata, self.drafts, self.target_logits.shape[0])
        return backend.verify(self.target_logits, self.drafts, metadata, mode=self.mode)

    def output_check(self, need: Need) -> OutputCheck:
        drafts, target_logits = self.drafts, self.target_logits
        return partial(
            wrong_verify_form,
            shape=(drafts.num_requests, drafts.max_drafts + 1),
            device=target_logits.device,
            width=self.metadata.facts.logprobs_width(target_logits.shape[1]),
            ranks=need.logprob_ranks,
        )

    def wrong_values(self, output: VerifyOutput, need: Need) -> str | None:
        wrong = wrong_chains(output, self.target_logits, self.drafts)
        if wrong is not None or self.metadata.facts.max_logprobs is None:
            return wrong
        return wrong_bounds(output.logprobs, output.log_kept_mass, need.logprobs_mode)


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


_Rows: TypeAlias = tuple[Tensor, Tensor, Tensor | None]


def _rows_of_requests(drafts: Drafts, rows: int) -> _Rows:
    """Find the request of each row, and the row's index within its request: computed once for unchanged offsets.

    Inside of a CUDA graph both are computed, so that replays follow what ``cu_num_logits`` is changed to.

    :returns: [L] each; and the places in any request, [K + 1] int64, where all requests have K drafts.
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

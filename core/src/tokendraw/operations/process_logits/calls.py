"""The call for editing logits in place."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from tokendraw.calls.call import Call, OutputCheck
from tokendraw.operations.process_logits import limits
from tokendraw.operations.process_logits.backend import LogitsProcessorBackend
from tokendraw.operations.process_logits.capabilities import ProcessCapabilities, ProcessNeed
from tokendraw.operations.process_logits.input_checks import (
    check_bitmask,
    check_drafts,
    check_logits,
    check_range,
    check_row_index,
    check_slots,
)
from tokendraw.parameters.batch_facts import BatchFacts
from tokendraw.parameters.drafts import Drafts
from tokendraw.request_slots.slots import RequestSlots

_OF_DRAFTS = ("draft_token_ids", "cu_num_logits")


class Process(Call):
    """Logits [R, V], the slot of each row, and bitmasks and drafts, if any."""

    __slots__ = ("bitmask", "drafts", "logits", "row_index", "slots", "target")

    def __init__(
        self,
        logits: Tensor,
        slots: RequestSlots,
        row_index: Tensor,
        bitmask: Tensor | None = None,
        drafts: Drafts | None = None,
    ) -> None:
        self.logits = logits
        self.slots = slots
        self.row_index = row_index
        self.bitmask = bitmask
        self.drafts = drafts
        self.target: Tensor | None = None  # the caller's logits, where the provider edits a copy of them

    def check(self, device: torch.device, need: ProcessNeed) -> None:
        check_logits(self.logits, device)
        check_slots(self.slots, self.logits)
        if self.drafts is not None:
            check_drafts(self.drafts, self.logits)
        check_row_index(self.row_index, self.slots, self.logits, self.drafts)
        if self.bitmask is not None:
            check_bitmask(self.bitmask, self.logits)

    def check_values(self) -> None:
        check_range(self.row_index, self.slots)
        if self.drafts is not None:
            self.drafts.check_values()

    def tensors(self) -> dict[str, Tensor]:
        given = {"row_index": self.row_index}
        if self.bitmask is not None:
            given["bitmask"] = self.bitmask
        if self.drafts is not None:
            given |= {name: getattr(self.drafts, name) for name in _OF_DRAFTS}
        return given

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        drafts = self.drafts
        if drafts is not None:
            given: dict[str, Any] = {name: tensors[name] for name in _OF_DRAFTS}
            drafts = replace(drafts, **given)
        return type(self)(self.logits, self.slots, tensors["row_index"], tensors.get("bitmask"), drafts)

    def copied(self) -> Self:
        """Copy the logits too: a failing provider may have begun to edit them in place."""
        copy = super().copied()
        copy.logits, copy.target = self.logits.clone(), self.logits
        return copy

    def kind(self) -> Hashable:
        drafts, form = self.drafts, None
        if drafts is not None:
            ids = drafts.draft_token_ids
            form = ids.dim(), ids.dtype, drafts.cu_num_logits.dtype, drafts.max_drafts.bit_length()
        masked, facts = self.bitmask is not None, self.slots.facts
        return self.logits.dtype, self.logits.shape[1], self.row_index.dtype, masked, facts, form

    def lacking(self, capabilities: ProcessCapabilities, rows: BatchFacts | None = None) -> str | None:
        dtype = str(self.logits.dtype).removeprefix("torch.")
        edits, has_drafts = self.slots.edits, self.drafts is not None
        if self.bitmask is not None:
            edits = ("bitmask", *edits)
        return limits.unserved(capabilities, dtype, self.logits.shape[1], edits, has_drafts=has_drafts)

    def run(self, backend: LogitsProcessorBackend) -> Any:
        logits, target = self.logits, self.target
        if not logits.shape[0] or (self.bitmask is None and not self.slots.facts.any_edit):
            return logits if target is None else target
        output = backend.process(logits, self.slots, self.row_index, self.bitmask, self.drafts)
        if target is None or output is not logits:
            return output
        with torch.inference_mode():  # in which logits may be written to that were made in it
            target.copy_(logits)
        return target

    def output_check(self, need: ProcessNeed) -> OutputCheck:
        return self._misplaced  # of this call alone: edits are not remembered

    def _misplaced(self, output: object) -> str | None:
        if output is (self.logits if self.target is None else self.target):
            return None
        other = "another " if isinstance(output, Tensor) else ""
        return f"the logits that it was given, found {other}{type(output).__name__}"

    @property
    def num_rows(self) -> int:
        return self.logits.shape[0]

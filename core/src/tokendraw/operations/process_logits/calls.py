"""The call for editing logits in place, and the checks of its arguments: none reads a value on a device."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from tokendraw._torch.tensor_checks import (
    check_dense_rows,
    check_device_of,
    check_dtype,
    check_integers,
    check_plain,
    check_vector,
)
from tokendraw.calls import input_checks
from tokendraw.calls.call import Call, OutputCheck
from tokendraw.calls.output_checks import wrong_object
from tokendraw.errors.exceptions import InvalidInputError
from tokendraw.errors.formatting import type_name
from tokendraw.operations.process_logits import LogitsProcessorBackend, ProcessNeed
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.fields import integers
from tokendraw.request_slots.slots import RequestSlots


def check_logits(logits: Tensor, device: torch.device) -> None:
    """Refuse logits unfit for editing in place."""
    input_checks.check_logits("logits", logits, device, built="processor")
    if logits.requires_grad:
        raise InvalidInputError(
            "'logits' needs to be free of gradients, since it is edited in place, found requires_grad. "
            "Pass logits.detach()."
        )
    rows, vocab_size = logits.shape
    check_dense_rows("logits", logits, "ids", ", and use what is returned")
    if rows > 1 and logits.stride(0) < vocab_size:
        raise InvalidInputError(
            f"'logits' needs rows with memory of their own, since it is edited in place, found row stride "
            f"{logits.stride(0)} of {vocab_size} ids. Pass logits.contiguous(), and use what is returned."
        )


def check_slots(slots: RequestSlots, logits: Tensor) -> None:
    """Refuse anything but slots for these logits."""
    input_checks.check_type("slots", slots, RequestSlots, "Pass the one that the requests were added to.")
    mend = "Make the slots with device= of the logits."
    check_device_of("slots", slots.device, "'logits'", logits.device, mend)
    if slots.vocab_size != logits.shape[1]:
        raise InvalidInputError(
            f"'logits' needs the vocabulary of 'slots', {slots.vocab_size}, found {logits.shape[1]}. "
            "Pass slots that were made with the vocab_size of the logits."
        )


def check_row_index(row_index: Tensor, slots: RequestSlots, logits: Tensor, drafts: Drafts | None) -> None:
    """Refuse anything but a slot for each row, or for each request with drafts."""
    check_vector("row_index", row_index, "Pass a tensor of slots on the device of the logits.")
    check_integers("row_index", row_index)
    _check_device("row_index", row_index, logits)
    each, needed = ("row", logits.shape[0]) if drafts is None else ("request", drafts.num_requests)
    if row_index.shape[0] != needed:
        raise InvalidInputError(
            f"'row_index' needs one slot for each {each}, {needed}, found {row_index.shape[0]}."
        )
    if row_index.is_cpu:
        check_range(row_index, slots)


def check_range(row_index: Tensor, slots: RequestSlots) -> None:
    """Refuse slots out of range. Waits for the device of ``row_index``."""
    if row_index.shape[0]:
        least, largest = row_index.aminmax()
        if least < 0 or largest >= slots.num_slots:
            integers("row_index", row_index.tolist(), 0, slots.num_slots - 1)


def check_bitmask(bitmask: Tensor, logits: Tensor) -> None:
    """Refuse anything but a mask [R, ceil(V / 32)] of int32."""
    check_plain("bitmask", bitmask, "Pass a tensor of int32 words, or None.")
    rows, vocab_size = logits.shape
    words = -(-vocab_size // 32)
    if bitmask.shape != (rows, words):
        raise InvalidInputError(
            f"'bitmask' needs shape {[rows, words]}, one bit for each of {vocab_size} ids, found {list(bitmask.shape)}."
        )
    check_dtype("bitmask", bitmask, torch.int32, "Pass 32 ids a word, as xgrammar does.")
    _check_device("bitmask", bitmask, logits)
    check_dense_rows("bitmask", bitmask, "words")


def _check_device(name: str, tensor: Tensor, logits: Tensor) -> None:
    check_device_of(name, tensor.device, "'logits'", logits.device, f"Pass {name}.to('{logits.device}').")


_DRAFT_TENSORS = ("draft_token_ids", "cu_num_logits")


@dataclass(slots=True, eq=False)
class Process(Call):
    """Logits [R, V], the slot of each row, and bitmasks and drafts, if any."""

    logits: Tensor
    slots: RequestSlots
    row_index: Tensor
    bitmask: Tensor | None = None
    drafts: Drafts | None = None
    target: Tensor | None = field(default=None, init=False)
    """The caller's logits, where the backend edits a copy of them."""

    def check(self, device: torch.device, need: ProcessNeed) -> None:
        check_logits(self.logits, device)
        check_slots(self.slots, self.logits)
        if self.drafts is not None:
            if not isinstance(self.drafts, Drafts):
                raise InvalidInputError(
                    f"'drafts' needs a tokendraw.Drafts or None, found {type_name(self.drafts)}. "
                    "Pass Drafts.from_lists(draft_token_ids, device=...)."
                )
            self.drafts.check(self.logits, "logits")
        check_row_index(self.row_index, self.slots, self.logits, self.drafts)
        if self.bitmask is not None:
            check_bitmask(self.bitmask, self.logits)

    def check_values(self) -> None:
        check_range(self.row_index, self.slots)
        if self.drafts is not None:
            self.drafts.check_values()

    def tensors(self) -> dict[str, Tensor]:
        tensors = {"row_index": self.row_index}
        if self.bitmask is not None:
            tensors["bitmask"] = self.bitmask
        if self.drafts is not None:
            tensors |= {name: getattr(self.drafts, name) for name in _DRAFT_TENSORS}
        return tensors

    def with_tensors(self, tensors: Mapping[str, Any]) -> Self:
        drafts = self.drafts
        if drafts is not None:
            drafts = replace(drafts, **{name: tensors[name] for name in _DRAFT_TENSORS})
        return replace(self, row_index=tensors["row_index"], bitmask=tensors.get("bitmask"), drafts=drafts)

    def copied(self) -> Self:
        """Copy the logits too: a failing backend may have begun to edit them in place."""
        copy = Call.copied(self)  # super() does not know a dataclass with slots
        copy.logits, copy.target = self.logits.clone(), self.logits
        return copy

    def signature(self) -> Hashable:
        drafts, form = self.drafts, None
        if drafts is not None:
            ids = drafts.draft_token_ids
            form = ids.dim(), ids.dtype, drafts.cu_num_logits.dtype, drafts.max_drafts.bit_length()
        masked, facts = self.bitmask is not None, self.slots.facts
        return self.logits.dtype, self.logits.shape[1], self.row_index.dtype, masked, facts, form

    @property
    def vocab_size(self) -> int:
        """Return the number V of token ids."""
        return self.logits.shape[1]

    def run(self, backend: LogitsProcessorBackend) -> Any:
        logits, target = self.logits, self.target
        self.slots.appender = getattr(backend, "append", None)
        if not logits.shape[0] or (self.bitmask is None and not self.slots.facts.any_edit):
            return logits if target is None else target
        output = backend.process(logits, self.slots, self.row_index, self.bitmask, self.drafts)
        if target is None or output is not logits:
            return output
        with torch.inference_mode():  # in which logits may be written to that were made in it
            target.copy_(logits)
        return target

    def output_check(self, need: ProcessNeed) -> OutputCheck:
        needed = self.logits if self.target is None else self.target
        return lambda output: wrong_object(output, needed, "the logits that it was given")

    @property
    def num_rows(self) -> int:
        return self.logits.shape[0]

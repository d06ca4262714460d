"""Keeps the requests of a text that is being written: plain ones, or ones whose logits are edited at each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.parameters.params import SamplingParams
from tokendraw.request_slots.metadata import HasTokenIds
from tokendraw.request_slots.slots import RequestSlots


class Requests(Protocol):
    """The requests, numbered from 0. Rows name some of them, each once."""

    def metadata(self, rows: Sequence[int], positions: Sequence[int]) -> SamplingMetadata:
        """Describe the next token of each row, which follows the token at its position."""
        ...

    def edited(self, logits: Tensor, rows: Sequence[int], drafts: Drafts | None = None) -> Tensor:
        """Edit what the model says of the rows, or of their drafts, and return it."""
        ...

    def append(self, rows: Sequence[int], token_ids: Tensor) -> None:
        """Note the token that was drawn for each row."""
        ...

    def append_verified(self, rows: Sequence[int], output: HasTokenIds) -> None:
        """Note the tokens that a verification emitted for each row."""
        ...


class PlainRequests:
    """Requests that ask for no edit, so that nothing is kept but their parameters."""

    def __init__(self, params: Sequence[SamplingParams], device: torch.device) -> None:
        self._params = params
        self._device = device

    def metadata(self, rows: Sequence[int], positions: Sequence[int]) -> SamplingMetadata:
        """Build the metadata anew."""
        asked = [self._params[row] for row in rows]
        return SamplingMetadata.from_params(asked, device=self._device, positions=positions)

    def edited(self, logits: Tensor, rows: Sequence[int], drafts: Drafts | None = None) -> Tensor:
        """Return the logits as they are."""
        return logits

    def append(self, rows: Sequence[int], token_ids: Tensor) -> None:
        """Keep no history."""

    def append_verified(self, rows: Sequence[int], output: HasTokenIds) -> None:
        """Keep no history."""


@dataclass(frozen=True, eq=False)
class Editor:
    """Whoever edits logits, and what all requests have in common."""

    processor: Any
    """A provider of ``process_logits``."""
    device: torch.device
    vocab_size: int
    bitmask: Tensor | None = None
    """[ceil(V / 32)] int32 on the device: the words that any text may have. None: all."""


class EditedRequests:
    """Requests in slots, each in that of its number, with the history that their edits count.

    :param prompt: of all of them; numbers below 0 are words that the model does not know.
    :param count: the most tokens that are drawn for one of them.
    """

    def __init__(
        self, editor: Editor, params: Sequence[SamplingParams], prompt: Sequence[int], count: int
    ) -> None:
        self._editor = editor
        words = [word for asked in params for word in asked.bad_words or ()]
        self._slots = RequestSlots(
            len(params),
            len(prompt) + count,
            editor.vocab_size,
            device=editor.device,
            max_bias=max(1, *(len(asked.logit_bias or ()) for asked in params)),
            max_stop_ids=max(1, *(len(asked.stop_token_ids or ()) for asked in params)),
            max_bad_words=max(1, len(words)),
            max_bad_word_len=max([1, *map(len, words)]),
        )
        for slot, asked in enumerate(params):
            self._slots.add(slot, asked, prompt)

    def metadata(self, rows: Sequence[int], positions: Sequence[int]) -> SamplingMetadata:
        """Take what stands in the slots."""
        return self._slots.metadata(rows, positions)

    def edited(self, logits: Tensor, rows: Sequence[int], drafts: Drafts | None = None) -> Tensor:
        """Edit the logits in place."""
        mask = self._editor.bitmask
        edited: Tensor = self._editor.processor.process(
            logits,
            self._slots,
            torch.tensor(rows, device=logits.device),
            None if mask is None else mask.expand(len(logits), -1),
            drafts,
        )
        return edited

    def append(self, rows: Sequence[int], token_ids: Tensor) -> None:
        """Append to the histories."""
        self._slots.append(rows, token_ids)

    def append_verified(self, rows: Sequence[int], output: HasTokenIds) -> None:
        """Append to the histories."""
        self._slots.append_verified(rows, output)


def requests_of(
    params: Sequence[SamplingParams],
    device: torch.device,
    prompt: Sequence[int],
    count: int,
    editor: Editor | None,
) -> Requests:
    """Begin one request for each of ``params``.

    :param editor: None: nobody asks for an edit.
    """
    if editor is None:
        return PlainRequests(params, device)
    return EditedRequests(editor, params, prompt, count)

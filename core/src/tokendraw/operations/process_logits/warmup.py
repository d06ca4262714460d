"""Warms up edits: edits made-up logits in every combination open to requests.

What an edit compiles may depend on the dtypes of the logits and of all indices, on whether there are drafts and how
their ids lie, and on which edits occur together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import compress, product
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from tokendraw.calls.selection import Selection
from tokendraw.calls.warmup import CallGroups
from tokendraw.calls.warmup_batches import Batches, checked_dtypes, checked_integer
from tokendraw.operations.process_logits.calls import Process
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.edits import EDITS, Edit
from tokendraw.parameters.params import SamplingParams
from tokendraw.request_slots.slots import RequestSlots

_Fields: TypeAlias = dict[str, Any]
"""Fields of a request that ask for edits of one kind."""
_EDITS: tuple[_Fields, ...] = (
    {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1},
    {"logit_bias": {0: 1.0}},
    {"allowed_token_ids": [0]},
    {"bad_words": [[0]]},
    {"min_tokens": 1, "stop_token_ids": [0]},
)
"""Fields of a request for each field of :class:`tokendraw.plugin.EditFacts`."""
_MAX_TOKENS = 8


@dataclass(frozen=True)
class ProcessWarmup:
    """Edits logits with every combination of edits. Built by :meth:`of`, after checking its arguments."""

    batches: Batches
    index_dtypes: tuple[torch.dtype, ...]
    bitmask: bool
    max_drafts: int
    """K; 0: no verification."""

    @classmethod
    def of(
        cls,
        vocab_size: int,
        *,
        index_dtypes: Iterable[torch.dtype] = (torch.int64, torch.int32),
        bitmask: bool = True,
        max_drafts: int | None = None,
        **logits: Any,
    ) -> Self:
        """Check the arguments of :meth:`LogitsProcessor.warmup`.

        :param logits: ``dtypes``, ``batch_sizes`` and ``row_stride``.
        """
        return cls(
            Batches.of(vocab_size, **logits),
            checked_dtypes("index_dtypes", index_dtypes, "dtypes of indices", ("int64", "int32")),
            bool(bitmask),
            0 if max_drafts is None else checked_integer("max_drafts", max_drafts, 1),
        )

    def stages(self, selection: Selection, device: torch.device) -> Iterator[CallGroups]:
        """Make up the served edits. A processor without these logits, or without drafts, reports so."""
        batches, requests = self.batches, self._requests(selection)
        forms = len(self.index_dtypes) * len(list(self._drafts(1, torch.device("cpu"))))
        edits = sum(masked + bool(request) for request, masked in requests)
        total = len(batches.dtypes) * len(batches.batch_sizes) * forms * edits
        yield CallGroups(
            "edits", ([call] for call in self._calls(requests, device)), total
        )  # they edit the same logits and slots

    def _requests(self, selection: Selection) -> list[tuple[_Fields, bool]]:
        """List requests, the largest sets of edits first, each with the permission of bitmasks.

        Where the chosen processor serves some edits only, requests that it serves come before those for the companion.
        """
        capabilities, families = selection.backend.capabilities, [(_EDITS, self.bitmask)]
        if capabilities is not None and not {*EDITS} <= {*capabilities.edits}:
            served = tuple([fields for edit in _EDITS if (fields := _served(edit, capabilities.edits))])
            families = [
                (served, self.bitmask and "bitmask" in capabilities.edits),
                *families[: bool(selection.companion)],
            ]
        return [
            ({name: value for edit in compress(edits, chosen) for name, value in edit.items()}, masked)
            for edits, masked in families
            for chosen in product((True, False), repeat=len(edits))
        ]

    def _calls(self, requests: Iterable[tuple[_Fields, bool]], device: torch.device) -> Iterator[Process]:
        size, most = self.batches.vocab_size, max(self.batches.batch_sizes)
        slots = RequestSlots(most, _MAX_TOKENS, size, device=device)
        rows = most * (1 + self.max_drafts)
        words = torch.full((rows, -(-size // 32)), -1, dtype=torch.int32, device=device)
        for logits, (fields, masked) in product(self.batches.logits(rows, device), requests):
            slots.add(0, SamplingParams(**fields), prompt_token_ids=[0])
            masks = (None, words)[not fields : 1 + masked]
            for count in self.batches.batch_sizes:
                yield from self._edits(logits, slots, masks, count)
            slots.remove(0)

    def _edits(
        self, logits: Tensor, slots: RequestSlots, masks: Iterable[Tensor | None], requests: int
    ) -> Iterator[Process]:
        """Edit the rows of some requests, without drafts and with them."""
        for index_dtype, drafts in product(self.index_dtypes, self._drafts(requests, logits.device)):
            rows = requests if drafts is None else requests * (1 + self.max_drafts)
            row_index = torch.arange(requests, dtype=index_dtype, device=logits.device)
            for words in masks:
                mask = None if words is None else words[:rows]
                yield Process(logits[:rows], slots, row_index, mask, drafts)

    def _drafts(self, requests: int, device: torch.device) -> Iterator[Drafts | None]:
        """Make no drafts, then K drafts of every request, with flat and with padded ids."""
        yield None
        most = self.max_drafts
        dtypes = self.index_dtypes if most else ()
        for ids, offsets, shape in product(dtypes, dtypes, ((requests * most,), (requests, most))):
            yield Drafts(
                draft_token_ids=torch.zeros(shape, dtype=ids, device=device),
                cu_num_logits=torch.arange(requests + 1, dtype=offsets, device=device) * (1 + most),
                num_drafts=(most,) * requests,
                any_placeholder=False,
            )


def _served(fields: _Fields, edits: Collection[Edit]) -> _Fields:
    """Keep the fields of served edits."""
    served = {name: value for name, value in fields.items() if name in edits}
    return fields if "min_tokens" in served else served

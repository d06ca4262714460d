"""Warms up edits: edits made-up logits in every combination open to requests.

What an edit compiles may depend on the dtypes of the logits and of all indices, on whether there are drafts and how
their ids lie, and on which edits occur together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import compress, product
from typing import Any, TypeAlias

import torch

from tokendraw.calls.selection import Selection
from tokendraw.calls.warmup import CallGroup
from tokendraw.calls.warmup_batches import Batches, checked_choices, checked_integer, dtypes_by_name
from tokendraw.edits.process import Process
from tokendraw.edits.slots import RequestSlots
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.edits import EDITS, Edit
from tokendraw.parameters.params import SamplingParams

_Fields: TypeAlias = dict[str, Any]
"""Fields of a request that ask for edits."""
_DraftForm: TypeAlias = tuple[torch.dtype, torch.dtype, bool]
"""Dtypes of the drafts' ids and offsets, and whether the ids are padded."""
_EDITS: tuple[_Fields, ...] = (
    {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1, "penalty_last_n": 1},
    {"logit_bias": {0: 1.0}},
    {"allowed_token_ids": [0]},
    {"bad_words": [[0]]},
    {"min_tokens": 1, "stop_token_ids": [0]},
    {"dry_multiplier": 1.0, "thinking_budget": (0, [0], [0])},
)
"""Fields of a request that are asked for together."""
_MAX_TOKENS = 8


class ProcessWarmup:
    """Edits of logits in every combination, from the checked arguments of :meth:`LogitsProcessor.warmup`."""

    def __init__(
        self,
        vocab_size: int,
        *,
        index_dtypes: Iterable[torch.dtype] = (torch.int64, torch.int32),
        bitmask: bool = True,
        max_drafts: int | None = None,
        **logits: Any,
    ) -> None:
        """Check the arguments.

        :param logits: ``dtypes``, ``batch_sizes`` and ``row_stride``.
        """
        self.batches = Batches(vocab_size, **logits)
        names = dtypes_by_name(("int64", "int32"))
        self.index_dtypes = checked_choices("index_dtypes", index_dtypes, "dtypes of indices", names)
        self.bitmask = bool(bitmask)
        self.max_drafts = 0 if max_drafts is None else checked_integer("max_drafts", max_drafts, 1)

    def groups(self, selection: Selection, device: torch.device) -> Iterator[CallGroup]:
        """Make up the served edits. A processor without these logits, or without drafts, reports so."""
        requests, dtypes = self._requests(selection), self.index_dtypes
        draft_forms = (None, *(product(dtypes, dtypes, (False, True)) if self.max_drafts else ()))
        forms = list(product(self.batches.batch_sizes, dtypes, draft_forms))
        edits = sum(masked + bool(fields) for fields, masked in requests)
        total = len(self.batches.dtypes) * edits * len(forms)
        # One after the other: they edit the same logits, for requests in the same slots.
        yield CallGroup("edits", self._calls(requests, forms, device), total, in_parallel=False)

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

    def _calls(
        self,
        requests: Iterable[tuple[_Fields, bool]],
        forms: Iterable[tuple[int, torch.dtype, _DraftForm | None]],
        device: torch.device,
    ) -> Iterator[Process]:
        size, most = self.batches.vocab_size, max(self.batches.batch_sizes)
        slots, max_rows = RequestSlots(most, _MAX_TOKENS, size, device=device), most * (1 + self.max_drafts)
        words = torch.full((max_rows, -(-size // 32)), -1, dtype=torch.int32, device=device)
        for logits, (fields, masked) in product(self.batches.logits(max_rows, device), requests):
            slots.add(0, SamplingParams(**fields), prompt_token_ids=[0])
            for (count, dtype, form), has_mask in product(forms, (False, True)):
                if not (masked if has_mask else fields):
                    continue
                rows = count if form is None else count * (1 + self.max_drafts)
                row_index = torch.arange(count, dtype=dtype, device=device)
                drafts = None if form is None else self._drafts(count, *form, device)
                yield Process(logits[:rows], slots, row_index, words[:rows] if has_mask else None, drafts)
            slots.remove(0)

    def _drafts(
        self, requests: int, ids: torch.dtype, offsets: torch.dtype, is_padded: bool, device: torch.device
    ) -> Drafts:
        most = self.max_drafts
        shape = (requests, most) if is_padded else (requests * most,)
        return Drafts(
            draft_token_ids=torch.zeros(shape, dtype=ids, device=device),
            cu_num_logits=torch.arange(requests + 1, dtype=offsets, device=device) * (1 + most),
            num_drafts=(most,) * requests,
            any_placeholder=False,
        )


def _served(fields: _Fields, edits: Collection[Edit]) -> _Fields:
    """Keep the fields of served edits."""
    served = {name: value for name, value in fields.items() if name in edits}
    return fields if "min_tokens" in served else served

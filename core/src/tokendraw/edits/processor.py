"""Edits of logits: the object that ``tokendraw.load("process_logits")`` returns, and the proof of a processor."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tokendraw._torch.untraced import untraced
from tokendraw.calls.dispatch import dispatch
from tokendraw.calls.provider import Provider
from tokendraw.calls.warmup import Batches, checked_choices, checked_integer, warm_up
from tokendraw.edits import (
    OPERATION,
    LogitsProcessorBackend,
    ProcessCapabilities,
    ProcessNeed,
)
from tokendraw.edits.process import Process
from tokendraw.edits.slots import RequestSlots
from tokendraw.edits.tables import ONE_OUTPUT, RequestTables
from tokendraw.errors.exceptions import PluginError
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.edits import Edit
from tokendraw.parameters.params import SamplingParams

_VOCAB_SIZE = 40
_OFF = float("-inf")
_EDITS: dict[Edit, tuple[dict[str, Any], dict[int, float]]] = {
    "bitmask": ({}, {39: _OFF}),
    "allowed_token_ids": ({"allowed_token_ids": [i for i in range(_VOCAB_SIZE) if i != 4]}, {4: _OFF}),
    "bad_words": ({"bad_words": [[1, 2]]}, {2: _OFF}),
    "min_tokens": ({"min_tokens": 2, "stop_token_ids": [5]}, {5: _OFF}),
    "thinking_budget": ({}, {}),
    "logit_bias": ({"logit_bias": {3: 4.0}}, {3: 4.0}),
    "repetition_penalty": ({"repetition_penalty": 2.0}, {0: -4.0, 1: -4.0}),
    "frequency_penalty": ({"frequency_penalty": 0.5}, {1: -0.5}),
    "presence_penalty": ({"presence_penalty": 1.0}, {1: -1.0}),
    "penalty_last_n": ({"penalty_last_n": 1}, {}),
    "dry_multiplier": ({"dry_multiplier": 0.25, "dry_allowed_length": 0}, {0: -0.25, 1: -0.25}),
}
"""Fields of the request in the proof for each edit, and the changes of the logits of 8. A thinking budget is that of a
second request."""
_FORCED_ID = 39
"""In the proof, the id that a spent thinking budget forces; a bitmask forbids it."""


class LogitsProcessor(Provider):
    """Edits logits in place, as the requests of their rows ask."""

    _operations = (OPERATION,)

    @untraced
    def process(
        self,
        logits: Tensor,
        slots: RequestSlots,
        row_index: Tensor,
        bitmask: Tensor | None = None,
        drafts: Drafts | None = None,
    ) -> Tensor:
        """Edit logits in place and return them: see docs/logits-processing.md.

        :param logits: [R, V] float32, bfloat16 or float16, the ids of a row one behind the other.
        :param slots: the requests, and the tokens of each one so far.
        :param row_index: [R] integer, with drafts [B]: the slot of each row, or request.
        :param bitmask: [R, ceil(V / 32)] int32: a bit for each id, set where the id is allowed.
        :param drafts: the rows are those of a verification of these drafts.
        :raises InvalidInputError: a ValueError, before anything is launched.
        :raises SamplerUnavailableError: no plugin here serves the call.
        """
        call = Process(logits, slots, row_index, bitmask, drafts)
        output: Tensor = dispatch(self._negotiator, OPERATION, call)
        return output

    @untraced
    def warmup(
        self,
        vocab_size: int,
        *,
        dtypes: Iterable[torch.dtype],
        batch_sizes: Iterable[int] = (1, 64),
        row_stride: int | None = None,
        index_dtypes: Iterable[torch.dtype] = (torch.int64, torch.int32),
        bitmask: bool = True,
        max_drafts: int | None = None,
        progress: bool | None = None,
    ) -> float:
        """Edit made-up logits, so that no request waits for a kernel to be compiled or loaded.

        :param vocab_size: V of the logits to come.
        :param dtypes: of the logits to come.
        :param batch_sizes: numbers of rows; with drafts numbers of requests, of K + 1 rows each. Beside the largest
            logits, slots for as many requests are allocated: 4 bytes for each request and id.
        :param row_stride: of the logits in elements, where their rows are padded; None: V.
        :param index_dtypes: of ``row_index``, and of the ids and ``cu_num_logits`` of drafts, in every combination:
            int64 or int32. Name those alone that come where kernels take long to compile.
        :param bitmask: whether bitmasks may come.
        :param max_drafts: K, the most drafts that a request may have; None: no verification is edited.
        :param progress: whether a line on stderr shows the progress; None: if stderr is a terminal.
        :returns: the duration in seconds; 0.0 on a CPU.
        :raises InvalidInputError: a ValueError that names the argument; or a CUDA graph is being captured.
        """
        batches = Batches(
            self.device, vocab_size, dtypes=dtypes, batch_sizes=batch_sizes, row_stride=row_stride
        )
        indices = checked_choices(
            "index_dtypes", index_dtypes, "dtypes of indices", (torch.int64, torch.int32)
        )
        most = 0 if max_drafts is None else checked_integer("max_drafts", max_drafts, 1)
        edited = partial(batches.edited, Process, RequestSlots, indices, most, bool(bitmask))
        return warm_up(self._negotiator, [(OPERATION, edited)], progress=progress)


def prove(
    backend: LogitsProcessorBackend,
    capabilities: ProcessCapabilities,
    device: torch.device,
    need: ProcessNeed,
) -> None:
    """Edit a row of 40 logits of 8, for a request with prompt 0 and output 1, with a bitmask of two words.

    A second row is that of a request with a spent thinking budget, where these are advertised.
    Of all edits those that are advertised are asked for. A backend that appends tokens then appends 1, 3 and 5, and has
    no room for the last.

    :raises PluginError: the logits, or the history, are not what they have to be.
    """
    dtype = getattr(torch, need.dtype or (*capabilities.dtypes, "float32")[0])
    slots = RequestSlots(num_slots=2, max_tokens=4, vocab_size=_VOCAB_SIZE, device=device)
    params: dict[str, Any] = {}
    needed = [8.0] * _VOCAB_SIZE
    for edit in {*capabilities.edits}:
        fields, changes = _EDITS[edit]
        params |= fields
        for token, change in changes.items():
            needed[token] += change
    if {"repetition_penalty", "penalty_last_n"} <= {*capabilities.edits}:
        needed[0] -= _EDITS["repetition_penalty"][1][0]  # it left the window
    slots.add(1, SamplingParams(**params), prompt_token_ids=[0])
    row_index = torch.ones(1, dtype=torch.int64, device=device)
    slots.append(row_index, row_index)
    rows = [needed]
    if "thinking_budget" in capabilities.edits:
        slots.add(0, SamplingParams(thinking_budget=(0, [0], [_FORCED_ID])), prompt_token_ids=[0])
        row_index = torch.tensor([1, 0], device=device, dtype=torch.int64)
        rows.append([8.0 if i == _FORCED_ID else _OFF for i in range(_VOCAB_SIZE)])
    logits = torch.full((len(rows), _VOCAB_SIZE), 8.0, dtype=dtype, device=device)
    bitmask = None
    if "bitmask" in capabilities.edits:
        bitmask = torch.full((len(rows), 2), -1, dtype=torch.int32, device=device)
        bitmask[:, 1:] = ~(1 << 7)  # id 39
    output = backend.process(logits, slots, row_index, bitmask)
    if output is not logits:
        raise PluginError(f"the proof call needs the logits that it was given, found {type(output).__name__}")
    for row, (wanted, found) in enumerate(zip(rows, logits.tolist(), strict=True)):
        for i, (want, got) in enumerate(zip(wanted, found, strict=True)):
            if got != want:
                place = f"logit {i} of row {row}" if row else f"logit {i}"
                raise PluginError(f"the proof call needs {want} as {place}, found {got}")
    if len(rows) > 1:
        slots.remove(0)
    if hasattr(backend, "append"):
        tokens = torch.tensor([[1, 3, 5], [1, 3, 5]], device=device, dtype=torch.int64)
        _prove_append(
            backend.append, slots.tables, torch.tensor([1, 2], device=device, dtype=torch.int64), tokens
        )


def _prove_append(append: Any, tables: RequestTables, row_index: Tensor, tokens: Tensor) -> None:
    """Append tokens to slot 1, whose history is 0, 1 of at most 4; the other row has no slot.

    :raises PluginError: the tables are not what they have to be.
    """
    flags = tables.counts & (ONE_OUTPUT - 1)
    append(tables, row_index, tokens)
    counts = torch.zeros_like(tables.counts)
    counts[1, 1], counts[1, 3] = 2 * ONE_OUTPUT, ONE_OUTPUT
    found = {
        "history": tables.history.tolist(),
        "num_tokens": tables.num_tokens.tolist(),
        "distinct ids": sorted(tables.distinct[1].tolist()),
        "num_distinct": tables.num_distinct.tolist(),
        "counts": tables.counts.tolist(),
    }
    needed = {
        "history": [[0] * 4, [0, 1, 1, 3]],
        "num_tokens": [0, 4],
        "distinct ids": [0, 0, 1, 3],
        "num_distinct": [0, 3],
        "counts": (flags + counts).tolist(),
    }
    for name, want in needed.items():
        if found[name] != want:
            raise PluginError(f"the proof call of append needs {want} as {name}, found {found[name]}")


CALLS = {"process": Process}
PROVIDER = LogitsProcessor

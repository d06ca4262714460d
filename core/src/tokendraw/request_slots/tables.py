"""The tensors of requests: small parameters as columns of blocks, and tables for edits of logits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import cache
from struct import Struct
from typing import NamedTuple, Self

import torch
from torch import Tensor

from tokendraw.parameters.edits import EDITS, Edit
from tokendraw.parameters.fields import PARAMETERS, SLOT_FIELDS
from tokendraw.parameters.metadata import field_dtypes

STATE_COLUMNS = {
    # A step reads the first three together.
    **dict.fromkeys(
        ("num_tokens", "num_distinct", "limit", "num_prompt", "num_bias", "num_stop"), torch.int32
    ),
    **dict.fromkeys(("min_tokens", "num_bad", "penalty_last_n"), torch.int32),
    **dict.fromkeys(("dry_allowed_length", "dry_max_match", "dry_last_n", "num_dry_breakers"), torch.int32),
    **dict.fromkeys(("thinking_budget", "num_thinking_start", "num_thinking_end"), torch.int32),
    **dict.fromkeys(("dry_multiplier", "dry_base"), torch.float32),
    **dict.fromkeys(("repetition", "frequency", "presence"), torch.float32),
    "is_restricted": torch.bool,
}
"""Small parameters beside the fields of the metadata."""
_CODES = {torch.float64: "d", torch.float32: "f", torch.int64: "q", torch.int32: "i", torch.bool: "?"}
BLOCKS = {"wide": torch.int64, "words": torch.int32, "bytes": torch.uint8}
"""Dtype of each block; a block holds the parameters of every dtype of its size."""
_WORD_BYTES = 4
VALUES_AT_REST: dict[str, float] = {
    **dict.fromkeys((*SLOT_FIELDS, *STATE_COLUMNS), 0),
    **{parameter.name: parameter.neutral for parameter in PARAMETERS},
    "repetition": 1,
    "penalty_last_n": -1,
    "dry_base": 1,
    "thinking_budget": -1,
}
"""Values in a slot without a request: the neutral value of each parameter."""


class ParameterLayout(NamedTuple):
    """The parameters of a slot, block by block."""

    dtypes: dict[str, torch.dtype]
    """By parameter, in the order of the blocks."""
    rows: dict[str, list[str]]
    """Names of the first rows of each block."""
    sizes: dict[str, int]
    """Number of rows of each block; with those beyond the named ones a column is whole words of 32 bits."""
    packer: Struct

    def packed(self, values: Mapping[str, float]) -> Tensor:
        """Pack the column of a slot into a vector of int32 on the host."""
        packed = self.packer.pack(*[values[name] for name in self.dtypes])
        return torch.frombuffer(bytearray(packed), dtype=torch.int32)


@cache
def layout_on(device_type: str) -> ParameterLayout:
    """Lay out the parameters for devices of a type."""
    dtype_of = field_dtypes(device_type) | STATE_COLUMNS
    dtypes = dict(sorted(dtype_of.items(), key=lambda item: -item[1].itemsize))
    rows = {
        block: [name for name, dtype in dtypes.items() if dtype.itemsize == stored.itemsize]
        for block, stored in BLOCKS.items()
    }
    padding = -len(rows["bytes"]) % _WORD_BYTES
    sizes = {block: len(names) + (padding if block == "bytes" else 0) for block, names in rows.items()}
    codes = "".join(_CODES[dtype] for dtype in dtypes.values())
    return ParameterLayout(dtypes, rows, sizes, Struct(f"={codes}{padding}x"))


ONE_OUTPUT = 16
"""Step of ``RequestTables.counts`` for each time that an id is in the output."""
IN_PROMPT, HAS_BIAS, IS_STOP, ENDS_BAD_WORD = 1, 2, 4, 8
"""The flags of ``RequestTables.counts``."""
OCCURRENCES = ~(HAS_BIAS | IS_STOP | ENDS_BAD_WORD)
"""The bits of ``RequestTables.counts`` that are set where an id occurs in prompt or output."""


@dataclass(frozen=True, eq=False)
class RequestTables:
    """The tensors of requests read by a provider of ``process_logits``. All lie dense on one device, and never move.

    NB, NS, NW, LW, ND, LT and the words of ``allowed`` are 0 until a request may ask for such an edit. Then
    ``slots.tables`` is another object, in which those tensors are new and the others are the same.

    S are the slots, M the tokens that one holds, V the vocabulary. A slot without a request asks for nothing: its
    counts are 0 and its lists are empty. Entries behind those that a number counts are undefined, unless a field says
    more. A provider changes none of them.

    :ivar history: [S, M] int32: ids of the prompt, then ids of the output. A number outside [0, V) is a placeholder,
        such as an image has: a token that no bad word matches.
    :ivar num_prompt: [S] int32: number of tokens in the prompt.
    :ivar num_tokens: [S] int32: number of tokens in prompt and output, at most M.
    :ivar limit: [S] int32: most tokens in prompt and output: M, or 0 in a slot without a request.
    :ivar distinct: [S, M] int32: ids in [0, V) that occur in prompt or output, each once, in any order.
    :ivar num_distinct: [S] int32: number of ids in ``distinct``.
    :ivar counts: [S, V] int32: 16 times the number of occurrences of the id in the output, plus flags: 1, the id is in
        the prompt; 2, in ``bias_ids``; 4, in ``stop_ids``; 8, the id is the last of one of ``bad_words``.
    :ivar repetition: [S] float32: repetition penalty; 1: off.
    :ivar frequency: [S] float32: frequency penalty; 0: off.
    :ivar presence: [S] float32: presence penalty; 0: off.
    :ivar penalty_last_n: [S] int32: number of tokens, the last of ``history`` and of the drafts before a row, that the
        penalties count; -1: all.
    :ivar bias_ids: [S, NB] int32: ids of ``logit_bias``, each once; -1 behind the last.
    :ivar bias: [S, NB] float32: value that is added to the logit of each id in ``bias_ids``.
    :ivar num_bias: [S] int32: number of ids in ``bias_ids``.
    :ivar allowed: [S, ceil(V / 32)] int32: bit i % 32 of word i // 32 is set where id i is allowed. Undefined where the
        request is not restricted.
    :ivar is_restricted: [S] bool: whether the request has ``allowed_token_ids``.
    :ivar stop_ids: [S, NS] int32: ids that ``min_tokens`` holds back, each once; -1 behind the last.
    :ivar num_stop: [S] int32: number of ids in ``stop_ids``; 0 where ``min_tokens`` is 0.
    :ivar min_tokens: [S] int32: number of tokens in the output below which ``stop_ids`` are not drawn; 0: off.
    :ivar bad_words: [S, NW, LW] int32: sequences, each right-aligned with -1 before its first id: the last id is in
        column LW - 1.
    :ivar bad_lens: [S, NW] int32: number of ids in each sequence, from 1 to LW; 0 behind the last sequence.
    :ivar num_bad: [S] int32: number of sequences in ``bad_words``.
    :ivar dry_multiplier: [S] float32: cost of a match of ``dry_allowed_length`` tokens; 0: off.
    :ivar dry_base: [S] float32: factor for each further token, >= 1.
    :ivar dry_allowed_length: [S] int32: length of the shortest match with a cost.
    :ivar dry_max_match: [S] int32: length that longer matches count as.
    :ivar dry_last_n: [S] int32: number of tokens, the last of ``history`` and of the drafts before a row, that are
        searched.
    :ivar dry_breakers: [S, ND] int32: ids that no match contains, each once; -1 behind the last.
    :ivar num_dry_breakers: [S] int32: number of ids in ``dry_breakers``.
    :ivar thinking_budget: [S] int32: tokens in the output, behind the newest start, from which on the end is forced;
        -1: off.
    :ivar thinking_start: [S, LT] int32: the ids of the start in their order; -1 behind the last.
    :ivar num_thinking_start: [S] int32: number of ids in ``thinking_start``.
    :ivar thinking_end: [S, LT] int32: the ids of the end in their order; -1 behind the last.
    :ivar num_thinking_end: [S] int32: number of ids in ``thinking_end``.
    """

    history: Tensor
    num_prompt: Tensor
    num_tokens: Tensor
    limit: Tensor
    distinct: Tensor
    num_distinct: Tensor
    counts: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    penalty_last_n: Tensor
    bias_ids: Tensor
    bias: Tensor
    num_bias: Tensor
    allowed: Tensor
    is_restricted: Tensor
    stop_ids: Tensor
    num_stop: Tensor
    min_tokens: Tensor
    bad_words: Tensor
    bad_lens: Tensor
    num_bad: Tensor
    dry_multiplier: Tensor
    dry_base: Tensor
    dry_allowed_length: Tensor
    dry_max_match: Tensor
    dry_last_n: Tensor
    dry_breakers: Tensor
    num_dry_breakers: Tensor
    thinking_budget: Tensor
    thinking_start: Tensor
    num_thinking_start: Tensor
    thinking_end: Tensor
    num_thinking_end: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class EditFacts:
    """Edits possible for the requests in the slots, by counting them. The defaults say "anything".

    :ivar any_penalty: Whether a request has a repetition, frequency or presence penalty.
    :ivar any_penalty_last_n: Whether a request with a penalty has ``penalty_last_n``.
    :ivar any_bias: Whether a request has a ``logit_bias``.
    :ivar any_allowed: Whether a request has ``allowed_token_ids``.
    :ivar any_bad_words: Whether a request has ``bad_words``.
    :ivar any_min_tokens: Whether a request has ``min_tokens``.
    :ivar any_dry: Whether a request has ``dry_multiplier``.
    :ivar any_thinking_budget: Whether a request has a ``thinking_budget``.
    """

    any_penalty: bool = True
    any_penalty_last_n: bool = True
    any_bias: bool = True
    any_allowed: bool = True
    any_bad_words: bool = True
    any_min_tokens: bool = True
    any_dry: bool = True
    any_thinking_budget: bool = True

    @classmethod
    def of(cls, edits: Collection[Edit]) -> Self:
        """Describe requests with exactly the given edits."""
        names = {FACT_OF_EDIT[edit] for edit in edits if edit in FACT_OF_EDIT}
        return cls(**{name: name in names for name in EDIT_FACTS})

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Names of the possible edits: all three penalties if any is possible."""
        return tuple([edit for edit in EDITS if edit in FACT_OF_EDIT and getattr(self, FACT_OF_EDIT[edit])])

    @property
    def any_edit(self) -> bool:
        """Whether a request may ask for anything at all, apart from bitmasks."""
        return (
            self.any_penalty
            or self.any_bias
            or self.any_allowed
            or self.any_bad_words
            or self.any_min_tokens
            or self.any_dry
            or self.any_thinking_budget
        )


EDIT_FACTS = tuple(field.name for field in fields(EditFacts))
"""Names of the fields of :class:`EditFacts`."""
FACT_OF_EDIT: dict[Edit, str] = {
    "allowed_token_ids": "any_allowed",
    "bad_words": "any_bad_words",
    "min_tokens": "any_min_tokens",
    "logit_bias": "any_bias",
    "repetition_penalty": "any_penalty",
    "frequency_penalty": "any_penalty",
    "presence_penalty": "any_penalty",
    "penalty_last_n": "any_penalty_last_n",
    "dry_multiplier": "any_dry",
    "thinking_budget": "any_thinking_budget",
}
"""Field of :class:`EditFacts` that tells of an edit, by its name; requests ask for no bitmask."""

"""The tensors of :class:`tokendraw.RequestSlots` that edits of logits come from, and what the host knows of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Self

from torch import Tensor

from tokendraw._exchange.edits import EDITS, Edit

ONE_OUTPUT = 16
"""Step of ``RequestTables.counts`` for each time that an id is in the output."""
IN_PROMPT, HAS_BIAS, IS_STOP, ENDS_BAD_WORD = 1, 2, 4, 8
"""The flags of ``RequestTables.counts``."""


@dataclass(frozen=True, eq=False)
class RequestTables:
    """The tensors of requests that a provider of ``process_logits`` reads. All lie dense on one device, and never move.

    NB, NS, NW, LW and the words of ``allowed`` are 0 until a request may ask for such an edit. Then ``slots.tables`` is
    another object, in which those tensors are new and the others are the same.

    S are the slots, M the tokens that one holds, V the vocabulary. A slot without a request asks for nothing: its
    counts are 0 and its lists are empty. Entries behind those that a number counts are undefined, unless a field says
    more. A provider changes none of them.
    """

    history: Tensor
    """[S, M] int32: the ids of the prompt, then those of the output. A number outside [0, V) is a placeholder, as an
    image has: a token that no bad word matches."""
    num_prompt: Tensor
    """[S] int32: tokens in the prompt."""
    num_tokens: Tensor
    """[S] int32: tokens in prompt and output, at most M."""
    distinct: Tensor
    """[S, M] int32: the ids that occur in prompt or output, each once, in any order."""
    num_distinct: Tensor
    """[S] int32: how many those are."""
    counts: Tensor
    """[S, V] int32: 16 times how often the id is in the output, and flags: 1, it is in the prompt; 2, it has an entry
    in ``bias_ids``; 4, it is in ``stop_ids``; 8, it is the last id of one of ``bad_words``."""
    repetition: Tensor
    """[S] float32; 1: off."""
    frequency: Tensor
    """[S] float32; 0: off."""
    presence: Tensor
    """[S] float32; 0: off."""
    bias_ids: Tensor
    """[S, NB] int32: the ids of ``logit_bias``, each once; -1 behind them."""
    bias: Tensor
    """[S, NB] float32: what is added to each."""
    num_bias: Tensor
    """[S] int32."""
    allowed: Tensor
    """[S, ceil(V / 32)] int32: bit i % 32 of word i // 32 is set where id i is allowed. Undefined where the request is
    not restricted."""
    is_restricted: Tensor
    """[S] bool: whether the request has ``allowed_token_ids``."""
    stop_ids: Tensor
    """[S, NS] int32: the ids that ``min_tokens`` holds back, each once; -1 behind them."""
    num_stop: Tensor
    """[S] int32; 0 where ``min_tokens`` is."""
    min_tokens: Tensor
    """[S] int32: tokens in the output from which on stop ids are drawn; 0: off."""
    bad_words: Tensor
    """[S, NW, LW] int32: sequences, each at the right end of its row, -1 before it: the last id is in column LW - 1."""
    bad_lens: Tensor
    """[S, NW] int32: ids in each sequence, from 1 to LW; 0 behind the last sequence."""
    num_bad: Tensor
    """[S] int32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EditFacts:
    """Facts about the edits that requests in the slots may ask for, by counting them. The defaults say "anything"."""

    any_penalty: bool = True
    """Whether one has a repetition, frequency or presence penalty."""
    any_bias: bool = True
    any_allowed: bool = True
    any_bad_words: bool = True
    any_min_tokens: bool = True

    @classmethod
    def of(cls, edits: Collection[Edit]) -> Self:
        """Describe requests that ask for these edits and no others."""
        names = {FACT_OF_EDIT[edit] for edit in edits if edit in FACT_OF_EDIT}
        return cls(**{name: name in names for name in EDIT_FACTS})

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Names of the edits that requests may ask for: all three penalties where any may be."""
        return tuple([edit for edit in EDITS if edit in FACT_OF_EDIT and getattr(self, FACT_OF_EDIT[edit])])

    @property
    def any_edit(self) -> bool:
        """Whether a request may ask for anything at all, apart from bitmasks."""
        return (
            self.any_penalty or self.any_bias or self.any_allowed or self.any_bad_words or self.any_min_tokens
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
}
"""Field of :class:`EditFacts` that tells of an edit, by its name; requests ask for no bitmask."""

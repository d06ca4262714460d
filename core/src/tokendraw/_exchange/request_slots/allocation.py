"""Allocates the state of requests: a row of every tensor for each slot, in as few pieces as dtypes allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw._exchange.request_slots.tables import RequestTables

_ALIGNMENT = (
    16  # elements, so at least as many bytes: Triton compiles another kernel for a pointer that is none
)


class Sizes(NamedTuple):
    """How much of everything there is room for."""

    num_slots: int
    """S."""
    max_tokens: int
    """M."""
    vocab_size: int
    """V."""
    max_bias: int
    """NB."""
    max_stop_ids: int
    """NS."""
    max_bad_words: int
    """NW."""
    max_bad_word_len: int
    """LW."""

    @property
    def num_words(self) -> int:
        """Words of a bit mask of the vocabulary."""
        return -(-self.vocab_size // 32)


REALS = ("temperature", "top_p", "min_p")
INTEGERS = ("top_k", "seed", "logprobs")
FLAGS = ("seeded", "joint", "is_restricted", "is_live")
COUNTS = ("num_prompt", "num_tokens", "num_distinct", "num_bias", "num_stop", "min_tokens", "num_bad")
PENALTIES = ("repetition", "frequency", "presence")


@dataclass(frozen=True, eq=False)
class State:
    """The tensors of all slots. The small parameters of one slot are a column of a few blocks, and written as such."""

    tables: RequestTables
    sampling: dict[str, Tensor]
    """[S] each, by field of the metadata."""
    is_live: Tensor
    """[S] bool: whether there is a request."""
    blocks: tuple[Tensor, ...]
    """[fields, S] each, of :data:`REALS`, :data:`INTEGERS`, :data:`FLAGS`, :data:`COUNTS` and :data:`PENALTIES`."""
    history: Tensor
    """[S * M + 1] int32. What is not to be kept is written to the last element; so in the next two."""
    distinct: Tensor
    """[S * M + 1] int32."""
    counts: Tensor
    """[S * V + 1] int32."""


def allocate(sizes: Sizes, device: torch.device) -> State:
    """Allocate slots that hold no requests.

    :raises InvalidParameterError: torch finds no such device.
    """
    slots, tokens, ids = sizes.num_slots, sizes.max_tokens, sizes.vocab_size

    def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    def block(names: tuple[str, ...], dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
        rows = zeros(len(names), -(-slots // _ALIGNMENT) * _ALIGNMENT, dtype=dtype)[:, :slots]
        # Views count their changes together; with .data each parameter counts its own.
        return rows, {name: rows[i].data for i, name in enumerate(names)}

    reals, by_real = block(
        REALS, torch.float32 if device.type == "mps" else torch.float64
    )  # so that 0.9 stays 0.9
    integers, by_integer = block(INTEGERS, torch.int64)
    flags, by_flag = block(FLAGS, torch.bool)
    counted, by_count = block(COUNTS, torch.int32)
    penalties, by_penalty = block(PENALTIES, torch.float32)
    is_live, is_restricted = by_flag.pop("is_live"), by_flag.pop("is_restricted")
    history, distinct, counts = zeros(slots * tokens + 1), zeros(slots * tokens + 1), zeros(slots * ids + 1)
    tables = RequestTables(
        history=history[:-1].view(slots, tokens),
        distinct=distinct[:-1].view(slots, tokens),
        counts=counts[:-1].view(slots, ids),
        bias_ids=zeros(slots, sizes.max_bias),
        bias=zeros(slots, sizes.max_bias, dtype=torch.float32),
        allowed=zeros(slots, sizes.num_words),
        is_restricted=is_restricted,
        stop_ids=zeros(slots, sizes.max_stop_ids),
        bad_words=zeros(slots, sizes.max_bad_words, sizes.max_bad_word_len),
        bad_lens=zeros(slots, sizes.max_bad_words),
        **by_count,
        **by_penalty,
    )
    for padded in (tables.bias_ids, tables.stop_ids, tables.bad_words):
        padded.fill_(-1)
    penalties[0].fill_(1.0)
    reals[0].fill_(1.0)
    reals[1].fill_(1.0)
    return State(
        tables=tables,
        sampling={**by_real, **by_integer, **by_flag},
        is_live=is_live,
        blocks=(reals, integers, flags, counted, penalties),
        history=history,
        distinct=distinct,
        counts=counts,
    )

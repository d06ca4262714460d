"""Allocates the state of requests: a row of every tensor for each slot, in as few pieces as dtypes allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw._exchange.ranges import integer
from tokendraw._exchange.request_slots.tables import RequestTables
from tokendraw._torch.upload import uploaded

_LARGEST = 2**31 - 1
_LARGEST_TOKENS = 2**27 - 1  # counts are 16 times as large, in an int32
_ALIGNMENT = 16  # elements: Triton compiles another kernel for a pointer that is no multiple of 16 bytes


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


def checked_sizes(*sizes: int) -> Sizes:
    """Check the sizes that a caller gives, in the order of :class:`Sizes`.

    :raises InvalidParameterError: it names the one that is out of range.
    """
    most = {"max_tokens": _LARGEST_TOKENS, "max_bad_word_len": _LARGEST_TOKENS}
    named = zip(Sizes._fields, sizes, strict=True)
    checked = Sizes(*[integer(name, size, None, 1, most.get(name, _LARGEST)) for name, size in named])
    ids = checked.vocab_size  # lists of distinct ids are no longer than this
    return checked._replace(max_bias=min(checked.max_bias, ids), max_stop_ids=min(checked.max_stop_ids, ids))


BLOCKS = {
    "reals": ("temperature", "top_p", "min_p"),
    "integers": ("top_k", "seed", "logprobs"),
    "flags": ("seeded", "joint", "is_restricted", "is_live"),
    "numbers": ("num_prompt", "num_tokens", "num_distinct", "num_bias", "num_stop", "min_tokens", "num_bad"),
    "penalties": ("repetition", "frequency", "presence"),
}
"""The small parameters of a request, by dtype: those of one slot are written as a column of each block."""
SAMPLING = (*BLOCKS["reals"], *BLOCKS["integers"], "seeded", "joint")
"""Those that are fields of the metadata."""
_ONE = frozenset(("temperature", "top_p", "repetition"))
"""Those that are off, or at rest, at 1; the others at 0."""


def block_dtypes(device: torch.device) -> dict[str, torch.dtype]:
    """Return the dtype of each block."""
    real = torch.float32 if device.type == "mps" else torch.float64  # so that 0.9 stays 0.9
    return dict(zip(BLOCKS, (real, torch.int64, torch.bool, torch.int32, torch.float32), strict=True))


@dataclass(frozen=True, eq=False)
class State:
    """The tensors of all slots. The small parameters of one slot are a column of a few blocks, and written as such."""

    tables: RequestTables
    sampling: dict[str, Tensor]
    """[S] each, by field of the metadata."""
    blocks: dict[str, Tensor]
    """[fields, S] each, by name: those of :data:`BLOCKS`."""
    empty: dict[str, Tensor]
    """[fields] each: the column of a slot without a request."""
    is_live: Tensor
    """[S + 1] bool: whether there is a request. The last element stands for slots that there are not, and takes what
    is not to be kept; so in the next one."""
    lengths: Tensor
    """[2, S + 1] int32: ``num_tokens`` and ``num_distinct``."""
    history: Tensor
    """[S * M + 1] int32. The last element takes what is not to be kept; so in the next two."""
    distinct: Tensor
    """[S * M + 1] int32."""
    counts: Tensor
    """[S * V + 1] int32."""


@torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
def allocate(sizes: Sizes, device: torch.device) -> State:
    """Allocate slots that hold no requests.

    :raises InvalidParameterError: torch finds no such device here.
    """
    slots, tokens, ids = sizes.num_slots, sizes.max_tokens, sizes.vocab_size
    width = -(-(slots + 1) // _ALIGNMENT) * _ALIGNMENT

    def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    dtypes = block_dtypes(device)
    at_rest = {name: [field in _ONE for field in BLOCKS[name]] for name in BLOCKS}
    empty = uploaded({name: (at_rest[name], dtype) for name, dtype in dtypes.items()}, device)
    wide = {
        name: (zeros(len(BLOCKS[name]), width, dtype=dtype) + empty[name].unsqueeze(1))[:, : slots + 1]
        for name, dtype in dtypes.items()
    }
    rows = {  # .data: views would count their changes together
        field: wide[name][i, :slots].data for name in BLOCKS for i, field in enumerate(BLOCKS[name])
    }
    is_live, num_tokens = BLOCKS["flags"].index("is_live"), BLOCKS["numbers"].index("num_tokens")
    history, distinct, counts = zeros(slots * tokens + 1), zeros(slots * tokens + 1), zeros(slots * ids + 1)
    tables = RequestTables(
        history=history[:-1].view(slots, tokens),
        distinct=distinct[:-1].view(slots, tokens),
        counts=counts[:-1].view(slots, ids),
        bias_ids=zeros(slots, sizes.max_bias).fill_(-1),
        bias=zeros(slots, sizes.max_bias, dtype=torch.float32),
        allowed=zeros(slots, sizes.num_words),
        stop_ids=zeros(slots, sizes.max_stop_ids).fill_(-1),
        bad_words=zeros(slots, sizes.max_bad_words, sizes.max_bad_word_len).fill_(-1),
        bad_lens=zeros(slots, sizes.max_bad_words),
        **{name: rows[name] for name in (*BLOCKS["numbers"], *BLOCKS["penalties"], "is_restricted")},
    )
    return State(
        tables=tables,
        sampling={name: rows[name] for name in SAMPLING},
        blocks={name: block[:, :slots] for name, block in wide.items()},
        empty=empty,
        is_live=wide["flags"][is_live],
        lengths=wide["numbers"][num_tokens : num_tokens + 2],  # and num_distinct
        history=history,
        distinct=distinct,
        counts=counts,
    )

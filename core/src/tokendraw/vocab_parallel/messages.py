"""Packs what a rank says of each row into words of 4 bytes, so that one gather carries all of it."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from tokendraw.vocab_parallel.transport import Transport

_Message = TypeVar("_Message", bound=tuple[Any, ...])


def gathered(transport: Transport, message: _Message) -> _Message:
    """Gather a NamedTuple of tensors [B, n], or None: the same with [R, B, n] in rank order, by one gather.

    A float64 or int64 takes two words, a float32 or int32 one.
    """
    columns = [column for column in message if column is not None]
    words = torch.cat([column.contiguous().view(torch.int32) for column in columns], -1)
    received = transport.all_gather(words)
    widths = [column.shape[-1] * column.element_size() // words.element_size() for column in columns]
    parts = iter(torch.split(received, widths, -1))
    kind: Any = type(message)
    # Of one rank and one row any part counts as contiguous, wherever its words begin: a clone has words of its own.
    words_of = (part.clone(memory_format=torch.contiguous_format) for part in parts)
    return kind(*[c if c is None else next(words_of).view(c.dtype) for c in message])  # type: ignore[no-any-return]

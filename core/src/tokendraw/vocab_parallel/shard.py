"""A rank's part of a vocabulary, the agreement of the ranks, and the division of tiles among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from tokendraw import philox
from tokendraw.errors.exceptions import InvalidParameterError, TokendrawError
from tokendraw.errors.formatting import format_value
from tokendraw.vocab_parallel.messages import Transport

TILE = philox.TILE_SIZE


class Span(NamedTuple):
    """Successive ids ``[start, end)``.

    :ivar start: First id.
    :ivar end: Id behind the last one.
    """

    start: int
    end: int

    @property
    def size(self) -> int:
        """Return the number of ids."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of a shard: complete tiles, and at each end at most one tile shared with other ranks.

    :ivar head: Ids of the first tile, if this rank holds a part of it alone; else empty.
    :ivar whole: Ids of tiles that are whole here. The last tile of a vocabulary has fewer than 1,024.
    :ivar tail: Ids of the last tile, if it is another one than the first and this rank holds a part of it alone; else
        empty.
    """

    head: Span
    whole: Span
    tail: Span

    @classmethod
    def of(cls, ids: Span, vocab_size: int) -> Self:
        """Divide the ids of a shard."""
        start = min(-(-ids.start // TILE) * TILE, ids.end)  # of what follows the head
        end = ids.end if ids.end == vocab_size else max(ids.end // TILE * TILE, start)
        return cls(Span(ids.start, start), Span(start, end), Span(end, ids.end))


@dataclass(frozen=True, slots=True)
class Layout:
    """The shards of all ranks. Tensors are int64 on the device of the logits, made once.

    :ivar ids: Ids that this rank holds.
    :ivar tiles: Tiles that this rank holds.
    :ivar vocab_size: Vocabulary size V of all ranks together.
    :ivar most_columns: Number of ids of the rank that holds most.
    :ivar shared_tiles: [S]: the tiles of which several ranks hold a part.
    :ivar parts: [S, m]: the parts of each of them among the 2 R heads and tails of all ranks, in the order of their
        ids: 2 r is the head of rank r, 2 r + 1 its tail, and 2 R stands where a tile has fewer than m.
    """

    ids: Span
    tiles: Tiles
    vocab_size: int
    most_columns: int
    shared_tiles: Tensor
    parts: Tensor

    @property
    def lead(self) -> int:
        """Return the number of ids before this rank in its first tile."""
        return self.ids.start % TILE

    @classmethod
    def of(cls, shards: Sequence[Span], rank: int, vocab_size: int, device: torch.device) -> Self:
        """Lay out the shards [R] of successive ids, for one of their ranks."""
        parts: dict[int, list[int]] = {}
        for r, ids in enumerate(shards):
            tiles = Tiles.of(ids, vocab_size)
            for side, part in enumerate((tiles.head, tiles.tail)):
                if part.size:
                    parts.setdefault(part.start // TILE, []).append(2 * r + side)
        most = max(map(len, parts.values()), default=0)
        rows = [of_tile + [2 * len(shards)] * (most - len(of_tile)) for of_tile in parts.values()]
        return cls(
            ids=shards[rank],
            tiles=Tiles.of(shards[rank], vocab_size),
            vocab_size=vocab_size,
            most_columns=max(ids.size for ids in shards),
            shared_tiles=torch.tensor(list(parts), dtype=torch.int64, device=device),
            parts=torch.tensor(rows, dtype=torch.int64, device=device).view(len(rows), most),
        )


@dataclass(frozen=True, eq=False)
class VocabShard:
    """The ids ``[start, start + n)`` of a vocabulary, with n columns of logits on this rank.

    The ranks of a group hold successive ids, in rank order, and together all of them. Their numbers may differ, be no
    multiples of anything, or be 0. Make one and keep it: at its first call the ranks compare what they hold, by a
    gather through the host, and any disagreement is the same error on every rank, then and in later calls. Later calls
    trust that the ranks still agree in everything but the logits: the number of rows, their dtype, the metadata.
    ``sample`` alone takes one.

    :ivar start: First id on this rank.
    :ivar vocab_size: V: number of ids on all ranks together, without padding.
    :ivar group: A torch.distributed process group; None: the default one. Or a
        :class:`tokendraw.vocab_parallel.Transport`.
    :ivar agreed: Outcome of the first call.
    :raises InvalidParameterError: a ValueError: ``start`` or ``vocab_size`` is no integer.
    """

    start: int
    vocab_size: int
    group: Any = None
    agreed: Agreed = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("start", "vocab_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidParameterError(
                    f"'{name}' of VocabShard needs an integer, found {format_value(value)}. Pass a number of ids."
                )
        object.__setattr__(self, "agreed", Agreed())

    @property
    def agreement(self) -> Agreement:
        """Return the agreement of the ranks. For samplers: the core gives them no shard without an agreement."""
        assert self.agreed.by_all is not None
        return self.agreed.by_all


class Agreement(NamedTuple):
    """The agreement of a shard's ranks."""

    transport: Transport
    """Carries their messages."""
    layout: Layout


@dataclass(slots=True, weakref_slot=True)
class Agreed:
    """The outcome of a shard's first call; empty before it."""

    by_all: Agreement | None = None
    error: TokendrawError | None = None
    """The disagreement."""
    key: object = field(default_factory=object, repr=False)
    """Identifies the shard where checks of calls are cached, and keeps nothing of it alive."""

"""A rank's part of a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tokendraw.errors.exceptions import InvalidParameterError, TokendrawError
from tokendraw.errors.formatting import format_value

if TYPE_CHECKING:
    from tokendraw.vocab_parallel.layout import Layout
    from tokendraw.vocab_parallel.transport import Transport


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

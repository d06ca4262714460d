"""What a warmup of an operation has to tell: its calls, in stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tokendraw._exchange.call import Call

if TYPE_CHECKING:
    import torch

    from tokendraw._serving.routing import Serving


class Stage(NamedTuple):
    """Calls that a warmup makes one after the other."""

    doing: str
    """What is shown beside their count."""
    calls: Iterable[Call]
    total: int | None
    """How many they are; None where nobody knows yet."""


class Warmup(Protocol):
    """Makes up calls of every kind that may come. An operation's ``warm_up`` builds it, and checks its arguments."""

    def stages(self, serving: Serving, device: torch.device) -> Iterable[Stage]:
        """Make up the calls; of the kinds of calls, those that somebody serves."""
        ...

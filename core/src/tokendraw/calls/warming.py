"""The calls of a warmup, in stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tokendraw.calls.call import Call

if TYPE_CHECKING:
    import torch

    from tokendraw.calls.routing import Serving


class Stage(NamedTuple):
    """Calls that a warmup makes: its groups one after the other, the calls of a group side by side."""

    doing: str
    """Text that is shown beside their count."""
    groups: Iterable[Iterable[Call]]
    """Whatever the calls of a group read stays as it is until the next group is asked for."""
    total: int | None
    """Number of the calls; None if it is not known yet."""


class Warmup(Protocol):
    """Makes up calls of every kind that may come. An operation's ``warm_up`` builds it, and checks its arguments."""

    def stages(self, serving: Serving, device: torch.device) -> Iterable[Stage]:
        """Make up the calls; of the kinds of calls, those that somebody serves."""
        ...

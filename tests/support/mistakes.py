"""A sampler that records what reaches it, and what a caller reads of a mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from routing import CPU, Recorded
from tokendraw import Need
from tokendraw.calls.routing import BuiltProvider, Serving
from tokendraw.calls.session import Session
from tokendraw.plugin import Host
from tokendraw.providers.sampler import Sampler
from tokendraw.resolution import Choice, Resolution


def recording(need: Need | None = None, **settings: Any) -> tuple[Sampler, Recorded]:
    """A sampler ``acme``, and the backend behind it."""
    backend = Recorded(3)
    resolution = Resolution(
        operation="sample",
        host=Host(),
        need=need or Need(),
        choice=Choice(),
        chosen="acme",
        companion=None,
        decisions=(),
    )
    serving = Serving(resolution=resolution, chosen=BuiltProvider("acme", backend))
    return Sampler(Session(CPU, resolution.need, **settings), serving), backend


def refused(message: str, error: type[ValueError], call: Callable[[], object]) -> None:
    """``call`` raises exactly that."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared below)
        call()
    assert type(caught.value) is error
    assert str(caught.value) == message

"""A sampler that records what reaches it, and what a caller reads of a mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from routing import CPU, Recorded
from selections import loaded, selection_of
from tokendraw import Need
from tokendraw.calls.negotiator import Negotiator
from tokendraw.providers.sampler import Sampler


def recording(need: Need | None = None, **settings: Any) -> tuple[Sampler, Recorded]:
    """A sampler ``acme``, and the backend behind it."""
    backend, need = Recorded(3), need or Need()
    selection = selection_of(loaded("acme", backend), need=need)
    return Sampler(Negotiator(CPU, need, **settings), selection), backend


def refused(message: str, error: type[ValueError], call: Callable[[], object]) -> None:
    """``call`` raises exactly that."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared below)
        call()
    assert type(caught.value) is error
    assert str(caught.value) == message

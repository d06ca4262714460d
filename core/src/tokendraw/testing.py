"""The conformance kit: the public names of :mod:`tokendraw_testing`, of the distribution tokendraw-testing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._lazy import names_of

if TYPE_CHECKING:
    from tokendraw_testing import *  # noqa: F403

__getattr__, __dir__ = names_of(__name__, "tokendraw_testing")

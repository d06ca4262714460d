"""The parts of a benchmark: the public names of :mod:`tokendraw_bench`, of the distribution tokendraw-bench."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._lazy import names_of

if TYPE_CHECKING:
    from tokendraw_bench import *  # noqa: F403

__getattr__, __dir__ = names_of(__name__, "tokendraw_bench")

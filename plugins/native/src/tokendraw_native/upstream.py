"""States the releases of torch in use."""

from __future__ import annotations

from tokendraw.plugin import Release, Upstream

UPSTREAM = Upstream(
    "torch",
    ">=2.6",
    tested=(">=2.6,<2.14",),
    releases=(
        Release("0", "was never run", refused=True),
        Release("2.6", "has all that is called"),
    ),
)

"""The releases of Triton, by version: used, tested, or refused and why."""

from __future__ import annotations

from tokendraw.plugin import Release, Upstream

UPSTREAM = Upstream(
    "triton",
    ">=3.4",
    tested=(">=3.4,<3.8",),
    releases=(
        Release("0", "takes no NamedTuple as an argument of a kernel", refused=True),
        Release("3.4", "takes NamedTuples as arguments of a kernel"),
    ),
)

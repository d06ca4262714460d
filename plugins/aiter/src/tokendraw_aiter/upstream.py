"""States the releases of aiter in use, and their properties.

The table was read from the sources; no version has run on hardware. ``README.md`` says how its faults are avoided.
"""

from __future__ import annotations

from tokendraw.plugin import Release, Upstream

UPSTREAM = Upstream(
    "amd-aiter",
    ">=0.1.13",
    releases=(
        Release("0", "draws top-p wrongly (pull request 2035)", "sample", refused=True),
        Release("0.1.11", "has operators that were never looked at", "sample", refused=True),
        Release(
            "0.1.13",
            "reads out of bounds for rows without mass (pull request 3658), so it gets none",
            "sample",
        ),
        Release("0.1.17", "reads within bounds", "sample"),
        Release("0.1.20", "has no sampling kernels on ROCm 10 (pull request 4754)", "sample"),
        Release("0.1.20.post1", "has sampling kernels on ROCm 10 too (pull request 4843)", "sample"),
    ),
)

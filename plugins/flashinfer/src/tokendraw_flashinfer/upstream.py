"""States the releases of FlashInfer in use, and their properties.

The table holds the expected properties of a version, as read from the wheels. Functions change between versions with
the same first two numbers, and some changes were taken back. So the installed files decide, and the reason is given in
the words of the table. Importing this module imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import replace

from tokendraw.plugin import Release, Upstream
from tokendraw_flashinfer.kernel_sequences import FUSED, SAMPLE
from tokendraw_flashinfer.signatures import DISTRIBUTION, EntryPoints

_PLAIN = "draws by rejection"
_FUSED = "draws by rejection, or fused where every row has a k up to 1024"

UPSTREAM = Upstream(
    DISTRIBUTION,
    ">=0.6.7,<0.8",
    tested=("0.6.11.post2", "0.7.2.post1"),
    releases=(
        Release("0", "returns no valid flag", refused=True),
        Release("0.6.7", "returns a valid flag"),
        Release("0", _PLAIN, "sample"),
        Release("0.7.1", _FUSED, "sample"),
    ),
)


def upstream(entry_points: EntryPoints) -> Upstream:
    """Return the table, with the properties of the installed version as its files show them."""
    found = {}
    if entry_points.unsupported(*SAMPLE) is None:
        found["sample"] = _PLAIN if entry_points.unsupported(*FUSED.steps) else _FUSED
    return replace(UPSTREAM, found=found)

"""What is known of FlashInfer by version: which releases are used, and what they do.

The table is what is expected of a version, as read from the wheels. Functions change between versions that have the
same first two numbers, and some changes were taken back. So what decides is what the plugin finds in the installed
files, said in the words of the table. Importing this module imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import replace

from tokendraw.plugin import Release, Upstream
from tokendraw_flashinfer.signatures import DISTRIBUTION, EntryPoints
from tokendraw_flashinfer.ways import FUSED, SAMPLE

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
    """Return the table, with what the files of the installed version were found to do."""
    found = {}
    if entry_points.lacking(*SAMPLE) is None:
        found["sample"] = _PLAIN if entry_points.lacking(*FUSED.steps) else _FUSED
    return replace(UPSTREAM, found=found)

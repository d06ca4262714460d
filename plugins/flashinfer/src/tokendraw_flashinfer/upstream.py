"""States the releases of FlashInfer in use, and their properties.

The table holds the expected properties of a version, as read from the wheels. Functions change between versions with
the same first two numbers, and some changes were taken back. So the installed files decide, and the reason is given in
the words of the table. Importing this module imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tokendraw.plugin import Release, Upstream, release_of
from tokendraw_flashinfer.kernel_sequences import FUSED, SAMPLE
from tokendraw_flashinfer.signatures import DISTRIBUTION, EntryPoints

if TYPE_CHECKING:
    from tokendraw.sm90_w4 import Layout
    from tokendraw_flashinfer.packing import Packing

PACKING = "pack_sm90_w4"
PACKS: dict[Layout | None, str] = {
    None: "packs no weights for SM90",
    "v1": "packs layout v1",
    "v2": "packs layout v2",
}
_PACK_AGAIN = "weights that were packed in the other layout have to be packed again"
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
        Release("0", PACKS[None], PACKING, refused=True),
        Release("0.6.10", PACKS["v1"], PACKING),
        Release("0.6.16", PACKS["v2"], PACKING, change=_PACK_AGAIN),
        Release("0.6.16.post3", PACKS["v1"], PACKING, change=_PACK_AGAIN),
        Release("0.6.18", PACKS["v2"], PACKING, change=_PACK_AGAIN),
    ),
)


def upstream(entry_points: EntryPoints, packing: Packing) -> Upstream:
    """Return the table, with the properties of the installed version as its files show them."""
    found = {}
    if entry_points.unsupported(*SAMPLE) is None:
        found["sample"] = _PLAIN if entry_points.unsupported(*FUSED.steps) else _FUSED
    if packing.is_read:
        found[PACKING] = PACKS[packing.layout]
    return replace(UPSTREAM, found=found)


def layout_by_number(version: str) -> Layout | None:
    """Return the expected layout of a version; None if it should not pack."""
    row = release_of(UPSTREAM, version, PACKING)
    return next((layout for layout, says in PACKS.items() if row is not None and row.says == says), None)

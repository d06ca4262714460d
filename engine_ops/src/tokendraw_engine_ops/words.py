"""The bits of packed weights: the units of two rows in a word, and the moves of its bits.

Rows are paired 8 apart, in groups of 16: rows 0 to 7 of a group are ``h = 0``, the others ``h = 1``. Columns come in 16
bytes, two halves of 8. A half of both rows, 16 bytes in all, becomes 16 consecutive bytes of one packed row, 4 words
of 32 bits. Word ``d`` has, lowest bits first,

    8-bit units     unit d of h = 0, unit d of h = 1, unit 4 + d of h = 0, unit 4 + d of h = 1
    16-bit units    unit d of h = 0, unit d of h = 1

and then its bits move. So packing is a permutation of the bits of 16 x 16 bytes, and unpacking the reverse one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple, TypeAlias

Shifts: TypeAlias = tuple[tuple[int, int], ...]
"""(shift, mask): the bits of ``mask`` are those of the word, shifted left by ``shift``, right if that is negative."""
ALL_BITS: Final = 2**32 - 1


class Words(NamedTuple):
    """The words of a format in a layout."""

    name: str
    unit_bits: int
    runs: tuple[tuple[int, int, int], ...] = ()
    """(source, width, target) of bits that move together; all others stay."""

    @property
    def units_of_row(self) -> int:
        """Return how many units of each of the two rows a word has: 2 or 1."""
        return 16 // self.unit_bits

    @property
    def byte_order(self) -> tuple[tuple[int, int], ...]:
        """Return ``h`` and the index among the 8 bytes of a half, of each of the 16 bytes of four words."""
        size, units = self.unit_bits // 8, range(self.units_of_row)
        places = ((h, 4 * c + d) for d in range(4) for c in units for h in range(2))
        return tuple((h, size * unit + byte) for h, unit in places for byte in range(size))

    def moves(self, *, back: bool) -> Shifts:
        """Return the shifts that move the bits of a word into their packed places, or back."""
        masks = defaultdict(int, {0: ALL_BITS})
        for source, width, target in (run[::-1] if back else run for run in self.runs):
            bits = (2**width - 1) << target
            masks[0] &= ~bits
            masks[target - source] |= bits
        return tuple((shift, mask) for shift, mask in masks.items() if mask)


_INT4: Final = Words("int4", 16)
WORDS: Final = {
    ("fp4", "v1"): Words("fp4_v1", 8, ((4, 4, 8), (8, 4, 4), (20, 4, 24), (24, 4, 20))),
    ("fp4", "v2"): Words("fp4_v2", 8, (
        (7, 1, 31), (4, 3, 22), (3, 1, 15), (0, 3, 6), (15, 1, 28), (12, 3, 19), (11, 1, 12), (8, 3, 3), (23, 1, 25),
        (20, 3, 16), (19, 1, 9), (16, 3, 0), (31, 1, 30), (28, 1, 29), (29, 2, 26), (27, 1, 14), (24, 1, 13),
        (25, 2, 10),
    )),
    ("int4", "v1"): _INT4,
    ("int4", "v2"): _INT4,
    ("fp4_fp8", "v2"): Words("fp4_fp8", 16, (
        (3, 1, 7), (7, 1, 15), (11, 1, 23), (15, 1, 31), (19, 1, 3), (23, 1, 11), (27, 1, 19), (31, 1, 27),
    )),
}  # fmt: skip
"""By format and layout."""

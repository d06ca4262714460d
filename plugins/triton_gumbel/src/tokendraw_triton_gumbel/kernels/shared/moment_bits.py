"""The bits that say which sums behind moments a message of a rank has, in the order of its words."""

from __future__ import annotations

import triton.language as tl

COUNT = tl.constexpr(1)
MEAN = tl.constexpr(2)
SQUARES = tl.constexpr(4)
MASS = tl.constexpr(8)
ENTROPY = tl.constexpr(16)
COLLISION = tl.constexpr(32)

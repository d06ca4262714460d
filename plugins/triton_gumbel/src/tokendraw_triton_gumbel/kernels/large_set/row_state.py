"""The state of a row of a large set between its passes: places in its floats and its integers, and its goals."""

from __future__ import annotations

import triton.language as tl

STATE_REALS = tl.constexpr(32)
"""Floats a row. The first four are the pivots of the current pass, descending."""
LOW = tl.constexpr(4)
HIGH = tl.constexpr(5)
"""The bracket: the threshold is at least the one and below the other."""
TOP = tl.constexpr(6)
SCALE = tl.constexpr(7)
INVERSE = tl.constexpr(8)
MASS = tl.constexpr(9)
"""The row's :class:`~tokendraw_triton_gumbel.kernels.shared.row_values.RowScale`."""
TARGET_MIN = tl.constexpr(10)
TARGET_MAX = tl.constexpr(11)
"""The mass that a nucleus has to reach is known to lie between the two."""
P = tl.constexpr(12)
P_REST = tl.constexpr(13)
"""p as a sum of two float32."""
MIN_P_FLOOR = tl.constexpr(14)
"""The least logit that min-p keeps; -inf if it is off."""
KTH_LOW = tl.constexpr(15)
KTH_HIGH = tl.constexpr(16)
"""The bracket of the k-th value at which the search for the nucleus began."""
OTHER_PIVOTS = tl.constexpr(24)
"""Room for four more pivots."""

STATE_INTS = tl.constexpr(32)
"""Integers a row."""
GOAL = tl.constexpr(0)
ROUND = tl.constexpr(1)
"""Passes that were made."""
LOW_COLUMN = tl.constexpr(2)
HIGH_COLUMN = tl.constexpr(3)
"""The columns that hold the weights from LOW and from HIGH upwards, -1 where none does."""
SLOT = tl.constexpr(4)
"""The slot of columns that the current pass writes."""
K = tl.constexpr(5)
SEED = tl.constexpr(6)
POSITION = tl.constexpr(8)
"""Two integers each: an int64."""
KTH_ABOVE = tl.constexpr(10)
KTH_INSIDE = tl.constexpr(11)
"""Number of logits that reach KTH_HIGH, and of those that only reach KTH_LOW; -1 where no k-th value came before."""
CAREFUL = tl.constexpr(12)
"""Whether the row holds NaN, or logits too large for a weight to cost one multiplication."""
GOAL_BEFORE = tl.constexpr(13)
"""The goal of the passes around one that collects."""
COLLECTED = tl.constexpr(16)
"""Number of logits that each part of a collecting pass has found: as many integers as there may be parts."""

FIND_NUCLEUS = tl.constexpr(0)
FIND_KTH = tl.constexpr(1)
FIND_LARGER = tl.constexpr(2)
"""The threshold is where the mass reaches a target, the k-th value, or the larger of the two (the joint order)."""
WEIGH_ONLY = tl.constexpr(3)
"""The threshold is known, and only the tiles are to be weighed."""
KTH_THEN_NUCLEUS = tl.constexpr(4)
FLOOR_THEN_NUCLEUS = tl.constexpr(5)
"""The k-th value, or the floor of min-p, comes first, and the nucleus is that of the mass from there upwards."""
COLLECT = tl.constexpr(6)
"""The logits in the bracket are collected."""

SLOTS = tl.constexpr(3)
"""Slots of columns a row: those of the bracket's two ends, and that of the current pass."""
COLUMNS = tl.constexpr(8)
"""Float32 a tile and slot: the weight, and the number of logits, from each of four pivots upwards."""
COUNT_COLUMN = tl.constexpr(4)
"""Distance from the column of a weight to that of the number."""
LATER_PARTS = tl.constexpr(16)
"""Parts of a row in its later passes, at most: mostly few rows take them, and everybody waits."""
MOST_COLLECTED = tl.constexpr(4096)
"""Logits that there is room for in a pass that collects, each of its parts as many as any other."""

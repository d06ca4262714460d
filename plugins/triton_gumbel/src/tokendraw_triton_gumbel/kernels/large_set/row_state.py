"""Layout of a row's state between its passes: indices of its floats and of its integers, and the goals of passes."""

from __future__ import annotations

import triton.language as tl

STATE_REALS = tl.constexpr(32)
"""Floats a row. The first four are the pivots of the current pass, descending."""
LOW = tl.constexpr(4)
HIGH = tl.constexpr(5)
"""The bracket: LOW <= threshold < HIGH."""
MAX_LOGIT = tl.constexpr(6)
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
FLOOR = tl.constexpr(14)
"""The least logit that min-p and filters from moments keep; -inf if all are off."""
KTH_LOW = tl.constexpr(15)
KTH_HIGH = tl.constexpr(16)
"""The bracket of the k-th value at which the search for the nucleus began."""
LOWER_LIMIT = tl.constexpr(17)
"""A value that the threshold is known to reach."""
OTHER_PIVOTS = tl.constexpr(24)
"""Room for four more pivots."""

STATE_INTS = tl.constexpr(16)
"""Integers a row."""
GOAL = tl.constexpr(0)
ROUND = tl.constexpr(1)
"""Number of finished passes."""
LOW_COLUMN = tl.constexpr(2)
HIGH_COLUMN = tl.constexpr(3)
"""The columns that hold the weights from LOW and from HIGH upwards, -1 where none does."""
SLOT = tl.constexpr(4)
"""The slot of columns for the current pass."""
K = tl.constexpr(5)
SEED = tl.constexpr(6)
POSITION = tl.constexpr(8)
"""Two integers each: an int64."""
KTH_ABOVE = tl.constexpr(10)
KTH_INSIDE = tl.constexpr(11)
"""Number of logits from KTH_HIGH upwards, and in [KTH_LOW, KTH_HIGH); -1 without a search for a k-th value."""
IS_EXTREME = tl.constexpr(12)
"""Whether the row holds NaN, or logits too large for a weight to cost one multiplication."""
GOAL_BEFORE = tl.constexpr(13)
"""The goal before and after a collecting pass."""
NUM_COLLECTED = tl.constexpr(14)
"""Number of logits found by a collecting pass; those beyond the room are not written."""
IS_EXACT = tl.constexpr(15)
"""The flag EXACT if a later launch needs the threshold of this row, else 0."""

FIND_NUCLEUS = tl.constexpr(0)
FIND_KTH = tl.constexpr(1)
FIND_LARGER = tl.constexpr(2)
"""The threshold is where the mass reaches a target, the k-th value, or the larger of the two (the joint order)."""
WEIGH_ONLY = tl.constexpr(3)
"""The threshold is known, and only the tiles are to be weighed."""
KTH_THEN_NUCLEUS = tl.constexpr(4)
FLOOR_THEN_NUCLEUS = tl.constexpr(5)
"""The k-th value, or the floor, comes first, and the nucleus is that of the mass from there upwards."""
COLLECT_BRACKET = tl.constexpr(6)
"""The token is known, and the logits in the bracket are collected for the threshold."""
COLLECT_SET = tl.constexpr(7)
"""The logits from LOW upwards are collected: the kept set if the guess of LOW holds, and a few more."""

SLOTS = tl.constexpr(3)
"""Slots of columns a row: one for each end of the bracket, one for the current pass."""
COLUMNS = tl.constexpr(8)
"""Float32 a tile and slot: the weight, and the number of logits, from each of four pivots upwards."""
COUNT_COLUMN = tl.constexpr(4)
"""Distance from the column of a weight to that of the number."""
MAX_LATER_PARTS = tl.constexpr(16)
"""Upper limit of parts per row in passes after the first, which few rows need."""
UNIT_COLUMN = tl.constexpr(3)
"""The int64 of a tile and slot that holds the weight of its collected logits; no pass weighs at the same time."""
MAX_COLLECTED = tl.constexpr(8192)
"""Room for collected logits of a row."""
MAX_EXPECTED = tl.constexpr(3072)
"""Limit of the logits that a collecting pass may be expected to find: neighbouring ids may hold more of them."""

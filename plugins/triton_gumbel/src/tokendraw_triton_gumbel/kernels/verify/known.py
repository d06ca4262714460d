"""The distribution q that the drafts were drawn from, as a verification knows it."""

from __future__ import annotations

import triton.language as tl

CHOSEN = tl.constexpr(0)
"""Nothing, since the drafts were not drawn: q is 1 at the draft."""
LOGITS = tl.constexpr(1)
PROBS = tl.constexpr(2)
COUPLED = tl.constexpr(3)
"""Drafts are compared with the target's own tokens, and q is of no interest."""

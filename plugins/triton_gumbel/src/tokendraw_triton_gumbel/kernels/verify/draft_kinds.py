"""Kinds of drafts, by the known distribution q of their draw."""

from __future__ import annotations

import triton.language as tl

CHOSEN = tl.constexpr(0)
"""The drafts were chosen without a draw: q is 1 at the draft."""
LOGITS = tl.constexpr(1)
PROBS = tl.constexpr(2)
COUPLED = tl.constexpr(3)
"""Drafts are compared with the target's own tokens, without q."""

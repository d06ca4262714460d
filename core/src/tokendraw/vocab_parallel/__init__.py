"""Sampling from a vocabulary whose logits lie on several ranks, without gathering them.

For callers there is :class:`VocabShard` alone, which ``tokendraw`` exports. A sampler that advertises
``Capabilities.vocab_parallel`` computes what :class:`LocalLogits` says of its rank's columns and hands that to
:func:`sample_shard`, which exchanges a few words a row with the other ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._lazy import lazy_names

if TYPE_CHECKING:
    from tokendraw.vocab_parallel.layout import Layout, Span, Tiles
    from tokendraw.vocab_parallel.local import AwaitSeeds, Bounds, Digits, Draws, LocalLogits, Seeds, Weighing
    from tokendraw.vocab_parallel.parameters import RowParameters
    from tokendraw.vocab_parallel.radix import BINS, DIGIT_BITS, keys
    from tokendraw.vocab_parallel.sampling import sample_shard
    from tokendraw.vocab_parallel.shard import VocabShard
    from tokendraw.vocab_parallel.transport import Transport

_HOMES = {
    "vocab_parallel.layout": ("Layout", "Span", "Tiles"),
    "vocab_parallel.local": ("AwaitSeeds", "Bounds", "Digits", "Draws", "LocalLogits", "Seeds", "Weighing"),
    "vocab_parallel.parameters": ("RowParameters",),
    "vocab_parallel.radix": ("BINS", "DIGIT_BITS", "keys"),
    "vocab_parallel.sampling": ("sample_shard",),
    "vocab_parallel.shard": ("VocabShard",),
    "vocab_parallel.transport": ("Transport",),
}

__all__ = [
    "BINS",
    "DIGIT_BITS",
    "AwaitSeeds",
    "Bounds",
    "Digits",
    "Draws",
    "Layout",
    "LocalLogits",
    "RowParameters",
    "Seeds",
    "Span",
    "Tiles",
    "Transport",
    "VocabShard",
    "Weighing",
    "keys",
    "sample_shard",
]

__getattr__ = lazy_names(globals(), _HOMES)


def __dir__() -> list[str]:
    return __all__

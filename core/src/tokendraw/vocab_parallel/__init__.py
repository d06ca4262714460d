"""Sampling from a vocabulary with logits on several ranks, without gathering the logits.

For callers there is :class:`VocabShard` alone, which ``tokendraw`` exports. A sampler that advertises
``Capabilities.vocab_parallel`` computes what :class:`LocalLogits` says of its rank's columns and hands that to
:func:`sample_shard`, which exchanges a few words a row with the other ranks. The messages are merged in plain torch,
or by the sampler's :class:`Merging`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._lazy import lazy_names

if TYPE_CHECKING:
    from tokendraw.vocab_parallel.layout import Layout, Span, Tiles
    from tokendraw.vocab_parallel.local import Argmax, Bounds, Digits, Draws, LocalLogits, Survey, Weighing
    from tokendraw.vocab_parallel.merging import Merging, TorchMerging
    from tokendraw.vocab_parallel.messages import Received
    from tokendraw.vocab_parallel.parameters import MetadataParameters, RowParameters
    from tokendraw.vocab_parallel.radix import BINS, DIGIT_BITS, KEY_BITS, Histograms, keys
    from tokendraw.vocab_parallel.sampling import sample_shard
    from tokendraw.vocab_parallel.seeds import RowSeeds, Seeds
    from tokendraw.vocab_parallel.shard import VocabShard
    from tokendraw.vocab_parallel.thresholds import Plan
    from tokendraw.vocab_parallel.transport import Transport, transport_of

_HOMES = {
    "vocab_parallel.layout": ("Layout", "Span", "Tiles"),
    "vocab_parallel.local": ("Argmax", "Bounds", "Digits", "Draws", "LocalLogits", "Survey", "Weighing"),
    "vocab_parallel.merging": ("Merging", "TorchMerging"),
    "vocab_parallel.messages": ("Received",),
    "vocab_parallel.parameters": ("MetadataParameters", "RowParameters"),
    "vocab_parallel.radix": ("BINS", "DIGIT_BITS", "KEY_BITS", "Histograms", "keys"),
    "vocab_parallel.sampling": ("sample_shard",),
    "vocab_parallel.seeds": ("RowSeeds", "Seeds"),
    "vocab_parallel.shard": ("VocabShard",),
    "vocab_parallel.thresholds": ("Plan",),
    "vocab_parallel.transport": ("Transport", "transport_of"),
}

__all__ = [
    "BINS",
    "DIGIT_BITS",
    "KEY_BITS",
    "Argmax",
    "Bounds",
    "Digits",
    "Draws",
    "Histograms",
    "Layout",
    "LocalLogits",
    "Merging",
    "MetadataParameters",
    "Plan",
    "Received",
    "RowParameters",
    "RowSeeds",
    "Seeds",
    "Span",
    "Survey",
    "Tiles",
    "TorchMerging",
    "Transport",
    "VocabShard",
    "Weighing",
    "keys",
    "sample_shard",
    "transport_of",
]

__getattr__ = lazy_names(globals(), _HOMES)


def __dir__() -> list[str]:
    return __all__

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
    from tokendraw.vocab_parallel.local import Argmax as Argmax
    from tokendraw.vocab_parallel.local import Bounds as Bounds
    from tokendraw.vocab_parallel.local import Digits as Digits
    from tokendraw.vocab_parallel.local import Draws as Draws
    from tokendraw.vocab_parallel.local import LocalLogits as LocalLogits
    from tokendraw.vocab_parallel.local import Survey as Survey
    from tokendraw.vocab_parallel.local import Weighing as Weighing
    from tokendraw.vocab_parallel.merging import Merging as Merging
    from tokendraw.vocab_parallel.merging import TorchMerging as TorchMerging
    from tokendraw.vocab_parallel.messages import Received as Received
    from tokendraw.vocab_parallel.messages import Transport as Transport
    from tokendraw.vocab_parallel.messages import transport_of as transport_of
    from tokendraw.vocab_parallel.moment_sums import MomentSum as MomentSum
    from tokendraw.vocab_parallel.moment_sums import combined_sums as combined_sums
    from tokendraw.vocab_parallel.moment_sums import moments_of_sums as moments_of_sums
    from tokendraw.vocab_parallel.moment_sums import required_sums as required_sums
    from tokendraw.vocab_parallel.parameters import RowSeeds as RowSeeds
    from tokendraw.vocab_parallel.parameters import Seeds as Seeds
    from tokendraw.vocab_parallel.radix import BINS as BINS
    from tokendraw.vocab_parallel.radix import DIGIT_BITS as DIGIT_BITS
    from tokendraw.vocab_parallel.radix import KEY_BITS as KEY_BITS
    from tokendraw.vocab_parallel.radix import Histograms as Histograms
    from tokendraw.vocab_parallel.radix import keys as keys
    from tokendraw.vocab_parallel.sampling import sample_shard as sample_shard
    from tokendraw.vocab_parallel.shard import Layout as Layout
    from tokendraw.vocab_parallel.shard import Span as Span
    from tokendraw.vocab_parallel.shard import Tiles as Tiles
    from tokendraw.vocab_parallel.shard import VocabShard as VocabShard
    from tokendraw.vocab_parallel.thresholds import ThresholdPlan as ThresholdPlan
    from tokendraw.vocab_parallel.thresholds import merged_moments as merged_moments

_NAMES = {
    "tokendraw.vocab_parallel.local": "Argmax Bounds Digits Draws LocalLogits Survey Weighing",
    "tokendraw.vocab_parallel.merging": "Merging TorchMerging",
    "tokendraw.vocab_parallel.messages": "Received Transport transport_of",
    "tokendraw.vocab_parallel.moment_sums": "MomentSum combined_sums moments_of_sums required_sums",
    "tokendraw.vocab_parallel.parameters": "RowSeeds Seeds",
    "tokendraw.vocab_parallel.radix": "BINS DIGIT_BITS KEY_BITS Histograms keys",
    "tokendraw.vocab_parallel.sampling": "sample_shard",
    "tokendraw.vocab_parallel.shard": "Layout Span Tiles VocabShard",
    "tokendraw.vocab_parallel.thresholds": "ThresholdPlan merged_moments",
}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)

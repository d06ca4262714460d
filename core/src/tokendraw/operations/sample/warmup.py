"""Warms up sampling: draws batches of every kind sent by engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import torch

from tokendraw.calls.drawing import Sample
from tokendraw.calls.selection import Selection
from tokendraw.calls.warmup import CallGroups
from tokendraw.calls.warmup_batches import Batches


class SampleWarmup:
    """Draws from every batch."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    @classmethod
    def of(cls, vocab_size: int, **arguments: Any) -> Self:
        """Check the arguments of :meth:`tokendraw.Sampler.warmup` about logits and their parameters.

        :raises InvalidInputError: one of them cannot be drawn; the message names it.
        """
        return cls(Batches.of(vocab_size, **arguments))

    def stages(self, selection: Selection, device: torch.device) -> Iterator[CallGroups]:
        """Make up the batches."""
        yield self._batches.stage("batches", Sample, selection, device)

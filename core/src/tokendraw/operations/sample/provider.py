"""The object that ``tokendraw.load("sample")`` returns."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tokendraw._torch.untraced import untraced
from tokendraw.calls.drawing import Sample
from tokendraw.calls.provider import Provider
from tokendraw.calls.sharded import ShardedSample, dispatch_over_ranks
from tokendraw.calls.warmup import warm_up
from tokendraw.operations.sample.warmup import SampleWarmup
from tokendraw.output import SamplerOutput
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.vocab_parallel.shard import VocabShard


class SampleProvider(Provider):
    """Draws a token for each row of logits."""

    @untraced
    def sample(
        self, logits: Tensor, metadata: SamplingMetadata, *, shard: VocabShard | None = None
    ) -> SamplerOutput:
        """Draw a token for each row, as :meth:`tokendraw.Sampler.sample` does."""
        if shard is not None:
            return dispatch_over_ranks(self._dispatcher, ShardedSample(logits, metadata, shard))
        output: SamplerOutput = self._dispatcher.dispatch_rows(Sample(logits, metadata))
        return output

    @untraced
    def warmup(self, vocab_size: int, *, progress: bool | None = None, **options: Any) -> float:
        """Draw from made-up batches, as :meth:`tokendraw.Sampler.warmup` does.

        :param options: arguments of that method about logits and their parameters.
        """
        warmup = SampleWarmup.of(vocab_size, **options)
        return warm_up([(self._dispatcher, warmup)], progress=progress)

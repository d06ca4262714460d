"""The protocol of samplers, built by plugins for the operation ``sample``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from tokendraw.output import SamplerOutput
    from tokendraw.parameters.metadata import SamplingMetadata


@runtime_checkable
class SamplerBackend(Protocol):
    """The sampler returned by ``tokendraw_build`` for the operation ``sample``."""

    def sample(self, logits: torch.Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw a token for each row.

        :param logits: [rows, V] float32, bfloat16 or float16 on the device it was built for, any row stride.
            Not to be modified. The core has checked shape, dtype and device.
        :param metadata: the parameters of the rows, on the same device.

        A sampler that advertises ``vocab_parallel`` also takes ``shard=``: a :class:`tokendraw.VocabShard` on which
        the ranks have agreed, with logits [rows, n] of its columns, n perhaps 0. It is passed only when it is given.
        """
        ...

"""The operation ``score``: log-probabilities of given tokens, without a draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tokendraw.backends.description.capabilities import Capabilities, Need
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.resolution import checks
from tokendraw.calls.row_requirements import LOGPROBS, ROW_REQUIREMENTS, SEEDED

if TYPE_CHECKING:
    import torch

    from tokendraw.output import ScoreOutput
    from tokendraw.parameters.metadata import SamplingMetadata


@runtime_checkable
class ScorerBackend(Protocol):
    """The scorer returned by ``tokendraw_build`` for ``score``; the same object may serve ``sample`` too."""

    def score(self, logits: torch.Tensor, token_ids: torch.Tensor, metadata: SamplingMetadata) -> ScoreOutput:
        """Compute the log-probability of a token for each row, as :meth:`tokendraw.Sampler.score` describes.

        :param logits: [rows, V] float32, bfloat16 or float16 on the device it was built for, any row stride. Not to be
            modified. The core has checked shape, dtype and device.
        :param token_ids: [rows] integer, on the same device; an id outside [0, V) is padding.
        :param metadata: the parameters of the rows. ``facts.max_logprobs`` None counts as 0.
        """


OPERATION = Operation(
    name="score",
    module="tokendraw.operations.score.provider",
    capabilities=Capabilities,
    need=Need,
    methods=("score",),
    checks=(
        checks.dtype,
        checks.vocab_size,
        checks.filter_orders,
        checks.tie_rule,
        checks.logprobs_mode,
    ),
    requirements=tuple(each for each in ROW_REQUIREMENTS if each not in (SEEDED, LOGPROBS)),
)

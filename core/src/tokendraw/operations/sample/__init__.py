"""The operation ``sample``: a token for each row of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tokendraw.backends.description.capabilities import Capabilities, Need
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.resolution import checks
from tokendraw.calls.row_requirements import ROW_REQUIREMENTS

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
        """


OPERATION = Operation(
    name="sample",
    module="tokendraw.operations.sample.provider",
    capabilities=Capabilities,
    need=Need,
    methods=("sample",),
    checks=checks.ROW_CHECKS,
    default_checks=(checks.processed_logprobs,),
    requirements=ROW_REQUIREMENTS,
)

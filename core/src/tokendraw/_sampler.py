"""The object that callers hold: one sampler on one device, its resolution, and the check of every call."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw._candidate import Resolution
from tokendraw._capabilities import INPUT_DTYPES, Capabilities
from tokendraw._errors import InvalidInputError, SamplerUnavailableError
from tokendraw._metadata import BatchFacts, SamplingMetadata
from tokendraw._output import SamplerOutput
from tokendraw._plugin import SamplerBackend
from tokendraw._rows import unserved

_DTYPES = frozenset(getattr(torch, name) for name in INPUT_DTYPES)


class Sampler:
    """A sampler that was negotiated, built and proven. :func:`tokendraw.load_sampler` makes it."""

    def __init__(
        self,
        *,
        name: str,
        backend: SamplerBackend,
        resolution: Resolution,
        device: torch.device,
        companion: tuple[str, SamplerBackend] | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        self.name = name
        """Name of the plugin that was chosen."""
        self.resolution = resolution
        """Every decision that led to it."""
        self.device = device
        self._backend = backend
        self._companion = companion
        self._capabilities = capabilities

    def __repr__(self) -> str:
        return f"<tokendraw.Sampler {self.name!r} on {self.device}>"

    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, inplace: bool = False) -> SamplerOutput:
        """Draw one token a row. Does not wait for the device.

        :param logits: [B, V] float32, bfloat16 or float16, any row stride.
        :param metadata: the parameters of the B rows, on the same device.
        :param inplace: lets the sampler overwrite ``logits``; otherwise they are never modified.
        :raises InvalidInputError: a ValueError, before anything is launched.
        :raises SamplerUnavailableError: the batch may hold rows that nobody here can serve.
        """
        self._check(logits, metadata)
        return self._serving(metadata.facts).sample(logits, metadata, inplace=inplace)

    def _serving(self, facts: BatchFacts) -> SamplerBackend:
        """Look up who serves a batch: the companion if it may hold a row that the chosen sampler cannot."""
        lacking = None if self._capabilities is None else unserved(self._capabilities, facts)
        if lacking is None:
            return self._backend
        if self._companion is None:
            raise SamplerUnavailableError(
                f"'{self.name}' cannot serve {lacking}, which this batch may hold, and has no companion. "
                "Install one that can (pip install 'tokendraw[native]'), or, if the batch holds none, "
                "say so in SamplingMetadata.facts."
            )
        return self._companion[1]

    def _check(self, logits: Tensor, metadata: SamplingMetadata) -> None:
        if logits.dim() != 2 or logits.shape[1] == 0:
            raise InvalidInputError(f"'logits' needs shape [B, V] with V >= 1, found {list(logits.shape)}.")
        if logits.dtype not in _DTYPES:
            raise InvalidInputError(f"'logits' needs dtype {', '.join(INPUT_DTYPES)}, found {logits.dtype}.")
        if not _same_device(logits.device, self.device):
            raise InvalidInputError(
                f"'logits' needs device {self.device}, where the sampler was built, found {logits.device}. "
                f"Move the logits, or load a sampler for {logits.device}."
            )
        rows = metadata.num_rows
        if rows is not None and rows != logits.shape[0]:
            raise InvalidInputError(
                f"'metadata' needs as many rows as 'logits', {logits.shape[0]}, found {rows}."
            )
        device = metadata.device
        if device is not None and device != logits.device:
            raise InvalidInputError(
                f"'metadata' needs the device of 'logits', {logits.device}, found {device}. "
                "Pass device= to SamplingMetadata.from_params."
            )


def _same_device(found: torch.device, needed: torch.device) -> bool:
    return found == needed or (found.type == needed.type and needed.index is None)

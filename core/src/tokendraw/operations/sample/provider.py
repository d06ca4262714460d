"""Draws of a token for each row: the object that ``tokendraw.load("sample")`` returns, and the proof of a sampler."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from tokendraw._torch.untraced import untraced
from tokendraw.backends.description.capabilities import Capabilities, Need
from tokendraw.backends.description.operation import Operation
from tokendraw.calls import proof_rows
from tokendraw.calls.dispatch import dispatch
from tokendraw.calls.drawing import Sample
from tokendraw.calls.provider import Provider
from tokendraw.calls.warmup import warm_up
from tokendraw.calls.warmup_batches import Batches
from tokendraw.errors.exceptions import PluginError
from tokendraw.errors.formatting import how_to_install
from tokendraw.operations.sample import OPERATION, SamplerBackend
from tokendraw.output import SamplerOutput
from tokendraw.parameters.metadata import SamplingMetadata


class SampleProvider(Provider):
    """Draws a token for each row of logits."""

    _operations: ClassVar[tuple[Operation, ...]] = (OPERATION,)

    @untraced
    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, shard: None = None) -> SamplerOutput:
        """Draw a token for each row.

        Waits for the device only where whoever draws does (``Capabilities.sync_free``), or where ``TOKENDRAW_DEBUG=1``
        has the call checked.

        A sampler that another one could replace draws its first batch of each kind (dtype, vocabulary, and which of
        greedy rows, seeds, filters and logprobs it may hold) from a copy of the logits, so that its successor finds
        them pristine. The copy takes the memory of the logits, and a read and a write of them, for that call; of kinds
        that :meth:`warmup` drew there is none. The logits are never modified.

        :param logits: [B, V] float32, bfloat16 or float16, any row stride.
        :param metadata: the parameters of the B rows, on the same device.
        :param shard: not taken any more: logits that lie on several ranks have an operation of their own.
        :raises InvalidInputError: a ValueError, before anything is launched.
        :raises SamplerUnavailableError: the batch may hold rows that nobody here can serve, or whoever could has
            failed.
        :raises PluginError: what a sampler returned has the wrong type, shape, dtype or device, or
            ``TOKENDRAW_DEBUG=1`` found another fault; or a sampler raised what would end the program.
        """
        if shard is not None:
            raise TypeError(
                "'sample' takes no shard: load the operation 'sample_over_ranks' of the distribution tokendraw-ranks, "
                f"and pass it a tokendraw_ranks.VocabShard; to have it, run {how_to_install('tokendraw-ranks')}."
            )
        output: SamplerOutput = dispatch(self._negotiator, OPERATION, Sample(logits, metadata))
        return output

    @untraced
    def warmup(self, vocab_size: int, *, progress: bool | None = None, **options: Any) -> float:
        """Draw from made-up batches, as :meth:`tokendraw.Sampler.warmup` does.

        :param options: arguments of that method about logits and their parameters.
        """
        batches = Batches(vocab_size, **options)
        return warm_up(
            self._negotiator, [(OPERATION, batches.drawn_by("batches", Sample))], progress=progress
        )


def prove(backend: SamplerBackend, capabilities: Capabilities, device: torch.device, need: Need) -> None:
    """Draw from two rows: all mass on a middle token, and half of it on the first and last token each.

    :raises PluginError: the output is not what it has to be.
    """
    logits = proof_rows.zeros(2, capabilities, device, need)
    vocab_size = logits.shape[1]
    expected = [{vocab_size // 2}, {0, vocab_size - 1}]
    for row, tokens in enumerate(expected):
        logits[row, sorted(tokens)] = proof_rows.PEAK
    pristine = logits.clone()
    params = [proof_rows.params(capabilities, need)] * 2  # equal, so that a scalar filter can serve both
    metadata = SamplingMetadata.from_params(params, device=device)
    output = proof_rows.output_of(Sample(logits, metadata), backend, need)
    for row, (token, allowed) in enumerate(zip(output.token_ids.tolist(), expected, strict=True)):
        if token not in allowed:
            raise PluginError(
                f"the proof draw needs token {' or '.join(map(str, sorted(allowed)))} in row {row} "
                f"of {vocab_size} logits, found {token}"
            )
    if capabilities.valid_flag and not all(output.valid.tolist()):
        raise PluginError(f"the proof draw needs two valid rows, found valid {output.valid.tolist()}")
    if not torch.equal(logits, pristine):
        raise PluginError("the proof draw needs its logits unmodified, found them changed")


CALLS = {"sample": Sample}
PROVIDER = SampleProvider

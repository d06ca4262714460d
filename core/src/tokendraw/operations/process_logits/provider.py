"""The object that ``tokendraw.load("process_logits")`` returns."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tokendraw._torch.untraced import untraced
from tokendraw.calls.provider import Provider
from tokendraw.calls.warmup import warm_up
from tokendraw.operations.process_logits.calls import Process
from tokendraw.operations.process_logits.warmup import ProcessWarmup
from tokendraw.parameters.drafts import Drafts
from tokendraw.request_slots.slots import RequestSlots


class LogitsProcessor(Provider):
    """Edits logits in place, as the requests of their rows ask."""

    @untraced
    def process(
        self,
        logits: Tensor,
        slots: RequestSlots,
        row_index: Tensor,
        bitmask: Tensor | None = None,
        drafts: Drafts | None = None,
    ) -> Tensor:
        """Edit logits in place and return them: see docs/logits-processing.md.

        :param logits: [R, V] float32, bfloat16 or float16, the ids of a row one behind the other.
        :param slots: the requests, and the tokens of each one so far.
        :param row_index: [R] integer, with drafts [B]: the slot of each row, or request.
        :param bitmask: [R, ceil(V / 32)] int32: a bit for each id, set where the id is allowed.
        :param drafts: the rows are those of a verification of these drafts.
        :raises InvalidInputError: a ValueError, before anything is launched.
        :raises SamplerUnavailableError: no plugin here serves the call.
        """
        output: Tensor = self._dispatcher.dispatch(Process(logits, slots, row_index, bitmask, drafts))
        return output

    @untraced
    def warmup(
        self,
        vocab_size: int,
        *,
        dtypes: Iterable[torch.dtype],
        batch_sizes: Iterable[int] = (1, 64),
        row_stride: int | None = None,
        index_dtypes: Iterable[torch.dtype] = (torch.int64, torch.int32),
        bitmask: bool = True,
        max_drafts: int | None = None,
        progress: bool | None = None,
    ) -> float:
        """Edit made-up logits, so that no request waits for a kernel to be compiled or loaded.

        The parameters are those of :meth:`tokendraw.operations.process_logits.warmup.ProcessWarmup.of`.

        :param progress: whether a line on stderr shows the progress; None: if stderr is a terminal.
        :returns: the duration in seconds; 0.0 on a CPU.
        :raises InvalidInputError: a ValueError that names the argument; or a CUDA graph is being captured.
        """
        warmup = ProcessWarmup.of(
            vocab_size,
            dtypes=dtypes,
            batch_sizes=batch_sizes,
            row_stride=row_stride,
            index_dtypes=index_dtypes,
            bitmask=bitmask,
            max_drafts=max_drafts,
        )
        return warm_up([(self._dispatcher, warmup)], progress=progress)

"""The protocol of processors, built by plugins for the operation ``process_logits``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from tokendraw.parameters.drafts import Drafts
    from tokendraw.request_slots.slots import RequestSlots


@runtime_checkable
class LogitsProcessorBackend(Protocol):
    """The processor returned by ``tokendraw_build`` for ``process_logits``."""

    def process(
        self,
        logits: Tensor,
        slots: RequestSlots,
        row_index: Tensor,
        bitmask: Tensor | None = None,
        drafts: Drafts | None = None,
    ) -> Tensor:
        """Edit the logits in place as the requests of their rows ask, and return them.

        In this order, on x as float32, each step rounded to float32 and none fused with the next: -inf where the
        bitmask, the allowed ids, a bad word or ``min_tokens`` forbid an id; ``x + bias``; for ids in prompt or output
        ``x / repetition`` if x > 0, else ``x * repetition``; ``x - frequency * n`` with n the times in the output;
        ``x - presence`` if n > 0. At the end x is rounded to the dtype of the logits. Ids that nobody edits keep their
        bits, -inf stays -inf and NaN stays NaN, unless it is forbidden.

        :param logits: [R, V] float32, bfloat16 or float16 with R and V from 1, ids of a row one behind the other, any
            row stride from V.
        :param slots: ``slots.tables`` holds what the requests ask for; ``slots.facts`` says on the host which edits may
            occur at all. Not to be modified.
        :param row_index: [R] integer, with drafts [B]: the slot of each row, or request. One outside [0, S) asks for
            nothing.
        :param bitmask: [R, ceil(V / 32)] int32, any row stride: bit i % 32 of word i // 32 is set where id i is
            allowed. It holds for every row, whatever its slot. Bits from V on mean nothing.
        :param drafts: the rows are those of a verification. Row j of request b counts the history in slot
            ``row_index[b]`` and the request's first j drafts, as if they were in the output. A placeholder, an id
            outside [0, V), takes its place in that: ``min_tokens`` counts it, it is no token of its own and ends no
            match of a bad word. Rows from ``cu_num_logits[B]`` on have no request, and at most a bitmask.
        """
        ...

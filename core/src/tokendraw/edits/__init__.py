"""The operation ``process_logits``: penalties, biases and masks of requests, written into their logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from tokendraw.backends.description import (
    INPUT_DTYPES,
    HostCapabilities,
    HostNeed,
    Operation,
    Requirement,
    among,
    at_least,
    some_of,
)
from tokendraw.backends.resolution import checks
from tokendraw.calls.call import VOCABULARY
from tokendraw.parameters.params import BASIC_EDITS, EDITS, Edit

if TYPE_CHECKING:
    from torch import Tensor

    from tokendraw.edits.slots import RequestSlots
    from tokendraw.parameters.drafts import Drafts


@dataclass(frozen=True, kw_only=True)
class ProcessCapabilities(HostCapabilities):
    """The capabilities of a processor. The defaults promise little: advertise what you have tested.

    Inherits the fields of :class:`HostCapabilities`.

    :ivar dtypes: Dtypes of the logits, by their torch names.
    :ivar drafts: Whether rows of a verification are served, each with the drafts before it counted as output.
    :ivar max_vocab_size: Largest vocabulary V that is served; None: any.
    :ivar edits: Names of the edits that are served: ``bitmask``, and fields of ``SamplingParams``. Calls with another
        edit, of any request in the slots, go to a companion. By default those from ``bitmask`` to
        ``presence_penalty``: edits that were added later are to be named.
    """

    dtypes: Annotated[tuple[str, ...], some_of(INPUT_DTYPES)] = ("float32",)
    drafts: bool = False
    max_vocab_size: Annotated[int, at_least(1)] | None = None
    edits: Annotated[tuple[Edit, ...], some_of(EDITS)] = BASIC_EDITS


@dataclass(frozen=True, kw_only=True)
class ProcessNeed(HostNeed):
    """The needs of a caller of ``process_logits``.

    Inherits the fields of :class:`HostNeed`.

    :ivar dtype: Dtype of the logits by its torch name; None when not known yet.
    :ivar vocab_size: Vocabulary size V; None when not known yet.
    :raises InvalidParameterError: a ValueError: a field is not of the type that it declares.
    """

    dtype: Annotated[str, among(INPUT_DTYPES)] | None = None
    vocab_size: Annotated[int, at_least(1)] | None = None


@runtime_checkable
class LogitsProcessorBackend(Protocol):
    """The processor returned by ``tokendraw_build`` for ``process_logits``.

    A processor may have a second method, ``append(tables, row_index, token_ids)``, which serves
    :meth:`tokendraw.RequestSlots.append` in place of about 20 operations of torch once the processor has been called
    with these slots. It appends the tokens [B] or [B, K] integer of the rows to ``history`` and ``distinct``, in their
    order, and raises ``num_tokens``, ``num_distinct`` and ``counts``; it waits for nothing. ``row_index`` [B] integer
    names each slot at most once. Left out are rows whose slot is out of range, and tokens that are negative, no int32
    or beyond ``limit``. A token from V on has a place in the history and no id.
    """

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
        bitmask, the allowed ids, a bad word or ``min_tokens`` forbid an id; in the row of a spent thinking budget
        instead for all ids but the next one of its end; ``x + bias``; for ids in prompt or output ``x / repetition`` if
        x > 0, else ``x * repetition``; ``x - frequency * n`` with n the times in the output; ``x - presence`` if n > 0.
        Of a request with ``penalty_last_n`` the three penalties count its last tokens alone, those of the prompt too.
        Behind the penalties DRY subtracts ``multiplier * base ** (m - allowed_length)``, computed in float64 and
        rounded to float32, from the logit of an id that followed the longest suffix of the history which occurs earlier
        too, of length m >= ``allowed_length``: see docs/logits-processing.md. At the end x is rounded to the dtype of
        the logits. Ids without an edit keep their bits, -inf stays -inf and NaN stays NaN, unless it is forbidden.

        :param logits: [R, V] float32, bfloat16 or float16, R and V from 1; ids lie dense, rows at any stride from V.
        :param slots: ``slots.tables`` holds what requests ask for, ``slots.facts`` what may occur at all. Not modified.
        :param row_index: [R] integer, with drafts [B]: the slot of each row, or request; one outside [0, S): no edit.
        :param bitmask: [R, ceil(V / 32)] int32, any row stride: bit i % 32 of word i // 32 is set where id i is
            allowed. It holds for every row, whatever its slot. Bits from V on mean nothing.
        :param drafts: the rows are those of a verification. Row j of request b counts the history in slot
            ``row_index[b]`` and the request's first j drafts, as if they were in the output. A placeholder, an id
            outside [0, V), takes its place in that: ``min_tokens`` counts it, it is no token of its own and ends no
            match of a bad word. Rows from ``cu_num_logits[B]`` on have no request, and at most a bitmask.
        """


def _of_dtype(dtype: str) -> Requirement:
    return Requirement(
        kind=f"logits in {dtype}",
        is_supported=lambda capabilities, need: dtype in capabilities.dtypes,
        is_asked=lambda call, capabilities: str(call.logits.dtype) == f"torch.{dtype}",
        is_settled=lambda need: need.dtype not in (None, dtype),
    )


def _of_edit(edit: Edit) -> Requirement:
    is_bitmask = edit == "bitmask"

    def is_asked(call: Any, capabilities: ProcessCapabilities) -> bool:
        return call.bitmask is not None if is_bitmask else edit in call.slots.edits

    return Requirement(
        kind="rows with a bitmask" if is_bitmask else f"requests with {edit}",
        is_supported=lambda capabilities, need: edit in capabilities.edits,
        is_asked=is_asked,
    )


OPERATION = Operation(
    name="process_logits",
    module="tokendraw.edits.process",
    capabilities=ProcessCapabilities,
    need=ProcessNeed,
    methods=("process",),
    checks=(checks.dtype, checks.vocab_size),
    requirements=(
        *map(_of_dtype, INPUT_DTYPES),
        replace(VOCABULARY, is_named_first=False),
        Requirement(
            kind="rows of a verification",
            is_supported=lambda capabilities, need: capabilities.drafts,
            is_asked=lambda call, capabilities: call.drafts is not None,
        ),
        *map(_of_edit, EDITS),
    ),
)

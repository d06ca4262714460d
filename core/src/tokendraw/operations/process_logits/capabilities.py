"""The capabilities of a processor of logits, and the needs of its callers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tokendraw.backends.description.capabilities import INPUT_DTYPES, HostCapabilities, HostNeed
from tokendraw.backends.description.declared import among, at_least, some_of
from tokendraw.parameters.edits import EDITS, Edit


@dataclass(frozen=True, kw_only=True)
class ProcessCapabilities(HostCapabilities):
    """The capabilities of a processor. The defaults promise little: advertise what you have tested.

    Inherits the fields of :class:`HostCapabilities`.

    :ivar dtypes: Dtypes of the logits, by their torch names.
    :ivar drafts: Whether rows of a verification are served, each with the drafts before it counted as output.
    :ivar max_vocab_size: Largest vocabulary V that is served; None: any.
    :ivar edits: Names of the edits that are served: ``bitmask``, and fields of ``SamplingParams``. Calls with another
        edit, of any request in the slots, go to a companion.
    """

    dtypes: Annotated[tuple[str, ...], some_of(INPUT_DTYPES)] = ("float32",)
    drafts: bool = False
    max_vocab_size: Annotated[int, at_least(1)] | None = None
    edits: Annotated[tuple[Edit, ...], some_of(EDITS)] = EDITS


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

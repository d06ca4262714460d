"""Requirements of rows and calls. A backend that does not meet a requirement needs a companion.

Each operation has a table of them. Resolution compares the table with capabilities and a need, to find the best
companion; a call compares only the requirements that the selected backend does not meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _never(need: Any) -> bool:
    return False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Requirement:
    """A property of rows or calls, supported by some backends.

    :ivar kind: Words for the rows or calls that have the property; may name fields, as ``{need.logprobs_mode}``.
    :ivar is_supported: Compares (capabilities, need): whether a backend supports the property.
    :ivar is_asked: Compares (call, capabilities): whether a call may have the property, for a backend that does not
        support it. A part of a batch is passed as :class:`tokendraw.calls.row_requirements.Rows`.
    :ivar reason: Words for a call that is refused, such as ``top_k above {capabilities.max_top_k}``; "": ``kind``.
    :ivar concerns_call: Whether the property belongs to the call, so that all of its rows go to a single backend.
    :ivar is_named_first: Whether a refusal names the property before other unsupported properties of the call.
    :ivar is_settled: Whether a need rules out calls with the property, so that no companion is sought for them.
    """

    kind: str
    is_supported: Callable[[Any, Any], bool]
    is_asked: Callable[[Any, Any], bool]
    reason: str = ""
    concerns_call: bool = False
    is_named_first: bool = False
    is_settled: Callable[[Any], bool] = _never


def first_reason(unsupported: tuple[Requirement, ...], call: Any, capabilities: Any) -> str | None:
    """Name the first unsupported property of a call; None: all are supported.

    :param unsupported: the requirements that the backend does not meet.
    """
    for requirement in unsupported:
        if requirement.is_asked(call, capabilities):
            return (requirement.reason or requirement.kind).format(capabilities=capabilities)
    return None

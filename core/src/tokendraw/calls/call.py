"""The calls of an operation's methods, and the requirements of rows: seeds, greedy rows, filters and logprobs.

A need holds for every batch and is compared once, by :mod:`tokendraw.backends.resolution.checks`; a sampler that does
not support a property of some rows still serves all other rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias

from tokendraw.backends.description import (
    FILTER_ORDERS,
    FILTERS,
    MOMENTS,
    Capabilities,
    Filter,
    FilterOrder,
    Requirement,
)
from tokendraw.errors import InvalidInputError, type_name
from tokendraw.filters.installed import required_moments

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw.parameters.batch_facts import BatchFacts

OutputCheck: TypeAlias = Callable[[object], str | None]
"""Checks the form of a call's output, but not the values: returns None, or what is needed and what was found."""


class Call(ABC):
    """The arguments of a call. Making a call checks nothing and costs next to nothing; :meth:`check` checks."""

    __slots__ = ()

    hint_field: ClassVar[str] = "its arguments"
    """Names the argument by which a caller rules out properties of a call, for the message of a refusal."""
    may_fall_back: ClassVar[bool] = True
    """Whether another backend may serve the call after a failure; the first call of each signature is then copied."""

    @abstractmethod
    def check(self, device: torch.device, need: Any) -> None:
        """Refuse arguments of the wrong form, device or need. Reads nothing on a device.

        :raises InvalidInputError: says what is needed and what was found.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """List the tensors by name; a backend has to leave them unmodified."""

    @abstractmethod
    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """Copy the call with ``tensors`` in place of :meth:`tensors`."""

    @abstractmethod
    def run(self, backend: Any) -> Any:
        """Call a backend."""

    @abstractmethod
    def output_check(self, need: Any) -> OutputCheck:
        """Return the check of the output's form, without references to tensors."""

    def cached_check(self, key: object) -> OutputCheck | None:
        """Look up the output check of a checked call with the same metadata and form, served by the selection ``key``.

        :returns: None if there was no such call, or if this call has to be checked again.
        """
        return None

    def cache_check(self, key: object, check: OutputCheck) -> None:
        """Cache the output check after a checked call, served by the selected backend alone."""
        return

    def check_values(self) -> None:
        """Refuse values out of range, and wait for the device: with ``TOKENDRAW_DEBUG=1``.

        :raises InvalidParameterError: says what is needed and what was found.
        """
        return

    def wrong_values(self, output: Any, need: Any) -> str | None:
        """Describe wrong values of an output of the right form, for the need of the caller; waits for the device."""
        return None

    def copied(self) -> Self:
        """Copy the call with all tensors, against overwriting by a failing backend."""
        return self.with_tensors({name: tensor.clone() for name, tensor in self.tensors().items()})

    def signature(self) -> Hashable:
        """Return the properties for the choice of a backend's kernels, the size of the call apart."""
        return tuple([(tensor.dtype, tensor.shape[1:]) for tensor in self.tensors().values()])

    @property
    def num_rows(self) -> int:
        """Return the number of rows for :meth:`tokendraw.Sampler.stats`."""
        return 0


def check_type(name: str, value: object, needed: type, mend: str) -> None:
    """Refuse an argument that is no object of one of tokendraw's public classes."""
    if not isinstance(value, needed):
        found = type_name(value)
        raise InvalidInputError(f"'{name}' needs a tokendraw.{needed.__name__}, found {found}. {mend}")


def wrong_object(output: object, needed: object, name: str) -> str | None:
    """Compare the output of a call that fills an object with that object, described by ``name``."""
    if output is needed:
        return None
    other = "another " if isinstance(output, type(needed)) else ""
    return f"{name}, found {other}{type(output).__name__}"


class RowGroup(NamedTuple):
    """Rows of a batch, comparable with requirements like a call, which has the same properties."""

    facts: BatchFacts
    vocab_size: int


def _needs_other_moments(rows: RowGroup, capabilities: Capabilities) -> bool:
    if not rows.facts.filters:
        return False
    moments = required_moments(rows.facts.filters)
    return not (capabilities.row_moments and set(moments) <= set(capabilities.row_moments))


def _listed(name: Filter | FilterOrder, kind: str, field: str, entry: object) -> Requirement:
    """Make the requirement that capabilities list an entry in a field, of rows that may have a filter or an order."""
    flag = f"any_{name}"
    return Requirement(
        kind=kind,
        is_supported=lambda capabilities, need: entry in getattr(capabilities, field),
        is_asked=lambda rows, capabilities: bool(getattr(rows.facts, flag)),
    )


VOCABULARY = Requirement(
    kind="rows of a vocabulary above its limit",
    reason="rows of a vocabulary above {capabilities.max_vocab_size}",
    is_supported=lambda capabilities, need: capabilities.max_vocab_size is None,
    is_asked=lambda rows, capabilities: rows.vocab_size > capabilities.max_vocab_size,
    is_settled=lambda need: need.vocab_size is not None,
    concerns_call=True,
    is_named_first=True,
)
LOGPROBS = Requirement(
    kind="rows that ask for {need.logprobs_mode}",
    reason="rows with logprobs",
    is_supported=lambda capabilities, need: need.logprobs_mode in capabilities.logprobs_modes,
    is_asked=lambda rows, capabilities: rows.facts.max_logprobs is not None,
)
SEEDED = Requirement(
    kind="seeded rows",
    is_supported=lambda capabilities, need: capabilities.seeding == "counter",
    is_asked=lambda rows, capabilities: rows.facts.any_seeded,
)
ROW_REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(
        kind="greedy rows",
        is_supported=lambda capabilities, need: capabilities.greedy,
        is_asked=lambda rows, capabilities: rows.facts.any_greedy,
    ),
    SEEDED,
    *(_listed(name, f"{name} per row", "filters", (name, "per_row")) for name in FILTERS),
    Requirement(
        kind="filters from moments",
        is_supported=lambda capabilities, need: set(capabilities.row_moments) >= set(MOMENTS),
        is_asked=_needs_other_moments,
    ),
    Requirement(
        kind="a top_k above its limit",
        reason="top_k above {capabilities.max_top_k}",
        is_supported=lambda capabilities, need: capabilities.max_top_k is None,
        is_asked=lambda rows, c: (
            c.max_top_k is not None and (rows.facts.max_top_k is None or rows.facts.max_top_k > c.max_top_k)
        ),
    ),
    VOCABULARY,
    *(_listed(name, f"filter order {name}", "filter_orders", name) for name in FILTER_ORDERS),
    LOGPROBS,
    Requirement(
        kind="rows with logprob_token_ids",
        # Where the mode is not served, LOGPROBS says so of these rows.
        is_supported=lambda capabilities, need: (
            capabilities.logprob_token_ids or need.logprobs_mode not in capabilities.logprobs_modes
        ),
        is_asked=lambda rows, capabilities: rows.facts.any_logprob_token_ids,
    ),
)

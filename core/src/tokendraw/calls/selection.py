"""The backends of an operation: built, proven, and selected by a resolution."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Self
from weakref import WeakKeyDictionary

from tokendraw.backends.description.operation import Operation
from tokendraw.backends.description.requirement import Requirement, first_reason
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.calls.call import Call
from tokendraw.calls.row_requirements import RowGroup
from tokendraw.calls.splitting import RowSplit
from tokendraw.parameters.batch_facts import RowKinds

_MAX_SIGNATURES = 256
"""Number of call signatures that a backend is known to serve, at most; a caller may change its vocabulary all the time.
"""


@dataclass(slots=True, eq=False)
class LoadedBackend:
    """A built and proven backend."""

    name: str
    object: Any
    """The object that the plugin built for the operation."""
    capabilities: Any = None
    """None: the backend serves every call."""
    unsupported: tuple[Requirement, ...] = ()
    """Requirements of the operation that the backend does not meet."""
    package: str = ""
    """Top-level package of the plugin's code."""
    signatures: set[Hashable] = field(default_factory=set)
    """Signatures of served calls."""

    @classmethod
    def of(
        cls, operation: Operation, name: str, backend: Any, capabilities: Any, need: Any, package: str = ""
    ) -> Self:
        """Compare the capabilities with the requirements of an operation."""
        return cls(name, backend, capabilities, operation.unsupported(capabilities, need), package)

    def reason_against(self, call: Call | RowGroup) -> str | None:
        """Name the first unsupported property of a call or of rows; None: all are supported."""
        capabilities = self.capabilities
        if capabilities is None:
            return None
        return first_reason(self.unsupported, call, capabilities) if self.unsupported else None

    def is_new(self, signature: Hashable) -> bool:
        """Whether the signature is new to the backend, within the number of counted signatures."""
        return signature not in self.signatures and len(self.signatures) < _MAX_SIGNATURES


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Selection:
    """The backend of an operation, and a companion for unsupported rows and calls.

    Replaced as a whole: no thread sees half of a change.
    """

    resolution: Resolution
    backend: LoadedBackend
    companion: LoadedBackend | None = None
    """Serves the rows or calls that the backend does not support."""
    partial_companion: LoadedBackend | None = None
    """Serves these in place of the companion where it supports all of them in a call."""
    barred_companion: str | None = None
    """Name of the companion that the caller ruled out."""
    can_fall_back: bool = False
    """Whether another backend may serve a call that fails."""
    key: object = field(default_factory=object, init=False, repr=False)
    """Identifies the selection where checks of calls are cached, and keeps nothing of it alive."""
    row_splits: WeakKeyDictionary[RowKinds, dict[int, RowSplit]] = field(
        default_factory=WeakKeyDictionary, repr=False
    )
    """Splits by the vocabulary, which decides too who serves rows of the same kinds."""
    captured_splits: list[RowSplit] = field(default_factory=list, repr=False)
    """Splits whose indices are part of a CUDA graph, which does not keep them alive."""
    logged_kinds: set[tuple[str, str, bool]] = field(default_factory=set, repr=False)
    """The logged kinds of rows by the name of their companion, each with whether whole calls went with them."""

    @property
    def backends(self) -> tuple[LoadedBackend, ...]:
        """Return the backend and its companions."""
        every = (self.backend, self.partial_companion, self.companion)
        return tuple(backend for backend in every if backend is not None)

    def companion_for(self, call: Call, rows: RowGroup | None = None) -> LoadedBackend | None:
        """Return the companion for a call or its leaving rows, whether or not it supports them; None: there is none."""
        partial = self.partial_companion
        if partial is None:
            return self.companion
        return partial if partial.reason_against(rows or call) is None else self.companion

"""Routes the parts of a call to the chosen provider and its companion, both built and proven."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from tokendraw._exchange.call import WHOLE, Call
from tokendraw._exchange.facts import BatchFacts, RowKinds
from tokendraw._messages.errors import SamplerUnavailableError
from tokendraw._messages.install import NATIVE
from tokendraw._resolution.candidate import Resolution
from tokendraw._serving.splitting import Split, is_worthwhile
from tokendraw._torch.graphs import is_capturing

_MOST_KINDS = 256
"""Number of kinds of calls that are remembered of a provider; a caller may change its vocabulary all the time."""


@dataclass(slots=True, eq=False)
class BuiltProvider:
    """A provider that was built."""

    name: str
    backend: Any
    """The object that its plugin built for the operation."""
    package: str = ""
    """Top-level package of its plugin's code."""
    served_kinds: set[Hashable] = field(default_factory=set)
    """Kinds of calls that it has served: see :mod:`tokendraw._serving.fallback`."""
    failed_kinds: set[Hashable] = field(default_factory=set)
    """Kinds of calls that it has failed since, where nobody could take over."""

    def is_new(self, kind: Hashable) -> bool:
        """Whether a call of this kind is the first that it meets, as far as is remembered."""
        return kind not in self.served_kinds and len(self.served_kinds) < _MOST_KINDS

    def note_success(self, kind: Hashable) -> None:
        """Remember that it served a call of this kind."""
        if self.is_new(kind):
            self.served_kinds.add(kind)
        self.failed_kinds.discard(kind)

    def note_failure(self, kind: Hashable) -> None:
        """Remember that it failed one."""
        self.failed_kinds.add(kind)


class Route(NamedTuple):
    """The providers that serve one call."""

    member: BuiltProvider
    """Serves it, or all of it but the rows of ``split``."""
    split: Split | None = None
    """The rows that the companion serves."""
    lacking: tuple[str, ...] = ()
    """Kinds of rows because of which the companion serves any."""
    because: str = ""
    """Says why it serves the whole call, if it does."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Serving:
    """The providers that a resolution led to. Replaced as a whole, so that no thread sees half of a change."""

    resolution: Resolution
    chosen: BuiltProvider
    companion: BuiltProvider | None = None
    capabilities: Any = None
    """Capabilities of the chosen provider; None: it serves every call."""
    companion_capabilities: Any = None
    can_fall_back: bool = False
    """Whether another provider may take over where a call fails, and there is one."""
    key: object = field(default_factory=object, init=False, repr=False)
    """Identifies it where calls are remembered, and keeps nothing of it alive."""
    _splits: WeakKeyDictionary[RowKinds, Split] = field(default_factory=WeakKeyDictionary, repr=False)
    _captured: list[Split] = field(default_factory=list, repr=False)
    """Splits whose indices are part of a CUDA graph, which does not keep them alive."""

    def lacking(self, call: Call, rows: BatchFacts | None = None) -> str | None:
        """Say what a call may hold that the chosen provider cannot serve; None if it serves all of it.

        :param rows: of rows of this kind alone.
        """
        return None if self.capabilities is None else call.lacking(self.capabilities, rows)

    def is_served(self, call: Call) -> bool:
        """Whether the chosen provider or its companion serves all of a call."""
        if self.lacking(call) is None:
            return True
        return self.companion is not None and self._beyond_companion(call) is None

    def check_alone(self, call: Call) -> None:
        """Refuse a call that the chosen provider has to serve alone and cannot.

        :raises SamplerUnavailableError: says what of it is beyond the provider.
        """
        lacking = self.lacking(call)
        if lacking is not None:
            raise SamplerUnavailableError(
                f"'{self.chosen.name}' cannot serve {lacking}, and no companion serves a part of a call that several "
                f"ranks make together. Load a sampler that can, with tokendraw.Need(vocab_parallel=True) ({NATIVE})."
            )

    def member(self, call: Call, rows: BatchFacts | None = None) -> BuiltProvider:
        """Find the provider that serves a whole call, or rows of one kind.

        :raises SamplerUnavailableError: nobody here serves all that it may hold.
        """
        lacking = self.lacking(call, rows)
        if lacking is None:
            return self.chosen
        if self.companion is None:
            raise SamplerUnavailableError(
                f"'{self.chosen.name}' cannot serve {lacking}, which this batch may hold, and has no companion. "
                f"Install one that can ({NATIVE}), or, if the batch holds none, "
                f"say so in {call.told_in}."
            )
        beyond = self._beyond_companion(call, rows)
        if beyond is not None:
            raise SamplerUnavailableError(
                f"'{self.chosen.name}' cannot serve {lacking}, and its companion '{self.companion.name}' cannot serve "
                f"{beyond}, both of which this batch may hold. Install a sampler that serves both "
                f"({NATIVE}), or, if the batch holds only one of them, say so in "
                f"{call.told_in}."
            )
        return self.companion

    def route(self, call: Call, *, splits_rows: bool = True) -> Route:
        """Find the providers that serve a call, row by row if the host knows the kind of each row.

        :param splits_rows: whether rows may leave those that stay.
        :raises SamplerUnavailableError: nobody here serves all that it may hold.
        """
        lacking = self.lacking(call)
        if lacking is None:
            return Route(self.chosen)
        may_split = splits_rows and self.companion is not None
        kinds = call.kinds_of_rows(self.capabilities) if may_split else WHOLE
        split = kinds if isinstance(kinds, str) else self._split(kinds, call)
        if isinstance(split, str):
            return Route(self.member(call), None, (lacking,), split)
        if not split.num_leaving:
            return Route(self.chosen)
        self.member(call, split.leaving)
        if split.num_staying and (
            is_worthwhile(split.num_staying, split.num_leaving, split.rows.device)
            or self._beyond_companion(call) is not None
        ):
            if is_capturing():
                self._captured.append(split)
            return Route(self.chosen, split, split.reasons)
        assert self.companion is not None
        rows = split.num_staying + split.num_leaving
        return Route(self.companion, None, split.reasons, f"{split.num_staying} of {rows} rows would stay")

    def _split(self, kinds: RowKinds, call: Call) -> Split | str:
        """Tell the rows apart, or say why that cannot be."""
        split = self._splits.get(kinds)
        if split is None:
            if is_capturing():
                return "a CUDA graph is captured of it before it was drawn once"
            lacking = [self.lacking(call, kind) for kind in kinds.kinds]
            offered = (self.capabilities, self.companion_capabilities)
            split = self._splits[kinds] = call.split(kinds, lacking, offered)
        return split

    def _beyond_companion(self, call: Call, rows: BatchFacts | None = None) -> str | None:
        offered = self.companion_capabilities
        return None if offered is None else call.lacking(offered, rows)

"""Routes the parts of a call to the chosen provider and its companion, both built and proven."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from tokendraw._torch.graphs import is_capturing
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.backends.resolution.refusals import install
from tokendraw.calls.call import WHOLE, Call
from tokendraw.calls.splitting import Split, is_worthwhile
from tokendraw.errors.exceptions import SamplerUnavailableError
from tokendraw.errors.formatting import all_of
from tokendraw.errors.install_commands import NATIVE
from tokendraw.parameters.batch_facts import BatchFacts, RowKinds

_MOST_KINDS = 256
"""Number of kinds of calls that are remembered of a provider; a caller may change its vocabulary all the time."""
_MOST_NAMED_ROWS = 8
"""Rows that a message names, at most."""


@dataclass(slots=True, eq=False)
class BuiltProvider:
    """A provider that was built."""

    name: str
    backend: Any
    """The object that its plugin built for the operation."""
    package: str = ""
    """Top-level package of its plugin's code."""
    served_kinds: set[Hashable] = field(default_factory=set)
    """Kinds of calls that it has served: see :mod:`tokendraw.calls.fallback`."""
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
    barred_companion: str | None = None
    """Name of the companion that the caller did not want."""
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
        undeclared = None if self.capabilities is None else call.undeclared(self.capabilities)
        if undeclared is not None:
            raise _undeclared_class(undeclared, self.chosen.name)
        if lacking is not None:
            is_native_here = any(decision.name == "native" for decision in self.resolution.decisions)
            command = "" if is_native_here else f" ({NATIVE})"
            raise SamplerUnavailableError(
                f"'{self.chosen.name}' cannot serve {lacking}, and no companion serves a part of a call that several "
                f"ranks make together. Load a sampler that can, with tokendraw.Need(vocab_parallel=True){command}."
            )

    def member(self, call: Call, rows: BatchFacts | None = None) -> BuiltProvider:
        """Find the provider that serves a whole call, or rows of one kind.

        :raises SamplerUnavailableError: nobody here serves all that it may hold.
        """
        lacking = self.lacking(call, rows)
        if lacking is None:
            return self.chosen
        if self.companion is None:
            mend = install("one that can", self.resolution.decisions)
            if self.barred_companion is not None:
                mend = f"Leave out companion=False, so that {self.barred_companion!r} serves as one"
            raise SamplerUnavailableError(
                f"'{self.chosen.name}' cannot serve {lacking}, which this batch may hold, and has no companion. "
                f"{mend}, or, if the batch holds none, say so in {call.told_in}."
            )
        beyond = self._beyond_companion(call, rows)
        if beyond is not None:
            raise SamplerUnavailableError(
                f"'{self.chosen.name}' cannot serve {lacking}, and its companion '{self.companion.name}' cannot serve "
                f"{beyond}, both of which this batch may hold. "
                f"{install('one that serves both', self.resolution.decisions)}, or, if the batch holds only one "
                f"of them, say so in {call.told_in}."
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
        self._check_declared(call, kinds)
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

    def _check_declared(self, call: Call, kinds: RowKinds | str) -> None:
        """Refuse a call some of which would go to a provider that does not declare the class of an argument.

        :param kinds: of the rows of a call that is beyond the chosen provider; words where nobody knows them.
        :raises SamplerUnavailableError: names the rows and the class.
        """
        undeclared = None if self.capabilities is None else call.undeclared(self.capabilities)
        companion, offered = self.companion, self.companion_capabilities
        if companion is None:
            if undeclared is not None:
                raise _undeclared_class(undeclared, self.chosen.name)
            return
        name = None if offered is None else call.undeclared(offered)
        if name is None:
            return
        if undeclared is not None:
            raise _undeclared_class(name, self.chosen.name, companion.name)
        if isinstance(kinds, str):
            where, reasons = "every row", [self.lacking(call)]
        else:
            reason_of = [self.lacking(call, kind) for kind in kinds.kinds]
            of_row = [reason_of[kinds.of_slot[slot]] for slot in kinds.slot_of_row or range(kinds.num_rows)]
            rows = [row for row, reason in enumerate(of_row) if reason is not None]
            if not rows:
                return
            where, reasons = _named_rows(rows), [of_row[row] for row in rows]
        raise SamplerUnavailableError(
            f"'metadata' of {where} needs a sampler that declares the class {name!r}, found the companion "
            f"{companion.name!r}, which does not, where {self.chosen.name!r} cannot serve "
            f"{all_of(dict.fromkeys(reasons))}. Draw {'them' if len(reasons) > 1 else 'it'} in a call of "
            f"{'their' if len(reasons) > 1 else 'its'} own, with a tokendraw.SamplingMetadata."
        )

    def _beyond_companion(self, call: Call, rows: BatchFacts | None = None) -> str | None:
        offered = self.companion_capabilities
        return None if offered is None else call.lacking(offered, rows)


def _undeclared_class(name: str, *samplers: str) -> SamplerUnavailableError:
    """Refuse metadata of a class that none of some samplers declares."""
    found, do = all_of(map(repr, samplers)), "do" if len(samplers) > 1 else "does"
    return SamplerUnavailableError(
        f"'metadata' of every row needs a sampler that declares the class {name!r}, found {found}, which {do} not. "
        "Load the sampler that declares it by its name, or pass a tokendraw.SamplingMetadata."
    )


def _named_rows(rows: Sequence[int]) -> str:
    """Name some rows, the first of many."""
    if len(rows) == 1:
        return f"row {rows[0]}"
    more = [f"{len(rows) - _MOST_NAMED_ROWS} more"] if len(rows) > _MOST_NAMED_ROWS else []
    return f"rows {all_of([*rows[:_MOST_NAMED_ROWS], *more])}"

"""The record of an operation: all that the core knows about it, so that nothing else asks for its name.

Each operation is a folder of :mod:`tokendraw.operations` whose ``OPERATION`` is one of these. Importing it imports
neither torch nor a backend: what needs torch (``prove``, ``calls``, ``warm_up``) imports it when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tokendraw.backends.description.capabilities import HostCapabilities, HostNeed
from tokendraw.backends.description.host import Host

Check: TypeAlias = Callable[[Any, Host, Any], str | None]
"""Compares (capabilities, host, need), purely: None, or in words what is needed and what was found."""
Gaps: TypeAlias = Callable[[Any, Any], tuple[str, ...]]
"""Names, from (capabilities, need) alone, the kinds of calls, or of rows of a call, that cannot be served."""
Offer: TypeAlias = Callable[[Any, Any], Any]
"""Reduces capabilities to those that count for a caller with this need: (capabilities, need) to capabilities."""
Prove: TypeAlias = Callable[[Any, Any, Any, Any], None]
"""Makes a call whose outcome is known, or raises PluginError: (backend, capabilities, device, need)."""


def no_gaps(capabilities: Any, need: Any) -> tuple[str, ...]:
    """Return no gaps: every available provider serves every call."""
    return ()


def all_offered(capabilities: Any, need: Any) -> Any:
    """Return all capabilities: every one counts."""
    return capabilities


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A task that plugins can be asked to do.

    :ivar name: Name by which plugins offer the operation and callers load it.
    :ivar summary: Describes the operation in one line, for the command line.
    :ivar capabilities: Dataclass of what a provider can do. A plugin's description is checked against the types of the
        fields.
    :ivar need: Says what a caller needs: a dataclass that can be made without arguments.
    :ivar methods: Methods that the object from ``tokendraw_build`` has to have.
    :ivar checks: Checks beyond those of the host, in the order in which their reasons are given.
    :ivar default_checks: Checks for the default choice alone. An explicit choice with a companion is not rejected by
        these.
    :ivar gaps: Lists the kinds of calls that need a companion; two providers with the same gaps list the same kinds.
    :ivar whole_call_gaps: Gaps that concern a call as a whole: the provider that serves such a call also gets all other
        kinds of rows in the call.
    :ivar offered: Narrows the capabilities of a provider to what a need leaves of them.
    :ivar proof: Names the proof in reasons.
    :ivar prove: Makes the proof call on a provider that was built; raises where its answer is wrong.
    :ivar calls: Looks up what makes the :class:`tokendraw.calls.call.Call` of each method, by the method's name.
        None: those of ``methods``, with any arguments.
    :ivar warm_up: Builds the :class:`tokendraw.calls.warming.Warmup` of the arguments that it checks; None: nothing
        to warm.
    :ivar splits_rows: Whether rows of a call may go to the companion, where the call tells of which kind they are;
        otherwise each call goes whole.
    :ivar falls_back: Whether another provider may take over a failed call whose inputs are known to be untouched.
    """

    name: str
    summary: str
    capabilities: type[HostCapabilities] = HostCapabilities
    need: type[HostNeed] = HostNeed
    methods: tuple[str, ...]
    checks: tuple[Check, ...] = ()
    default_checks: tuple[Check, ...] = ()
    gaps: Gaps = no_gaps
    whole_call_gaps: frozenset[str] = frozenset()
    offered: Offer = all_offered
    proof: str = "the proof call"
    prove: Prove
    calls: Callable[[], Mapping[str, Callable[..., Any]]] | None = None
    warm_up: Callable[..., Any] | None = None
    splits_rows: bool = False
    falls_back: bool = True

    @property
    def served(self) -> str:
        """Names what a companion may take: ``rows`` of a call, or whole ``calls``."""
        return "rows" if self.splits_rows else "calls"

    def covers(self, capabilities: Any, kinds: tuple[str, ...], need: Any) -> bool:
        """Whether a provider serves every one of ``kinds``, as :attr:`gaps` named them of another one."""
        own = set(self.gaps(capabilities, need))
        return not (own & set(kinds) if self.whole_call_gaps.isdisjoint(kinds) else own)

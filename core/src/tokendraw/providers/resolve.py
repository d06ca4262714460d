"""Lists installed plugins and decides among them, by the name of an operation. Builds none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tokendraw import operations
from tokendraw._torch.untraced import untraced
from tokendraw.backends import machine
from tokendraw.backends.description import Host, HostNeed, Operation
from tokendraw.backends.discovery import settings as _settings
from tokendraw.backends.discovery.discover import Discovery
from tokendraw.backends.discovery.discover import gather as _gather
from tokendraw.backends.resolution.candidate import Candidate, Choice, Resolution
from tokendraw.backends.resolution.decide import decide as _decide
from tokendraw.errors import InvalidParameterError, type_name

if TYPE_CHECKING:
    import torch


@untraced
def discover(
    *, operation: str = "sample", host: Host | None = None, need: HostNeed | None = None
) -> tuple[Candidate, ...]:
    """List every installed plugin, sorted by name, with state and reason. No plugin can make this raise.

    :param host: the machine to judge them for; None: this one.
    :param need: what they have to do, as a :class:`Need` for ``sample``; None: what that says by default.
    :raises SettingsError: a ``TOKENDRAW_*`` variable or the configuration file is malformed.
    :raises InvalidParameterError: there is no such operation, or ``need`` is not of its type.
    """
    about = operations.find_operation(operation)
    need = needed(about, need)
    choice = _settings.read_settings().choice(binds=operations.is_own(about))
    return gather(host or machine.detect_host(), choice).candidates(about, need)


@untraced
def discover_all() -> dict[str, tuple[Candidate, ...]]:
    """List every installed plugin for this machine by operation, sorted by name."""
    discovery = gather(machine.detect_host(), _settings.read_settings().choice())
    return {about.name: discovery.candidates(about, about.need()) for about in operations.each()}


@untraced
def resolve(
    candidates: Iterable[Candidate] | None = None,
    host: Host | None = None,
    need: HostNeed | None = None,
    choice: Choice | None = None,
    *,
    operation: str = "sample",
    device: str | torch.device | None = None,
) -> Resolution:
    """Decide among plugins, with the decision on every candidate. Builds none, and warns of nothing.

    What is None is gathered from this machine; with all four given the answer depends on nothing else.

    :param device: device of this machine to judge the candidates for, where ``host`` is None.
    :raises SamplerUnavailableError: an explicit choice cannot be honoured, or nothing is available; its
        ``decisions`` hold the reasons.
    :raises DuplicatePluginError: two distributions claim the chosen name or, by default, one in the user's order.
    :raises SettingsError: a ``TOKENDRAW_*`` variable or the configuration file is malformed.
    :raises InvalidParameterError: ``device`` or ``operation`` is not one that there is, or ``need`` is not of the
        operation's type.
    """
    about = operations.find_operation(operation)
    if choice is None:
        choice = _settings.read_settings().choice(binds=operations.is_own(about))
    host = machine.detect_host(None if device is None else str(device)) if host is None else host
    need = needed(about, need)
    if candidates is None:
        candidates = gather(host, choice).candidates(about, need)
    return _decide(candidates, host, need, choice, operation=about)


def decide(
    candidates: Iterable[Candidate], host: Host, need: HostNeed, choice: Choice, *, operation: str = "sample"
) -> Resolution:
    """Decide from facts alone: a pure function.

    Raises as :func:`resolve` does.
    """
    about = operations.find_operation(operation)
    return _decide(candidates, host, needed(about, need), choice, operation=about)


def gather(host: Host, choice: Choice) -> Discovery:
    return _gather(host, choice, operations.capabilities_type)


def needed(operation: Operation, need: HostNeed | None) -> HostNeed:
    """Return a caller's need, or the default of the operation; refuse a need of another type."""
    if need is None:
        return operation.need()
    if not isinstance(need, operation.need):
        raise InvalidParameterError(
            f"'need' needs a {operation.need.__name__} for the operation {operation.name!r}, found {type_name(need)}. "
            "Pass one, or leave it out."
        )
    return need

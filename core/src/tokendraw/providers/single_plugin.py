"""One plugin by itself, as tests and benchmarks call it: judged, built, called; no companion and no fallback."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokendraw import operations
from tokendraw.backends.description.capabilities import HostCapabilities, HostNeed, Need
from tokendraw.backends.discovery import entry_points, settings
from tokendraw.backends.resolution.candidate import Candidate, Resolution
from tokendraw.providers.load import find_device
from tokendraw.providers.resolve import gather

if TYPE_CHECKING:
    import torch

    from tokendraw.calls.call import Call
    from tokendraw.calls.selection import LoadedBackend


find_entry_points = entry_points.installed_candidates


def make_call(operation: str, method: str, *arguments: Any, **options: Any) -> Call:
    """Make a call of an operation's method, as a provider's method makes it of the same arguments.

    Making checks nothing. The call can be checked, run on a plugin's object, and compared with the output.
    """
    call: Call = operations.get(operation).calls()[method](*arguments, **options)
    return call


def find_unsupported(
    call: Call, capabilities: HostCapabilities, *, operation: str, need: HostNeed
) -> str | None:
    """Name the part of a call beyond some capabilities; None if they cover the call."""
    return _loaded("", None, capabilities, operation, need).reason_against(call)


def run_call(call: Call, backend: Any, *, plugin: str, need: HostNeed) -> tuple[Any, str | None]:
    """Run a call on an object without the checks of its inputs, and hold the output against the contract.

    Waits for the device.

    :param backend: object with the operation's methods.
    :param plugin: name of the plugin of the object, which the ranks of a collective call compare.
    :param need: need that the object was built for.
    :returns: the output; its fault as needed and found, None if form and values are right.
    """
    from tokendraw.calls.sharded import ShardedSample

    if isinstance(call, ShardedSample) and isinstance(need, Need):
        call.agree(plugin, need, None)
    output = call.run(backend)
    return output, call.output_check(need)(output) or call.wrong_values(output, need)


def dispatch_call(
    call: Call,
    backend: Any,
    *,
    operation: str,
    resolution: Resolution,
    capabilities: HostCapabilities,
    device: torch.device,
    need: HostNeed,
) -> Any:
    """Check a call and run it on an object, like a provider with this object and no other.

    :param backend: object with the operation's methods.
    :param resolution: the decision for the plugin of the object.
    :param capabilities: capabilities of the plugin in this operation.
    :param device: device of the call's tensors.
    :param need: need that the object was built for.
    :raises SamplerUnavailableError: the call asks for more than the capabilities offer.
    :raises InvalidInputError: the arguments do not fit each other, the device or the need.
    """
    from tokendraw.calls.dispatch import dispatch
    from tokendraw.calls.negotiator import Negotiator
    from tokendraw.calls.selection import Selection
    from tokendraw.calls.sharded import ShardedSample, dispatch_over_ranks

    loaded = _loaded(resolution.chosen, backend, capabilities, operation, need)
    negotiator = Negotiator(device, need, selections=[Selection(resolution=resolution, backend=loaded)])
    if isinstance(call, ShardedSample):
        return dispatch_over_ranks(negotiator, operations.get(operation), call)
    return dispatch(negotiator, operations.get(operation), call)


def _loaded(
    name: str, backend: Any, capabilities: HostCapabilities, operation: str, need: HostNeed
) -> LoadedBackend:
    from tokendraw.calls.selection import LoadedBackend

    unsupported = operations.get(operation).unsupported(capabilities, need)
    return LoadedBackend(name, backend, capabilities, unsupported)


class InstalledPlugin:
    """An installed plugin on one device.

    :param name: name that users select the plugin by.
    :param device: None: the accelerator if torch sees one, else the CPU.
    :param source: who asks for the plugin, for messages: ``the conformance kit``.
    :ivar device: Device that the plugin computes on, with its index.
    :ivar host: Facts about the device.
    """

    def __init__(self, name: str, device: torch.device | str | None, source: str) -> None:
        self.name = name
        self.device, self.host = find_device(device)
        choice = replace(settings.read_settings().choice(name), source=source)
        self._discovery = gather(self.host, choice)

    def candidates(self, operation: str, need: HostNeed) -> tuple[Candidate, ...]:
        """Judge the claimants of the name for an operation and a need."""
        found = self._discovery.candidates(operations.get(operation), need)
        return tuple(candidate for candidate in found if candidate.name == self.name)

    def capabilities(self, operation: str) -> HostCapabilities:
        """Return the plugin's capabilities in an operation on this device."""
        offered: HostCapabilities = self._discovery.offered(self.name, operations.get(operation))
        return offered

    def build(self, operation: str, need: HostNeed) -> Any:
        """Build what the plugin has for an operation, and prove it; a PluginError has the reason in words."""
        from tokendraw.backends import proof

        hooks, capabilities = self._discovery.hooks[self.name], self.capabilities(operation)
        return proof.build(operations.get(operation), hooks, capabilities, self.device, need)

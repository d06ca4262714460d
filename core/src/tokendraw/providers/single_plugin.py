"""One plugin by itself, as tests and benchmarks call it: judged, built, called; no companion and no fallback."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokendraw import operations
from tokendraw.backends.description import HostCapabilities, HostNeed
from tokendraw.backends.discovery import settings
from tokendraw.backends.resolution.candidate import Candidate, Resolution
from tokendraw.providers.load import find_device, gather

if TYPE_CHECKING:
    import torch

    from tokendraw.calls.call import Call


def make_call(operation: str, method: str, *arguments: Any, **options: Any) -> Call:
    """Make a call of an operation's method, as a provider's method makes it of the same arguments.

    Making checks nothing. The call can be checked, run on a plugin's object, and compared with the output.
    """
    call: Call = operations.find_operation(operation).calls()[method](*arguments, **options)
    return call


def find_unsupported(
    call: Call, capabilities: HostCapabilities, *, operation: str, need: HostNeed
) -> str | None:
    """Name the part of a call beyond some capabilities; None if they cover the call."""
    from tokendraw.calls.routing import LoadedBackend

    record = operations.find_operation(operation)
    return LoadedBackend.of(record, "", None, capabilities, need).reason_against(call)


def run_call(call: Call, backend: Any, *, need: HostNeed) -> tuple[Any, str | None]:
    """Run a call on an object without the checks of its inputs, and compare the output with the contract.

    Waits for the device.

    :param need: need that the object was built for.
    :returns: the output; its fault as needed and found, None if form and values are right.
    """
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

    :param resolution: the decision for the plugin of the object.
    :param capabilities: those of the plugin in this operation.
    :param need: need that the object was built for.
    :raises SamplerUnavailableError: the call asks for more than the capabilities offer.
    :raises InvalidInputError: the arguments do not fit each other, the device or the need.
    """
    from tokendraw.calls.dispatch import dispatch
    from tokendraw.calls.negotiator import Negotiator
    from tokendraw.calls.routing import LoadedBackend, Selection

    record = operations.find_operation(operation)
    loaded = LoadedBackend.of(record, resolution.chosen, backend, capabilities, need)
    negotiator = Negotiator(device, need, selected=[Selection(resolution=resolution, backend=loaded)])
    return dispatch(negotiator, record, call)


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
        found = self._discovery.candidates(operations.find_operation(operation), need)
        return tuple(candidate for candidate in found if candidate.name == self.name)

    def capabilities(self, operation: str) -> HostCapabilities:
        """Return the plugin's capabilities in an operation on this device."""
        offered: HostCapabilities = self._discovery.offered(self.name, operations.find_operation(operation))
        return offered

    def build(self, operation: str, need: HostNeed) -> Any:
        """Build what the plugin has for an operation, and prove it; a PluginError has the reason in words."""
        from tokendraw.backends import proof

        hooks, capabilities = self._discovery.hooks[self.name], self.capabilities(operation)
        return proof.build(operations.find_operation(operation), hooks, capabilities, self.device, need)

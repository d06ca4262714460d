"""Lists installed plugins, decides among them, and loads operations: has a negotiator decide, build and prove.

At the end one plugin by itself, as tests and benchmarks call it; no companion and no fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import tokendraw.operations as _registry
from tokendraw._torch.importing import require_torch, untraced
from tokendraw.backends import machine
from tokendraw.backends.description import (
    LOGPROBS_MODES,
    Host,
    HostCapabilities,
    HostNeed,
    LogprobsMode,
    Need,
    Operation,
)
from tokendraw.backends.discovery import settings as _settings
from tokendraw.backends.discovery.discover import Discovery
from tokendraw.backends.discovery.discover import gather as _gather
from tokendraw.backends.resolution.candidate import Candidate, Choice, Resolution
from tokendraw.backends.resolution.decide import decide as _decide
from tokendraw.errors import InvalidParameterError, SettingsWarning, announce, format_value, one_of, type_name

if TYPE_CHECKING:
    import torch

    from tokendraw.backends.discovery.settings import Settings
    from tokendraw.calls.call import Call
    from tokendraw.calls.dispatch import Provider
    from tokendraw.calls.negotiator import Negotiator
    from tokendraw.edits.process import LogitsProcessor
    from tokendraw.operations.row_methods import SampleProvider, Sampler, VerifyProvider

_Device: TypeAlias = "str | torch.device | None"
_Need: TypeAlias = HostNeed | None
_Name: TypeAlias = str | Mapping[str, Sequence[str]] | None

_MAX_NAMES = 3  # a plugin and its two companions


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
    about = _registry.find_operation(operation)
    need = needed(about, need)
    choice = _settings.read_settings().choice(binds=_registry.is_own(about))
    return gather(host or machine.detect_host(), choice).candidates(about, need)


@untraced
def discover_all() -> dict[str, tuple[Candidate, ...]]:
    discovery = gather(machine.detect_host(), _settings.read_settings().choice())
    records = map(_registry.find_operation, _registry.operation_names())
    return {about.name: discovery.candidates(about, about.need()) for about in records}


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
    :raises SamplerUnavailableError: an explicit choice cannot be honoured, or nothing serves; has ``decisions``.
    :raises DuplicatePluginError: two distributions claim the chosen name or, by default, one in the user's order.
    :raises SettingsError: a ``TOKENDRAW_*`` variable or the configuration file is malformed.
    :raises InvalidParameterError: no such ``device`` or ``operation``, or ``need`` is not of the operation's type.
    """
    about = _registry.find_operation(operation)
    if choice is None:
        choice = _settings.read_settings().choice(binds=_registry.is_own(about))
    host = machine.detect_host(None if device is None else str(device)) if host is None else host
    need = needed(about, need)
    if candidates is None:
        candidates = gather(host, choice).candidates(about, need)
    return _decide(candidates, host, need, choice, operation=about)


def decide(
    candidates: Iterable[Candidate], host: Host, need: HostNeed, choice: Choice, *, operation: str = "sample"
) -> Resolution:
    """Decide from facts alone: a pure function that raises as :func:`resolve` does."""
    about = _registry.find_operation(operation)
    return _decide(candidates, host, needed(about, need), choice, operation=about)


def gather(host: Host, choice: Choice) -> Discovery:
    return _gather(host, choice, _registry.capabilities_type)


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


@overload
def load(
    operation: Literal["sample"], plugin: _Name = None, *, device: _Device = None, need: _Need = None
) -> SampleProvider: ...
@overload
def load(
    operation: Literal["verify"], plugin: _Name = None, *, device: _Device = None, need: _Need = None
) -> VerifyProvider: ...
@overload
def load(
    operation: Literal["process_logits"], plugin: _Name = None, *, device: _Device = None, need: _Need = None
) -> LogitsProcessor: ...
@overload
def load(operation: str, plugin: _Name = None, *, device: _Device = None, need: _Need = None) -> Any: ...
@untraced
def load(operation: str, plugin: _Name = None, *, device: _Device = None, need: _Need = None) -> Provider:
    """Find the best plugin of an operation for a device, build and prove the backend.

    The result has ``name``, ``resolution`` and the methods of the operation. Warns and raises as :func:`load_sampler`.

    :param operation: such as ``sample``; ``tokendraw list`` shows them.
    :param plugin: name of the one to use, or ``choices`` of a loaded one, as in :func:`load_sampler`; None: for an
        operation of the core what ``TOKENDRAW_SAMPLER`` or the configuration file says, else the best.
    :param device: None: the accelerator if torch sees one, else the CPU.
    :param need: what it has to do, of the operation's need type; None: what that says by default.
    :raises InvalidParameterError: no such ``operation`` or ``device``, or ``need`` is not of the operation's type.
    """
    record = _registry.find_operation(operation)
    need = needed(record, need)
    check_name("plugin", plugin)
    settings = _settings.read_settings()
    choice = settings.choice(plugin, "the argument plugin=", binds=_registry.is_own(record))
    negotiator, discovery = open_negotiator(settings, choice, device, need)
    negotiator.select(record, discovery)
    provider: Provider = record.provider()(negotiator)
    return provider


@untraced
def load_sampler(
    sampler: _Name = None,
    *,
    device: _Device = None,
    logprobs_mode: LogprobsMode = "raw_logprobs",
    need: Need | None = None,
    operations: Iterable[str] = ("sample",),
    companion: bool = True,
) -> Sampler:
    """Find the best sampler for a device, build and prove the sampler.

    What the user should know is said once per process, as :class:`SamplerFallbackWarning`,
    :class:`UntestedUpstreamWarning` or :class:`SettingsWarning`; ``TOKENDRAW_STRICT=1`` raises these instead.

    :param sampler: name of the one to use; None: what ``TOKENDRAW_SAMPLER`` or the configuration file says,
        else the best. Or :attr:`Sampler.choices` of another rank: exactly these, which no other one replaces.
    :param device: None: the accelerator if torch sees one, else the CPU.
    :param logprobs_mode: what rows get that ask for logprobs.
    :param need: what else it has to do; its ``logprobs_mode`` holds unless the argument is given too.
    :param operations: what is negotiated, built and proven now; ``sample`` always is. Who serves one of the others
        that a :class:`Sampler` has methods for is settled by :meth:`Sampler.warmup`, or by its first call.
    :param companion: whether another sampler may be built to draw the rows that the chosen one cannot. False loads
        exactly one, from which none takes over where a call fails.
    :raises SamplerUnavailableError: an explicit choice cannot be honoured, nothing serves, or torch fails to import.
    :raises DuplicatePluginError: two distributions claim the chosen name or, by default, one in the user's order.
    :raises SettingsError: a ``TOKENDRAW_*`` variable or the configuration file is malformed.
    :raises InvalidParameterError: ``device``, ``logprobs_mode`` or one of ``operations`` is not one that there is.
    """
    check_name("sampler", sampler)
    if logprobs_mode not in LOGPROBS_MODES:
        raise InvalidParameterError(
            f"'logprobs_mode' needs {one_of(LOGPROBS_MODES)}, found {logprobs_mode!r}. Pass one of these."
        )
    need = Need() if need is None else need
    if logprobs_mode != Need().logprobs_mode:
        need = replace(need, logprobs_mode=logprobs_mode)

    sample = _registry.find_operation("sample")
    needed(sample, need)
    if isinstance(operations, str):
        raise InvalidParameterError(
            f"'operations' needs a sequence of names, found {format_value(operations)}. Pass ({operations!r},)."
        )
    others = [record for record in map(_registry.find_operation, operations) if record is not sample]
    settings = _settings.read_settings()
    choice = settings.choice(sampler)
    negotiator, discovery = open_negotiator(settings, choice, device, need, companions=companion)
    from tokendraw.operations.row_methods import Sampler

    for record in others:
        if not issubclass(Sampler, record.provider()):
            raise InvalidParameterError(
                f"'operations' needs what a Sampler has methods for, found {record.name!r}. "
                f"Use tokendraw.load({record.name!r})."
            )
    for record in (sample, *others):
        negotiator.select(record, discovery)
    return Sampler(negotiator)


def check_name(argument: str, plugin: object) -> None:
    if isinstance(plugin, Mapping):
        for operation, names in plugin.items():
            is_list = isinstance(names, (tuple, list)) and all(isinstance(name, str) for name in names)
            if not is_list or not 1 <= len(names) <= _MAX_NAMES:
                raise InvalidParameterError(
                    f"'{argument}' needs one to three names for {operation!r}, found {format_value(names)}. "
                    "Pass 'choices' of a loaded sampler."
                )
    elif plugin is not None and not isinstance(plugin, str):
        found = type(plugin).__name__
        raise TypeError(f"'{argument}' needs a plugin's name or None, found {found}. Pass a str.")


def open_negotiator(
    settings: Settings,
    choice: Choice,
    device: _Device,
    need: HostNeed,
    *,
    companions: bool = True,
    before_build: Callable[[str], None] | None = None,
) -> tuple[Negotiator, Discovery]:
    """Gather the facts about a device and the plugins, and warn once of mistakes in the settings."""
    target, host = find_device(device)
    from tokendraw.calls.negotiator import Negotiator

    discovery = gather(host, choice)
    for text in settings.all_warnings(c.name for c in discovery.plugins):
        announce(SettingsWarning, text, strict=settings.strict)
    negotiator = Negotiator(
        target,
        need,
        partial(gather, host, choice),
        strict=settings.strict,
        debug=settings.debug,
        companions=companions,
        before_build=before_build,
    )
    return negotiator, discovery


def find_device(device: _Device) -> tuple[torch.device, Host]:
    """Find a device with index, as on a tensor, and the facts about the device.

    :param device: None: the accelerator if torch sees one, else the CPU.
    :raises SamplerUnavailableError: torch cannot be imported.
    :raises InvalidParameterError: torch has no such device.
    """
    torch = require_torch()
    host = machine.detect_host(None if device is None else str(device))
    from tokendraw._torch.tensors import device_of

    target = device_of(device or ("cuda" if host.device_type == "rocm" else host.device_type))
    if target.type == "cpu":
        return torch.device("cpu"), host  # tensors on cpu:0 say cpu
    if target.type == "cuda" and target.index is None:
        target = torch.device("cuda", torch.cuda.current_device())
    return target, host


def make_call(operation: str, method: str, *arguments: Any, **options: Any) -> Call:
    """Make a call of an operation's method, as a provider's method makes it of the same arguments.

    Making checks nothing. The call can be checked, run on a plugin's object, and compared with the output.
    """
    call: Call = _registry.find_operation(operation).calls()[method](*arguments, **options)
    return call


def find_unsupported(
    call: Call, capabilities: HostCapabilities, *, operation: str, need: HostNeed
) -> str | None:
    """Name the part of a call beyond some capabilities; None if they cover the call."""
    from tokendraw.calls.routing import LoadedBackend

    record = _registry.find_operation(operation)
    return LoadedBackend.of(record, "", None, capabilities, need).reason_against(call)


def run_call(call: Call, backend: Any, *, need: HostNeed) -> tuple[Any, str | None]:
    """Run a call on an object without the checks of its inputs, and compare the output with the contract.

    Waits for the device. Returns the output, and its fault as needed and found, None if form and values are right.
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

    :param resolution: the decision for the plugin of the object, which was built for ``need`` with ``capabilities``.
    :raises SamplerUnavailableError: the call asks for more than the capabilities offer.
    :raises InvalidInputError: the arguments do not fit each other, the device or the need.
    """
    from tokendraw.calls.dispatch import dispatch
    from tokendraw.calls.negotiator import Negotiator
    from tokendraw.calls.routing import LoadedBackend, Selection

    record = _registry.find_operation(operation)
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
        choice = replace(_settings.read_settings().choice(name), source=source)
        self._discovery = gather(self.host, choice)

    def candidates(self, operation: str, need: HostNeed) -> tuple[Candidate, ...]:
        """Judge the claimants of the name for an operation and a need."""
        found = self._discovery.candidates(_registry.find_operation(operation), need)
        return tuple(candidate for candidate in found if candidate.name == self.name)

    def capabilities(self, operation: str) -> HostCapabilities:
        """Return the plugin's capabilities in an operation on this device."""
        offered: HostCapabilities = self._discovery.offered(self.name, _registry.find_operation(operation))
        return offered

    def build(self, operation: str, need: HostNeed) -> Any:
        """Build what the plugin has for an operation, and prove it; a PluginError has the reason in words."""
        from tokendraw.calls.negotiator import build

        hooks, capabilities = self._discovery.hooks[self.name], self.capabilities(operation)
        return build(_registry.find_operation(operation), hooks, capabilities, self.device, need)

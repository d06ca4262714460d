"""Loads providers: gathers facts, decides, builds and proves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tokendraw import operations as _registry
from tokendraw._torch.importing import require_torch
from tokendraw._torch.untraced import untraced
from tokendraw.backends.description.capabilities import LOGPROBS_MODES, HostNeed, LogprobsMode, Need
from tokendraw.backends.description.host import Host
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.discovery import settings as _settings
from tokendraw.backends.machine import detect
from tokendraw.backends.resolution.candidate import Choice
from tokendraw.errors.exceptions import InvalidParameterError, SettingsWarning
from tokendraw.errors.formatting import format_value, one_of
from tokendraw.errors.notices import announce
from tokendraw.providers.resolve import gather, needed

if TYPE_CHECKING:
    import torch

    from tokendraw.backends.discovery.settings import Settings
    from tokendraw.calls.session import Session
    from tokendraw.providers.provider import Provider
    from tokendraw.providers.sampler import Sampler


@untraced
def load(
    operation: str,
    plugin: str | None = None,
    *,
    device: str | torch.device | None = None,
    need: HostNeed | None = None,
) -> Provider:
    """Find the best provider of an operation for a device, build it, and prove it with a call.

    What comes back has ``name``, ``resolution`` and the methods of the operation. What the user should know is said as
    :func:`load_sampler` says it.

    :param operation: such as ``sample``; ``tokendraw resolve --help`` lists them.
    :param plugin: name of the one to use; None: what ``TOKENDRAW_SAMPLER`` or the configuration file says, else the
        best.
    :param device: None: the accelerator if torch sees one, else the CPU.
    :param need: what it has to do, of the operation's need type; None: what that says by default.
    :raises SamplerUnavailableError: an explicit choice cannot be honoured, nothing is available, or torch cannot be
        imported.
    :raises DuplicatePluginError: two distributions claim the chosen name or, by default, one in the user's order.
    :raises SettingsError: a ``TOKENDRAW_*`` variable or the configuration file is malformed.
    :raises InvalidParameterError: ``operation`` or ``device`` is not one that there is, or ``need`` is not of the
        operation's type.
    """
    about = _registry.get(operation)
    need = needed(about, need)
    check_name("plugin", plugin)
    settings = _settings.read_settings()
    session = open_session(settings, settings.choice(plugin, "the argument plugin="), device, need)
    from tokendraw.providers.provider import Provider

    provider = Provider(session, about)
    provider.prepare()
    return provider


@untraced
def load_sampler(
    sampler: str | None = None,
    *,
    device: str | torch.device | None = None,
    logprobs_mode: LogprobsMode = "raw_logprobs",
    need: Need | None = None,
    operations: Iterable[str] = ("sample",),
    companion: bool = True,
) -> Sampler:
    """Find the best sampler for a device, build it, and prove it with a draw.

    What the user should know is said once per process, as :class:`SamplerFallbackWarning`,
    :class:`UntestedUpstreamWarning` or :class:`SettingsWarning`; ``TOKENDRAW_STRICT=1`` raises these instead.

    :param sampler: name of the one to use; None: what ``TOKENDRAW_SAMPLER`` or the configuration file says,
        else the best.
    :param device: None: the accelerator if torch sees one, else the CPU.
    :param logprobs_mode: what rows get that ask for logprobs.
    :param need: what else it has to do; its ``logprobs_mode`` holds unless the argument is given too.
    :param operations: what is negotiated, built and proven now; ``sample`` always is. Who serves one of the others
        that a :class:`Sampler` has methods for is settled by :meth:`Sampler.warmup`, or by its first call.
    :param companion: whether another sampler may be built to draw the rows that the chosen one cannot. False loads
        exactly one, from which none takes over where a call fails.
    :raises SamplerUnavailableError: an explicit choice cannot be honoured, nothing is available, or torch cannot be
        imported.
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

    settings = _settings.read_settings()
    choice = settings.choice(sampler)
    return load_chosen(settings, choice, device, need, operations=operations, companion=companion)


def load_chosen(
    settings: Settings,
    choice: Choice,
    device: str | torch.device | None,
    need: Need,
    *,
    operations: Iterable[str] = ("sample",),
    companion: bool = True,
) -> Sampler:
    """Load a sampler as :func:`load_sampler` does, for whoever asks in another way than by its argument.

    :param choice: the settings' own, with what was asked for and by whom.
    """
    sample = _registry.get("sample")
    needed(sample, need)
    others = [about for about in _known(operations) if about is not sample]
    session = open_session(settings, choice, device, need, companions=companion)
    from tokendraw.providers.provider import methods_of
    from tokendraw.providers.sampler import Sampler

    for about in others:
        if not all(hasattr(Sampler, method) for method in methods_of(about)):
            raise InvalidParameterError(
                f"'operations' needs what a Sampler has methods for, found {about.name!r}. "
                f"Use tokendraw.load({about.name!r})."
            )
    loaded = Sampler(session)
    loaded.prepare()
    for about in others:
        loaded.prepare(about.name)
    return loaded


def check_name(argument: str, plugin: object) -> None:
    """Refuse what is no plugin's name.

    :raises TypeError: names the argument.
    """
    if plugin is not None and not isinstance(plugin, str):
        raise TypeError(
            f"'{argument}' needs a plugin's name or None, found {type(plugin).__name__}. Pass a str."
        )


def _known(names: Iterable[str]) -> list[Operation]:
    if isinstance(names, str):
        raise InvalidParameterError(
            f"'operations' needs a sequence of names, found {format_value(names)}. Pass ({names!r},)."
        )
    return [_registry.get(name) for name in names]


def open_session(
    settings: Settings,
    choice: Choice,
    device: str | torch.device | None,
    need: HostNeed,
    *,
    companions: bool = True,
    before_build: Callable[[str], None] | None = None,
) -> Session:
    """Gather the facts about a device and the plugins, and say once what is wrong with the settings.

    :param before_build: called with the name of each plugin that is about to be built.
    """
    target, host = _target(device)
    from tokendraw.calls.negotiation import Negotiation
    from tokendraw.calls.session import Session

    discovery = gather(host, choice)
    for text in settings.all_warnings(c.name for c in discovery.plugins):
        announce(SettingsWarning, text, strict=settings.strict)
    facts = Negotiation(
        discovery=discovery,
        need=need,
        device=target,
        companions=companions,
        before_build=before_build or _nothing,
    )
    return Session(target, need, facts, strict=settings.strict, debug=settings.debug)


def _nothing(name: str) -> None:
    return


def _target(device: str | torch.device | None) -> tuple[torch.device, Host]:
    """Find the device with its index, as torch writes it on a tensor, and the facts about it."""
    torch = require_torch()
    host = detect.detect_host(None if device is None else str(device))
    name = device or ("cuda" if host.device_type == "rocm" else host.device_type)
    try:
        target = torch.device(name)
    except RuntimeError as error:
        raise InvalidParameterError(
            f"'device' needs a device that torch has, found {device!r}. Pass one such as cpu or cuda."
        ) from error
    if target.type == "cpu":
        return torch.device("cpu"), host  # tensors on cpu:0 say cpu
    if target.type == "cuda" and target.index is None:
        target = torch.device("cuda", torch.cuda.current_device())
    return target, host

"""Where facts, decision and proof meet: the providers of an operation that are built and proven."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tokendraw import operations
from tokendraw._discovery import settings as _settings
from tokendraw._exchange.capabilities import LOGPROBS_MODES, LogprobsMode, Need
from tokendraw._exchange.host import Host
from tokendraw._loading.resolve import gather
from tokendraw._loading.warnings import warn_of
from tokendraw._machine import detect
from tokendraw._messages.announce import announce
from tokendraw._messages.errors import InvalidParameterError, SettingsWarning
from tokendraw._messages.words import one_of
from tokendraw._resolution.candidate import Choice
from tokendraw._torch.importing import require_torch
from tokendraw._torch.untraced import untraced

if TYPE_CHECKING:
    import torch

    from tokendraw._discovery.settings import Settings
    from tokendraw._loading.sampler import Sampler


@untraced
def load_sampler(
    sampler: str | None = None,
    *,
    device: str | torch.device | None = None,
    logprobs_mode: LogprobsMode = "raw_logprobs",
    need: Need | None = None,
) -> Sampler:
    """Find the best sampler for a device, build it, and prove it with a draw.

    What the user should know is said once per process, as :class:`SamplerFallbackWarning`,
    :class:`UntestedUpstreamWarning` or :class:`SettingsWarning`; ``TOKENDRAW_STRICT=1`` raises these instead.

    :param sampler: name of the one to use; None: what ``TOKENDRAW_SAMPLER`` or the configuration file says,
        else the best.
    :param device: None: the accelerator if torch sees one, else the CPU.
    :param logprobs_mode: what rows get that ask for logprobs.
    :param need: what else it has to do; its ``logprobs_mode`` holds unless the argument is given too.
    :raises SamplerUnavailableError: an explicit choice cannot be honoured, nothing is available, or torch cannot be
        imported.
    :raises DuplicatePluginError: two distributions claim the chosen name or, by default, any name in use.
    :raises SettingsError: a ``TOKENDRAW_*`` variable or the configuration file is malformed.
    :raises InvalidParameterError: ``device`` or ``logprobs_mode`` is not one that there is.
    """
    if sampler is not None and not isinstance(sampler, str):
        raise TypeError(
            f"'sampler' needs a plugin's name or None, found {type(sampler).__name__}. Pass a str."
        )
    if logprobs_mode not in LOGPROBS_MODES:
        raise InvalidParameterError(
            f"'logprobs_mode' needs {one_of(LOGPROBS_MODES)}, found {logprobs_mode!r}. Pass one of these."
        )
    need = Need() if need is None else need
    if logprobs_mode != Need().logprobs_mode:
        need = replace(need, logprobs_mode=logprobs_mode)

    settings = _settings.read_settings()
    return load_chosen(settings, settings.choice(sampler), device, need)


def load_chosen(
    settings: Settings,
    choice: Choice,
    device: str | torch.device | None,
    need: Need,
) -> Sampler:
    """As :func:`load_sampler`, for whoever asks in another way than by its argument.

    :param choice: the settings' own, with what was asked for and by whom.
    """
    strict = settings.strict
    target, host = _target(device)
    from tokendraw._loading.sampler import Sampler
    from tokendraw._serving.negotiation import Negotiation

    discovery = gather(host, need, choice)
    for text in settings.all_warnings(c.name for c in discovery.plugins):
        announce(SettingsWarning, text, strict=strict)
    facts, serving = Negotiation(discovery=discovery, device=target).settle(operations.get("sample"))
    warn_of(serving.resolution, strict=strict, once_for="load")
    return Sampler.negotiated(facts, serving, strict=strict, debug=settings.debug)


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

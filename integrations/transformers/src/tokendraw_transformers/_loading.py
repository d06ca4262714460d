"""Keeps loaded samplers, because to negotiate and prove one may take longer than a call of ``generate``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable

import torch

import tokendraw
from tokendraw import InvalidParameterError, Need, Sampler
from tokendraw.resolution import read_settings

_lock = threading.Lock()
_kept: dict[Hashable, Sampler] = {}
_MOST_KEPT = 16
"""Number of samplers that are kept: settings may change at every call."""


def loaded(
    sampler: str | Sampler | None, device: torch.device, need: Need, logprobs_mode: str | None = None
) -> Sampler:
    """Load a sampler, or return the one that was loaded before with the same arguments, settings and packages.

    It is the same object, so a sampler whose call failed stays replaced, and is not warned of again.

    :param sampler: name of a plugin; None: the best; one that is loaded is returned as it is.
    :param logprobs_mode: as in :func:`tokendraw.load_sampler`; None: its default.
    :raises InvalidParameterError: ``sampler`` is neither, or there is no such mode.
    """
    if isinstance(sampler, Sampler):
        return sampler
    if sampler is not None and not isinstance(sampler, str):
        raise InvalidParameterError(
            f"'sampler' needs the name of a plugin or what tokendraw.load_sampler returned, found a "
            f"{type(sampler).__name__}. Pass one of these, or leave it out."
        )
    mode = "raw_logprobs" if logprobs_mode is None else logprobs_mode
    # a decision also depends on the settings in force, and on where packages are found
    key = (sampler, device, need, repr(mode), read_settings(), tuple(sys.path))
    with _lock:
        if key not in _kept:
            found = tokendraw.load_sampler(
                sampler,
                device=device,
                logprobs_mode=mode,  # type: ignore[arg-type]  # load_sampler refuses what is not a mode
                need=need,
            )
            while len(_kept) >= _MOST_KEPT:
                del _kept[next(iter(_kept))]
            _kept[key] = found
        return _kept[key]

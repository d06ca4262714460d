"""Caches loaded samplers, since negotiation and proof may take longer than a call of ``generate``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch

import tokendraw
from tokendraw import InvalidParameterError, Need, Sampler
from tokendraw.resolution import read_settings

_lock = threading.Lock()
_cache: dict[Hashable, Any] = {}
_MAX_CACHE_ENTRIES = 16
"""Number of objects that are kept: settings may change at every call."""


def load_sampler(
    sampler: str | Sampler | None, device: torch.device, need: Need, logprobs_mode: str | None = None
) -> Sampler:
    """Load a sampler, or return the sampler of an earlier load with the same arguments, settings and packages.

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
    value: Sampler = _cached(
        (sampler, device, need, repr(mode)),
        lambda: tokendraw.load_sampler(
            sampler,
            device=device,
            logprobs_mode=mode,  # type: ignore[arg-type]  # load_sampler refuses what is not a mode
            need=need,
        ),
    )
    return value


def load_processor(device: torch.device) -> Any:
    """Load the best processor of logits for a device, or return the processor of an earlier load.

    :raises SamplerUnavailableError: no plugin in force has one.
    """
    return _cached(("process_logits", device), lambda: tokendraw.load("process_logits", device=device))


def _cached(key: tuple[Hashable, ...], load: Callable[[], Any]) -> Any:
    # a decision also depends on the settings in force, and on where packages are found
    key = (*key, read_settings(), tuple(sys.path))
    with _lock:
        if key not in _cache:
            value = load()
            while len(_cache) >= _MAX_CACHE_ENTRIES:
                del _cache[next(iter(_cache))]
            _cache[key] = value
        return _cache[key]

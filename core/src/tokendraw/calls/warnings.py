"""Gives the warnings about a decision, each once per process."""

from __future__ import annotations

from collections.abc import Hashable

from tokendraw.backends.resolution.advice import using
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.errors.exceptions import SamplerFallbackWarning, UntestedUpstreamWarning
from tokendraw.errors.notices import announce


def warn_of(resolution: Resolution, *, strict: bool, once_for: Hashable = None) -> None:
    """Warn of what a decision passed over, once for ``once_for``, and of the untested versions that it uses.

    :param strict: raise the first of these warnings instead.
    """
    if resolution.fallback:
        outcome = using(resolution.chosen)
        announce(
            SamplerFallbackWarning, resolution.fallback, strict=strict, once_for=once_for, outcome=outcome
        )
    for text in resolution.untested:
        announce(UntestedUpstreamWarning, text, strict=strict)

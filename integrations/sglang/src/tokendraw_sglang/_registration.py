"""Offers the sampler to SGLang, and makes it when ``--sampling-backend tokendraw`` asks for it."""

from __future__ import annotations

import functools
from typing import Any

from tokendraw.engines import EngineState
from tokendraw_sglang._fit import state
from tokendraw_sglang._messages import left_alone, log, spoken

BACKEND = "tokendraw"
"""The value of ``--sampling-backend``."""


def register() -> None:
    """Register the sampler and the hooks that carry seeds; the entry point that SGLang calls in every process.

    Called again it does nothing. Raises nothing: what goes wrong is logged, and SGLang goes on without the adapter.
    """
    try:
        _register_once()
    except Exception as error:
        log.warning("%s", left_alone(f"registration raised {spoken(error)}"))


@functools.cache
def _register_once() -> None:
    from sglang.srt.layers.sampler import register_sampler_backend

    found = state()
    register_sampler_backend(BACKEND, functools.partial(make_sampler, found))
    if found.applies:
        from tokendraw_sglang._seeds import hook_seeds

        hook_seeds()


def make_sampler(found: EngineState) -> Any:
    """Make the sampler of this process, or SGLang's own where tokendraw cannot draw; one line of the log says which.

    :param found: what the adapter found of SGLang when it was registered.
    :returns: an instance of ``sglang.srt.layers.sampler.Sampler``.
    """
    from sglang.srt.runtime_context import get_exec

    if not found.applies:
        return _engines_own(found.reason)
    if get_exec().deterministic.rl_on_policy_target is not None:
        return _engines_own("rl_on_policy_target asks for draws that match a trainer bit for bit")
    try:
        from tokendraw_sglang._sampler import load

        sampler, drawn_by = load()
    except Exception as error:
        return _engines_own(spoken(error))
    log.info("tokendraw: sampler replaced (%s, SGLang %s)", drawn_by, found.installed)
    return sampler


def _engines_own(reason: str) -> Any:
    """Make SGLang's own sampler, and set the backend that it takes where none is asked for."""
    from sglang.srt.layers.sampler import Sampler
    from sglang.srt.runtime_context import get_context

    from tokendraw_sglang._own_backend import own_backend

    backend = own_backend()
    log.warning("%s", left_alone(reason, backend))
    get_context().override("tokendraw-sglang", sampling_backend=backend)
    return Sampler()

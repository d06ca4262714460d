"""Offers the sampler to SGLang, and makes it under ``--sampling-backend tokendraw``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tokendraw.engines import EngineState, choose_once, format_error
from tokendraw_sglang._engine import (
    BACKEND,
    KEPT,
    KEPT_WITH_BACKEND,
    OWN_DETERMINISM,
    default_backend,
    log,
    state,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def register() -> None:
    """Register the sampler and the hooks for seeds; SGLang calls this entry point in every process.

    Called again it does nothing. Raises nothing: failures are logged, and SGLang goes on without the adapter.
    """
    try:
        _register_once()
    except Exception as error:
        log.warning(KEPT, f"registration raised {format_error(error).removesuffix('.')}")


@functools.cache
def _register_once() -> None:
    from sglang.srt.layers.sampler import register_sampler_backend

    engine_state = state()
    register_sampler_backend(BACKEND, functools.partial(make_sampler, engine_state))
    if engine_state.applies:
        from tokendraw_sglang._rules import SOURCE, hook_backend, hook_rules, hook_seeds

        hook_seeds()
        reason = hook_rules()
        if reason is not None:
            log.warning("tokendraw: %s is not read: %s", SOURCE, reason)
        reason = hook_backend()
        if reason is not None:
            log.warning(OWN_DETERMINISM, reason)


def make_sampler(engine_state: EngineState) -> Any:
    """Make the sampler of this process, or SGLang's where tokendraw cannot draw, with a line in the log.

    :param engine_state: result of :func:`~tokendraw_sglang.state` at registration.
    :returns: an instance of ``sglang.srt.layers.sampler.Sampler``.
    """
    from sglang.srt.runtime_context import get_exec

    if not engine_state.applies:
        return _sglang_sampler(engine_state.reason)
    if get_exec().deterministic.rl_on_policy_target is not None:
        return _sglang_sampler("rl_on_policy_target asks for draws that match a trainer bit for bit")
    group = _group()
    try:
        from tokendraw_sglang._sampler import choose, load

        names = None if group is None else choose_once(choose, group)
        if isinstance(names, str):
            return _sglang_sampler(names)
        sampler, plugin_version = load(names)
    except Exception as error:
        if group is not None:
            raise
        return _sglang_sampler(format_error(error).removesuffix("."))
    log.info("tokendraw: sampler replaced (%s, SGLang %s)", plugin_version, engine_state.installed)
    from tokendraw_sglang._verification import hook_verification

    hook_verification(sampler)
    return sampler


def _group() -> ProcessGroup | None:
    """Return the group of the ranks that make a sampler together; None: a single rank does.

    All ranks that draw the same tokens are in it.
    """
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    return group.cpu_group if group.world_size > 1 else None


def _sglang_sampler(reason: str) -> Any:
    """Make SGLang's sampler, and set SGLang's default backend."""
    from sglang.srt.layers.sampler import Sampler
    from sglang.srt.runtime_context import get_context

    backend = default_backend()
    log.warning(KEPT_WITH_BACKEND, reason, backend)
    get_context().override("tokendraw-sglang", sampling_backend=backend)
    return Sampler()

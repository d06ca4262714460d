"""tokendraw draws the tokens of SGLang: ``sglang serve MODEL --sampling-backend tokendraw``.

SGLang finds :func:`register` by its entry point in ``sglang.srt.plugins``, tokendraw finds :func:`state` by the one in
``tokendraw.engines``. Importing this package imports neither torch nor SGLang.
"""

from __future__ import annotations

import functools
from typing import Any

from tokendraw.engines import EngineState, choose_once, format_error, rank_error
from tokendraw_sglang._engine import BACKEND, KEPT, KEPT_WITH_BACKEND, default_backend, log, state

__all__ = ["register", "state"]


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
        from tokendraw_sglang._requests import register_hooks

        register_hooks()


def make_sampler(engine_state: EngineState) -> Any:
    """Make the sampler of this process, or SGLang's where tokendraw cannot draw, with a line in the log.

    :param engine_state: result of :func:`~tokendraw_sglang.state` at registration.
    :returns: an instance of ``sglang.srt.layers.sampler.Sampler``.
    """
    from sglang.srt.runtime_context import get_exec, get_parallel

    if not engine_state.applies:
        return _sglang_sampler(engine_state.reason)
    if get_exec().deterministic.rl_on_policy_target is not None:
        return _sglang_sampler("rl_on_policy_target asks for draws that match a trainer bit for bit")
    ranks = get_parallel().tp_group  # all that draw the same tokens
    group = ranks.cpu_group if ranks.world_size > 1 else None
    try:
        from tokendraw_sglang._sampler import choose, load

        names = None if group is None else choose_once(choose, group)
        if isinstance(names, str):
            return _sglang_sampler(names)
        sampler, plugin_version = load(names)
    except Exception as error:
        if group is not None:
            raise rank_error(error) from error
        return _sglang_sampler(format_error(error).removesuffix("."))
    log.info("tokendraw: sampler replaced (%s, SGLang %s)", plugin_version, engine_state.installed)
    from tokendraw_sglang._verification import hook_verification

    hook_verification(sampler)
    return sampler


def _sglang_sampler(reason: str) -> Any:
    from sglang.srt.layers.sampler import Sampler
    from sglang.srt.runtime_context import get_context

    backend = default_backend()
    log.warning(KEPT_WITH_BACKEND, reason, backend)
    get_context().override("tokendraw-sglang", sampling_backend=backend)
    return Sampler()

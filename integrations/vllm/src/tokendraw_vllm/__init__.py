"""tokendraw draws the tokens of vLLM where this distribution is installed.

vLLM calls :func:`register` in each of its processes, through the entry point group ``vllm.general_plugins``. Importing
this package imports neither vLLM nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokendraw.engines import EngineState

__all__ = ["register", "state"]


def register() -> None:
    """Replace vLLM's samplers by tokendraw; unsupported parts stay, with a line in vLLM's log.

    May be called any number of times. Raises nothing: an exception here would end the engine.
    """
    from tokendraw.engines import format_error
    from tokendraw_vllm import _parts

    try:
        from tokendraw_vllm._engine import SWITCHED_OFF, compare_engine

        batch = compare_engine()
        if batch.applies:
            from tokendraw_vllm import _v1, v2

            _v1.install()
            v2.install()
            v2.rules.install()
        else:
            _parts.log_kept(batch.reason, is_asked_for=batch.reason == SWITCHED_OFF)
    except Exception as error:
        _parts.log_kept(f"registering raised {format_error(error)}")


def state() -> EngineState:
    """Say whether :func:`register` would change the installed vLLM. Imports vLLM, changes nothing."""
    from tokendraw_vllm._engine import compare_engine

    return compare_engine()

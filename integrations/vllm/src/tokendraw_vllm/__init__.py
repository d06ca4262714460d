"""tokendraw draws the tokens of vLLM, wherever this distribution is installed beside it.

vLLM calls :func:`register` in each of its processes, through the entry point group ``vllm.general_plugins``. Importing
this package imports neither vLLM nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokendraw.engines import EngineState

__all__ = ["register", "state"]


def register() -> None:
    """Put tokendraw in the place of vLLM's samplers; what does not fit is left alone, with one line in vLLM's log.

    May be called any number of times. Raises nothing: an exception here would end the engine.
    """
    from tokendraw_vllm import _log

    try:
        from tokendraw_vllm._supported import examined

        found = examined()
        if found.applies:
            from tokendraw_vllm import _v1, _v2

            _v1.install()
            _v2.install()
        else:
            _log.left_alone(found.reason)
    except Exception as error:
        _log.left_alone(f"registering raised {_log.spoken(error)}")


def state() -> EngineState:
    """Say whether the installed vLLM is one that :func:`register` would change. Imports vLLM, changes nothing."""
    from tokendraw_vllm._supported import examined

    return examined()

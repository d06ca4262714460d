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
        from tokendraw_vllm._engine import SWITCHED_OFF, compare_engine, is_whole, reasons_to_log

        found = compare_engine()
        if not found.applies:
            _parts.log_kept(found.reason, is_asked_for=found.reason == SWITCHED_OFF)
            return
        from tokendraw_vllm import _v1, v2

        for part, reason in reasons_to_log().items():
            _parts.log_kept(reason, part=part)
        installs = {_parts.V1_SAMPLER: _v1, _parts.SAMPLER: v2, _parts.ADMISSION: v2.parameters}
        for part in filter(is_whole, installs):
            installs[part].install()
    except Exception as error:
        _parts.log_kept(f"registering raised {format_error(error)}")


def state() -> EngineState:
    """Say whether :func:`register` would change the installed vLLM. Imports vLLM, changes nothing."""
    from tokendraw_vllm._engine import compare_engine

    return compare_engine()

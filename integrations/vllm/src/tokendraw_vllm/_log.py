"""Says in vLLM's log what was replaced, or why not: each sentence once per process."""

from __future__ import annotations

import functools
import logging

_log = logging.getLogger("vllm.tokendraw")  # below vLLM's own, so that its handlers and levels hold


def replaced(what: str, by: str) -> None:
    """Say what draws through tokendraw from now on."""
    _say(logging.INFO, f"tokendraw: {what} replaced ({by})")


def left_alone(reason: str, *, what: str = "") -> None:
    """Say why vLLM draws by itself: a warning, since vLLM may register plugins before it shows anything less.

    :param what: the part of vLLM; "" for all of it.
    """
    subject = f"{what} left alone" if what else "left alone"
    _say(logging.WARNING, f"tokendraw: {subject}: {reason}")


def failed(what: str, sampler: str, error: BaseException) -> None:
    """Say that a draw failed and that vLLM goes on by itself."""
    _say(logging.WARNING, f"tokendraw: {what} is vLLM's own again: '{sampler}' raised {spoken(error)}")


def spoken(error: BaseException) -> str:
    """Put an exception on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@functools.cache
def _say(level: int, sentence: str) -> None:
    _log.log(level, sentence)

"""Writes replacements, and reasons against them, to vLLM's log: each sentence once per process."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

from tokendraw.engines import format_error

SAMPLER, EDITING, VERIFICATION, DRAFTING, SCORING = (
    f"V2 {part}" for part in ("sampler", "editing", "verification", "drafting", "scoring")
)
"""Replaced parts of vLLM."""
_reasons_of_losses: set[str] = set()
_log = logging.getLogger("vllm.tokendraw")  # below vLLM's logger, whose handlers and levels apply


def log_replaced(part: str, by: str) -> None:
    """Log that tokendraw draws from now on."""
    _say(logging.INFO, f"tokendraw: {part} replaced ({by})")


def log_kept(reason: str, *, part: str = "", is_asked_for: bool = False) -> None:
    """Log why vLLM keeps its sampler: a warning, since vLLM may register plugins before it shows lower levels.

    :param part: the part of vLLM; "" for all parts.
    :param is_asked_for: whether the user asked for this, who needs no warning.
    """
    subject = f"{part} left alone" if part else "left alone"
    _say(logging.INFO if is_asked_for else logging.WARNING, f"tokendraw: {subject}: {reason}")


def log_failed(part: str, sampler: str, error: BaseException) -> None:
    """Log that a draw failed and that vLLM draws from now on."""
    _say(logging.WARNING, f"tokendraw: {part} is vLLM's own again: '{sampler}' raised {format_error(error)}")


def log_lost(rules: Sequence[str], reason: str) -> None:
    """Log that requests are drawn without rules that they ask for, once for each reason."""
    if rules and reason not in _reasons_of_losses:
        _reasons_of_losses.add(reason)
        _say(logging.WARNING, f"tokendraw: requests lose their rules {', '.join(rules)}: {reason}")


@functools.cache
def _say(level: int, sentence: str) -> None:
    _log.log(level, sentence)
